//! The Flow Director: filters that direct flows to queues (82599 datasheet, 7.1.2.7). A signature filter matches the
//! hash of a flow; the Linux driver creates these from the packets that it sends. A perfect filter matches the fields
//! of a flow (`ethtool -N`).

use super::file::File;
use super::packet::Flow;
use super::reg::{self, bit};
use crate::state::{StateError, require};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

/// Valid bits of a hash.
const HASH: u32 = 0x7fff;
/// Valid bits of a bucket of perfect filters: two fewer than a hash has.
const BUCKET: u32 = 0x1fff;

mod command {
    pub const ADD: u32 = 1;
    pub const REMOVE: u32 = 2;
    pub const QUERY: u32 = 3;
}

/// Action of a filter on the frames of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    Queue(u8),
    Drop,
}

/// Fields of a perfect filter, as the driver wrote them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Filter {
    kind: u8,
    vlan: u16,
    flex: u16,
    source: Ipv4Addr,
    destination: Ipv4Addr,
    ports: u32,
    action: Action,
}

/// All filters of the device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Director {
    /// Signature filters, by hash and signature as FDIRHASH holds them.
    signatures: BTreeMap<u32, Action>,
    /// Perfect filters, by bucket and software index.
    filters: BTreeMap<(u32, u16), Filter>,
}

/// Returns the maximum number of filters of both kinds, as set by the memory that the driver allocates.
fn capacity(file: &File) -> usize {
    let control = file.get(reg::FDIRCTRL);
    let perfect = control & bit::FDIRCTRL_PERFECT != 0;
    match (control & 3, perfect) {
        (0, _) => 0,
        (size, true) => (1 << (10 + size)) - 2,
        (size, false) => (1 << (12 + size)) - 2,
    }
}

/// Hashes a flow with a key: `head` contains VLAN and protocol, `rest` is the exclusive or of all other words.
fn hash(key: u32, head: u32, rest: u32) -> u32 {
    let high = rest ^ head ^ head >> 16;
    let first = rest.rotate_left(16);
    let low = first ^ head ^ head << 16;
    let part = |number: u32| {
        let low = if number == 0 { first } else { low };
        let bit = |at: u32, value: u32| if key >> at & 1 != 0 { value >> number } else { 0 };
        bit(number, low) ^ bit(number + 16, high)
    };
    (0..16).map(part).fold(0, |hash, part| hash ^ part) & HASH
}

fn head(kind: u8, vlan: u16) -> u32 {
    u32::from(kind) << 16 | u32::from(vlan)
}

fn words(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => address
            .octets()
            .chunks_exact(4)
            .fold(0, |all, word| all ^ word.iter().fold(0, |value, byte| value << 8 | u32::from(*byte))),
    }
}

/// Returns the hash of a flow for signature filters.
fn signature(file: &File, flow: &Flow) -> u32 {
    let ports = u32::from(flow.source_port) << 16 | u32::from(flow.destination_port);
    let rest = words(flow.source) ^ words(flow.destination) ^ ports ^ u32::from(flow.flex) << 16;
    let of = |key| hash(file.get(key), head(flow.kind, flow.vlan), rest);
    of(reg::FDIRHKEY) | of(reg::FDIRSKEY) << 16
}

/// Fields that perfect filters compare.
struct Mask {
    kind: u8,
    vlan: u16,
    flex: u16,
    source: u32,
    destination: u32,
    ports: u32,
}

/// Converts an IPv4 address or mask from the registers' byte order.
fn in_order(value: u32) -> u32 {
    value.swap_bytes()
}

impl Mask {
    fn of(file: &File, kind: u8) -> Self {
        let masks = file.get(reg::FDIRM);
        let field = |bit: u32, value: u16| if masks & bit != 0 { 0 } else { value };
        let ports = file.get(if kind & 3 == 1 { reg::FDIRUDPM } else { reg::FDIRTCPM });
        let straight = |half: u32| u32::from((half as u16).reverse_bits());
        Self {
            kind: field(bit::FDIRM_L4_TYPE, 3) as u8 | 4,
            vlan: field(bit::FDIRM_VLAN_ID, 0x0fff) | field(bit::FDIRM_VLAN_PRIORITY, 0xe000),
            flex: field(bit::FDIRM_FLEX, 0xffff),
            source: !in_order(file.get(reg::FDIRSIP4M)),
            destination: !in_order(file.get(reg::FDIRDIP4M)),
            ports: !(straight(ports >> 16) << 16 | straight(ports)),
        }
    }
}

impl Filter {
    /// Reads the masks from the registers.
    fn of(file: &File) -> Self {
        let address = |register| Ipv4Addr::from_bits(in_order(file.get(register)));
        let (vlan, ports, command) = (file.get(reg::FDIRVLAN), file.get(reg::FDIRPORT), file.get(reg::FDIRCMD));
        Self {
            kind: (command >> 5 & 7) as u8,
            vlan: vlan as u16,
            flex: ((vlan >> 16) as u16).swap_bytes(),
            source: address(reg::FDIRIPSA),
            destination: address(reg::FDIRIPDA),
            ports: ports.rotate_left(16),
            action: action(command),
        }
    }

