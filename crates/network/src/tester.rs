//! A tester: a generator and a sink at the other end of a link, and its own behavior.
//!
//! It answers ARP requests for any address except the destination address, so that a guest can send or forward frames
//! to it without further configuration.

use crate::Frame;
use crate::generator::{Config, Generator, Progress, Start};
use crate::headers::{Headers, Mac, Transport};
use crate::lane::Lane;
use crate::rfc2544::Search;
use crate::sink::Sink;
use crate::time::{SECOND, Time};
use serde::{Deserialize, Serialize};

/// Port to which a guest sends a datagram to start the generator (discard).
const REQUEST: u16 = 9;
/// Offsets of fields in an ARP frame, and the constant fields: Ethernet, IPv4, lengths.
const ARP: [u8; 8] = [0x08, 0x06, 0, 1, 0x08, 0, 6, 4];
const ARP_AT: usize = 12;
const ARP_LEN: usize = 42;

/// A tester.
#[derive(Clone, Debug)]
pub struct Tester {
    generator: Option<Generator>,
    stream: u16,
    mac: Mac,
    state: State,
}

/// State of a tester without its generator's progress.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct State {
    sink: Sink,
    search: Option<Search>,
    /// Time at which the current trial is evaluated.
    decision: Option<Time>,
}

/// Saved state of a tester.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedTester(State, Option<Progress>);

impl Tester {
    /// Creates the tester of a port. Without a configuration it only has a sink.
    pub fn new(config: Option<Config>, stream: u16, nic: Mac) -> Self {
        let mac = config.as_ref().map_or(Config::default().mac, |config| config.mac);
        Self {
            generator: config.map(|config| Generator::new(config, stream, nic)),
            stream,
            mac,
            state: State::default(),
        }
    }

    /// Returns the sink.
    pub fn sink(&self) -> &Sink {
        &self.state.sink
    }

    /// Returns the generator.
    pub fn generator(&self) -> Option<&Generator> {
        self.generator.as_ref()
    }

    /// Returns the throughput search.
    pub fn search(&self) -> Option<&Search> {
        self.state.search.as_ref()
    }

    /// Handles the readiness of the guest to receive.
    pub fn ready(&mut self, now: Time, lane: &Lane) {
        match self.generator.as_ref().map(|generator| generator.config().start) {
            Some(Start::Ready) => self.begin(now, lane),
            Some(Start::At(at)) => self.begin(at.max(now), lane),
            Some(Start::Request) | None => {}
        }
    }

    /// Starts the generator.
    fn begin(&mut self, now: Time, lane: &Lane) {
        let Some(generator) = &mut self.generator else { return };
        if generator.began().is_some() {
            return;
        }
        match generator.config().trials {
            None => generator.begin(now),
            Some(trials) => {
                let smallest = generator.config().smallest();
                let fastest = SECOND / lane.rate().duration(smallest).max(1);
                let search = Search::new(fastest, SECOND / trials.length.max(1), trials.parts, trials.tolerance);
                self.state.search = Some(search);
                self.begin_trial(now);
            }
        }
    }

    fn begin_trial(&mut self, now: Time) {
        let Some(generator) = &mut self.generator else { return };
        let Some((trials, rate)) =
            generator.config().trials.zip(self.state.search.as_ref().and_then(|search| search.rate()))
        else {
            return;
        };
        generator.begin_trial(now, rate);
        self.state.decision = Some(now.saturating_add(trials.length).saturating_add(trials.settle));
    }

    /// Returns the time at which a trial is evaluated.
    pub fn decision(&self) -> Option<Time> {
        self.state.decision
    }

    /// Evaluates a trial, of which `received` frames have arrived at any sink.
    pub fn decide(&mut self, now: Time, received: u64) {
        if self.state.decision.is_none_or(|at| at > now) {
            return;
        }
        self.state.decision = None;
        let Some((generator, search)) = self.generator.as_ref().zip(self.state.search.as_mut()) else { return };
        search.tried(generator.sent_in_trial(), received);
        self.begin_trial(now);
    }

