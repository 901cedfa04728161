//! Receive-side scaling: the Toeplitz hash of a packet's flow.

use crate::headers::{Headers, Transport};
use std::net::IpAddr;

/// Maximum length of a key in bytes.
pub const KEY: usize = 40;

/// Fields of a flow that are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// IPv4 addresses.
    Ip4,
    /// IPv4 addresses and TCP ports.
    Tcp4,
    /// IPv4 addresses and UDP ports.
    Udp4,
    /// IPv6 addresses.
    Ip6,
    /// IPv6 addresses and TCP ports.
    Tcp6,
    /// IPv6 addresses and UDP ports.
    Udp6,
}

/// Returns the hash of a frame, and the hashed fields. `allowed` returns true for fields that may be hashed.
pub fn hash(frame: &[u8], key: &[u8], allowed: impl Fn(Input) -> bool) -> Option<(u32, Input)> {
    let headers = Headers::of(frame)?;
    let v4 = headers.source.is_ipv4();
    let (ip, tcp, udp) = match v4 {
        true => (Input::Ip4, Input::Tcp4, Input::Udp4),
        false => (Input::Ip6, Input::Tcp6, Input::Udp6),
    };
    let with_ports = headers.transport.map(|transport| match transport.kind {
        Transport::Tcp => (tcp, transport),
        Transport::Udp => (udp, transport),
    });
    let with_ports = with_ports.filter(|(input, _)| allowed(*input));
    let mut flow = Vec::with_capacity(36);
    for address in [headers.source, headers.destination] {
        match address {
            IpAddr::V4(address) => flow.extend(address.octets()),
            IpAddr::V6(address) => flow.extend(address.octets()),
        }
    }
    let input = match with_ports {
        Some((input, transport)) => {
            flow.extend(transport.source.to_be_bytes());
            flow.extend(transport.destination.to_be_bytes());
            input
        }
        None => Some(ip).filter(|ip| allowed(*ip))?,
    };
    Some((toeplitz(key, &flow), input))
}

/// Returns the Toeplitz hash: the exclusive or of 32 bits of the key for each set bit of the input, at its position. A
/// short key is padded with zeros.
pub fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let byte = |at: usize| key.get(at).copied().unwrap_or(0);
    let mut window = u32::from_be_bytes([byte(0), byte(1), byte(2), byte(3)]);
    let mut hash = 0;
    for (at, value) in input.iter().enumerate() {
        let next = byte(at + 4);
        for bit in (0..8).rev() {
            if value >> bit & 1 != 0 {
                hash ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    hash
}

/// Returns a hash that is equal for both directions of a flow, for NICs that return a flow's frames to the queue of its
/// sender.
pub fn symmetric(frame: &[u8]) -> Option<u32> {
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x6d, 0x5a, 0x6d, 0x5a, 0x6d, 0x5a, 0x6d, 0x5a, 0x6d, 0x5a, 0x6d, 0x5a, 0x6d, 0x5a, 0x6d, 0x5a,
        0x6d, 0x5a, 0x6d, 0x5a, 0x6d, 0x5a, 0x6d, 0x5a, 0x6d, 0x5a, 0x6d, 0x5a, 0x6d, 0x5a, 0x6d, 0x5a, 0x6d, 0x5a,
        0x6d, 0x5a, 0x6d, 0x5a,
    ];
    // A key with a period of 16 bits gives the same hash for swapped addresses and ports (Woo, Park 2012).
    hash(frame, &KEY, |_| true).map(|(hash, _)| hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;

    /// Microsoft's key and vectors, "Verifying the RSS hash calculation".
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
        0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
        0xbe, 0xac, 0x01, 0xfa,
    ];

    #[test]
    fn the_hash_is_the_published_one() {
        for (source, sport, destination, dport, addresses, ports) in [
            ([66, 9, 149, 187], 2794, [161, 142, 100, 80], 1766, 0x323e_8fc2, 0x51cc_c178),
            ([199, 92, 111, 2], 14230, [65, 69, 140, 83], 4739, 0xd718_262a, 0xc626_b0ea),
        ] {
            let mut frame = Vec::new();
            PacketBuilder::ethernet2([2; 6], [4; 6])
                .ipv4(source, destination, 64)
                .tcp(sport, dport, 0, 0)
                .write(&mut frame, &[])
                .unwrap();
            assert_eq!(hash(&frame, &KEY, |_| true), Some((ports, Input::Tcp4)));
            assert_eq!(hash(&frame, &KEY, |input| input == Input::Ip4), Some((addresses, Input::Ip4)));
            assert_eq!(hash(&frame, &KEY, |input| input == Input::Udp4), None);
        }
    }

    #[test]
    fn the_hash_of_ipv6_is_the_published_one() {
        for (source, sport, destination, dport, addresses, ports) in [
            ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc1_8cd5, 0x4020_7d3d),
            ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c_461c, 0xdde5_1bbf),
        ] {
            let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
            let ip = || PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6(address(source), address(destination), 64);
            let (mut tcp, mut udp) = (Vec::new(), Vec::new());
            ip().tcp(sport, dport, 0, 0).write(&mut tcp, &[]).unwrap();
            ip().udp(sport, dport).write(&mut udp, &[]).unwrap();
            assert_eq!(hash(&tcp, &KEY, |_| true), Some((ports, Input::Tcp6)));
            assert_eq!(hash(&udp, &KEY, |_| true), Some((ports, Input::Udp6)));
            assert_eq!(hash(&udp, &KEY, |input| input != Input::Udp6), Some((addresses, Input::Ip6)));
        }
    }

    #[test]
    fn a_short_key_ends_with_zeros() {
        for (key, input, expected) in [
            (&[][..], [0xff, 0xff], 0),
            (&[0x80], [0x80, 0], 0x8000_0000),
            (&[0, 0, 0, 1], [1, 1], 0x8080),
            (&[0, 0, 0, 0, 0x81], [0, 0x81], 0x4001),
        ] {
            assert_eq!(toeplitz(key, &input), expected, "{key:x?}");
        }
    }

    #[test]
    fn both_directions_of_a_flow_have_one_symmetric_hash() {
        let frame = |source, sport, destination, dport| {
            let mut frame = Vec::new();
            let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(source, destination, 64).udp(sport, dport);
            builder.write(&mut frame, &[1]).unwrap();
            symmetric(&frame)
        };
        let there = frame([10, 0, 0, 1], 1000, [10, 0, 0, 2], 2000);
        assert_eq!(there, frame([10, 0, 0, 2], 2000, [10, 0, 0, 1], 1000));
        assert_ne!(there, frame([10, 0, 0, 2], 2001, [10, 0, 0, 1], 1000));
    }
}
