//! Control messages: JSON text inside `format::wire::Message::Control`.
//!
//! Unknown fields are ignored, so that a newer peer may say more.
//!
//! The monitor's own requests to OSDs (`Op::DeleteRange` and `Op::Zero` of recorded tasks) are data
//! messages with `SessionId::ZERO`, sent over the connection that the OSD made to the monitor. Each
//! names a map revision at or above the one that brought the task's fences.

use std::collections::BTreeMap;

use base::{
    BlockSize, Epoch, ImageId, Incarnation, MapRevision, MonitorId, OsdId, PgId, PoolId, SessionId,
};
use format::door::Role;
use format::wire::{Member, PgEntry};
use serde::{Deserialize, Serialize};

use crate::copy::{CopyPart, KnownState, Seen};
use crate::map::{FailureDomain, ImageInfo, MapDelta};
use crate::revisions_by_pool;
use crate::settings::Changed;
use crate::stats::{OsdStats, Table};

/// From an OSD, a client or a command to a monitor.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToMonitor {
    /// Send me the map now and every change from now on. Also sent again after a gap.
    Subscribe {
        /// Revisions already known, by pool; none for a first map.
        #[serde(with = "revisions_by_pool")]
        have: BTreeMap<PoolId, MapRevision>,
    },
    /// Asks whether the monitor is alive. It answers with `Pong`, or relays this to the leader.
    Ping,
    /// Says what process this is, for `status`. OSDs say so when they boot.
    Introduce {
        /// What runs: `nbd`, `bench`.
        role: String,
        /// Its process id.
        pid: u32,
        /// Name of its host.
        host: String,
        /// Where it serves, if it does.
        address: Option<String>,
    },
    /// An OSD's process started and has opened its store.
    OsdBoot {
        /// Which OSD; written in its superblock.
        osd: OsdId,
        /// Identity of the store, 32 hexadecimal digits: another store may not come as this OSD.
        store: String,
        /// Where it listens.
        addresses: Vec<String>,
        /// Where it listens for other OSDs besides, on a network of theirs.
        #[serde(default)]
        peer_addresses: Vec<String>,
        /// Its process id.
        pid: u32,
        /// The directory or device, for people.
        path: String,
        /// Name of its host, for placement.
        host: String,
        /// `ashlar up` started it, and starts it again.
        #[serde(default)]
        supervised: bool,
        /// `Some`: the same run goes on over a new connection, no epoch ends. `None`: a new run.
        #[serde(default)]
        incarnation: Option<Incarnation>,
        /// Recovery found damage that may have cost acknowledged writes: where it has not been
        /// filled again since, it counts as absent.
        #[serde(default)]
        suspect: bool,
        /// As in its reports.
        #[serde(default)]
        stalled: bool,
        /// What it has seen of the cluster: a state store that lacks it went back in time.
        #[serde(default)]
        seen: Seen,
    },
    /// A part of what the OSD knows of the cluster, as it was asked to tell.
    OsdTells {
        /// The part; lists of several parts belong together.
        part: KnownState,
        /// Whether others follow.
        more: bool,
    },
    /// An OSD's state, sent about once a second.
    OsdReport(OsdReport),
    /// What an OSD did since it told last, about every `stats_interval_ms` while it does something.
    OsdStats(OsdStats),
    /// PGs that this OSD leads need another entry. Said again until the entry's epoch is over.
    PgNeeds {
        /// What each needs.
        needs: Vec<PgNeed>,
    },
    /// A peer does not answer this OSD. Said again, about once a second, while it is so.
    OsdUnreachable {
        /// Which.
        osd: OsdId,
        /// The run that was talked to.
        incarnation: Incarnation,
        /// How it shows.
        how: Unreachable,
    },
    /// The first message of a connection on which a monitor relays a peer to the leader; the messages
    /// after it are the peer's.
    Relay {
        /// The role of the process whose connection is relayed.
        role: RelayedRole,
    },
    /// A monitor that does not lead is there, and stays connected.
    MonitorHere {
        /// Which.
        monitor: MonitorId,
        /// Where it listens.
        addresses: Vec<String>,
        /// Its process id.
        pid: u32,
        /// Name of its host.
        host: String,
    },
    /// The OSD was asked to stop and serves nothing any more: its PGs need not wait to see whether it
    /// comes back.
    OsdLeaves,
    /// The answer to [`FromMonitor::Probe`], over the connection that it came over.
    Alive {
        /// As asked.
        nonce: u64,
    },
    /// The OSD has applied these map revisions: older ones are refused by it from now on.
    OsdSaw {
        /// By pool.
        #[serde(with = "revisions_by_pool")]
        revisions: BTreeMap<PoolId, MapRevision>,
    },
    /// The OSD holds nothing of this removed pool, durably.
    PoolCleared {
        /// Which it was.
        pool: PoolId,
    },
    /// Attach an image.
    OpenSession {
        /// Names the answer.
        request: u64,
        /// The image's name.
        image: String,
        /// Whether it will only read.
        read_only: bool,
        /// Whether it wants the image's lock, if no other session has the image. A reader gets none.
        #[serde(default)]
        lock: bool,
        /// What attaches, for people: `nbd`, `bench`.
        client: String,
    },
    /// A session goes on over this new connection.
    ResumeSession {
        /// Which.
        session: SessionId,
        /// As it was told with it; 0: it was not.
        #[serde(default)]
        reign: u64,
        /// Higher than over any earlier connection of this client: a monitor that the client has left
        /// may deliver an older message late.
        #[serde(default)]
        turn: u64,
    },
    /// Acknowledged writes of a session that are not durable must be written again, and the pool has no
    /// room for so many bytes of them. Sent again whenever the amount changes.
    SessionWaits {
        /// Which.
        session: SessionId,
        /// 0: nothing any more.
        waiting_bytes: u64,
    },
    /// The image is detached.
    CloseSession {
        /// Which.
        session: SessionId,
        /// A change was given up without an answer: it may still be on its way, so the session
        /// is fenced before the image is attached again, removed or made smaller.
        #[serde(default)]
        unanswered: bool,
    },
    /// Tell me every change of the state store from now on.
    WatchState {
        /// Of keys that begin so.
        prefix: String,
    },
    /// An operator's command.
    Command {
        /// Names the answer.
        request: u64,
        /// What.
        command: Command,
    },
}

