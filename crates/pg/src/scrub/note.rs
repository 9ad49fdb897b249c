//! The note on a PG's scrubs that all acting members keep: how far the current scrub has got, when the last
//! completed ones began, and the damage that is not repaired. It is a separate note in the store, as JSON
//! text.
//!
//! Invariants
//!   1. Notes of a PG are ordered by (epoch, number): a primary writes notes that are higher than all that it
//!      received.
//!   2. `findings` are in key order, each key once, at most [`FINDINGS_MAX`]; `more` counts further keys.

use base::{Epoch, OsdId, PgId, RECORDS_IMAGE};
use blockstore::BlockKey;
use format::wire::SCRUB_NOTE_SIZE_MAX;
use serde::{Deserialize, Serialize};

use crate::face::{Fault, FaultKind};
use crate::record::{key_text, read_key};

/// Maximum number of damaged keys that a note lists.
pub const FINDINGS_MAX: usize = 64;
/// Maximum number of faults that a note lists for one key: one or two for each member.
pub const FAULTS_MAX: usize = 16;
/// Maximum size in bytes of a note without its list of findings. The next two constants are the maximum sizes
/// of a finding without its faults, and of a fault.
const HEAD_SIZE_MAX: usize = 1024;
const FINDING_SIZE_MAX: usize = 96;
const FAULT_SIZE_MAX: usize = 40;
const LIST_SIZE_MAX: usize = FINDINGS_MAX * (FINDING_SIZE_MAX + FAULTS_MAX * FAULT_SIZE_MAX);
const _: () = assert!(HEAD_SIZE_MAX + LIST_SIZE_MAX <= SCRUB_NOTE_SIZE_MAX);

/// A day, in seconds.
const DAY: u64 = 24 * 3600;

/// Returns a time from a note, or 0 if it is more than a day ahead of `now`: it came from a wrong clock, and
/// would delay all scrubs.
pub fn credible(at: u64, now: u64) -> u64 {
    if at > now.saturating_add(DAY) { 0 } else { at }
}

/// The note on the scrubs of a PG. Times are seconds since 1970.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ScrubNote {
    /// The epoch of the primary that wrote it.
    pub epoch: Epoch,
    /// The number of the note; it rises with each note of the PG.
    pub number: u64,
    /// When the first note was written; the scrub schedule begins at this time.
    pub born_at: u64,
    /// Start time of the last completed scrub, light or deep; 0: none.
    pub light_at: u64,
    /// Start time of the last completed deep scrub; 0: none.
    pub deep_at: u64,
    /// The scrub that is under way.
    pub running: Option<Running>,
    /// Damage that is not repaired.
    pub findings: Vec<Finding>,
    /// Number of damaged keys for which the list has no room.
    pub more: u64,
    /// Number of keys that scrubs have repaired.
    pub repaired: u64,
}

/// A scrub that is under way.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Running {
    /// Whether the scrub is deep, which means that it reads data.
    pub deep: bool,
    /// Whether an operator requested the scrub.
    pub on_demand: bool,
    /// When the scrub began.
    pub since: u64,
    /// In pools of objects: the records of so many shards are done. Blocks follow when all are.
    pub shards: u32,
    /// Keys up to this one are done.
    pub cursor: Option<BlockKey>,
    /// Number of keys that are done.
    pub keys: u64,
    /// Number of damaged keys for which the list has no room, among the keys done.
    pub more: u64,
    /// The current key, if the epoch is careful (see `limit`).
    pub trial: Option<Trial>,
}

/// A key that is recorded in the note before members read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trial {
    /// The key.
    pub key: BlockKey,
    /// Number of epochs in which a look at the key began, including this one.
    pub epochs: u32,
}

/// Damage of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The key.
    pub key: BlockKey,
    /// When the damage was last found.
    pub at: u64,
    /// The faults, by member.
    pub faults: Vec<(OsdId, Fault)>,
}

impl ScrubNote {
    /// Returns whether this note is newer than another one of the PG.
    pub fn is_newer_than(&self, other: &ScrubNote) -> bool {
        (self.epoch, self.number) > (other.epoch, other.number)
    }

    /// Returns the number of keys with damage.
    pub fn damaged_count(&self) -> u64 {
        (self.findings.len() as u64).saturating_add(self.more)
    }

