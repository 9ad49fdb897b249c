//! Fuzz test of a cluster whose processes die, pause and are cut off, and whose peers send arbitrary
//! messages. Checks that no acknowledged data is lost, that no read returns stale data, and that no message
//! breaks a node.
//!
//! Each stripe has one counter; each write stores the next value. A read must return at least the highest
//! value that was acknowledged or read before the read was sent. This check is valid only if writes take
//! effect in the order of their values. So the test never sends a write that could overtake another write to
//! the same stripe: a write in the epoch that its host still serves would overtake a write that carries the
//! next epoch and waits for the map. (The simulator checks this and more, but is slower: this test applies a
//! few rules to every message of every seed.)

use std::collections::BTreeMap;

use base::{BlockSize, ConnectionId, Duration, Epoch, Incarnation, MapRevision, PgId, Version};
use blockstore::BlockKey;
use cluster::message::Need;
use format::door::{NetEvent, Peer, Role};
use format::wire::{
    Activation, Change, Content, EngineState, Filling, LeaseMessage, Message, Outcome, PeerBody,
    PeerMessage, RoomClaim, RoomOffer,
};

use crate::Event;
use crate::node_fuzz::Random;
use crate::tests::cluster_rig::*;
use crate::tests::rig::*;

const HOSTS: usize = 3;
const STRIPES: u32 = 6;

/// An unanswered request.
enum Open {
    Write { stripe: u32, value: u8, host: usize, epoch: Epoch },
    Read { stripe: u32, at_least: u8 },
}