    /// Returns the time at which the next generated frame arrives at the NIC.
    pub fn next_arrival(&self, lane: &Lane) -> Option<Time> {
        self.generator.as_ref().and_then(|generator| generator.next_arrival(lane))
    }

    /// Sends the next frame.
    pub fn take(&mut self, lane: &mut Lane) -> Option<Frame> {
        self.generator.as_mut().and_then(|generator| generator.take(lane))
    }

    /// Sends the next frame without creating it.
    pub fn skip(&mut self, lane: &mut Lane) {
        if let Some(generator) = &mut self.generator {
            generator.skip(lane);
        }
    }

    /// Handles a received frame, and returns an answer if there is one.
    pub fn receive(&mut self, now: Time, frame: &[u8], lane: &Lane) -> Option<Frame> {
        self.state.sink.take(now, frame);
        if self.generator.as_ref().is_some_and(|g| g.config().start == Start::Request) && is_request(frame) {
            self.begin(now, lane);
        }
        self.arp_reply(frame)
    }

    fn arp_reply(&self, frame: &[u8]) -> Option<Frame> {
        let request = frame.get(..ARP_LEN)?;
        let field = |at: usize, len: usize| &request[at..at + len];
        let (sender_mac, sender, target) = (field(22, 6), field(28, 4), field(38, 4));
        let ours = self.generator.as_ref().is_none_or(|g| target != g.config().destination.octets());
        if field(ARP_AT, 8) != ARP || field(20, 2) != [0, 1] || !ours || sender == target {
            return None;
        }
        let mut reply = Vec::with_capacity(ARP_LEN);
        for part in [sender_mac, &self.mac, &ARP, &[0, 2], &self.mac, target, sender_mac, sender] {
            reply.extend_from_slice(part);
        }
        Frame::new(reply)
    }

    /// Returns the number of frames of the current trial of a stream that have arrived here.
    pub fn received_in_trial(&self, stream: u16) -> u64 {
        self.state.sink.received_since_mark(stream)
    }

    /// Begins a trial of a stream, whose first frame has number `first`: late frames of the previous trial are not
    /// counted.
    pub fn trial_begins(&mut self, stream: u16, first: u64) {
        self.state.sink.mark(stream, first);
    }

    /// Returns the number of frames of a stream that have arrived here.
    pub fn received(&self, stream: u16) -> u64 {
        self.state.sink.received(stream)
    }

    /// Returns the stream number of its frames.
    pub fn stream(&self) -> u16 {
        self.stream
    }

    /// Returns the state to be saved.
    pub fn save(&self) -> SavedTester {
        SavedTester(self.state.clone(), self.generator.as_ref().map(|generator| generator.progress().clone()))
    }

    /// Returns true if a saved state can be that of this tester.
    pub fn accepts(&self, saved: &SavedTester) -> bool {
        let trials = self.generator.as_ref().is_some_and(|generator| generator.config().trials.is_some());
        saved.1.is_some() == self.generator.is_some()
            && saved.0.sink.is_possible()
            && saved.0.search.as_ref().is_none_or(|search| trials && search.is_possible())
    }

    /// Restores an accepted state.
    pub fn restore(&mut self, saved: SavedTester) {
        self.state = saved.0;
        if let Some((generator, progress)) = self.generator.as_mut().zip(saved.1) {
            generator.go_on_from(progress);
        }
    }
}