/// From a monitor.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromMonitor {
    /// A change of the map, or a snapshot.
    Map(MapDelta),
    /// The answer to [`ToMonitor::Ping`].
    Pong,
    /// The answer to [`ToMonitor::MonitorHere`] of one that was removed from the cluster.
    MonitorRemoved,
    /// Where monitors listen, those that are connected first. Sent to all that get the map.
    Monitors {
        /// Each may have several.
        addresses: Vec<String>,
    },
    /// The OSD is in; its run has this number. It subscribes to the map next.
    OsdBooted {
        /// Never used before by this OSD.
        incarnation: Incarnation,
    },
    /// The state store is older than what OSDs know: the OSD tells all it knows over this
    /// connection, and joins over a later one, when the state is recovered.
    TellAll,
    /// A part of what OSDs keep of the state store: see [`crate::copy`]. Sent to OSDs that have
    /// joined, whole, and then each change.
    StateCopy(CopyPart),
    /// The OSD may not join; trying again will not help.
    OsdRefused {
        /// Why, and what to do.
        error: Failure,
    },
    /// The operator accepts the loss of this incomplete PG (`pg give-up`): serve it with the data that
    /// is left. A report tells the result. Applies only to the epoch and the run in which the operator
    /// saw the loss: a late one accepts no other loss.
    GiveUp {
        /// Which; this OSD is its primary.
        pg: PgId,
        /// The epoch of its entry.
        epoch: Epoch,
        /// The OSD's run.
        incarnation: Incarnation,
    },
    /// Answer at once: somebody's absence is being judged, or whether a boot is still meant.
    Probe {
        /// Names the answer.
        nonce: u64,
    },
    /// A pool is gone: nothing of it is served any more, and what the OSD holds of it goes. It
    /// answers [`ToMonitor::PoolCleared`].
    ClearPool {
        /// Which it was.
        pool: PoolId,
        /// Number of its PGs.
        pg_count: u32,
    },
    /// The sums with these periods of the OSD's run are in the state store: it may forget them.
    StatsSaved {
        /// All up to this one.
        sequence: u64,
    },
    /// Settings that OSDs use, where they differ from their defaults. Sent to OSDs that have
    /// joined, then and with each change.
    Settings {
        /// All of them, by name.
        changed: Changed,
    },
    /// Changes of the state store follow from here on.
    StateWatched,
    /// A key of the state store has changed.
    StateChanged {
        /// The store's revision with the change; several keys may change with one.
        revision: u64,
        /// Which.
        key: String,
        /// Its value, cut where it is longer than a message; `None`: it is gone.
        value: Option<serde_json::Value>,
    },
    /// Changes of the state store were missed, and none follow: read anew, watch anew.
    StateWatchLost,
    /// An image is attached.
    SessionOpened {
        /// As asked.
        request: u64,
        /// The new session.
        session: SessionId,
        /// What it is attached to.
        image: ImageInfo,
        /// It holds the image's lock.
        #[serde(default)]
        locked: bool,
        /// Its writes may be acknowledged before they are durable. Only with the lock.
        #[serde(default)]
        lazy: bool,
        /// Sent back when the session resumes: see `records::SessionRecord`.
        #[serde(default)]
        reign: u64,
    },
    /// A session could not be opened.
    SessionRefused {
        /// As asked.
        request: u64,
        /// Why.
        error: Failure,
    },
    /// The end of a session that its client gave back is recorded; its lock is free, unless the
    /// session has to be fenced first.
    SessionClosed {
        /// Which.
        session: SessionId,
    },
    /// The session is over (gone for too long, or fenced): attach anew.
    SessionEnded {
        /// Which.
        session: SessionId,
    },
    /// The answer to a command.
    Answer {
        /// As asked.
        request: u64,
        /// The command's JSON result.
        result: Result<serde_json::Value, Failure>,
    },
}

