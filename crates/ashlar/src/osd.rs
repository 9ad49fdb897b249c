//! `ashlar osd`: make, run, inspect and check storage daemons and their disks.
//!
//! `run` is the loop of an OSD: what one turn of the ring brought goes into the node, and what the
//! node asks goes back to the ring. Nothing is decided here.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::size::MIB;
use base::{Incarnation, OsdId, Time, TraceEvent};
use blockstore::{
    CheckOptions, CommitMode, CreateOptions, Finding, RecoveryReport, Severity, StoppedStore,
    StoreId,
};
use client::{Config, Keeper};
use cluster::map::ClusterFile;
use cluster::message::{Command, Failure};
use format::disk::{SUPERBLOCK_OFFSETS, SUPERBLOCK_SIZE, Superblock, SuperblockError};
use format::door::{CloseReason, NetEvent, Peer, Role};
use io::{Disk, Event as IoEvent, Reactor, Trust};
use node::{Effect, Event, Identity, Node, Stalls, StopReason};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

use crate::admin::COMMAND_TIME_MAX;
use crate::background;
use crate::cli::{CommitArg, LogArgs};
use crate::output::{Format, Progress, failure, print_json, size_text};

/// A durable 4 KiB write faster than this means that the disk's cache is protected (or that the
/// file lies in memory): going through the cache with each write then costs next to nothing.
const FAST_WRITE_US_MAX: u64 = 100;

/// So long the disk of an OSD that was killed may stay locked.
const LOCK_TIME_MAX: Duration = Duration::from_secs(2);
const LOCK_DELAY: Duration = Duration::from_millis(10);

/// How long monitors are away before that is said, and how often it is said then.
const ABSENCE_QUIET: base::Duration = base::Duration::from_secs(5);
const ABSENCE_SPAN: base::Duration = base::Duration::from_secs(60);

/// What to make an OSD of.
pub struct CreateRequest<'a> {
    /// Where.
    pub place: Place<'a>,
    /// Needed for a directory.
    pub size: Option<u64>,
    /// Found by measuring if not given.
    pub commit: Option<CommitArg>,
}

/// Where to make an OSD.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    /// There: a directory, made if missing, or a block device.
    At(&'a Path),
    /// In a new directory `osd.ID` within this one.
    Within(&'a Path),
}

impl Place<'_> {
    /// The directory or device of the OSD that gets this id here.
    fn of(self, osd: OsdId) -> PathBuf {
        match self {
            Place::At(path) => path.to_owned(),
            Place::Within(dir) => dir.join(osd.to_string()),
        }
    }
}

/// An OSD that was made.
pub struct CreatedOsd {
    /// What was found and chosen, for people.
    pub summary: String,
    /// The same for programs.
    pub value: Value,
}

/// `ashlar osd create`
pub fn create(
    config: &Config,
    path: &Path,
    size: Option<u64>,
    commit: Option<CommitArg>,
    format: Format,
) -> Result<(), Failure> {
    let mut progress = None;
    let request = CreateRequest { place: Place::At(path), size, commit };
    let created = create_osd(config, &request, &mut |done, total| {
        progress.get_or_insert_with(|| Progress::new(format, "writing", total)).set(done);
    })?;
    drop(progress);
    match format {
        Format::Json => print_json(&created.value),
        Format::Text => {
            println!("{}", created.summary);
            println!("Start it: ashlar osd run {}", path.display());
        }
    }
    Ok(())
}

