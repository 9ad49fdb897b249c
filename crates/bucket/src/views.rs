//! Views of buckets: what a look at `b` showed, and how old that is. `docs/internals/buckets.md`, rule 15.
//!
//! ```text
//!   b   format (1): 1 | state (1): 0 live, 1 deleting | ACL (1) | versioning (1) | spread (2) | zeros (2)
//!       | id (8) | created (8), in ms | mark (8), 0 if live | field ...
//!       field: number (1) | size (2) | bytes, in the order of numbers
//!         1 owner; 2 data pool, if it has one;   from 128 on: may be passed by who does not know it, and stays
//! ```
//!
//! A view is as old as the sending of its look. Whoever deletes a bucket marks it, waits twice as long as a view
//! counts, and lists: so a write that was acknowledged by a view without the mark is seen by that list.
//!
//! Invariants
//!   1. A write is acknowledged only while a view at most [`VIEW_AGE_MAX`] old shows the bucket live, with the id
//!      that was written to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::Version;
use base::planted::{self, Bug};
use format::disk::bytes::{Reader, Writer};
use objects::{Assertion, Name, ObjectChange, ObjectSteps, Operation};

use crate::api::{Bucket, Client, Versioning};
use crate::core::{Core, Result, encode};
use crate::door::Door;
use crate::failure::Failure;
use crate::head::BadBytes;
use crate::names::{BucketId, IndexName, SPREAD_MAX};
use crate::records::{acl_number, acl_of, field, read_field};
use crate::waiting::{Turns, lock};

/// How old a view may be.
pub const VIEW_AGE_MAX: Duration = Duration::from_secs(1);
/// How long whoever deletes a bucket waits behind the mark.
pub const MARK_WAIT: Duration = Duration::from_secs(2);
/// How often a mark is renewed.
pub const MARK_RENEWED: Duration = Duration::from_secs(3);
/// A mark that does not change for so long is removed by others.
pub const MARK_DEAD: Duration = Duration::from_secs(10);
/// How long is waited between two looks at a bucket that is being deleted.
const MARK_LOOKED_AT: Duration = Duration::from_millis(200);
/// The most names of which views are kept, of buckets that do not exist too.
const VIEWS_MAX: usize = 10_000;

const FORMAT: u8 = 1;
const OWNER: u8 = 1;
const DATA_POOL: u8 = 2;
const OPTIONAL: u8 = 128;

/// What the object `b` has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BucketRecord {
    pub(crate) bucket: Arc<Bucket>,
    /// Somebody deletes the bucket: random bits of theirs.
    pub(crate) mark: Option<u64>,
    /// Fields of newer versions of this program.
    pub(crate) others: Vec<(u8, Vec<u8>)>,
}

/// What a look showed.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// When the look was sent, on the running clock.
    pub(crate) sent_us: u64,
    /// The record with its version. `None`: there is no such bucket.
    pub(crate) found: Option<(Version, BucketRecord)>,
}

/// The newest view of each name.
#[derive(Default)]
pub(crate) struct Views {
    by_name: Mutex<BTreeMap<String, View>>,
    /// One look for all that wait.
    looks: Turns<String>,
}

impl BucketRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Bucket { id, owner, created_ms, acl, spread, versioning, data_pool, .. } =
            &*self.bucket;
        let mut out = Writer::default();
        out.u8(FORMAT);
        out.u8(self.mark.is_some().into());
        out.u8(acl_number(*acl));
        out.u8(*versioning as u8);
        out.u16(*spread);
        out.u16(0);
        out.u64(id.get());
        out.u64(*created_ms);
        out.u64(self.mark.unwrap_or(0));
        let data_pool = data_pool.iter().map(|pool| (DATA_POOL, pool.as_bytes()));
        let fields = [(OWNER, owner.as_bytes())].into_iter().chain(data_pool);
        let others = self.others.iter().map(|(number, bytes)| (*number, &bytes[..]));
        for (number, bytes) in fields.chain(others) {
            field(&mut out, number, bytes).expect("names and fields that were read are short");
        }
        out.bytes
    }

    pub(crate) fn decode(name: &str, bytes: &[u8]) -> std::result::Result<BucketRecord, BadBytes> {
        let what = "a bucket";
        if bytes.first().is_some_and(|format| *format != FORMAT) {
            return Err(BadBytes { what, why: "its format is not known" });
        }
        decode(name, bytes).ok_or(BadBytes { what, why: "a value is out of range" })
    }
}

