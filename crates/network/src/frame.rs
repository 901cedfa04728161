//! A frame and its deferred offloads.
//!
//! A NIC may defer two operations: the checksum of the transport header, and the segmentation of a large packet. A
//! frame carries this work along until a receiver accepts it, or it is [finished](Frame::finish). The timing is that of
//! a wire: a link is occupied for as long as the segments take.

use crate::headers::Headers;
use serde::{Deserialize, Serialize};

/// Maximum length of a frame: an IP packet of 64 KiB with an Ethernet header and two VLAN tags, without the check
/// sequence.
pub const LONGEST: usize = 0xffff + 14 + 8;
/// Minimum length of a frame on a wire, without the check sequence: shorter ones are padded.
pub const SHORTEST: usize = 60;
/// Bytes that a frame occupies on a wire in addition to its contents: check sequence (4), preamble (8) and gap (12).
pub const OVERHEAD: u64 = 24;

/// A deferred checksum, which covers everything from `start` on and is stored `offset` bytes after that, where the sum
/// of the pseudo-header already is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partial {
    /// Start of the covered bytes.
    pub start: u16,
    /// Offset of the checksum from `start`.
    pub offset: u16,
}

/// Kind of a large packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP datagrams of one length (the last may be shorter), over IPv4 or IPv6.
    Udp,
}

/// Segmentation of a large packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segments {
    /// Protocol.
    pub kind: Kind,
    /// Payload bytes in each segment except the last.
    pub size: u16,
    /// True if the congestion-window-reduced flag belongs to the first segment only.
    pub ecn: bool,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// Contents from the destination address to the end of the payload, without the check sequence.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// Deferred checksum.
    pub partial: Option<Partial>,
    /// Deferred segmentation.
    pub segments: Option<Segments>,
    /// True if the checksums are known to be correct.
    pub checked: bool,
}

/// Offloads that a receiver accepts in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offloads {
    /// Frames with a partial checksum.
    pub checksum: bool,
    /// Large TCP packets over IPv4.
    pub tcp4: bool,
    /// Large TCP packets over IPv6.
    pub tcp6: bool,
    /// Large TCP packets with the congestion-window-reduced flag.
    pub ecn: bool,
    /// Large UDP packets over IPv4.
    pub udp4: bool,
    /// Large UDP packets over IPv6.
    pub udp6: bool,
}

