//! Containers: the hidden volumes in which large data lies. Each is attached at its first use, without a lock,
//! and detached when it was not used for a while.
//!
//! Invariants
//!   1. A container has at most two attachments here: one to read, one to write and trim. Concurrent first uses
//!      share an attach, and its failure.
//!   2. At most [`ATTACHED_MAX`] attachments are kept.
//!   3. A write or trim may be sent again over another session: nothing else is ever written into its place.
//!
//! Data has a client of its own, which is a thread with its connections: the thread copies and encrypts every
//! MiB, and looks and operations on the index would wait for that. It starts at the first use, so commands that
//! only know buckets never have it.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::TIB;
use bucket::{ContainerId, DoorError, Layout, Piece, UNIT};
use bytes::Bytes;
use client::{Client, Config, ReadPiece, Volume, VolumeError};
use cluster::message::{Command, Failure};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout_at};

/// A request that is not answered by then is given up.
const REQUEST_TIME: Duration = Duration::from_secs(30);
/// For so long an attach is waited for.
const ATTACH_TIME: Duration = Duration::from_secs(25);
/// For so long a command is waited for.
const COMMAND_TIME: Duration = Duration::from_secs(20);
/// How many sessions a request is tried over.
const SESSIONS_MAX: u32 = 3;
/// An attachment that was not used for so long is given up.
const IDLE_TIME: Duration = Duration::from_secs(600);
/// How often it is looked which attachments are idle.
const SWEEP_TIME: Duration = Duration::from_secs(30);
/// The most attachments; each is a session, which the monitors keep.
const ATTACHED_MAX: usize = 256;
/// A container that is not there is not looked for again for so long: many readers may want it.
const GONE_TIME: Duration = Duration::from_secs(5);
/// After another failure those who waited share it for so long, and the next one tries again.
const FAILED_TIME: Duration = Duration::from_secs(1);
/// The most bytes that one request gives back.
const TRIM_SIZE_MAX: u64 = 64 << 20;
/// The largest container.
const CONTAINER_SIZE_MAX: u64 = 512 * TIB;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unavailable(why: impl Into<String>) -> DoorError {
    DoorError::Unavailable { why: why.into() }
}

/// A value that is made at its first use. Those who want it meanwhile wait, and share a failure.
struct Lazy<T>(tokio::sync::Mutex<Made<T>>);

enum Made<T> {
    Not,
    There(Arc<T>),
    Failed(DoorError, Instant),
}

impl<T> Default for Lazy<T> {
    fn default() -> Lazy<T> {
        Lazy(tokio::sync::Mutex::new(Made::Not))
    }
}

impl<T> Lazy<T> {
    /// Returns the value, and makes it if it is not there.
    async fn get<F>(&self, make: impl FnOnce() -> F) -> Result<Arc<T>, DoorError>
    where
        F: Future<Output = Result<T, DoorError>>,
    {
        let mut made = self.0.lock().await;
        match &*made {
            Made::There(value) => return Ok(value.clone()),
            Made::Failed(error, until) if Instant::now() < *until => return Err(error.clone()),
            Made::Failed(..) | Made::Not => {}
        }
        match make().await {
            Ok(value) => {
                let value = Arc::new(value);
                *made = Made::There(value.clone());
                Ok(value)
            }
            Err(error) => {
                let time = if error == DoorError::Gone { GONE_TIME } else { FAILED_TIME };
                *made = Made::Failed(error.clone(), Instant::now() + time);
                Err(error)
            }
        }
    }

    /// This value is of no use any more: the next one who wants it makes another.
    async fn forget(&self, value: &Arc<T>) {
        let mut made = self.0.lock().await;
        if matches!(&*made, Made::There(there) if Arc::ptr_eq(there, value)) {
            *made = Made::Not;
        }
    }
}

/// What an attachment is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Access {
    Read,
    Write,
}

/// How containers are attached.
trait Attach: Send + Sync + 'static {
    type Volume: Send + Sync + 'static;

    fn attach(
        &self,
        container: ContainerId,
        access: Access,
    ) -> impl Future<Output = Result<Self::Volume, DoorError>> + Send;
}

/// Volumes by container, and whether they may be written to.
type Table<V> = BTreeMap<(ContainerId, Access), Attachment<V>>;

