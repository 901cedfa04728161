//! The traffic generator: UDP datagrams at a rate, or the frames of a capture.

use crate::capture::Recorded;
use crate::headers::Mac;
use crate::lane::Lane;
use crate::sink::{STAMP, Stamp};
use crate::time::{NANOSECOND, Rate, SECOND, Time};
use crate::{Frame, frame};
use etherparse::PacketBuilder;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// Minimum and maximum size of a frame, including its check sequence.
pub const SIZES: (u32, u32) = (64, 9018);
/// The simple IMIX: seven frames of 64 bytes, four of 594, one of 1518.
const IMIX: [u32; 12] = [64, 594, 64, 64, 594, 64, 594, 64, 64, 594, 64, 1518];
/// Headers before the payload: Ethernet, IPv4, UDP.
const HEADERS: usize = 42;
/// Offsets of the header checksums.
const IP_SUM: usize = 24;
const UDP_SUM: usize = 40;
/// Time between two learning frames.
pub const LEARNING: Time = 20_000 * NANOSECOND;
/// Source port of the first flow.
const FIRST_PORT: u16 = 10_000;

/// Sizes of frames, including their check sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sizes {
    /// One size.
    Fixed(u32),
    /// The simple IMIX.
    Imix,
}

/// Rate of the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pace {
    /// The rate of the link.
    Line,
    /// Frames per second.
    Frames(u64),
    /// Bits per second on the link, including preambles and gaps.
    Bits(Rate),
    /// The times of a capture.
    Recorded,
}

/// Start of the generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Start {
    /// As soon as the guest is ready to receive.
    Ready,
    /// At a fixed time.
    At(Time),
    /// When the guest sends a UDP datagram to the discard port (9) of any address.
    Request,
}

/// Field that differs between flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Vary {
    /// The source port.
    Ports,
    /// The source address.
    Addresses,
}

/// Parameters of a throughput search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trials {
    /// Duration of a trial.
    pub length: Time,
    /// Time to wait for the last frames of a trial.
    pub settle: Time,
    /// Permitted loss, in frames per million.
    pub tolerance: u32,
    /// Precision of the result: one part in this number.
    pub parts: u64,
}

/// Configuration of a generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Sizes of frames.
    pub sizes: Sizes,
    /// Rate of the frames.
    pub pace: Pace,
    /// True if the user has set the rate.
    pub paced: bool,
    /// Number of flows, which take turns.
    pub flows: u16,
    /// Field in which the flows differ.
    pub vary: Vary,
    /// Number of back-to-back frames, which are followed by a pause, at the same average rate.
    pub burst: u32,
    /// Number of initial frames of each flow, [`LEARNING`] apart: bridges learn from them (RFC 2544, section 23), and
    /// drivers find out which processor handles the interrupts of a queue.
    pub learn: u16,
    /// Start.
    pub start: Start,
    /// Number of frames, if limited.
    pub count: Option<u64>,
    /// Duration, if limited.
    pub duration: Option<Time>,
    /// Source address of the first flow.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Destination port.
    pub port: u16,
    /// MAC address of the generator.
    pub mac: Mac,
    /// Destination MAC address; by default that of the NIC.
    pub to: Option<Mac>,
    /// True if the datagrams have a UDP checksum.
    pub checksums: bool,
    /// Throughput search, if there is one.
    pub trials: Option<Trials>,
    /// A capture that is sent instead of generated frames, with the time of each frame since the first.
    pub replay: Option<Arc<Recorded>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            sizes: Sizes::Fixed(64),
            pace: Pace::Line,
            paced: false,
            flows: 1,
            vary: Vary::Ports,
            burst: 1,
            learn: 0,
            start: Start::Ready,
            count: None,
            duration: None,
            source: Ipv4Addr::new(198, 18, 0, 1),
            destination: Ipv4Addr::new(198, 18, 0, 2),
            port: 9000,
            mac: [0x02, 0x74, 0x67, 0xff, 0, 1],
            to: None,
            checksums: false,
            trials: None,
            replay: None,
        }
    }
}

