//! The transmit unit (82599 datasheet, 7.2): it turns descriptors into frames in the packet buffer before the link,
//! while the buffer has room. Queues are served in turn.
//!
//! A descriptor is done when its data has been read. A queue with invalid descriptors stops until it is enabled again,
//! as the queue of a hung device does.

use super::file::{self, File, QUEUES};
use super::interrupts::{Interrupts, Way};
use super::packet::{SCTP, TCP, UDP};
use super::reg::{self, bit};
use super::segments::{self, Large};
use super::{crc, packet, statistics, sums};
use crate::memory::GuestRam;
use crate::state::{StateError, require};
use network::frame::{LONGEST, OVERHEAD, SHORTEST};
use network::{Frame, Partial, Rate, Time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

const DESCRIPTOR: u64 = 16;
/// Hysteresis: after the packet buffer has been full, this number of bytes must be free before the next frame is read.
const PIECE: u64 = 8 << 10;
/// Bytes that a frame occupies on the link in addition to those that statistics count.
const GAP: u64 = OVERHEAD - statistics::CHECK_SEQUENCE;

/// Fields of descriptors.
mod field {
    pub const LENGTH: u32 = 0xffff;
    pub const KIND_SHIFT: u32 = 20;
    pub const CONTEXT: u32 = 2;
    pub const DATA: u32 = 3;
    pub const END: u32 = 1 << 24;
    pub const LEGACY_CHECKSUM: u32 = 1 << 26;
    pub const REPORT: u32 = 1 << 27;
    pub const EXTENDED: u32 = 1 << 29;
    pub const VLAN: u32 = 1 << 30;
    pub const SEGMENT: u32 = 1 << 31;
    pub const IP_CHECKSUM: u32 = 1 << 8;
    pub const L4_CHECKSUM: u32 = 1 << 9;
}

/// A context descriptor: header offsets and offloads of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Context {
    lengths: u32,
    kind: u32,
    segment: u32,
}

impl Context {
    fn mac(self) -> usize {
        (self.lengths >> 9 & 0x7f) as usize
    }

    fn ip(self) -> usize {
        (self.lengths & 0x1ff) as usize
    }

    fn l4(self) -> usize {
        (self.segment >> 8 & 0xff) as usize
    }

    fn size(self) -> usize {
        (self.segment >> 16) as usize
    }

    fn is_ipv4(self) -> bool {
        self.kind & 1 << 10 != 0
    }

    /// Returns the protocol, or `None` if the type is invalid.
    fn protocol(self) -> Option<u8> {
        [Some(UDP), Some(TCP), Some(SCTP), None][(self.kind >> 11 & 3) as usize]
    }
}

/// A packet of which some descriptors have been read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Parts {
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
    /// Commands and options of the first descriptor; in a legacy descriptor the options contain the checksum's offset.
    command: u32,
    options: u32,
}

/// State of a queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Queue {
    contexts: [Context; 2],
    parts: Option<Parts>,
    /// True after invalid descriptors.
    stopped: bool,
}

/// All transmit queues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transmit {
    queues: Vec<Queue>,
    /// Queues with descriptors, in the order in which they are served.
    turns: VecDeque<u8>,
    /// True if the packet buffer has been full and has not been drained enough.
    full: bool,
}

impl Default for Transmit {
    fn default() -> Self {
        Self { queues: vec![Queue::default(); QUEUES], turns: VecDeque::new(), full: false }
    }
}

/// The parts of the device that the transmit unit uses.
pub struct Unit<'a> {
    pub file: &'a mut File,
    pub interrupts: &'a mut Interrupts,
    pub ram: &'a GuestRam,
    /// True if the device may access memory (bus master).
    pub master: bool,
}

/// Result of a queue's turn.
enum Turn {
    /// There is no complete packet to read.
    Over,
    /// Frames of a packet; none if the packet is too short.
    Packet(Vec<Frame>),
}

/// Returns the times that a full packet buffer, and one with room for the next frame again, take on the link.
fn marks(file: &File, rate: Rate) -> (Time, Time) {
    let size = u64::from(file.get(reg::TXPBSIZE)).min(1 << 20);
    (rate.duration(size), rate.duration(size.saturating_sub(PIECE)))
}

impl Transmit {
    /// Marks a queue that may have new descriptors.
    pub fn offered(&mut self, queue: usize) {
        let number = queue as u8;
        if !self.turns.contains(&number) {
            self.turns.push_back(number);
        }
    }

    /// Marks all enabled queues as possibly having descriptors.
    pub fn all_offered(&mut self, file: &File) {
        (0..QUEUES).filter(|queue| is_enabled(file, *queue)).for_each(|queue| self.offered(queue));
    }

    /// Handles the enabling or disabling of a queue.
    pub fn switched(&mut self, queue: usize, file: &File) {
        if let Some(entry) = self.queues.get_mut(queue) {
            *entry = Queue::default();
        }
        if is_enabled(file, queue) {
            self.offered(queue);
        }
    }

