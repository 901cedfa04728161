//! The network device (type 1): pairs of receive and transmit queues, and a control queue, in front of a port of a network.
//!
//! Frames arrive at the network's times. While the driver has buffers, the device wakes for each arrival. Without
//! buffers the device takes frames from the network only when the driver adds buffers; frames that have arrived in the
//! meantime and find no room are lost, as they would have been at their time. The device takes a frame from a transmit
//! ring, and returns its buffers, as soon as there is room in the device's buffer before the link.

mod coalesce;
mod control;
mod features;
mod filter;
mod header;
mod steering;

use super::{Broken, Device, Ring};
use crate::device::DeviceContext;
use crate::devices::Clock;
use crate::state::{Saved, StateError, decode, encode, require};
use coalesce::Coalescing;
use filter::Filter;
use ledger::Ticks;
use network::headers::Mac;
use network::options::Nic;
use network::time::SECOND;
use network::{Frame, Port, Time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use steering::Steering;

/// Maximum number of frames that wait for buffers of one receive queue; further ones are lost.
const BACKLOG: usize = 512;
/// Maximum number of bytes that the device takes from transmit queues before the link has sent them.
const SEND_BUFFER: u64 = 16 << 10;
/// Size of the control queue.
const CONTROL_RING: u16 = 64;
/// Maximum size of a command in bytes; the rest is ignored.
const LONGEST_COMMAND: usize = 16 << 10;
/// Maximum size of a transmit request in bytes; the rest is ignored.
const LONGEST_REQUEST: usize = network::frame::LONGEST + 64;

/// The link is up.
const LINK_UP: u16 = 1;
const FULL_DUPLEX: u8 = 1;

/// Returns true if a queue of a pair is the receive queue.
fn is_receive(queue: u16) -> bool {
    queue.is_multiple_of(2)
}

/// State of the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    features: u64,
    /// Enabled features of received frames.
    guest_offloads: u64,
    /// Number of queue pairs in use.
    pairs: u16,
    filter: Filter,
    steering: Steering,
    /// By pair: frames that wait for buffers, and a flag that is true if buffers ran out.
    backlogs: Vec<VecDeque<Frame>>,
    starved: Vec<bool>,
    /// By queue: true if the queue is started.
    started: Vec<bool>,
    /// Transmit queues that wait for room before the link, in the order in which they are served.
    waiting: VecDeque<u16>,
    /// Coalescing by queue.
    coalescing: Vec<Coalescing>,
    /// Time of the last access or event.
    now: Time,
}

/// A network device.
pub struct Net {
    port: Box<dyn Port>,
    clock: Clock,
    offered: u64,
    mac: Mac,
    pairs: u16,
    sizes: Vec<u16>,
    config: Vec<u8>,
    state: State,
}

impl Net {
    /// Creates a device with the address `mac`, connected to a port.
    pub fn new(nic: &Nic, mac: Mac, port: Box<dyn Port>, clock: Clock) -> Self {
        let pairs = nic.queues.max(1);
        let mut sizes = vec![nic.ring; 2 * usize::from(pairs)];
        sizes.push(CONTROL_RING);
        let mut config = mac.to_vec();
        config.extend(LINK_UP.to_le_bytes());
        config.extend(pairs.to_le_bytes());
        config.extend(nic.mtu.unwrap_or(0).to_le_bytes());
        config.extend(port.rate().megabits().to_le_bytes());
        config.extend([FULL_DUPLEX, network::rss::KEY as u8]);
        config.extend((steering::TABLE as u16).to_le_bytes());
        config.extend(steering::HASH_TYPES.to_le_bytes());
        let state = State::new(mac, pairs);
        Self { port, clock, offered: features::offered(nic), mac, pairs, sizes, config, state }
    }

    fn time(&self, now: Ticks) -> Time {
        self.clock.count(now, SECOND)
    }

    fn has(&self, feature: u64) -> bool {
        self.state.features & feature != 0
    }

