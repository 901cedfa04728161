//! The receive unit (82599 datasheet, 7.1): frames wait in the packet buffer, in order of arrival, until the queue of
//! the first frame has descriptors.
//!
//! A queue with drop enabled loses a frame for which it has no descriptor. A queue without it holds up all others,
//! until the buffer is full and frames are missed. The device does not wake for arriving frames that it could not
//! process.

use super::crc;
use super::director::{Action, Director};
use super::file::{self, File, QUEUES};
use super::filter::{self, Pass};
use super::interrupts::{Interrupts, Way};
use super::packet::{self, Packet, kind, status};
use super::reg::{self, bit};
use super::statistics;
use crate::memory::GuestRam;
use crate::state::{StateError, require};
use network::frame::SHORTEST;
use network::rss::{self, Input};
use network::{Frame, Offloads, Port, Time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Unit of packet buffer allocation, in bytes.
const PIECE: usize = 64;
const DESCRIPTOR: u64 = 16;
/// Size of a VLAN tag in bytes.
const TAG: usize = 4;

/// RSS hash inputs: the enable bit in MRQC, and the RSS type in the descriptor.
const HASHES: [(Input, u32, u32); 6] = [
    (Input::Tcp4, 1 << 16, 1),
    (Input::Ip4, 1 << 17, 2),
    (Input::Ip6, 1 << 20, 5),
    (Input::Tcp6, 1 << 21, 3),
    (Input::Udp4, 1 << 22, 7),
    (Input::Udp6, 1 << 23, 8),
];

/// Descriptor formats.
mod descriptor {
    pub const LEGACY: u32 = 0;
    pub const SPLIT: u32 = 2;
    pub const SPLIT_ALWAYS: u32 = 5;
}

/// The packet buffer and the queues.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Receive {
    buffer: VecDeque<Frame>,
    /// Used bytes of the packet buffer.
    taken: usize,
    /// Enabled queues.
    enabled: Vec<u8>,
}

/// Destination of a frame.
struct Place {
    queue: usize,
    drop: bool,
    directed: bool,
    /// Result of the Flow Director lookup, if there was one: true if a filter matched.
    found: Option<bool>,
    /// RSS hash and type.
    hash: Option<(u32, u32)>,
    /// Index of the matching EtherType filter.
    ether_type: Option<u32>,
}

/// Outcome of writing a frame to its queue.
enum Put {
    Done,
    NoDescriptors,
    /// The frame can never be received.
    Never,
}

/// The parts of the device that the receive unit uses.
pub struct Unit<'a> {
    pub file: &'a mut File,
    pub director: &'a Director,
    pub interrupts: &'a mut Interrupts,
    pub ram: &'a GuestRam,
    /// True if the device may access memory (bus master).
    pub master: bool,
}

fn room(frame: &Frame) -> usize {
    frame.bytes.len().next_multiple_of(PIECE)
}

/// Returns true if reception is enabled.
pub fn is_on(file: &File) -> bool {
    file.has(reg::RXCTRL, bit::RXCTRL_ENABLE)
}

/// Returns the size of a ring, its head, and the number of descriptors from head to tail.
fn ring(file: &File, queue: usize) -> (u32, u32, u32) {
    let size = file.get(file::rx(queue, reg::RDLEN)) / DESCRIPTOR as u32;
    let (head, tail) = (file.get(file::rx(queue, reg::RDH)), file.get(file::rx(queue, reg::RDT)));
    if size == 0 || head >= size || tail >= size {
        return (size, head, 0);
    }
    (size, head, (tail + size - head) % size)
}

impl Receive {
    /// Takes arrived frames into the packet buffer, and writes them to queues that have descriptors.
    pub fn pull(&mut self, port: &mut dyn Port, now: Time, unit: &mut Unit) {
        loop {
            port.lost(self.drain(unit));
            if !is_on(unit.file) {
                return;
            }
            if self.taken >= unit.file.get(reg::RXPBSIZE) as usize {
                let missed = port.discard(now);
                unit.file.add(reg::MPC, missed);
                return;
            }
            let Some(frame) = port.receive(now) else { return };
            for frame in frame.for_receiver(Offloads::default()) {
                self.admit(frame, unit.file);
            }
        }
    }

    /// Admits a frame from the wire into the packet buffer.
    pub fn admit(&mut self, mut frame: Frame, file: &mut File) {
        if frame.bytes.len() < SHORTEST {
            frame.bytes.resize(SHORTEST, 0);
        }
        statistics::arrived(file, &frame.bytes);
        let packet = Packet::of(&frame.bytes);
        let tag = if packet.vlan.is_some() { TAG } else { 0 };
        let longest = if file.has(reg::HLREG0, bit::HLREG0_JUMBO) { file.get(reg::MHADD) >> 16 } else { 1518 };
        if frame.bytes.len() + statistics::CHECK_SEQUENCE as usize > longest as usize + tag {
            file.add(reg::ROC, 1);
            return;
        }
        if packet::is_control(&frame.bytes) && file.has(reg::MFLCN, bit::MFLCN_DISCARD_PAUSE) {
            file.add(reg::LXOFFRXCNT, 1);
            return;
        }
        if filter::pass(file, &frame.bytes, &packet).is_none() {
            return;
        }
        statistics::received(file, &frame.bytes);
        self.taken += room(&frame);
        self.buffer.push_back(frame);
    }

