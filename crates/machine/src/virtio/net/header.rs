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

#[cfg(test)]
mod tests {
    use super::*;
    use features::{CSUM, GUEST_CSUM, HASH_REPORT, HOST_ECN, HOST_TSO4, HOST_TSO6, HOST_USO};

    /// Returns a datagram of 8 bytes over IPv4.
    fn udp() -> Vec<u8> {
        let mut bytes = Vec::new();
        let builder = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        builder.udp(1, 2).write(&mut bytes, &[7; 8]).unwrap();
        bytes
    }

    #[test]
    fn a_driver_leaves_to_the_device_what_was_negotiated() {
        let all = CSUM | HOST_TSO4 | HOST_TSO6 | HOST_USO | HOST_ECN;
        let (large, partial) = (0x1234, Some(Partial { start: 0x0102, offset: 0x0304 }));
        let cut = |kind, ecn| Some((partial, Some(Segments { kind, size: large, ecn })));
        // Flags, kind of segmentation, features; then the deferred work.
        for (flags, gso, features, expected) in [
            (0, 0, all, Some((None, None))),
            (1, 0, all, Some((partial, None))),
            (0xfe, 0, all, Some((None, None))),
            (1, 0, all & !CSUM, Some((None, None))),
            (1, 1, all, cut(Kind::Tcp4, false)),
            (1, 4, all, cut(Kind::Tcp6, false)),
            (1, 5, all, cut(Kind::Udp, false)),
            (1, 0x81, all, cut(Kind::Tcp4, true)),
            (1, 0x84, all, cut(Kind::Tcp6, true)),
            (1, 1, CSUM | HOST_TSO4, cut(Kind::Tcp4, false)),
            (1, 1, all & !HOST_TSO4, None),
            (1, 4, all & !HOST_TSO6, None),
            (1, 5, all & !HOST_USO, None),
            (1, 0x81, all & !HOST_ECN, None),
            // A large packet has a deferred checksum.
            (0, 1, all, None),
            (1, 2, all, None),
            (1, 0x40, all, None),
            // The bit of ECN alone is no segmentation.
            (1, 0x80, all, Some((partial, None))),
        ] {
            let header = [flags, gso, 9, 9, 0x34, 0x12, 2, 1, 4, 3, 0, 0];
            let frame = sent(&header, udp(), features);
            assert!(frame.iter().all(|frame| frame.bytes == udp() && !frame.checked));
            assert_eq!(
                frame.map(|frame| (frame.partial, frame.segments)),
                expected,
                "{flags:#x} {gso:#x} {features:#x}"
            );
        }
        assert_eq!(sent(&[0; 12], vec![0; 13], all), None);
    }

    #[test]
    fn a_received_frame_says_what_is_left_to_do() {
        let plain = Frame::new(udp()).unwrap();
        let partial = Frame { partial: Some(Partial { start: 0x0102, offset: 0x0304 }), ..plain.clone() };
        let large = |kind, ecn| Frame { segments: Some(Segments { kind, size: 0x0506, ecn }), ..partial.clone() };
        let checked = Frame { checked: true, ..plain.clone() };
        let other = Frame { segments: large(Kind::Udp, false).segments, ..Frame::new(vec![0; 60]).unwrap() };
        // 42 bytes of headers are before the payload.
        for (frame, features, expected) in [
            (&plain, GUEST_CSUM, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            (&checked, GUEST_CSUM, [2, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            (&checked, CSUM, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            (&partial, GUEST_CSUM, [1, 0, 0, 0, 0, 0, 2, 1, 4, 3]),
            (&Frame { checked: true, ..partial.clone() }, GUEST_CSUM, [1, 0, 0, 0, 0, 0, 2, 1, 4, 3]),
            (&large(Kind::Tcp4, false), 0, [1, 1, 42, 0, 6, 5, 2, 1, 4, 3]),
            (&large(Kind::Tcp6, true), 0, [1, 0x84, 42, 0, 6, 5, 2, 1, 4, 3]),
            (&large(Kind::Udp, false), 0, [1, 5, 42, 0, 6, 5, 2, 1, 4, 3]),
            (&other, 0, [0, 5, 0, 0, 6, 5, 0, 0, 0, 0]),
        ] {
            assert_eq!(received(frame, Some((1, 1)), features), [&expected[..], &[0; 2]].concat(), "{frame:?}");
            assert_eq!(len(features), 12);
        }
        // With hashes, the header is longer.
        let hash = received(&plain, Some((0x0102_0304, 0x0506)), HASH_REPORT);
        assert_eq!(hash, [&[0; 12][..], &[4, 3, 2, 1, 6, 5, 0, 0]].concat());
        assert_eq!((len(HASH_REPORT), received(&plain, None, HASH_REPORT)), (20, vec![0; 20]));
    }
}
