//! Bugs planted on purpose, to prove that the simulator finds them. See `docs/proof.md`.
//!
//! Without the feature `planted`, which only a build of `sim` turns on, `on` is constantly false
//! and the branches are compiled away.

/// A bug that can be switched on. Each is implemented at one place in the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Store: a write is answered before it is durable.
    AckBeforeFlush,
    /// Store: entries that recovery cut or dropped are replayed by the next recovery.
    TailReplayedTwice,
    /// Store: data read from the disk is not verified against its checksums.
    ChecksumNotCompared,
    /// Store: recovery accepts an entry without verifying its out-of-line data.
    StaleDataAccepted,
    /// Store: a replaced block is allocated again before the next durable checkpoint.
    FreedBlockReusedEarly,
    /// Store: the journal is trimmed before the checkpoint that replaces it is durable.
    TrimBeforeCheckpoint,
    /// Store: a large write is answered without waiting for its data to be written.
    LargeDataNotAwaited,
    /// Store: a block that changed while it was being moved reverts to its content before the change.
    MoveOverwritesNewer,
    /// Store: the old location of a moved block is allocated again before the next durable
    /// checkpoint.
    MovedPlaceReusedEarly,
    /// Store: a repair's version is journaled in an entry of its own, before its data.
    RepairInTwoSteps,
    /// Store: a lazy write is answered before it is written.
    LazyAckBeforeWrite,
    /// Store: a repair of a PG is journaled without saying before what the PG has committed.
    RepairWithoutMarks,
    /// Store: a checkpoint frees the journal under prepared versions.
    HeadPassesPrepared,
    /// Store: a checkpoint writes back before the journal says what is committed.
    WriteBackBeforeMarks,
    /// Store: recovery forgets that a settle took versions back.
    SettleForgotten,
    /// Store: recovery does not take the places of prepared versions.
    PreparedPlaceNotTaken,
    /// Store: a block is moved with its prepared versions.
    MoveCopiesView,
    /// Store: the place of a version that was taken back is allocated again before a checkpoint.
    RolledBackPlaceReusedEarly,
    /// Store: recovery keeps what a prepared version of peering replaced.
    ReplacedVersionsKept,
    /// Store: the copy of a prepared version counts as another version.
    CopyTreatedAsNew,
    /// Store: a version is accepted although one before it is missing.
    GapAccepted,
    /// Store: a tombstone is dropped although a version is prepared over it.
    TombstoneDroppedUnderPrepared,
    /// Store: what a dropped entry says of committed versions is forgotten.
    DroppedEntrySaysNothing,
    /// Store: a checkpoint writes the units of a parity part back, and keeps the old part table.
    TableNotWrittenBack,
    /// Store: the part table of a version that was taken back stays.
    RolledBackTableKept,
    /// Node: a request that arrives twice is executed twice, even after its answer.
    DuplicateExecuted,
    /// Node: a fenced session's requests are executed.
    FenceIgnored,
    /// Node: the epoch of a request is not compared with the PG's.
    EpochNotCompared,
    /// Node: requests of an epoch older than the PG's are executed.
    OldEpochAccepted,
    /// Node: a request that carries a newer map revision than this OSD has is executed.
    RevisionNotCompared,
    /// Node: older sessions of an image are served although a newer session acts on a map that this
    /// OSD does not have yet.
    OlderSessionServedOn,
    /// Node: a primary serves without its members' leases.
    ReadWithoutLease,
    /// Node: a new primary begins to serve before the lease that it gave to an earlier primary has
    /// expired.
    LeaseNotWaitedOut,
    /// Node: a primary with an outdated map keeps its leases.
    StaleRevisionAccepted,
    /// Node: a store is opened again while operations of its earlier instance are still in flight.
    StoreReopenedEarly,
    /// Node: the disk counts as responding although a probe has not completed.
    ProbeNotAwaited,
    /// Node: a member takes part in an epoch before the leases that it gave to an earlier primary
    /// have expired.
    QueryAnsweredBeforeGrantsEnd,
    /// Cluster: a whole map, as sent after a restart, is applied without its fences.
    FencesLostByRestart,
    /// Cluster: a volume is removed or made smaller without fencing its ended sessions.
    EndedSessionNotFenced,
    /// Node: writes that begin within a space credit do not reduce it.
    CreditNotCounted,
    /// PG: a write is answered before every acting member has it.
    AckBeforeMembers,
    /// PG: a sync makes only the primary's writes durable, without syncing the other members.
    SyncOfPrimaryAlone,
    /// PG: the mark passes writes that were answered but are not durable.
    MarkCountsUnflushed,
    /// PG: a read does not wait for unfinished writes of its units.
    ReadOfUnfinishedWrite,
    /// PG: a primary with a slow disk answers what another member read, although a later write that is
    /// part of it has not ended.
    ReadElsewhereIgnoresWrites,
    /// PG: a primary with a slow disk reads from a learner.
    ReadElsewhereFromLearner,
    /// PG: a learner is reported complete before its backfill has finished.
    LearnerCountedAsMember,
    /// PG: tombstones are dropped while members are missing or being backfilled.
    TombstoneDroppedEarly,
    /// PG: new versions continue in the epoch of the adopted writes, so that some are issued twice.
    CounterReusedAfterRestart,
    /// PG: a returning member keeps writes that were never adopted.
    DivergenceKept,
    /// PG: a resumed backfill continues after its cursor without updating the blocks before the cursor.
    CursorTrusted,
    /// PG: a copy for a learner is not ordered with the writes of its block.
    FillOvertakesWrite,
    /// PG: an epoch in which learners were backfilled while members were missing is activated when
    /// these members return.
    FilledEpochActivated,
    /// Cluster: members that are down are counted toward the minimum that a PG must keep.
    RemovedMemberStillCounted,
    /// Cluster: a learner enters the acting set without a report that it is complete.
    LearnerAddedWithoutReport,
    /// Cluster: members are removed from the acting set although fewer than the minimum size remain.
    MemberRemovedBelowMinimum,
    /// Cluster: a member whose disk hangs is counted toward the minimum that a PG must keep.
    StalledMemberCounted,
    /// Cluster: members whose disks hang are removed at once, without waiting for reports of other
    /// OSDs.
    StallsJudgedOneByOne,
    /// Node: a change to the copy of the state is accepted but not recorded in a note.
    StateDifferenceLost,
    /// Cluster: after a restore of the state, ids are issued again.
    RestoredCounterNotRaised,
    /// Cluster: a restore of the state keeps the state store's PG entries although OSDs have newer
    /// ones.
    NewestEntryNotTaken,
    /// Cluster: a lock is granted while other sessions have the image open.
    LazyWithoutLock,
    /// Volume: acknowledged writes that are not durable are not replayed in a new epoch.
    ReplaySkipped,
    /// Cluster: a transaction does not check which monitor leads.
    LeadershipNotCompared,
    /// Cluster: a monitor takes leadership although another monitor's lease is still valid.
    LeadershipTakenOver,
    /// Store: a pause of the whole host counts as time in which the disk did not respond.
    PauseCountedAsAge,
    /// Volume: a write cut at a stripe edge is answered when its first part is done.
    PartAnsweredForWhole,
    /// PG: a resumed backfill forgets the blocks that had to be copied whole.
    WholeForgotten,
    /// Node: a giver that grants a shorter lease forgets the longer one before it.
    LeaseShortenedAtOnce,
    /// Node: after a restart a giver waits as if it had given only leases of the default span.
    LongerLeaseForgotten,
    /// Node: a session that was already forgotten is served over an old connection.
    ForgottenSessionServed,
    /// Cluster: a session that was closed with unanswered changes is not fenced.
    UncleanCloseNotFenced,
    /// PG: a learner keeps its cursor without the blocks that are still to be copied whole.
    WholeNotKept,
    /// Volume: a sync is taken to cover writes that were acknowledged while it was in flight.
    SyncCoversLaterWrites,
    /// PG: a listing treats blocks of equal version as equal, even above the version up to which the
    /// learner's blocks can be relied on.
    EqualVersionBelieved,
    /// PG: a learner records the version it has reached before its cursor as reached for all blocks.
    CompleteWithCursor,
    /// Cluster: a volume is attached although a lazy holder, whose connection is lost, still has it.
    AbsentHolderPassedOver,
    /// PG: a scrub compares a key while changes of it are in flight.
    ScrubWithoutTurn,
    /// PG: a scrub repairs members from the first one that can be read, without a majority.
    ScrubBelievesFirst,
    /// PG: the note on scrubs does not list the damage that was found.
    DamageForgotten,
    // In pools with parity; the random test of one PG finds these.
    /// PG: a data member makes the difference as if its part had held nothing.
    ParityFromStaleData,
    /// PG: a member makes a version stable before all acting members have it.
    CommitBeforeAllHaveIt,
    /// PG: what goes forward is stable at once.
    ForwardAsStable,
    /// PG: a read does not wait for its turn beside a write of another part of the stripe.
    ReadBesideSibling,
    /// PG: a parity learner takes a change of a stripe that it does not have yet.
    DeltaToUnfilledLearner,
    /// PG: a stripe whose change a parity learner skipped is not filled.
    SkippedNotFilled,
    /// PG: the mark passes a learner that was reported complete.
    MarkWithoutBoundLearner,
    /// PG: learners are filled with what the primary's index lists.
    FillFromOwnIndex,
    /// PG: a member that takes another position counts as having the data of that position.
    RoleContentKept,
}

