//! One client: its process, what it has attached, and its operations without an answer.

use std::collections::BTreeMap;
use std::ops::Range;

use base::{BufferPool, Duration, SessionId, Time};
use volume::{ClientCore, RequestId, Settings, VolumeHandle};

use super::plan::Plan;
use super::process::monitor_addresses;
use super::volume_model::{ChangeId, Volume};
use crate::register::Moment;

/// One client.
#[derive(Default)]
pub struct Client {
    /// Its process, while it runs.
    pub core: Option<ClientCore>,
    /// What it has attached, or is attaching.
    pub attached: BTreeMap<VolumeHandle, Attachment>,
    /// Operations without an answer.
    pub open: BTreeMap<RequestId, Open>,
    name_last: u64,
}

/// One attachment.
pub struct Attachment {
    pub(super) volume: usize,
    /// Once it is open.
    pub(super) session: SessionId,
    pub(super) read_only: bool,
    pub(super) stage: Stage,
    /// The volume was live, and nobody changed it, when the attach was asked.
    pub(super) sure: bool,
    /// It has the lock.
    pub(super) locked: bool,
    /// It may be told that changes are done before they are durable.
    pub(super) lazy: bool,
    /// Somebody took, or may have taken, its lock: what it still asks lazily may be lost.
    pub(super) overruled: bool,
}

/// How far an attachment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Opening,
    Open { units: u64, opened: Moment },
    Closing,
}

/// An operation without an answer.
pub struct Open {
    pub(super) handle: VolumeHandle,
    pub(super) volume: usize,
    /// Of the attachment: its session, when it was opened, and with how many units.
    pub(super) session: SessionId,
    pub(super) opened: (Moment, u64),
    pub(super) work: Work,
    pub(super) from: Moment,
    pub(super) fault_count: u64,
    pub(super) asked_at: Time,
}

/// An attachment that is open: whose, which, of which volume, and its size in units.
#[derive(Clone, Copy, Debug)]
pub struct Handle {
    pub(super) client: usize,
    pub(super) handle: VolumeHandle,
    pub(super) volume: usize,
    pub(super) units: u64,
}

/// What an operation asks.
pub(super) enum Work {
    Read { pieces: Range<u64> },
    Change { id: ChangeId },
    Flush,
    Extents { units: Range<u64> },
}

impl Work {
    /// The range that it asks for.
    pub(super) fn pieces(&self, volume: &Volume) -> Option<Range<u64>> {
        match self {
            Work::Read { pieces } => Some(pieces.clone()),
            Work::Change { id } => volume.pieces_of(*id),
            Work::Flush => None,
            Work::Extents { units } => Some(units.start * 8..units.end * 8),
        }
    }
}

impl Client {
    /// A new process of it.
    pub fn start(&mut self, plan: &Plan, pool: BufferPool) {
        let settings = Settings {
            monitors: monitor_addresses(plan.monitor_count),
            client: "sim".to_string(),
            pid: 1,
            host: "client".to_string(),
            address: None,
            retry_for: plan.patience.map(Duration::from_millis),
            unsynced_size_max: plan.unsynced_size_max,
        };
        self.core = Some(ClientCore::new(settings, pool));
    }

    /// Its process is gone. What it had asked may still happen.
    pub fn die(&mut self) {
        self.core = None;
        self.attached.clear();
        self.open.clear();
    }

    /// Volumes that it believes to have attached.
    pub fn attached_volumes(&self) -> impl Iterator<Item = usize> + '_ {
        let open = |attachment: &&Attachment| matches!(attachment.stage, Stage::Open { .. });
        self.attached.values().filter(open).map(|attachment| attachment.volume)
    }

    /// Volumes of which it believes to have the lock.
    pub fn locked_volumes(&self) -> impl Iterator<Item = usize> + '_ {
        self.attached.values().filter(|attachment| attachment.locked).map(|it| it.volume)
    }

    /// Its attachments of a volume may be over without its knowledge: names them.
    pub fn overrule(&mut self, volume: usize) -> Vec<VolumeHandle> {
        let of_it = self.attached.iter_mut().filter(|(_, attachment)| attachment.volume == volume);
        let overruled = of_it.map(|(handle, attachment)| {
            attachment.overruled = true;
            *handle
        });
        overruled.collect()
    }

    /// Those that are lazy are over: another one was opened.
    pub fn overrule_lazy(&mut self, volume: usize, but: Option<VolumeHandle>) {
        for (handle, attachment) in &mut self.attached {
            let is_it = attachment.volume == volume && Some(*handle) != but;
            attachment.overruled |= is_it && attachment.lazy;
        }
    }

    /// Attachments that nobody has asked to end.
    pub fn to_detach(&self) -> Vec<VolumeHandle> {
        self.attached
            .iter()
            .filter(|(_, attachment)| attachment.stage != Stage::Closing)
            .map(|(handle, _)| *handle)
            .collect()
    }

    /// Whether no attach is under way.
    pub fn is_settled(&self) -> bool {
        self.attached.values().all(|attachment| attachment.stage != Stage::Opening)
    }

    /// Whether no detach is under way.
    pub fn has_let_go(&self) -> bool {
        self.attached.values().all(|attachment| attachment.stage != Stage::Closing)
    }

    pub(super) fn next_name(&mut self) -> u64 {
        self.name_last += 1;
        self.name_last
    }
}

/// A client that is cut off its monitors until its session has ended.
#[derive(Clone, Copy, Debug)]
pub struct CutOff {
    /// Which client.
    pub client: usize,
    /// A volume that it has attached, and that is to be removed meanwhile.
    pub volume: usize,
}

/// Attachments that something is due for after the present event: each with its client.
#[derive(Default)]
pub struct AttachmentsDue {
    /// Those whose session is over.
    pub(super) to_close: Vec<(usize, VolumeHandle)>,
    /// Those whose volume is to be written whole.
    pub(super) to_fill: Vec<(usize, VolumeHandle)>,
}