/// Why something was refused, for programs (`code`) and people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// Stable name of the case: `not_found`, `exists`, `busy`, `invalid`, `cannot_place`, ...
    pub code: String,
    /// What happened, and where.
    pub message: String,
    /// What to do.
    pub hint: String,
}

/// State of an OSD as it reports it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OsdReport {
    /// The maps that it tells of.
    #[serde(with = "revisions_by_pool")]
    pub revisions: BTreeMap<PoolId, MapRevision>,
    /// Size of its data area in bytes.
    pub size_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that writes may still use.
    pub free_bytes: u64,
    /// Whether it refuses writes for want of space.
    pub full: bool,
    /// Whether recovery found damage that is not settled yet.
    pub suspect: bool,
    /// `fsync` or `immediate`.
    pub commit: String,
    /// Whether O_DIRECT was refused and the store is buffered.
    pub buffered: bool,
    /// PGs it leads and serves.
    pub active: Vec<PgId>,
    /// PGs it leads and cannot serve, with the reason.
    pub incomplete: Vec<(PgId, String)>,
    /// PGs it leads whose members are agreeing on an epoch, with what it waits for.
    #[serde(default)]
    pub peering: Vec<(PgId, String)>,
    /// Units found damaged and not rewritten since.
    pub damaged_units: u64,
    /// For how long the oldest read, write or flush of its disk has been under way, in milliseconds.
    #[serde(default)]
    pub oldest_operation_ms: u64,
    /// Its disk hangs, or hung and has not shown yet that it answers.
    #[serde(default)]
    pub stalled: bool,
    /// Learners of PGs it leads, being filled.
    #[serde(default)]
    pub filling: Vec<FillingProgress>,
}

impl OsdReport {
    /// Whether it was made with this entry at hand, or with a newer one.
    pub fn knows(&self, entry: &PgEntry) -> bool {
        self.revisions.get(&entry.pg.pool).is_some_and(|told| *told >= entry.revision)
    }
}

/// How far a learner's filling is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FillingProgress {
    /// The PG.
    pub pg: PgId,
    /// The learner.
    pub osd: OsdId,
    /// Bytes copied in this epoch.
    pub done_bytes: u64,
    /// Bytes that are still to be compared or copied, about; `None`: nothing is known of that yet, it
    /// waits for its turn.
    #[serde(default)]
    pub left_bytes: Option<u64>,
}

/// Why a PG's primary asks for another entry. Bound to the epoch it was seen in: one that comes
/// late does nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PgNeed {
    /// The PG.
    pub pg: PgId,
    /// The epoch of its entry.
    pub epoch: Epoch,
    /// What.
    pub what: Need,
}

