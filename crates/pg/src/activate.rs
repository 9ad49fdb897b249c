//! Activation: how a PG begins to serve an epoch.
//!
//! Started writes of the epoch before end first; then the newest version this OSD holds is
//! adopted, and the entry is made durable together with it. With one member nobody else has to
//! agree.

use base::{Epoch, Version};
use blockstore::{Answer, NoteKey, Request as StoreRequest, StoreError};
use format::wire::PgEntry;
use serde::{Deserialize, Serialize};

use super::{Action, Call, Pg};

/// What a member keeps of an activation: its store's note of the PG.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ActivationRecord {
    /// The entry that was activated.
    pub entry: PgEntry,
    /// The last version adopted. Versions up to it that the member does not hold are void.
    #[serde(with = "version_text")]
    pub adopted: Version,
}

/// `epoch.counter`, as versions are printed.
mod version_text {
    use base::{Epoch, Version};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(version: &Version, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(version)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Version, D::Error> {
        let text = String::deserialize(from)?;
        let parts = text.split_once('.').and_then(|(epoch, counter)| {
            Some((epoch.parse::<u32>().ok()?, counter.parse::<u64>().ok()?))
        });
        let (epoch, counter) =
            parts.ok_or_else(|| D::Error::custom("a version is epoch.counter"))?;
        Ok(Version { epoch: Epoch::new(epoch), counter })
    }
}

impl ActivationRecord {
    /// Reads what [`ActivationRecord::encode`] wrote; the error says what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<ActivationRecord, String> {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }

    /// The bytes of the note.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data with text keys")
    }
}

/// How far a PG has come in serving its newest entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Serving {
    /// Serves nothing and is not about to.
    Idle {
        /// For people: what it waits for.
        why: String,
    },
    /// Waits until the started writes of the epoch before have ended.
    Draining {
        /// What is to be served.
        entry: PgEntry,
    },
    /// Waits until its activation record is durable.
    Journaling {
        /// What is to be served.
        entry: PgEntry,
    },
    /// Serves the entry of its record.
    Active,
}

impl Pg {
    /// How far it has come.
    pub fn serving(&self) -> &Serving {
        &self.serving
    }

    /// The newest activation that is durable here.
    pub fn record(&self) -> Option<&ActivationRecord> {
        self.record.as_ref()
    }

    /// The highest epoch this OSD knows the PG had: an entry below it is older than what was
    /// already served.
    pub fn epoch_floor(&self) -> Epoch {
        let records = self.record.iter().chain(&self.noting);
        let recorded = records.map(|record| record.entry.epoch).max().unwrap_or(Epoch::ZERO);
        recorded.max(self.newest.epoch)
    }

    /// The epoch whose versions writes get. Requires: the PG was activated in this run.
    pub(crate) fn epoch_served(&self) -> Epoch {
        let record = self.record.as_ref().expect("nothing is executed before an activation");
        record.entry.epoch
    }

    /// Begins to serve `entry`; ends with [`Action::Activated`].
    /// Requires: this OSD is its primary and only member; its epoch is above
    /// [`Pg::epoch_floor`]. The caller then refuses what waits for the epoch before
    /// ([`Pg::refuse_waiting`]).
    pub fn activate(&mut self, entry: PgEntry, actions: &mut Vec<Action>) {
        assert!(entry.epoch > self.epoch_floor());
        assert!(entry.acting.len() == 1);
        self.serving = Serving::Draining { entry };
        self.journal_when_drained(actions);
    }

    /// Serves nothing more until the next activation. What was started ends.
    pub fn halt(&mut self, why: String) {
        self.serving = Serving::Idle { why };
    }

    /// Tells the store that the operator gave up what it lost of this PG; ends with
    /// [`Action::Absolved`].
    pub fn absolve(&mut self, actions: &mut Vec<Action>) {
        self.call(Call::Absolve, StoreRequest::Absolve { pg: self.shape.pg }, actions);
    }

    /// Goes on with an activation once nothing of the epoch before is under way.
    pub(crate) fn journal_when_drained(&mut self, actions: &mut Vec<Action>) {
        let Serving::Draining { entry } = &self.serving else { return };
        if !self.writes.is_empty() || self.noting.is_some() {
            return;
        }
        assert!(self.window.is_empty());
        let entry = entry.clone();
        let record = ActivationRecord { entry: entry.clone(), adopted: self.newest };
        let key = NoteKey::Pg(self.shape.pg);
        let bytes = record.encode();
        self.serving = Serving::Journaling { entry };
        self.noting = Some(record);
        self.call(Call::Note, StoreRequest::Note { key, bytes }, actions);
    }

    pub(crate) fn noted(&mut self, result: Result<Answer, StoreError>, actions: &mut Vec<Action>) {
        let record = self.noting.take().expect("one note at a time, until its answer");
        let is_awaited = matches!(self.serving, Serving::Journaling { .. });
        match result {
            Ok(_) => {
                if is_awaited {
                    assert!(record.adopted == self.newest);
                    self.member_count = record.entry.acting.len();
                    self.serving = Serving::Active;
                    actions.push(Action::Activated);
                }
                self.record = Some(record);
            }
            Err(error) if is_awaited => {
                let why = format!("its activation could not be journaled: {error:?}");
                self.serving = Serving::Idle { why };
            }
            Err(_) => {}
        }
        // A newer entry may have come meanwhile.
        self.journal_when_drained(actions);
    }
}