struct Run {
    cluster: Cluster,
    random: Random,
    /// Indexed by stripe: the last value written, and the lowest value that a read may return.
    last: [u8; STRIPES as usize],
    floor: [u8; STRIPES as usize],
    open: BTreeMap<u64, Open>,
    strangers: Vec<(usize, ConnectionId)>,
    stranger_next: u64,
    acknowledged: u64,
    read: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        Run {
            cluster: Cluster::serving(2 + seed as usize % 2),
            random: Random::new(seed),
            last: [0; STRIPES as usize],
            floor: [0; STRIPES as usize],
            open: BTreeMap::new(),
            strangers: Vec::new(),
            stranger_next: 2_000_001,
            acknowledged: 0,
            read: 0,
        }
    }

    fn is_alive(&self, host: usize) -> bool {
        self.cluster.hosts[host].node.is_some() && !self.cluster.hosts[host].is_still
    }

    /// Updates the PG's map entry as a monitor would, given the hosts that are up.
    fn update_entry(&mut self) {
        let entry = &self.cluster.entry;
        let index = |member: &format::wire::Member| member.osd.get() as usize - 1;
        let before: Vec<usize> = entry.acting().map(index).collect();
        let learners_before: Vec<usize> = entry.learning().map(index).collect();
        let failed = self.cluster.needs_of_epoch();
        let has_failed = |host: &usize| {
            let is_it = |need: &Need| matches!(need, Need::Failed(m, _) if index(m) == *host);
            failed.iter().any(is_it)
        };
        let mut acting: Vec<usize> =
            before.iter().copied().filter(|host| self.is_alive(*host)).collect();
        if acting.len() > 1 {
            acting.retain(|host| !has_failed(host));
        }
        if acting.is_empty() {
            acting = before.clone();
        }
        let mut learners: Vec<usize> = (0..HOSTS).collect();
        learners.retain(|host| !acting.contains(host) && self.is_alive(*host) && !has_failed(host));
        let is_other_run = |member: &format::wire::Member| {
            self.cluster.runs(index(member)) != member.incarnation.get()
        };
        let has_restarted = entry.members().any(is_other_run);
        let is_given_up = !failed.is_empty();
        if acting != before || learners != learners_before || has_restarted || is_given_up {
            self.cluster.set_entry(&acting, &learners);
        }
    }

    fn ask(&mut self) {
        let stripe = self.random.below(STRIPES);
        let slot = stripe as usize;
        let primary = self.cluster.entry.primary_osd().map(|osd| osd.get() as usize - 1);
        let host = match self.random.below(8) {
            0 => self.random.below(HOSTS as u32) as usize,
            _ => primary.unwrap_or(0),
        };
        if self.cluster.hosts[host].node.is_none() {
            return;
        }
        let back = u32::from(self.random.below(10) == 0);
        let epoch = Epoch::new(self.cluster.entry.epoch.get().saturating_sub(back));
        let in_order = |open: &Open| match open {
            Open::Write { stripe: of, host: at, epoch: in_epoch, .. } => {
                *of != stripe || (*at, *in_epoch) == (host, epoch)
            }
            Open::Read { .. } => true,
        };
        let may_write = self.last[slot] < 250 && self.open.values().all(in_order);
        if self.random.below(3) > 0 && may_write {
            self.last[slot] += 1;
            let value = self.last[slot];
            let op = write_in(place(1, stripe), 0, 1, value);
            let sequence = self.cluster.send_in(host, epoch, op);
            self.open.insert(sequence, Open::Write { stripe, value, host, epoch });
        } else {
            let at_least = self.floor[slot];
            let op = format::wire::Op::Read {
                place: place(1, stripe),
                offset: 0,
                length: UNIT,
                parents: Vec::new(),
            };
            let sequence = self.cluster.send_in(host, epoch, op);
            self.open.insert(sequence, Open::Read { stripe, at_least });
        }
        self.look_at_replies();
    }

    fn look_at_replies(&mut self) {
        for (sequence, outcome) in std::mem::take(&mut self.cluster.replies) {
            let Some(open) = self.open.remove(&sequence) else { panic!("answered twice") };
            match (open, outcome) {
                (Open::Write { stripe, value, .. }, Ok(Outcome::Written { .. })) => {
                    let floor = &mut self.floor[stripe as usize];
                    *floor = value.max(*floor);
                    self.acknowledged += 1;
                }
                (Open::Read { stripe, at_least }, Ok(outcome)) => {
                    let value = bytes_of(Ok(outcome)).first().copied().unwrap_or(0);
                    let last = self.last[stripe as usize];
                    assert!(
                        (at_least..=last).contains(&value),
                        "stripe {stripe}: read {value}, at least {at_least}, at most {last}"
                    );
                    let floor = &mut self.floor[stripe as usize];
                    *floor = value.max(*floor);
                    self.read += 1;
                }
                (_, Err(_)) => {}
                (Open::Write { .. }, other) => panic!("{other:?}"),
            }
        }
    }

    fn harm(&mut self) {
        let host = self.random.below(HOSTS as u32) as usize;
        let other = (host + 1) % HOSTS;
        let count_alive = (0..HOSTS).filter(|host| self.is_alive(*host)).count();
        match self.random.below(8) {
            0 | 1 if count_alive > 1 && self.cluster.hosts[host].node.is_some() => {
                self.cluster.kill(host);
                // Writes that the host had not started never take effect; writes that it had started already
                // have versions.
                self.open
                    .retain(|_, open| !matches!(open, Open::Write { host: at, .. } if *at == host));
            }
            2 if count_alive > 1 && self.is_alive(host) => self.cluster.hosts[host].is_still = true,
            3 => self.cluster.break_wires(host, other),
            4 => self.cluster.part(host, other),
            5 => self.cluster.hosts[host].is_deaf = true,
            _ => self.heal(host),
        }
    }

    fn heal(&mut self, host: usize) {
        if self.cluster.hosts[host].node.is_none() {
            self.cluster.start(host);
        }
        if self.cluster.hosts[host].is_still {
            self.cluster.go_on(host);
        }
        self.cluster.mend();
        if self.cluster.hosts[host].is_deaf {
            self.cluster.hosts[host].is_deaf = false;
            self.cluster.publish();
        }
    }

    fn step(&mut self) {
        match self.random.below(30) {
            0 | 1 => self.harm(),
            2 | 3 => self.update_entry(),
            4 => {
                let host = self.random.below(HOSTS as u32) as usize;
                self.heal(host);
            }
            5..=8 => {
                let span = 1 + self.random.below(400);
                self.cluster.advance(u64::from(span));
            }
            _ => self.ask(),
        }
        self.look_at_replies();
    }

    /// Ends all faults, and checks that all acknowledged data is present and identical on all members.
    fn check(&mut self) {
        for host in 0..HOSTS {
            self.heal(host);
        }
        for _ in 0..40 {
            self.update_entry();
            self.cluster.advance(1_000);
            self.look_at_replies();
            let is_whole = self.cluster.entry.learners.is_empty();
            if is_whole && self.cluster.entry.acting_count() == HOSTS {
                break;
            }
        }
        let primary = self.cluster.entry.primary_osd().unwrap().get() as usize - 1;
        assert_eq!(
            self.cluster.entry.acting_count(),
            HOSTS,
            "{:?}: {:?}",
            self.cluster.entry,
            self.cluster.report(primary)
        );
        assert!(self.cluster.is_served(primary), "{:?}", self.cluster.report(primary));
        for stripe in 0..STRIPES {
            let op = format::wire::Op::Read {
                place: place(1, stripe),
                offset: 0,
                length: UNIT,
                parents: Vec::new(),
            };
            let value = self.cluster.read_bytes(primary, op).first().copied().unwrap_or(0);
            let slot = stripe as usize;
            assert!((self.floor[slot]..=self.last[slot]).contains(&value), "stripe {stripe}");
        }
        for host in 0..HOSTS {
            assert_eq!(self.cluster.blocks(host), self.cluster.blocks(primary), "host {host}");
            assert_eq!(self.cluster.hosts[host].stopped, None);
        }
        self.cluster.advance(20_000);
        self.look_at_replies();
        for host in 0..HOSTS {
            assert!(self.cluster.hosts[host].node().is_idle());
        }
    }

    /// Sends a message of any kind, over any connection.
    fn lie(&mut self) {
        let host = self.random.below(HOSTS as u32) as usize;
        if !self.is_alive(host) {
            return;
        }
        let message = match self.random.below(4) {
            0 => Message::Lease(Box::new(self.lease())),
            _ => {
                let pg = match self.random.below(10) {
                    0 => PgId { number: self.random.below(5), ..PG },
                    _ => PG,
                };
                let epoch = self.cluster.entry.epoch.get();
                let epoch = Epoch::new((epoch + self.random.below(3)).saturating_sub(1));
                let body = self.body();
                Message::Peer(Box::new(PeerMessage { pg, epoch, body }))
            }
        };
        let wires = self.cluster.wires_at(host);
        let connection = match self.random.below(3) {
            0 if !wires.is_empty() => wires[self.random.below(wires.len() as u32) as usize],
            _ => self.stranger(host),
        };
        self.cluster.give(host, Event::Net(NetEvent::Received { connection, message }));
        self.cluster.pump();
    }

    fn stranger(&mut self, host: usize) -> ConnectionId {
        let open = &mut self.strangers;
        let cluster = &self.cluster;
        open.retain(|(host, id)| {
            cluster.hosts[*host].node.as_ref().is_some_and(|node| node.peer_connections.has(*id))
        });
        let known = open.iter().find(|(at, _)| *at == host);
        if let Some((_, connection)) = known.filter(|_| self.random.below(2) > 0) {
            return *connection;
        }
        self.stranger_next += 2;
        let connection = ConnectionId::new(self.stranger_next);
        let from = self.random.below(4) as usize;
        let incarnation = Incarnation::new(u64::from(self.random.below(3)));
        let peer = Peer { cluster: CLUSTER, role: Role::Osd(osd(from), incarnation) };
        self.cluster.give(host, Event::Net(NetEvent::Accepted { connection, peer }));
        self.strangers.push((host, connection));
        connection
    }

    fn lease(&mut self) -> LeaseMessage {
        let stamp = u64::from(self.random.below(200));
        match self.random.below(3) {
            0 => LeaseMessage::Renew {
                stamp,
                revisions: vec![(POOL, MapRevision::new(stamp))],
                leads: self.random.below(4) > 0,
                begun_bytes: u64::from(self.random.below(4)) << 20,
                owed_bytes: u64::from(self.random.below(2)) * u64::MAX,
                room: (self.random.below(2) == 0).then(|| RoomClaim {
                    begun_bytes: u64::from(self.random.below(4)) << 14,
                    owed_bytes: u64::from(self.random.below(2)) * u64::MAX,
                }),
            },
            1 => LeaseMessage::Surrender,
            _ => LeaseMessage::Granted {
                stamp,
                valid_ms: self.random.below(2) * 1_000,
                lost: vec![(PG, Epoch::new(self.random.below(60)))],
                is_full: self.random.below(2) == 0,
                engine: EngineState {
                    is_lagging: self.random.below(8) == 0,
                    is_full: self.random.below(8) == 0,
                    is_low: self.random.below(8) == 0,
                },
                limit_bytes: stamp << 20,
                share_bytes: stamp << 18,
                largest_bytes: stamp << 18,
                room: (self.random.below(2) == 0).then_some(RoomOffer {
                    limit_bytes: stamp << 14,
                    share_bytes: stamp << 12,
                    largest_bytes: stamp << 12,
                }),
            },
        }
    }

    fn version(&mut self) -> Version {
        let epoch = Epoch::new(self.random.below(self.cluster.entry.epoch.get() + 2));
        Version { epoch, counter: u64::from(self.random.below(40)) }
    }

    fn key(&mut self) -> BlockKey {
        let place = place(1, self.random.below(STRIPES + 1));
        let hash = base::hash::stripe_hash(place.seed, place.stripe);
        BlockKey { pool: POOL, hash, image: place.image, stripe: place.stripe }
    }

    fn content(&mut self) -> Content {
        let version = self.version();
        let (checksums, data) = fill(1, 3);
        match self.random.below(3) {
            0 => Content::Gone,
            1 => Content::Tombstone { version },
            _ => Content::Block {
                version,
                block_size: BlockSize::MIN,
                units: vec![15],
                written: vec![1],
                damaged: vec![2],
                checksums,
                data: Some(data),
                table: Vec::new(),
            },
        }
    }

    fn filling(&mut self) -> Option<Filling> {
        let (complete, since) = (self.version(), self.version());
        let cursor = (self.random.below(2) == 0).then(|| self.key());
        let whole = vec![self.key()];
        let listing = self.random.below(2) == 0;
        (self.random.below(2) == 0).then_some(Filling { complete, cursor, since, whole, listing })
    }

    fn change(&mut self) -> Change {
        let (mut checksums, data) = fill(1 + self.random.below(2), 3);
        checksums.truncate(1 + self.random.below(2) as usize);
        match self.random.below(3) {
            0 => Change::Write { offset: self.random.below(5) * UNIT, checksums, data },
            1 => Change::Zero { offset: self.random.below(5) * UNIT, length: UNIT },
            _ => Change::Delete,
        }
    }

    fn body(&mut self) -> PeerBody {
        let call = self.random.below(6);
        let (version, mark) = (self.version(), self.version());
        match self.random.below(18) {
            0 | 1 => PeerBody::Query { revision: MapRevision::new(1) },
            2 => PeerBody::List { call, newer_than: version, after: None },
            3 => PeerBody::Fetch { call, key: self.key(), units: Vec::new(), as_of: None },
            4 => PeerBody::Repair { call, key: self.key(), content: self.content() },
            5 => {
                let history = vec![Activation { epoch: version.epoch, adopted: mark }];
                let filling = self.filling();
                PeerBody::Activate { adopted: version, floor: mark, history, filling }
            }
            6 | 7 => {
                let (key, change) = (self.key(), self.change());
                let (block_size, lazy) = (BlockSize::MIN, self.random.below(2) == 0);
                PeerBody::Write { version, mark, key, block_size, lazy, change }
            }
            8 => {
                let filling = self.filling();
                PeerBody::Progress { call, filling, complete: version, floor: mark }
            }
            9 => PeerBody::Fetched { call, content: self.content() },
            10 => PeerBody::Repaired { call },
            11 => PeerBody::Written { version, durable: self.random.below(2) == 0 },
            12 => PeerBody::Activated,
            13 => PeerBody::Sync { call },
            14 => PeerBody::Synced { call },
            15 => {
                PeerBody::Mark { mark, revision: MapRevision::new(u64::from(self.random.below(4))) }
            }
            16 => PeerBody::Draining,
            _ => PeerBody::Stale(self.cluster.entry.clone()),
        }
    }
}