    /// Writes waiting frames to their queues. Returns the number of lost frames.
    fn drain(&mut self, unit: &mut Unit) -> u64 {
        let mut lost = 0;
        while let Some(frame) = self.buffer.front() {
            let packet = Packet::of(&frame.bytes);
            let place = unit.place(frame, &packet);
            let open = self.enabled.contains(&(place.queue as u8));
            let put = if place.drop || !open { Put::Never } else { unit.put(frame, &packet, &place) };
            match put {
                Put::Done => {}
                Put::NoDescriptors if !unit.drops(place.queue) => break,
                Put::NoDescriptors => statistics::dropped(unit.file, place.queue),
                Put::Never => {}
            }
            statistics::looked_up(unit.file, place.found);
            lost += u64::from(!matches!(put, Put::Done));
            self.taken -= room(frame);
            self.buffer.pop_front();
        }
        lost
    }

    /// Returns true if the device should wake for an arriving frame.
    pub fn listens(&self, file: &File) -> bool {
        is_on(file) && self.buffer.is_empty() && self.enabled.iter().any(|queue| ring(file, (*queue).into()).2 > 0)
    }

    /// Updates the list of enabled queues.
    pub fn queues_changed(&mut self, file: &File) {
        let enabled = |queue: &usize| file.has(file::rx(*queue, reg::RXDCTL), bit::QUEUE_ENABLE);
        self.enabled = (0..QUEUES).filter(enabled).map(|queue| queue as u8).collect();
    }

    /// Discards the frames in the packet buffer.
    pub fn clear(&mut self) {
        self.buffer.clear();
        self.taken = 0;
    }

    /// Checks the restored contents of the packet buffer.
    pub fn check(&self, file: &File) -> Result<(), StateError> {
        let mut same = self.clone();
        same.queues_changed(file);
        let taken: usize = self.buffer.iter().map(room).sum();
        let frames = self.buffer.iter().all(Frame::is_possible) && taken == self.taken;
        require(frames && same.enabled == self.enabled, "the packet buffer of a network device")
    }
}

