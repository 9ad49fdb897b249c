//! Volumes and object pools for async programs; works with any runtime.
//!
//! ```text
//!   async task ──Job──▶ channel, wake-up ──▶ thread: reactor + client core
//!              ◀──answer── Slot ◀────────────────┘
//! ```
//!
//! Data is copied once on each side of the channel, because buffers of the core belong to its thread. A
//! program that cannot afford the copies can run a client core on its own reactor.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker as TaskWaker};
use std::thread::JoinHandle;
use std::time::Duration;

use base::Version;
use bytes::Bytes;
use cluster::message::Failure;
use io::Waker;
use volume::{
    Answer, Attached, Effect, Event, Extent, Operation, Piece, Place, RequestId, Used, VolumeError,
    VolumeHandle,
};

use crate::config::{Config, failure};
use crate::objects::ObjectPool;
use crate::shell::Shell;

/// A handle to a thread that serves volumes of one cluster. The thread ends once all clones of the client and
/// all its volumes are dropped.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// # let failed = |failure: cluster::message::Failure| failure.message;
/// let config = client::Config::find(None).map_err(failed)?;
/// let client = client::Client::start(&config).map_err(failed)?;
/// let disk = client.open("disk", false).await.map_err(failed)?;
/// disk.write(0, b"stone".to_vec()).await?;
/// disk.flush().await?;
/// assert_eq!(disk.read(0, 5).await?, b"stone");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    door: Arc<Door>,
}

/// An attached volume; dropping it and all its clones detaches it.
///
/// A request waits for as long as the session lasts, unless it has a time limit ([`Volume::within`]).
/// Dropping the future of a request gives it up: what was not sent is never sent, and what was sent may
/// take effect.
#[derive(Clone)]
pub struct Volume {
    hold: Arc<Hold>,
    attached: Arc<Attached>,
    within: Option<Duration>,
}

/// A volume or object pool that is open or being opened; dropping this closes it.
pub(crate) struct Hold {
    door: Arc<Door>,
    handle: VolumeHandle,
}

/// The channel to the thread. The thread ends after the last reference to the channel has been dropped.
struct Door {
    jobs: Mutex<Option<Sender<Job>>>,
    waker: Waker,
    thread: Mutex<Option<JoinHandle<()>>>,
    last_volume: AtomicU64,
    last_request: AtomicU64,
}

/// A piece of a range that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadPiece {
    /// Bytes of which at least a unit of 4 KiB is stored.
    Data(Vec<u8>),
    /// So many bytes of which nothing is stored: never written, or trimmed.
    Hole(u64),
}

impl ReadPiece {
    /// Takes the bytes out of the buffer, which belongs to the thread.
    fn of(piece: Piece) -> ReadPiece {
        match piece {
            Piece::Data(bytes) => ReadPiece::Data(bytes.to_vec()),
            Piece::Hole(length) => ReadPiece::Hole(length),
        }
    }
}

/// A request to the thread.
enum Job {
    Open {
        handle: VolumeHandle,
        name: String,
        how: How,
        slot: Filler<Opened>,
    },
    Close {
        handle: VolumeHandle,
    },
    Request {
        id: RequestId,
        handle: VolumeHandle,
        wish: Wish,
        within: Option<Duration>,
        slot: Filler<Reached>,
    },
    /// Nobody waits for the answer.
    Cancel {
        id: RequestId,
    },
}

/// What is opened, and how.
#[derive(Clone, Copy)]
enum How {
    Volume { read_only: bool, lock: bool },
    Pool,
}

type Opened = Result<Attached, Failure>;
pub(crate) type Reached = Result<Found, VolumeError>;

/// An operation, with data that can be sent between threads.
pub(crate) enum Wish {
    Read { offset: u64, length: u64 },
    Write { offset: u64, data: Bytes },
    Zero { offset: u64, length: u64 },
    Flush,
    Extents { offset: u64, length: u64 },
    Mutate { hash: u32, operation: Vec<u8> },
    Look { at: Place, reads: Vec<u8>, answers_size_max: u64 },
    List { names: Vec<u8>, page_size_max: u64, pgs_max: usize },
}

