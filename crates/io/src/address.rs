//! Addresses in text form: `tcp:HOST:PORT`, `tcp:[IPv6]:PORT`, `unix:PATH`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix};

use crate::Error;

/// An address to listen on or to connect to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Address {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// A host name and port, `HOST:PORT`; the name is not resolved yet.
    Name(String),
    /// A path in the file system.
    Unix(String),
}

impl Address {
    /// Parses the text form without resolving host names.
    pub(crate) fn parse(text: &str) -> Result<Address, Error> {
        let wrong =
            || Error(format!("{text:?} is not an address: write tcp:HOST:PORT or unix:PATH"));
        match text.split_once(':').ok_or_else(wrong)? {
            ("unix", path) if !path.is_empty() && !path.contains('\0') => {
                Ok(Address::Unix(path.to_string()))
            }
            ("tcp", place) => {
                if let Ok(address) = place.parse() {
                    return Ok(Address::Tcp(address));
                }
                let (host, port) = place.rsplit_once(':').ok_or_else(wrong)?;
                let port: u16 = port.parse().map_err(|_| wrong())?;
                match host {
                    "" => Err(wrong()),
                    "localhost" => {
                        Ok(Address::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)))
                    }
                    _ => Ok(Address::Name(place.to_string())),
                }
            }
            _ => Err(wrong()),
        }
    }

    /// Resolves a host name; this blocks, possibly for seconds.
    pub(crate) fn resolve(self) -> Result<Address, Error> {
        let Address::Name(name) = self else { return Ok(self) };
        let mut found = name.to_socket_addrs().map_err(|error| Error::new(&name, error))?;
        let first =
            found.next().ok_or_else(|| Error::new(&name, "the host name has no address"))?;
        Ok(Address::Tcp(first))
    }

    /// Returns the address family and socket address for the kernel. Requires: `self` is not
    /// [`Address::Name`].
    pub(crate) fn to_socket(&self) -> Result<(AddressFamily, SocketAddrAny), Error> {
        match self {
            Address::Tcp(SocketAddr::V4(v4)) => Ok((AddressFamily::INET, (*v4).into())),
            Address::Tcp(SocketAddr::V6(v6)) => Ok((AddressFamily::INET6, (*v6).into())),
            Address::Unix(path) => {
                let address = SocketAddrUnix::new(path.as_str())
                    .map_err(|error| Error::new(format!("unix:{path}"), error))?;
                Ok((AddressFamily::UNIX, address.into()))
            }
            Address::Name(name) => unreachable!("{name} was to be looked up first"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let tcp = |text: &str| Address::Tcp(text.parse().expect("an IP address and port"));
        assert_eq!(Address::parse("tcp:127.0.0.1:80"), Ok(tcp("127.0.0.1:80")));
        assert_eq!(Address::parse("tcp:localhost:0"), Ok(tcp("127.0.0.1:0")));
        assert_eq!(Address::parse("tcp:[::1]:80"), Ok(tcp("[::1]:80")));
        assert_eq!(Address::parse("tcp:mon.a:80"), Ok(Address::Name("mon.a:80".into())));
        assert_eq!(Address::parse("unix:/x/y"), Ok(Address::Unix("/x/y".into())));
    }

    #[test]
    fn garbage_is_not_an_address() {
        for text in ["", "tcp", "tcp:", "tcp:host", "tcp::1", "tcp:a:99999", "unix:", "udp:a:1"] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
        assert!(Address::parse("unix:a\0b").is_err());
        let long = Address::Unix("x".repeat(200));
        assert!(long.to_socket().is_err());
    }
}
