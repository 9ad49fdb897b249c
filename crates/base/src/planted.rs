//! Bugs planted on purpose, to show that the simulator finds them. See `docs/proof.md`.
//!
//! Without the feature `planted`, which only a build of `sim` turns on, `on` is constantly false
//! and the branches are compiled away.

/// A bug that can be switched on. Each stands at one place in the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Store: a write is answered before it is durable.
    AckBeforeFlush,
    /// Store: entries that recovery cut or dropped are replayed by the next recovery.
    TailReplayedTwice,
    /// Store: data read from the disk is not compared with its checksums.
    ChecksumNotCompared,
    /// Store: recovery accepts an entry without verifying its out-of-line data.
    StaleDataAccepted,
    /// Store: a replaced block is allocated again before the next durable checkpoint.
    FreedBlockReusedEarly,
    /// Store: the journal is trimmed before the checkpoint that replaces it is durable.
    TrimBeforeCheckpoint,
    /// Store: the data of a large write is not waited for before its answer.
    LargeDataNotAwaited,
    /// Store: a block that changed while it was being moved becomes what it was.
    MoveOverwritesNewer,
    /// Store: the old place of a moved block is allocated again before the next durable checkpoint.
    MovedPlaceReusedEarly,
    /// Store: a repair's version is journaled by itself, before its data.
    RepairInTwoSteps,
    /// Store: what was written lazily is answered before it is written.
    LazyAckBeforeWrite,
    /// Node: a request that came twice is executed twice, also after its answer.
    DuplicateExecuted,
    /// Node: a fenced session's requests are executed.
    FenceIgnored,
    /// Node: requests of another epoch are executed.
    EpochNotCompared,
    /// Node: requests of an epoch before the PG's are executed.
    OldEpochAccepted,
    /// Node: a request that names a newer revision of the map than this OSD knows is executed.
    RevisionNotCompared,
    /// Node: older sessions of an image are served though a newer one acts on a map that is not here.
    OlderSessionServedOn,
    /// Node: a primary serves without its members' leases.
    ReadWithoutLease,
    /// Node: a new primary begins before its own lease to an earlier one has run out.
    LeaseNotWaitedOut,
    /// Node: a primary whose map is behind keeps its leases.
    StaleRevisionAccepted,
    /// Node: a store is opened again while operations of the one before are under way.
    StoreReopenedEarly,
    /// Node: the disk counts as answering although a probe has not ended.
    ProbeNotAwaited,
    /// Node: a member takes part in an epoch before its leases to an earlier primary have run out.
    QueryAnsweredBeforeGrantsEnd,
    /// Cluster: a whole map, as after a restart, is taken without its fences.
    FencesLostByRestart,
    /// Cluster: a volume is removed or made smaller without fencing its ended sessions.
    EndedSessionNotFenced,
    /// Node: a credit is not used up by the writes that begin within it.
    CreditNotCounted,
    /// PG: a write is answered before every acting member has it.
    AckBeforeMembers,
    /// PG: a sync makes durable what the primary has, and asks no member.
    SyncOfPrimaryAlone,
    /// PG: the mark passes writes that were answered but are not durable.
    MarkCountsUnflushed,
    /// PG: a read does not wait for writes of its units that are under way.
    ReadOfUnfinishedWrite,
    /// PG: a learner is reported complete before it is filled.
    LearnerCountedAsMember,
    /// PG: tombstones go while members lack or are being filled.
    TombstoneDroppedEarly,
    /// PG: versions continue in the epoch of the adopted writes: some are issued twice.
    CounterReusedAfterRestart,
    /// PG: what a returning member holds and was never adopted stays there.
    DivergenceKept,
    /// PG: a filling goes on behind its cursor without bringing up what lies before it.
    CursorTrusted,
    /// PG: a copy for a learner does not wait for its turn among the writes of its block.
    FillOvertakesWrite,
    /// PG: an epoch in which learners were filled without all members is activated when these come.
    FilledEpochActivated,
    /// Cluster: members of a PG that are down are counted among the minimum that must remain.
    RemovedMemberStillCounted,
    /// Cluster: a learner enters the acting set without a report that it is complete.
    LearnerAddedWithoutReport,
    /// Cluster: members leave the acting set though fewer than minimum size remain.
    MemberRemovedBelowMinimum,
    /// Cluster: a member whose disk hangs counts among the minimum that must remain.
    StalledMemberCounted,
    /// Cluster: members whose disks hang leave at once, without waiting for reports of others.
    StallsJudgedOneByOne,
    /// Node: a difference in the copy of the state is taken and not noted.
    StateDifferenceLost,
    /// Cluster: a restored state gives ids out again.
    RestoredCounterNotRaised,
    /// Cluster: a restored state takes PG entries of the store though OSDs have newer ones.
    NewestEntryNotTaken,
    /// Cluster: a lock is granted while other sessions have the image.
    LazyWithoutLock,
    /// Volume: writes that were done but are not durable are not repeated in a new epoch.
    ReplaySkipped,
    /// Cluster: a transaction does not compare who leads.
    LeadershipNotCompared,
    /// Cluster: a monitor takes leadership though another one's lease stands.
    LeadershipTakenOver,
    /// Store: a pause of its whole host counts as time for which the disk did not answer.
    PauseCountedAsAge,
    /// Volume: a write cut at a stripe edge is answered when its first part is done.
    PartAnsweredForWhole,
    /// PG: a filling that goes on forgets the blocks that were to be copied whole.
    WholeForgotten,
    /// Node: when a giver grants a shorter lease, it forgets the longer one before it.
    LeaseShortenedAtOnce,
    /// Node: after a restart a giver waits as if it had only given leases of the default span.
    LongerLeaseForgotten,
    /// Node: a session that was forgotten is served over a connection from before.
    ForgottenSessionServed,
    /// Cluster: a session that was closed while changes of it had no answer is not fenced.
    UncleanCloseNotFenced,
    /// PG: a learner keeps its cursor without the blocks that are still to be copied whole.
    WholeNotKept,
    /// Volume: a sync covers what was acknowledged while it was under way.
    SyncCoversLaterWrites,
    /// PG: a listing takes blocks of equal versions for equal, also above what the learner has.
    EqualVersionBelieved,
    /// PG: a learner keeps what it has before its cursor as what it has of all blocks.
    CompleteWithCursor,
    /// Cluster: a volume is attached beside a lazy holder whose connection is gone.
    AbsentHolderPassedOver,
}

impl Bug {
    /// Those that seeds must find, with the names `sim` takes.
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

/// Whether the bug is switched on: never, in this build.
#[cfg(not(feature = "planted"))]
pub const fn on(_bug: Bug) -> bool {
    false
}