    /// Compares the unmasked fields of a filter with a flow.
    fn matches(&self, flow: &Flow, source: Ipv4Addr, destination: Ipv4Addr, mask: &Mask) -> bool {
        let ports = u32::from(flow.source_port) << 16 | u32::from(flow.destination_port);
        (self.kind ^ flow.kind) & mask.kind == 0
            && (self.vlan ^ flow.vlan) & mask.vlan == 0
            && (self.flex ^ flow.flex) & mask.flex == 0
            && (self.source.to_bits() ^ source.to_bits()) & mask.source == 0
            && (self.destination.to_bits() ^ destination.to_bits()) & mask.destination == 0
            && (self.ports ^ ports) & mask.ports.rotate_left(16) == 0
    }
}

fn action(command: u32) -> Action {
    if command & bit::FDIRCMD_DROP != 0 { Action::Drop } else { Action::Queue((command >> 16 & 0x7f) as u8) }
}

impl Director {
    fn len(&self) -> usize {
        self.signatures.len() + self.filters.len()
    }

    /// Handles a write to the control register, which empties the tables at once.
    pub fn initialize(&mut self, file: &mut File) {
        *self = Self::default();
        let control = file.get(reg::FDIRCTRL);
        file.set(reg::FDIRCTRL, control | bit::FDIRCTRL_DONE);
        self.tell(file);
    }

    fn tell(&self, file: &mut File) {
        file.set(reg::FDIRFREE, capacity(file).saturating_sub(self.len()) as u32 & 0xffff);
    }

    /// Handles a write to the command register. Returns true if the free space has fallen below the threshold at which
    /// the driver wants an interrupt.
    pub fn command(&mut self, file: &mut File) -> bool {
        let command = file.get(reg::FDIRCMD);
        if command & bit::FDIRCMD_CLEAR != 0 {
            *self = Self::default();
        }
        let hash = file.get(reg::FDIRHASH);
        let perfect = file.has(reg::FDIRCTRL, bit::FDIRCTRL_PERFECT);
        let key = (hash & BUCKET, (hash >> 16) as u16);
        let signature = hash & (HASH << 16 | HASH);
        let room = self.len() < capacity(file);
        let mut valid = false;
        match command & bit::FDIRCMD_COMMAND {
            command::ADD if perfect && (room || self.filters.contains_key(&key)) => {
                self.filters.insert(key, Filter::of(file));
                file.add(reg::FDIRUSTAT, 1);
            }
            command::ADD if !perfect && (room || self.signatures.contains_key(&signature)) => {
                self.signatures.insert(signature, action(command));
                file.add(reg::FDIRUSTAT, 1);
            }
            command::ADD => file.add(reg::FDIRFSTAT, 1),
            command::REMOVE => {
                let removed = if perfect {
                    self.filters.remove(&key).is_some()
                } else {
                    self.signatures.remove(&signature).is_some()
                };
                file.add(if removed { reg::FDIRUSTAT } else { reg::FDIRFSTAT }, if removed { 1 << 16 } else { 1 << 8 });
            }
            command::QUERY if perfect => valid = self.filters.contains_key(&key),
            command::QUERY => valid = self.signatures.contains_key(&signature),
            _ => {}
        }
        let done = command & !(bit::FDIRCMD_COMMAND | bit::FDIRCMD_VALID);
        file.set(reg::FDIRCMD, done | if valid { bit::FDIRCMD_VALID } else { 0 });
        self.tell(file);
        let threshold = (file.get(reg::FDIRCTRL) >> 28) as usize * 16;
        command & bit::FDIRCMD_COMMAND == command::ADD && capacity(file).saturating_sub(self.len()) < threshold
    }

    /// Returns the action of the filter that matches a flow.
    pub fn look_up(&self, file: &File, flow: &Flow) -> Option<Action> {
        match file.has(reg::FDIRCTRL, bit::FDIRCTRL_PERFECT) {
            true => self.perfect(file, flow),
            false => self.signatures.get(&signature(file, flow)).copied(),
        }
    }

    /// Returns true if the Flow Director is enabled.
    pub fn is_on(file: &File) -> bool {
        capacity(file) != 0
    }

    fn perfect(&self, file: &File, flow: &Flow) -> Option<Action> {
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (flow.source, flow.destination) else { return None };
        let mask = Mask::of(file, flow.kind);
        // The device searches one bucket, selected by the hash of the unmasked fields.
        let masked = source.to_bits() & mask.source
            ^ destination.to_bits() & mask.destination
            ^ (u32::from(flow.source_port) << 16 | u32::from(flow.destination_port)) & mask.ports.rotate_left(16)
            ^ u32::from(flow.flex & mask.flex) << 16;
        let bucket = hash(file.get(reg::FDIRHKEY), head(flow.kind & mask.kind, flow.vlan & mask.vlan), masked) & BUCKET;
        let candidates = self.filters.range((bucket, 0)..=(bucket, u16::MAX));
        candidates
            .map(|(_, filter)| filter)
            .find(|filter| filter.matches(flow, source, destination, &mask))
            .map(|filter| filter.action)
    }

    /// Returns the offset of the two flexible bytes of a flow.
    pub fn flex_at(file: &File) -> usize {
        (file.get(reg::FDIRCTRL) >> 16 & 0x1f) as usize * 2
    }

    /// Checks that the filters fit in the memory allocated to them.
    pub fn check(&self, file: &File) -> Result<(), StateError> {
        let queues = self.signatures.values().chain(self.filters.values().map(|filter| &filter.action));
        let known = queues.into_iter().all(|action| *action == Action::Drop || matches!(action, Action::Queue(0..128)));
        require(known && self.len() <= capacity(file), "the filters of a network device")
    }
}