/// Makes an OSD: asks the monitor for its id, measures the disk, writes an empty store.
/// `progress` is told (bytes done, bytes in all).
pub fn create_osd(
    config: &Config,
    request: &CreateRequest,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CreatedOsd, Failure> {
    // Everything that can be refused is refused before the monitor gives an id away.
    let device = match request.place {
        Place::At(path) => {
            refuse_existing(path)?;
            device_at(path).is_some()
        }
        Place::Within(_) => false,
    };
    if !device && request.size.is_none() {
        let hint = "say how large it may become: --size 100GiB";
        return Err(failure("invalid", "an OSD in a directory needs a size", hint));
    }
    let (Place::At(path) | Place::Within(path)) = request.place;
    let cannot = |error: io::Error| {
        let message = format!("cannot make an OSD at {}: {error}", path.display());
        failure("io", message, "check the path, its permissions and free space")
    };
    if !device {
        fs::create_dir_all(path).map_err(|error| cannot(io::Error::new(path.display(), error)))?;
    }
    let probe = io::probe(path).map_err(cannot)?;
    let mut options = options_of(config, request, &probe);
    blockstore::create(&options)
        .map_err(|error| failure("invalid", error.to_string(), "choose another --size"))?;
    match unfinished_osd(config, request.place)? {
        Some((store, osd)) => (options.store, options.osd) = (store, osd),
        None => {
            if let Some(claim) = claim_of(request.place) {
                let text = format!("{}\n", options.store);
                io::replace_file(&claim, text.as_bytes(), 0o600).map_err(cannot)?;
            }
            options.osd = register(config, options.store)?;
        }
    }
    let created = write_store(&options, &probe, &request.place.of(options.osd), progress)?;
    if let Some(claim) = claim_of(request.place) {
        remove_claim(&claim)?;
    }
    Ok(created)
}

/// The file that holds the identity of a store from before its id is asked for until it is made:
/// whoever goes on after this process was killed gets the same id for it. A device has no room for
/// one; an OSD whose making was cut short there leaves an id that was never used.
fn claim_of(place: Place<'_>) -> Option<PathBuf> {
    let (Place::At(path) | Place::Within(path)) = place;
    device_at(path).is_none().then(|| path.join("unfinished-osd"))
}

fn remove_claim(claim: &Path) -> Result<(), Failure> {
    fs::remove_file(claim).map_err(|error| {
        let message = format!("cannot remove {}: {error}", claim.display());
        failure("io", message, "check the permissions of its directory, and remove it by hand")
    })
}

/// The OSD whose making at this place was cut short, if there is one.
pub fn unfinished_osd(
    config: &Config,
    place: Place<'_>,
) -> Result<Option<(StoreId, OsdId)>, Failure> {
    let Some(claim) = claim_of(place) else { return Ok(None) };
    let Ok(text) = fs::read_to_string(&claim) else { return Ok(None) };
    let Ok(number) = u128::from_str_radix(text.trim_end(), 16) else {
        // None of ours: they are written whole.
        remove_claim(&claim)?;
        return Ok(None);
    };
    let store = StoreId::new(number);
    let osd = register(config, store)?;
    if blocks_of(&place.of(osd)).exists() {
        // It was made; only its claim is left.
        remove_claim(&claim)?;
        return Ok(None);
    }
    Ok(Some((store, osd)))
}

/// The id of the OSD with this store: given now, or known already.
fn register(config: &Config, store: StoreId) -> Result<OsdId, Failure> {
    let command = Command::OsdCreate { store: store.to_string() };
    let answer = client::call(config, command, COMMAND_TIME_MAX)?;
    let osd = answer["id"].as_u64().and_then(|id| OsdId::new(u32::try_from(id).ok()?));
    osd.ok_or_else(|| {
        let hint = "run a monitor of the same version: `ashlar --version`";
        failure("protocol", "the monitor gave no OSD id", hint)
    })
}

/// What is frozen with the store; its OSD's id is not known yet.
fn options_of(config: &Config, request: &CreateRequest, probe: &io::Probe) -> CreateOptions {
    let fast = probe.durable_write_us <= FAST_WRITE_US_MAX;
    CreateOptions {
        cluster: config.file.cluster,
        osd: OsdId::FIRST,
        store: StoreId::new(u128::from_le_bytes(io::random_bytes())),
        size: request.size.or(probe.size).unwrap_or_default() / MIB * MIB,
        sector_size: probe.sector_size,
        commit: match request.commit {
            Some(CommitArg::Fsync) => CommitMode::Fsync,
            Some(CommitArg::Immediate) => CommitMode::Immediate,
            None if fast => CommitMode::Immediate,
            None => CommitMode::Fsync,
        },
    }
}

/// The block device at `path`, if it is one.
fn device_at(path: &Path) -> Option<&Path> {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device()).then_some(path)
}