fn decode(name: &str, bytes: &[u8]) -> Option<BucketRecord> {
    let mut from = Reader::new(bytes);
    from.u8()?;
    let (state, acl) = (from.u8()?, acl_of(from.u8()?)?);
    let versioning = match from.u8()? {
        0 => Versioning::Off,
        1 => Versioning::Enabled,
        2 => Versioning::Suspended,
        _ => return None,
    };
    let (spread, zeros) = (from.u16()?, from.u16()?);
    let (id, created_ms, mark) = (BucketId::new(from.u64()?), from.u64()?, from.u64()?);
    if !spread.is_power_of_two() || spread > SPREAD_MAX || zeros != 0 {
        return None;
    }
    let mark = match (state, mark) {
        (0, 0) => None,
        (1, 1..) => Some(mark),
        _ => return None,
    };
    let (number, owner) = read_field(&mut from)?;
    let owner = std::str::from_utf8(owner).ok().filter(|_| number == OWNER)?.to_owned();
    let mut others: Vec<(u8, Vec<u8>)> = Vec::new();
    let mut data_pool = None;
    while !from.is_at_end() {
        let (number, bytes) = read_field(&mut from)?;
        if number == DATA_POOL && data_pool.is_none() && others.is_empty() {
            data_pool = Some(std::str::from_utf8(bytes).ok()?.to_owned());
            continue;
        }
        let last = others.last().map_or(OPTIONAL, |(last, _)| *last);
        if number < last {
            return None;
        }
        others.push((number, bytes.to_vec()));
    }
    let name = name.to_owned();
    let bucket = Bucket { name, id, owner, created_ms, acl, spread, versioning, data_pool };
    Some(BucketRecord { bucket: Arc::new(bucket), mark, others })
}

/// Returns an operation on one object.
pub(crate) fn operation(
    name: &Name,
    assertions: impl IntoIterator<Item = Assertion>,
    changes: impl IntoIterator<Item = ObjectChange>,
) -> Operation {
    Operation { objects: vec![steps(name, assertions, changes)] }
}

/// Returns the part of an operation that concerns one object.
pub(crate) fn steps(
    name: &Name,
    assertions: impl IntoIterator<Item = Assertion>,
    changes: impl IntoIterator<Item = ObjectChange>,
) -> ObjectSteps {
    let (assertions, changes) = (assertions.into_iter().collect(), changes.into_iter().collect());
    ObjectSteps { name: name.clone(), assertions, changes }
}

impl<D: Door> Core<D> {
    /// Looks at a bucket.
    pub(crate) async fn look_at_bucket(&self, name: &str) -> Result<View> {
        let object = encode(&IndexName::Bucket(name.into()))?;
        let sent_us = self.door.running_us();
        let found = match self.read(&object).await? {
            None => None,
            Some((stat, data)) => {
                let record = BucketRecord::decode(name, &data)
                    .map_err(|bad| Failure::Damaged { what: format!("{bad} ({name})") })?;
                Some((stat.version, record))
            }
        };
        let view = View { sent_us, found };
        self.keep_view(name, view.clone());
        Ok(view)
    }

    /// Returns a view that is at most `age_max` old when it is returned, unless the look takes longer.
    pub(crate) async fn view(&self, name: &str, age_max: Duration) -> Result<View> {
        if let Some(view) = self.kept_view(name, age_max) {
            return Ok(view);
        }
        let entered_us = self.door.running_us();
        let turn = self.views.looks.enter(name.to_owned());
        turn.wait().await;
        // However long it took: a look that was sent since this was asked serves all that wait.
        let kept = lock(&self.views.by_name).get(name).cloned();
        match kept.filter(|it| it.sent_us >= entered_us || self.since(it.sent_us) <= age_max) {
            Some(view) => Ok(view),
            None => self.look_at_bucket(name).await,
        }
    }

    fn kept_view(&self, name: &str, age_max: Duration) -> Option<View> {
        let views = lock(&self.views.by_name);
        views.get(name).filter(|view| self.since(view.sent_us) <= age_max).cloned()
    }

    /// Keeps a view, if none that was sent later is there.
    pub(crate) fn keep_view(&self, name: &str, view: View) {
        let mut views = lock(&self.views.by_name);
        if views.get(name).is_some_and(|other| other.sent_us > view.sent_us) {
            return;
        }
        if views.len() >= VIEWS_MAX && !views.contains_key(name) {
            views.retain(|_, view| self.since(view.sent_us) <= VIEW_AGE_MAX);
            if views.len() >= VIEWS_MAX {
                views.clear();
            }
        }
        views.insert(name.to_owned(), view);
    }

