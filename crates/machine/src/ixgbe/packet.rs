//! Parsing of a received frame: packet type, VLAN, checksums, and the fields that identify a flow (82599 datasheet,
//! 7.1.6, 7.1.11).

use super::crc;
use super::sums;
use network::headers::{Headers, Transport, TransportHeader};
use network::{Frame, segment};
use std::net::IpAddr;

/// Packet types in a receive descriptor.
pub mod kind {
    pub const IPV4: u32 = 1 << 0;
    pub const IPV4_EXTENDED: u32 = 1 << 1;
    pub const IPV6: u32 = 1 << 2;
    pub const IPV6_EXTENDED: u32 = 1 << 3;
    pub const TCP: u32 = 1 << 4;
    pub const UDP: u32 = 1 << 5;
    pub const SCTP: u32 = 1 << 6;
    /// The type is the index of an EtherType filter.
    pub const ETHER_TYPE: u32 = 1 << 11;
}

/// Status and error bits of a receive descriptor.
pub mod status {
    pub const DONE: u32 = 1 << 0;
    pub const END: u32 = 1 << 1;
    pub const DIRECTED: u32 = 1 << 2;
    pub const VLAN: u32 = 1 << 3;
    pub const UDP_CHECKSUM: u32 = 1 << 4;
    pub const L4_CHECKED: u32 = 1 << 5;
    pub const IP_CHECKED: u32 = 1 << 6;
    pub const INEXACT: u32 = 1 << 7;
    pub const L4_WRONG: u32 = 1 << 30;
    pub const IP_WRONG: u32 = 1 << 31;
}

/// Protocols above IP.
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const SCTP: u8 = 132;
/// Next-header values after which no IPv6 extension header follows.
const NOT_EXTENSIONS: [u8; 5] = [TCP, UDP, SCTP, 58, 59];

/// EtherTypes.
pub const VLAN: u16 = 0x8100;
const MAC_CONTROL: u16 = 0x8808;

/// Headers of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Packet type of the receive descriptor.
    pub kind: u32,
    /// VLAN tag.
    pub vlan: Option<u16>,
    /// EtherType after the VLAN tag.
    pub ether_type: u16,
    headers: Option<Headers>,
    /// Offset of an SCTP packet.
    sctp: Option<usize>,
}

fn half(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?))
}

/// Returns true if a frame is a pause frame or another MAC control frame.
pub fn is_control(frame: &[u8]) -> bool {
    half(frame, 12) == Some(MAC_CONTROL)
}

impl Packet {
    /// Parses a frame.
    pub fn of(frame: &[u8]) -> Self {
        let outer = half(frame, 12).unwrap_or(0);
        let vlan = half(frame, 14).filter(|_| outer == VLAN);
        let ether_type = if vlan.is_some() { half(frame, 16).unwrap_or(0) } else { outer };
        let headers = Headers::of(frame);
        let mut packet = Self { kind: 0, vlan, ether_type, headers, sctp: None };
        if let Some(headers) = headers {
            packet.classify(frame, &headers);
        }
        packet
    }

    fn classify(&mut self, frame: &[u8], headers: &Headers) {
        let byte = |at: usize| frame.get(headers.ip + at).copied().unwrap_or(0);
        let (protocol, begins, whole) = match headers.source {
            IpAddr::V4(_) => {
                let len = usize::from(byte(0) & 0xf) * 4;
                self.kind = if len > 20 { kind::IPV4_EXTENDED } else { kind::IPV4 };
                let fragment = u16::from_be_bytes([byte(6), byte(7)]) & 0x3fff != 0;
                (byte(9), headers.ip + len, !fragment)
            }
            IpAddr::V6(_) => {
                let extended = !NOT_EXTENSIONS.contains(&byte(6));
                self.kind = if extended { kind::IPV6_EXTENDED } else { kind::IPV6 };
                (byte(6), headers.ip + 40, true)
            }
        };
        self.kind |= match headers.transport.map(|transport| transport.kind) {
            Some(Transport::Tcp) => kind::TCP,
            Some(Transport::Udp) => kind::UDP,
            None if protocol == SCTP && whole && begins + 12 <= headers.end => {
                self.sctp = Some(begins);
                kind::SCTP
            }
            None => 0,
        };
    }

