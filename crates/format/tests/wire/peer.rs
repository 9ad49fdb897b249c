//! Messages between OSDs: examples, random messages, and fields that are refused.

use base::{BlockSize, Checksum, MapRevision, Position};
use format::disk::{BODY_SIZE_MAX, BlockKey, TABLE_ROWS_MAX, table_size};
use format::wire::{
    Activation, BATCH_UNITS_SIZE_MAX, BatchContent, Change, Content, Digest, Elsewhere,
    EngineState, Filling, Gathered, HISTORY_COUNT_MAX, KeysWith, LIST_COUNT_MAX, LOST_COUNT_MAX,
    LeaseMessage, ListedBlock, MemberState, PART_CHANGE_COUNT_MAX, PagePart, PartChange, PeerBody,
    PeerMessage, RECORD_KEY_SIZE_MAX, REVISION_COUNT_MAX, RoomClaim, RoomOffer, TABLE_SIZE_MAX,
    WHOLE_COUNT_MAX,
};

use super::*;

fn pool() -> PoolId {
    PoolId::new(2).unwrap()
}

fn peer(body: PeerBody) -> Message {
    let pg = PgId { pool: pool(), number: 0x1f };
    Message::Peer(Box::new(PeerMessage { pg, epoch: Epoch::new(9), body }))
}

fn lease(message: LeaseMessage) -> Message {
    Message::Lease(Box::new(message))
}

fn key(stripe: u32) -> BlockKey {
    BlockKey { pool: pool(), hash: 0xf800_0000, image: image(7), stripe: StripeIndex::new(stripe) }
}

fn version_of(counter: u64) -> Version {
    Version { epoch: Epoch::new(8), counter }
}

fn history() -> Vec<Activation> {
    let activation =
        |epoch, counter| Activation { epoch: Epoch::new(epoch), adopted: version_of(counter) };
    vec![activation(8, 5), activation(9, 300)]
}

fn filling() -> Filling {
    Filling {
        complete: version_of(200),
        cursor: Some(key(4)),
        since: version_of(250),
        whole: vec![key(5), key(6)],
        listing: false,
    }
}

fn block(units: u64, written: u64) -> Content {
    let damaged = vec![units & !written & 0b1000];
    let data = data(written.count_ones() as usize);
    Content::Block {
        version: version(),
        block_size: BlockSize::DEFAULT,
        units: vec![units],
        written: vec![written],
        damaged,
        checksums: checksums(&data),
        data: (written != 0).then_some(data),
        table: Vec::new(),
    }
}

/// Returns a batch with a body of this size, and so many units of data behind it.
fn batch(body_length: usize, units: usize) -> PeerBody {
    PeerBody::Batch {
        after: version_of(300),
        version: version_of(304),
        mark: version_of(299),
        content: batch_content(body_length, units),
    }
}

/// Returns a page with a body of this size, and so many units of data behind it.
fn page(part: PagePart, body_length: usize, units: usize) -> PeerBody {
    let PeerBody::Batch { content, .. } = batch(body_length, units) else { panic!("a batch") };
    PeerBody::Page { call: 15, version: version_of(299), part, content }
}

fn list_heads(from: &[u8], before: &[u8], with: KeysWith) -> PeerBody {
    PeerBody::ListHeads { call: 16, from: from.to_vec(), before: before.to_vec(), with }
}

fn headed(heads: &[u8], is_last: bool) -> PeerBody {
    let heads = Payload::new(heads, &base::BufferPool::default());
    PeerBody::Headed { call: 16, heads, is_last }
}

fn batch_content(body_length: usize, units: usize) -> BatchContent {
    let data = data(body_length.div_ceil(UNIT) + units);
    let body_checksum = base::crc32c(&data[..body_length]);
    BatchContent { body_length: body_length as u32, body_checksum, data }
}

fn object_forward(content: Option<BatchContent>) -> PeerBody {
    let (after, version) = (version_of(300), version_of(304));
    PeerBody::ObjectForward { call: 15, after, version, content }
}

fn gathered(result: Gathered) -> PeerBody {
    PeerBody::Gathered { call: 16, result }
}

fn with_table(mut content: Content) -> Content {
    let Content::Block { table, .. } = &mut content else { panic!("a block") };
    *table = (0..40).collect();
    // Clear the bits of units beyond the block.
    table[16..20].fill(0);
    table[36..40].fill(0);
    content
}

fn member(osd: u32, run: u64) -> Member {
    Member { osd: OsdId::new(osd).unwrap(), incarnation: Incarnation::new(run) }
}

fn position(number: u8) -> Position {
    Position::new(number).unwrap()
}

fn write(change: Change) -> Message {
    peer(PeerBody::Write {
        version: version(),
        mark: version_of(299),
        key: key(4),
        block_size: BlockSize::DEFAULT,
        lazy: matches!(change, Change::Zero { .. }),
        change,
    })
}

fn scrubbed(digest: Digest) -> Message {
    peer(PeerBody::Scrubbed { call: 11, floor: version_of(100), digest })
}

fn digest() -> Digest {
    Digest::Block {
        version: version(),
        written: vec![0b101],
        damaged: vec![0b1000],
        checksums: checksums(&data(2)),
        table: Vec::new(),
    }
}

fn parity_digest() -> Digest {
    let Digest::Block { version, written, damaged, checksums, .. } = digest() else {
        panic!("a block")
    };
    Digest::Block { version, written, damaged, checksums, table: (0..40).collect() }
}

