//! One io_uring: its setup, its operations (which own their memory), and its completions.
//!
//! Invariants
//!   1. Memory that the kernel reads or writes belongs to an [`Op`] in the table from the start of the
//!      operation to its last completion, even after the connection is gone.
//!   2. A completion identifies its operation by index and generation; a completion without a known
//!      operation is a bug.
//!   3. The alarm ends a wait. It is a single timeout in the kernel, which is kept when a later time is
//!      requested: setting and cancelling a timer for each wait would be a large part of the cost of the
//!      call. An alarm that fires too early, or is replaced by an earlier one, costs one extra turn.
//!   4. A send ends during its submission. It posts a completion only if its result matters: it did not send
//!      everything, more is queued than one entry can describe, or the connection closes after it. Any other
//!      send posts no completion and does not end a wait: it has succeeded if it was submitted and all
//!      completions were taken without one for it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use base::{BufferMut, ConnectionId, Duration, Time};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use slab::Slab;

use crate::clock;
use crate::disk::DiskJob;
use crate::send_queue::SendQueue;

/// Features of newer kernels that may be used.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct FeatureMask(u32);

impl FeatureMask {
    /// Masks nothing: every feature of the kernel may be used.
    pub const NONE: FeatureMask = FeatureMask(0);
    /// Linux 6.6: no indirection array in the submission queue.
    pub const NO_SQARRAY: FeatureMask = FeatureMask(1);
    /// Linux 6.1: the kernel processes completions only when the thread asks for them.
    pub const DEFER_TASKRUN: FeatureMask = FeatureMask(2);
    /// Linux 5.19: the kernel does not interrupt the thread to process completions.
    pub const COOP_TASKRUN: FeatureMask = FeatureMask(4);
    /// Linux 5.19: one accept operation for many connections.
    pub const MULTISHOT_ACCEPT: FeatureMask = FeatureMask(8);
    /// Linux 5.19: a receive polls first instead of trying to read, if no data is expected yet.
    pub const POLL_FIRST: FeatureMask = FeatureMask(16);
    /// Masks all of these features, and any added later.
    pub const ALL: FeatureMask = FeatureMask(u32::MAX);

    /// Returns the union of both masks.
    pub const fn and(self, other: FeatureMask) -> FeatureMask {
        FeatureMask(self.0 | other.0)
    }

    /// Whether `feature` may be used, that is, is not masked.
    pub const fn allows(self, feature: FeatureMask) -> bool {
        self.0 & feature.0 == 0
    }
}

/// An operation in the kernel. The variants own the memory it uses.
pub(crate) enum Op {
    /// Waits for connections to a listener.
    Accept { listener: usize },
    /// Waits until a socket is writable: the connect has finished, or the send buffer has room.
    Writable { connection: ConnectionId, index: usize, _socket: Rc<OwnedFd> },
    /// Waits for bytes from a socket, and receives them into `buffer[from..]`.
    Receive {
        connection: ConnectionId,
        index: usize,
        _socket: Rc<OwnedFd>,
        buffer: BufferMut,
        from: usize,
    },
    /// Sends as much as the socket has room for; completes when it is submitted.
    Send { connection: ConnectionId, index: usize, _socket: Rc<OwnedFd>, queue: Box<SendQueue> },
    /// Waits for another thread's wake-up.
    Wake,
    /// Waits for a signal.
    Signal,
    /// Carries out a job of the disk.
    Disk(Box<DiskJob>),
    /// Ends a wait at a given time.
    Alarm { _span: Box<types::Timespec> },
    /// Waits for the answer to a cancellation, which carries no information.
    Cancel,
}

/// Identifies an operation; used as the `user_data` of its entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpKey(u64);

/// A completion.
pub(crate) struct Completion {
    /// The operation, if this was its last completion; `None` if more will follow.
    pub(crate) op: Option<Op>,
    /// The listener, if this is a completion of an accept.
    pub(crate) accepting: Option<usize>,
    /// A number of bytes or a descriptor; if negative, an errno.
    pub(crate) result: i32,
    /// Whether the socket had more bytes to read.
    pub(crate) socket_nonempty: bool,
}

