//! A pool of 4+2 on twelve OSDs of 1 GiB takes writes of whole blocks and whole stripes.
//!
//! Each primary of a PG with parity needs room for prepared versions in the journal of every member. A journal of
//! 16 MiB, which a store of 1 GiB has, must be enough for twelve of them, with no write refused for lack of it.

use base::{BlockSize, MIB, Scheme, UNIT_SIZE};
use cluster::map::FailureDomain;

use super::client::Handle;
use super::plan::{Plan, Pools};
use super::volume_model::{Shape, Volume};
use super::world::{Stage, WHOLE_FOR, World};
use crate::cluster::operator::Job;
use crate::outcome::Run;
use crate::random::Chance;

const OSD_COUNT: usize = 12;
const OSD_SIZE: u64 = 1024 * MIB;
const SCHEME: Scheme = Scheme::ReedSolomon { data: 4, parity: 2 };
/// What `pool create` chooses for so many OSDs.
const PG_COUNT: u32 = 64;
const VOLUME_COUNT: usize = 2;
const VOLUME_SIZE: u64 = 24 * MIB;
/// The number of writes in flight per volume.
const DEPTH: usize = 16;

fn plan(plan: &mut Plan) {
    (plan.osd_count, plan.host_count, plan.client_count) = (OSD_COUNT, OSD_COUNT, VOLUME_COUNT);
    (plan.osd_size, plan.journal_size) = (OSD_SIZE, OSD_SIZE / 64);
    plan.checkpoint_after_bytes = plan.journal_size / 4;
    (plan.scheme, plan.min_size) = (SCHEME, SCHEME.min_size_default());
    (plan.block_size, plan.pg_count) = (BlockSize::DEFAULT, PG_COUNT);
    plan.failure_domain = FailureDomain::Osd;
    plan.volume_units = VOLUME_SIZE / UNIT_SIZE;
    (plan.slow_disk, plan.patience, plan.prefills) = (Chance::NEVER, None, false);
    (plan.has_small_limits, plan.clocks_drift) = (false, false);
    plan.weather = plan.weather.calm();
}

/// Writes whole stripes, then whole blocks, and removes the volumes. Returns the number of writes; an error,
/// if one was refused.
pub fn run(seed: u64) -> Result<u64, String> {
    let mut world = World::planned(Run { seed, verbose: false }, Pools::Parity, plan);
    world.objects = None;
    world.net.old_processes.clear();
    world.build()?;
    // Users do nothing by themselves.
    world.stage = Stage::End;
    let mut attached = Vec::new();
    for index in 0..VOLUME_COUNT {
        attached.push(world.attach_fresh_volume(index)?);
    }
    let block = BlockSize::DEFAULT.bytes();
    let stripe = block * u64::from(SCHEME.data_count());
    let mut count = 0;
    for size in [stripe, block] {
        count += world.write_all_in(&attached, size)?;
    }
    world.get_whole(WHOLE_FOR)?;
    world.detach_all()?;
    world.plan_removal_of_all();
    world.wait("volumes cannot be removed, or leave something behind", |world| {
        world.operator.jobs.is_empty()
    })?;
    Ok(count)
}

impl World {
    fn attach_fresh_volume(&mut self, index: usize) -> Result<Handle, String> {
        let shape = Shape::new(self.plan.scheme, self.plan.block_size, self.plan.pg_count);
        let (seed, units) = (index as u64 + 1, self.plan.volume_units);
        self.volumes.push(Volume::new(format!("v{index}"), seed, units, shape));
        self.operator.jobs.push_back(Job::Create(index));
        self.wait("a volume is never created", |world| world.operator.jobs.is_empty())?;
        let attached = self.attach_for(index, index, Some(true))?;
        attached.ok_or_else(|| "the volume cannot be attached".to_string())
    }

    /// Writes the volumes once, in pieces of this size, many at a time. Returns the number of writes. A
    /// refused
    /// write is an error, since the volumes are smaller than the disks.
    fn write_all_in(&mut self, attached: &[Handle], size: u64) -> Result<u64, String> {
        let (pieces, end) = (size / 512, VOLUME_SIZE / 512);
        let mut count = 0;
        let mut next = vec![0; attached.len()];
        while next.iter().any(|next| *next < end) {
            for (to, next) in attached.iter().zip(&mut next) {
                while *next < end && self.clients[to.client].open.len() < DEPTH {
                    self.ask_write(to.client, to.handle, to.volume, *next..*next + pieces)?;
                    *next += pieces;
                    count += 1;
                }
            }
            self.step()?;
        }
        self.wait("a write is never answered", |world| {
            world.clients.iter().all(|client| client.open.is_empty())
        })?;
        Ok(count)
    }
}
