//! One client: its process, its attachments, and its pending operations.

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
    /// The client's logic, while its process runs.
    pub core: Option<ClientCore>,
    /// Its attachments, including those that are being opened or closed.
    pub attached: BTreeMap<VolumeHandle, Attachment>,
    /// Operations that have not been answered.
    pub open: BTreeMap<RequestId, Open>,
    name_last: u64,
}

/// One attachment.
pub struct Attachment {
    pub(super) volume: usize,
    /// The session, once the attachment is open.
    pub(super) session: SessionId,
    pub(super) read_only: bool,
    pub(super) stage: Stage,
    /// When the attach was requested, the volume was live and nobody was changing it.
    pub(super) sure: bool,
    /// The attachment holds the lock.
    pub(super) locked: bool,
    /// The attachment is lazy: its writes may be acknowledged before they are durable.
    pub(super) lazy: bool,
    /// The lock of this attachment was taken over, or may have been: lazy writes that it still issues
    /// may be lost.
    pub(super) overruled: bool,
}

/// The stage that an attachment has reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Opening,
    Open { units: u64, opened: Moment },
    Closing,
}

/// A pending operation.
pub struct Open {
    pub(super) handle: VolumeHandle,
    pub(super) volume: usize,
    /// The attachment's session, the moment when the attachment was opened, and its size in units at
    /// that moment.
    pub(super) session: SessionId,
    pub(super) opened: (Moment, u64),
    pub(super) work: Work,
    pub(super) from: Moment,
    pub(super) fault_count: u64,
    pub(super) asked_at: Time,
    /// Whether it has a deadline: others are never given up.
    pub(super) has_deadline: bool,
}

/// An open attachment: its client, handle, volume, and size in units.
#[derive(Clone, Copy, Debug)]
pub struct Handle {
    pub(super) client: usize,
    pub(super) handle: VolumeHandle,
    pub(super) volume: usize,
    pub(super) units: u64,
}

/// What an operation requests.
pub(super) enum Work {
    Read { pieces: Range<u64> },
    Change { id: ChangeId },
    Flush,
    Extents { units: Range<u64> },
}

impl Work {
    /// Returns the range of pieces that the operation covers.
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
    /// Starts a new process of the client.
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

    /// Ends the client's process. Operations that it had issued may still take effect.
    pub fn die(&mut self) {
        self.core = None;
        self.attached.clear();
        self.open.clear();
    }

    /// Returns the volumes that the client believes it has attached.
    pub fn attached_volumes(&self) -> impl Iterator<Item = usize> + '_ {
        let open = |attachment: &&Attachment| matches!(attachment.stage, Stage::Open { .. });
        self.attached.values().filter(open).map(|attachment| attachment.volume)
    }

    /// Returns the volumes whose lock the client believes it holds.
    pub fn locked_volumes(&self) -> impl Iterator<Item = usize> + '_ {
        self.attached.values().filter(|attachment| attachment.locked).map(|it| it.volume)
    }

    /// Marks the client's attachments of a volume as overruled: they may have ended without the
    /// client's knowledge. Returns these attachments.
    pub fn overrule(&mut self, volume: usize) -> Vec<VolumeHandle> {
        let of_it = self.attached.iter_mut().filter(|(_, attachment)| attachment.volume == volume);
        let overruled = of_it.map(|(handle, attachment)| {
            attachment.overruled = true;
            *handle
        });
        overruled.collect()
    }

    /// Marks the lazy attachments of a volume, except `but`, as overruled, because another attachment
    /// was opened.
    pub fn overrule_lazy(&mut self, volume: usize, but: Option<VolumeHandle>) {
        for (handle, attachment) in &mut self.attached {
            let is_it = attachment.volume == volume && Some(*handle) != but;
            attachment.overruled |= is_it && attachment.lazy;
        }
    }

    /// Returns the attachments whose detach has not been requested yet.
    pub fn to_detach(&self) -> Vec<VolumeHandle> {
        self.attached
            .iter()
            .filter(|(_, attachment)| attachment.stage != Stage::Closing)
            .map(|(handle, _)| *handle)
            .collect()
    }

    /// Returns whether no attach is under way.
    pub fn is_settled(&self) -> bool {
        self.attached.values().all(|attachment| attachment.stage != Stage::Opening)
    }

    /// Returns whether no detach is under way.
    pub fn has_let_go(&self) -> bool {
        self.attached.values().all(|attachment| attachment.stage != Stage::Closing)
    }

    pub(super) fn next_name(&mut self) -> u64 {
        self.name_last += 1;
        self.name_last
    }
}

/// A client that is cut off from its monitors, or stopped, until its session has ended.
#[derive(Clone, Copy, Debug)]
pub struct CutOff {
    /// The index of the client.
    pub client: usize,
    /// A volume that the client has attached, and that is removed meanwhile.
    pub volume: usize,
}

/// Attachments that need an action after the current event, each with its client.
#[derive(Default)]
pub struct AttachmentsDue {
    /// Attachments whose session has ended.
    pub(super) to_close: Vec<(usize, VolumeHandle)>,
    /// Attachments whose volume is to be written completely.
    pub(super) to_fill: Vec<(usize, VolumeHandle)>,
}