impl Frame {
    /// Creates a complete frame. Returns `None` if it is too long, or too short for an Ethernet header.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        let frame = Self { bytes, partial: None, segments: None, checked: false };
        frame.is_possible().then_some(frame)
    }

    /// Returns true if the length is valid.
    pub fn is_possible(&self) -> bool {
        (crate::headers::ETHERNET..=LONGEST).contains(&self.bytes.len())
    }

    /// Returns the number of bytes that it occupies on a link, and the number of frames there.
    pub fn occupies(&self) -> (u64, u64) {
        let one = |len: usize| len.max(SHORTEST) as u64 + OVERHEAD;
        let Some((header, payload, size)) = self.cut() else { return (one(self.bytes.len()), 1) };
        if payload == 0 {
            return (one(header), 1);
        }
        let (whole, rest) = (payload / size, payload % size);
        let last = if rest == 0 { 0 } else { one(header + rest) };
        (whole as u64 * one(header + size) + last, (whole + usize::from(rest != 0)) as u64)
    }

    /// Returns the number of bytes of headers, of payload, and of payload in each segment, of a large packet.
    fn cut(&self) -> Option<(usize, usize, usize)> {
        let size = usize::from(self.segments?.size);
        let headers = Headers::of(&self.bytes)?;
        let header = headers.transport?.payload;
        let payload = headers.end.checked_sub(header).filter(|_| size > 0)?;
        Some((header, payload, size))
    }

    /// Returns true if a receiver accepts the frame as it is.
    pub fn suits(&self, offloads: Offloads) -> bool {
        let v6 = || matches!(Headers::of(&self.bytes), Some(headers) if headers.source.is_ipv6());
        let segments = self.segments.is_none_or(|segments| {
            (match segments.kind {
                Kind::Tcp4 => offloads.tcp4,
                Kind::Tcp6 => offloads.tcp6,
                Kind::Udp => {
                    if v6() {
                        offloads.udp6
                    } else {
                        offloads.udp4
                    }
                }
            }) && (offloads.ecn || !segments.ecn)
        });
        segments && (self.partial.is_none() || offloads.checksum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;

    fn udp(v6: bool, payload: usize) -> Frame {
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let step = match v6 {
            false => builder.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64),
            true => builder.ipv6([1; 16], [2; 16], 64),
        };
        let mut bytes = Vec::new();
        step.udp(1, 2).write(&mut bytes, &vec![0; payload]).unwrap();
        Frame::new(bytes).unwrap()
    }

    fn large(frame: Frame, kind: Kind, size: u16, ecn: bool) -> Frame {
        Frame { segments: Some(Segments { kind, size, ecn }), ..frame }
    }

    #[test]
    fn frames_have_a_minimum_and_a_maximum_length() {
        let possible = |len: usize| Frame::new(vec![0; len]).is_some();
        assert_eq!([13, 14, LONGEST, LONGEST + 1].map(possible), [false, true, true, false]);
    }

    #[test]
    fn a_frame_occupies_its_padding_and_each_of_its_segments() {
        let whole = |len: u64| len + OVERHEAD;
        for (frame, expected) in [
            (Frame::new(vec![0; 14]).unwrap(), (whole(60), 1)),
            (Frame::new(vec![0; 61]).unwrap(), (whole(61), 1)),
            // 42 bytes of headers.
            (large(udp(false, 3000), Kind::Udp, 1000, false), (3 * whole(1042), 3)),
            (large(udp(false, 3001), Kind::Udp, 1000, false), (3 * whole(1042) + whole(60), 4)),
            (large(udp(false, 0), Kind::Udp, 1000, false), (whole(60), 1)),
            // These can't be segmented.
            (large(udp(false, 3000), Kind::Udp, 0, false), (whole(3042), 1)),
            (large(Frame::new(vec![0; 100]).unwrap(), Kind::Udp, 10, false), (whole(100), 1)),
        ] {
            assert_eq!(frame.occupies(), expected, "{:?}, {} bytes", frame.segments, frame.bytes.len());
        }
    }

    #[test]
    fn each_offload_is_for_its_own_kind_of_frame() {
        let partial = Frame { partial: Some(Partial { start: 34, offset: 6 }), ..udp(false, 9) };
        let frames = [
            partial.clone(),
            large(udp(false, 9), Kind::Tcp4, 5, false),
            large(udp(false, 9), Kind::Tcp6, 5, false),
            large(udp(false, 9), Kind::Udp, 5, false),
            large(udp(true, 9), Kind::Udp, 5, false),
        ];
        let none = Offloads::default();
        let offloads = [
            Offloads { checksum: true, ..none },
            Offloads { tcp4: true, ..none },
            Offloads { tcp6: true, ..none },
            Offloads { udp4: true, ..none },
            Offloads { udp6: true, ..none },
        ];
        for (at, frame) in frames.iter().enumerate() {
            assert_eq!(offloads.map(|some| frame.suits(some)), std::array::from_fn(|other| other == at), "{at}");
            assert!(!frame.suits(none), "{at}");
        }
        // Congestion notification and a partial checksum are wanted in addition.
        let ecn = Frame { segments: large(udp(false, 9), Kind::Tcp4, 5, true).segments, ..partial };
        for wanted in 0..8 {
            let [checksum, tcp4, ecn_too] = [1, 2, 4].map(|bit| wanted & bit != 0);
            let some = Offloads { checksum, tcp4, ecn: ecn_too, ..none };
            assert_eq!(ecn.suits(some), wanted == 7, "{some:?}");
        }
        assert!(udp(false, 9).suits(none));
    }
}
