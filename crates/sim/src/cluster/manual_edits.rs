//! Manual edits: at the end of a run, somebody edits keys of the state store directly, while a monitor leads
//! and a client attaches volumes. The operator undoes the edits that endanger data, so these change nothing.
//! A new host of an OSD takes effect at once.

use base::Duration;
use cluster::state::Operation;

use super::operator::Job;
use super::volume_model::Life;
use super::world::World;
use crate::random::{Chance, Random};

/// The number of edits in a run.
const EDIT_COUNT: usize = 8;

/// How long the cluster must have been whole before an edit: then no monitor is about to write.
const WHOLE_FOR: Duration = Duration::from_secs(1);

/// Range for the delay between a client's request and the edit, in nanoseconds.
const PAUSE: std::ops::Range<u64> = 1_000..20_000_000;

/// Keys of objects that do not exist.
const STRANGERS: [&str; 5] = ["pg/7/0", "fence/9", "image/4000", "session/77777", "counter/pool"];

impl World {
    /// Runs the scenario, if the seed draws it. Requires: the cluster is whole, and no fault happens.
    pub(super) fn edit_by_hand(&mut self) -> Result<(), String> {
        let mut random = Random::new(self.seed, "hands");
        if random.chance(Chance::percent(70)) || self.wait_until_whole_for(WHOLE_FOR)?.is_some() {
            return Ok(());
        }
        self.state.expect_edits();
        for _ in 0..EDIT_COUNT {
            // A monitor cannot undo an edit that is made while it first reads the state store.
            self.wait_until_whole_for(WHOLE_FOR)?;
            self.edit_once(&mut random)?;
        }
        self.detach_all()?;
        match &self.objects {
            // Copies of objects cannot move yet.
            Some(pool) if !pool.plan.may_move() => Ok(()),
            _ => self.move_osd(&mut random),
        }
    }

    /// Edits one key while a client attaches or detaches a volume.
    fn edit_once(&mut self, random: &mut Random) -> Result<(), String> {
        let live = |volume: &usize| self.volumes[*volume].life == Life::Live;
        let live: Vec<usize> = (0..self.volumes.len()).filter(live).collect();
        if !self.clients[0].attached.is_empty() {
            let handles = self.clients[0].to_detach();
            handles.into_iter().try_for_each(|handle| self.detach(0, handle))?;
        } else if !live.is_empty() {
            let volume = *random.pick(&live);
            self.attach_volume(0, volume, false, random.chance(Chance::percent(50)))?;
        }
        self.pass(Duration::from_nanos(random.scale(PAUSE)))?;
        let operation = self.draw_edit(random);
        self.trace.line(format_args!("{:?} by hand: {operation:?}", self.now));
        self.fault("state edited by hand");
        let ends_leading = operation.key() == "leader";
        let steps = self.state.edit(self.now, operation);
        self.schedule_state(steps);
        // A new leader accepts every key that it can decode, and cannot restore the others.
        if ends_leading {
            self.wait_until_whole_for(WHOLE_FOR)?;
        }
        self.operator.jobs.push_back(Job::Undo);
        self.wait("an edit by hand is not undone", |world| {
            let client = &world.clients[0];
            let is_done =
                client.is_settled() && client.has_let_go() && world.operator.jobs.is_empty();
            is_done && world.state.edited().is_none() && world.what_lacks().is_none()
        })
        .map_err(|error| format!("{error}: {:?}", self.state.edited()))
    }

    /// Draws an edit that must be undone.
    fn draw_edit(&self, random: &mut Random) -> Operation {
        let mut kinds: Vec<String> =
            self.state.entries().map(|entry| kind_of(&entry.key).to_string()).collect();
        kinds.dedup();
        let kind = random.pick(&kinds).clone();
        let of_kind = self.state.entries().filter(|entry| kind_of(&entry.key) == kind);
        let of_kind: Vec<_> = of_kind.cloned().collect();
        let (one, other) = (random.pick(&of_kind), random.pick(&of_kind));
        let put = |key: &str, value: &str| Operation::Put {
            key: key.to_string(),
            value: value.to_string(),
            lease: None,
        };
        match random.below(5) {
            // Deleting a setting is a legitimate edit: the default takes effect.
            0 if kind != "config" => Operation::Delete { key: one.key.clone() },
            1 => put(&one.key, &other.value[..other.value.len() / 2]),
            2 if one.key != other.key => put(&one.key, &other.value),
            3 => put(random.pick::<&str>(&STRANGERS), "{}"),
            _ => put(&one.key, "{}"),
        }
    }

    /// Edits the host of an OSD, if enough hosts remain. The OSD's PGs move accordingly.
    fn move_osd(&mut self, random: &mut Random) -> Result<(), String> {
        let index = random.index(self.osds.len());
        let host = random.index(self.plan.host_count);
        let before = std::mem::replace(&mut self.osds[index].tree_host, host);
        if self.osds[index].is_gone || self.domain_count_in() < self.plan.position_count() as usize
        {
            self.osds[index].tree_host = before;
            return Ok(());
        }
        let id = self.osds[index].id.expect("it was made");
        let key = format!("osd/{}", id.get());
        let value = self.state.written(&key).ok_or("an OSD without a record")?;
        let mut value: serde_json::Value =
            serde_json::from_str(value).map_err(|error| format!("{key}: {error}"))?;
        value["tree"] = serde_json::json!({ "host": format!("host{host}") });
        let operation = Operation::Put { key, value: value.to_string(), lease: None };
        self.trace.line(format_args!("{:?} by hand: {operation:?}", self.now));
        self.fault("host of an OSD named by hand");
        let steps = self.state.edit(self.now, operation);
        self.schedule_state(steps);
        self.get_whole(WHOLE_FOR)
    }
}

/// Returns the first part of a key.
fn kind_of(key: &str) -> &str {
    key.split('/').next().unwrap_or(key)
}