    /// Returns the transport header.
    pub fn transport(&self) -> Option<TransportHeader> {
        self.headers?.transport
    }

    /// Returns the end of the headers to be split off: the last header of the kinds selected in `PSRTYPE`.
    pub fn split(&self, wanted: u32) -> Option<usize> {
        const TCP: u32 = 1 << 4;
        const UDP: u32 = 1 << 5;
        const IPV4: u32 = 1 << 8;
        const IPV6: u32 = 1 << 9;
        const L2: u32 = 1 << 12;
        let headers = self.headers.as_ref();
        let l4 = self.transport().filter(|transport| match transport.kind {
            Transport::Tcp => wanted & TCP != 0,
            Transport::Udp => wanted & UDP != 0,
        });
        let l3 = headers.filter(|headers| wanted & if headers.source.is_ipv4() { IPV4 } else { IPV6 } != 0);
        let ip = |headers: &Headers| headers.transport.map(|transport| transport.at).or(self.sctp);
        let l2 = if self.vlan.is_some() { 18 } else { 14 };
        l4.map(|transport| transport.payload).or_else(|| ip(l3?)).or_else(|| (wanted & L2 != 0).then_some(l2))
    }

    /// Returns the checksum status bits for a frame.
    pub fn checksums(&self, frame: &Frame) -> u32 {
        let Some(headers) = &self.headers else { return 0 };
        let bytes = &frame.bytes;
        let mut bits = 0;
        if headers.source.is_ipv4() {
            let len = usize::from(bytes[headers.ip] & 0xf) * 4;
            let right = bytes.get(headers.ip..headers.ip + len).is_some_and(sums::ip_header_is_right);
            bits |= status::IP_CHECKED | if right { 0 } else { status::IP_WRONG };
        }
        if let Some(transport) = headers.transport {
            let none = transport.kind == Transport::Udp && half(bytes, transport.at + 6) == Some(0);
            if !none {
                let right = frame.checked || segment::is_right(bytes);
                bits |= status::L4_CHECKED | if right { 0 } else { status::L4_WRONG };
                bits |= if transport.kind == Transport::Udp { status::UDP_CHECKSUM } else { 0 };
            }
        } else if let Some(at) = self.sctp {
            let packet = &bytes[at..headers.end];
            let right = crc::sctp(packet).is_some_and(|sum| packet[8..12] == sum);
            bits |= status::L4_CHECKED | if right { 0 } else { status::L4_WRONG };
        }
        bits
    }

    /// Returns the fields by which the Flow Director identifies the flow.
    pub fn flow(&self, frame: &[u8], flex_at: usize) -> Option<Flow> {
        let headers = self.headers.as_ref()?;
        let (l4, source_port, destination_port) = match (headers.transport, self.sctp) {
            (Some(transport), _) => {
                let l4 = if transport.kind == Transport::Udp { 1 } else { 2 };
                (l4, transport.source, transport.destination)
            }
            (None, Some(at)) => (3, half(frame, at)?, half(frame, at + 2)?),
            (None, None) => (0, 0, 0),
        };
        let (source, destination) = (headers.source, headers.destination);
        Some(Flow {
            kind: l4 | if source.is_ipv6() { 4 } else { 0 },
            vlan: self.vlan.unwrap_or(0),
            source,
            destination,
            source_port,
            destination_port,
            flex: half(frame, flex_at).unwrap_or(0),
        })
    }
}

/// Fields that identify a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Protocol: 1 is UDP, 2 TCP, 3 SCTP; IPv6 adds 4.
    pub kind: u8,
    pub vlan: u16,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub source_port: u16,
    pub destination_port: u16,
    /// Two bytes of the frame at an offset that the driver sets.
    pub flex: u16,
}