impl Config {
    /// Returns the number of bytes that the smallest frame occupies on a link; for a mix, the average.
    pub fn smallest(&self) -> u64 {
        let size = match (self.sizes, &self.replay) {
            (_, Some(capture)) => capture.iter().map(|(_, frame)| frame.len() as u64 + 4).min().unwrap_or(64),
            (Sizes::Fixed(size), None) => size.into(),
            (Sizes::Imix, None) => IMIX.iter().sum::<u32>() as u64 / IMIX.len() as u64,
        };
        size.max(SIZES.0.into()) + frame::OVERHEAD - 4
    }
}

/// Progress of a generator, which is saved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Start time; that of the current trial, if there are trials.
    began: Option<Time>,
    /// Number of frames since then.
    number: u64,
    /// Number of bytes that they have occupied on the link.
    bytes: u64,
    /// Number of frames in all trials.
    sent: u64,
    /// Frames per second in the current trial.
    rate: Option<u64>,
}

/// A generator.
#[derive(Clone, Debug)]
pub struct Generator {
    config: Config,
    stream: u16,
    progress: Progress,
    /// A template for each frame size.
    templates: Vec<Vec<u8>>,
    /// Time of the next frame, and the bytes that it occupies on a link; derived from the other fields.
    next: Option<(Time, u64)>,
}

