//! Captures, the frames sent from them, streams of frames, and frames to be cut: everything that the network reads from
//! outside.

use arbitrary::{Result, Unstructured};
use network::frame::{Frame, Kind, Offloads, Partial, Segments};
use network::generator::{Config, Generator, Pace};
use network::lane::Lane;
use network::options::Net;
use network::stream::Frames;
use network::{Rate, capture, rss, segment};
use std::sync::Arc;

/// Number of frames sent of a capture.
const SENT: usize = 1000;

/// Reads the bytes as each of these.
pub fn run(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    match choice & 3 {
        0 => replay(data),
        1 => {
            let mut frames = Frames::default();
            for piece in data.chunks(usize::from(choice >> 2) + 1) {
                frames.push(piece);
                while let Ok(Some(frame)) = frames.next_frame() {
                    rss::symmetric(&frame);
                }
            }
        }
        2 => {
            // An input that is too short ends this early.
            let _ = offload(&mut Unstructured::new(data));
        }
        _ => {
            let _ = String::from_utf8_lossy(data).parse::<Net>();
        }
    }
}

fn replay(data: &[u8]) {
    // Without the need for times more captures can be sent, in the same way.
    let Ok(capture::Replay { frames, .. }) = capture::read(data, false) else { return };
    assert!(!frames.is_empty());
    let mut lane = Lane::new(Rate::TEN_GIGABITS, 1000);
    let config = Config { replay: Some(Arc::new(frames)), pace: Pace::Recorded, ..Config::default() };
    let mut generator = Generator::new(config, 0, [2; 6]);
    generator.begin(0);
    let mut last = 0;
    for _ in 0..SENT {
        let Some(at) = generator.next_arrival(&lane) else { break };
        assert!(at >= last, "frames stay in order");
        last = at;
        assert!(generator.take(&mut lane).is_some());
    }
}

/// Reads a frame that a driver sends with work for the device.
fn offload(input: &mut Unstructured) -> Result<()> {
    let kind = [Kind::Tcp4, Kind::Tcp6, Kind::Udp][usize::from(input.arbitrary::<u8>()? % 3)];
    let (size, ecn) = input.arbitrary::<(u16, bool)>()?;
    let partial = input.arbitrary::<Option<(u16, u16)>>()?.map(|(start, offset)| Partial { start, offset });
    let segments = input.arbitrary::<bool>()?.then_some(Segments { kind, size, ecn });
    let rest = input.bytes(input.len())?.to_vec();
    let Some(frame) = Frame::new(rest) else { return Ok(()) };
    segment::is_right(&frame.bytes);
    let frame = Frame { partial, segments, ..frame };
    let (occupied, count) = frame.occupies();
    let pieces = frame.clone().finish();
    if segments.is_some() && !pieces.is_empty() {
        let sum: u64 = pieces.iter().map(|piece| piece.occupies().0).sum();
        assert_eq!(
            (sum, pieces.len() as u64),
            (occupied, count),
            "the link is occupied for as long as the segments take"
        );
        assert!(pieces.iter().all(|piece| segment::is_right(&piece.bytes)), "checksums are right");
    }
    frame.for_receiver(Offloads { checksum: true, ..Offloads::default() });
    Ok(())
}

/// Returns a capture of three frames, a stream, a large packet, and an option.
pub fn seeds() -> Vec<Vec<u8>> {
    let block = |kind: u32, body: &[u8]| {
        let len = body.len() as u32 + 12;
        [&kind.to_le_bytes()[..], &len.to_le_bytes(), body, &len.to_le_bytes()].concat()
    };
    let mut capture = vec![0];
    capture.extend(block(
        0x0a0d_0d0a,
        &[0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    ));
    capture.extend(block(1, &[1, 0, 0, 0, 0, 0, 0, 0]));
    for time in [1u8, 9] {
        let mut packet = vec![0, 0, 0, 0, 0, 0, 0, 0, time, 0, 0, 0, 60, 0, 0, 0, 60, 0, 0, 0];
        packet.extend([7; 60]);
        capture.extend(block(6, &packet));
    }
    let mut packet = vec![60, 0, 0, 0];
    packet.extend([8; 60]);
    capture.extend(block(3, &packet));
    let mut stream = vec![1 | 3 << 2, 0, 0, 0, 60];
    stream.extend([2; 60]);
    let mut large = vec![2, 2, 100, 0, 0, 0, 1];
    large.extend([2; 12]);
    large.extend([8, 0, 0x45, 0, 1, 0x1c, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2, 1, 8, 0, 0]);
    large.extend([5; 256]);
    let option = [&[3][..], b"generator:size=imix,rate=1.5M,flows=8"].concat();
    vec![capture, stream, large, option]
}