    /// Returns the index of the control queue, which follows the pairs that the driver knows of.
    fn control_queue(&self) -> u16 {
        if self.has(features::MQ | features::RSS) { 2 * self.pairs } else { 2 }
    }

    /// Returns true if a receive queue is used and started.
    fn receives(&self, pair: u16) -> bool {
        pair < self.state.pairs && self.state.started[usize::from(2 * pair)]
    }

    /// Tells the network if the driver is ready, and which offloads it accepts.
    fn listen(&mut self, now: Time) {
        let on = self.state.started[0];
        self.port.listen(now, on, features::takes(self.state.guest_offloads));
    }

    /// Takes the arrived frames from the network, and selects their queues.
    fn pull(&mut self, now: Time) {
        self.state.now = self.state.now.max(now);
        if !self.state.started[0] {
            return;
        }
        let takes = features::takes(self.state.guest_offloads);
        loop {
            let full = (0..self.state.pairs)
                .filter(|pair| self.receives(*pair))
                .all(|pair| self.state.backlogs[usize::from(pair)].len() >= BACKLOG);
            if full {
                self.port.discard(now);
                return;
            }
            let Some(frame) = self.port.receive(now) else { return };
            if !self.state.filter.takes(&frame.bytes) {
                continue;
            }
            for frame in frame.for_receiver(takes) {
                self.steer(frame);
            }
        }
    }

    fn steer(&mut self, frame: Frame) {
        let hash = self.state.steering.hash(&frame.bytes);
        let pair = self.state.steering.queue(&frame.bytes, hash, self.state.pairs);
        let receives = self.receives(pair);
        let backlog = &mut self.state.backlogs[usize::from(pair)];
        if receives && backlog.len() < BACKLOG {
            backlog.push_back(frame);
        } else {
            self.port.lost(frame.occupies().1);
        }
    }

    /// Writes waiting frames of a queue to the driver's buffers.
    fn receive(&mut self, pair: u16, ring: &mut Ring, now: Time) -> Result<(), Broken> {
        self.pull(now);
        let mut passed = 0;
        let at = usize::from(pair);
        self.state.starved[at] = false;
        while let Some(frame) = self.state.backlogs[at].front() {
            let hash = if self.has(features::HASH_REPORT) { self.state.steering.hash(&frame.bytes) } else { None };
            let header = header::received(frame, hash, self.state.features);
            let merge = self.has(features::MRG_RXBUF);
            match put(ring, header, &frame.bytes, merge)? {
                Put::Done => passed += 1,
                Put::TooLong => self.port.lost(frame.occupies().1),
                Put::NoBuffers => {
                    self.state.starved[at] = true;
                    break;
                }
            }
            self.state.backlogs[at].pop_front();
        }
        self.settle(2 * pair, passed, ring, now);
        Ok(())
    }

    /// Returns the waiting transmit queue that is served next. A queue whose pair is not in use keeps its place, and holds up no other queue.
    fn next_sender(&self) -> Option<u16> {
        let State { waiting, started, pairs, .. } = &self.state;
        waiting.iter().copied().find(|queue| *queue < 2 * pairs && !is_receive(*queue) && started[usize::from(*queue)])
    }

    /// Returns true if a transmit queue may send a frame now. Otherwise it waits, and keeps its place if the driver notifies it again.
    fn takes_turn(&mut self, queue: u16, now: Time) -> bool {
        let waits = self.state.waiting.contains(&queue);
        let turn = self.room_at() <= now && (!waits || self.next_sender() == Some(queue));
        match (turn, waits) {
            (true, true) => self.state.waiting.retain(|waiting| *waiting != queue),
            (false, false) => self.state.waiting.push_back(queue),
            _ => {}
        }
        turn
    }