/// The containers that are attached, or being attached.
struct Attachments<A: Attach> {
    how: A,
    table: Mutex<Table<A::Volume>>,
}

struct Attachment<V> {
    volume: Arc<Lazy<V>>,
    used: Instant,
}

impl<A: Attach> Attachments<A> {
    fn new(how: A) -> Attachments<A> {
        Attachments { how, table: Mutex::default() }
    }

    /// Returns the attachment to use for this, and what it is for. Who writes can read, too.
    fn find(&self, container: ContainerId, access: Access) -> (Access, Arc<Lazy<A::Volume>>) {
        let now = Instant::now();
        let mut dropped = None;
        let mut table = lock(&self.table);
        let is_writer = table.contains_key(&(container, Access::Write));
        let access = if is_writer { Access::Write } else { access };
        if table.len() >= ATTACHED_MAX && !table.contains_key(&(container, access)) {
            let oldest = table.iter().min_by_key(|(_, attachment)| attachment.used);
            let oldest = oldest.map(|(key, _)| *key);
            dropped = oldest.and_then(|key| table.remove(&key));
        }
        let new = || Attachment { volume: Arc::default(), used: now };
        let attachment = table.entry((container, access)).or_insert_with(new);
        attachment.used = now;
        let found = (access, attachment.volume.clone());
        drop(table);
        // Requests that use it go on: it is detached behind the last one.
        drop(dropped);
        found
    }

    /// Runs a request on a container, and again over a new session if the session ended.
    async fn run<T, F>(
        &self,
        container: ContainerId,
        access: Access,
        request: impl Fn(Arc<A::Volume>, Duration) -> F,
    ) -> Result<T, DoorError>
    where
        F: Future<Output = Result<T, VolumeError>>,
    {
        let end = Instant::now() + REQUEST_TIME;
        let mut sessions = 0;
        loop {
            let (access, attachment) = self.find(container, access);
            let attach = attachment.get(|| self.how.attach(container, access));
            let attached = timeout_at(end.min(Instant::now() + ATTACH_TIME), attach).await;
            let late = |_| unavailable(format!("no monitor attaches container {container}"));
            let volume = attached.map_err(late)??;
            sessions += 1;
            match request(volume.clone(), end.saturating_duration_since(Instant::now())).await {
                Err(VolumeError::Ended) => attachment.forget(&volume).await,
                done => return done.map_err(error_of),
            }
            if sessions == SESSIONS_MAX {
                return Err(DoorError::Unknown);
            }
        }
    }

    /// Forgets what is known of a container: it was created just now.
    fn forget(&self, container: ContainerId) {
        let mut table = lock(&self.table);
        let known = [Access::Read, Access::Write].map(|access| table.remove(&(container, access)));
        drop(table);
        drop(known);
    }

    /// Gives up what was not used for long.
    fn sweep(&self) {
        let now = Instant::now();
        let is_idle = |_: &_, attachment: &mut Attachment<_>| now - attachment.used >= IDLE_TIME;
        let idle: Vec<_> = lock(&self.table).extract_if(.., is_idle).collect();
        drop(idle);
    }
}

/// Returns what a failed request means.
fn error_of(error: VolumeError) -> DoorError {
    match error {
        VolumeError::Full => DoorError::Full,
        VolumeError::Damaged => DoorError::Damaged,
        VolumeError::Unavailable { why } => DoorError::Unavailable { why },
        VolumeError::Ended | VolumeError::Unknown => DoorError::Unknown,
        VolumeError::ReadOnly
        | VolumeError::OutOfRange
        | VolumeError::Invalid { .. }
        | VolumeError::Asserted { .. }
        | VolumeError::TooLarge { .. } => DoorError::Invalid { why: error.to_string() },
    }
}

/// Returns what a failed read means: it has changed nothing.
fn read_error_of(error: DoorError) -> DoorError {
    match error {
        DoorError::Unknown => unavailable("a container did not answer"),
        error => error,
    }
}

/// Returns what a failed attach means.
fn attach_error_of(failure: Failure) -> DoorError {
    match &*failure.code {
        "not_found" => DoorError::Gone,
        _ => unavailable(failure.message),
    }
}