pub fn examples() -> Vec<(&'static str, Message)> {
    let state = MemberState {
        record_epoch: Epoch::new(8),
        complete: version_of(299),
        had: version_of(300),
        committed: version_of(298),
        held: version_of(301),
        floor: version_of(100),
        is_suspect: true,
        history: history(),
        filling: Some(filling()),
        elsewhere: None,
        acting: vec![member(3, 4), member(5, 6)],
    };
    let fresh = MemberState {
        record_epoch: Epoch::ZERO,
        complete: Version::ZERO,
        had: Version::ZERO,
        committed: Version::ZERO,
        held: Version::ZERO,
        floor: Version::ZERO,
        is_suspect: false,
        history: vec![],
        filling: None,
        elsewhere: None,
        acting: Vec::new(),
    };
    let elsewhere = Elsewhere { epoch: Epoch::new(7), position: position(4) };
    let moved = MemberState { elsewhere: Some(elsewhere), ..fresh.clone() };
    let listed = ListedBlock { key: key(4), version: version_of(300), is_tombstone: false };
    let deleted = ListedBlock { key: key(5), version: version_of(301), is_tombstone: true };
    let activate = |filling| PeerBody::Activate {
        adopted: version_of(300),
        floor: version_of(100),
        history: history(),
        filling,
    };
    let progress = |filling| PeerBody::Progress {
        call: 6,
        filling,
        complete: version_of(302),
        floor: version_of(100),
    };
    let repair = |content| PeerBody::Repair { call: 5, key: key(4), content };
    let (version, mark, key) = (version(), version_of(299), key(4));
    let as_of = Some(version_of(300));
    let fetch_as_of = PeerBody::Fetch { call: 4, key, units: vec![], as_of };
    let (content, differences) = (block(0b111, 0b101), vec![0b11]);
    let (lazy, is_direct) = (false, true);
    let revision = MapRevision::new(77);
    let part =
        PeerBody::Part { version, mark, revision, key, lazy, content, differences, is_direct };
    let change = PartChange {
        part: position(1),
        units: vec![0b111],
        written: vec![0b101],
        differences: vec![0b11],
    };
    let (content, changes) = (block(0b100, 0b100), vec![change]);
    let parity = PeerBody::Parity { version, mark, key, lazy: true, content, changes };
    let (part_index, content) = (position(1), block(0b11, 0b01));
    let parity_delta =
        PeerBody::ParityDelta { version, key, part: part_index, content: content.clone() };
    let delta = PeerBody::Delta { version, key, part: part_index, content };
    let content = with_table(block(0b111, 0b101));
    let forward = PeerBody::Forward { call: 5, key, content, replaces: version_of(299) };
    let first = PagePart::First { name: b"name".to_vec(), version: version_of(298) };
    let full = data(2);
    let lost = PgId { pool: pool(), number: 0x1e };
    let granted = |lost| LeaseMessage::Granted {
        stamp: 42,
        valid_ms: 300,
        lost,
        is_full: true,
        engine: EngineState::default(),
        limit_bytes: 1 << 40,
        share_bytes: 16 << 20,
        largest_bytes: 8 << 20,
        room: None,
    };
    let LeaseMessage::Granted { stamp, valid_ms, limit_bytes, share_bytes, .. } = granted(vec![])
    else {
        unreachable!()
    };
    let of_engine = LeaseMessage::Granted {
        stamp,
        valid_ms,
        lost: Vec::new(),
        is_full: false,
        engine: EngineState { is_lagging: true, ..EngineState::default() },
        limit_bytes,
        share_bytes,
        largest_bytes: 8 << 20,
        room: None,
    };
    let with_room = LeaseMessage::Granted {
        stamp,
        valid_ms,
        lost: vec![(lost, Epoch::new(10))],
        is_full: false,
        engine: EngineState::default(),
        limit_bytes,
        share_bytes,
        largest_bytes: 8 << 20,
        room: Some(RoomOffer {
            limit_bytes: 5 << 20,
            share_bytes: 384 << 10,
            largest_bytes: 132 << 10,
        }),
    };
    vec![
        ("peer-query", peer(PeerBody::Query { revision: MapRevision::new(77) })),
        ("peer-state", peer(PeerBody::State(state))),
        ("peer-state-fresh", peer(PeerBody::State(fresh))),
        ("peer-state-elsewhere", peer(PeerBody::State(moved))),
        (
            "peer-list",
            peer(PeerBody::List { call: 3, newer_than: version_of(299), after: Some(key) }),
        ),
        ("peer-list-all", peer(PeerBody::List { call: 3, newer_than: Version::ZERO, after: None })),
        (
            "peer-listed",
            peer(PeerBody::Listed { call: 3, blocks: vec![listed, deleted], is_last: true }),
        ),
        ("peer-fetch", peer(PeerBody::Fetch { call: 4, key, units: vec![0xf0], as_of: None })),
        ("peer-fetch-as-of", peer(fetch_as_of)),
        ("peer-fetched", peer(PeerBody::Fetched { call: 4, content: block(0xf0, 0x50) })),
        ("peer-fetched-gone", peer(PeerBody::Fetched { call: 4, content: Content::Gone })),
        ("peer-repair", peer(repair(block(0xffff_ffff, 0x8000_0001)))),
        ("peer-repair-zeros", peer(repair(block(0xffff_ffff, 0)))),
        ("peer-repair-tombstone", peer(repair(Content::Tombstone { version: version_of(301) }))),
        ("peer-repaired", peer(PeerBody::Repaired { call: 5 })),
        ("peer-activate", peer(activate(None))),
        ("peer-activate-learner", peer(activate(Some(filling())))),
        ("peer-activated", peer(PeerBody::Activated)),
        ("peer-draining", peer(PeerBody::Draining)),
        (
            "peer-write",
            write(Change::Write { offset: 8192, checksums: checksums(&full), data: full }),
        ),
        ("peer-write-zero", write(Change::Zero { offset: 4096, length: 126_976 })),
        ("peer-write-delete", write(Change::Delete)),
        ("peer-written", peer(PeerBody::Written { version, durable: true })),
        ("peer-written-lazy", peer(PeerBody::Written { version, durable: false })),
        ("peer-sync", peer(PeerBody::Sync { call: 8 })),
        ("peer-synced", peer(PeerBody::Synced { call: 8 })),
        ("peer-mark", peer(PeerBody::Mark { mark: version, revision: MapRevision::new(12) })),
        ("peer-drop", peer(PeerBody::Drop { call: 9, version })),
        ("peer-part", peer(part)),
        ("peer-parity", peer(parity)),
        (
            "peer-skip",
            peer(PeerBody::Skip { version, mark: version_of(299), revision, lazy: true }),
        ),
        ("peer-delta", peer(delta)),
        ("peer-parity-delta", peer(parity_delta)),
        ("peer-delta-wanted", peer(PeerBody::DeltaWanted { version, part: part_index })),
        ("peer-part-behind", peer(PeerBody::PartBehind { part: part_index })),
        ("peer-parity-lost", peer(PeerBody::ParityLost { key })),
        ("peer-forward", peer(forward)),
        ("peer-progress", peer(progress(Some(filling())))),
        ("peer-progress-end", peer(progress(None))),
        ("peer-noted", peer(PeerBody::Noted { call: 6 })),
        ("peer-failed", peer(PeerBody::Failed { why: "its store is full".into() })),
        ("peer-stale", peer(PeerBody::Stale(entry()))),
        ("peer-scrub", peer(PeerBody::Scrub { call: 11, key, deep: true })),
        ("peer-scrubbed", scrubbed(digest())),
        ("peer-scrubbed-parity", scrubbed(parity_digest())),
        ("peer-scrubbed-tombstone", scrubbed(Digest::Tombstone { version })),
        ("peer-scrubbed-gone", scrubbed(Digest::Gone)),
        ("peer-mend", peer(PeerBody::Mend { call: 12, key, content: Content::Gone })),
        ("peer-recall", peer(PeerBody::Recall { call: 13 })),
        ("peer-recalled", peer(PeerBody::Recalled { call: 13, note: b"{}".to_vec() })),
        ("peer-keep", peer(PeerBody::Keep { call: 14, note: b"{}".to_vec() })),
        ("peer-tried", peer(PeerBody::Tried { call: 14, is_done: true })),
        ("peer-batch", peer(batch(5000, 1))),
        ("peer-page", peer(page(PagePart::Whole, 300, 1))),
        ("peer-page-first", peer(page(first, 300, 0))),
        ("peer-page-middle", peer(page(PagePart::Middle, 300, 0))),
        ("peer-page-last", peer(page(PagePart::Last { name: b"name".to_vec() }, 300, 0))),
        ("peer-list-heads", peer(list_heads(&[0, 4, 0x10], &[0, 4, 0x11], KeysWith::Checksum))),
        ("peer-headed", peer(headed(b"what a member holds", true))),
        ("peer-headed-none", peer(headed(b"", true))),
        ("peer-object-forward", peer(object_forward(Some(batch_content(5000, 1))))),
        ("peer-object-forward-nothing", peer(object_forward(None))),
        (
            "peer-gather",
            peer(PeerBody::Gather { call: 16, after: version_of(300), version: version_of(304) }),
        ),
        ("peer-gathered", peer(gathered(Gathered::Forward(Some(batch_content(5000, 1)))))),
        ("peer-gathered-nothing", peer(gathered(Gathered::Forward(None)))),
        ("peer-gathered-too-large", peer(gathered(Gathered::TooLarge))),
        ("peer-gathered-unreadable", peer(gathered(Gathered::Unreadable))),
        (
            "lease-renew",
            lease(LeaseMessage::Renew {
                stamp: 42,
                revisions: vec![(pool(), MapRevision::new(77))],
                leads: true,
                begun_bytes: 7 << 20,
                owed_bytes: 3 << 20,
                room: None,
            }),
        ),
        (
            "lease-renew-room",
            lease(LeaseMessage::Renew {
                stamp: 42,
                revisions: vec![(pool(), MapRevision::new(77))],
                leads: true,
                begun_bytes: 7 << 20,
                owed_bytes: 3 << 20,
                room: Some(RoomClaim { begun_bytes: 5 << 20, owed_bytes: 8 << 10 }),
            }),
        ),
        ("lease-granted", lease(granted(vec![]))),
        ("lease-granted-engine", lease(of_engine)),
        ("lease-granted-room", lease(with_room)),
        ("lease-granted-lost", lease(granted(vec![(lost, Epoch::new(10))]))),
        ("lease-surrender", lease(LeaseMessage::Surrender)),
    ]
}