#[test]
fn what_is_acknowledged_stays_and_nothing_old_is_read() {
    let (mut acknowledged, mut read, mut runs) = (0, 0, 0);
    for seed in base::seeds(1..=60) {
        println!("seed {seed}");
        let mut run = Run::new(seed);
        for _ in 0..300 {
            run.step();
        }
        run.check();
        acknowledged += run.acknowledged;
        read += run.read;
        runs += 1;
    }
    let is_busy = acknowledged > 30 * runs && read > 15 * runs;
    assert!(is_busy, "{acknowledged} writes and {read} reads in {runs} runs");
}

#[test]
fn no_peer_message_crashes_a_node() {
    for seed in base::seeds(1..=60) {
        println!("seed {seed}");
        let mut run = Run::new(seed);
        for _ in 0..300 {
            match run.random.below(40) {
                0 => run.harm(),
                1 => run.update_entry(),
                2 => run.heal(0),
                3 | 4 => run.cluster.advance(100),
                5..=10 => {
                    // Sends writes only: a read would return whatever a lying peer has stored.
                    let op = write_in(place(1, run.random.below(STRIPES)), 0, 1, 1);
                    let host = run.random.below(HOSTS as u32) as usize;
                    run.cluster.send(host, op);
                }
                _ => run.lie(),
            }
        }
        run.cluster.replies.clear();
        for host in 0..HOSTS {
            run.heal(host);
            assert_eq!(run.cluster.hosts[host].stopped, None);
        }
        run.cluster.advance(Duration::from_secs(20).as_millis());
        assert!((0..HOSTS).all(|host| run.cluster.hosts[host].node().is_idle()));
    }
}
