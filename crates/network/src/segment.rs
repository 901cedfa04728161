//! Software implementation of NIC offloads: checksums and segmentation.

use crate::frame::{Frame, Kind, LONGEST, Offloads, Segments};
use crate::headers::{Headers, Transport, TransportHeader};
use etherparse::checksum::Sum16BitWords;
use std::net::IpAddr;

/// Maximum number of segments of one packet: 64 KiB in the smallest segments of TCP, 48 bytes, and some reserve.
const MOST: usize = 2048;

/// Flags of TCP, at byte 13 of its header.
mod flag {
    pub const FIN: u8 = 1 << 0;
    pub const PSH: u8 = 1 << 3;
    pub const CWR: u8 = 1 << 7;
}

impl Frame {
    /// Returns the frames for a receiver that accepts these offloads: the frame as it is, or its segments.
    pub fn for_receiver(self, offloads: Offloads) -> Vec<Self> {
        if self.suits(offloads) {
            return vec![self];
        }
        if self.segments.is_some() {
            return self.finish();
        }
        complete(self).into_iter().collect()
    }

    /// Returns the frames as on a wire: segments, with checksums. There is none if the frame is inconsistent.
    pub fn finish(self) -> Vec<Self> {
        match self.segments {
            Some(_) => cut(&self),
            None => complete(self).into_iter().collect(),
        }
    }
}

/// Completes the partial checksum of a frame, if there is one. Returns `None` if it is outside the frame.
pub fn complete(mut frame: Frame) -> Option<Frame> {
    let Some(partial) = frame.partial.take() else { return Some(frame) };
    let start = usize::from(partial.start);
    let at = start + usize::from(partial.offset);
    if at + 2 > frame.bytes.len() {
        return None;
    }
    // The checksum field contains the sum of the pseudo-header, which is therefore included.
    let sum = Sum16BitWords::new().add_slice(&frame.bytes[start..]).ones_complement().to_be();
    // A UDP checksum of zero would mean that there is none.
    let sum = if sum == 0 { 0xffff } else { sum };
    frame.bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    frame.checked = true;
    Some(frame)
}

/// Returns the offset of the checksum in a transport header.
fn checksum_at(transport: &TransportHeader) -> usize {
    transport.at + if transport.kind == Transport::Tcp { 16 } else { 6 }
}

/// Returns the sum of the pseudo-header and the packet from the transport header on.
fn transport_sum(bytes: &[u8], headers: &Headers, transport: &TransportHeader) -> u16 {
    let mut sum = Sum16BitWords::new();
    for address in [headers.source, headers.destination] {
        sum = match address {
            IpAddr::V4(address) => sum.add_4bytes(address.octets()),
            IpAddr::V6(address) => sum.add_16bytes(address.octets()),
        };
    }
    let protocol: u8 = if transport.kind == Transport::Tcp { 6 } else { 17 };
    let len = (headers.end - transport.at) as u32;
    let sum = sum.add_2bytes([0, protocol]).add_4bytes(len.to_be_bytes());
    sum.add_slice(&bytes[transport.at..headers.end]).ones_complement().to_be()
}

/// Returns true if the checksum of a frame's transport header is correct. A frame without a transport header, or
/// without a checksum, has none that is correct.
pub fn is_right(bytes: &[u8]) -> bool {
    let Some(headers) = Headers::of(bytes) else { return false };
    let Some(transport) = headers.transport else { return false };
    let at = checksum_at(&transport);
    let none = transport.kind == Transport::Udp && bytes[at..at + 2] == [0, 0];
    !none && transport_sum(bytes, &headers, &transport) == 0
}

/// Segments a large packet.
pub fn cut(frame: &Frame) -> Vec<Frame> {
    frame.segments.and_then(|segments| pieces(&frame.bytes, segments)).unwrap_or_default()
}

fn pieces(bytes: &[u8], segments: Segments) -> Option<Vec<Frame>> {
    let headers = Headers::of(bytes)?;
    let transport = headers.transport?;
    let fits = match segments.kind {
        Kind::Tcp4 => transport.kind == Transport::Tcp && headers.source.is_ipv4(),
        Kind::Tcp6 => transport.kind == Transport::Tcp && headers.source.is_ipv6(),
        Kind::Udp => transport.kind == Transport::Udp,
    };
    let size = usize::from(segments.size);
    let payload = &bytes[transport.payload..headers.end];
    if !fits || size == 0 || payload.len().div_ceil(size) > MOST || bytes.len() > LONGEST {
        return None;
    }
    let count = payload.len().div_ceil(size).max(1);
    let mut pieces = Vec::with_capacity(count);
    for number in 0..count {
        let part = &payload[number * size..payload.len().min((number + 1) * size)];
        let mut piece = bytes[..transport.payload].to_vec();
        piece.extend_from_slice(part);
        let place = Place { number, last: number + 1 == count, size, ecn: segments.ecn };
        adjust(&mut piece, &headers, &transport, place);
        pieces.push(Frame { bytes: piece, partial: None, segments: None, checked: true });
    }
    Some(pieces)
}