/// Returns what it means that a container was not created.
fn create_error_of(failure: Failure) -> DoorError {
    match &*failure.code {
        "full" => DoorError::Full,
        "invalid" | "not_found" => {
            DoorError::Invalid { why: format!("{}: {}", failure.message, failure.hint) }
        }
        _ => unavailable(failure.message),
    }
}

/// Volumes of the cluster.
struct ClusterVolumes {
    config: Config,
    client: Lazy<Client>,
}

impl Attach for ClusterVolumes {
    type Volume = Volume;

    async fn attach(&self, container: ContainerId, access: Access) -> Result<Volume, DoorError> {
        let start = || async {
            let config = self.config.clone();
            let started = spawn_blocking(move || Client::start(&config)).await;
            let started = started.map_err(|error| unavailable(error.to_string()))?;
            started.map_err(|failure| unavailable(failure.message))
        };
        let client = self.client.get(start).await?;
        let opened = client.open(&container.to_string(), access == Access::Read).await;
        if opened.as_ref().is_err_and(|failure| failure.code == "io_uring") {
            self.client.forget(&client).await;
        }
        opened.map_err(attach_error_of)
    }
}

/// The containers of a cluster.
pub struct Containers {
    config: Config,
    attachments: Attachments<ClusterVolumes>,
    layouts: Mutex<BTreeMap<String, Arc<Lazy<Layout>>>>,
}

impl Containers {
    /// Knows the cluster; nothing is asked.
    pub fn new(config: &Config, runtime: &Handle) -> Arc<Containers> {
        let volumes = ClusterVolumes { config: config.clone(), client: Lazy::default() };
        let attachments = Attachments::new(volumes);
        let config = config.clone();
        let containers = Arc::new(Containers { config, attachments, layouts: Mutex::default() });
        let swept = Arc::downgrade(&containers);
        runtime.spawn(async move {
            loop {
                sleep(SWEEP_TIME).await;
                match swept.upgrade() {
                    Some(containers) => containers.attachments.sweep(),
                    None => return,
                }
            }
        });
        containers
    }

    /// Sends a command to the monitors.
    async fn command(&self, command: Command) -> Result<Value, Failure> {
        let config = self.config.clone();
        let called = spawn_blocking(move || client::call(&config, command, COMMAND_TIME)).await;
        called.unwrap_or_else(|error| {
            let hint = "start the gateway again".to_string();
            Err(Failure { code: "io".to_string(), message: error.to_string(), hint })
        })
    }

    /// Returns how data lies in the containers of a pool. It is asked once: a pool never changes in that.
    pub async fn layout(&self, data_pool: &str) -> Result<Layout, DoorError> {
        let layout = lock(&self.layouts).entry(data_pool.to_string()).or_default().clone();
        let ask = || async {
            let pools = self.command(Command::PoolList).await;
            let pools = pools.map_err(|failure| unavailable(failure.message))?;
            layout_of(&pools, data_pool)
        };
        layout.get(ask).await.map(|layout| *layout)
    }

    /// Creates a container.
    pub async fn create(&self, data_pool: &str, container: ContainerId) -> Result<(), DoorError> {
        let size = self.layout(data_pool).await?.container_size;
        let (volume, pool) = (container.to_string(), Some(data_pool.to_string()));
        let created = self.command(Command::VolumeCreate { volume, size, pool, gateway: true });
        match created.await {
            // Its name is random: an answer was lost.
            Err(failure) if failure.code == "exists" => {}
            created => drop(created.map_err(create_error_of)?),
        }
        self.attachments.forget(container);
        Ok(())
    }

    /// Writes whole units.
    pub async fn write(
        &self,
        container: ContainerId,
        offset: u64,
        data: Bytes,
    ) -> Result<(), DoorError> {
        let write = |volume: Arc<Volume>, limit| {
            let data = data.clone();
            async move { volume.within(limit).write(offset, data).await }
        };
        self.attachments.run(container, Access::Write, write).await
    }