/// The file or device that holds the blocks of the OSD at `path`.
pub fn blocks_of(path: &Path) -> PathBuf {
    if device_at(path).is_some() { path.to_owned() } else { path.join("blocks") }
}

/// The log of an OSD that runs in the background.
pub fn log_of(config: &Config, path: &Path) -> PathBuf {
    match device_at(path).and_then(Path::file_name) {
        Some(name) => config.dir.join(format!("osd-{}.log", name.to_string_lossy())),
        None => path.join("osd.log"),
    }
}

fn refuse_existing(path: &Path) -> Result<(), Failure> {
    let exists = |what: &str| {
        let message = format!("{} {what}", path.display());
        Err(failure("exists", message, "name another place, or wipe this one by hand first"))
    };
    if let Some(device) = device_at(path) {
        return match is_empty(device) {
            Ok(true) => Ok(()),
            Ok(false) => exists("is not empty: its first or last MiB holds data"),
            Err(error) => exists(&format!("cannot be read: {error}")),
        };
    }
    // As written, and where links and `..` lead to, as far as that is there.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let parent = absolute.parent().and_then(|parent| fs::canonicalize(parent).ok());
    if absolute.starts_with("/dev") || parent.is_some_and(|parent| parent.starts_with("/dev")) {
        let message = format!("{} is no block device", path.display());
        let hint =
            "`lsblk` lists the devices there are; a directory for an OSD lies outside of /dev";
        return Err(failure("invalid", message, hint));
    }
    if path.join("blocks").exists() {
        return exists("holds an OSD already");
    }
    if path.exists() && !path.is_dir() {
        return exists("is neither a directory nor a block device");
    }
    Ok(())
}