pub(crate) struct Ring {
    uring: IoUring,
    ops: Slab<(u32, Op)>,
    /// Entries that wait for room in the submission queue, in order.
    backlog: VecDeque<squeue::Entry>,
    /// The timeout that ends a wait, and its time.
    alarm: Option<(OpKey, Time)>,
    /// Sends in the order in which they were started.
    sends: VecDeque<OpKey>,
    /// How many of `sends` have ended: they were submitted, and their completions, if any, are in the
    /// queue.
    sends_ended: usize,
    /// Whether the outcome of some sends is still unknown after the last call.
    is_behind: bool,
    generation: u32,
    pub(crate) mask: FeatureMask,
    /// Feature names for the log, such as `defer_taskrun`.
    pub(crate) features: &'static str,
}

impl Ring {
    /// Creates a ring with the newest setup that the kernel accepts. `entries`: the number of operations
    /// that can be started between two submissions without an extra system call.
    pub(crate) fn new(entries: u32, mask: FeatureMask) -> io::Result<Ring> {
        let defer = FeatureMask::DEFER_TASKRUN;
        let setups = [
            ("defer_taskrun, no_sqarray", defer.and(FeatureMask::NO_SQARRAY)),
            ("defer_taskrun", defer),
            ("coop_taskrun", FeatureMask::COOP_TASKRUN),
            ("plain", FeatureMask::NONE),
        ];
        let mut last = None;
        for (features, wanted) in setups {
            if !mask.allows(wanted) {
                continue;
            }
            match setup(entries, wanted) {
                Ok(uring) => {
                    let ops = Slab::with_capacity(entries as usize);
                    return Ok(Ring {
                        uring,
                        ops,
                        backlog: VecDeque::new(),
                        alarm: None,
                        sends: VecDeque::new(),
                        sends_ended: 0,
                        is_behind: false,
                        generation: 0,
                        mask,
                        features,
                    });
                }
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.expect("the plain setup is always tried"))
    }

    /// Starts waiting for connections.
    pub(crate) fn accept(&mut self, listener: usize, fd: RawFd) -> OpKey {
        let (fd, flags) = (types::Fd(fd), libc::SOCK_CLOEXEC);
        let entry = if self.mask.allows(FeatureMask::MULTISHOT_ACCEPT) {
            opcode::AcceptMulti::new(fd).flags(flags).build()
        } else {
            let nobody = std::ptr::null_mut();
            opcode::Accept::new(fd, nobody, nobody.cast()).flags(flags).build()
        };
        self.start(entry, Op::Accept { listener })
    }

    /// Starts waiting until `socket` is writable.
    pub(crate) fn writable(
        &mut self,
        socket: Rc<OwnedFd>,
        (connection, index): (ConnectionId, usize),
    ) -> OpKey {
        let fd = types::Fd(socket.as_raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLOUT as u32).build();
        self.start(entry, Op::Writable { connection, index, _socket: socket })
    }

    /// Starts waiting until `fd` is readable; `op` is `Wake` or `Signal`.
    pub(crate) fn readable(&mut self, fd: RawFd, op: Op) -> OpKey {
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).build();
        self.start(entry, op)
    }

    /// Starts receiving into `buffer[from..]`. `poll_first`: no data is expected yet; `whole`: complete
    /// only when the buffer is full or the stream ends.
    pub(crate) fn receive(
        &mut self,
        socket: Rc<OwnedFd>,
        (connection, index): (ConnectionId, usize),
        mut buffer: BufferMut,
        from: usize,
        (poll_first, whole): (bool, bool),
    ) -> OpKey {
        let room = &mut buffer[from..];
        assert!(!room.is_empty());
        let fd = types::Fd(socket.as_raw_fd());
        let mut receive = opcode::Recv::new(fd, room.as_mut_ptr(), room.len() as u32);
        if poll_first && self.mask.allows(FeatureMask::POLL_FIRST) {
            receive = receive.ioprio(IORING_RECVSEND_POLL_FIRST);
        }
        if whole {
            receive = receive.flags(libc::MSG_WAITALL);
        }
        self.start(
            receive.build(),
            Op::Receive { connection, index, _socket: socket, buffer, from },
        )
    }

    /// Sends as much of `queue` as the socket has room for, during the submission. `is_last`: the send
    /// posts a completion even if it sends everything.
    pub(crate) fn send(
        &mut self,
        socket: Rc<OwnedFd>,
        (connection, index): (ConnectionId, usize),
        mut queue: Box<SendQueue>,
        is_last: bool,
    ) {
        let mut entry = queue.entry(socket.as_raw_fd());
        if !is_last && queue.offers_all() {
            entry = entry.flags(squeue::Flags::SKIP_SUCCESS);
        }
        let key = self.start(entry, Op::Send { connection, index, _socket: socket, queue });
        self.sends.push_back(key);
    }