/// The answer to an operation, with data that can be sent between threads.
pub(crate) enum Found {
    Data(Vec<ReadPiece>),
    Done,
    Extents(Vec<Extent>),
    Mutated { version: Version, results: Vec<u8> },
    Looked(Vec<u8>),
    Listed { pages: Vec<Vec<u8>>, refused: Vec<u32> },
}

impl Client {
    /// Starts the thread. It connects when the first volume is opened.
    ///
    /// Errors: `io_uring` (io_uring does not work on this system).
    pub fn start(config: &Config) -> Result<Client, Failure> {
        let (jobs, inbox) = mpsc::channel();
        let (ready, started) = mpsc::channel();
        let config = config.clone();
        let serve = move || match Shell::new(&config, "library") {
            Ok(shell) => {
                let _ = ready.send(Ok(shell.reactor.waker()));
                Worker::new(shell, inbox).serve();
            }
            Err(failure) => {
                let _ = ready.send(Err(failure));
            }
        };
        let thread = std::thread::Builder::new().name("ashlar-client".to_string()).spawn(serve);
        let thread = thread.map_err(|error| {
            failure("io", format!("cannot start a thread: {error}"), "raise the thread limit")
        })?;
        let waker = started.recv().expect("the thread says how it started")?;
        let jobs = Mutex::new(Some(jobs));
        let thread = Mutex::new(Some(thread));
        let (last_volume, last_request) = (AtomicU64::new(0), AtomicU64::new(0));
        let door = Door { jobs, waker, thread, last_volume, last_request };
        Ok(Client { door: Arc::new(door) })
    }

    /// Attaches a volume without its lock: other clients may have the volume attached too, and each write
    /// is durable once it returns. Waits as long as no monitor answers.
    ///
    /// Errors: the monitor's, such as `not_found` and `locked`; `untrusted`.
    pub async fn open(&self, name: &str, read_only: bool) -> Result<Volume, Failure> {
        self.open_volume(name, How::Volume { read_only, lock: false }).await
    }

    /// Attaches a volume with its lock, or without the lock if another client has the volume attached; see
    /// [`Volume::attached`]. If the disks need flushes, writes under a lock return before they are durable,
    /// and no other client can attach the volume. Waits while the last holder of the lock is disconnected
    /// and may still reconnect.
    ///
    /// Errors: as [`Client::open`].
    pub async fn open_locked(&self, name: &str) -> Result<Volume, Failure> {
        self.open_volume(name, How::Volume { read_only: false, lock: true }).await
    }

    async fn open_volume(&self, name: &str, how: How) -> Result<Volume, Failure> {
        let (hold, attached) = self.open_as(name, how).await?;
        Ok(Volume { hold: Arc::new(hold), attached: Arc::new(attached), within: None })
    }

    /// Opens an object pool. Waits as long as no monitor answers.
    ///
    /// Errors: the monitor's, such as `not_found`; `invalid` (a pool of volumes); `untrusted`.
    pub async fn open_pool(&self, name: &str) -> Result<ObjectPool, Failure> {
        let (hold, attached) = self.open_as(name, How::Pool).await?;
        match attached.used {
            Used::Pool(pool) => Ok(ObjectPool::new(hold, pool, attached.session)),
            Used::Image(_) => unreachable!("a pool was opened"),
        }
    }

    async fn open_as(&self, name: &str, how: How) -> Result<(Hold, Attached), Failure> {
        let (slot, answer) = slot();
        let handle = VolumeHandle(self.door.last_volume.fetch_add(1, Ordering::Relaxed));
        self.door.send(Job::Open { handle, name: name.to_string(), how, slot });
        let hold = Hold { door: self.door.clone(), handle };
        match answer.await {
            Some(result) => Ok((hold, result?)),
            None => {
                let hint =
                    "create a new client; the process needs io_uring as long as a client runs";
                Err(failure("io_uring", "the client's I/O thread has ended".to_string(), hint))
            }
        }
    }
}