// ---- random messages ------------------------------------------------------------------------

fn any_key() -> impl Strategy<Value = BlockKey> {
    (any::<u32>(), any_image(), any::<u32>()).prop_map(|(hash, image, stripe)| BlockKey {
        pool: pool(),
        hash,
        image,
        stripe: StripeIndex::new(stripe),
    })
}

fn any_history() -> impl Strategy<Value = Vec<Activation>> {
    let activation = (any::<u32>(), any_version())
        .prop_map(|(epoch, adopted)| Activation { epoch: Epoch::new(epoch), adopted });
    vec(activation, 0..=HISTORY_COUNT_MAX)
}

fn any_filling() -> impl Strategy<Value = Option<Filling>> {
    let cursor = proptest::option::of(any_key());
    let whole = vec(any_key(), 0..40);
    let filling = (any_version(), cursor, any_version(), whole, any::<bool>()).prop_map(
        |(complete, cursor, since, whole, listing)| Filling {
            complete,
            cursor,
            since,
            whole,
            listing,
        },
    );
    proptest::option::of(filling)
}

fn any_state() -> impl Strategy<Value = MemberState> {
    let version = any_version;
    let versions = (version(), version(), version(), version(), version());
    let elsewhere = proptest::option::of((any::<u32>(), 0u8..20).prop_map(|(epoch, number)| {
        Elsewhere { epoch: Epoch::new(epoch), position: position(number) }
    }));
    let acting = vec((1u32.., any::<u64>()).prop_map(|(osd, run)| member(osd, run)), 0..20);
    let rest = (any_history(), any_filling(), elsewhere, acting);
    (any::<u32>(), versions, any::<bool>(), rest).prop_map(
        |(epoch, (complete, had, committed, held, floor), is_suspect, rest)| {
            let (history, filling, elsewhere, acting) = rest;
            MemberState {
                record_epoch: Epoch::new(epoch),
                complete,
                had,
                committed,
                held,
                floor,
                is_suspect,
                history,
                filling,
                elsewhere,
                acting,
            }
        },
    )
}