    /// Returns the finding that is listed for a key.
    pub fn finding(&self, key: &BlockKey) -> Option<&Finding> {
        let place = self.findings.binary_search_by_key(key, |finding| finding.key);
        place.ok().map(|place| &self.findings[place])
    }

    /// Lists the damage of a key, in place of an earlier finding for the key. If the list is full, the key is
    /// only counted. Returns whether the finding is new: the key was not listed, or was listed with other
    /// faults.
    pub fn list(&mut self, mut finding: Finding) -> bool {
        finding.faults.truncate(FAULTS_MAX);
        match self.findings.binary_search_by_key(&finding.key, |it| it.key) {
            Ok(place) => {
                let is_new = self.findings[place].faults != finding.faults;
                self.findings[place] = finding;
                is_new
            }
            Err(place) if self.findings.len() < FINDINGS_MAX => {
                self.findings.insert(place, finding);
                true
            }
            Err(_) => {
                if let Some(running) = &mut self.running {
                    running.more = running.more.saturating_add(1);
                    self.more = self.more.max(running.more);
                }
                true
            }
        }
    }

    /// Adds the faults that are listed for a key to those of a look in which some members were not
    /// compared.
    pub(super) fn keep_listed(&self, key: &BlockKey, faults: &mut Vec<(OsdId, Fault)>) {
        let listed = self.finding(key).map_or(&[][..], |finding| &finding.faults);
        let is_new =
            |it: &&(OsdId, Fault)| it.1.kind != FaultKind::NotCompared && !faults.contains(it);
        let mut all: Vec<(OsdId, Fault)> = listed.iter().filter(is_new).copied().collect();
        all.append(faults);
        *faults = all;
    }

    /// Removes the findings for keys after `after` (`None`: from the first key on) and before `before`
    /// (`None`: to the last key). Returns whether there were any.
    pub fn strike(&mut self, after: Option<BlockKey>, before: Option<BlockKey>) -> bool {
        let count = self.findings.len();
        self.findings.retain(|finding| {
            if finding.key.image == RECORDS_IMAGE {
                return true;
            }
            let is_behind = after.is_none_or(|after| finding.key > after);
            !(is_behind && before.is_none_or(|before| finding.key < before))
        });
        self.findings.len() < count
    }

    /// Removes the findings for which this is true.
    pub fn strike_if(&mut self, is_struck: impl Fn(&Finding) -> bool) {
        self.findings.retain(|finding| !is_struck(finding));
    }

    /// Removes the finding for a key. Returns whether there was one.
    pub fn strike_key(&mut self, key: &BlockKey) -> bool {
        let place = self.findings.binary_search_by_key(key, |finding| finding.key);
        place.map(|place| self.findings.remove(place)).is_ok()
    }

    /// Removes keys that do not belong to the PG from the note. If the cursor is such a key, the scrub starts
    /// again at the first key.
    pub fn drop_keys_unless(&mut self, is_of_pg: impl Fn(&BlockKey) -> bool) {
        self.findings.retain(|finding| is_of_pg(&finding.key));
        if let Some(running) = &mut self.running {
            running.cursor = running.cursor.filter(&is_of_pg);
            running.trial = running.trial.filter(|trial| is_of_pg(&trial.key));
        }
    }

    /// Reads a note that [`ScrubNote::encode`] wrote. The error says what is wrong with it.
    pub fn decode(pg: PgId, bytes: &[u8]) -> Result<ScrubNote, String> {
        let text: NoteText = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        text.into_note(pg)
    }