impl Volume {
    /// Returns the size of the volume in bytes, as of when it was opened.
    pub fn size(&self) -> u64 {
        self.attached.image().size
    }

    /// Returns the session and the image of the volume.
    pub fn attached(&self) -> &Attached {
        &self.attached
    }

    /// Returns the same volume, whose requests have a time limit. One that is not done by then fails with
    /// [`VolumeError::Unavailable`] if it has changed nothing and will change nothing, and otherwise with
    /// [`VolumeError::Unknown`].
    pub fn within(&self, limit: Duration) -> Volume {
        Volume { within: Some(limit), ..self.clone() }
    }

    async fn request(&self, wish: Wish) -> Reached {
        self.hold.begin(wish, self.within).await
    }

    /// Reads a range; bytes that were never written read as zeros.
    pub async fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>, VolumeError> {
        let mut pieces = self.read_pieces(offset, length).await?;
        if let [ReadPiece::Data(data)] = &mut pieces[..] {
            return Ok(std::mem::take(data));
        }
        let mut data = Vec::with_capacity(length as usize);
        for piece in pieces {
            match piece {
                ReadPiece::Data(bytes) => data.extend_from_slice(&bytes),
                ReadPiece::Hole(length) => data.resize(data.len() + length as usize, 0),
            }
        }
        Ok(data)
    }

    /// Reads a range, and tells what is stored from what is not: each stripe of it is read at one moment, and
    /// is a hole if none of its units in the range is stored. Neighbouring holes are one.
    pub async fn read_pieces(
        &self,
        offset: u64,
        length: u64,
    ) -> Result<Vec<ReadPiece>, VolumeError> {
        match self.request(Wish::Read { offset, length }).await? {
            Found::Data(pieces) => Ok(pieces),
            _ => unreachable!("a read finds data"),
        }
    }

    /// Writes `data` at `offset`; durable after the next [`Volume::flush`], and at once if the volume was
    /// attached without its lock.
    pub async fn write(&self, offset: u64, data: impl Into<Bytes>) -> Result<(), VolumeError> {
        let data = data.into();
        self.request(Wish::Write { offset, data }).await.map(|_| ())
    }

    /// Makes a range read as zeros and frees its space.
    pub async fn zero(&self, offset: u64, length: u64) -> Result<(), VolumeError> {
        self.request(Wish::Zero { offset, length }).await.map(|_| ())
    }

    /// Makes all writes durable that were acknowledged before this call.
    pub async fn flush(&self) -> Result<(), VolumeError> {
        self.request(Wish::Flush).await.map(|_| ())
    }

    /// Returns which parts of a range hold data, in order.
    pub async fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>, VolumeError> {
        match self.request(Wish::Extents { offset, length }).await? {
            Found::Extents(extents) => Ok(extents),
            _ => unreachable!("a question for extents finds extents"),
        }
    }
}

impl Hold {
    /// Sends an operation. Its answer is `None` if the thread has ended.
    pub(crate) fn begin(&self, wish: Wish, within: Option<Duration>) -> Asked {
        let (slot, answer) = slot();
        let id = RequestId(self.door.last_request.fetch_add(1, Ordering::Relaxed));
        self.door.send(Job::Request { id, handle: self.handle, wish, within, slot });
        Asked { answer, door: self.door.clone(), id }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.door.send(Job::Close { handle: self.handle });
    }
}