/// Whether the ends of a device, where signatures of all kinds lie, hold nothing.
fn is_empty(device: &Path) -> std::io::Result<bool> {
    use std::io::Seek;
    let mut file = File::open(device)?;
    let size = file.seek(std::io::SeekFrom::End(0))?;
    let mut bytes = vec![0; MIB.min(size) as usize];
    for offset in [0, size - bytes.len() as u64] {
        file.read_exact_at(&mut bytes, offset)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn write_store(
    options: &CreateOptions,
    probe: &io::Probe,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CreatedOsd, Failure> {
    let cannot = |error: io::Error| {
        let message = format!("cannot make an OSD at {}: {error}", path.display());
        failure("io", message, "check the path, its permissions and free space")
    };
    if device_at(path).is_none() {
        fs::create_dir_all(path).map_err(|error| cannot(io::Error::new(path.display(), error)))?;
    }
    let (osd, size, commit) = (options.osd, options.size, options.commit);
    let created = blockstore::create(options)
        .map_err(|error| failure("invalid", error.to_string(), "choose another --size"))?;
    let store =
        io::NewStore { zero: &created.zero, clear: &created.clear, images: &created.images };
    io::prepare(&blocks_of(path), size, &store, progress).map_err(cannot)?;
    let cache = match probe.write_cache {
        Some(true) => "has a write cache",
        Some(false) => "has no volatile write cache",
        None => "does not tell whether it has a write cache",
    };
    let direct = if probe.direct { "O_DIRECT works" } else { "O_DIRECT is refused: buffered" };
    let summary = format!(
        "{osd}: {} at {}; sectors of {} bytes, {direct}; the disk {cache}, a durable 4 KiB write \
         takes {} us: commit mode {}",
        size_text(size),
        path.display(),
        probe.sector_size,
        probe.durable_write_us,
        commit_name(commit),
    );
    let value = json!({
        "id": osd, "path": path, "size_bytes": size, "sector_size": probe.sector_size,
        "direct": probe.direct, "write_cache": probe.write_cache,
        "durable_write_us": probe.durable_write_us, "commit": commit_name(commit),
    });
    Ok(CreatedOsd { summary, value })
}

/// The word of a commit mode.
pub fn commit_name(commit: CommitMode) -> &'static str {
    match commit {
        CommitMode::Fsync => "fsync",
        CommitMode::Immediate => "immediate",
    }
}

/// The failure of a reactor that cannot run.
pub fn no_reactor(error: std::io::Error) -> Failure {
    let hint = "Linux 6.1 or newer with io_uring allowed (kernel.io_uring_disabled = 0)";
    failure("io_uring", format!("io_uring does not work: {error}"), hint)
}

/// Of what to run an OSD, and where it is to listen, if that is said.
#[derive(Clone, Copy)]
pub struct RunPlace<'a> {
    /// Its directory or device.
    pub path: &'a Path,
    /// The only address.
    pub listen: Option<&'a str>,
}

/// `ashlar osd run`
pub fn run(
    config: &Config,
    RunPlace { path, listen }: RunPlace<'_>,
    memory: u64,
    log: LogArgs,
    supervised: bool,
) -> Result<(), Failure> {
    let mut settings = node::Settings::default();
    settings.store.memory_bytes = memory;
    // As `osd ls` shows it, wherever that is typed.
    let path = &std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    // Locked for good below: this says what is wrong if somebody else has it.
    drop(open_blocks(&blocks_of(path), true)?);
    log.start(superblock_of(&blocks_of(path))?.osd.to_string());
    while let Some(stalls) = run_once(config, path, listen, supervised, &settings)? {
        io::log::write(&TraceEvent::info("begins anew after its disk hung"));
        settings.stalls = stalls;
    }
    Ok(())
}

/// One run; what the next one is to know, if one is to follow.
fn run_once(
    config: &Config,
    path: &Path,
    listen: Option<&str>,
    supervised: bool,
    settings: &node::Settings,
) -> Result<Option<Stalls>, Failure> {
    let blocks = blocks_of(path);
    let disk = Disk::open(&blocks).map_err(|error| {
        failure("io", error.to_string(), "make an OSD with `ashlar osd create`")
    })?;
    let device_size = disk.size();
    let superblock = superblock_of(&blocks)?;
    let commit = superblock.commit;
    if disk.buffered() {
        let what = "O_DIRECT is refused here: I/O is buffered, with RWF_DSYNC";
        io::log::write(&TraceEvent::warn(what).with("path", blocks.display()));
    }
    let (buffered, is_sparse) = (disk.buffered(), !disk.is_device());
    let mut reactor = Reactor::new(io::Options::default()).map_err(no_reactor)?;
    reactor.watch_signals().map_err(no_reactor)?;
    reactor.attach_disk(disk);
    let trust = |incarnation| Trust {
        key: config.key.clone(),
        peer: Peer { cluster: config.file.cluster, role: Role::Osd(superblock.osd, incarnation) },
    };
    reactor.set_trust(trust(Incarnation::ZERO));
    let (addresses, peer_addresses) = listen_in_networks(&mut reactor, &config.file, listen)?;
    let all = [&peer_addresses[..], &addresses].concat();
    let event = TraceEvent::info("listens").list("addresses", all);
    io::log::write(&event.with("commit", commit_name(commit)));
    let identity = Identity {
        cluster: config.file.cluster,
        osd: superblock.osd,
        store: superblock.store.to_string(),
        monitors: config.file.monitors.clone(),
        addresses,
        peer_addresses,
        pid: std::process::id(),
        path: path.display().to_string(),
        host: config.host(),
        supervised,
    };
    let mut settings = settings.clone();
    settings.store.is_sparse = is_sparse;
    settings.buffered = buffered;
    let keeper = Keeper::new(config, io::log::write);
    serve(reactor, identity, settings, device_size, &trust, &keeper)
}

/// Listens for everybody and, where OSDs have networks of their own, for other OSDs: the addresses.
/// `listen` is the only place, if it is given.
fn listen_in_networks(
    reactor: &mut Reactor,
    file: &ClusterFile,
    listen: Option<&str>,
) -> Result<(Vec<String>, Vec<String>), Failure> {
    let places = |networks: &[String]| match networks.is_empty() {
        true => Ok(Vec::new()),
        false => crate::hosts::listen_places(networks, 0),
    };
    let here = "tcp:127.0.0.1:0".to_owned();
    let (all, peers) = match listen {
        Some(listen) => (vec![listen.to_owned()], Vec::new()),
        None if file.networks.is_empty() => (vec![here], places(&file.osd_networks)?),
        None => (places(&file.networks)?, places(&file.osd_networks)?),
    };
    let addresses = crate::mon::listen_at(reactor, &all)?;
    let peer_addresses = match peers.is_empty() {
        true => Vec::new(),
        false => crate::mon::listen_at(reactor, &peers)?,
    };
    Ok((addresses, peer_addresses))
}

/// Either copy of a store's superblock: enough to know whose it is. The node looks closer.
fn superblock_of(blocks: &Path) -> Result<Superblock, Failure> {
    let (file, _) = open_blocks(blocks, false)?;
    let mut copies = SUPERBLOCK_OFFSETS.into_iter().map(|offset| superblock_at(&file, offset));
    if let Some(superblock) = copies.find_map(Result::ok) {
        return Ok(superblock);
    }
    // None is whole: the inspection says what is wrong.
    inspect_file(blocks, false).map(|_| ())?;
    let hint = "is this the path given to `ashlar osd create`?";
    Err(failure("not_a_store", format!("{} holds no OSD", blocks.display()), hint))
}

/// The loop of an OSD.
fn serve(
    mut reactor: Reactor,
    identity: Identity,
    settings: node::Settings,
    device_size: u64,
    trust: &dyn Fn(Incarnation) -> Trust,
    keeper: &Keeper,
) -> Result<Option<Stalls>, Failure> {
    let mut absence = Absence::default();
    let mut effects = Vec::new();
    let mut events = Vec::new();
    let now = reactor.now();
    let pool = reactor.pool().clone();
    // Trying again does not help against another key: until it has joined, the OSD ends.
    let mut refusals_left = identity.monitors.len();
    let mut node = Node::new(identity, settings, pool, device_size, now, &mut effects);
    loop {
        for effect in effects.drain(..) {
            match effect {
                Effect::Disk(effect) => reactor.disk(effect),
                Effect::Net(effect) => reactor.net(effect),
                Effect::Joined { incarnation } => {
                    refusals_left = usize::MAX;
                    io::log::write(&recovery_line(&node.recovery_report()));
                    background::say_ready();
                    reactor.set_trust(trust(incarnation));
                }
                Effect::Trace(event) => io::log::write(&event),
                Effect::LogLevel(level) => io::log::set_level(level),
                Effect::Stop(StopReason::Stalled) => return Ok(Some(node.stalls())),
                Effect::Stop(reason) => return stopped(reason).map(|()| None),
            }
        }
        let deadline = node.deadline();
        reactor.turn(deadline, &mut events).map_err(no_reactor)?;
        let now = reactor.now();
        for event in events.drain(..) {
            if let Some(why) = distrust(&event) {
                let event = TraceEvent::warn("a monitor refuses the connection");
                io::log::write(&event.with("why", why));
                refusals_left = refusals_left.saturating_sub(1);
                if refusals_left == 0 {
                    let hint = "use the file `key` of this cluster's directory";
                    let message = format!("the monitor refuses the connection: {why}");
                    return Err(failure("untrusted", message, hint));
                }
            }
            tell(&mut node, now, event, &mut effects);
        }
        // One that the events have set since, and that is over already, ends the next turn at once.
        if deadline.is_some_and(|deadline| deadline <= now) {
            node.apply(now, Event::Tick, &mut effects);
        }
        node.finish_turn(now, &mut effects);
        if let Some(addresses) = node.take_monitors() {
            keeper.told(addresses);
        }
        absence.look(now, node.seeks_monitor());
    }
}

/// Says now and then that no monitor answers. I/O goes on meanwhile; an OSD that was just started
/// serves nothing without one.
#[derive(Default)]
struct Absence {
    since: Option<Time>,
    /// It was said last then.
    said: Option<Time>,
}

impl Absence {
    /// `sought`: where a monitor is looked for.
    fn look(&mut self, now: Time, sought: Option<&[String]>) {
        let Some(addresses) = sought else {
            if let (Some(since), Some(_)) = (self.since, self.said) {
                let away = now.since(since).as_millis();
                let event = TraceEvent::info("a monitor answers again");
                io::log::write(&event.number("away_ms", away));
            }
            *self = Absence::default();
            return;
        };
        let since = *self.since.get_or_insert(now);
        let quiet = self.said.map_or(ABSENCE_QUIET, |_| ABSENCE_SPAN);
        if now >= self.said.unwrap_or(since) + quiet {
            self.said = Some(now);
            let event = TraceEvent::warn("no monitor answers: retrying");
            let event = event.number("away_ms", now.since(since).as_millis());
            io::log::write(&event.list("monitors", addresses));
        }
    }
}

/// Why a monitor does not trust us, if that is what the event tells: an OSD connects to nobody
/// else.
fn distrust(event: &IoEvent) -> Option<&str> {
    match event {
        IoEvent::Net(NetEvent::Closed { reason: CloseReason::Untrusted(why), .. }) => Some(why),
        _ => None,
    }
}

/// What recovery found, in one line.
fn recovery_line(report: &RecoveryReport) -> TraceEvent {
    let event = TraceEvent::info("the store is recovered").number("blocks", report.blocks);
    let event = event.number("journal_bytes", report.journal_bytes);
    event.list("decisions", report.rows.iter().map(|(row, count)| format!("@{row}:{count}")))
}

fn tell(node: &mut Node, now: Time, event: IoEvent, effects: &mut Vec<Effect>) {
    match event {
        IoEvent::Disk(event) => node.apply(now, Event::Disk(event), effects),
        IoEvent::Net(event) => node.apply(now, Event::Net(event), effects),
        IoEvent::Terminate => node.apply(now, Event::Shutdown, effects),
        // An OSD opens no raw streams and is woken by nobody.
        _ => {}
    }
}

fn stopped(reason: StopReason) -> Result<(), Failure> {
    match reason {
        StopReason::Shutdown | StopReason::Stalled => Ok(()),
        StopReason::Store(text) => {
            Err(failure("store", text, "look at the disk: ashlar osd check PATH"))
        }
        StopReason::Removed(text) => {
            let hint =
                "its directory or disk may be wiped; `ashlar osd create` makes a new OSD there";
            Err(failure("removed", text, hint))
        }
        StopReason::Refused(text) => Err(failure("refused", text, "see `ashlar osd ls`")),
    }
}

/// Opens the file or device of a stopped OSD for reading. `lock`: refuse one that is running.
fn open_blocks(blocks: &Path, lock: bool) -> Result<(File, u64), Failure> {
    use std::io::Seek;
    let cannot = |error: std::io::Error| {
        let message = format!("cannot open {}: {error}", blocks.display());
        failure("io", message, "name the path as given to `ashlar osd create`")
    };
    let mut file = File::open(blocks).map_err(cannot)?;
    if lock && !can_lock(&file) {
        let message = format!("{} is in use: its OSD is running", blocks.display());
        let hint = "stop it first: end its process, or under `up`: ashlar osd stop ID";
        return Err(failure("busy", message, hint));
    }
    let size = file.seek(std::io::SeekFrom::End(0)).map_err(cannot)?;
    Ok((file, size))
}

/// Whether no OSD runs on it. One that was killed a moment ago is waited for: the kernel ends what
/// it had asked of the disk, and holds its lock until then.
fn can_lock(file: &File) -> bool {
    let end = std::time::Instant::now() + LOCK_TIME_MAX;
    while flock(file, FlockOperation::NonBlockingLockShared).is_err() {
        if std::time::Instant::now() >= end {
            return false;
        }
        std::thread::sleep(LOCK_DELAY);
    }
    true
}

fn inspect_file(blocks: &Path, lock: bool) -> Result<blockstore::Inspection, Failure> {
    let (file, size) = open_blocks(blocks, lock)?;
    let mut read = |offset, buffer: &mut [u8]| {
        file.read_exact_at(buffer, offset).map_err(|error| error.to_string())
    };
    blockstore::inspect(&mut read, size).map_err(|why| {
        let message = format!("{}: {why}", blocks.display());
        let copies = SUPERBLOCK_OFFSETS.map(|offset| superblock_at(&file, offset));
        if copies.iter().any(|copy| matches!(copy, Err(SuperblockError::Newer(_)))) {
            return failure("newer_format", message, "nothing was changed; see `ashlar --version`");
        }
        if copies.iter().any(|copy| matches!(copy, Err(SuperblockError::Older(_)))) {
            return failure("older_format", message, "nothing was changed; see `ashlar --version`");
        }
        failure("not_a_store", message, "is this the path given to `ashlar osd create`?")
    })
}

/// One copy of a store's superblock.
fn superblock_at(file: &File, offset: u64) -> Result<Superblock, SuperblockError> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    file.read_exact_at(&mut bytes, offset).map_err(|_| SuperblockError::Damaged)?;
    Superblock::decode(&bytes)
}

