//! Address decoding: tables of the ranges that devices claim.

use super::devices::Id;
use crate::device::{Claim, Space};
use std::ops::Range;
use thiserror::Error;

/// Name of memory that no device claims, which is charged under 0.
const UNASSIGNED: &str = "unassigned";

/// Reason for which devices can't be combined.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClaimError {
    /// Two ranges of ports overlap.
    #[error("the devices {0} and {1} both claim port {2:#x}")]
    Ports(&'static str, &'static str, u16),
    /// Two ranges of memory overlap.
    #[error("the devices {0} and {1} both claim address {2:#x}")]
    Memory(&'static str, &'static str, u64),
    /// Two ranges of memory are charged under one number.
    #[error("the accesses to {0} and {1} would both be charged under number {2}")]
    Number(&'static str, &'static str, u32),
    /// More ranges of ports than the table can number.
    #[error("{0} ranges of ports are more than there can be")]
    TooMany(usize),
}

/// A range of ports and its device.
#[derive(Clone, Debug)]
pub struct PortRange {
    /// The device.
    pub device: Id,
    /// Index of the claim among the device's claims.
    pub claim: usize,
    /// First port.
    pub first: u16,
    /// True if an access of any size is one access.
    pub whole: bool,
    name: &'static str,
    count: u16,
}

/// A range of memory with its device.
#[derive(Clone, Debug)]
pub struct MemoryRange {
    /// The device.
    pub device: Id,
    /// Index of the claim among the device's claims.
    pub claim: usize,
    /// Addresses.
    pub range: Range<u64>,
    /// Number under which accesses are charged.
    pub number: u32,
    name: &'static str,
}