impl Door {
    fn send(&self, job: Job) {
        let jobs = lock(&self.jobs);
        // If the thread has ended, the job and its slot are dropped, which wakes the waiting task.
        if let Some(jobs) = jobs.as_ref() {
            let _ = jobs.send(job);
        }
        self.waker.wake();
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        lock(&self.jobs).take();
        self.waker.wake();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

/// Locks a mutex and ignores poisoning: no holder panics, and the value is consistent at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

// ---- an answer in transit between threads

struct Shared<T> {
    value: Option<T>,
    /// Whether the slot is done: the value was set, or will never be set.
    filled: bool,
    task: Option<TaskWaker>,
}

/// The thread's side: fills the slot once. Dropping the filler without filling the slot means that no value
/// will come.
struct Filler<T>(Arc<Mutex<Shared<T>>>);

/// The task's side: a future that waits for the value.
pub(crate) struct Slot<T>(Arc<Mutex<Shared<T>>>);

fn slot<T>() -> (Filler<T>, Slot<T>) {
    let shared = Arc::new(Mutex::new(Shared { value: None, filled: false, task: None }));
    (Filler(shared.clone()), Slot(shared))
}

impl<T> Filler<T> {
    fn fill(self, value: T) {
        lock(&self.0).value = Some(value);
    }
}

impl<T> Drop for Filler<T> {
    fn drop(&mut self) {
        let mut shared = lock(&self.0);
        shared.filled = true;
        if let Some(task) = shared.task.take() {
            drop(shared);
            task.wake();
        }
    }
}

impl<T> Future for Slot<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut shared = lock(&self.0);
        if shared.filled {
            return Poll::Ready(shared.value.take());
        }
        shared.task = Some(context.waker().clone());
        Poll::Pending
    }
}

/// A request whose answer is awaited. Dropped before, the request is given up.
pub(crate) struct Asked {
    answer: Slot<Reached>,
    door: Arc<Door>,
    id: RequestId,
}

impl Future for Asked {
    type Output = Reached;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reached> {
        let reached = Pin::new(&mut self.answer).poll(context);
        reached.map(|reached| reached.unwrap_or(Err(VolumeError::Ended)))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let is_filled = lock(&self.answer.0).filled;
        if !is_filled {
            self.door.send(Job::Cancel { id: self.id });
        }
    }
}

// ---- the thread

struct Worker {
    shell: Shell,
    inbox: Receiver<Job>,
    /// Volumes that are not detached yet, each with the slot of the task that waits for the attach, if any.
    volumes: BTreeMap<VolumeHandle, Option<Filler<Opened>>>,
    running: BTreeMap<RequestId, Filler<Reached>>,
}

impl Worker {
    fn new(shell: Shell, inbox: Receiver<Job>) -> Worker {
        Worker { shell, inbox, volumes: BTreeMap::new(), running: BTreeMap::new() }
    }

    /// Serves until no client or volume is left, or until io_uring fails. Dropping the slots then wakes
    /// every waiting task.
    fn serve(mut self) {
        let mut answers = Vec::new();
        let mut is_over = false;
        loop {
            while !is_over {
                match self.inbox.try_recv() {
                    Ok(job) => self.begin(job, &mut answers),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => is_over = true,
                }
            }
            if is_over && self.volumes.is_empty() {
                // Ignore a failure of io_uring: the thread ends anyway.
                let _ = self.shell.part();
                return;
            }
            if answers.is_empty() && self.shell.turn(None, &mut answers).is_err() {
                return;
            }
            for answer in std::mem::take(&mut answers) {
                self.answer(answer);
            }
        }
    }

    fn begin(&mut self, job: Job, answers: &mut Vec<Effect>) {
        let event = match job {
            Job::Open { handle, name, how, slot } => {
                self.volumes.insert(handle, Some(slot));
                match how {
                    How::Volume { read_only, lock } => {
                        Event::Open { volume: handle, name, read_only, lock }
                    }
                    How::Pool => Event::OpenPool { pool: handle, name },
                }
            }
            Job::Close { handle } => Event::Close { volume: handle, patient: false },
            Job::Request { id, handle, wish, within, slot } => {
                self.running.insert(id, slot);
                let operation = self.operation(wish);
                let now = self.shell.reactor.now();
                let deadline = within.map(|limit| now + limited(limit));
                Event::Request { id, volume: handle, operation, deadline }
            }
            Job::Cancel { id } => Event::Cancel { id },
        };
        self.shell.tell(event, answers);
    }