    /// Starts or continues a job of the disk.
    pub(crate) fn disk(&mut self, mut job: Box<DiskJob>) -> OpKey {
        let entry = job.entry();
        self.start(entry, Op::Disk(job))
    }

    /// Asks the kernel to cancel an operation. Its completion still arrives.
    pub(crate) fn cancel(&mut self, key: OpKey) {
        self.start(opcode::AsyncCancel::new(key.0).build(), Op::Cancel);
    }

    fn start(&mut self, entry: squeue::Entry, op: Op) -> OpKey {
        self.generation = self.generation.wrapping_add(1);
        let index = self.ops.insert((self.generation, op));
        assert!(index <= u32::MAX as usize);
        let key = (u64::from(self.generation) << 32) | index as u64;
        let entry = entry.user_data(key);
        self.backlog.push_back(entry);
        self.move_backlog();
        OpKey(key)
    }

    /// Moves waiting entries to the submission queue, as far as there is room.
    fn move_backlog(&mut self) {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the entry's memory belongs to its operation in the table (buffers and
            // vectors on the heap, which do not move with it), and stays there until `next` has
            // seen its last completion (invariant 1). Descriptors are plain numbers; one closed
            // in between causes an error, not a fault.
            if unsafe { self.uring.submission().push(entry) }.is_err() {
                break;
            }
            self.backlog.pop_front();
        }
    }

    /// Makes a wait end at this time or earlier.
    fn set_alarm(&mut self, time: Time) {
        if let Some((earlier, at)) = self.alarm {
            if at <= time {
                return;
            }
            self.cancel(earlier);
        }
        // A relative time: in a time namespace the kernel would interpret an absolute time by the host's
        // clock.
        let span = time.since(clock::now()).as_nanos();
        let (seconds, rest) = (span / 1_000_000_000, span % 1_000_000_000);
        let span = Box::new(types::Timespec::new().sec(seconds).nsec(rest as u32));
        let flags = types::TimeoutFlags::BOOTTIME;
        let entry = opcode::Timeout::new(&raw const *span).flags(flags).build();
        self.alarm = Some((self.start(entry, Op::Alarm { _span: span }), time));
    }

    /// Submits the started operations. With `until` (a time of [`clock::now`]), waits for a completion, at
    /// most until then. May return early, on a signal or spuriously.
    pub(crate) fn enter(&mut self, until: Option<Time>) -> io::Result<()> {
        // If sends of the last call are still open, do not wait: first learn how they ended.
        let until = until.filter(|_| !self.is_behind);
        if let Some(until) = until {
            self.set_alarm(until);
        }
        let result = self.submit_and_wait(usize::from(until.is_some()));
        let all_submitted = self.backlog.is_empty() && self.uring.submission().is_empty();
        // Completions that did not fit into the completion queue arrive with the next call.
        if all_submitted && !self.uring.submission().cq_overflow() {
            self.sends_ended = self.sends.len();
        }
        self.is_behind = self.sends_ended < self.sends.len();
        result
    }

    fn submit_and_wait(&mut self, completions: usize) -> io::Result<()> {
        self.move_backlog();
        while !self.backlog.is_empty() {
            ignore_passing(self.uring.submit())?;
            if self.uring.submission().is_full() {
                // Completions must be handled first. The caller does that next, so do not wait.
                return Ok(());
            }
            self.move_backlog();
        }
        ignore_passing(self.uring.submit_and_wait(completions))
    }

    /// Returns the next completion. Completions of the alarm are handled here.
    pub(crate) fn next(&mut self) -> Option<Completion> {
        loop {
            let Some(entry) = self.uring.completion().next() else { return self.next_sent() };
            let key = entry.user_data();
            let (index, generation) = (key as u32 as usize, (key >> 32) as u32);
            let more = cqueue::more(entry.flags());
            let (known, op) = self.ops.get(index).expect("a completion names an operation");
            assert!(*known == generation);
            let accepting = match op {
                Op::Accept { listener } => Some(*listener),
                _ => None,
            };
            let op = (!more).then(|| self.ops.remove(index).1);
            if let Some(Op::Alarm { .. }) = op {
                self.alarm = self.alarm.filter(|(current, _)| *current != OpKey(key));
                continue;
            }
            let socket_nonempty = cqueue::sock_nonempty(entry.flags());
            return Some(Completion { op, accepting, result: entry.result(), socket_nonempty });
        }
    }
}