/// Address decoding tables.
pub struct Map {
    /// By port: the index in `ranges`, counted from 1; 0 if no device claims the port.
    ports: Box<[u8; 1 << 16]>,
    ranges: Vec<PortRange>,
    memory: Vec<MemoryRange>,
    /// Numbers and names of unclaimed memory: of no device, and of a PCI function.
    others: [(u32, &'static str); 2],
}

impl Map {
    /// Creates a map without devices. `bus` is the number and name under which accesses to the memory of PCI functions
    /// are charged, which no range claims.
    pub fn new(bus: (u32, &'static str)) -> Self {
        Self { ports: Box::new([0; 1 << 16]), ranges: Vec::new(), memory: Vec::new(), others: [(0, UNASSIGNED), bus] }
    }

    /// Adds the claims of a device.
    pub fn add(&mut self, device: Id, claims: &'static [Claim]) -> Result<(), ClaimError> {
        for (claim, Claim { name, space }) in claims.iter().enumerate() {
            match space {
                Space::BytePorts(ports) => self.add_ports(device, claim, name, ports, false)?,
                Space::Ports(ports) => self.add_ports(device, claim, name, ports, true)?,
                Space::Memory(range, number) => self.add_memory(device, claim, name, range, *number)?,
            }
        }
        Ok(())
    }

    fn add_ports(
        &mut self,
        device: Id,
        claim: usize,
        name: &'static str,
        ports: &Range<u16>,
        whole: bool,
    ) -> Result<(), ClaimError> {
        let number = u8::try_from(self.ranges.len() + 1).map_err(|_| ClaimError::TooMany(self.ranges.len() + 1))?;
        for port in ports.clone() {
            if let Some(other) = self.port(port) {
                return Err(ClaimError::Ports(other.name, name, port));
            }
            self.ports[usize::from(port)] = number;
        }
        let count = ports.end - ports.start;
        self.ranges.push(PortRange { device, claim, first: ports.start, whole, name, count });
        Ok(())
    }

    fn add_memory(
        &mut self,
        device: Id,
        claim: usize,
        name: &'static str,
        range: &Range<u64>,
        number: u32,
    ) -> Result<(), ClaimError> {
        let overlaps = |other: &&MemoryRange| other.range.start < range.end && range.start < other.range.end;
        if let Some(other) = self.memory.iter().find(overlaps) {
            return Err(ClaimError::Memory(other.name, name, other.range.start.max(range.start)));
        }
        if let Some(other) = self.memory_names().find(|other| other.0 == number) {
            return Err(ClaimError::Number(other.1, name, number));
        }
        self.memory.push(MemoryRange { device, claim, range: range.clone(), number, name });
        Ok(())
    }

    /// Returns the range to which a port belongs.
    #[inline]
    pub fn port(&self, port: u16) -> Option<&PortRange> {
        self.ranges.get(usize::from(self.ports[usize::from(port)]).wrapping_sub(1))
    }

    /// Returns the range to which an address belongs.
    #[inline]
    pub fn memory(&self, address: u64) -> Option<&MemoryRange> {
        self.memory.iter().find(|memory| memory.range.contains(&address))
    }

    /// Returns the name of the device at a port for reports.
    pub fn port_name(&self, port: u16) -> Option<&'static str> {
        self.port(port).map(|range| range.name)
    }

    /// Returns the name of the memory whose accesses are charged under a number, for reports.
    pub fn memory_name(&self, number: u32) -> Option<&'static str> {
        self.memory_names().find(|named| named.0 == number).map(|named| named.1)
    }

    fn memory_names(&self) -> impl Iterator<Item = (u32, &'static str)> {
        self.others.iter().copied().chain(self.memory.iter().map(|memory| (memory.number, memory.name)))
    }

    /// Returns all ranges of ports, by device.
    pub fn port_ranges(&self) -> impl Iterator<Item = Range<u16>> {
        self.ranges.iter().map(|range| range.first..range.first + range.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(first: &'static [Claim], second: &'static [Claim]) -> Result<Map, ClaimError> {
        let mut map = Map::new((4, "bus"));
        map.add(Id::pic, first)?;
        map.add(Id::pit, second)?;
        Ok(map)
    }

    #[test]
    fn claims_that_overlap_are_refused_with_both_names() {
        type Row = (&'static [Claim], &'static [Claim], Option<&'static str>);
        const PORTS: &[Claim] = &[Claim::bytes("a", 0x20, 2), Claim::ports("b", 0xa0, 4)];
        const MEMORY: &[Claim] = &[Claim::memory("c", 0x1000..0x2000, 7)];
        const TABLE: [Row; 8] = [
            (PORTS, &[Claim::bytes("x", 0x1f, 1), Claim::ports("y", 0x22, 0x7e)], None),
            (PORTS, &[Claim::ports("x", 0x21, 4)], Some("the devices a and x both claim port 0x21")),
            (PORTS, &[Claim::bytes("x", 0x90, 0x11)], Some("the devices b and x both claim port 0xa0")),
            (MEMORY, &[Claim::memory("x", 0..0x1000, 8), Claim::memory("y", 0x2000..0x2001, 9)], None),
            (MEMORY, &[Claim::memory("x", 0x1fff..0x3000, 8)], Some("the devices c and x both claim address 0x1fff")),
            (MEMORY, &[Claim::memory("x", 0..u64::MAX, 8)], Some("the devices c and x both claim address 0x1000")),
            (
                MEMORY,
                &[Claim::memory("x", 0..1, 7)],
                Some("the accesses to c and x would both be charged under number 7"),
            ),
            (
                MEMORY,
                &[Claim::memory("x", 0..1, 4)],
                Some("the accesses to bus and x would both be charged under number 4"),
            ),
        ];
        for (first, second, expected) in TABLE {
            let error = map(first, second).err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), expected, "{first:?} {second:?}");
        }
    }

    #[test]
    fn an_address_leads_to_its_device() {
        const PORTS: &[Claim] = &[Claim::bytes("a", 0x20, 2), Claim::ports("b", 0xa0, 4)];
        const MEMORY: &[Claim] = &[Claim::memory("c", 16..32, 7)];
        let map = map(PORTS, MEMORY).unwrap();
        let at = |port| map.port(port).map(|range| (range.device, range.claim, range.first, range.whole));
        assert_eq!([0x1f, 0x22, 0xffff].map(at), [None; 3]);
        assert_eq!((at(0x21), at(0xa3)), (Some((Id::pic, 0, 0x20, false)), Some((Id::pic, 1, 0xa0, true))));
        assert_eq!((map.port_name(0xa0), map.port_name(0xa4)), (Some("b"), None));
        assert_eq!(
            [15, 16, 31, 32].map(|address| map.memory(address).map(|m| m.number)),
            [None, Some(7), Some(7), None]
        );
        assert_eq!([0, 4, 7, 8].map(|n| map.memory_name(n)), [Some("unassigned"), Some("bus"), Some("c"), None]);
    }
}
