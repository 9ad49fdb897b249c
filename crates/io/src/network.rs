//! Networks in CIDR notation (`10.0.0.0/8`, `fd00::/8`), and the addresses of this host in them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Error;

/// A range of IP addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    address: IpAddr,
    /// Number of leading bits that all addresses of the network share.
    bits: u32,
}

impl Network {
    /// Parses `ADDRESS/BITS`. An error is a human-readable sentence.
    pub fn parse(text: &str) -> Result<Network, Error> {
        let wrong = || {
            Error(format!(
                "{text:?} is not a network: write ADDRESS/BITS, for example 10.0.0.0/8 or fd00::/8"
            ))
        };
        let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits: u32 = bits.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if bits > most {
            return Err(wrong());
        }
        Ok(Network { address, bits })
    }

    /// Whether an address is in the network.
    pub fn contains(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(ours), IpAddr::V4(other)) => {
                let differ = u32::from(ours) ^ u32::from(other);
                differ.leading_zeros() >= self.bits
            }
            (IpAddr::V6(ours), IpAddr::V6(other)) => {
                let differ = u128::from(ours) ^ u128::from(other);
                differ.leading_zeros() >= self.bits
            }
            _ => false,
        }
    }

    /// Returns the addresses that are in one of the networks, in the order of the networks.
    ///
    /// Addresses that other hosts cannot connect to (loopback, link-local) are included only for a network
    /// with at least one bit: `0.0.0.0/0` means every address that other hosts can reach.
    pub fn choose(networks: &[Network], addresses: &[IpAddr]) -> Vec<IpAddr> {
        let mut chosen = Vec::new();
        for network in networks {
            let wanted = addresses.iter().filter(|address| {
                network.contains(**address) && (network.bits > 0 || is_reached(**address))
            });
            for address in wanted {
                if !chosen.contains(address) {
                    chosen.push(*address);
                }
            }
        }
        chosen
    }
}

/// Whether other hosts may be able to reach the address.
fn is_reached(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && v6.segments()[0] & 0xffc0 != 0xfe80,
    }
}

/// Returns all addresses of this host's network interfaces that are up, in the kernel's order.
pub fn local_addresses() -> Result<Vec<IpAddr>, Error> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the kernel's answer is written to `first`, which is freed below and not used after.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Error::new("cannot list the addresses of this host", error));
    }
    let mut addresses = Vec::new();
    let mut next = first;
    // SAFETY: each entry of the list is valid until it is freed, and ends with a null pointer.
    while let Some(entry) = unsafe { next.as_ref() } {
        let is_up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        // SAFETY: the list owns the address, which is null or complete for its family.
        if is_up && let Some(address) = unsafe { address_of(entry.ifa_addr) } {
            addresses.push(address);
        }
        next = entry.ifa_next;
    }
    // SAFETY: `getifaddrs` allocated the list, and nothing points into it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(addresses)
}

/// Returns the IP address in a socket address; `None` for other families.
///
/// # Safety
/// `address` is null, or points to a complete socket address of the family in its `sa_family` field.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as the caller promises.
    let family = i32::from(unsafe { address.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: an address of this family is that long.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family is that long.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(networks: &[&str], addresses: &[&str]) -> Vec<String> {
        let networks: Vec<Network> =
            networks.iter().map(|text| Network::parse(text).unwrap()).collect();
        let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        Network::choose(&networks, &addresses).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn addresses_come_in_the_order_of_the_networks_that_name_them() {
        let here = ["127.0.0.1", "192.168.7.1", "10.1.2.3", "::1", "fd00::7", "fe80::1"];
        assert_eq!(chosen(&["10.0.0.0/8", "192.168.0.0/16"], &here), ["10.1.2.3", "192.168.7.1"]);
        assert_eq!(chosen(&["fd00::/8", "10.1.2.3/32"], &here), ["fd00::7", "10.1.2.3"]);
        assert_eq!(chosen(&["10.1.3.0/24", "11.0.0.0/8"], &here), [""; 0]);
        assert_eq!(chosen(&["10.0.0.0/8", "10.1.0.0/16"], &here), ["10.1.2.3"], "once");
    }

    #[test]
    fn the_network_of_all_addresses_means_those_others_can_reach() {
        let here = ["127.0.0.1", "169.254.1.1", "10.1.2.3", "::1", "fe80::1", "fd00::7"];
        assert_eq!(chosen(&["0.0.0.0/0", "::/0"], &here), ["10.1.2.3", "fd00::7"]);
        assert_eq!(chosen(&["127.0.0.0/8"], &here), ["127.0.0.1"]);
    }

    #[test]
    fn garbage_is_not_a_network() {
        for text in ["", "10.0.0.0", "10.0.0.0/33", "fd00::/129", "x/8", "10.0.0.0/x", "/8"] {
            assert!(Network::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn this_host_has_its_loopback_address() {
        let addresses = local_addresses().unwrap();
        assert!(addresses.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)), "{addresses:?}");
    }
}