fn any_block() -> impl Strategy<Value = Content> {
    // Few written units keep the data small. Block sizes range from one word of units to four.
    let written = vec(0u32..256, 0..6);
    (14u8..=20, any_version(), vec(any::<u64>(), 4), written).prop_map(
        |(shift, version, mut units, chosen)| {
            let block_size = BlockSize::from_shift(shift).unwrap();
            let count = block_size.unit_count();
            units.truncate(count.div_ceil(64) as usize);
            if count < 64 {
                units[0] &= (1 << count) - 1;
            }
            let mut written = vec![0u64; units.len()];
            for unit in chosen.into_iter().map(|unit| unit % count) {
                units[unit as usize / 64] |= 1 << (unit % 64);
                written[unit as usize / 64] |= 1 << (unit % 64);
            }
            let written_count: u32 = written.iter().map(|word| word.count_ones()).sum();
            let rest = units.iter().zip(&written).map(|(units, written)| units & !written);
            let damaged = rest.map(|rest| rest & 0x5555_5555_5555_5555).collect();
            let data = (written_count > 0).then(|| data(written_count as usize));
            let checksums = data.as_ref().map(checksums).unwrap_or_default();
            let table = Vec::new();
            Content::Block { version, block_size, units, written, damaged, checksums, data, table }
        },
    )
}

fn any_block_with_table() -> impl Strategy<Value = Content> {
    let rows = vec(any::<u8>(), 1..=TABLE_SIZE_MAX);
    (any_block(), 1..=TABLE_ROWS_MAX, rows).prop_map(|(mut content, rows, bytes)| {
        let Content::Block { table, block_size, .. } = &mut content else {
            unreachable!("a block")
        };
        let size = table_size(*block_size, 1);
        *table = bytes.into_iter().cycle().take(rows * size).collect();
        let units = block_size.unit_count() as usize;
        // Clear the bits of units beyond the block.
        for row in table.chunks_exact_mut(size).filter(|_| units < 64) {
            row[12 + units.div_ceil(8)..].fill(0);
            row[12 + (units - 1) / 8] &= u8::MAX >> (units.next_multiple_of(8) - units);
        }
        content
    })
}

fn any_bitmap() -> impl Strategy<Value = Vec<u64>> {
    vec(any::<u64>(), 0..=4)
}

