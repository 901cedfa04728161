//! The header before each frame in a ring (virtio 1.2, 5.1.6).

use super::features;
use network::frame::Kind;
use network::{Frame, Partial, Segments};

/// Size of the header in bytes, without and with the hash.
const LEN: usize = 12;
const LEN_WITH_HASH: usize = 20;
/// Offset of the number of buffers.
pub const BUFFERS_AT: usize = 10;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// Returns the size of the header with these features, in bytes.
pub fn len(features: u64) -> usize {
    if features & features::HASH_REPORT != 0 { LEN_WITH_HASH } else { LEN }
}

fn half(header: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([header[at], header[at + 1]])
}

/// Creates the frame that a driver sends with a header of [`len`] bytes. Returns `None` if the features do not allow
/// it.
pub fn sent(header: &[u8], bytes: Vec<u8>, features: u64) -> Option<Frame> {
    let mut frame = Frame::new(bytes)?;
    if header[0] & NEEDS_CSUM != 0 && features & features::CSUM != 0 {
        frame.partial = Some(Partial { start: half(header, 6), offset: half(header, 8) });
    }
    let (kind, needed) = match header[1] & !GSO_ECN {
        GSO_NONE => return Some(frame),
        GSO_TCPV4 => (Kind::Tcp4, features::HOST_TSO4),
        GSO_TCPV6 => (Kind::Tcp6, features::HOST_TSO6),
        GSO_UDP_L4 => (Kind::Udp, features::HOST_USO),
        _ => return None,
    };
    let ecn = header[1] & GSO_ECN != 0;
    let allowed = features & needed != 0 && (!ecn || features & features::HOST_ECN != 0) && frame.partial.is_some();
    frame.segments = Some(Segments { kind, size: half(header, 4), ecn });
    allowed.then_some(frame)
}

/// Returns the header of a received frame, of [`len`] bytes, with a hash and its type. The caller fills in the number
/// of buffers.
pub fn received(frame: &Frame, hash: Option<(u32, u16)>, features: u64) -> Vec<u8> {
    let mut header = vec![0; len(features)];
    let mut put = |at: usize, value: u16| header[at..at + 2].copy_from_slice(&value.to_le_bytes());
    if let Some(Segments { size, .. }) = frame.segments {
        let headers = network::headers::Headers::of(&frame.bytes).and_then(|headers| headers.transport);
        put(2, headers.map_or(0, |transport| transport.payload as u16));
        put(4, size);
    }
    if let Some(Partial { start, offset }) = frame.partial {
        put(6, start);
        put(8, offset);
    }
    let checked = frame.checked && features & features::GUEST_CSUM != 0;
    header[0] = if frame.partial.is_some() {
        NEEDS_CSUM
    } else if checked {
        DATA_VALID
    } else {
        0
    };
    if let Some(Segments { kind, ecn, .. }) = frame.segments {
        let kind = match kind {
            Kind::Tcp4 => GSO_TCPV4,
            Kind::Tcp6 => GSO_TCPV6,
            Kind::Udp => GSO_UDP_L4,
        };
        header[1] = kind | if ecn { GSO_ECN } else { 0 };
    }
    if let (Some((value, kind)), true) = (hash, header.len() == LEN_WITH_HASH) {
        header[12..16].copy_from_slice(&value.to_le_bytes());
        header[16..18].copy_from_slice(&kind.to_le_bytes());
    }
    header
}