    /// Returns the bytes of the note.
    pub fn encode(&self) -> Vec<u8> {
        let bytes = serde_json::to_vec(&NoteText::of(self)).expect("plain data");
        assert!(bytes.len() <= SCRUB_NOTE_SIZE_MAX);
        bytes
    }
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// The JSON form of the note.
#[derive(Serialize, Deserialize)]
struct NoteText {
    epoch: u32,
    number: u64,
    #[serde(default)]
    born_at: u64,
    #[serde(default)]
    light_at: u64,
    #[serde(default)]
    deep_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    running: Option<RunningText>,
    #[serde(default)]
    findings: Vec<FindingText>,
    #[serde(default)]
    more: u64,
    #[serde(default)]
    repaired: u64,
}

#[derive(Serialize, Deserialize)]
struct RunningText {
    deep: bool,
    #[serde(default)]
    on_demand: bool,
    since: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    shards: u32,
    cursor: Option<String>,
    keys: u64,
    #[serde(default)]
    more: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trial: Option<(String, u32)>,
}

#[derive(Serialize, Deserialize)]
struct FindingText {
    block: String,
    at: u64,
    faults: Vec<(u32, String, u32)>,
}

impl NoteText {
    fn of(note: &ScrubNote) -> NoteText {
        let running = note.running.as_ref().map(|running| RunningText {
            deep: running.deep,
            on_demand: running.on_demand,
            since: running.since,
            shards: running.shards,
            cursor: running.cursor.map(key_text),
            keys: running.keys,
            more: running.more,
            trial: running.trial.map(|trial| (key_text(trial.key), trial.epochs)),
        });
        let findings = note.findings.iter().map(|finding| FindingText {
            block: key_text(finding.key),
            at: finding.at,
            faults: (finding.faults.iter())
                .map(|(osd, fault)| (osd.get(), fault.kind.name().into(), fault.units))
                .collect(),
        });
        NoteText {
            epoch: note.epoch.get(),
            number: note.number,
            born_at: note.born_at,
            light_at: note.light_at,
            deep_at: note.deep_at,
            running,
            findings: findings.collect(),
            more: note.more,
            repaired: note.repaired,
        }
    }

    fn into_note(self, pg: PgId) -> Result<ScrubNote, String> {
        let running = self.running.map(|running| running.into_running(pg)).transpose()?;
        let findings = self.findings.into_iter().map(|finding| finding.into_finding(pg));
        let findings = findings.collect::<Result<Vec<_>, String>>()?;
        let is_sorted = findings.is_sorted_by(|one, next| one.key < next.key);
        if !is_sorted || findings.len() > FINDINGS_MAX {
            return Err("the note's list of damaged blocks is too long or out of order".into());
        }
        Ok(ScrubNote {
            epoch: Epoch::new(self.epoch),
            number: self.number,
            born_at: self.born_at,
            light_at: self.light_at,
            deep_at: self.deep_at,
            running,
            findings,
            more: self.more,
            repaired: self.repaired,
        })
    }
}

impl RunningText {
    fn into_running(self, pg: PgId) -> Result<Running, String> {
        let cursor = self.cursor.map(|text| read_key(pg, &text)).transpose()?;
        let trial = self
            .trial
            .map(|(text, epochs)| Ok::<Trial, String>(Trial { key: read_key(pg, &text)?, epochs }));
        let trial = trial.transpose()?;
        let RunningText { deep, on_demand, since, shards, keys, more, .. } = self;
        Ok(Running { deep, on_demand, since, shards, cursor, keys, more, trial })
    }
}

impl FindingText {
    fn into_finding(self, pg: PgId) -> Result<Finding, String> {
        if self.faults.len() > FAULTS_MAX {
            return Err("the note lists too many faults for one block".into());
        }
        let faults = self.faults.into_iter().map(|(osd, kind, units)| {
            let osd = OsdId::new(osd).ok_or("the note has OSD id 0, which is not valid")?;
            let kind = FaultKind::of_name(&kind)
                .ok_or_else(|| format!("the note has an unknown kind of fault: {kind:?}"))?;
            Ok((osd, Fault { kind, units: units.min(256) }))
        });
        let key = read_key(pg, &self.block)?;
        Ok(Finding { key, at: self.at, faults: faults.collect::<Result<_, String>>()? })
    }
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [FaultKind; 6] = [
        FaultKind::Damaged,
        FaultKind::Differs,
        FaultKind::Lost,
        FaultKind::Missing,
        FaultKind::NotCompared,
        FaultKind::Stale,
    ];