fn any_stripe_body() -> impl Strategy<Value = PeerBody> {
    let change = ((0u8..20), any_bitmap(), any_bitmap(), any_bitmap()).prop_map(
        |(part, units, written, differences)| PartChange {
            part: position(part),
            units,
            written,
            differences,
        },
    );
    let header = || (any_version(), any_version(), any_key(), any::<bool>(), any_content());
    prop_oneof![
        (header(), any::<u64>(), any_bitmap(), any::<bool>()).prop_map(
            |((version, mark, key, lazy, content), revision, differences, is_direct)| {
                PeerBody::Part {
                    version,
                    mark,
                    revision: MapRevision::new(revision),
                    key,
                    lazy,
                    content,
                    differences,
                    is_direct,
                }
            }
        ),
        (0u8..20).prop_map(|part| PeerBody::PartBehind { part: position(part) }),
        (any_version(), 0u8..20)
            .prop_map(|(version, part)| PeerBody::DeltaWanted { version, part: position(part) }),
        any_key().prop_map(|key| PeerBody::ParityLost { key }),
        (header(), vec(change, 0..=PART_CHANGE_COUNT_MAX)).prop_map(
            |((version, mark, key, lazy, content), changes)| PeerBody::Parity {
                version,
                mark,
                key,
                lazy,
                content,
                changes
            }
        ),
        (any_version(), any_version(), any::<u64>(), any::<bool>()).prop_map(
            |(version, mark, revision, lazy)| {
                let revision = MapRevision::new(revision);
                PeerBody::Skip { version, mark, revision, lazy }
            }
        ),
        (any_version(), any_key(), 0u8..20, any_content(), any::<bool>()).prop_map(
            |(version, key, part, content, is_passed)| match (position(part), is_passed) {
                (part, true) => PeerBody::ParityDelta { version, key, part, content },
                (part, false) => PeerBody::Delta { version, key, part, content },
            }
        ),
        (any::<u32>(), any_key(), any_content(), any_version()).prop_map(
            |(call, key, content, replaces)| PeerBody::Forward { call, key, content, replaces }
        ),
    ]
}

fn any_content() -> impl Strategy<Value = Content> {
    prop_oneof![
        Just(Content::Gone),
        any_version().prop_map(|version| Content::Tombstone { version }),
        any_block(),
        any_block_with_table(),
    ]
}

fn any_write() -> impl Strategy<Value = PeerBody> {
    let change = prop_oneof![
        (0u32..24, any_data(1..=8)).prop_map(|(unit, data)| Change::Write {
            offset: unit * UNIT as u32,
            checksums: checksums(&data),
            data,
        }),
        any_range(32).prop_map(|(offset, length)| Change::Zero {
            offset: offset % (128 << 10) / 2,
            length: length / 2 / UNIT as u32 * UNIT as u32 + UNIT as u32,
        }),
        Just(Change::Delete),
    ];
    // Offsets and lengths above fit in half a block of 256 KiB.
    let versions = (any_version(), any_version());
    (versions, any_key(), 18u8..=20, any::<bool>(), change).prop_map(
        |((version, mark), key, shift, lazy, mut change)| {
            if let Change::Zero { offset, .. } = &mut change {
                *offset = *offset / UNIT as u32 * UNIT as u32;
            }
            let block_size = BlockSize::from_shift(shift).unwrap();
            PeerBody::Write { version, mark, key, block_size, lazy, change }
        },
    )
}

fn any_body() -> impl Strategy<Value = PeerBody> {
    let listed = (any_key(), any_version(), any::<bool>())
        .prop_map(|(key, version, is_tombstone)| ListedBlock { key, version, is_tombstone });
    prop_oneof![
        any::<u64>().prop_map(|revision| PeerBody::Query { revision: MapRevision::new(revision) }),
        any_state().prop_map(PeerBody::State),
        (any::<u32>(), any_version(), proptest::option::of(any_key()))
            .prop_map(|(call, newer_than, after)| PeerBody::List { call, newer_than, after }),
        (any::<u32>(), vec(listed, 0..50), any::<bool>())
            .prop_map(|(call, blocks, is_last)| PeerBody::Listed { call, blocks, is_last }),
        (any::<u32>(), any_key(), any_bitmap(), proptest::option::of(any_version()))
            .prop_map(|(call, key, units, as_of)| PeerBody::Fetch { call, key, units, as_of }),
        any_stripe_body(),
        (any::<u32>(), any_content())
            .prop_map(|(call, content)| PeerBody::Fetched { call, content }),
        (any::<u32>(), any_key(), any_content())
            .prop_map(|(call, key, content)| PeerBody::Repair { call, key, content }),
        any::<u32>().prop_map(|call| PeerBody::Repaired { call }),
        (any_version(), any_version(), any_history(), any_filling()).prop_map(
            |(adopted, floor, history, filling)| PeerBody::Activate {
                adopted,
                floor,
                history,
                filling
            }
        ),
        Just(PeerBody::Activated),
        Just(PeerBody::Draining),
        any_write(),
        (any_version(), any::<bool>())
            .prop_map(|(version, durable)| PeerBody::Written { version, durable }),
        any::<u32>().prop_map(|call| PeerBody::Sync { call }),
        any::<u32>().prop_map(|call| PeerBody::Synced { call }),
        (any_version(), any::<u64>()).prop_map(|(mark, revision)| PeerBody::Mark {
            mark,
            revision: MapRevision::new(revision),
        }),
        (any::<u32>(), any_version()).prop_map(|(call, version)| PeerBody::Drop { call, version }),
        (any::<u32>(), any_filling(), any_version(), any_version()).prop_map(
            |(call, filling, complete, floor)| PeerBody::Progress {
                call,
                filling,
                complete,
                floor
            }
        ),
        any::<u32>().prop_map(|call| PeerBody::Noted { call }),
        ".{0,40}".prop_map(|why| PeerBody::Failed { why }),
        any_entry().prop_map(PeerBody::Stale),
        (any::<u32>(), any_key(), any::<bool>()).prop_map(|(call, key, deep)| PeerBody::Scrub {
            call,
            key,
            deep
        }),
        (any::<u32>(), any_version(), any_digest())
            .prop_map(|(call, floor, digest)| PeerBody::Scrubbed { call, floor, digest }),
        (any::<u32>(), any_key(), any_content()).prop_map(|(call, key, content)| PeerBody::Mend {
            call,
            key,
            content
        }),
        any::<u32>().prop_map(|call| PeerBody::Recall { call }),
        (any::<u32>(), vec(any::<u8>(), 0..300))
            .prop_map(|(call, note)| PeerBody::Recalled { call, note }),
        (any::<u32>(), vec(any::<u8>(), 0..300))
            .prop_map(|(call, note)| PeerBody::Keep { call, note }),
        (any::<u32>(), any::<bool>()).prop_map(|(call, is_done)| PeerBody::Tried { call, is_done }),
        (1..10_000usize, 0..3usize).prop_map(|(length, units)| batch(length, units)),
        (any_page_part(), 1..10_000usize, 0..3usize)
            .prop_map(|(part, length, units)| page(part, length, units)),
        (any_record_key(), any_record_key())
            .prop_filter("a range", |(from, before)| from < before)
            .prop_map(|(from, before)| list_heads(&from, &before, KeysWith::Value)),
        (vec(any::<u8>(), 0..9000), any::<bool>())
            .prop_map(|(heads, is_last)| headed(&heads, is_last)),
        any_batch_content().prop_map(object_forward),
        (any::<u32>(), any_version(), any_version())
            .prop_map(|(call, after, version)| PeerBody::Gather { call, after, version }),
        prop_oneof![
            any_batch_content().prop_map(Gathered::Forward),
            Just(Gathered::TooLarge),
            Just(Gathered::Unreadable),
        ]
        .prop_map(gathered),
    ]
}