    /// Forgets the view of a bucket that this gateway has changed.
    pub(crate) fn forget_view(&self, name: &str) {
        lock(&self.views.by_name).remove(name);
    }

    /// Waits until a bucket that was written to is live by a view that counts: then the write may be
    /// acknowledged, at once. If the bucket is being deleted this waits until it is live or gone: nothing is
    /// undone.
    pub(crate) async fn confirm_live(&self, bucket: &Bucket) -> Result<()> {
        if planted::on(Bug::ViewJudgedBeforeOnly) {
            return Ok(());
        }
        let mut mark = WatchedMark::default();
        let written_us = self.door.running_us();
        loop {
            let view = self.view(&bucket.name, VIEW_AGE_MAX).await?;
            match &view.found {
                Some((_, record)) if record.bucket.id != bucket.id => break,
                None => break,
                Some((_, record)) if record.mark.is_none() => {
                    // However long a look takes: if it was sent behind the write, so is the mark of whoever
                    // deletes, and the list behind that shows the write.
                    let is_behind = view.sent_us >= written_us;
                    if is_behind || self.since(view.sent_us) <= VIEW_AGE_MAX {
                        return Ok(());
                    }
                }
                Some((version, record)) => self.watch(&mut mark, *version, record).await?,
            }
        }
        Err(Failure::NoSuchBucket)
    }

    /// Returns the record of a bucket by a fresh look, as soon as nobody deletes it. `None`: there is none.
    pub(crate) async fn settled_bucket(
        &self,
        client: &Client,
        name: &str,
    ) -> Result<Option<(Version, BucketRecord)>> {
        let mut mark = WatchedMark::default();
        loop {
            if !client.may_send(self.door.running_us()) {
                return Err(Failure::Unavailable { why: "the bucket is being deleted".into() });
            }
            match self.look_at_bucket(name).await?.found {
                Some((version, record)) if record.mark.is_some() => {
                    self.watch(&mut mark, version, &record).await?;
                }
                found => return Ok(found),
            }
        }
    }

    /// Waits beside a mark, and removes it if it has stood too long.
    async fn watch(
        &self,
        watched: &mut WatchedMark,
        version: Version,
        record: &BucketRecord,
    ) -> Result<()> {
        let now_us = self.door.running_us();
        if watched.version != Some(version) {
            *watched = WatchedMark { version: Some(version), since_us: now_us };
        }
        if self.since(watched.since_us) < MARK_DEAD {
            self.door.sleep(MARK_LOOKED_AT).await;
            return Ok(());
        }
        let name = encode(&IndexName::Bucket(record.bucket.name.clone()))?;
        let live = BucketRecord { mark: None, ..record.clone() }.encode();
        let unmark = operation(&name, [Assertion::Version(version)], [ObjectChange::Put(live)]);
        // If it fails somebody else was faster: the next look tells.
        let _ = self.door.execute(unmark).await;
        self.forget_view(&record.bucket.name);
        Ok(())
    }
}

/// Since when a mark has stood unchanged before our eyes.
#[derive(Default)]
struct WatchedMark {
    version: Option<Version>,
    since_us: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api::CannedAcl;

    fn record() -> BucketRecord {
        let bucket = Bucket {
            name: "photos".into(),
            id: BucketId::new(0x0102_0304_0506_0708),
            owner: "ann".into(),
            created_ms: 0x0190_0000_0001,
            acl: CannedAcl::PublicRead,
            spread: 16,
            versioning: Versioning::Suspended,
            data_pool: Some("fast".into()),
        };
        let others = vec![(130, vec![1, 2])];
        BucketRecord { bucket: Arc::new(bucket), mark: Some(0xa0a1), others }
    }

    #[test]
    fn buckets_are_frozen() {
        let bytes = record().encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = "0101010210000000080706050403020101000000900100\
                      00a1a00000000000000103\
                      00616e6e020400666173748202000102";
        assert_eq!(hex, golden);
        assert_eq!(BucketRecord::decode("photos", &bytes), Ok(record()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn whatever_decodes_encodes_to_the_same(
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0..8u8), 0..4),
            cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        ) {
            let mut bytes = record().encode();
            for (at, bit) in changes {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            if let Some(cut) = cut {
                let cut = cut.index(bytes.len());
                bytes.truncate(cut);
            }
            if let Ok(record) = BucketRecord::decode("photos", &bytes) {
                prop_assert_eq!(record.encode(), bytes);
            }
        }
    }
}