impl Generator {
    /// Creates the generator of a port, which sends to the MAC address `nic` unless the configuration has another.
    pub fn new(config: Config, stream: u16, nic: Mac) -> Self {
        let sizes: &[u32] = match &config.sizes {
            Sizes::Fixed(size) => &[*size],
            Sizes::Imix => &IMIX,
        };
        let to = config.to.unwrap_or(nic);
        let templates = sizes.iter().map(|size| template(&config, to, *size)).collect();
        Self { config, stream, progress: Progress::default(), templates, next: None }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the number of frames sent so far.
    pub fn sent(&self) -> u64 {
        self.progress.sent
    }

    /// Returns the number of frames sent since the start, or since the start of the current trial.
    pub fn sent_in_trial(&self) -> u64 {
        self.progress.number
    }

    /// Starts now, unless it has started.
    pub fn begin(&mut self, now: Time) {
        if self.progress.began.is_none() {
            self.progress.began = Some(now);
            self.look_ahead();
        }
    }

    /// Starts a trial at another rate.
    pub fn begin_trial(&mut self, now: Time, rate: u64) {
        let sent = self.progress.sent;
        self.progress = Progress { began: Some(now), rate: Some(rate), sent, ..Progress::default() };
        self.look_ahead();
    }

    /// Returns the start time.
    pub fn began(&self) -> Option<Time> {
        self.progress.began
    }

    /// Returns the time at which the next frame can be sent on a link, the time at which it is due, and the bytes that
    /// it occupies. Returns `None` if there is none, or the time is over.
    fn upcoming(&self, lane: &Lane) -> Option<(Time, Time, u64)> {
        let (due, bytes) = self.next?;
        let departs = lane.busy().max(due);
        let length = self.config.trials.map(|trials| trials.length).or(self.config.duration);
        let elapsed = departs - self.progress.began?.min(departs);
        length.is_none_or(|length| elapsed < length).then_some((departs, due, bytes))
    }

    /// Returns the time at which the next frame arrives at the other end of its link.
    pub fn next_arrival(&self, lane: &Lane) -> Option<Time> {
        self.upcoming(lane).map(|(departs, _, bytes)| lane.arrival(departs, bytes))
    }

    /// Sends the next frame.
    pub fn take(&mut self, lane: &mut Lane) -> Option<Frame> {
        let (departs, due, bytes) = self.upcoming(lane)?;
        let frame = self.frame(departs);
        lane.occupy(due, bytes);
        self.pass(bytes);
        Some(frame)
    }

    /// Sends the next frame without creating it.
    pub fn skip(&mut self, lane: &mut Lane) {
        if let Some((_, due, bytes)) = self.upcoming(lane) {
            lane.occupy(due, bytes);
            self.pass(bytes);
        }
    }

    fn pass(&mut self, bytes: u64) {
        let Progress { number, bytes: occupied, sent, .. } = &mut self.progress;
        (*number, *sent) = (number.saturating_add(1), sent.saturating_add(1));
        *occupied = occupied.saturating_add(bytes);
        self.look_ahead();
    }

    /// Computes the time of the next frame.
    fn look_ahead(&mut self) {
        self.next = self.due();
    }

    fn due(&self) -> Option<(Time, u64)> {
        let Progress { began, number, bytes, .. } = self.progress;
        let began = began?;
        if self.config.count.is_some_and(|count| number >= count) {
            return None;
        }
        let scaled = |count: u64, per_second: u64| {
            u64::try_from(u128::from(count) * u128::from(SECOND) / u128::from(per_second.max(1))).unwrap_or(Time::MAX)
        };
        let (mut occupied, mut recorded) = (0, 0);
        if let Some(capture) = &self.config.replay {
            let (time, frame) = capture.get(usize::try_from(number).ok()?)?;
            (occupied, recorded) = (frame.len().max(frame::SHORTEST) as u64 + frame::OVERHEAD, *time);
        } else if let Some(template) = self.templates.get((number % self.templates.len() as u64) as usize) {
            occupied = template.len() as u64 + frame::OVERHEAD;
        }
        let learned = u64::from(self.config.learn) * u64::from(self.config.flows.max(1));
        if number < learned {
            return Some((began.checked_add(number * LEARNING)?, occupied));
        }
        let began = began.checked_add(learned * LEARNING)?;
        let (number, bytes) = (number - learned, bytes.saturating_sub(self.occupied_by(learned)));
        let burst = u64::from(self.config.burst.max(1));
        let before = number / burst * burst;
        let offset = match (self.progress.rate, self.config.pace) {
            (Some(rate), _) | (None, Pace::Frames(rate)) => scaled(before, rate),
            (None, Pace::Line) => 0,
            // Within a burst of frames of different sizes, the bytes so far count only at its end.
            (None, Pace::Bits(rate)) => scaled(if before == number { bytes } else { 0 }.saturating_mul(8), rate.bits()),
            (None, Pace::Recorded) => recorded,
        };
        Some((began.checked_add(offset)?, occupied))
    }

    /// Returns the number of bytes that the first frames of a size or of a mix occupy.
    fn occupied_by(&self, count: u64) -> u64 {
        let lengths = self.templates.iter().map(|template| template.len() as u64 + frame::OVERHEAD);
        let round = lengths.clone().sum::<u64>();
        let kinds = self.templates.len() as u64;
        count / kinds * round + lengths.take((count % kinds) as usize).sum::<u64>()
    }

    fn frame(&self, now: Time) -> Frame {
        let number = self.progress.number;
        if let Some(capture) = &self.config.replay {
            let bytes = capture.get(number as usize).map(|(_, bytes)| bytes.clone()).unwrap_or_default();
            let checked = crate::segment::is_right(&bytes);
            return Frame { bytes, partial: None, segments: None, checked };
        }
        let mut bytes = self.templates[(number % self.templates.len() as u64) as usize].clone();
        let flow = (number % u64::from(self.config.flows.max(1))) as u16;
        let mut change = |at: usize, new: &[u8], ip: bool| {
            let place = at..at + new.len();
            // Both checksums change by the difference; a UDP checksum of zero means that there is none.
            let sums = [ip.then_some(IP_SUM), self.config.checksums.then_some(UDP_SUM)];
            for sum in sums.into_iter().flatten() {
                let before = u16::from_be_bytes([bytes[sum], bytes[sum + 1]]);
                let mut after = updated(before, &bytes[place.clone()], new);
                if sum == UDP_SUM && after == 0 {
                    after = 0xffff;
                }
                bytes[sum..sum + 2].copy_from_slice(&after.to_be_bytes());
            }
            bytes[place].copy_from_slice(new);
        };
        match self.config.vary {
            Vary::Ports => change(34, &FIRST_PORT.wrapping_add(flow).to_be_bytes(), false),
            Vary::Addresses => {
                change(26, &u32::from(self.config.source).wrapping_add(flow.into()).to_be_bytes(), true);
            }
        }
        let stamp = Stamp { stream: self.stream, number: self.progress.sent, time: now };
        change(HEADERS, &stamp.to_bytes(), false);
        Frame { bytes, partial: None, segments: None, checked: true }
    }

    /// Returns the progress for a saved state.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Continues from a saved progress.
    pub fn go_on_from(&mut self, progress: Progress) {
        self.progress = progress;
        self.look_ahead();
    }
}

/// Returns a checksum after a change of covered bytes, which begin at an even offset (RFC 1624).
fn updated(sum: u16, before: &[u8], after: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u32 {
        let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
        bytes.chunks(2).map(word).sum()
    };
    let removed = before.len().div_ceil(2) as u32 * 0xffff - words(before);
    let mut total = u32::from(!sum) + removed + words(after);
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    !(total as u16)
}

/// Returns a frame of a size, of the first flow and without a stamp. Without checksums the UDP checksum is zero.
fn template(config: &Config, to: Mac, size: u32) -> Vec<u8> {
    let payload = (size.clamp(SIZES.0, SIZES.1) as usize - 4).saturating_sub(HEADERS).max(STAMP);
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ethernet2(config.mac, to)
        .ipv4(config.source.octets(), config.destination.octets(), 64)
        .udp(FIRST_PORT, config.port);
    // Writing to memory does not fail, and the payload is shorter than a datagram's maximum.
    if builder.write(&mut bytes, &vec![0; payload]).is_err() {
        bytes.resize(HEADERS + payload, 0);
    }
    if !config.checksums {
        bytes[UDP_SUM..UDP_SUM + 2].fill(0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(config: Config, rate: Rate, count: usize) -> Vec<(Time, usize)> {
        let (mut generator, mut lane) = (Generator::new(config, 3, [2; 6]), Lane::new(rate, 0));
        generator.begin(1_000_000);
        let mut out = Vec::new();
        while let Some(at) = generator.next_arrival(&lane).filter(|_| out.len() < count) {
            let frame = generator.take(&mut lane).unwrap();
            assert_eq!(lane.busy(), at);
            // The strict parser checks lengths; the sum of the IPv4 header is checked here.
            let packet = etherparse::SlicedPacket::from_ethernet(&frame.bytes).unwrap();
            let ip = match packet.net.unwrap() {
                etherparse::NetSlice::Ipv4(ip) => ip.header().to_header(),
                other => panic!("{other:?}"),
            };
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            let Some(etherparse::TransportSlice::Udp(udp)) = packet.transport else { panic!("no UDP") };
            if generator.config.checksums {
                let right = udp.to_header().calc_checksum_ipv4(&ip, udp.payload()).unwrap();
                assert_eq!(udp.checksum(), right, "datagram {}", out.len());
            } else {
                assert_eq!(udp.checksum(), 0);
            }
            let stamp = Stamp::of(&frame.bytes[HEADERS..]).unwrap();
            assert_eq!((stamp.stream, stamp.number), (3, out.len() as u64));
            out.push((at - 1_000_000, frame.bytes.len() + 4));
        }
        out
    }

    fn gap(times: &[(Time, usize)]) -> Vec<Time> {
        times.windows(2).map(|pair| pair[1].0 - pair[0].0).collect()
    }

    #[test]
    fn the_smallest_frames_come_at_line_rate() {
        let times = arrivals(Config::default(), Rate::TEN_GIGABITS, 10);
        assert_eq!((times[0], gap(&times)), ((67_200, 64), vec![67_200; 9]));
        let second = Config { duration: Some(SECOND / 1000), ..Config::default() };
        assert_eq!(arrivals(second, Rate::TEN_GIGABITS, usize::MAX).len(), 14_881);
    }

    #[test]
    fn no_frame_departs_after_the_duration() {
        for (duration, frames) in [(10 * 67_200 - 1, 10), (10 * 67_200, 10), (10 * 67_200 + 1, 11)] {
            let config = Config { duration: Some(duration), ..Config::default() };
            assert_eq!(arrivals(config, Rate::TEN_GIGABITS, usize::MAX).len(), frames, "{duration}");
        }
    }

    #[test]
    fn the_smallest_frame_of_a_configuration_is_known() {
        let replay = |lens: &[usize]| {
            let frames = lens.iter().map(|len| (0, vec![0; *len])).collect();
            Config { replay: Some(Arc::new(frames)), sizes: Sizes::Fixed(1518), ..Config::default() }
        };
        let sizes = |sizes| Config { sizes, ..Config::default() };
        // In addition to its size, a frame occupies 20 bytes of preamble and gap.
        for (config, expected) in [
            (sizes(Sizes::Fixed(64)), 84),
            (sizes(Sizes::Fixed(1518)), 1538),
            (sizes(Sizes::Imix), (7 * 64 + 4 * 594 + 1518) / 12 + 20),
            (replay(&[300, 200, 400]), 224),
            (replay(&[300, 14]), 84),
        ] {
            assert_eq!(config.smallest(), expected, "{config:?}");
        }
    }

    #[test]
    fn flows_take_turns_and_differ_in_one_field() {
        for vary in [Vary::Ports, Vary::Addresses] {
            let config = Config { vary, flows: 3, to: Some([6; 6]), ..Config::default() };
            let (mut generator, mut lane) = (Generator::new(config, 0, [2; 6]), Lane::new(Rate::TEN_GIGABITS, 0));
            assert_eq!((generator.began(), generator.take(&mut lane)), (None, None), "it has not started");
            generator.begin(5);
            generator.begin(9);
            assert_eq!(generator.began(), Some(5));
            for flow in [0, 1, 2, 0, 1] {
                let (address, port) = if vary == Vary::Ports { (0, flow) } else { (flow, 0) };
                let frame = generator.take(&mut lane).unwrap().bytes;
                let headers = crate::headers::Headers::of(&frame).unwrap();
                assert_eq!(headers.source, std::net::IpAddr::from([198, 18, 0, 1 + address]));
                assert_eq!(headers.transport.unwrap().source, 10_000 + u16::from(port));
                assert_eq!(crate::headers::macs(&frame), Some(([6; 6], [0x02, 0x74, 0x67, 0xff, 0, 1])));
            }
        }
    }

    #[test]
    fn trials_have_rates_and_counts_of_their_own() {
        let trials = Trials { length: 10_000_000, settle: 0, tolerance: 0, parts: 100 };
        let config = Config { trials: Some(trials), ..Config::default() };
        let (mut generator, mut lane) = (Generator::new(config.clone(), 0, [2; 6]), Lane::new(Rate::TEN_GIGABITS, 0));
        assert_eq!(generator.config(), &config);
        let mut times = |generator: &mut Generator, most: usize| -> Vec<(Time, u64)> {
            let next = || {
                let at = generator.next_arrival(&lane)?;
                let frame = generator.take(&mut lane)?;
                Some((at, Stamp::of(&frame.bytes[HEADERS..])?.number))
            };
            std::iter::from_fn(next).take(most).collect()
        };
        let trial = |began: Time, distance: Time, first: u64, count: u64| -> Vec<(Time, u64)> {
            (0..count).map(|n| (began + n * distance + 67_200, first + n)).collect()
        };
        generator.begin_trial(0, 500_000);
        assert_eq!(times(&mut generator, 99), trial(0, 2_000_000, 0, 5));
        assert_eq!((generator.sent_in_trial(), generator.sent()), (5, 5));
        generator.begin_trial(20_000_000, 1_000_000);
        assert_eq!(times(&mut generator, 3), trial(20_000_000, 1_000_000, 5, 3));
        assert_eq!((generator.sent_in_trial(), generator.sent(), generator.began()), (3, 8, Some(20_000_000)));
        // What is saved in a trial is continued.
        let mut other = Generator::new(config, 0, [2; 6]);
        other.go_on_from(generator.progress().clone());
        assert_eq!(times(&mut other, 99), trial(23_000_000, 1_000_000, 8, 7));
    }

    #[test]
    fn the_mix_has_its_shares() {
        let config =
            Config { sizes: Sizes::Imix, vary: Vary::Addresses, flows: 300, count: Some(1200), ..Config::default() };
        let times = arrivals(config, Rate::TEN_GIGABITS, usize::MAX);
        let count = |size| times.iter().filter(|(_, len)| *len == size).count();
        assert_eq!((count(64), count(594), count(1518)), (700, 400, 100));
        let sizes: Vec<usize> = times.iter().map(|(_, len)| *len).collect();
        assert_eq!(sizes, IMIX.map(|size| size as usize).repeat(100));
    }

    #[test]
    fn datagrams_have_the_right_checksum_if_any() {
        for vary in [Vary::Ports, Vary::Addresses] {
            let config = Config {
                sizes: Sizes::Imix,
                vary,
                flows: 900,
                checksums: true,
                count: Some(70_000),
                ..Config::default()
            };
            arrivals(config, Rate::TEN_GIGABITS, usize::MAX);
        }
    }

    #[test]
    fn learning_frames_come_first() {
        let slow = Rate::new(1_000_000_000).unwrap();
        let wire = |size: usize| size as u64 + 20;
        for (pace, burst) in
            [(Pace::Line, 1), (Pace::Frames(500_000), 1), (Pace::Frames(500_000), 4), (Pace::Bits(slow), 1)]
        {
            // The learning frames are a whole mix and three frames of the next one.
            let config = Config { pace, burst, flows: 3, learn: 5, sizes: Sizes::Imix, ..Config::default() };
            let times = arrivals(config, Rate::TEN_GIGABITS, 45);
            let (mut free, mut bytes) = (0, 0);
            for (number, (at, size)) in times.iter().enumerate() {
                let (learning, others) = (number.min(15) as u64, number.saturating_sub(15) as u64);
                let due = match pace {
                    Pace::Frames(_) => others / u64::from(burst) * u64::from(burst) * 2_000_000,
                    // The others continue the mix at its position.
                    Pace::Bits(_) => slow.duration(bytes),
                    _ => 0,
                };
                free = free.max(learning * LEARNING + due) + Rate::TEN_GIGABITS.duration(wire(*size));
                assert_eq!(*at, free, "{pace:?}, frame {number}");
                bytes += if number < 15 { 0 } else { wire(*size) };
            }
        }
    }

    #[test]
    fn paces_are_kept_in_bursts_too() {
        let config = Config { pace: Pace::Frames(1_000_000), flows: 4, ..Config::default() };
        assert_eq!(gap(&arrivals(config.clone(), Rate::TEN_GIGABITS, 5)), [1_000_000; 4]);
        let bursts = arrivals(Config { burst: 4, ..config }, Rate::TEN_GIGABITS, 9);
        assert_eq!(
            gap(&bursts),
            [67_200, 67_200, 67_200, 4_000_000 - 3 * 67_200, 67_200, 67_200, 67_200, 4_000_000 - 3 * 67_200]
        );
        let half = Config { pace: Pace::Bits(Rate::new(5_000_000_000).unwrap()), ..Config::default() };
        assert_eq!(gap(&arrivals(half, Rate::TEN_GIGABITS, 4)), [134_400; 3]);
        // The rate is limited to that of the link.
        let fast = Config { pace: Pace::Frames(20_000_000), ..Config::default() };
        assert_eq!(gap(&arrivals(fast, Rate::TEN_GIGABITS, 4)), [67_200; 3]);
    }

    #[test]
    fn a_capture_is_sent_again() {
        let replay = vec![(0, vec![1; 60]), (500_000, vec![2; 100]), (500_001, vec![3; 60])];
        let config = Config { replay: Some(Arc::new(replay)), pace: Pace::Recorded, ..Config::default() };
        let (mut generator, mut lane) = (Generator::new(config, 0, [2; 6]), Lane::new(Rate::TEN_GIGABITS, 10));
        generator.begin(0);
        let mut got = Vec::new();
        while let Some(at) = generator.next_arrival(&lane) {
            got.push((at, generator.take(&mut lane).unwrap().bytes[0]));
        }
        assert_eq!(got, [(67_210, 1), (500_000 + 99_200 + 10, 2), (500_000 + 99_200 + 67_200 + 10, 3)]);
        assert_eq!((generator.take(&mut lane), generator.sent()), (None, 3));
    }

    #[test]
    fn skipped_frames_take_the_same_time() {
        let (mut one, mut other) = (Lane::new(Rate::TEN_GIGABITS, 0), Lane::new(Rate::TEN_GIGABITS, 0));
        let config =
            Config { sizes: Sizes::Imix, pace: Pace::Bits(Rate::new(1_000_000_000).unwrap()), ..Config::default() };
        let mut generators = [(); 2].map(|()| Generator::new(config.clone(), 0, [2; 6]));
        generators.iter_mut().for_each(|generator| generator.begin(0));
        for _ in 0..100 {
            generators[0].take(&mut one).unwrap();
            generators[1].skip(&mut other);
        }
        assert_eq!(one, other);
        assert_eq!(generators[0].progress(), generators[1].progress());
    }
}