fn any_record_key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 1..40), vec(any::<u8>(), RECORD_KEY_SIZE_MAX)]
}

fn any_page_part() -> impl Strategy<Value = PagePart> {
    prop_oneof![
        Just(PagePart::Whole),
        (any_record_key(), any_version())
            .prop_map(|(name, version)| PagePart::First { name, version }),
        Just(PagePart::Middle),
        any_record_key().prop_map(|name| PagePart::Last { name }),
    ]
}

fn any_batch_content() -> impl Strategy<Value = Option<BatchContent>> {
    let content =
        (1..10_000usize, 0..3usize).prop_map(|(length, units)| batch_content(length, units));
    proptest::option::of(content)
}

fn any_digest() -> impl Strategy<Value = Digest> {
    prop_oneof![
        Just(Digest::Gone),
        any_version().prop_map(|version| Digest::Tombstone { version }),
        (
            any_version(),
            vec((any::<u64>(), any::<u64>()), 0..=4),
            vec(any::<u8>(), 0..=TABLE_SIZE_MAX)
        )
            .prop_map(|(version, words, table)| {
                let written: Vec<u64> = words.iter().map(|(written, _)| *written).collect();
                let damaged = words.iter().map(|(written, damaged)| damaged & !written).collect();
                let count = written.iter().map(|word| word.count_ones()).sum();
                let checksums = (0..count).map(Checksum::new).collect();
                Digest::Block { version, written, damaged, checksums, table }
            }),
    ]
}

pub fn any_peer() -> impl Strategy<Value = Message> {
    (any::<u32>(), any::<u32>(), any_body()).prop_map(|(number, epoch, body)| {
        let pg = PgId { pool: pool(), number };
        Message::Peer(Box::new(PeerMessage { pg, epoch: Epoch::new(epoch), body }))
    })
}

pub fn any_lease() -> impl Strategy<Value = Message> {
    let revisions = vec((1..=u32::MAX, any::<u64>()), 0..=REVISION_COUNT_MAX);
    let lost = vec((any_pg(), any::<u32>()), 0..300);
    let message = prop_oneof![
        (any::<u64>(), revisions, any::<bool>(), any::<[u64; 4]>(), any::<bool>()).prop_map(
            |(stamp, revisions, leads, [begun_bytes, owed_bytes, begun, owed], splits)| {
                LeaseMessage::Renew {
                    stamp,
                    revisions: revisions
                        .into_iter()
                        .map(|(pool, revision)| {
                            (PoolId::new(pool).unwrap(), MapRevision::new(revision))
                        })
                        .collect(),
                    leads,
                    begun_bytes,
                    owed_bytes,
                    room: splits.then_some(RoomClaim { begun_bytes: begun, owed_bytes: owed }),
                }
            }
        ),
        (any::<u64>(), any::<u32>(), lost, any::<[bool; 5]>(), any::<[u64; 6]>()).prop_map(
            |(
                stamp,
                valid_ms,
                lost,
                flags,
                [limit_bytes, share_bytes, largest_bytes, limit, share, largest],
            )| {
                LeaseMessage::Granted {
                    stamp,
                    valid_ms,
                    lost: lost.into_iter().map(|(pg, epoch)| (pg, Epoch::new(epoch))).collect(),
                    is_full: flags[0],
                    engine: EngineState {
                        is_lagging: flags[1],
                        is_full: flags[2],
                        is_low: flags[3],
                    },
                    limit_bytes,
                    share_bytes,
                    largest_bytes,
                    room: flags[4].then_some(RoomOffer {
                        limit_bytes: limit,
                        share_bytes: share,
                        largest_bytes: largest,
                    }),
                }
            }
        ),
        Just(LeaseMessage::Surrender),
    ];
    message.prop_map(lease)
}

// ---- limits ----------------------------------------------------------------------------------

/// Offset of the fields of a message body: they follow PG, epoch and tag.
const FIELDS: usize = FRAME_HEADER_SIZE + 13;