impl Ring {
    /// Returns the next send that sent everything and so posted no completion. Requires: all completions
    /// were taken.
    fn next_sent(&mut self) -> Option<Completion> {
        while self.sends_ended > 0 {
            self.sends_ended -= 1;
            let OpKey(key) = self.sends.pop_front().expect("those that ended are among them");
            let (index, generation) = (key as u32 as usize, (key >> 32) as u32);
            if self.ops.get(index).is_none_or(|(known, _)| *known != generation) {
                continue;
            }
            let op = self.ops.remove(index).1;
            let Op::Send { queue, .. } = &op else { unreachable!("it was started as a send") };
            let result = queue.offered_size() as i32;
            return Some(Completion {
                op: Some(op),
                accepting: None,
                result,
                socket_nonempty: false,
            });
        }
        None
    }
}

/// Ignores errors which only mean that completions must be handled before the call is repeated.
fn ignore_passing(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(error),
        },
    }
}

impl Ring {
    /// Whether the kernel uses none of our memory. (The kernel reads the span of an alarm only during
    /// submission.)
    fn is_quiet(&self) -> bool {
        self.ops.iter().all(|(_, (_, op))| matches!(op, Op::Alarm { .. }))
    }
}

impl Drop for Ring {
    /// Cancels everything and waits until the kernel no longer uses our memory.
    fn drop(&mut self) {
        let keys: Vec<OpKey> = self
            .ops
            .iter()
            .map(|(index, (generation, _))| OpKey((u64::from(*generation) << 32) | index as u64))
            .collect();
        for key in keys {
            self.cancel(key);
        }
        for _ in 0..DROP_ROUNDS_MAX {
            let soon = clock::now() + Duration::from_millis(100);
            if self.is_quiet() || self.enter(Some(soon)).is_err() {
                break;
            }
            while let Some(completion) = self.next() {
                if completion.accepting.is_some() && completion.result >= 0 {
                    // SAFETY: the kernel has just opened this descriptor for us; no other code has it.
                    drop(unsafe { OwnedFd::from_raw_fd(completion.result) });
                }
            }
        }
        if !self.is_quiet() {
            // The disk does not respond: leak the memory rather than reuse it.
            std::mem::forget(std::mem::take(&mut self.ops));
        }
    }
}

/// Maximum number of rounds of 100 ms that the drop of a ring waits for its last completions.
const DROP_ROUNDS_MAX: u32 = 300;

/// From `linux/io_uring.h`; the crate io_uring does not export it.
const IORING_RECVSEND_POLL_FIRST: u16 = 1;