    /// Sends the frames of a transmit queue while there is room before the link.
    fn transmit(&mut self, queue: u16, ring: &mut Ring, now: Time) -> Result<(), Broken> {
        let mut passed = 0;
        while self.takes_turn(queue, now) {
            let Some(mut chain) = ring.pop()? else { break };
            let mut bytes = vec![0; chain.reader.available_bytes().min(LONGEST_REQUEST)];
            let read = chain.read(&mut bytes);
            bytes.truncate(read);
            ring.push(chain, 0)?;
            passed += 1;
            let len = header::len(self.state.features);
            if bytes.len() < len {
                continue;
            }
            let frame = bytes.split_off(len);
            if let Some(frame) = header::sent(&bytes, frame, self.state.features) {
                self.state.steering.sent(&frame.bytes, queue / 2, self.state.pairs);
                self.port.send(now, frame);
            }
        }
        self.settle(queue, passed, ring, now);
        Ok(())
    }

    /// Notifies the driver of `passed` returned requests of a queue, now or later.
    fn settle(&mut self, queue: u16, passed: u32, ring: &mut Ring, now: Time) {
        let coalescing = &mut self.state.coalescing[usize::from(queue)];
        if passed == 0 && coalescing.due().is_none() {
            return;
        }
        if coalescing.passed(passed, now) { ring.announce() } else { ring.hold() }
    }

    /// Returns the time from which there is room before the link.
    fn room_at(&self) -> Time {
        self.port.busy().saturating_sub(self.port.rate().duration(SEND_BUFFER))
    }

    fn control(&mut self, ring: &mut Ring, now: Time) -> Result<(), Broken> {
        while let Some(mut chain) = ring.pop()? {
            let mut bytes = vec![0; chain.reader.available_bytes().min(LONGEST_COMMAND)];
            let read = chain.read(&mut bytes);
            self.pull(now);
            let (status, answer) = self.command(&bytes[..read], now);
            let mut written = 0;
            // The requested data precedes the status.
            let room = chain.writer.available_bytes();
            if let Some(status_at) = room.checked_sub(1) {
                let mut tail = chain.writer.split_at(status_at)?;
                written = chain.write(&answer) + tail.write(&[status]);
            }
            ring.push(chain, written as u32)?;
        }
        Ok(())
    }
}

/// Outcome of writing a frame to buffers.
enum Put {
    Done,
    /// There are not enough buffers.
    NoBuffers,
    /// The frame is longer than its buffer, and may not be spread over several buffers.
    TooLong,
}

/// Writes a frame with its header to buffers of the driver: to one buffer, or with `merge` to as many as needed.
fn put(ring: &mut Ring, mut header: Vec<u8>, frame: &[u8], merge: bool) -> Result<Put, Broken> {
    let mark = ring.mark();
    let needed = header.len() + frame.len();
    let (mut chains, mut room) = (Vec::new(), 0);
    while room < needed && (merge || chains.is_empty()) {
        let Some(chain) = ring.pop()? else {
            ring.rewind(mark);
            return Ok(Put::NoBuffers);
        };
        room += chain.writer.available_bytes();
        chains.push(chain);
    }
    let first = chains.first().map_or(0, |chain| chain.writer.available_bytes());
    if room < needed || first < header.len() {
        for chain in chains {
            ring.push(chain, 0)?;
        }
        return Ok(Put::TooLong);
    }
    let count = chains.len() as u16;
    header[header::BUFFERS_AT..header::BUFFERS_AT + 2].copy_from_slice(&count.to_le_bytes());
    let mut rest = frame;
    for (number, mut chain) in chains.into_iter().enumerate() {
        let mut written = if number == 0 { chain.write(&header) } else { 0 };
        let body = chain.write(rest);
        rest = &rest[body..];
        written += body;
        ring.push(chain, written as u32)?;
    }
    Ok(Put::Done)
}

