//! The receiver of the traffic generator: throughput, loss, reordering, latency.

use crate::headers::Headers;
use crate::time::{NANOSECOND, Time};
use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// Maximum number of distinct streams; frames of further ones are counted as others.
const MOST: usize = 64;
/// Latencies have three significant digits, up to 100 seconds, in nanoseconds.
const LONGEST: u64 = 100_000_000_000;
const DIGITS: u8 = 3;

/// Marker in the payload of a generated frame.
pub const MARK: [u8; 2] = *b"tg";
/// Size of the stamp in bytes: marker, stream (16 bits), number (48 bits), time (64 bits), all big-endian. It fits
/// exactly in the smallest frame with a UDP datagram.
pub const STAMP: usize = 18;

/// Stamp of the generator in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Port of the generator.
    pub stream: u16,
    /// Number of frames before this one.
    pub number: u64,
    /// Time of transmission; 0 if the sender does not know it.
    pub time: Time,
}

impl Stamp {
    /// Encodes the stamp.
    pub fn to_bytes(self) -> [u8; STAMP] {
        let mut bytes = [0; STAMP];
        bytes[..2].copy_from_slice(&MARK);
        bytes[2..4].copy_from_slice(&self.stream.to_be_bytes());
        bytes[4..10].copy_from_slice(&self.number.to_be_bytes()[2..]);
        bytes[10..].copy_from_slice(&self.time.to_be_bytes());
        bytes
    }

    /// Decodes the stamp at the start of a payload.
    pub fn of(payload: &[u8]) -> Option<Self> {
        let bytes = payload.first_chunk::<STAMP>().filter(|bytes| bytes[..2] == MARK)?;
        let number =
            |range: std::ops::Range<usize>| bytes[range].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        Some(Self { stream: number(2..4) as u16, number: number(4..10), time: number(10..18) })
    }
}

/// Statistics of one stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// Number of frames.
    pub frames: u64,
    /// Number of bytes, including check sequences.
    pub bytes: u64,
    /// Number of frames that arrived after one that was sent later.
    pub reordered: u64,
    /// Largest number seen, plus one.
    next: u64,
    /// Times of the first and the last arrival.
    pub span: (Time, Time),
    /// Latencies in nanoseconds.
    #[serde(serialize_with = "save_histogram", deserialize_with = "load_histogram")]
    latency: Histogram<u64>,
}

/// Statistics of a sink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sink {
    streams: BTreeMap<u16, Stream>,
    /// Number of frames from other sources.
    pub others: u64,
    /// By stream: a frame number, and the number of frames received with that number or a larger one.
    marks: BTreeMap<u16, (u64, u64)>,
}

fn histogram() -> Histogram<u64> {
    // The library accepts these constant bounds.
    Histogram::new_with_bounds(1, LONGEST, DIGITS).unwrap_or_else(|_| unreachable!("the bounds are possible"))
}

fn save_histogram<S: Serializer>(histogram: &Histogram<u64>, to: S) -> Result<S::Ok, S::Error> {
    let values: Vec<(u64, u64)> =
        histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
    values.serialize(to)
}

fn load_histogram<'de, D: Deserializer<'de>>(from: D) -> Result<Histogram<u64>, D::Error> {
    let values = Vec::<(u64, u64)>::deserialize(from)?;
    let mut histogram = histogram();
    values.into_iter().for_each(|(value, count)| histogram.saturating_record_n(value, count));
    Ok(histogram)
}

impl Stream {
    fn new(now: Time) -> Self {
        Self { frames: 0, bytes: 0, reordered: 0, next: 0, span: (now, now), latency: histogram() }
    }

    /// Returns the number of frames missing below the largest number that has arrived.
    pub fn lost(&self) -> u64 {
        self.next.saturating_sub(self.frames)
    }

    /// Returns the latencies in nanoseconds, if the frames have times.
    pub fn latency(&self) -> Option<&Histogram<u64>> {
        Some(&self.latency).filter(|latency| !latency.is_empty())
    }

    /// Returns the rate in frames per second, between the first and the last.
    pub fn rate(&self) -> f64 {
        let seconds = (self.span.1 - self.span.0) as f64 / crate::time::SECOND as f64;
        if seconds > 0.0 { (self.frames - 1) as f64 / seconds } else { 0.0 }
    }
}

impl Sink {
    /// Records a frame.
    pub fn take(&mut self, now: Time, frame: &[u8]) {
        let stamp = Headers::of(frame)
            .and_then(|headers| headers.transport)
            .and_then(|transport| Stamp::of(frame.get(transport.payload..)?));
        let known = |stamp: &Stamp| self.streams.len() < MOST || self.streams.contains_key(&stamp.stream);
        let Some(stamp) = stamp.filter(known) else {
            self.others += 1;
            return;
        };
        if let Some((from, count)) = self.marks.get_mut(&stamp.stream)
            && stamp.number >= *from
        {
            *count = count.saturating_add(1);
        }
        let stream = self.streams.entry(stamp.stream).or_insert_with(|| Stream::new(now));
        stream.frames += 1;
        stream.bytes += frame.len().max(crate::frame::SHORTEST) as u64 + 4;
        stream.reordered += u64::from(stamp.number < stream.next);
        stream.next = stream.next.max(stamp.number + 1);
        stream.span.1 = now.max(stream.span.1);
        if stamp.time != 0 {
            stream.latency.saturating_record(now.saturating_sub(stamp.time) / NANOSECOND);
        }
    }

