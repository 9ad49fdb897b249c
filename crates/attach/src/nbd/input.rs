//! Bytes received but not yet parsed: a queue of chunks as they arrived.

use std::collections::VecDeque;

use base::{Buffer, BufferMut, BufferPool};

/// A queue of bytes.
#[derive(Default)]
pub(crate) struct Input {
    chunks: VecDeque<Buffer>,
    length: usize,
}

impl Input {
    pub(crate) fn push(&mut self, chunk: Buffer) {
        if !chunk.is_empty() {
            self.length += chunk.len();
            self.chunks.push_back(chunk);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns the next `N` bytes once they have arrived; leaves them in the queue.
    pub(crate) fn peek<const N: usize>(&self) -> Option<[u8; N]> {
        if self.length < N {
            return None;
        }
        let mut bytes = [0; N];
        match self.chunks.front() {
            Some(first) if first.len() >= N => bytes.copy_from_slice(&first[..N]),
            _ => {
                let all = self.chunks.iter().flat_map(|chunk| chunk.iter());
                for (byte, from) in bytes.iter_mut().zip(all) {
                    *byte = *from;
                }
            }
        }
        Some(bytes)
    }

    /// Drops the next `length` bytes. Requires: they have arrived.
    pub(crate) fn skip(&mut self, mut length: usize) {
        assert!(length <= self.length);
        while length > 0 {
            length -= self.pop(length).len();
        }
    }

    /// Takes the next `length` bytes as one buffer; copies them only if they arrived in several
    /// chunks. Requires: they have arrived.
    pub(crate) fn take(&mut self, length: usize, pool: &BufferPool) -> Buffer {
        assert!(length <= self.length);
        match self.chunks.front() {
            Some(first) if first.len() >= length => self.pop(length),
            _ => {
                let mut buffer = pool.take(length);
                let filled = self.fill(&mut buffer, 0);
                assert!(filled == length);
                buffer.freeze()
            }
        }
    }

    /// Copies as many bytes as possible into `buffer` from `filled` on. Returns how far it is filled.
    pub(crate) fn fill(&mut self, buffer: &mut BufferMut, mut filled: usize) -> usize {
        while filled < buffer.len() && self.length > 0 {
            let piece = self.pop(buffer.len() - filled);
            buffer[filled..filled + piece.len()].copy_from_slice(&piece);
            filled += piece.len();
        }
        filled
    }

    /// Takes up to `length` bytes of the first chunk. Requires: the queue is not empty.
    fn pop(&mut self, length: usize) -> Buffer {
        let first = self.chunks.pop_front().expect("bytes remain");
        if first.len() <= length {
            self.length -= first.len();
            return first;
        }
        self.length -= length;
        self.chunks.push_front(first.slice(length..first.len()));
        first.slice(0..length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_as_they_went_in_however_they_are_cut() {
        let pool = BufferPool::default();
        let mut input = Input::default();
        for chunk in [&b"ab"[..], b"", b"cde", b"fghij"] {
            input.push(pool.copy_of(chunk));
        }
        assert_eq!(input.len(), 10);
        assert_eq!(input.peek::<4>(), Some(*b"abcd"));
        input.skip(1);
        assert_eq!(&input.take(3, &pool)[..], b"bcd");
        let mut buffer = pool.take(4);
        assert_eq!(input.fill(&mut buffer, 0), 4);
        assert_eq!(&buffer[..], b"efgh");
        assert_eq!(input.fill(&mut buffer, 2), 4);
        assert_eq!(&buffer[..], b"efij");
        assert_eq!(input.peek::<1>(), None);
    }
}