impl Device for Net {
    fn name(&self) -> &'static str {
        "virtio network"
    }

    fn kind(&self) -> u16 {
        1
    }

    fn class(&self) -> u32 {
        0x02_0000
    }

    fn features(&self) -> u64 {
        self.offered
    }

    fn queues(&self) -> &[u16] {
        &self.sizes
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn negotiated(&mut self, features: u64) {
        let features = features::effective(features);
        self.state.features = features;
        self.state.guest_offloads = features & features::GUEST_OFFLOADS;
        if features & features::CTRL_VLAN != 0 {
            self.state.filter.filter_vlans();
        }
    }

    fn started(&mut self, queue: u16, now: Ticks) {
        self.state.started[usize::from(queue)] = true;
        if queue == 0 {
            self.listen(self.time(now));
        }
    }

    fn stopped(&mut self, queue: u16, now: Ticks) {
        self.state.started[usize::from(queue)] = false;
        self.state.waiting.retain(|waiting| *waiting != queue);
        if queue == 0 {
            self.state.backlogs.iter_mut().for_each(VecDeque::clear);
            self.listen(self.time(now));
        }
    }

    fn process(&mut self, queue: u16, ring: &mut Ring, ctx: &mut DeviceContext) -> Result<(), Broken> {
        let now = self.time(ctx.now);
        match queue {
            _ if queue == self.control_queue() => self.control(ring, now),
            _ if queue >= 2 * self.state.pairs => Ok(()),
            _ if is_receive(queue) => self.receive(queue / 2, ring, now),
            _ => self.transmit(queue, ring, now),
        }
    }

    fn has_input(&self, queue: u16) -> bool {
        let State { backlogs, starved, coalescing, now, .. } = &self.state;
        let pair = usize::from(queue / 2);
        if queue >= 2 * self.state.pairs {
            return false;
        }
        let late = coalescing[usize::from(queue)].due().is_some_and(|due| due <= *now);
        let work = match is_receive(queue) {
            true => !backlogs[pair].is_empty() && !starved[pair],
            false => self.next_sender() == Some(queue) && self.room_at() <= *now,
        };
        self.state.started[usize::from(queue)] && (late || work)
    }

    fn next_event(&self) -> Option<Ticks> {
        let receives = (0..self.state.pairs).any(|pair| self.receives(pair) && !self.state.starved[usize::from(pair)]);
        let arrival = if receives { self.port.next_arrival() } else { None };
        let room = self.next_sender().map(|_| self.room_at());
        let due = self.state.coalescing.iter().filter_map(Coalescing::due).min();
        // An event that was already due and was not handled waits for the driver.
        let first = [arrival, room, due].into_iter().flatten().filter(|time| *time > self.state.now).min()?;
        Some(self.clock.ticks(first, SECOND))
    }

    fn advance(&mut self, now: Ticks) {
        self.pull(self.time(now));
    }

    fn reset(&mut self) {
        let now = self.state.now;
        self.state = State { now, ..State::new(self.mac, self.pairs) };
        self.config[..6].copy_from_slice(&self.mac);
    }
}

impl State {
    fn new(mac: Mac, pairs: u16) -> Self {
        let count = usize::from(pairs);
        Self {
            features: 0,
            guest_offloads: 0,
            pairs: 1,
            filter: Filter::new(mac),
            steering: Steering::default(),
            backlogs: vec![VecDeque::new(); count],
            starved: vec![false; count],
            started: vec![false; 2 * count + 1],
            waiting: VecDeque::new(),
            coalescing: vec![Coalescing::default(); 2 * count],
            now: 0,
        }
    }

    /// Checks that this can be the state of a device with `pairs` pairs of queues.
    fn check(&self, pairs: u16) -> Result<(), StateError> {
        let count = usize::from(pairs);
        let lengths = (self.backlogs.len(), self.starved.len(), self.started.len(), self.coalescing.len());
        let frames = self.backlogs.iter().all(|all| all.len() <= BACKLOG && all.iter().all(Frame::is_possible));
        let waiting = self.waiting.len() <= count && self.waiting.iter().all(|queue| *queue < 2 * pairs);
        let good = lengths == (count, count, 2 * count + 1, 2 * count) && frames && waiting;
        require(good && (1..=pairs).contains(&self.pairs), "the queues of a network device")?;
        require(self.now < Time::MAX, "a network device of the future")?;
        self.filter.check()?;
        self.steering.check(pairs)
    }
}