    /// Returns the next frames to be sent and their queue, if the packet buffer has room. The link is busy until
    /// `busy`.
    pub fn next(&mut self, unit: &mut Unit, now: Time, busy: Time, rate: Rate) -> Option<(usize, Vec<Frame>)> {
        let (high, low) = marks(unit.file, rate);
        loop {
            let ahead = busy.saturating_sub(now);
            self.full = ahead > if self.full { low } else { high };
            let on = unit.file.has(reg::DMATXCTL, bit::DMATXCTL_ENABLE) && unit.master;
            if self.full || !on {
                return None;
            }
            let queue = usize::from(self.turns.pop_front()?);
            let Some(entry) = self.queues.get_mut(queue) else { continue };
            if entry.stopped || !is_enabled(unit.file, queue) {
                continue;
            }
            match entry.turn(queue, unit) {
                Some(Turn::Over) => {}
                Some(Turn::Packet(frames)) => {
                    self.turns.push_back(queue as u8);
                    return Some((queue, frames));
                }
                None => (entry.stopped, entry.parts) = (true, None),
            }
        }
    }

    /// Returns the time at which the packet buffer has room again.
    pub fn next_event(&self, file: &File, busy: Time, rate: Rate) -> Option<Time> {
        (self.full && !self.turns.is_empty()).then(|| busy.saturating_sub(marks(file, rate).1))
    }

    /// Checks the restored state.
    pub fn check(&self) -> Result<(), StateError> {
        let parts = self.queues.iter().filter_map(|queue| queue.parts.as_ref());
        let lengths = parts.into_iter().all(|parts| parts.bytes.len() <= LONGEST);
        let mut turns: Vec<u8> = self.turns.iter().copied().collect();
        turns.sort_unstable();
        let once =
            turns.windows(2).all(|pair| pair[0] < pair[1]) && turns.iter().all(|queue| usize::from(*queue) < QUEUES);
        require(lengths && once && self.queues.len() == QUEUES, "the transmit queues of a network device")
    }
}

fn is_enabled(file: &File, queue: usize) -> bool {
    file.has(file::tx(queue, reg::TXDCTL), bit::QUEUE_ENABLE)
}

/// Counts a sent frame.
pub fn count(file: &mut File, queue: usize, frame: &Frame) {
    let (occupied, frames) = frame.occupies();
    let total = occupied - GAP * frames;
    match frame.segments {
        Some(segments) if frames > 1 => {
            let headers = network::headers::Headers::of(&frame.bytes).and_then(|headers| headers.transport);
            let one = headers.map_or(0, |transport| transport.payload) as u64 + u64::from(segments.size);
            let one = one.max(SHORTEST as u64) + statistics::CHECK_SEQUENCE;
            let last = total.saturating_sub(one * (frames - 1));
            statistics::sent(file, queue, &frame.bytes, (frames - 1, one), Some(last));
        }
        _ => statistics::sent(file, queue, &frame.bytes, (1, total), None),
    }
}

impl Queue {
    /// Reads descriptors up to the end of a packet. Returns `None` if they are invalid.
    fn turn(&mut self, queue: usize, unit: &mut Unit) -> Option<Turn> {
        let register = |register| file::tx(queue, register);
        let entries = unit.file.get(register(reg::TDLEN)) / DESCRIPTOR as u32;
        let base = unit.file.wide(register(reg::TDBAL), register(reg::TDBAH));
        let (mut head, tail) = (unit.file.get(register(reg::TDH)), unit.file.get(register(reg::TDT)));
        if head == tail {
            return Some(Turn::Over);
        }
        if head >= entries || tail >= entries {
            return None;
        }
        let mut reported = false;
        let mut packet = None;
        while head != tail && packet.is_none() {
            let at = base.wrapping_add(u64::from(head) * DESCRIPTOR);
            let mut bytes = [0; DESCRIPTOR as usize];
            if !unit.ram.read(at, &mut bytes) {
                return None;
            }
            let word = |number: usize| {
                bytes[4 * number..4 * number + 4].iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
            };
            let words = [word(0), word(1), word(2), word(3)];
            packet = self.descriptor(words, unit)?;
            head = (head + 1) % entries;
            if words[2] & field::REPORT != 0 {
                reported = true;
                done(unit, queue, at, head);
            }
        }
        unit.file.set(register(reg::TDH), head);
        if reported {
            unit.interrupts.queue(unit.file, queue, Way::Transmit);
        }
        match packet {
            Some(parts) => Some(Turn::Packet(self.frames(parts, unit.file)?)),
            None => Some(Turn::Over),
        }
    }