    /// Returns the number of frames received of a stream.
    pub fn received(&self, stream: u16) -> u64 {
        self.streams.get(&stream).map_or(0, |stream| stream.frames)
    }

    /// Returns the number of frames received of a stream since [`Sink::mark`], without those that were sent before.
    pub fn received_since_mark(&self, stream: u16) -> u64 {
        self.marks.get(&stream).map_or(self.received(stream), |(_, count)| *count)
    }

    /// Restarts the count of a stream for frames with this number and larger ones.
    pub fn mark(&mut self, stream: u16, from: u64) {
        if self.marks.len() < MOST || self.marks.contains_key(&stream) {
            self.marks.insert(stream, (from, 0));
        }
    }

    /// Returns the streams by the port of the generator.
    pub fn streams(&self) -> impl Iterator<Item = (u16, &Stream)> {
        self.streams.iter().map(|(number, stream)| (*number, stream))
    }

    /// Returns true if the state is possible.
    pub fn is_possible(&self) -> bool {
        let far = 1 << 62;
        let stream = |stream: &Stream| {
            let counts = (1..far).contains(&stream.frames) && stream.bytes < far && stream.reordered < far;
            counts && stream.span.0 <= stream.span.1 && stream.next <= 1 << 48
        };
        self.others < far && self.streams.len() <= MOST && self.marks.len() <= MOST && self.streams.values().all(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::{Config, Generator};
    use crate::lane::Lane;
    use crate::time::{Rate, SECOND};

    /// Returns a datagram with a stamp and some bytes of padding.
    fn stamped(stream: u16, number: u64, time: Time, padding: usize) -> Vec<u8> {
        let builder = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        let (stamp, mut frame) = (Stamp { stream, number, time }.to_bytes(), Vec::new());
        builder.udp(1, 2).write(&mut frame, &[&stamp[..], &vec![0; padding]].concat()).unwrap();
        frame
    }

    #[test]
    fn a_stamp_is_what_was_stamped() {
        let stamp = Stamp { stream: 0x1234, number: 0x5678_9abc_def0, time: 0x1122_3344_5566_7788 };
        let mut bytes = stamp.to_bytes();
        assert_eq!(bytes[..4], *b"tg\x12\x34");
        assert_eq!((Stamp::of(&bytes), Stamp::of(&bytes[..STAMP - 1])), (Some(stamp), None));
        bytes[1] ^= 1;
        assert_eq!(Stamp::of(&bytes), None);
    }

    #[test]
    fn bytes_rate_and_latency_are_those_of_the_frames() {
        let mut sink = Sink::default();
        for (number, at, expected) in [(0, SECOND, 0.0), (2, SECOND + SECOND / 2, 2.0), (1, SECOND + SECOND / 4, 4.0)] {
            sink.take(at, &stamped(3, number, at - 5_500_999, 100 * number as usize));
            assert_eq!(sink.streams().next().unwrap().1.rate(), expected);
        }
        let (number, stream) = sink.streams().next().unwrap();
        // Frames of 60, 160 and 260 bytes, with their check sequences; the last was sent before the second.
        assert_eq!((number, stream.frames, stream.bytes, stream.reordered, stream.lost()), (3, 3, 480 + 12, 1, 0));
        let latency = stream.latency().unwrap();
        assert_eq!((latency.len(), latency.min(), latency.max()), (3, 5_500, 5_503));
        sink.take(2 * SECOND, &stamped(3, 9, 0, 0));
        let stream = sink.streams().next().unwrap().1;
        assert_eq!((stream.lost(), stream.latency().unwrap().len()), (6, 3));
    }

    #[test]
    fn streams_and_marks_without_end_take_no_memory() {
        let mut sink = Sink::default();
        for stream in 0..MOST as u16 {
            sink.mark(stream + 1, 5);
            sink.take(0, &stamped(stream, 5, 1, 0));
        }
        // Stream 0 had no place for a mark.
        sink.mark(0, 9);
        assert_eq!((sink.received_since_mark(0), sink.received_since_mark(1)), (1, 1));
        sink.mark(1, 6);
        assert_eq!(sink.received_since_mark(1), 0, "a known stream is marked again");
        for stream in [0, MOST as u16, MOST as u16 - 1] {
            sink.take(0, &stamped(stream, 6, 1, 0));
        }
        let received = |stream: usize| sink.received(stream as u16);
        assert_eq!(([0, 1, MOST - 1, MOST].map(received), sink.others), ([2, 1, 2, 0], 1));
        assert!(sink.is_possible());
    }

    #[test]
    fn forged_states_of_a_sink_are_impossible() {
        let far = 1 << 62;
        let with = |change: &dyn Fn(&mut Stream)| {
            let mut sink = Sink::default();
            sink.take(5, &stamped(0, 0, 1, 0));
            sink.streams.values_mut().for_each(change);
            sink
        };
        let filled = |streams: usize, marks: usize, others: u64| Sink {
            others,
            streams: (0..streams).map(|number| (number as u16, Stream { frames: 1, ..Stream::new(0) })).collect(),
            marks: (0..marks).map(|number| (number as u16, (0, 0))).collect(),
        };
        for (what, sink, possible) in [
            ("the largest numbers", filled(MOST, MOST, far - 1), true),
            ("too many streams", filled(MOST + 1, 0, 0), false),
            ("too many marks", filled(0, MOST + 1, 0), false),
            ("too many others", filled(0, 0, far), false),
            (
                "the most of a stream",
                with(&|s| (s.frames, s.bytes, s.reordered, s.next) = (far - 1, far - 1, far - 1, 1 << 48)),
                true,
            ),
            ("no frame", with(&|s| s.frames = 0), false),
            ("too many frames", with(&|s| s.frames = far), false),
            ("too many bytes", with(&|s| s.bytes = far), false),
            ("too many out of order", with(&|s| s.reordered = far), false),
            ("a number of more than 48 bits", with(&|s| s.next = (1 << 48) + 1), false),
            ("an end before the start", with(&|s| s.span = (5, 4)), false),
        ] {
            assert_eq!(sink.is_possible(), possible, "{what}");
        }
    }

    #[test]
    fn frames_without_a_time_have_no_latency() {
        let (mut lane, mut sink) = (Lane::new(Rate::TEN_GIGABITS, 0), Sink::default());
        let mut generator = Generator::new(Config { count: Some(2), ..Config::default() }, 7, [2; 6]);
        generator.begin(SECOND);
        let mut frame = generator.take(&mut lane).unwrap().bytes.to_vec();
        sink.take(2 * SECOND, &frame);
        let latency = |sink: &Sink| sink.streams().next().unwrap().1.latency().map(Histogram::len);
        assert_eq!(latency(&sink), Some(1));
        // The time is the last part of the stamp, which ends the frame.
        let time = frame.len() - 8..;
        frame[time].fill(0);
        let mut sink = Sink::default();
        sink.take(2 * SECOND, &frame);
        assert_eq!((latency(&sink), sink.received(7)), (None, 1));
    }

    #[test]
    fn late_frames_of_a_trial_are_none_of_the_next() {
        let (mut lane, mut sink) = (Lane::new(Rate::TEN_GIGABITS, 0), Sink::default());
        let mut generator = Generator::new(Config { count: Some(20), ..Config::default() }, 7, [2; 6]);
        generator.begin(0);
        let frames: Vec<_> = std::iter::from_fn(|| generator.take(&mut lane)).collect();
        frames[..5].iter().for_each(|frame| sink.take(0, &frame.bytes));
        assert_eq!(sink.received_since_mark(7), 5, "without a mark all count");
        sink.mark(7, 10);
        frames[5..].iter().for_each(|frame| sink.take(0, &frame.bytes));
        assert_eq!((sink.received_since_mark(7), sink.received(7)), (10, 20));
    }

    #[test]
    fn a_sink_knows_what_is_lost_and_out_of_order() {
        let (mut lane, mut sink) = (Lane::new(Rate::TEN_GIGABITS, 0), Sink::default());
        let mut generator = Generator::new(Config { count: Some(1000), ..Config::default() }, 7, [2; 6]);
        generator.begin(0);
        let mut held = None;
        let mut number = 0;
        while let Some(at) = generator.next_arrival(&lane) {
            let frame = generator.take(&mut lane).unwrap();
            match number {
                5 => {}
                10 => held = Some(frame),
                _ => sink.take(at + 1_000_000, &frame.bytes),
            }
            if number == 20 {
                sink.take(at + 1_000_000, &held.take().unwrap().bytes);
            }
            number += 1;
        }
        sink.take(0, &[0; 60]);
        let (streams, others): (Vec<_>, _) = (sink.streams().collect(), sink.others);
        let [(7, stream)] = streams[..] else { panic!("{streams:?}") };
        assert_eq!((stream.frames, stream.bytes, stream.reordered, others), (999, 999 * 64, 1, 1));
        assert_eq!((generator.sent() - sink.received(7), stream.lost()), (1, 1));
        // The delayed frame arrived ten frames later than the others.
        assert_eq!(
            (stream.latency.min(), stream.latency.value_at_quantile(0.5), stream.latency.max()),
            (1067, 1067, 1739)
        );
        assert!((stream.rate() - (SECOND / 67_200) as f64).abs() < 20_000.0, "{}", stream.rate());
        let bytes = postcard::to_allocvec(&sink).unwrap();
        let again: Sink = postcard::from_bytes(&bytes).unwrap();
        assert_eq!((&again, again.is_possible()), (&sink, true));
    }
}
