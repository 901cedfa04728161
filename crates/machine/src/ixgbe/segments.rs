//! TCP and UDP segmentation (82599 datasheet, 7.2.4). If the context descriptor agrees with the packet's headers, the
//! network segments the packet where a receiver needs that; packets in tunnels, whose inner headers the context
//! describes, are segmented here.

use super::packet::TCP;
use super::sums;
use network::frame::Kind;
use network::headers::Headers;
use network::{Frame, Partial, Segments};

/// FIN and PSH in byte 13 of a TCP header.
const FIN_AND_PUSH: u8 = 1 << 0 | 1 << 3;
const REDUCED: u8 = 1 << 7;
/// Maximum number of segments of one packet.
const MOST: usize = 2048;

/// Offsets of the headers of a large packet, and the size of its segments.
#[derive(Clone, Copy, Debug)]
pub struct Large {
    pub ip: usize,
    pub l4: usize,
    pub payload: usize,
    /// Payload bytes per segment.
    pub size: usize,
    pub protocol: u8,
    pub v4: bool,
}

impl Large {
    fn is_sane(&self, len: usize) -> bool {
        let ip = if self.v4 { 20 } else { 40 };
        let l4 = if self.protocol == TCP { 20 } else { 8 };
        let headers = self.ip >= 14 && self.l4 >= self.ip + ip && self.payload >= self.l4 + l4 && self.payload <= len;
        headers && self.size > 0 && (len - self.payload).div_ceil(self.size) <= MOST
    }

    /// Completes the headers for a packet of this length: the length fields, and the pseudo-header sum in the checksum
    /// field.
    fn finish(&self, bytes: &mut [u8]) -> Option<()> {
        let len = bytes.len() - self.l4;
        if self.v4 {
            let total = u16::try_from(bytes.len() - self.ip).ok()?;
            bytes[self.ip + 2..self.ip + 4].copy_from_slice(&total.to_be_bytes());
            sums::set_ip_header(&mut bytes[self.ip..self.l4]);
        } else {
            let payload = u16::try_from(bytes.len() - self.ip - 40).ok()?;
            bytes[self.ip + 4..self.ip + 6].copy_from_slice(&payload.to_be_bytes());
        }
        if self.protocol != TCP {
            let datagram = u16::try_from(len).ok()?;
            bytes[self.l4 + 4..self.l4 + 6].copy_from_slice(&datagram.to_be_bytes());
        }
        let addresses = if self.v4 { self.ip + 12..self.ip + 20 } else { self.ip + 8..self.ip + 40 };
        let pseudo = sums::fold(sums::pseudo(&bytes[addresses], self.protocol, len));
        let at = self.checksum();
        bytes[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
        Some(())
    }

    fn partial(&self) -> Partial {
        Partial { start: self.l4 as u16, offset: (self.checksum() - self.l4) as u16 }
    }

    fn checksum(&self) -> usize {
        self.l4 + if self.protocol == TCP { 16 } else { 6 }
    }
}

/// Converts a large packet to frames: one frame that the network segments, or all segments. Returns `None` if the
/// packet contradicts the context.
pub fn frames(mut bytes: Vec<u8>, large: &Large) -> Option<Vec<Frame>> {
    if !large.is_sane(bytes.len()) {
        return None;
    }
    if !agrees(&bytes, large) {
        return cut(&bytes, large);
    }
    large.finish(&mut bytes)?;
    let reduced = large.protocol == TCP && bytes[large.l4 + 13] & REDUCED != 0;
    let kind = match (large.protocol, large.v4) {
        (TCP, true) => Kind::Tcp4,
        (TCP, false) => Kind::Tcp6,
        _ => Kind::Udp,
    };
    let mut frame = Frame::new(bytes)?;
    frame.partial = Some(large.partial());
    frame.segments = Some(Segments { kind, size: large.size.try_into().ok()?, ecn: reduced });
    Some(vec![frame])
}

/// Returns true if the network finds the headers of a frame at the offsets that the context gives.
fn agrees(bytes: &[u8], large: &Large) -> bool {
    Headers::of(bytes).is_some_and(|headers| {
        let transport = headers.transport.map(|transport| (transport.at, transport.payload));
        headers.ip == large.ip && transport == Some((large.l4, large.payload))
    })
}

/// Segments a packet in a tunnel.
fn cut(bytes: &[u8], large: &Large) -> Option<Vec<Frame>> {
    let (headers, payload) = bytes.split_at_checked(large.payload)?;
    let count = payload.len().div_ceil(large.size).max(1);
    let segment = |(number, part): (usize, &[u8])| {
        let mut piece = [headers, part].concat();
        if large.v4 {
            let at = large.ip + 4;
            let id = u16::from_be_bytes([piece[at], piece[at + 1]]).wrapping_add(number as u16);
            piece[at..at + 2].copy_from_slice(&id.to_be_bytes());
        }
        if large.protocol == TCP {
            let at = large.l4 + 4;
            let sequence = u32::from_be_bytes([piece[at], piece[at + 1], piece[at + 2], piece[at + 3]]);
            let sequence = sequence.wrapping_add((number * large.size) as u32);
            piece[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
            let flags = &mut piece[large.l4 + 13];
            *flags &= if number + 1 < count { !FIN_AND_PUSH } else { !0 };
            *flags &= if number > 0 { !REDUCED } else { !0 };
        }
        large.finish(&mut piece)?;
        let mut frame = Frame::new(piece)?;
        frame.partial = Some(large.partial());
        Some(frame)
    };
    let parts: Vec<&[u8]> = if payload.is_empty() { vec![payload] } else { payload.chunks(large.size).collect() };
    parts.into_iter().enumerate().map(segment).collect()
}
