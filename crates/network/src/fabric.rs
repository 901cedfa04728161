//! A network: ports and their connections.
//!
//! A frame that a NIC sends occupies its link, and arrives at the other end with its last bit. A tester or the host
//! takes the frame at once, because nothing can intervene; a bridge takes it by an event, because a frame of another
//! port may arrive earlier. Frames for a NIC wait at its port with their times of arrival. A generator's frames are
//! created when the NIC takes them.

use crate::bridge::{Bridge, Way};
use crate::capture::{Capture, Direction};
use crate::frame::{Frame, OVERHEAD, Offloads, SHORTEST};
use crate::generator::Generator;
use crate::headers::Mac;
use crate::lane::Lane;
use crate::options::{Attachment, Nic};
use crate::tester::{SavedTester, Tester};
use crate::time::{Rate, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of frames that wait at a port; further ones are lost.
const MOST_WAITING: usize = 1 << 10;

/// Other end of a port's link.
#[derive(Debug)]
enum End {
    Tester(Box<Tester>),
    /// The bridge with this number.
    Bridge(usize),
    /// The bridge with this name, which several networks share: an [`Exchange`](crate::Exchange) transports its frames.
    Trunk(String),
    /// The host's network.
    Host,
}

/// A frame and its time of arrival.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Arrival {
    at: Time,
    frame: Frame,
}

/// Counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Frames sent by the NIC.
    pub sent: u64,
    /// Frames received by the NIC.
    pub received: u64,
    /// Frames lost because the NIC was not ready, or had no room.
    pub lost: u64,
    /// Frames that the network dropped: malformed frames, or frames without room.
    pub dropped: u64,
}

impl Counts {
    /// Returns true if a run can reach these counts.
    fn is_possible(&self) -> bool {
        [self.sent, self.received, self.lost, self.dropped].iter().all(|count| *count < 1 << 62)
    }
}

/// State of a port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PortState {
    /// Directions from the NIC, and to it.
    up: Lane,
    down: Lane,
    arrivals: VecDeque<Arrival>,
    listens: bool,
    offloads: Offloads,
    counts: Counts,
}

#[derive(Debug)]
struct PortOf {
    name: String,
    end: End,
    state: PortState,
}

/// Saved state of a network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedNetwork {
    now: Time,
    ports: Vec<PortState>,
    testers: Vec<Option<SavedTester>>,
    bridges: Vec<Bridge>,
    crossing: Vec<((Time, u64), (usize, Frame))>,
    sequence: u64,
    outgoing: Vec<(usize, Vec<u8>)>,
}

/// A network.
#[derive(Debug, Default)]
pub struct Network {
    now: Time,
    ports: Vec<PortOf>,
    bridges: Vec<(String, Bridge)>,
    /// Frames on their way to a bridge, in order of arrival: time, a unique number; port and frame.
    crossing: BTreeMap<(Time, u64), (usize, Frame)>,
    sequence: u64,
    /// Frames for the host.
    outgoing: Vec<(usize, Vec<u8>)>,
    /// Frames for outside bridges, with their times of arrival and their ports.
    leaving: Vec<Leaving>,
    /// Frames from outside bridges, in the format of `crossing`, with the destination port. They are not part of the
    /// saved state, because networks that share a bridge are not saved.
    entering: BTreeMap<(Time, u64), (usize, Frame)>,
    capture: Option<Capture>,
}

/// A frame on its way to an outside bridge.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaving {
    /// Time of arrival at the bridge.
    pub at: Time,
    /// Port of origin.
    pub port: usize,
    /// The frame.
    pub frame: Frame,
}

/// Distance between the generator streams of networks; within a network, streams are numbered by port.
const STREAMS: u16 = 64;

/// Results of a port.
#[derive(Clone, Debug)]
pub struct PortReport<'a> {
    /// Name.
    pub name: &'a str,
    /// Counters.
    pub counts: Counts,
    /// Tester, if there is one.
    pub tester: Option<&'a Tester>,
}