/// See [`PgNeed`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// Another epoch with the same members: a connection broke, or an activation failed.
    NewEpoch,
    /// This learner has everything. The primary acknowledges only with it until the epoch ends.
    Complete(Member),
    /// This member cannot go on (full, or it does not follow); for people.
    Failed(Member, String),
}

/// Whose connection a monitor relays to the leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RelayedRole {
    /// A client of volumes, or an operator's command.
    Client,
    /// A storage daemon, as its handshake said.
    Osd(OsdId, Incarnation),
}

impl RelayedRole {
    /// The role of a relayed connection; `None`: a monitor's connection is never relayed.
    pub fn of(role: Role) -> Option<RelayedRole> {
        match role {
            Role::Client => Some(RelayedRole::Client),
            Role::Osd(osd, incarnation) => Some(RelayedRole::Osd(osd, incarnation)),
            Role::Monitor(_) => None,
        }
    }

    /// Its role.
    pub fn role(self) -> Role {
        match self {
            RelayedRole::Client => Role::Client,
            RelayedRole::Osd(osd, incarnation) => Role::Osd(osd, incarnation),
        }
    }
}

/// How a peer's absence shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unreachable {
    /// Its connection was reset, and nobody listens at its addresses: its process is gone.
    Refused,
    /// It has been silent for a second.
    Silent,
    /// It leads PGs of which the peer is a member, and has not asked for a lease for a second.
    Missed,
}