    /// Returns the name of the kind, as it appears in notes and in output for people.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Damaged => "damaged",
            FaultKind::Differs => "differs",
            FaultKind::Lost => "lost",
            FaultKind::Missing => "missing",
            FaultKind::NotCompared => "not compared",
            FaultKind::Stale => "stale",
        }
    }

    fn of_name(name: &str) -> Option<FaultKind> {
        FaultKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use base::{ImageId, PoolId, StripeIndex};

    use super::*;

    const PG: PgId = PgId { pool: PoolId::FIRST, number: 3 };

    fn key(stripe: u32) -> BlockKey {
        let (image, stripe) = (ImageId::FIRST, StripeIndex::new(stripe));
        BlockKey { pool: PG.pool, hash: u32::MAX, image, stripe }
    }

    fn finding(stripe: u32) -> Finding {
        let fault = Fault { kind: FaultKind::NotCompared, units: 256 };
        let osd = |number| OsdId::new(number).unwrap();
        let faults = (0..8).map(|index| (osd(u32::MAX - index), fault)).collect();
        Finding { key: key(stripe), at: u64::MAX, faults }
    }

    fn full() -> ScrubNote {
        let running = Running {
            deep: true,
            on_demand: true,
            since: 9,
            shards: u32::MAX,
            cursor: Some(key(8)),
            keys: u64::MAX,
            more: 0,
            trial: Some(Trial { key: key(9), epochs: u32::MAX }),
        };
        let mut note = ScrubNote {
            epoch: Epoch::new(u32::MAX),
            number: u64::MAX,
            born_at: u64::MAX,
            light_at: u64::MAX,
            deep_at: u64::MAX,
            repaired: u64::MAX,
            running: Some(running),
            ..Default::default()
        };
        for stripe in (0..200).rev() {
            let mut finding = finding(u32::MAX - stripe);
            finding.faults.extend(finding.faults.clone());
            finding.faults.extend(finding.faults.clone());
            note.list(finding);
        }
        note
    }

    #[test]
    fn the_longest_note_fits_a_message_and_is_read_back() {
        let note = full();
        assert_eq!((note.findings.len(), note.more), (FINDINGS_MAX, 200 - FINDINGS_MAX as u64));
        let bytes = note.encode();
        assert!(bytes.len() <= SCRUB_NOTE_SIZE_MAX);
        assert!(bytes.len() <= HEAD_SIZE_MAX + LIST_SIZE_MAX);
        let names = FaultKind::ALL.map(|kind| kind.name().len());
        assert_eq!(names.iter().max(), Some(&FaultKind::NotCompared.name().len()));
        assert_eq!(ScrubNote::decode(PG, &bytes), Ok(note));
        assert_eq!(ScrubNote::decode(PG, &ScrubNote::default().encode()), Ok(Default::default()));
    }

    #[test]
    fn a_note_out_of_order_is_refused() {
        let mut note = full();
        note.findings.reverse();
        assert!(ScrubNote::decode(PG, &note.encode()).is_err());
        assert!(ScrubNote::decode(PG, b"{").is_err());
    }

    #[test]
    fn keys_of_other_pgs_are_dropped() {
        let mut note = ScrubNote { running: full().running, ..ScrubNote::default() };
        note.list(finding(3));
        note.list(finding(8));
        note.drop_keys_unless(|it| *it == key(8));
        assert!(note.finding(&key(3)).is_none() && note.finding(&key(8)).is_some());
        let running = note.running.unwrap();
        assert_eq!((running.cursor, running.trial), (Some(key(8)), None));
    }

    #[test]
    fn damage_is_listed_once_and_struck_by_range() {
        let mut note = ScrubNote::default();
        assert!(note.list(finding(5)) && note.list(finding(3)) && note.list(finding(7)));
        assert!(!note.list(finding(5)), "it says nothing new");
        assert!(!note.strike(Some(key(3)), Some(key(5))), "ends are not included");
        assert!(note.strike(Some(key(3)), Some(key(7))));
        assert!(note.finding(&key(5)).is_none() && note.finding(&key(7)).is_some());
        assert!(note.strike_key(&key(7)) && !note.strike_key(&key(7)));
        assert!(note.strike(None, None) && note.findings.is_empty());
    }

    #[test]
    fn a_later_primary_writes_newer_notes() {
        let old = ScrubNote { epoch: Epoch::new(2), number: 9, ..Default::default() };
        let new = ScrubNote { epoch: Epoch::new(3), number: 1, ..Default::default() };
        assert!(new.is_newer_than(&old) && !old.is_newer_than(&new) && !old.is_newer_than(&old));
    }
}