impl Network {
    /// Creates a network with the ports of these NICs, each with its MAC address.
    pub fn new<'a>(nics: impl Iterator<Item = (&'a Nic, Mac)>) -> Self {
        Self::build(None, nics)
    }

    /// Creates network number `member` of several that share their bridges: connections to a bridge use an
    /// [`Exchange`](crate::Exchange).
    pub fn member<'a>(member: u16, nics: impl Iterator<Item = (&'a Nic, Mac)>) -> Self {
        Self::build(Some(member), nics)
    }

    fn build<'a>(member: Option<u16>, nics: impl Iterator<Item = (&'a Nic, Mac)>) -> Self {
        let mut network = Self::default();
        for (nic, mac) in nics {
            let number = network.ports.len();
            let stream = member.unwrap_or(0).wrapping_mul(STREAMS).wrapping_add(number as u16);
            let tester = |config| End::Tester(Box::new(Tester::new(config, stream, mac)));
            let end = match &nic.attachment {
                Attachment::Generator(config) => tester(Some((**config).clone())),
                Attachment::Sink => tester(None),
                Attachment::Bridge(name) if member.is_some() => End::Trunk(name.clone()),
                Attachment::Bridge(name) => End::Bridge(network.bridge(name)),
                Attachment::User(_) | Attachment::Tap(_) => End::Host,
            };
            let lane = || Lane::new(nic.rate, nic.latency);
            let state = PortState {
                up: lane(),
                down: lane(),
                arrivals: VecDeque::new(),
                listens: false,
                offloads: Offloads::default(),
                counts: Counts::default(),
            };
            network.ports.push(PortOf { name: format!("net{number}"), end, state });
        }
        network
    }

    /// Returns the bridge with a name.
    fn bridge(&mut self, name: &str) -> usize {
        self.bridges.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            self.bridges.push((name.to_owned(), Bridge::default()));
            self.bridges.len() - 1
        })
    }

    /// Returns names and bit rates of the ports, for a capture.
    pub fn interfaces(&self) -> Vec<(String, u64)> {
        self.ports.iter().map(|port| (port.name.clone(), port.state.up.rate().bits())).collect()
    }

    /// Returns the ports that are connected to outside bridges, and the names of these.
    pub fn trunks(&self) -> impl Iterator<Item = (usize, &str)> {
        self.ports.iter().enumerate().filter_map(|(number, port)| match &port.end {
            End::Trunk(name) => Some((number, name.as_str())),
            _ => None,
        })
    }

    /// Returns the minimum time of a frame from a NIC to the other end of its link.
    pub fn shortest(&self, port: usize) -> Time {
        let lane = &self.ports[port].state.up;
        Lane::new(lane.rate(), lane.latency()).arrival(0, SHORTEST as u64 + OVERHEAD)
    }

    /// Takes the frames for outside bridges since the last call.
    pub fn take_leaving(&mut self) -> Vec<Leaving> {
        std::mem::take(&mut self.leaving)
    }

    /// Accepts a frame of an outside bridge for a port at time `at`, which may be in the future.
    pub fn enter(&mut self, port: usize, at: Time, frame: Frame) {
        if matches!(self.ports.get(port), Some(PortOf { end: End::Trunk(_), .. })) {
            self.sequence += 1;
            self.entering.insert((at, self.sequence), (port, frame));
        }
    }

    /// Captures all frames from now on.
    pub fn capture(&mut self, capture: Capture) {
        self.capture = Some(capture);
    }

    /// Ends the capture, and returns the first error.
    pub fn end_capture(&mut self) -> Result<(), String> {
        self.capture.take().map_or(Ok(()), Capture::finish)
    }

    /// Returns the results of each port.
    pub fn report(&self) -> impl Iterator<Item = PortReport<'_>> {
        self.ports.iter().map(|port| PortReport {
            name: &port.name,
            counts: port.state.counts,
            tester: match &port.end {
                End::Tester(tester) => Some(tester),
                _ => None,
            },
        })
    }

    pub(crate) fn rate(&self, port: usize) -> Rate {
        self.ports[port].state.up.rate()
    }

    pub(crate) fn busy(&self, port: usize) -> Time {
        self.ports[port].state.up.busy()
    }

    pub(crate) fn listen(&mut self, port: usize, now: Time, on: bool, offloads: Offloads) {
        self.settle(now);
        self.discard(port, now);
        let PortOf { end, state, .. } = &mut self.ports[port];
        (state.listens, state.offloads) = (on, offloads);
        if let (true, End::Tester(tester)) = (on, end) {
            tester.ready(now, &state.down);
        }
    }

    pub(crate) fn send(&mut self, port: usize, now: Time, frame: Frame) {
        self.settle(now);
        let Self { ports, crossing, sequence, outgoing, leaving, capture, .. } = self;
        let PortOf { end, state, .. } = &mut ports[port];
        let arrives = state.up.send(now, &frame);
        if let Some(capture) = capture {
            for whole in frame.clone().finish() {
                capture.frame(port, now, Direction::Out, &whole.bytes);
            }
        }
        match end {
            End::Bridge(_) => {
                state.counts.sent += frame.occupies().1;
                *sequence += 1;
                crossing.insert((arrives, *sequence), (port, frame));
            }
            End::Trunk(_) => {
                state.counts.sent += frame.occupies().1;
                leaving.push(Leaving { at: arrives, port, frame });
            }
            End::Tester(tester) => {
                for whole in frame.finish() {
                    state.counts.sent += 1;
                    if let Some(answer) = tester.receive(arrives, &whole.bytes, &state.down) {
                        deliver(state, arrives, answer);
                    }
                }
            }
            End::Host => {
                for whole in frame.finish() {
                    state.counts.sent += 1;
                    outgoing.push((port, whole.bytes));
                }
            }
        }
    }

    /// Accepts a frame from the host.
    pub fn host_frame(&mut self, port: usize, now: Time, bytes: Vec<u8>) {
        self.settle(now);
        let Some(PortOf { end: End::Host, state, .. }) = self.ports.get_mut(port) else { return };
        let Some(mut frame) = Frame::new(bytes) else {
            state.counts.dropped += 1;
            return;
        };
        frame.checked = crate::segment::is_right(&frame.bytes);
        deliver(state, now, frame);
    }

    /// Returns true if there is room for frames from the host at a port.
    pub fn has_room(&self, port: usize) -> bool {
        self.ports
            .get(port)
            .is_some_and(|port| port.state.down.has_room(self.now) && port.state.arrivals.len() < MOST_WAITING / 2)
    }

    /// Takes the frames for the host since the last call.
    pub fn take_outgoing(&mut self) -> Vec<(usize, Vec<u8>)> {
        std::mem::take(&mut self.outgoing)
    }

    /// Returns true if any port is connected to the host.
    pub fn reaches_host(&self) -> bool {
        self.ports.iter().any(|port| matches!(port.end, End::Host))
    }

    /// Processes the network's events up to a time.
    fn settle(&mut self, now: Time) {
        self.now = self.now.max(now);
        while let Some(entry) = self.crossing.first_entry().filter(|entry| entry.key().0 <= now) {
            let (at, _) = *entry.key();
            let (port, frame) = entry.remove();
            self.forward(port, at, frame);
        }
        while let Some(entry) = self.entering.first_entry().filter(|entry| entry.key().0 <= now) {
            let (at, _) = *entry.key();
            let (port, frame) = entry.remove();
            deliver(&mut self.ports[port].state, at, frame);
        }
        for port in 0..self.ports.len() {
            self.decide(port, now);
        }
    }

    /// Handles a frame that has arrived at a bridge from a port.
    fn forward(&mut self, from: usize, at: Time, frame: Frame) {
        let End::Bridge(number) = self.ports[from].end else { return };
        let Some((_, bridge)) = self.bridges.get_mut(number) else { return };
        let way = bridge.forward(at, from, &frame.bytes);
        for (number_of_port, port) in self.ports.iter_mut().enumerate() {
            let there = matches!(port.end, End::Bridge(other) if other == number) && number_of_port != from;
            let wanted = match way {
                Way::Port(to) => to == number_of_port,
                Way::Everywhere => true,
                Way::Nowhere => false,
            };
            if there && wanted {
                deliver(&mut port.state, at, frame.clone());
            }
        }
    }

    /// Lets a tester evaluate its trial, if it is time.
    fn decide(&mut self, port: usize, now: Time) {
        let due = |port: &PortOf| match &port.end {
            End::Tester(tester) => tester.decision().filter(|at| *at <= now).map(|_| tester.stream()),
            _ => None,
        };
        let Some(stream) = due(&self.ports[port]) else { return };
        let testers = self.ports.iter().filter_map(|port| match &port.end {
            End::Tester(tester) => Some(tester.received_in_trial(stream)),
            _ => None,
        });
        let received = testers.sum();
        let End::Tester(tester) = &mut self.ports[port].end else { return };
        tester.decide(now, received);
        let first = tester.generator().map_or(0, Generator::sent);
        for port in &mut self.ports {
            if let End::Tester(tester) = &mut port.end {
                tester.trial_begins(stream, first);
            }
        }
    }

    pub(crate) fn next_arrival(&self, port: usize) -> Option<Time> {
        let PortOf { end, state, .. } = &self.ports[port];
        if !state.listens {
            return None;
        }
        let waiting = state.arrivals.front().map(|arrival| arrival.at);
        let (generated, decision) = match end {
            End::Tester(tester) => (tester.next_arrival(&state.down), tester.decision()),
            _ => (None, None),
        };
        let crossing = match end {
            End::Bridge(_) => self.crossing.first_key_value(),
            End::Trunk(_) => self.entering.first_key_value(),
            End::Tester(_) | End::Host => None,
        };
        [waiting, generated, decision, crossing.map(|((at, _), _)| *at)].into_iter().flatten().min()
    }

    pub(crate) fn receive(&mut self, port: usize, now: Time) -> Option<Frame> {
        self.settle(now);
        let Self { ports, capture, .. } = self;
        let PortOf { end, state, .. } = &mut ports[port];
        let frame = if state.listens { take(end, state, now)? } else { return None };
        if let Some(capture) = capture {
            for whole in frame.clone().finish() {
                capture.frame(port, now, Direction::In, &whole.bytes);
            }
        }
        state.counts.received += frame.occupies().1;
        Some(frame)
    }

    pub(crate) fn lost(&mut self, port: usize, frames: u64) {
        let counts = &mut self.ports[port].state.counts;
        counts.received = counts.received.saturating_sub(frames);
        counts.lost += frames;
    }

    pub(crate) fn discard(&mut self, port: usize, now: Time) -> u64 {
        self.settle(now);
        let PortOf { end, state, .. } = &mut self.ports[port];
        let mut lost = 0;
        loop {
            let generated = match end {
                End::Tester(tester) => tester.next_arrival(&state.down),
                _ => None,
            };
            let waiting = state.arrivals.front().map(|arrival| arrival.at);
            match (waiting, generated, &mut *end) {
                (Some(at), _, _) if at <= now && generated.is_none_or(|other| at <= other) => {
                    lost += state.arrivals.pop_front().map_or(0, |arrival| arrival.frame.occupies().1);
                }
                (_, Some(at), End::Tester(tester)) if at <= now => {
                    tester.skip(&mut state.down);
                    lost += 1;
                }
                _ => break,
            }
        }
        state.counts.lost += lost;
        lost
    }
}

