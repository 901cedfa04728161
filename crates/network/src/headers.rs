//! Header offsets of a frame, and addresses.

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use std::net::IpAddr;

/// A MAC address.
pub type Mac = [u8; 6];

/// Size of an Ethernet header in bytes.
pub const ETHERNET: usize = 14;

/// Transport protocols that are distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// The headers of a frame with an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Offset of the IP header.
    pub ip: usize,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// End of the IP packet: the bytes after it are padding.
    pub end: usize,
    /// Transport header, if the packet is unfragmented or a first fragment, and the header is complete.
    pub transport: Option<TransportHeader>,
}

/// A transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportHeader {
    /// Protocol.
    pub kind: Transport,
    /// Offset of the header.
    pub at: usize,
    /// Offset of the payload.
    pub payload: usize,
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
}

impl Headers {
    /// Returns the headers of a frame, or `None` if it contains no IP packet.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let packet = LaxSlicedPacket::from_ethernet(frame).ok()?;
        let at = |part: &[u8]| (part.as_ptr() as usize).wrapping_sub(frame.as_ptr() as usize);
        let (header, payload, fragment, source, destination) = match packet.net.as_ref()? {
            LaxNetSlice::Ipv4(ip) => {
                let header = ip.header();
                let addresses = (header.source_addr().into(), header.destination_addr().into());
                (at(header.slice()), ip.payload(), ip.is_payload_fragmented(), addresses.0, addresses.1)
            }
            LaxNetSlice::Ipv6(ip) => {
                let header = ip.header();
                let addresses = (header.source_addr().into(), header.destination_addr().into());
                (at(header.slice()), ip.payload(), ip.is_payload_fragmented(), addresses.0, addresses.1)
            }
            LaxNetSlice::Arp(_) => return None,
        };
        let start = at(payload.payload);
        let end = start.checked_add(payload.payload.len()).filter(|end| *end <= frame.len())?;
        let transport = match packet.transport.as_ref().filter(|_| !fragment) {
            Some(TransportSlice::Tcp(tcp)) => Some(TransportHeader {
                kind: Transport::Tcp,
                at: start,
                payload: start + tcp.header_slice().len(),
                source: tcp.source_port(),
                destination: tcp.destination_port(),
            }),
            Some(TransportSlice::Udp(udp)) => Some(TransportHeader {
                kind: Transport::Udp,
                at: start,
                payload: start + udp.header_slice().len(),
                source: udp.source_port(),
                destination: udp.destination_port(),
            }),
            _ => None,
        };
        Some(Self { ip: header, source, destination, end, transport })
    }
}

/// Returns the destination and source MAC address of a frame.
pub fn macs(frame: &[u8]) -> Option<(Mac, Mac)> {
    Some((frame.get(..6)?.try_into().ok()?, frame.get(6..12)?.try_into().ok()?))
}

/// Returns true for a group (multicast) address.
pub fn is_group(mac: Mac) -> bool {
    mac[0] & 1 != 0
}

/// Returns the VLAN in a frame's tag, if there is one.
pub fn vlan(frame: &[u8]) -> Option<u16> {
    let tag = frame.get(12..16)?;
    (tag[..2] == [0x81, 0x00]).then(|| u16::from_be_bytes([tag[2], tag[3]]) & 0xfff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;

    #[test]
    fn headers_are_found() {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .single_vlan(5.try_into().unwrap())
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .udp(1000, 2000)
            .write(&mut frame, b"payload")
            .unwrap();
        frame.resize(64, 0);
        let headers = Headers::of(&frame).unwrap();
        let transport = headers.transport.unwrap();
        assert_eq!((headers.ip, headers.end, transport.at, transport.payload), (18, 53, 38, 46));
        assert_eq!((transport.kind, transport.source, transport.destination), (Transport::Udp, 1000, 2000));
        assert_eq!(headers.source, IpAddr::from([10, 0, 0, 1]));
        assert_eq!((vlan(&frame), macs(&frame)), (Some(5), Some(([4; 6], [2; 6]))));
        for len in 0..frame.len() {
            let cut = Headers::of(&frame[..len]);
            assert!(cut.is_none_or(|headers| headers.end <= len), "{len}");
        }
    }
}
