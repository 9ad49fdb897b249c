//! Code that all daemons share: the error for a reactor that fails, and listening on addresses.

use base::TraceEvent;
use cluster::map::ADDRESS_COUNT_MAX;
use cluster::message::Failure;
use io::{Network, Reactor};

use crate::output::failure;

/// Returns the error with which a daemon exits if its reactor fails.
pub fn no_reactor(error: std::io::Error) -> Failure {
    let hint = "use Linux 6.1 or newer and allow io_uring: sysctl kernel.io_uring_disabled=0";
    failure("io_uring", format!("io_uring does not work: {error}"), hint)
}

/// Returns the addresses of this host in the given networks, with `port`.
pub fn listen_places(networks: &[String], port: u16) -> Result<Vec<String>, Failure> {
    let hint = "correct `networks` and `osd_networks` in cluster.toml";
    let parsed: Result<Vec<Network>, io::Error> =
        networks.iter().map(|text| Network::parse(text)).collect();
    let parsed = parsed.map_err(|error| failure("invalid", error.to_string(), hint))?;
    let here = io::local_addresses();
    let here =
        here.map_err(|error| failure("io", error.to_string(), "check that /proc is mounted"))?;
    let mut chosen = Network::choose(&parsed, &here);
    if chosen.is_empty() {
        let message = format!("this host has no address in {}", networks.join(", "));
        return Err(failure("no_address", message, hint));
    }
    if chosen.len() > ADDRESS_COUNT_MAX {
        let left_out: Vec<String> =
            chosen.drain(ADDRESS_COUNT_MAX..).map(|a| a.to_string()).collect();
        let what =
            "not listening on all addresses: list fewer or smaller `networks` in cluster.toml";
        let event = TraceEvent::warn(what).number("announced_max", ADDRESS_COUNT_MAX as u64);
        io::log::write(&event.list("left_out", left_out));
    }
    let place = |address| format!("tcp:{}", std::net::SocketAddr::new(address, port));
    Ok(chosen.into_iter().map(place).collect())
}

/// Listens on each of the addresses that this host has, and returns the bound addresses. Fails if it can
/// listen on none.
pub fn listen_at(reactor: &mut Reactor, places: &[String]) -> Result<Vec<String>, Failure> {
    let mut addresses = Vec::new();
    let mut refused = None;
    for place in places {
        match reactor.listen(place) {
            Ok(address) => addresses.push(address),
            Err(error) => {
                io::log::write(&TraceEvent::warn("cannot listen").with("why", &error));
                refused = Some(error);
            }
        }
    }
    match refused {
        Some(error) if addresses.is_empty() => {
            let hint =
                "check that this host has the address and that no other process listens on it";
            Err(failure("io", error.to_string(), hint))
        }
        _ => Ok(addresses),
    }
}