/// Returns true if a frame is a datagram to the discard port.
fn is_request(frame: &[u8]) -> bool {
    let transport = Headers::of(frame).and_then(|headers| headers.transport);
    transport.is_some_and(|transport| transport.kind == Transport::Udp && transport.destination == REQUEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::Trials;
    use crate::time::Rate;
    use etherparse::PacketBuilder;

    const NIC: Mac = [2; 6];
    const LENGTH: Time = 10_000_000;

    fn lane() -> Lane {
        Lane::new(Rate::TEN_GIGABITS, 0)
    }

    fn searching() -> Tester {
        let trials = Trials { length: LENGTH, settle: 500, tolerance: 0, parts: 100 };
        Tester::new(Some(Config { trials: Some(trials), ..Config::default() }), 7, NIC)
    }

    #[test]
    fn a_generator_starts_as_it_is_told() {
        let wire = 67_200;
        for (start, now, first) in [
            (Start::Ready, 5, Some(5 + wire)),
            (Start::At(9), 5, Some(9 + wire)),
            (Start::At(9), 11, Some(11 + wire)),
            (Start::Request, 5, None),
        ] {
            let mut tester = Tester::new(Some(Config { start, ..Config::default() }), 0, NIC);
            assert_eq!(tester.next_arrival(&lane()), None);
            tester.ready(now, &lane());
            // It starts once.
            tester.ready(now + 1000, &lane());
            assert_eq!(tester.next_arrival(&lane()), first, "{start:?} at {now}");
        }
        let mut sink = Tester::new(None, 0, NIC);
        sink.ready(0, &lane());
        assert_eq!((sink.next_arrival(&lane()), sink.take(&mut lane()), sink.decision()), (None, None, None));
    }

    #[test]
    fn only_a_datagram_to_the_discard_port_is_a_request() {
        let ip = || PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        let (mut udp, mut other, mut tcp) = (Vec::new(), Vec::new(), Vec::new());
        ip().udp(1, 9).write(&mut udp, &[]).unwrap();
        ip().udp(9, 10).write(&mut other, &[]).unwrap();
        ip().tcp(1, 9, 0, 0).write(&mut tcp, &[]).unwrap();
        for (start, frame, begins) in [
            (Start::Request, &udp, true),
            (Start::Request, &other, false),
            (Start::Request, &tcp, false),
            (Start::Request, &vec![0; 60], false),
            (Start::Ready, &udp, false),
        ] {
            let mut tester = Tester::new(Some(Config { start, ..Config::default() }), 0, NIC);
            assert_eq!(tester.receive(5, frame, &lane()), None);
            assert_eq!(tester.generator().unwrap().began(), begins.then_some(5), "{start:?} {frame:x?}");
            assert_eq!(tester.sink().others, 1);
        }
    }

    #[test]
    fn frames_are_counted_by_their_stream_and_trial() {
        let (mut generator, mut tester) = (Tester::new(Some(Config::default()), 7, NIC), Tester::new(None, 0, NIC));
        let mut lane = lane();
        generator.ready(0, &lane);
        let mut come = |tester: &mut Tester| {
            let frame = generator.take(&mut lane).unwrap();
            tester.receive(5, &frame.bytes, &lane);
        };
        (0..3).for_each(|_| come(&mut tester));
        tester.trial_begins(7, 3);
        (0..2).for_each(|_| come(&mut tester));
        assert_eq!([tester.received(7), tester.received(0), tester.received(8)], [5, 0, 0]);
        assert_eq!([tester.received_in_trial(7), tester.received_in_trial(8)], [2, 0]);
    }

    /// Returns an ARP request for an address of 198.18.0.0/24 from another.
    fn request(target: u8, sender: u8) -> Vec<u8> {
        let mut bytes = [[0xff; 6], NIC].concat();
        bytes.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
        bytes.extend(NIC);
        bytes.extend([198, 18, 0, sender, 0, 0, 0, 0, 0, 0, 198, 18, 0, target]);
        bytes
    }

    #[test]
    fn a_tester_answers_for_every_address_but_the_destination() {
        let config = || Config { mac: [4; 6], ..Config::default() };
        let mut generator = Tester::new(Some(config()), 0, NIC);
        let mut sink = Tester::new(None, 0, NIC);
        let changed = |at: usize| {
            let mut bytes = request(3, 9);
            bytes[at] ^= 4;
            bytes
        };
        let answers = |tester: &mut Tester, frame: &[u8]| tester.receive(0, frame, &lane()).map(|frame| frame.bytes);
        let reply = |mac: Mac, target: u8| {
            let addresses = [&mac[..], &[198, 18, 0, target], &NIC, &[198, 18, 0, 9]].concat();
            Some([&NIC[..], &mac, &[0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 2], &addresses].concat())
        };
        let default = Config::default().mac;
        for (what, frame, of_generator, of_sink) in [
            ("another address", request(3, 9), reply([4; 6], 3), reply(default, 3)),
            ("the generator's address", request(1, 9), reply([4; 6], 1), reply(default, 1)),
            ("the destination address", request(2, 9), None, reply(default, 2)),
            ("its own address", request(3, 3), None, None),
            ("another protocol", changed(13), None, None),
            ("other lengths of addresses", changed(19), None, None),
            ("no request", changed(21), None, None),
            ("only a part", request(3, 9)[..41].to_vec(), None, None),
        ] {
            assert_eq!(answers(&mut generator, &frame), of_generator, "{what}");
            assert_eq!(answers(&mut sink, &frame), of_sink, "{what}");
        }
    }

    #[test]
    fn a_search_has_trials_until_it_is_decided() {
        let mut tester = searching();
        assert_eq!((tester.stream(), tester.search(), tester.decision()), (7, None, None));
        tester.ready(1_000, &lane());
        let search = tester.search().unwrap();
        // The rate of the link, and one frame in a trial.
        assert_eq!((search.rate(), search.floor()), (Some(14_880_952), 100_000));
        let end = 1_000 + LENGTH + 500;
        assert_eq!(tester.decision(), Some(end));
        let mut lane = lane();
        let sent = std::iter::from_fn(|| tester.take(&mut lane)).count() as u64;
        tester.decide(end - 1, sent);
        assert_eq!((tester.decision(), tester.search().unwrap().trials().len()), (Some(end), 0));
        tester.decide(end, sent - 1);
        // The next trial has half of the rate.
        assert_eq!(tester.decision(), Some(end + LENGTH + 500));
        assert_eq!(tester.search().unwrap().rate(), Some(7_440_476));
        // A restored search goes on.
        let saved = tester.save();
        let mut restored = searching();
        assert!(restored.accepts(&saved));
        restored.restore(saved.clone());
        assert_eq!((restored.save(), restored.decision()), (saved, tester.decision()));
        assert_eq!(restored.next_arrival(&lane), tester.next_arrival(&lane));
        assert_eq!(restored.take(&mut lane.clone()), tester.take(&mut lane));
    }

    #[test]
    fn a_tester_accepts_a_state_of_its_own_kind_alone() {
        let testers = [Tester::new(None, 0, NIC), Tester::new(Some(Config::default()), 0, NIC), {
            let mut tester = searching();
            tester.ready(0, &lane());
            tester
        }];
        let accepted = testers.each_ref().map(|here| testers.each_ref().map(|other| here.accepts(&other.save())));
        // A search without a state is one that has not begun.
        assert_eq!(accepted, [[true, false, false], [false, true, false], [false, true, true]]);
        let forge = |change: &dyn Fn(&mut State)| {
            let mut saved = testers[2].save();
            change(&mut saved.0);
            testers[2].accepts(&saved)
        };
        assert!(!forge(&|state| state.sink.others = 1 << 62));
        // The lower rate is larger than the upper one.
        let trials: Vec<(u64, u64, u64)> = Vec::new();
        let bytes = postcard::to_allocvec(&(9u64, 1u64, 100u64, 1u64, 0u32, 0u64, trials)).unwrap();
        let impossible: Search = postcard::from_bytes(&bytes).unwrap();
        assert!(!forge(&|state| state.search = Some(impossible.clone())));
    }
}
