//! Bugs planted on purpose, to prove that the simulator finds them. See `docs/proof.md`.
//!
//! The switches exist where debug assertions are on, so in the profile `ci` that tests and simulators are built
//! with. They are off unless `plant` turns one on. In a release build `on` always returns false, and the branches
//! are compiled away.

/// A bug that can be switched on. It is implemented where the code calls `on` with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Store: a write is acknowledged before it is durable.
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
    /// Store: a large write is acknowledged without waiting for its data to be written.
    LargeDataNotAwaited,
    /// Store: a block that changed while it was being moved reverts to its content before the change.
    MoveOverwritesNewer,
    /// Store: the old location of a moved block is allocated again before the next durable
    /// checkpoint.
    MovedPlaceReusedEarly,
    /// Store: the version of a repair is journaled in a separate entry, before the data.
    RepairInTwoSteps,
    /// Store: a lazy write is acknowledged before it is written.
    LazyAckBeforeWrite,
    /// Store: a repair is journaled although the committed version of its PG was not journaled first.
    RepairWithoutMarks,
    /// Store: a checkpoint frees journal entries of versions that are still prepared.
    HeadPassesPrepared,
    /// Store: a checkpoint writes blocks back before the committed versions of the PGs are journaled.
    WriteBackBeforeMarks,
    /// Store: recovery forgets that a settle entry took versions back.
    SettleForgotten,
    /// Store: recovery does not mark the locations of prepared versions as allocated.
    PreparedPlaceNotTaken,
    /// Store: a block is moved with its prepared content, instead of only its stable content.
    MoveCopiesView,
    /// Store: the location of a version that was taken back is allocated again before the next checkpoint.
    RolledBackPlaceReusedEarly,
    /// Store: recovery keeps the versions that a version prepared during peering had replaced.
    ReplacedVersionsKept,
    /// Store: a journal entry that copies a prepared version is treated as a new version.
    CopyTreatedAsNew,
    /// Store: a version is accepted although the version before it is missing.
    GapAccepted,
    /// Store: a checkpoint drops the tombstone of a block that has a prepared version.
    TombstoneDroppedUnderPrepared,
    /// Store: recovery ignores the committed version that is recorded in a dropped entry.
    DroppedEntrySaysNothing,
    /// Store: a checkpoint writes back the units of a parity part, but keeps its old part table.
    TableNotWrittenBack,
    /// Store: the part table of a version is kept although the version was taken back.
    RolledBackTableKept,
    /// Store: the engine gets a batch before its journal entry is durable.
    BatchEnteredBeforeFlush,
    /// Store: pending records are forgotten when the engine has them, although a read that began before lacks
    /// them.
    PendingForgottenEarly,
    /// Store: a list does not show what a record of the engine stood for that is gone by what is pending.
    ListPassesPending,
    /// Store: a batch leaves what it changes in the cache of values (objects.md, rule 7).
    CachedValueKept,
    /// Store: the journal is trimmed although the engine may still lose entries there.
    TrimBeforeEngineFlush,
    /// Store: recovery does not count as durable what the engine has.
    EngineNotCountedAsDurable,
    /// Store: a family that has less than the root says is believed.
    EngineBehindBelieved,
    /// Store: recovery gives entries to the engine before PGs that lost records are durably suspect.
    SuspectAfterReplay,
    /// Store: the engine gets the records of a batch that recovery drops.
    BatchHalfDropped,
    /// Store: recovery keeps the batches of a PG that lie behind one that it drops.
    LaterBatchKept,
    /// Store: the note of a forward is in an entry of its own.
    ForwardWithoutRecord,
    /// PG: what queued for an object is prepared on its stored head, not on the effects of those before it.
    QueuedOnStaleHead,
    /// PG: operations that queue for an object are prepared on what was read before the batch in flight
    /// ended.
    WantsReadWhileQueued,
    /// PG: an operation on objects that is sent again is executed again.
    RepeatExecuted,
    /// PG: repeats go that a client may still ask for.
    RepeatClosedEarly,
    /// PG: repeats of a session that is over go while operations of it are open.
    RepeatOfOpenDeleted,
    /// PG: a read of objects is answered before all members have the versions that it shows.
    ReadShowsUnacknowledged,
    /// PG: a learner keeps no mark of an object of which it has only a part: the head has the right version,
    /// so the object is taken for whole.
    HalfCopiedObjectServed,
    /// PG: batches pass the gate while what they change is read for a learner's page.
    PageOvertakesMutation,
    /// PG: pages of a learner that had nothing when it was first filled bring no deletions of ranges,
    /// although it was cut off meanwhile, and missed batches.
    PageWithoutRangesAfterBreak,
    /// PG: a batch of objects has a log record in the first shard that it touches, and in no other.
    LogRecordMissing,
    /// PG: logs of objects are cut, and do not say so.
    LogCutWithoutReach,
    /// PG: a learner of objects keeps what was never adopted, where the log names something else.
    UndoForgotten,
    /// PG: the log of a member that was filled by listing counts as what the PG did.
    ListedLogBelieved,
    /// PG: a member of objects is brought forward record by record of the log, with what is there now.
    ForwardByKeys,
    /// Node: a request that arrives twice is executed twice, even after its answer.
    DuplicateExecuted,
    /// Node: requests of a fenced session are executed.
    FenceIgnored,
    /// Node: the epoch of a request is not compared with the PG's.
    EpochNotCompared,
    /// Node: requests of an epoch older than the PG's are executed.
    OldEpochAccepted,
    /// Node: a request is executed although it carries a newer map revision than this OSD has.
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
    /// Node: writes that start under a space credit do not reduce the credit.
    CreditNotCounted,
    // The next four are found by unit tests: a waiting write is not a wrong one.
    /// Node: writes that start under a credit for room do not reduce the credit.
    RoomNotCounted,
    /// PG: a write in a pool of copies needs room for a prepared version.
    RoomCountedForCopies,
    /// Node: a small write takes the credit that an earlier large one waits for.
    SmallWritePasses,
    /// Node: a change that is carried out in pieces ends with the first one.
    PiecesLeftOut,
    /// PG: a write is acknowledged before every acting member has it.
    AckBeforeMembers,
    /// PG: a sync makes only the primary's writes durable, without syncing the other members.
    SyncOfPrimaryAlone,
    /// PG: the mark passes writes that were acknowledged but are not durable.
    MarkCountsUnflushed,
    /// PG: a read does not wait for unfinished writes of its units.
    ReadOfUnfinishedWrite,
    /// PG: a primary with a slow disk answers a read with another member's data, although that data contains
    /// a write that is not finished.
    ReadElsewhereIgnoresWrites,
    /// PG: a primary with a slow disk reads from a learner.
    ReadElsewhereFromLearner,
    /// PG: a learner is reported complete before its backfill has finished.
    LearnerCountedAsMember,
    /// PG: tombstones are dropped while members are missing or being backfilled.
    TombstoneDroppedEarly,
    /// PG: new versions continue in the epoch of the adopted writes, so that some versions are issued twice.
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
    /// Volume: a write that is cut at a stripe edge is acknowledged when its first part is done.
    PartAnsweredForWhole,
    /// PG: a resumed backfill forgets the blocks that had to be copied whole.
    WholeForgotten,
    /// Node: a giver that grants a shorter lease forgets the longer lease that it granted before.
    LeaseShortenedAtOnce,
    /// Node: after a restart a giver waits only for leases of the default length, although it may have
    /// granted longer leases.
    LongerLeaseForgotten,
    /// Node: a session that was already forgotten is served over an old connection.
    ForgottenSessionServed,
    /// Cluster: a session that was closed with unanswered changes is not fenced.
    UncleanCloseNotFenced,
    /// PG: a learner records its cursor without the blocks that must still be copied whole.
    WholeNotKept,
    /// Volume: a change of which the user was told that its outcome is unknown is sent again after its
    /// connection was lost.
    UnknownSentAgain,
    /// Volume: the same, of discards alone.
    UnknownDiscardSentAgain,
    /// Volume: the same, of changes alone that may be acknowledged before they are durable.
    UnknownLazySentAgain,
    /// Volume: when a request is given up at its deadline, those beside it that have none are, too.
    GivenUpWithoutDeadline,
    // A scenario of the crate `volume` finds this bug: all members of a PG must lose power after a read.
    /// Volume: a PG is synced when a change of it is told as unknown, before the change has ended.
    SyncBeforeUnknownEnded,
    /// Volume: a sync is assumed to cover writes that were acknowledged while it was in flight.
    SyncCoversLaterWrites,
    /// PG: a listing treats blocks of equal version as equal, even above the version up to which the
    /// learner's blocks are reliable.
    EqualVersionBelieved,
    /// PG: a learner records the version that only the blocks before its cursor have reached as reached by
    /// all blocks.
    CompleteWithCursor,
    /// Cluster: a volume is attached although a disconnected lazy holder still has it.
    AbsentHolderPassedOver,
    /// PG: a scrub compares a key while changes to it are in flight.
    ScrubWithoutTurn,
    /// PG: a scrub repairs members from the first one that can be read, without a majority.
    ScrubBelievesFirst,
    /// PG: the durable note on scrubs does not list the damage that was found.
    DamageForgotten,
    /// PG: in pools with parity, a scrub does not search for a part that is wrong although it matches its
    /// checksums.
    WrongPartNotSearched,
    /// PG: in pools with parity, a scrub makes parts of a part that is older than the part tables say.
    PartMadeOfStale,
    /// PG: in pools with parity, a scrub gives a member the content of another position.
    PartOfAnotherRole,
    /// PG: in pools with parity, a scrub gives parity the part table that it had before.
    PartTableKept,
    /// PG: in pools with parity, units that a read found lost stay lost at their member.
    DamageNotWrittenBack,
    /// Node: in pools with parity, a member answers direct reads without the leases of the other members.
    DirectReadWithoutLease,
    // A scenario of the crate `node` finds this bug: seeds seldom fence a session at the right moment.
    /// Node: a member answers direct reads although the primary may have begun writes of a session that is
    /// fenced in the map that the reader acts on.
    DirectReadBesideFenced,
    // The bugs below affect pools with parity; the tests of a single PG find them.
    /// PG: a data member computes the change of parity as if its part had held only zeros.
    ParityFromStaleData,
    /// PG: a member makes a version stable before all acting members have it.
    CommitBeforeAllHaveIt,
    /// PG: a write that peering carries forward is made stable at once, instead of prepared.
    ForwardAsStable,
    /// PG: a version that all acting members had is taken back because too few have it undamaged.
    DamagedPreparedRolledBack,
    /// PG: a read does not wait for an earlier write of another part of the same stripe.
    ReadBesideSibling,
    /// PG: a parity member applies a difference twice that arrived directly and through the primary.
    DeltaUsedTwice,
    /// PG: a parity member does not ask for a difference that was lost on its way.
    LostDeltaNotAskedFor,
    /// PG: a parity learner receives the change of a stripe that backfill has not copied yet.
    DeltaToUnfilledLearner,
    /// PG: a stripe is not backfilled although the parity learner skipped a change of it.
    SkippedNotFilled,
    /// PG: the mark advances without waiting for a learner that was reported complete.
    MarkWithoutBoundLearner,
    /// PG: learners are backfilled only with the blocks that the primary's own index lists.
    FillFromOwnIndex,
    /// PG: a member whose position changed counts as holding the data of the new position.
    RoleContentKept,
    /// PG: a member answers direct reads of units that a version above the mark changes.
    DirectReadAboveMark,
    /// PG: while acting members are lost, learners are filled with what the members hold now, instead of what
    /// they held as of a version that all acting members have.
    FilledAsOfView,
    /// PG: a member that was filled while too few members were left counts as if it had everything that was
    /// acknowledged then.
    FilledCountedAsHolder,
    // Tests of the crate `bucket` find the next three.
    /// Bucket: a write is undone if its bucket is being deleted, instead of waiting.
    UndoAfterOverwrite,
    /// Bucket: whether the bucket is live is judged before a write alone, and not before it is acknowledged.
    ViewJudgedBeforeOnly,
    /// Bucket: lists leave hidden keys out, but tell of common prefixes that have no others.
    HiddenUnderPrefix,
    /// Bucket: what is empty of a place reads as zeros.
    HoleIsZeros,
    /// Bucket: the collector makes an upload's stray garbage whatever its version is.
    CollectedWithoutVersion,
    /// Bucket: a commit takes the data of an upload whatever became of its stray.
    CommitWithoutStray,
    /// Bucket: an upload is aborted whether it is open or not.
    AbortWithoutOpen,
    /// Bucket: an upload is completed with other parts than were compared.
    CompletedWithoutVersion,
    /// Bucket: data that is replaced gets no name.
    ReplacedForgotten,
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
        ("unknown-sent-again", Bug::UnknownSentAgain),
        ("unknown-discard-sent-again", Bug::UnknownDiscardSentAgain),
        ("unknown-lazy-sent-again", Bug::UnknownLazySentAgain),
        ("given-up-without-deadline", Bug::GivenUpWithoutDeadline),
        ("sync-covers-later-writes", Bug::SyncCoversLaterWrites),
        ("equal-version-believed", Bug::EqualVersionBelieved),
        ("complete-with-cursor", Bug::CompleteWithCursor),
        ("absent-holder-passed-over", Bug::AbsentHolderPassedOver),
        ("direct-read-without-lease", Bug::DirectReadWithoutLease),
        ("batch-entered-before-flush", Bug::BatchEnteredBeforeFlush),
        ("pending-forgotten-early", Bug::PendingForgottenEarly),
        ("list-passes-pending", Bug::ListPassesPending),
        ("cached-value-kept", Bug::CachedValueKept),
        ("trim-before-engine-flush", Bug::TrimBeforeEngineFlush),
        ("engine-not-counted-as-durable", Bug::EngineNotCountedAsDurable),
        ("engine-behind-believed", Bug::EngineBehindBelieved),
        ("suspect-after-replay", Bug::SuspectAfterReplay),
        ("batch-half-dropped", Bug::BatchHalfDropped),
        ("later-batch-kept", Bug::LaterBatchKept),
        ("forward-without-record", Bug::ForwardWithoutRecord),
        ("read-shows-unacknowledged", Bug::ReadShowsUnacknowledged),
        ("queued-on-stale-head", Bug::QueuedOnStaleHead),
        ("wants-read-while-queued", Bug::WantsReadWhileQueued),
        ("repeat-executed", Bug::RepeatExecuted),
        ("repeat-closed-early", Bug::RepeatClosedEarly),
    ];
}

#[cfg(debug_assertions)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Switches a bug on, or all off, on this thread.
#[cfg(debug_assertions)]
pub fn plant(bug: Option<Bug>) {
    PLANTED.with(|planted| planted.set(bug));
}

/// Returns whether a test fails with the bug switched on.
#[cfg(debug_assertions)]
pub fn fails(bug: Bug, test: impl FnOnce() + std::panic::UnwindSafe) -> bool {
    plant(Some(bug));
    let run = std::panic::catch_unwind(test);
    plant(None);
    run.is_err()
}

/// Whether the bug is switched on.
#[cfg(debug_assertions)]
pub fn on(bug: Bug) -> bool {
    PLANTED.with(|planted| planted.get()) == Some(bug)
}

/// Whether the bug is switched on; always false in this build.
#[cfg(not(debug_assertions))]
pub const fn on(_bug: Bug) -> bool {
    false
}