impl Unit<'_> {
    /// Returns true if a queue loses frames while it has no descriptors.
    fn drops(&self, queue: usize) -> bool {
        self.file.has(file::rx(queue, reg::SRRCTL), bit::SRRCTL_DROP)
    }

    /// Selects the destination of a frame by its EtherType, its flow, or its hash.
    fn place(&self, frame: &Frame, packet: &Packet) -> Place {
        let hash = self.hash(frame);
        let mut place = Place { queue: 0, drop: false, directed: false, found: None, hash, ether_type: None };
        for number in 0..8 {
            let filter = self.file.get(reg::ETQF + 4 * number);
            if filter & bit::ETQF_ENABLE != 0 && filter as u16 == packet.ether_type {
                place.ether_type = Some(number);
                let select = self.file.get(reg::ETQS + 4 * number);
                if select & bit::ETQS_QUEUE != 0 {
                    place.queue = (select >> 16 & 0x7f) as usize;
                    return place;
                }
                break;
            }
        }
        if Director::is_on(self.file)
            && let Some(flow) = packet.flow(&frame.bytes, Director::flex_at(self.file))
        {
            let action = self.director.look_up(self.file, &flow);
            place.found = Some(action.is_some());
            match action {
                Some(Action::Drop) => place.drop = true,
                Some(Action::Queue(queue)) => (place.queue, place.directed) = (queue.into(), true),
                None => {}
            }
        }
        if let (false, Some((hash, _))) = (place.directed, place.hash) {
            let entry = hash & 0x7f;
            // The hash selects one of sixteen queues.
            place.queue = (self.file.get(reg::RETA + entry / 4 * 4) >> (8 * (entry % 4)) & 0xf) as usize;
        }
        place
    }

    fn hash(&self, frame: &Frame) -> Option<(u32, u32)> {
        let control = self.file.get(reg::MRQC);
        if control & 0xf != 1 {
            return None;
        }
        let of = |input| HASHES.iter().find(|(known, ..)| *known == input);
        let allowed = |input| of(input).is_some_and(|(_, bit, _)| control & bit != 0);
        let key: Vec<u8> = (0..10).flat_map(|word| self.file.get(reg::RSSRK + 4 * word).to_le_bytes()).collect();
        let (hash, input) = rss::hash(&frame.bytes, &key, allowed)?;
        of(input).map(|(_, _, kind)| (hash, *kind))
    }

    /// Writes a frame to the buffers of its queue.
    fn put(&mut self, frame: &Frame, packet: &Packet, place: &Place) -> Put {
        let queue = place.queue;
        let control = self.file.get(file::rx(queue, reg::SRRCTL));
        let form = control >> 25 & 7;
        let size = (control as usize & 0x1f).max(1) << 10;
        let mut bytes = frame.bytes.clone();
        let strip = self.file.has(file::rx(queue, reg::RXDCTL), bit::RXDCTL_STRIP_VLAN);
        let tag = packet.vlan.filter(|_| strip);
        if tag.is_some() {
            bytes.drain(12..12 + TAG);
        }
        let split = match form {
            descriptor::SPLIT | descriptor::SPLIT_ALWAYS => self.split(packet, tag.is_some(), control, form),
            _ => None,
        };
        if !self.file.has(reg::HLREG0, bit::HLREG0_STRIP_CRC) {
            bytes.extend(crc::ethernet(&frame.bytes));
        }
        let header = split.map_or(0, |len: usize| len.min(bytes.len()));
        let needed = (bytes.len() - header).div_ceil(size).max(1) as u32;
        let (entries, head, available) = ring(self.file, queue);
        if !self.master || available < needed {
            return if needed < entries { Put::NoDescriptors } else { Put::Never };
        }
        let base = self.file.wide(file::rx(queue, reg::RDBAL), file::rx(queue, reg::RDBAH));
        let mut state = status::DONE | self.state(frame, packet, place, tag.is_some());
        let mut rest = &bytes[header..];
        for number in 0..needed {
            let at = base.wrapping_add(u64::from((head + number) % entries) * DESCRIPTOR);
            let Some([buffer, header_buffer]) = self.read(at) else {
                self.stop(queue);
                return Put::Never;
            };
            // Data for addresses outside of memory is lost.
            let part;
            (part, rest) = rest.split_at(rest.len().min(size));
            _ = self.ram.write(buffer, part);
            let first = number == 0;
            if first && header > 0 {
                _ = self.ram.write(header_buffer & !1, &bytes[..header]);
            }
            if number + 1 == needed {
                state |= status::END;
            }
            let tag = u32::from(tag.unwrap_or(0)) << 16;
            let len = part.len() as u32;
            let words = if form == descriptor::LEGACY {
                // Status, errors, VLAN tag.
                [len, state & 0xff | state >> 16 & 0xc000 | tag]
            } else {
                let (hash, hash_kind) = place.hash.filter(|_| self.reports_hash()).unwrap_or_default();
                let split = if header > 0 && first { (header as u32) << 21 | 1 << 31 } else { 0 };
                self.write(at, [hash_kind | self.kind(packet, place) << 4 | split, hash]);
                [state, len | tag]
            };
            self.write(at.wrapping_add(8), words);
        }
        self.file.set(file::rx(queue, reg::RDH), (head + needed) % entries);
        self.interrupts.queue(self.file, queue, Way::Receive);
        statistics::queued(self.file, queue, frame.bytes.len() as u64 + statistics::CHECK_SEQUENCE);
        Put::Done
    }

    /// Returns the number of bytes that go to the header buffer.
    fn split(&self, packet: &Packet, stripped: bool, control: u32, form: u32) -> Option<usize> {
        let room = (control as usize >> 8 & 0x3f) * 64;
        let wanted = self.file.get(reg::PSRTYPE);
        let end = packet.split(wanted).map(|end| end - if stripped { TAG } else { 0 });
        match end {
            Some(end) if end <= room => Some(end),
            _ if form == descriptor::SPLIT_ALWAYS => Some(room),
            _ => None,
        }
    }

    fn reports_hash(&self) -> bool {
        self.file.has(reg::RXCSUM, bit::RXCSUM_NO_FRAGMENT_SUM)
    }

    /// Returns the packet type.
    fn kind(&self, packet: &Packet, place: &Place) -> u32 {
        place.ether_type.map_or(packet.kind, |number| kind::ETHER_TYPE | number)
    }

    fn state(&self, frame: &Frame, packet: &Packet, place: &Place, stripped: bool) -> u32 {
        let inexact = filter::pass(self.file, &frame.bytes, packet) == Some(Pass::Inexact);
        let flags = [(place.directed, status::DIRECTED), (stripped, status::VLAN), (inexact, status::INEXACT)];
        flags.iter().filter(|(on, _)| *on).fold(packet.checksums(frame), |bits, (_, flag)| bits | flag)
    }

    fn read(&self, at: u64) -> Option<[u64; 2]> {
        let mut bytes = [0; DESCRIPTOR as usize];
        let half = |bytes: &[u8]| bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        self.ram.read(at, &mut bytes).then(|| [half(&bytes[..8]), half(&bytes[8..])])
    }

    fn write(&self, at: u64, words: [u32; 2]) {
        let bytes = (u64::from(words[0]) | u64::from(words[1]) << 32).to_le_bytes();
        _ = self.ram.write(at, &bytes);
    }

    /// Stops a queue whose descriptors are outside of memory until the driver moves its tail or enables it again.
    fn stop(&mut self, queue: usize) {
        let head = self.file.get(file::rx(queue, reg::RDH));
        self.file.set(file::rx(queue, reg::RDT), head);
    }
}