/// Delivers a frame to a NIC, and segments it if the NIC does not accept it as it is.
fn deliver(state: &mut PortState, now: Time, frame: Frame) {
    let count = frame.occupies().1;
    if !state.listens {
        state.counts.lost += count;
        return;
    }
    if !state.down.has_room(now) || state.arrivals.len() >= MOST_WAITING {
        state.counts.dropped += count;
        return;
    }
    let frames = frame.for_receiver(state.offloads);
    state.counts.dropped += u64::from(frames.is_empty());
    for frame in frames {
        let at = state.down.send(now, &frame);
        state.arrivals.push_back(Arrival { at, frame });
    }
}

/// Returns the next frame that has arrived: a waiting one, or one of a generator.
fn take(end: &mut End, state: &mut PortState, now: Time) -> Option<Frame> {
    let waiting = state.arrivals.front().map(|arrival| arrival.at);
    if let End::Tester(tester) = end
        && let Some(at) = tester.next_arrival(&state.down).filter(|at| *at <= now)
        && waiting.is_none_or(|waiting| at < waiting)
    {
        return tester.take(&mut state.down);
    }
    waiting.filter(|at| *at <= now)?;
    state.arrivals.pop_front().map(|arrival| arrival.frame)
}

impl Network {
    /// Returns the state.
    pub fn save(&self) -> SavedNetwork {
        SavedNetwork {
            now: self.now,
            ports: self.ports.iter().map(|port| port.state.clone()).collect(),
            testers: self
                .ports
                .iter()
                .map(|port| match &port.end {
                    End::Tester(tester) => Some(tester.save()),
                    _ => None,
                })
                .collect(),
            bridges: self.bridges.iter().map(|(_, bridge)| bridge.clone()).collect(),
            crossing: self.crossing.iter().map(|(key, value)| (*key, value.clone())).collect(),
            sequence: self.sequence,
            outgoing: self.outgoing.clone(),
        }
    }