/// `ashlar osd inspect`
pub fn inspect(path: &Path, format: Format) -> Result<(), Failure> {
    let found = inspect_file(&blocks_of(path), true)?;
    let area = |(offset, length): (u64, u64)| json!({ "offset": offset, "bytes": length });
    let rows: Vec<Value> = found
        .recovery
        .rows
        .iter()
        .map(|(row, count)| json!({ "row": row.to_string(), "count": count }))
        .collect();
    let value = json!({
        "osd": found.identity.osd,
        "cluster": found.identity.cluster.to_string(),
        "store": found.identity.store.to_string(),
        "commit": commit_name(found.commit),
        "size_bytes": found.size_bytes,
        "sector_size": found.sector_size,
        "journal": area(found.journal),
        "journal_head": found.journal_head,
        "journal_tail": found.journal_tail,
        "checkpoints": area(found.checkpoints),
        "checkpoint_sequence": found.checkpoint_sequence,
        "data": area(found.data),
        "blocks": found.blocks,
        "tombstones": found.tombstones,
        "notes": found.notes,
        "used_bytes": found.space.used_bytes,
        "suspect": found.suspect,
        "recovery_rows": rows,
    });
    match format {
        Format::Json => print_json(&value),
        Format::Text => {
            for (key, value) in value.as_object().into_iter().flatten() {
                println!("{:<20} {value}", key.replace('_', " "));
            }
        }
    }
    Ok(())
}