impl Saved for Net {
    fn save(&self) -> Result<Vec<u8>, StateError> {
        encode(&self.state)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let state: State = decode(bytes)?;
        state.check(self.pairs)?;
        self.config[..6].copy_from_slice(&state.filter.mac);
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_states_are_refused() {
        let frame = |len: usize| Frame { bytes: vec![0; len], partial: None, segments: None, checked: false };
        let changed = |change: &dyn Fn(&mut State)| {
            let mut state = State::new([2; 6], 3);
            change(&mut state);
            state.check(3)
        };
        let queues = Err(StateError::Impossible("the queues of a network device"));
        type Forgery<'a> = (&'a str, &'a dyn Fn(&mut State), Result<(), StateError>);
        let cases: [Forgery; 19] = [
            ("nothing", &|_| (), Ok(())),
            ("a full backlog", &|state| state.backlogs[1].extend(vec![frame(14); BACKLOG]), Ok(())),
            ("more than a backlog", &|state| state.backlogs[1].extend(vec![frame(14); BACKLOG + 1]), queues.clone()),
            ("a short frame", &|state| state.backlogs[0].push_back(frame(13)), queues.clone()),
            ("fewer backlogs", &|state| state.backlogs.truncate(2), queues.clone()),
            ("more backlogs", &|state| state.backlogs.push(VecDeque::new()), queues.clone()),
            ("fewer flags of hunger", &|state| state.starved.truncate(2), queues.clone()),
            ("fewer queues", &|state| state.started.truncate(6), queues.clone()),
            ("more queues", &|state| state.started.push(true), queues.clone()),
            ("fewer coalescings", &|state| state.coalescing.truncate(5), queues.clone()),
            ("three waiting queues", &|state| state.waiting.extend([5, 1, 3]), Ok(())),
            ("four waiting queues", &|state| state.waiting.extend([5, 1, 3, 1]), queues.clone()),
            ("a waiting queue that does not exist", &|state| state.waiting.push_back(6), queues.clone()),
            ("all pairs", &|state| state.pairs = 3, Ok(())),
            ("no pair", &|state| state.pairs = 0, queues.clone()),
            ("too many pairs", &|state| state.pairs = 4, queues),
            ("the last moment", &|state| state.now = Time::MAX - 1, Ok(())),
            (
                "the end of time",
                &|state| state.now = Time::MAX,
                Err(StateError::Impossible("a network device of the future")),
            ),
            (
                "a table with a fourth queue",
                &|state| assert!(state.steering.set_table(vec![3], 0, 4)),
                Err(StateError::Impossible("the steering of a network device")),
            ),
        ];
        for (what, change, expected) in cases {
            assert_eq!(changed(change), expected, "{what}");
        }
    }

    #[test]
    fn frames_are_for_a_device_whose_receive_queue_is_started() {
        let Ok(network::options::Net::Nic(nic)) = "generator".parse() else { panic!() };
        for (queue, receives) in [(0, true), (1, false), (2, false)] {
            let network = network::Network::new([(&nic, [2; 6])].into_iter());
            let port = network::Plug::new(&std::sync::Arc::new(std::sync::Mutex::new(network)), 0);
            let mut net = Net::new(&nic, [2; 6], Box::new(port), Clock::new(1_000_000_000));
            net.started(queue, 0);
            assert_eq!(net.next_event().is_some(), receives, "queue {queue}");
            net.stopped(queue, 0);
            assert_eq!(net.next_event(), None, "queue {queue}");
        }
    }
}
