//! Reference-counted, aligned buffers: payloads are passed as handles and not copied.
//!
//! ```text
//!   BufferPool ──take──▶ BufferMut (one owner, writable) ──freeze──▶ Buffer (many, read-only slices)
//!       ▲                                                              │
//!       └────────────────── last handle dropped: the memory returns ◀──┘
//! ```
//!
//! Invariants
//!   1. The address and capacity of every buffer are multiples of [`ALIGNMENT`], so that it can be
//!      used for O_DIRECT reads and writes.
//!   2. The bytes of a frozen buffer never change.
//!   3. The memory of a buffer does not move from `take` until its last handle is dropped: the kernel
//!      may hold its address.
//!
//! Handles are not `Send`: a pool belongs to one thread, like its reactor.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::rc::{Rc, Weak};

/// Alignment in memory, in bytes: the largest logical block size of a disk.
pub const ALIGNMENT: usize = 4096;

/// Number of size classes. In units of 4 KiB they are 1, 2, 3, 4, then four for each doubling, up to a buffer
/// size of 4 MiB. So at most a quarter of a buffer is wasted. Larger buffers are not pooled.
const CLASS_COUNT: usize = 36;

/// Maximum number of bytes of free buffers that one pool keeps.
const FREE_BYTES_MAX: usize = 64 << 20;

/// Lends buffers and takes their memory back. Cloning returns another handle to the same pool.
#[derive(Clone, Default)]
pub struct BufferPool {
    shared: Rc<RefCell<Shared>>,
}

struct Shared {
    free: [Vec<Memory>; CLASS_COUNT],
    free_bytes: usize,
}

impl Default for Shared {
    fn default() -> Shared {
        Shared { free: [const { Vec::new() }; CLASS_COUNT], free_bytes: 0 }
    }
}

/// Aligned bytes inside a plain allocation that is a little larger.
struct Memory {
    bytes: Box<[u8]>,
    start: usize,
    capacity: usize,
}

impl Memory {
    fn new(capacity: usize) -> Memory {
        let bytes = vec![0; capacity + ALIGNMENT].into_boxed_slice();
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        assert!(start < ALIGNMENT);
        Memory { bytes, start, capacity }
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.capacity]
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.capacity]
    }
}

/// Memory that returns to its pool when dropped.
struct Pooled {
    memory: Option<Memory>,
    pool: Weak<RefCell<Shared>>,
}

impl Pooled {
    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("taken only in drop")
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let memory = self.memory.take().expect("dropped once");
        let Some(pool) = self.pool.upgrade() else {
            crate::mark!(buffer_outlives_its_pool);
            return;
        };
        let mut shared = pool.borrow_mut();
        let Some(class) = class_of(memory.capacity).1 else { return };
        if shared.free_bytes + memory.capacity <= FREE_BYTES_MAX {
            shared.free_bytes += memory.capacity;
            shared.free[class].push(memory);
        } else {
            crate::mark!(full_pool_keeps_no_buffer);
        }
    }
}

/// Returns the capacity of a buffer for `size` bytes, and its class if buffers of that size are pooled.
fn class_of(size: usize) -> (usize, Option<usize>) {
    let units = size.div_ceil(ALIGNMENT).max(1);
    if units <= 4 {
        return (units * ALIGNMENT, Some(units - 1));
    }
    // 2^doubling < units <= 2^(doubling + 1); this range is cut into four steps.
    let doubling = (units - 1).ilog2();
    let step = 1 << (doubling - 2);
    let steps = (units - (1 << doubling)).div_ceil(step);
    let class = 4 * (doubling as usize - 1) + steps - 1;
    (((1 << doubling) + steps * step) * ALIGNMENT, (class < CLASS_COUNT).then_some(class))
}

impl BufferPool {
    /// Returns a buffer of `size` bytes with unspecified content (zeros, or the bytes of an earlier
    /// use).
    pub fn take(&self, size: usize) -> BufferMut {
        let (capacity, class) = class_of(size);
        let kept = class.and_then(|class| {
            let mut shared = self.shared.borrow_mut();
            let memory = shared.free[class].pop()?;
            shared.free_bytes -= memory.capacity;
            Some(memory)
        });
        let memory = kept.unwrap_or_else(|| Memory::new(capacity));
        let pooled = Pooled { memory: Some(memory), pool: Rc::downgrade(&self.shared) };
        BufferMut { pooled, size }
    }

    /// Returns a buffer of `size` zeros.
    pub fn take_zeroed(&self, size: usize) -> BufferMut {
        let mut buffer = self.take(size);
        buffer.fill(0);
        buffer
    }

    /// Returns a buffer with a copy of `bytes`.
    pub fn copy_of(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.take(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer.freeze()
    }
}

/// A buffer with one owner, which may write into it.
pub struct BufferMut {
    pooled: Pooled,
    size: usize,
}

impl BufferMut {
    /// Makes the buffer read-only and shareable.
    pub fn freeze(self) -> Buffer {
        let range = 0..self.size;
        Buffer { pooled: Rc::new(self.pooled), range }
    }