    /// Returns true if a saved state can be that of this network.
    pub fn accepts(&self, saved: &SavedNetwork) -> bool {
        let count = self.ports.len();
        let shape = (saved.ports.len(), saved.testers.len(), saved.bridges.len()) == (count, count, self.bridges.len());
        let fits = |(port, (state, tester)): (&PortOf, (&PortState, &Option<SavedTester>))| {
            let tester = match (&port.end, tester) {
                (End::Tester(here), Some(tester)) => here.accepts(tester),
                (End::Tester(_), None) => false,
                (_, tester) => tester.is_none(),
            };
            let ordered = state.arrivals.iter().map(|arrival| arrival.at).is_sorted();
            let frames = state.arrivals.iter().all(|arrival| arrival.frame.is_possible());
            tester
                && ordered
                && frames
                && state.counts.is_possible()
                && state.up.is_state_of(&port.state.up)
                && state.down.is_state_of(&port.state.down)
        };
        shape
            && self.ports.iter().zip(saved.ports.iter().zip(&saved.testers)).all(fits)
            && saved.bridges.iter().all(|bridge| bridge.is_possible(count, saved.now))
            && saved.crossing.iter().all(|((_, sequence), (port, frame))| {
                *port < count && *sequence <= saved.sequence && frame.is_possible()
            })
            && saved.sequence < 1 << 62
            && saved.outgoing.iter().all(|(port, _)| *port < count)
    }

    /// Restores an accepted state.
    pub fn restore(&mut self, saved: SavedNetwork) {
        for (port, (state, tester)) in self.ports.iter_mut().zip(saved.ports.into_iter().zip(saved.testers)) {
            port.state = state;
            if let (End::Tester(here), Some(tester)) = (&mut port.end, tester) {
                here.restore(tester);
            }
        }
        for ((_, bridge), saved) in self.bridges.iter_mut().zip(saved.bridges) {
            *bridge = saved;
        }
        (self.now, self.sequence, self.outgoing) = (saved.now, saved.sequence, saved.outgoing);
        self.crossing = saved.crossing.into_iter().collect();
    }
}

#[cfg(test)]
mod tests;
