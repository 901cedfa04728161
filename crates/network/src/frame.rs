//! A frame on its way, with what is left to do to it.
//!
//! A NIC may leave two things to whoever comes after it: the checksum of the transport header, and cutting a large packet into segments.
//! A frame carries such work with it until a receiver takes it as it is, or it is [finished](Frame::finish). On a wire it is never seen: a link
//! is occupied for as long as the segments take.

use crate::headers::Headers;
use crate::segment;
use crate::time::Rate;
use serde::{Deserialize, Serialize};

/// The longest frame: an IP packet of 64 KiB with an Ethernet header and two VLAN tags, without its check sequence.
pub const LONGEST: usize = 0xffff + 14 + 8;
/// The shortest frame on a wire, without its check sequence: shorter ones are padded.
pub const SHORTEST: usize = 60;
/// What a frame occupies on a wire beside its bytes: check sequence (4), preamble (8) and gap (12).
pub const OVERHEAD: u64 = 24;

/// A checksum that is still to be computed: over everything from `start` on, and stored `offset` bytes after that, where the sum of the
/// pseudo header is already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partial {
    /// Where the sum begins.
    pub start: u16,
    /// Where it goes, from `start` on.
    pub offset: u16,
}

/// What a large packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP datagrams of one length (the last may be shorter), over IPv4 or IPv6.
    Udp,
}

/// How a large packet is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segments {
    /// Which protocol.
    pub kind: Kind,
    /// Bytes of payload in each segment but the last.
    pub size: u16,
    /// The congestion-window-reduced flag belongs to the first segment only.
    pub ecn: bool,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// From the destination address to the end of the payload, without the check sequence.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// The checksum that is to be computed.
    pub partial: Option<Partial>,
    /// How it is to be cut.
    pub segments: Option<Segments>,
    /// The checksums are known to be right.
    pub checked: bool,
}

/// Which unfinished frames a receiver takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offloads {
    /// With a partial checksum.
    pub checksum: bool,
    /// Large TCP packets over IPv4.
    pub tcp4: bool,
    /// Large TCP packets over IPv6.
    pub tcp6: bool,
    /// Those with the congestion-window-reduced flag.
    pub ecn: bool,
    /// Large UDP packets over IPv4.
    pub udp4: bool,
    /// Large UDP packets over IPv6.
    pub udp6: bool,
}

impl Frame {
    /// A frame that is complete. `None`: it is too long, or too short for an Ethernet header.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        let frame = Self { bytes, partial: None, segments: None, checked: false };
        frame.is_possible().then_some(frame)
    }

    /// Whether its length is one that frames have.
    pub fn is_possible(&self) -> bool {
        (crate::headers::ETHERNET..=LONGEST).contains(&self.bytes.len())
    }

    /// Bytes of a link that it occupies, and the number of frames there.
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

    /// Bytes of headers, of payload, and of payload in each segment, of a frame that is to be cut.
    fn cut(&self) -> Option<(usize, usize, usize)> {
        let size = usize::from(self.segments?.size);
        let headers = Headers::of(&self.bytes)?;
        let header = headers.transport?.payload;
        let payload = headers.end.checked_sub(header).filter(|_| size > 0)?;
        Some((header, payload, size))
    }

    /// Whether a receiver takes the frame as it is.
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

    /// The frames that a receiver gets who takes these: the frame as it is, or what it is cut into.
    pub fn for_receiver(self, offloads: Offloads) -> Vec<Self> {
        if self.suits(offloads) {
            return vec![self];
        }
        if self.segments.is_some() {
            return self.finish();
        }
        segment::complete(self).into_iter().collect()
    }

    /// The frames as they are on a wire: cut, with their checksums. There is none if the frame can't be what it says.
    pub fn finish(self) -> Vec<Self> {
        match self.segments {
            Some(_) => segment::cut(&self),
            None => segment::complete(self).into_iter().collect(),
        }
    }

    /// How long a link of that rate is occupied.
    pub fn duration(&self, rate: Rate) -> crate::Time {
        rate.duration(self.occupies().0)
    }
}