    /// Shortens the buffer to its first `size` bytes. Requires: `size` is not above the current size.
    pub fn truncate(&mut self, size: usize) {
        assert!(size <= self.size);
        self.size = size;
    }
}

impl Deref for BufferMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.pooled.memory().as_slice()[..self.size]
    }
}

impl DerefMut for BufferMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        let size = self.size;
        let memory = self.pooled.memory.as_mut().expect("taken only in drop");
        &mut memory.as_mut_slice()[..size]
    }
}

impl fmt::Debug for BufferMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferMut({} bytes)", self.size)
    }
}

/// A read-only slice of a reference-counted buffer; cloning and slicing share the memory.
#[derive(Clone)]
pub struct Buffer {
    pooled: Rc<Pooled>,
    range: Range<usize>,
}

impl Buffer {
    /// Returns a part of the slice. Requires: `range` lies within the slice.
    pub fn slice(&self, range: Range<usize>) -> Buffer {
        assert!(range.start <= range.end);
        assert!(range.end <= self.len());
        let start = self.range.start + range.start;
        let end = self.range.start + range.end;
        Buffer { pooled: self.pooled.clone(), range: start..end }
    }

    /// Whether the address of the first byte is a multiple of `alignment`.
    pub fn is_aligned_to(&self, alignment: usize) -> bool {
        self.range.start.is_multiple_of(alignment)
    }

    /// Makes the buffer writable again, if this is its only handle and covers it from the start.
    pub fn try_unfreeze(self) -> Result<BufferMut, Buffer> {
        if self.range.start != 0 {
            return Err(self);
        }
        let Buffer { pooled, range } = self;
        match Rc::try_unwrap(pooled) {
            Ok(pooled) => Ok(BufferMut { pooled, size: range.end }),
            Err(pooled) => {
                crate::mark!(shared_buffer_stays_frozen);
                Err(Buffer { pooled, range })
            }
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.pooled.memory().as_slice()[self.range.clone()]
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Buffer) -> bool {
        self[..] == other[..]
    }
}

impl Eq for Buffer {}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_reused() {
        let pool = BufferPool::default();
        let buffer = pool.take(5000);
        let address = buffer.as_ptr();
        assert_eq!(address as usize % ALIGNMENT, 0);
        assert_eq!(buffer.len(), 5000);
        let frozen = buffer.freeze();
        let slice = frozen.slice(4096..5000);
        drop(frozen);
        assert_eq!(pool.shared.borrow().free_bytes, 0);
        drop(slice);
        assert_eq!(pool.shared.borrow().free_bytes, 8192);
        assert_eq!(pool.take(8192).as_ptr(), address);
    }

    #[test]
    fn classes_hold_their_sizes_without_gaps() {
        let mut before = (0, None);
        for units in 1..=1024 {
            let size = units * ALIGNMENT;
            let (capacity, class) = class_of(size);
            assert_eq!(class_of(size - ALIGNMENT + 1), (capacity, class));
            assert_eq!(class_of(capacity), (capacity, class));
            assert!(size <= capacity && (capacity - size) * 4 <= capacity);
            let next = class.expect("up to 4 MiB all are kept");
            match capacity == before.0 {
                true => assert_eq!(class, before.1),
                false => assert_eq!(next, before.1.map_or(0, |class| class + 1)),
            }
            before = (capacity, class);
        }
        assert_eq!(before, (4 << 20, Some(CLASS_COUNT - 1)));
        assert_eq!(class_of((4 << 20) + 1).1, None);
        assert_eq!(class_of(0), (ALIGNMENT, Some(0)));
    }

    #[test]
    fn a_shared_buffer_stays_frozen() {
        crate::check!(shared_buffer_stays_frozen);
        let pool = BufferPool::default();
        let buffer = pool.copy_of(b"stone");
        let other = buffer.clone();
        let buffer = buffer.try_unfreeze().expect_err("two handles");
        drop(other);
        let mut buffer = buffer.try_unfreeze().expect("one handle");
        buffer[0] = b'S';
        assert_eq!(&buffer.freeze()[..], b"Stone");
    }

    #[test]
    fn a_pool_keeps_free_buffers_up_to_its_limit() {
        crate::check!(full_pool_keeps_no_buffer);
        let pool = BufferPool::default();
        let size = 4 << 20;
        let count = FREE_BYTES_MAX / size + 1;
        let buffers: Vec<BufferMut> = (0..count).map(|_| pool.take(size)).collect();
        drop(buffers);
        assert_eq!(pool.shared.borrow().free_bytes, FREE_BYTES_MAX);
    }

    #[test]
    fn handles_outlive_their_pool() {
        crate::check!(buffer_outlives_its_pool);
        let buffer = BufferPool::default().copy_of(&[9; 10]);
        assert_eq!(&buffer[..], &[9; 10]);
    }
}