#[test]
fn the_longest_messages_between_osds_fit_their_frames() {
    let filling = Filling { whole: (0..WHOLE_COUNT_MAX as u32).map(key).collect(), ..filling() };
    let history = vec![history()[0]; HISTORY_COUNT_MAX];
    let state = MemberState {
        record_epoch: Epoch::new(8),
        complete: version(),
        had: version(),
        committed: version(),
        held: version(),
        floor: version(),
        is_suspect: false,
        history,
        filling: Some(filling),
        elsewhere: None,
        acting: Vec::new(),
    };
    let listed = |stripe| ListedBlock { key: key(stripe), version: version(), is_tombstone: true };
    let blocks = (0..LIST_COUNT_MAX as u32).map(listed).collect();
    let whole = data(256);
    let content = Content::Block {
        version: version(),
        block_size: BlockSize::MAX,
        units: vec![u64::MAX; 4],
        written: vec![u64::MAX; 4],
        damaged: vec![0; 4],
        checksums: checksums(&whole),
        data: Some(whole),
        table: vec![1; TABLE_SIZE_MAX],
    };
    let all = vec![u64::MAX; 4];
    let change = |part| PartChange {
        part: position(part as u8),
        units: all.clone(),
        written: all.clone(),
        differences: all.clone(),
    };
    let parity = PeerBody::Parity {
        version: version(),
        mark: version(),
        key: key(1),
        lazy: false,
        content: content.clone(),
        changes: (0..PART_CHANGE_COUNT_MAX).map(change).collect(),
    };
    let lost = |number| (PgId { pool: pool(), number }, Epoch::new(3));
    let granted = LeaseMessage::Granted {
        stamp: 1,
        valid_ms: u32::MAX,
        lost: (0..LOST_COUNT_MAX as u32).map(lost).collect(),
        is_full: false,
        engine: EngineState::default(),
        limit_bytes: 0,
        share_bytes: 0,
        largest_bytes: 0,
        room: Some(RoomOffer::default()),
    };
    let revision = |number| (PoolId::new(number).unwrap(), MapRevision::new(1));
    let revisions = (1..=REVISION_COUNT_MAX as u32).map(revision).collect();
    for message in [
        peer(PeerBody::State(state)),
        peer(PeerBody::Listed { call: 1, blocks, is_last: false }),
        peer(PeerBody::Repair { call: 1, key: key(1), content }),
        peer(parity),
        peer(batch(BODY_SIZE_MAX, BATCH_UNITS_SIZE_MAX / UNIT)),
        lease(granted),
        lease(LeaseMessage::Renew {
            stamp: 1,
            revisions,
            leads: false,
            begun_bytes: 0,
            owed_bytes: 0,
            room: Some(RoomClaim::default()),
        }),
    ] {
        assert_eq!(parse(&frame(&message)), Ok(message));
    }
}

#[test]
fn counts_beyond_their_limits_are_refused_before_the_list_is_read() {
    let named = |name: &str| {
        examples()
            .into_iter()
            .find(|(other, _)| *other == name)
            .map(|(_, message)| message)
            .unwrap()
    };
    let refused = |name: &str, at: usize, count: usize, what: &str| {
        let too_many = forged(&named(name), at, &(count as u32 + 1).to_le_bytes()).unwrap_err();
        assert!(too_many.0.contains(what), "{name}: {too_many}");
        // The count is within the limit, but the elements are missing.
        let missing = forged(&named(name), at, &(count as u32).to_le_bytes()).unwrap_err();
        assert!(missing.0.contains("ends beyond the frame's body"), "{name}: {missing}");
    };
    refused("peer-listed", FIELDS + 5, LIST_COUNT_MAX, "at most 1024 are allowed");
    refused("peer-activate", FIELDS + 24, HISTORY_COUNT_MAX, "at most 64 are allowed");
    let whole = FIELDS + 4 + 24 + 1 + 12 + 13 + 12 + 1;
    refused("peer-progress", whole, WHOLE_COUNT_MAX, "at most 1024 are allowed");
    let changes = (PART_CHANGE_COUNT_MAX as u32 + 1).to_le_bytes();
    let too_many = forged(&named("peer-parity"), FIELDS + 12 + 12 + 1 + 12, &changes).unwrap_err();
    assert!(too_many.0.contains("at most 16 are allowed"), "{too_many}");
    refused("lease-renew", FRAME_HEADER_SIZE + 26, REVISION_COUNT_MAX, "at most 256 are allowed");
    refused("lease-granted", FRAME_HEADER_SIZE + 38, LOST_COUNT_MAX, "at most 65536 are allowed");
}

#[test]
fn batches_are_as_long_as_their_body_at_least_and_no_longer_than_one_can_be() {
    let at = FIELDS + 36;
    for (length, is_right) in [(0u32, false), (1, true), (8192, true), (12289, false)] {
        let message = peer(batch(5000, 1));
        assert_eq!(forged(&message, at, &length.to_le_bytes()).is_ok(), is_right, "{length}");
    }
    let empty = peer(object_forward(Some(batch_content(5000, 1))));
    assert!(forged(&empty, FIELDS + 4 + 24 + 1, &0u32.to_le_bytes()).is_err());
    let message = peer(batch(BODY_SIZE_MAX, BATCH_UNITS_SIZE_MAX / UNIT));
    let length = (BODY_SIZE_MAX as u32 - UNIT as u32).to_le_bytes();
    assert!(forged(&message, at, &length).unwrap_err().0.contains("too long"));
}