impl Bug {
    /// The bugs that seeds must find, by the names that `sim --planted` accepts.
    pub const ALL: &[(&'static str, Bug)] = &[
        ("ack-before-flush", Bug::AckBeforeFlush),
        ("tail-replayed-twice", Bug::TailReplayedTwice),
        ("checksum-not-compared", Bug::ChecksumNotCompared),
        ("stale-data-accepted", Bug::StaleDataAccepted),
        ("freed-block-reused-early", Bug::FreedBlockReusedEarly),
        ("trim-before-checkpoint", Bug::TrimBeforeCheckpoint),
        ("large-data-not-awaited", Bug::LargeDataNotAwaited),
        ("move-overwrites-newer", Bug::MoveOverwritesNewer),
        ("moved-place-reused-early", Bug::MovedPlaceReusedEarly),
        ("repair-in-two-steps", Bug::RepairInTwoSteps),
        ("lazy-ack-before-write", Bug::LazyAckBeforeWrite),
        ("repair-without-marks", Bug::RepairWithoutMarks),
        ("head-passes-prepared", Bug::HeadPassesPrepared),
        ("write-back-before-marks", Bug::WriteBackBeforeMarks),
        ("settle-forgotten", Bug::SettleForgotten),
        ("prepared-place-not-taken", Bug::PreparedPlaceNotTaken),
        ("move-copies-view", Bug::MoveCopiesView),
        ("rolled-back-place-reused-early", Bug::RolledBackPlaceReusedEarly),
        ("replaced-versions-kept", Bug::ReplacedVersionsKept),
        ("copy-treated-as-new", Bug::CopyTreatedAsNew),
        ("gap-accepted", Bug::GapAccepted),
        ("tombstone-dropped-under-prepared", Bug::TombstoneDroppedUnderPrepared),
        ("dropped-entry-says-nothing", Bug::DroppedEntrySaysNothing),
        ("table-not-written-back", Bug::TableNotWrittenBack),
        ("rolled-back-table-kept", Bug::RolledBackTableKept),
        ("duplicate-executed", Bug::DuplicateExecuted),
        ("fence-ignored", Bug::FenceIgnored),
        ("epoch-not-compared", Bug::EpochNotCompared),
        ("old-epoch-accepted", Bug::OldEpochAccepted),
        ("revision-not-compared", Bug::RevisionNotCompared),
        ("pause-counted-as-age", Bug::PauseCountedAsAge),
        ("store-reopened-early", Bug::StoreReopenedEarly),
        ("probe-not-awaited", Bug::ProbeNotAwaited),
        ("stalled-member-counted", Bug::StalledMemberCounted),
        ("stalls-judged-one-by-one", Bug::StallsJudgedOneByOne),
        ("older-session-served-on", Bug::OlderSessionServedOn),
        ("read-elsewhere-from-learner", Bug::ReadElsewhereFromLearner),
        ("read-without-lease", Bug::ReadWithoutLease),
        ("lease-not-waited-out", Bug::LeaseNotWaitedOut),
        ("stale-revision-accepted", Bug::StaleRevisionAccepted),
        ("query-answered-before-grants-end", Bug::QueryAnsweredBeforeGrantsEnd),
        ("fences-lost-by-restart", Bug::FencesLostByRestart),
        ("ended-session-not-fenced", Bug::EndedSessionNotFenced),
        ("credit-not-counted", Bug::CreditNotCounted),
        ("ack-before-members", Bug::AckBeforeMembers),
        ("sync-of-primary-alone", Bug::SyncOfPrimaryAlone),
        ("mark-counts-unflushed", Bug::MarkCountsUnflushed),
        ("learner-counted-as-member", Bug::LearnerCountedAsMember),
        ("tombstone-dropped-early", Bug::TombstoneDroppedEarly),
        ("counter-reused-after-restart", Bug::CounterReusedAfterRestart),
        ("divergence-kept", Bug::DivergenceKept),
        ("cursor-trusted", Bug::CursorTrusted),
        ("fill-overtakes-write", Bug::FillOvertakesWrite),
        ("filled-epoch-activated", Bug::FilledEpochActivated),
        ("removed-member-still-counted", Bug::RemovedMemberStillCounted),
        ("learner-added-without-report", Bug::LearnerAddedWithoutReport),
        ("member-removed-below-minimum", Bug::MemberRemovedBelowMinimum),
        ("state-difference-lost", Bug::StateDifferenceLost),
        ("restored-counter-not-raised", Bug::RestoredCounterNotRaised),
        ("newest-entry-not-taken", Bug::NewestEntryNotTaken),
        ("lazy-without-lock", Bug::LazyWithoutLock),
        ("replay-skipped", Bug::ReplaySkipped),
        ("leadership-not-compared", Bug::LeadershipNotCompared),
        ("leadership-taken-over", Bug::LeadershipTakenOver),
        ("part-answered-for-whole", Bug::PartAnsweredForWhole),
        ("whole-forgotten", Bug::WholeForgotten),
        ("lease-shortened-at-once", Bug::LeaseShortenedAtOnce),
        ("longer-lease-forgotten", Bug::LongerLeaseForgotten),
        ("forgotten-session-served", Bug::ForgottenSessionServed),
        ("unclean-close-not-fenced", Bug::UncleanCloseNotFenced),
        ("whole-not-kept", Bug::WholeNotKept),
        ("sync-covers-later-writes", Bug::SyncCoversLaterWrites),
        ("equal-version-believed", Bug::EqualVersionBelieved),
        ("complete-with-cursor", Bug::CompleteWithCursor),
        ("absent-holder-passed-over", Bug::AbsentHolderPassedOver),
    ];
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Switches a bug on, or all off, on this thread.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.with(|planted| planted.set(bug));
}

/// Whether the bug is switched on.
#[cfg(feature = "planted")]
pub fn on(bug: Bug) -> bool {
    PLANTED.with(|planted| planted.get()) == Some(bug)
}

/// Whether the bug is switched on; always false in this build.
#[cfg(not(feature = "planted"))]
pub const fn on(_bug: Bug) -> bool {
    false
}
