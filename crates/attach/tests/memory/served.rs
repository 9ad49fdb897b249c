//! Serves the cluster in memory over real sockets: one thread each for its monitor and its OSD.

use base::{ClusterId, Incarnation, MonitorId, OsdId};
use format::door::{NetEffect, NetEvent, Peer, Role};
use format::wire::{Message, Reply};
use io::{ClusterKey, Options, Reactor, Trust};

use super::memory::{MemoryMonitor, MemoryOsd};

/// The cluster's id.
pub const CLUSTER: ClusterId = ClusterId::new(0xa51);
/// The cluster's key.
pub const KEY: [u8; 32] = [7; 32];

/// Starts the cluster with one volume, `disk`, of this size. The cluster runs until the process ends.
pub fn start(size: u64, monitor: String, osd: String) {
    let osd_address = osd.clone();
    std::thread::spawn(move || run_osd(&osd));
    std::thread::spawn(move || run_monitor(size, &monitor, &osd_address));
}

fn run_monitor(size: u64, address: &str, osd_address: &str) {
    let mut monitor = MemoryMonitor::new(size, osd_address);
    serve(reactor(Role::Monitor(MonitorId::FIRST), address), |message, _| {
        let Message::Control(text) = message else { panic!("not for monitors") };
        let answer = monitor.answer(serde_json::from_str(&text).expect("it is ours"))?;
        Some(Message::Control(serde_json::to_string(&answer).expect("JSON")))
    });
}

fn run_osd(address: &str) {
    let mut osd = MemoryOsd::default();
    let role = Role::Osd(OsdId::FIRST, Incarnation::new(1));
    serve(reactor(role, address), |message, reactor| {
        let Message::Request(request) = message else { panic!("not for OSDs") };
        let outcome = osd.execute(&request.op, reactor.pool());
        let (session, sequence) = (request.session, request.sequence);
        Some(Message::Reply(Reply { session, sequence, outcome }))
    });
}

fn reactor(role: Role, address: &str) -> Reactor {
    let mut reactor = Reactor::new(Options::default()).expect("io_uring works");
    let peer = Peer { cluster: CLUSTER, role };
    reactor.set_trust(Trust { key: ClusterKey::from_bytes(KEY), peer });
    reactor.listen(address).expect("the folder is writable");
    reactor
}

/// Answers each message of each connection with `answer`, for ever.
fn serve(mut reactor: Reactor, mut answer: impl FnMut(Message, &Reactor) -> Option<Message>) {
    let mut events = Vec::new();
    loop {
        reactor.turn(None, &mut events).expect("io_uring works");
        for event in events.drain(..) {
            if let io::Event::Net(NetEvent::Received { connection, message }) = event
                && let Some(message) = answer(message, &reactor)
            {
                reactor.net(NetEffect::Send { connection, message });
            }
        }
    }
}
