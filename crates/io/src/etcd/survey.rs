//! Checks every endpoint, including those that the link does not use now. Otherwise the loss of an unused
//! endpoint would be noticed only when the endpoint of the link is lost too, and a full etcd only when it
//! rejects writes.
//!
//! If there are several endpoints, each is connected to and probed in turn, in the same way as the link. An
//! endpoint that does not answer is probed a second time before it is reported. The metrics page of each
//! etcd gives its used space and its quota; if the page lacks them, no space is reported.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use cluster::state::{EndpointDown, EndpointRoom, Endpoints, StateEvent};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::event_sender::EventSender;
use super::keys::Keys;
use super::link::{FirstCluster, meet};
use super::place::EtcdPlace;

/// Pause between two rounds while all endpoints answer.
const REST_SPAN: Duration = Duration::from_secs(5);
/// Delay before an endpoint that did not answer is probed again.
const AGAIN_SPAN: Duration = Duration::from_secs(1);
/// Interval between two checks of the free space.
const ROOM_SPAN: Duration = Duration::from_secs(60);
/// Time limit for reading the metrics page.
const PAGE_TIME_MAX: Duration = Duration::from_secs(2);
/// Maximum number of bytes that are read from a metrics page; etcd's page has about 100 KiB.
const PAGE_SIZE_MAX: u64 = 4 << 20;
/// An endpoint is reported as nearly full if it uses at least this percentage of its quota.
const NEARLY_FULL_PERCENT: u64 = 80;

/// Reports problems of endpoints whenever they change. Never returns.
pub(super) async fn survey(
    place: Rc<EtcdPlace>,
    keys: Keys,
    cluster: FirstCluster,
    events: Rc<EventSender>,
) {
    let mut down: BTreeMap<String, String> = BTreeMap::new();
    let (mut nearly_full, mut reported_full) = (Vec::new(), Vec::new());
    let mut look_at = Instant::now();
    loop {
        sleep(if down.is_empty() { REST_SPAN } else { AGAIN_SPAN }).await;
        let mut found = BTreeMap::new();
        // A single endpoint is already probed by the link.
        let several = place.endpoints().iter().filter(|_| place.endpoints().len() > 1);
        for endpoint in several {
            let mut answer = meet(endpoint, &keys, &cluster).await;
            if answer.is_err() && !down.contains_key(endpoint) {
                sleep(AGAIN_SPAN).await;
                answer = meet(endpoint, &keys, &cluster).await;
            }
            if let Err(why) = answer {
                found.insert(endpoint.clone(), why);
            }
        }
        // If no endpoint answers, the link reports that.
        if found.len() == place.endpoints().len() {
            continue;
        }
        if look_at <= Instant::now() {
            nearly_full.clear();
            for endpoint in place.endpoints().iter().filter(|it| !found.contains_key(*it)) {
                nearly_full.extend(room_of(endpoint).await.filter(is_nearly_full));
            }
            look_at = Instant::now() + ROOM_SPAN;
        }
        if !found.keys().eq(down.keys()) || nearly_full != reported_full {
            let list = found.iter().map(|(endpoint, why)| EndpointDown {
                endpoint: endpoint.clone(),
                why: why.clone(),
            });
            let (down, nearly_full) = (list.collect(), nearly_full.clone());
            events.send(StateEvent::Endpoints(Endpoints { down, nearly_full }));
        }
        reported_full.clone_from(&nearly_full);
        down = found;
    }
}

fn is_nearly_full(room: &EndpointRoom) -> bool {
    room.used_percent >= NEARLY_FULL_PERCENT
}

/// Returns how much of its quota an endpoint uses, if its metrics page says so.
async fn room_of(endpoint: &str) -> Option<EndpointRoom> {
    let address = endpoint.strip_prefix("http://")?;
    let page = timeout(PAGE_TIME_MAX, metrics_of(address)).await.ok()?.ok()?;
    let (used, size_max) = room_in(&String::from_utf8_lossy(&page))?;
    let used_percent = used.saturating_mul(100) / size_max;
    Some(EndpointRoom { endpoint: endpoint.to_string(), used_percent, size_max })
}

async fn metrics_of(address: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut page = Vec::new();
    stream.take(PAGE_SIZE_MAX).read_to_end(&mut page).await?;
    Ok(page)
}

/// Returns the bytes in use and the quota in bytes. `None` if the page does not give them, or there is no
/// quota.
fn room_in(page: &str) -> Option<(u64, u64)> {
    let number = |name: &str| {
        let mut values = page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        // Prometheus uses floating-point numbers; a whole number of bytes is exact up to 8 PiB.
        let value: f64 = values.next()?.trim().parse().ok()?;
        (value >= 0.0).then_some(value as u64)
    };
    let used = number("etcd_mvcc_db_total_size_in_bytes")?;
    let size_max = number("etcd_server_quota_backend_bytes")?;
    (size_max > 0).then_some((used, size_max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_read_from_the_metrics_page() {
        let page = "HTTP/1.0 200 OK\r\n\r\n# HELP etcd_mvcc_db_total_size_in_bytes Total size.\n\
                    etcd_mvcc_db_total_size_in_bytes_of_others 7\n\
                    etcd_mvcc_db_total_size_in_bytes 1.7179869e+09\n\
                    etcd_server_quota_backend_bytes 2.147483648e+09\n";
        assert_eq!(room_in(page), Some((1_717_986_900, 2 << 30)));
        for (old, new) in [
            ("quota_backend_bytes 2.147483648e+09", "quota_backend_bytes -1"),
            ("quota_backend_bytes 2.147483648e+09", "quota_backend_bytes 0"),
            ("quota_backend_bytes 2.147483648e+09", "quota_backend_bytes many"),
            ("quota_backend_bytes 2.147483648e+09", "quota_backend_bytes NaN"),
            ("etcd_server", "server"),
            ("total_size_in_bytes 1", "size 1"),
        ] {
            assert!(page.contains(old));
            assert_eq!(room_in(&page.replace(old, new)), None, "{new}");
        }
        assert_eq!(room_in(""), None);
    }
}
