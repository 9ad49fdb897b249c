//! Addresses that daemons listen on.

/// The syntax of a listen address, for help texts.
pub const LISTEN: &str = "unix:PATH|tcp:[HOST]:PORT";

/// Parses a listen address. Without a host, the loopback address is used, so that no other machine can
/// connect.
pub fn parse_listen(text: &str) -> Result<String, String> {
    let wrong =
        || format!("{text:?} is not an address to listen on: write tcp:[HOST]:PORT or unix:PATH");
    match text.split_once(':').ok_or_else(wrong)? {
        ("unix", path) if !path.is_empty() => Ok(text.to_owned()),
        ("tcp", rest) => {
            let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
            let port: u16 = port.parse().map_err(|_| wrong())?;
            let host = if host.is_empty() { "127.0.0.1" } else { host };
            Ok(format!("tcp:{host}:{port}"))
        }
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_without_a_host_listens_on_loopback() {
        let listen = |text: &str| parse_listen(text).ok();
        assert_eq!(listen("tcp::10809").as_deref(), Some("tcp:127.0.0.1:10809"));
        for text in ["tcp:0.0.0.0:10809", "tcp:[::1]:0", "tcp:host:1", "unix:nbd.sock"] {
            assert_eq!(listen(text).as_deref(), Some(text));
        }
        for text in ["", "tcp", "tcp:10809", "10809", "tcp::99999", "tcp:host:", "unix:", "udp::1"]
        {
            assert_eq!(listen(text), None, "{text}");
        }
    }
}