    /// Processes a descriptor; the last one completes a packet. Returns `None` if the descriptor is invalid.
    fn descriptor(&mut self, words: [u32; 4], unit: &Unit) -> Option<Option<Parts>> {
        let [low, high, command, options] = words;
        let extended = command & field::EXTENDED != 0;
        let kind = command >> field::KIND_SHIFT & 0xf;
        if extended && kind == field::CONTEXT {
            let context = Context { lengths: low, kind: command, segment: options };
            self.contexts[(options >> 4 & 1) as usize] = context;
            return Some(None);
        }
        if extended && kind != field::DATA {
            return None;
        }
        let parts = self.parts.get_or_insert_with(|| Parts { bytes: Vec::new(), command, options });
        let (start, len) = (parts.bytes.len(), (command & field::LENGTH) as usize);
        if start + len > LONGEST {
            return None;
        }
        parts.bytes.resize(start + len, 0);
        let at = u64::from(low) | u64::from(high) << 32;
        if !unit.ram.read(at, &mut parts.bytes[start..]) {
            return None;
        }
        Some(if command & field::END != 0 { self.parts.take() } else { None })
    }

    /// Returns the frames of a packet, of which there are none if the packet is too short. Returns `None` if the packet
    /// is invalid.
    fn frames(&self, parts: Parts, file: &File) -> Option<Vec<Frame>> {
        let Parts { mut bytes, command, options } = parts;
        if bytes.len() < network::headers::ETHERNET {
            return Some(Vec::new());
        }
        if command & field::EXTENDED == 0 {
            return Some(legacy(bytes, command, options, file).into_iter().collect());
        }
        let context = self.contexts[(options >> 4 & 1) as usize];
        let tagged = command & field::VLAN != 0;
        if tagged {
            insert_tag(&mut bytes, (context.lengths >> 16) as u16, file);
        }
        let mac = context.mac() + if tagged { 4 } else { 0 };
        let l4 = mac + context.ip();
        if command & field::SEGMENT != 0 {
            let large = Large {
                ip: mac,
                l4,
                payload: l4 + context.l4(),
                size: context.size(),
                protocol: context.protocol().filter(|protocol| *protocol != SCTP)?,
                v4: context.is_ipv4(),
            };
            return segments::frames(bytes, &large);
        }
        if options & field::IP_CHECKSUM != 0 && context.is_ipv4() {
            sums::set_ip_header(bytes.get_mut(mac..l4).filter(|header| header.len() >= 20)?);
        }
        let mut partial = None;
        if options & field::L4_CHECKSUM != 0 {
            match context.protocol()? {
                SCTP => {
                    let sum = crc::sctp(bytes.get(l4..)?)?;
                    bytes[l4 + 8..l4 + 12].copy_from_slice(&sum);
                }
                protocol => partial = Some(Partial { start: l4 as u16, offset: if protocol == TCP { 16 } else { 6 } }),
            }
        }
        Some(whole(bytes, partial).into_iter().collect())
    }
}

/// Creates a frame whose checksum may have to be completed. Frames shorter than the minimum of Ethernet are not padded
/// here: a receiver on a real wire pads them, and a host's network stack might take padding for data.
fn whole(bytes: Vec<u8>, partial: Option<Partial>) -> Option<Frame> {
    let mut frame = Frame::new(bytes)?;
    frame.partial = partial;
    Some(frame)
}

/// Creates the frame of legacy descriptors: the checksum's offset and start are in the command and the options.
fn legacy(mut bytes: Vec<u8>, command: u32, options: u32, file: &File) -> Option<Frame> {
    let (place, start) = (command >> 16 & 0xff, options >> 8 & 0xff);
    let partial = (command & field::LEGACY_CHECKSUM != 0 && place >= start)
        .then(|| Partial { start: start as u16, offset: (place - start) as u16 });
    if command & field::VLAN != 0 {
        insert_tag(&mut bytes, (options >> 16) as u16, file);
    }
    whole(bytes, partial)
}

/// Inserts a VLAN tag after the addresses.
fn insert_tag(bytes: &mut Vec<u8>, tag: u16, file: &File) {
    let kind = (file.get(reg::DMATXCTL) >> 16) as u16;
    let kind = if kind == 0 { packet::VLAN } else { kind };
    let tag = [kind.to_be_bytes(), tag.to_be_bytes()].concat();
    bytes.splice(12..12, tag);
}

/// Reports a descriptor as done, in the descriptor or by writing back the head of the queue.
fn done(unit: &mut Unit, queue: usize, at: u64, head: u32) {
    let (low, high) = (file::tx(queue, reg::TDWBAL), file::tx(queue, reg::TDWBAH));
    if unit.file.has(low, bit::TDWBAL_ENABLE) {
        _ = unit.ram.write(unit.file.wide(low, high) & !3, &head.to_le_bytes());
    } else {
        _ = unit.ram.write(at.wrapping_add(12), &1u32.to_le_bytes());
    }
}