/// `ashlar osd check`
pub fn check(path: &Path, format: Format) -> Result<(), Failure> {
    let blocks = blocks_of(path);
    inspect_file(&blocks, true)?;
    let (file, size) = open_blocks(&blocks, true)?;
    let mut progress = Progress::new(format, "checking", size);
    let mut furthest = 0;
    let mut read = |offset: u64, buffer: &mut [u8]| {
        furthest = furthest.max(offset);
        progress.set(furthest);
        file.read_exact_at(buffer, offset).map_err(|error| error.to_string())
    };
    let report = blockstore::check(&mut read, size, CheckOptions { data: true });
    drop(progress);
    match format {
        Format::Json => {
            print_json(&json!({
                "clean": report.findings.is_empty(),
                "units_checked": report.units_checked,
                "findings": findings_value(&report.findings),
            }));
        }
        Format::Text => {
            for finding in &report.findings {
                println!("{}: {}", severity_word(finding.severity), finding.text);
            }
            println!("{} compared", size_text(report.units_checked * base::UNIT_SIZE));
        }
    }
    if report.findings.iter().any(|finding| finding.severity == Severity::Error) {
        let message = format!("{} is damaged", path.display());
        return Err(failure("damaged", message, "each finding above says what it means"));
    }
    Ok(())
}