    /// Reads whole units.
    pub async fn read(
        &self,
        container: ContainerId,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Piece>, DoorError> {
        let read = |volume: Arc<Volume>, limit| async move {
            volume.within(limit).read_pieces(offset, length).await
        };
        let pieces = self.attachments.run(container, Access::Read, read).await;
        let pieces = pieces.map_err(read_error_of)?.into_iter();
        Ok(pieces.map(piece_of).collect())
    }

    /// Gives whole units back.
    pub async fn trim(
        &self,
        container: ContainerId,
        offset: u64,
        length: u64,
    ) -> Result<(), DoorError> {
        for (offset, length) in pieces(offset, length) {
            let trim = |volume: Arc<Volume>, limit| async move {
                volume.within(limit).zero(offset, length).await
            };
            self.attachments.run(container, Access::Write, trim).await?;
        }
        Ok(())
    }
}

fn piece_of(piece: ReadPiece) -> Piece {
    match piece {
        ReadPiece::Data(bytes) => Piece::Data(bytes.into()),
        ReadPiece::Hole(length) => Piece::Hole(length),
    }
}

/// Cuts a range into what one request trims.
fn pieces(offset: u64, length: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = offset + length;
    let ends =
        std::iter::successors(Some(offset), |at| Some((at / TRIM_SIZE_MAX + 1) * TRIM_SIZE_MAX));
    ends.take_while(move |at| *at < end).map(move |at| {
        let next = (at / TRIM_SIZE_MAX + 1) * TRIM_SIZE_MAX;
        (at, next.min(end) - at)
    })
}

/// Returns how data lies in a pool, of the list of all pools.
fn layout_of(pools: &Value, name: &str) -> Result<Layout, DoorError> {
    let invalid = |why: String| DoorError::Invalid { why };
    let mut pools = pools.as_array().into_iter().flatten();
    let Some(pool) = pools.find(|pool| pool["name"] == name) else {
        return Err(invalid(format!(
            "there is no pool {name}: create it, or start the gateway with another --data-pool"
        )));
    };
    if pool["kind"] != "block" {
        return Err(invalid(format!(
            "pool {name} keeps objects, and no volumes: start the gateway with another --data-pool"
        )));
    }
    match (pool["block_size"].as_u64(), pool["stripe_size"].as_u64()) {
        (Some(block), Some(stripe)) if is_layout(block, stripe) => {
            let most = CONTAINER_SIZE_MAX.min(stripe * u64::from(u32::MAX));
            Ok(Layout { block, stripe, container_size: most / stripe * stripe })
        }
        _ => Err(unavailable(format!("the monitors do not tell the stripes of pool {name}"))),
    }
}

fn is_layout(block: u64, stripe: u64) -> bool {
    block > 0 && block.is_multiple_of(UNIT) && stripe > 0 && stripe.is_multiple_of(block)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;

    /// Attaches as many as there are; `is_there`: whether containers are.
    #[derive(Default)]
    struct Fake {
        attached: Mutex<Vec<(ContainerId, Access)>>,
        open: Arc<AtomicUsize>,
        is_gone: bool,
    }

    struct FakeVolume(Arc<AtomicUsize>);

    impl Drop for FakeVolume {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl Attach for Fake {
        type Volume = FakeVolume;

        async fn attach(&self, id: ContainerId, access: Access) -> Result<FakeVolume, DoorError> {
            lock(&self.attached).push((id, access));
            sleep(Duration::from_millis(10)).await;
            if self.is_gone {
                return Err(DoorError::Gone);
            }
            self.open.fetch_add(1, Ordering::SeqCst);
            Ok(FakeVolume(self.open.clone()))
        }
    }

    impl Attachments<Fake> {
        fn count(&self) -> usize {
            lock(&self.how.attached).len()
        }

        async fn use_once(&self, id: u128, access: Access) -> Result<(), DoorError> {
            self.run(ContainerId(id), access, |_, _| async { Ok(()) }).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_first_uses_share_an_attach() {
        let attachments = Attachments::new(Fake::default());
        let use_it = || attachments.use_once(7, Access::Read);
        assert_eq!(tokio::join!(use_it(), use_it(), use_it()), (Ok(()), Ok(()), Ok(())));
        assert_eq!(attachments.count(), 1);
        attachments.use_once(7, Access::Write).await.expect("attached");
        attachments.use_once(7, Access::Read).await.expect("the writer reads, too");
        let seen = lock(&attachments.how.attached).clone();
        assert_eq!(seen, [Access::Read, Access::Write].map(|access| (ContainerId(7), access)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_container_that_is_gone_is_looked_for_again_after_a_while_or_when_it_is_created() {
        let attachments = Attachments::new(Fake { is_gone: true, ..Fake::default() });
        let use_it = || attachments.use_once(7, Access::Read);
        let gone = Err(DoorError::Gone);
        assert_eq!(tokio::join!(use_it(), use_it()), (gone.clone(), gone.clone()));
        assert_eq!((use_it().await, attachments.count()), (gone.clone(), 1));
        attachments.forget(ContainerId(7));
        assert_eq!((use_it().await, attachments.count()), (gone.clone(), 2));
        sleep(GONE_TIME).await;
        assert_eq!((use_it().await, attachments.count()), (gone, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn the_container_that_was_not_used_for_longest_is_detached() {
        let attachments = Attachments::new(Fake::default());
        for id in 0..ATTACHED_MAX as u128 {
            attachments.use_once(id, Access::Read).await.expect("attached");
        }
        attachments.use_once(0, Access::Read).await.expect("it is open");
        attachments.use_once(1000, Access::Read).await.expect("attached");
        let open = || attachments.how.open.load(Ordering::SeqCst);
        assert_eq!((open(), attachments.count()), (ATTACHED_MAX, ATTACHED_MAX + 1));
        attachments.use_once(0, Access::Read).await.expect("it is open");
        assert_eq!(attachments.count(), ATTACHED_MAX + 1, "it was used");
        sleep(IDLE_TIME - Duration::from_secs(1)).await;
        attachments.use_once(0, Access::Read).await.expect("it is open");
        sleep(Duration::from_secs(1)).await;
        attachments.sweep();
        assert_eq!(open(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_whose_session_ended_is_sent_over_a_new_one() {
        let attachments = Attachments::new(Fake::default());
        let sent = AtomicUsize::new(0);
        let ends_until = |last: usize| {
            let sent = &sent;
            move |_, _| async move {
                match sent.fetch_add(1, Ordering::SeqCst) + 1 < last {
                    true => Err(VolumeError::Ended),
                    false => Ok(()),
                }
            }
        };
        let run = |last| attachments.run(ContainerId(7), Access::Write, ends_until(last));
        assert_eq!((run(3).await, attachments.count()), (Ok(()), 3));
        sent.store(0, Ordering::SeqCst);
        assert_eq!((run(9).await, attachments.count()), (Err(DoorError::Unknown), 5));
        assert_eq!(sent.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn a_long_trim_is_cut() {
        let of = |offset, length| pieces(offset, length).collect::<Vec<_>>();
        const MAX: u64 = TRIM_SIZE_MAX;
        assert_eq!(of(UNIT, UNIT), [(UNIT, UNIT)]);
        assert_eq!(of(MAX, MAX), [(MAX, MAX)]);
        let expected = [(MAX - UNIT, UNIT), (MAX, MAX), (2 * MAX, UNIT)];
        assert_eq!(of(MAX - UNIT, MAX + 2 * UNIT), expected);
    }

    #[test]
    fn the_layout_is_that_of_the_pool() {
        let pool = |name: &str, kind: &str, block: u64, stripe: u64| {
            let (block_size, stripe_size) = (block, stripe);
            json!({ "name": name, "kind": kind, "block_size": block_size, "stripe_size": stripe_size })
        };
        let pools = json!([
            pool("objects", "object", 65536, 65536),
            pool("copies", "block", 131_072, 131_072),
            pool("parity", "block", 1 << 20, 3 << 20),
            pool("small", "block", 16_384, 16_384),
        ]);
        let of = |name| layout_of(&pools, name);
        assert!(matches!(of("objects"), Err(DoorError::Invalid { .. })));
        assert!(matches!(of("none"), Err(DoorError::Invalid { .. })));
        // A volume has fewer than 2^32 stripes.
        let full = |stripe| {
            let container_size = u64::from(u32::MAX) * stripe;
            Ok(Layout { block: stripe, stripe, container_size })
        };
        assert_eq!((of("small"), of("copies")), (full(16_384), full(131_072)));
        let parity = of("parity").expect("it is there");
        assert_eq!((parity.block, parity.stripe), (1 << 20, 3 << 20));
        assert_eq!(parity.container_size % parity.stripe, 0);
        assert!(512 * TIB - parity.container_size < parity.stripe);
    }
}