fn setup(entries: u32, wanted: FeatureMask) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.dontfork().setup_clamp().setup_cqsize(entries * 4);
    if !wanted.allows(FeatureMask::DEFER_TASKRUN) {
        builder.setup_single_issuer().setup_defer_taskrun();
    }
    if !wanted.allows(FeatureMask::COOP_TASKRUN) {
        builder.setup_coop_taskrun();
    }
    if !wanted.allows(FeatureMask::NO_SQARRAY) {
        builder.setup_no_sqarray();
    }
    let uring = builder.build(entries)?;
    let params = uring.params();
    if !params.is_feature_ext_arg()
        || !params.is_feature_nodrop()
        || !params.is_feature_skip_cqe_on_success()
    {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the io_uring of this kernel is too old: Linux 6.1 or newer is needed",
        ));
    }
    // Saves a file lookup in each system call; older kernels do not support it.
    let _ = uring.submitter().register_ring_fd();
    Ok(uring)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::send_queue::Outbox;
    use base::BufferPool;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    const LONG: Duration = Duration::from_secs(20);

    struct Pair {
        ring: Ring,
        near: Rc<OwnedFd>,
        far: OwnedFd,
    }

    impl Pair {
        fn new(mask: FeatureMask) -> Pair {
            let flags = SocketFlags::CLOEXEC;
            let (near, far) =
                socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            Pair { ring: Ring::new(8, mask).unwrap(), near: Rc::new(near), far }
        }

        fn send(&mut self, size: usize) {
            let mut outbox = Outbox::default();
            outbox.push_small(|bytes| bytes.push(1));
            outbox.push_payload(BufferPool::default().copy_of(&vec![2; size - 1]));
            let queue = outbox.lend().expect("something waits");
            self.ring.send(self.near.clone(), (ConnectionId::new(2), 0), queue, false);
        }

        /// Returns the results of the sends that have ended.
        fn ended(&mut self) -> Vec<i32> {
            let mut results = Vec::new();
            while let Some(completion) = self.ring.next() {
                assert!(matches!(completion.op, Some(Op::Send { .. })));
                results.push(completion.result);
            }
            results
        }
    }

    #[test]
    fn a_complete_send_does_not_end_the_wait() {
        for mask in [FeatureMask::NONE, FeatureMask::ALL] {
            let mut pair = Pair::new(mask);
            // More sends than the submission queue has entries.
            (1..=20).for_each(|number| pair.send(100 + number));
            assert_eq!(pair.ended(), [0; 0], "nothing is submitted yet");
            let begin = std::time::Instant::now();
            pair.ring.enter(Some(clock::now() + Duration::from_millis(30))).unwrap();
            assert!(begin.elapsed().as_millis() >= 30);
            assert_eq!(pair.ended(), (101..=120).collect::<Vec<i32>>());
            let mut received = vec![0; 4000];
            let (count, _) =
                rustix::net::recv(&pair.far, &mut received, rustix::net::RecvFlags::empty())
                    .unwrap();
            assert_eq!(count, (101..=120).sum::<usize>());
            assert!(pair.ring.ops.is_empty());
        }
    }

    #[test]
    fn a_partial_send_ends_the_wait() {
        for mask in [FeatureMask::NONE, FeatureMask::ALL] {
            let mut pair = Pair::new(mask);
            pair.send(100);
            pair.send(16 << 20);
            pair.send(200);
            let begin = std::time::Instant::now();
            pair.ring.enter(Some(clock::now() + LONG)).unwrap();
            assert!(begin.elapsed().as_secs() < 10);
            let ended = pair.ended();
            let [part, full, all] = ended.as_slice() else { panic!("{ended:?}") };
            assert!((1..16 << 20).contains(part), "{part}");
            assert_eq!((*full, *all), (-libc::EAGAIN, 100));
            rustix::net::shutdown(&pair.far, rustix::net::Shutdown::Both).unwrap();
            pair.send(300);
            pair.ring.enter(Some(clock::now() + LONG)).unwrap();
            assert_eq!(pair.ended(), [-libc::EPIPE]);
        }
    }

    #[test]
    fn a_wait_ends_at_its_time_and_leaves_an_earlier_alarm_under_way() {
        for mask in [FeatureMask::NONE, FeatureMask::ALL] {
            let mut pair = Pair::new(mask);
            let until = clock::now() + Duration::from_millis(30);
            pair.ring.set_alarm(clock::now() + Duration::from_millis(10));
            let mut rounds = 0;
            while clock::now() < until {
                pair.ring.enter(Some(until)).unwrap();
                rounds += 1;
                assert!(pair.ring.next().is_none(), "nothing was taken back");
            }
            assert!(rounds <= 2, "{rounds}");
        }
    }

    #[test]
    fn an_alarm_is_taken_back_for_an_earlier_time() {
        for mask in [FeatureMask::NONE, FeatureMask::ALL] {
            let mut pair = Pair::new(mask);
            let begin = clock::now();
            for until in [begin + LONG, begin + Duration::from_secs(10)] {
                pair.ring.set_alarm(until);
                pair.ring.enter(None).unwrap();
            }
            let until = clock::now() + Duration::from_millis(20);
            let mut rounds = 0;
            while clock::now() < until {
                pair.ring.enter(Some(until)).unwrap();
                rounds += 1;
                while let Some(completion) = pair.ring.next() {
                    assert!(matches!(completion.op, Some(Op::Cancel)));
                }
                // A cancelled alarm is not mistaken for the current one.
                assert!(
                    clock::now() >= until || pair.ring.alarm.is_some_and(|(_, at)| at == until)
                );
            }
            assert!(clock::now().since(begin) < Duration::from_secs(10));
            assert!(rounds <= 4, "{rounds}");
            assert!(pair.ring.ops.len() <= 1, "those that were taken back are gone");
        }
    }

    #[test]
    fn a_ring_dropped_with_sends_leaves_at_once() {
        let mut pair = Pair::new(FeatureMask::NONE);
        (1..=20).for_each(|number| pair.send(100 + number));
        pair.ring.set_alarm(clock::now() + LONG);
        let begin = std::time::Instant::now();
        drop(pair.ring);
        assert!(begin.elapsed().as_millis() < 90, "nothing is waited for");
    }
}