/// Operator's commands that the monitor carries out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum Command {
    /// Make a pool.
    PoolCreate {
        /// Its name.
        pool: String,
        /// Number of copies, 1 to 8; `None`: 2, or 1 where there is only one OSD.
        replicas: Option<u32>,
        /// Fewest members for a write; `None`: 2, or 1 of one or two copies.
        min_size: Option<u32>,
        /// Number of PGs; `None`: by the number of OSDs and copies.
        pg_count: Option<u32>,
        /// What copies must not share; `None`: host.
        failure_domain: Option<FailureDomain>,
        /// `None`: 128 KiB.
        block_size: Option<BlockSize>,
    },
    /// Change a pool.
    PoolSet {
        /// Its name.
        pool: String,
        /// Its new name.
        rename: Option<String>,
        /// Fewest members for a write.
        min_size: Option<u32>,
        /// What copies must not share. Copies move to where it wants them.
        failure_domain: Option<FailureDomain>,
    },
    /// Remove a pool without volumes.
    PoolRemove {
        /// Its name.
        pool: String,
    },
    /// All pools.
    PoolList,
    /// Make a volume.
    VolumeCreate {
        /// Its name.
        volume: String,
        /// In bytes.
        size: u64,
        /// `None`: the only pool.
        pool: Option<String>,
    },
    /// All volumes.
    VolumeList,
    /// One volume.
    VolumeInfo {
        /// Its name.
        volume: String,
    },
    /// Change a volume's size.
    VolumeResize {
        /// Its name.
        volume: String,
        /// New size in bytes.
        size: u64,
        /// Must be said to make it smaller.
        shrink: bool,
    },
    /// Remove a volume.
    VolumeRemove {
        /// Its name.
        volume: String,
    },
    /// Fence the holder of a volume's lock, so that the lock is free.
    VolumeUnlock {
        /// Its name.
        volume: String,
        /// Accepts the loss of the holder's writes that were not flushed. Without it the error names the
        /// holder.
        #[serde(default)]
        accepted: bool,
    },
    /// Give a new OSD its id.
    OsdCreate {
        /// Identity of its store, 32 hexadecimal digits.
        store: String,
    },
    /// Plan no PGs for the OSD: what it has moves to others, while it serves.
    OsdOut {
        /// Which.
        osd: OsdId,
    },
    /// Plan PGs for the OSD again.
    OsdIn {
        /// Which.
        osd: OsdId,
    },
    /// Forget an OSD that is down and that no PG needs. Its id is not given again.
    OsdRemove {
        /// Which.
        osd: OsdId,
    },
    /// Give a new monitor its id.
    MonitorCreate,
    /// All monitors.
    MonitorList,
    /// Forget a monitor that does not run. Its id is not given again.
    MonitorRemove {
        /// Which.
        monitor: MonitorId,
    },
    /// The rows of `status.osds`.
    OsdList,
    /// Rows of OSDs, pools or volumes with their statistics, by id, as many as an answer holds:
    /// `{"rows": [...], "more": true}`.
    Table {
        /// Of what.
        table: Table,
        /// Only ids above this one; 0: from the first on.
        after: u32,
    },
    /// Hosts and their OSDs, as failure domains see them.
    OsdTree,
    /// All PGs.
    PgList {
        /// Only of this pool.
        pool: Option<String>,
    },
    /// One PG.
    PgDescribe {
        /// Which.
        pg: PgId,
    },
    /// Accept the loss of what an incomplete PG had. Answered when its OSD serves it, or, with
    /// `they_are_off`, when it goes on without the members that are down.
    PgGiveUp {
        /// Which.
        pg: PgId,
        /// Whether the loss is accepted; without it the error says what would be lost.
        #[serde(default)]
        accepted: bool,
        /// The members that are down are off and stay off, as long as it takes until they have
        /// the new map: the PG goes on with those that are left.
        #[serde(default)]
        they_are_off: bool,
    },
    /// The whole state of the cluster, as `status --json`.
    Status,
    /// Keys and values of the state store.
    StateList {
        /// Only keys that begin so.
        prefix: String,
    },
    /// One key of the state store.
    StateGet {
        /// Which.
        key: String,
    },
    /// Write a key of the state store that people may write.
    StatePut {
        /// Which.
        key: String,
        /// JSON text.
        value: String,
    },
    /// Write back keys that only monitors write and that were edited by hand.
    StateUndo {
        /// Whether to do it; without it the error says what would be written.
        #[serde(default)]
        accepted: bool,
    },
    /// Take what OSDs know into a state store that is older.
    StateRecover {
        /// OSDs that will not answer any more, and count as lost.
        #[serde(default)]
        they_are_lost: Vec<OsdId>,
        /// Whether to do it; without it the error says what would be done.
        #[serde(default)]
        accepted: bool,
    },
    /// All settings.
    ConfigList,
    /// One setting.
    ConfigGet {
        /// Its name.
        setting: String,
    },
    /// Change a setting.
    ConfigSet {
        /// Its name.
        setting: String,
        /// As `Setting::parse` reads it; `None`: its default.
        value: Option<String>,
    },
    /// Progress of the recorded tasks of an image (removal, shrink).
    TaskList {
        /// Only of this image.
        image: Option<ImageId>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(message: ToMonitor) {
        let text = serde_json::to_string(&message).unwrap();
        assert_eq!(serde_json::from_str::<ToMonitor>(&text).unwrap(), message, "{text}");
    }

    #[test]
    fn messages_are_read_back_as_written() {
        let revisions = BTreeMap::from([(PoolId::FIRST, MapRevision::new(7))]);
        round_trip(ToMonitor::Subscribe { have: revisions.clone() });
        round_trip(ToMonitor::OsdSaw { revisions });
        let pg = PgId { pool: PoolId::FIRST, number: 3 };
        round_trip(ToMonitor::OsdReport(OsdReport {
            revisions: BTreeMap::from([(PoolId::FIRST, MapRevision::new(9))]),
            active: vec![pg],
            incomplete: vec![(pg, "why".into())],
            ..OsdReport::default()
        }));
        let answer = FromMonitor::Answer {
            request: 1,
            result: Err(Failure { code: "x".into(), message: "y".into(), hint: "z".into() }),
        };
        let text = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<FromMonitor>(&text).unwrap(), answer, "{text}");
        let command = Command::PoolCreate {
            pool: "p".into(),
            replicas: None,
            min_size: None,
            pg_count: Some(8),
            failure_domain: Some(FailureDomain::Osd),
            block_size: Some(BlockSize::DEFAULT),
        };
        round_trip(ToMonitor::Command { request: 2, command });
        let text = serde_json::to_string(&FromMonitor::Map(MapDelta::default())).unwrap();
        assert_eq!(
            serde_json::from_str::<FromMonitor>(&text).unwrap(),
            FromMonitor::Map(MapDelta::default())
        );
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let text = r#"{"type":"close_session","session":5,"colour":"red"}"#;
        let read: ToMonitor = serde_json::from_str(text).unwrap();
        let session = SessionId::new(5);
        assert_eq!(read, ToMonitor::CloseSession { session, unanswered: false });
    }
}