#[test]
fn ranges_of_keys_are_not_empty_and_keys_are_no_longer_than_an_engine_takes() {
    let message = peer(list_heads(b"abc", b"abd", KeysWith::Version));
    let (with, first, second) = (FIELDS + 4, FIELDS + 5, FIELDS + 5 + 2 + 3);
    assert!(forged(&message, with, &[3]).unwrap_err().0.contains("unknown detail 3"));
    assert!(forged(&message, second + 2, b"abc").unwrap_err().0.contains("empty"));
    for length in [0u16, RECORD_KEY_SIZE_MAX as u16 + 1] {
        let error = forged(&message, first, &length.to_le_bytes()).unwrap_err();
        assert!(error.0.contains(&format!("a key of {length} bytes")), "{error}");
    }
}

#[test]
fn contents_that_contradict_themselves_are_refused() {
    let message = peer(PeerBody::Fetched { call: 4, content: block(0xf0, 0x50) });
    let size = FIELDS + 4 + 1 + 12;
    let (units, written, damaged) = (size + 1, size + 9, size + 17);
    let refused = |at: usize, field: &[u8], what: &str| {
        let error = forged(&message, at, field).unwrap_err();
        assert!(error.0.contains(what), "{error}");
    };
    refused(size, &[13], "invalid block size: 2^13");
    refused(size, &[21], "invalid block size: 2^21");
    // A block of 16 KiB has 4 units; a block of 512 KiB needs two words.
    refused(size, &[14], "units beyond its end");
    assert!(forged(&message, size, &[19]).is_err());
    refused(units, &0x1_0000_00f0u64.to_le_bytes(), "units beyond its end");
    refused(units, &0x40u64.to_le_bytes(), "that it does not cover");
    refused(damaged, &0x100u64.to_le_bytes(), "that it does not cover");
    refused(damaged, &0x10u64.to_le_bytes(), "both written and damaged");
    refused(written, &0x70u64.to_le_bytes(), "content does not match its written units");
    refused(written, &0x10u64.to_le_bytes(), "content does not match its written units");
    refused(FIELDS + 4, &[4], "unknown content kind 4");
    let forward = peer(PeerBody::Forward {
        call: 4,
        key: key(4),
        content: with_table(block(0xf0, 0x50)),
        replaces: version(),
    });
    let size = FIELDS + 4 + 12 + 12 + 1;
    for count in [0, TABLE_SIZE_MAX as u16 + 1] {
        let error = forged(&forward, size, &count.to_le_bytes()).unwrap_err();
        assert!(error.0.contains("invalid size of a part table"), "{error}");
    }
    let beyond = forged(&forward, size + 2 + 16, &[1]).unwrap_err();
    assert!(beyond.0.contains("does not fit blocks of this size"), "{beyond}");
    for size in [1, 19, 21, 17 * 20] {
        let mut content = with_table(block(0xf0, 0x50));
        let Content::Block { table, .. } = &mut content else { panic!("a block") };
        *table = vec![0; size];
        assert!(content.check().is_err(), "a table of {size} bytes");
    }
}

#[test]
fn writes_beyond_their_block_are_refused() {
    let zero = write(Change::Zero { offset: 4096, length: 126_976 });
    let offset = FIELDS + 24 + 12 + 3;
    assert!(forged(&zero, offset, &8192u32.to_le_bytes()).unwrap_err().0.contains("its block"));
    assert!(forged(&zero, offset, &0u32.to_le_bytes()).is_ok());
    assert!(forged(&zero, offset - 1, &[9]).unwrap_err().0.contains("unknown type of change 9"));
    let full = data(2);
    let put = write(Change::Write { offset: 0, checksums: checksums(&full), data: full });
    assert!(forged(&put, offset, &126_976u32.to_le_bytes()).unwrap_err().0.contains("its block"));
    assert!(forged(&put, offset, &122_880u32.to_le_bytes()).is_ok());
}

#[test]
fn a_data_less_message_between_osds_has_no_payload() {
    let mut bytes = Vec::new();
    encode(&peer(PeerBody::Activated), &mut bytes);
    bytes[16..20].copy_from_slice(&4096u32.to_le_bytes());
    reseal(&mut bytes);
    let header = decode_header(bytes.first_chunk().unwrap()).unwrap();
    let pool = BufferPool::default();
    assert!(decode(&header, &bytes[32..], Some(data(1)), &pool).is_err());

    let mut bytes = frame(&lease(LeaseMessage::Surrender));
    bytes[16..20].copy_from_slice(&4096u32.to_le_bytes());
    reseal(&mut bytes);
    assert!(decode_header(bytes.first_chunk().unwrap()).is_err());
}

#[test]
fn a_key_of_another_pool_cannot_be_said() {
    // Keys have no pool on the wire: a decoded key gets the PG's pool.
    let message = peer(PeerBody::Fetch { call: 4, key: key(4), units: vec![], as_of: None });
    let other = forged(&message, FRAME_HEADER_SIZE, &9u32.to_le_bytes()).unwrap();
    let Message::Peer(other) = other else { panic!("{other:?}") };
    let PeerBody::Fetch { key: found, .. } = other.body else { panic!("{other:?}") };
    assert_eq!(found.pool, other.pg.pool);
}