/// `ashlar check PATH...`
pub fn compare(paths: &[PathBuf], format: Format) -> Result<(), Failure> {
    let mut files = Vec::new();
    for path in paths {
        let blocks = blocks_of(path);
        inspect_file(&blocks, true)?;
        // The lock is held until the end: nobody starts it meanwhile.
        files.push(open_blocks(&blocks, true)?);
    }
    let mut readers: Vec<_> = files.iter().map(|(file, _)| reader_of(file)).collect();
    let mut stores = Vec::new();
    for ((read, (_, size)), path) in readers.iter_mut().zip(&files).zip(paths) {
        let store = StoppedStore::open(read, *size).map_err(|why| {
            let message = format!("{}: {why}", path.display());
            failure("not_a_store", message, "is this the path given to `ashlar osd create`?")
        })?;
        stores.push(store);
    }
    let identity = |store: &StoppedStore<'_>| store.store().identity();
    for (at, store) in stores.iter().enumerate() {
        let this = identity(store);
        if stores[..at].iter().any(|other| identity(other).osd == this.osd) {
            let message = format!("{} is named twice", this.osd);
            return Err(failure("invalid", message, "name each OSD once"));
        }
        if stores[..at].iter().any(|other| identity(other).cluster != this.cluster) {
            let message = format!("{} belongs to another cluster", paths[at].display());
            return Err(failure("invalid", message, "name OSDs of one cluster"));
        }
    }
    let mut progress = None;
    let found = node::compare(&mut stores, &mut |done, total| {
        progress.get_or_insert_with(|| Progress::new(format, "comparing", total)).set(done);
    });
    drop(progress);
    print_comparison(&found, format);
    if found.findings.iter().any(|finding| finding.severity == Severity::Error) {
        let hint = "start them: what a checksum or a version decides is put right from the other \
                    copy; see `ashlar status`";
        return Err(failure("different", "copies differ or are damaged", hint));
    }
    Ok(())
}

fn reader_of(file: &File) -> impl FnMut(u64, &mut [u8]) -> Result<(), String> {
    |offset, buffer| file.read_exact_at(buffer, offset).map_err(|error| error.to_string())
}

fn print_comparison(found: &node::Comparison, format: Format) {
    match format {
        Format::Json => print_json(&json!({
            "clean": found.findings.is_empty(),
            "pgs": found.pgs,
            "blocks": found.blocks,
            "bytes_compared": found.bytes,
            "different": found.different,
            "under_way": found.under_way,
            "strays": found.strays,
            "findings": findings_value(&found.findings),
        })),
        Format::Text => {
            for finding in &found.findings {
                println!("{}: {}", severity_word(finding.severity), finding.text);
            }
            let (blocks, pgs) = (found.blocks, found.pgs);
            println!("{blocks} blocks of {pgs} PGs, {} compared", size_text(found.bytes));
        }
    }
}

fn severity_word(severity: Severity) -> &'static str {
    match severity {
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

fn findings_value(findings: &[Finding]) -> Value {
    let rows = findings.iter().map(
        |finding| json!({ "severity": severity_word(finding.severity), "message": finding.text }),
    );
    rows.collect()
}
