//! Activation: how a PG begins to serve an epoch.
//!
//! Started writes of the epoch before end first; then the newest version this OSD holds is
//! adopted, and the entry is made durable together with it. With one member nobody else has to
//! agree.

use base::{Epoch, OsdId};
use blockstore::{Answer, NoteKey, Request as StoreRequest, StoreError};
use format::wire::{Activation, ListedBlock, PeerBody, PgEntry};

use super::{Action, Call, CallId, Pg, Record};

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
    pub fn record(&self) -> Option<&Record> {
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

    /// Takes part in `entry`; as its primary it ends with [`Action::Activated`].
    /// Requires: this OSD is an acting member or learner of it in its present run; its epoch is
    /// above [`Pg::epoch_floor`]; as primary, grants that were given to earlier ones ran out.
    /// `copies`: of the pool.
    pub fn enter(&mut self, entry: PgEntry, copies: u32, actions: &mut Vec<Action>) {
        assert!(entry.epoch > self.epoch_floor());
        assert!(copies > 0);
        assert!(entry.primary == Some(self.me));
        assert!(entry.acting.len() == 1);
        self.serving = Serving::Draining { entry };
        self.journal_when_drained(actions);
    }

    /// Serves nothing more until the next activation. What was started ends.
    pub fn halt(&mut self, why: String, _actions: &mut Vec<Action>) {
        self.serving = Serving::Idle { why };
    }

    /// The entry it takes part in.
    pub fn entry(&self) -> Option<&PgEntry> {
        match &self.serving {
            Serving::Idle { .. } => None,
            Serving::Draining { entry } | Serving::Journaling { entry } => Some(entry),
            Serving::Active => self.record.as_ref().map(|record| &record.entry),
        }
    }

    /// As primary: there is a connection to this member.
    pub fn peer_ready(&mut self, _osd: OsdId, _actions: &mut Vec<Action>) {}

    /// As primary: the connection to this member is gone.
    pub fn peer_lost(&mut self, _osd: OsdId, _actions: &mut Vec<Action>) {}

    /// Another member said this, in this epoch; the sender's run and role were compared with the
    /// entry. The error says what no peer of ours says: its connection ends.
    pub fn peer_said(
        &mut self,
        from: OsdId,
        _body: PeerBody,
        _actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        Err(format!("{from} is no member"))
    }

    /// The node answers [`Action::ListNewer`], in key order.
    pub fn listed_newer(
        &mut self,
        _call: CallId,
        _blocks: Vec<ListedBlock>,
        _is_last: bool,
        _actions: &mut Vec<Action>,
    ) {
    }

    /// Whose grants must be valid when an operation starts: the other acting members, and learners
    /// that were reported complete.
    pub fn lease_givers(&self) -> &[OsdId] {
        &[]
    }

    /// As primary: so many repairs of learners may be under way for this PG.
    pub fn fill(&mut self, _count_max: usize, _actions: &mut Vec<Action>) {}

    /// Learners being filled: bytes copied in this epoch, and bytes still to be compared or copied
    /// as far as is known.
    pub fn filling(&self) -> impl Iterator<Item = (OsdId, u64, u64)> + '_ {
        std::iter::empty()
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
        let history = vec![Activation { epoch: entry.epoch, adopted: self.newest }];
        let record = Record { entry: entry.clone(), adopted: self.newest, history, filling: None };
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