/// Position of a segment in the packet.
struct Place {
    number: usize,
    last: bool,
    size: usize,
    ecn: bool,
}

/// Adapts the headers of a segment.
fn adjust(piece: &mut [u8], headers: &Headers, transport: &TransportHeader, place: Place) {
    let ip = headers.ip;
    if headers.source.is_ipv4() {
        let len = (piece.len() - ip) as u16;
        let id = u16::from_be_bytes([piece[ip + 4], piece[ip + 5]]).wrapping_add(place.number as u16);
        piece[ip + 2..ip + 4].copy_from_slice(&len.to_be_bytes());
        piece[ip + 4..ip + 6].copy_from_slice(&id.to_be_bytes());
        piece[ip + 10..ip + 12].fill(0);
        let words = usize::from(piece[ip] & 0xf);
        let sum = Sum16BitWords::new().add_slice(&piece[ip..ip + 4 * words]).ones_complement().to_be();
        piece[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    } else {
        let len = (piece.len() - ip - 40) as u16;
        piece[ip + 4..ip + 6].copy_from_slice(&len.to_be_bytes());
    }
    let at = transport.at;
    match transport.kind {
        Transport::Tcp => {
            let sequence: [u8; 4] = piece[at + 4..at + 8].try_into().unwrap_or_default();
            let sequence = u32::from_be_bytes(sequence).wrapping_add((place.number * place.size) as u32);
            piece[at + 4..at + 8].copy_from_slice(&sequence.to_be_bytes());
            if !place.last {
                piece[at + 13] &= !(flag::FIN | flag::PSH);
            }
            if place.ecn && place.number > 0 {
                piece[at + 13] &= !flag::CWR;
            }
        }
        Transport::Udp => {
            let len = (piece.len() - at) as u16;
            piece[at + 4..at + 6].copy_from_slice(&len.to_be_bytes());
        }
    }
    let sum_at = checksum_at(transport);
    piece[sum_at..sum_at + 2].fill(0);
    let sum = transport_sum(piece, &Headers { end: piece.len(), ..*headers }, transport);
    let sum = if sum == 0 { 0xffff } else { sum };
    piece[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Partial;
    use etherparse::{PacketBuilder, PacketBuilderStep, TcpHeader, UdpHeader};

    fn tcp(v6: bool, payload: &[u8]) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let mut frame = Vec::new();
        let header =
            TcpHeader { psh: true, fin: true, cwr: true, ack: true, ..TcpHeader::new(1000, 80, 0xffff_ff00, 64) };
        let step: PacketBuilderStep<TcpHeader> = match v6 {
            false => builder.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).tcp_header(header),
            true => builder.ipv6([1; 16], [2; 16], 64).tcp_header(header),
        };
        step.write(&mut frame, payload).unwrap();
        frame
    }

    fn udp(payload: &[u8]) -> Vec<u8> {
        let step: PacketBuilderStep<UdpHeader> =
            PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(1000, 2000);
        let mut frame = Vec::new();
        step.write(&mut frame, payload).unwrap();
        frame
    }

    fn large(bytes: Vec<u8>, kind: Kind, size: u16) -> Frame {
        Frame { segments: Some(Segments { kind, size, ecn: true }), ..Frame::new(bytes).unwrap() }
    }

    #[test]
    fn large_packets_are_cut_as_their_protocols_have_it() {
        let payload: Vec<u8> = (0..3000u32).map(|i| (i % 251) as u8).collect();
        for (bytes, kind) in
            [(tcp(false, &payload), Kind::Tcp4), (tcp(true, &payload), Kind::Tcp6), (udp(&payload), Kind::Udp)]
        {
            let frame = large(bytes, kind, 1400);
            let (occupied, count) = frame.occupies();
            let pieces = frame.clone().finish();
            assert_eq!((pieces.len(), count), (3, 3), "{kind:?}");
            let wire: u64 = pieces.iter().map(|piece| piece.occupies().0).sum();
            assert_eq!(wire, occupied);
            let mut got = Vec::new();
            for (number, piece) in pieces.iter().enumerate() {
                // The library's strict parser checks the lengths; the checksums are checked separately.
                let strict = etherparse::SlicedPacket::from_ethernet(&piece.bytes).unwrap();
                assert!(is_right(&piece.bytes), "{kind:?} {number}");
                if let Some(etherparse::TransportSlice::Tcp(tcp)) = strict.transport {
                    assert_eq!(tcp.sequence_number(), 0xffff_ff00u32.wrapping_add(1400 * number as u32));
                    assert_eq!((tcp.fin(), tcp.psh(), tcp.cwr()), (number == 2, number == 2, number == 0));
                }
                let headers = Headers::of(&piece.bytes).unwrap();
                got.extend_from_slice(&piece.bytes[headers.transport.unwrap().payload..headers.end]);
            }
            assert_eq!(got, payload);
        }
    }

    #[test]
    fn a_partial_checksum_is_completed_where_the_receiver_wants_it() {
        let mut bytes = udp(b"some payload!");
        let whole = bytes.clone();
        let headers = Headers::of(&bytes).unwrap();
        let transport = headers.transport.unwrap();
        // As left by a driver: the sum of the pseudo-header.
        let mut pseudo = bytes.clone();
        pseudo[transport.at..headers.end].fill(0);
        let sum = !transport_sum(&pseudo, &headers, &transport);
        bytes[transport.at + 6..transport.at + 8].copy_from_slice(&sum.to_be_bytes());
        let partial = Partial { start: transport.at as u16, offset: 6 };
        let frame = Frame { partial: Some(partial), ..Frame::new(bytes).unwrap() };
        let takes = Offloads { checksum: true, ..Offloads::default() };
        assert_eq!(frame.clone().for_receiver(takes), std::slice::from_ref(&frame));
        assert_eq!(frame.for_receiver(Offloads::default())[0].bytes, whole);
    }

    #[test]
    fn segments_have_identifications_and_checksums() {
        let tagged = |payload: &[u8]| {
            let mut bytes = Vec::new();
            let options = [1, 1, 1, 0, 1, 1, 1, 0].as_slice().try_into().unwrap();
            let ip = etherparse::Ipv4Header { identification: 0xffff, options, ..Default::default() };
            let ip = etherparse::IpHeaders::Ipv4(
                etherparse::Ipv4Header { source: [10, 0, 0, 1], destination: [10, 0, 0, 2], time_to_live: 64, ..ip },
                Default::default(),
            );
            let step = PacketBuilder::ethernet2([2; 6], [4; 6]).single_vlan(5.try_into().unwrap()).ip(ip).udp(1, 2);
            step.write(&mut bytes, payload).unwrap();
            bytes
        };
        for bytes in [tagged(&[7; 25]), udp(&[7; 25])] {
            let first = u16::from_be_bytes(bytes[Headers::of(&bytes).unwrap().ip + 4..][..2].try_into().unwrap());
            let pieces = large(bytes, Kind::Udp, 10).finish();
            assert_eq!(pieces.len(), 3);
            for (number, piece) in pieces.iter().enumerate() {
                let strict = etherparse::SlicedPacket::from_ethernet(&piece.bytes).unwrap();
                let Some(etherparse::NetSlice::Ipv4(ip)) = strict.net else { panic!("no IPv4") };
                let ip = ip.header().to_header();
                assert_eq!(ip.identification, first.wrapping_add(number as u16));
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                let Some(etherparse::TransportSlice::Udp(udp)) = strict.transport else { panic!("no UDP") };
                assert_eq!(udp.checksum(), udp.to_header().calc_checksum_ipv4(&ip, udp.payload()).unwrap());
                assert_eq!(udp.payload().len(), [10, 10, 5][number]);
            }
        }
    }

    #[test]
    fn a_checksum_of_zero_is_sent_as_ones() {
        let checksum = |payload: [u8; 2]| {
            let piece = large(udp(&payload), Kind::Udp, 2).finish().remove(0).bytes;
            assert!(is_right(&piece));
            [piece[40], piece[41]]
        };
        let other = checksum([0, 0]);
        assert_eq!(checksum(other), [0xff, 0xff]);
        // The same for a checksum that is completed: the covered bytes are these and zeros.
        for (covered, expected) in [([0x12, 0x34], [0xed, 0xcb]), ([0xff, 0xff], [0xff, 0xff])] {
            let mut bytes = vec![0; 60];
            bytes[14..16].copy_from_slice(&covered);
            let frame =
                |offset| Frame { partial: Some(Partial { start: 14, offset }), ..Frame::new(bytes.clone()).unwrap() };
            // The last two bytes of the frame are the last place.
            assert_eq!(complete(frame(45)), None);
            let done = complete(frame(44)).unwrap();
            assert_eq!((&done.bytes[58..], done.partial, done.checked), (&expected[..], None, true));
        }
    }

    #[test]
    fn only_a_correct_checksum_is_right() {
        let whole = udp(b"payload");
        let change = |at: usize, new: &[u8]| {
            let mut bytes = whole.clone();
            bytes[at..at + new.len()].copy_from_slice(new);
            bytes
        };
        for (what, bytes, right) in [
            ("it is sent", whole.clone(), true),
            ("TCP", tcp(false, b"payload"), true),
            ("a byte is changed", change(45, &[7]), false),
            ("there is none", change(40, &[0, 0]), false),
            ("no transport header", change(23, &[99]), false),
            ("no IP", vec![0; 60], false),
        ] {
            assert_eq!(is_right(&bytes), right, "{what}");
        }
        // A TCP checksum of zero is not one that is missing.
        let zero = {
            let mut bytes = tcp(false, &[0, 0]);
            let sum = [bytes[50], bytes[51]];
            bytes[54..].copy_from_slice(&sum);
            bytes[50..52].fill(0);
            bytes
        };
        assert!(is_right(&zero));
    }

    #[test]
    fn the_window_reduction_is_repeated_without_the_rule_for_it() {
        let frame = Frame::new(tcp(false, &[0; 30])).unwrap();
        let segments = Some(Segments { kind: Kind::Tcp4, size: 10, ecn: false });
        let flags: Vec<u8> = Frame { segments, ..frame }.finish().iter().map(|piece| piece.bytes[47]).collect();
        assert_eq!(flags, [0x90, 0x90, 0x99], "CWR and ACK; PSH and FIN in the last");
    }

    #[test]
    fn a_packet_is_cut_as_its_own_kind_alone_and_within_limits() {
        let frames = [tcp(false, &[0; 9]), tcp(true, &[0; 9]), udp(&[0; 9])];
        for (at, bytes) in frames.iter().enumerate() {
            for (other, kind) in [Kind::Tcp4, Kind::Tcp6, Kind::Udp].into_iter().enumerate() {
                let pieces = large(bytes.clone(), kind, 5).finish().len();
                assert_eq!(pieces, if at == other { 2 } else { 0 }, "{at} {kind:?}");
            }
        }
        let count = |payload: usize| large(udp(&vec![0; payload]), Kind::Udp, 1).finish().len();
        assert_eq!([MOST, MOST + 1].map(count), [MOST, 0]);
        // Padding counts for the length of the frame.
        let padded = |len: usize| {
            let mut bytes = udp(&[0; 9]);
            bytes.resize(len, 0);
            cut(&Frame { bytes, ..large(udp(&[]), Kind::Udp, 5) }).len()
        };
        assert_eq!([LONGEST, LONGEST + 1].map(padded), [2, 0]);
    }

    #[test]
    fn a_large_packet_without_payload_is_its_headers() {
        let mut bytes = udp(&[]);
        // Padding after the datagram is not sent.
        bytes.resize(200, 7);
        let frame = large(bytes, Kind::Udp, 1000);
        let pieces = frame.clone().finish();
        assert_eq!((pieces.len(), pieces[0].bytes.len()), (1, 42));
        assert_eq!(frame.occupies(), pieces[0].occupies());
    }

    #[test]
    fn frames_that_are_not_what_they_say_are_lost() {
        let frame = large(udp(&[0; 2000]), Kind::Tcp4, 1000);
        assert!(frame.finish().is_empty());
        assert!(large(vec![0; 100], Kind::Udp, 1000).finish().is_empty());
        assert!(large(udp(&[0; 60_000]), Kind::Udp, 1).finish().is_empty());
        assert!(large(udp(&[0; 2000]), Kind::Udp, 0).finish().is_empty());
        let outside =
            Frame { partial: Some(Partial { start: 60_000, offset: 60_000 }), ..Frame::new(udp(b"x")).unwrap() };
        assert!(outside.finish().is_empty());
    }
}