    fn operation(&self, wish: Wish) -> Operation {
        match wish {
            Wish::Read { offset, length } => Operation::Read { offset, length },
            Wish::Write { offset, data } => {
                let data = self.shell.reactor.pool().copy_of(&data);
                Operation::Write { offset, data, durable: false }
            }
            Wish::Zero { offset, length } => Operation::Zero { offset, length, durable: false },
            Wish::Flush => Operation::Flush,
            Wish::Extents { offset, length } => Operation::Extents { offset, length },
            Wish::Mutate { hash, operation } => Operation::Mutate { hash, operation },
            Wish::Look { at, reads, answers_size_max } => {
                Operation::Look { at, reads, answers_size_max }
            }
            Wish::List { names, page_size_max, pgs_max } => {
                Operation::List { names, page_size_max, pgs_max }
            }
        }
    }

    fn answer(&mut self, answer: Effect) {
        match answer {
            Effect::Net(_) | Effect::Trace(_) => unreachable!("the shell keeps them"),
            Effect::Opened { volume, result } => {
                let slot = self.volumes.get_mut(&volume).and_then(Option::take);
                if result.is_err() {
                    self.volumes.remove(&volume);
                }
                slot.expect("each volume is opened once").fill(result);
            }
            Effect::Closed { volume } => {
                self.volumes.remove(&volume);
            }
            Effect::Done { id, result } => {
                let slot = self.running.remove(&id).expect("each request is answered once");
                slot.fill(result.map(found));
            }
        }
    }
}

/// Returns a time limit as the core counts it: at most some decades.
fn limited(limit: Duration) -> base::Duration {
    const NANOS_MAX: u64 = 1 << 60;
    let nanos = u64::try_from(limit.as_nanos()).map_or(NANOS_MAX, |nanos| nanos.min(NANOS_MAX));
    base::Duration::from_nanos(nanos)
}

fn found(answer: Answer) -> Found {
    match answer {
        Answer::Done => Found::Done,
        Answer::Extents(extents) => Found::Extents(extents),
        Answer::Mutated { version, results } => Found::Mutated { version, results },
        Answer::Looked(answers) => Found::Looked(answers),
        Answer::Listed { pages, refused } => Found::Listed { pages, refused },
        Answer::Data(pieces) => Found::Data(pieces.into_iter().map(ReadPiece::of).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_on::{block_on, block_on_for};

    #[test]
    fn an_answer_crosses_threads() {
        let (filler, answer) = slot();
        let thread = std::thread::spawn(move || filler.fill(7));
        assert_eq!(block_on(answer), Some(7));
        thread.join().expect("it does not panic");
    }

    #[test]
    fn a_task_waits_no_longer_than_it_may() {
        let (filler, answer) = slot();
        assert_eq!(block_on_for(answer, std::time::Duration::from_millis(5)), None);
        filler.fill(7);
        let (filler, answer) = slot();
        let thread = std::thread::spawn(move || filler.fill(8));
        assert_eq!(block_on_for(answer, std::time::Duration::from_secs(60)), Some(Some(8)));
        thread.join().expect("it does not panic");
    }

    #[test]
    fn a_waiting_task_wakes_when_no_answer_will_come() {
        let (filler, answer) = slot::<u32>();
        let thread = std::thread::spawn(move || drop(filler));
        assert_eq!(block_on(answer), None);
        thread.join().expect("it does not panic");
    }

    #[test]
    fn dropping_a_waiting_client_ends_its_thread() {
        let config = Config::without_monitor();
        let client = Client::start(&config).expect("io_uring works");
        let other = client.clone();
        let mut open = Box::pin(other.open("disk", false));
        let mut context = Context::from_waker(TaskWaker::noop());
        assert!(open.as_mut().poll(&mut context).is_pending());
        drop(open);
        drop(other);
        drop(client);
    }
}
