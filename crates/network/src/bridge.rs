//! A learning bridge (IEEE 802.1D without the spanning tree), which remembers the port of each address.

use crate::headers::{Mac, is_group, macs};
use crate::time::{SECOND, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Time for which an address is remembered.
const AGEING: Time = 300 * SECOND;
/// Maximum number of addresses; those of further senders are not learned, and frames for them are flooded.
const MOST: usize = 4096;

/// Destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One port.
    Port(usize),
    /// All ports except the one at which the frame arrived.
    Everywhere,
    /// None: the frame arrived at the port of its destination.
    Nowhere,
}

/// State of a bridge.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bridge {
    learned: BTreeMap<Mac, (usize, Time)>,
}

impl Bridge {
    /// Learns from a frame that has arrived at a port, and returns its destination.
    pub fn forward(&mut self, now: Time, from: usize, frame: &[u8]) -> Way {
        let Some((destination, source)) = macs(frame) else { return Way::Nowhere };
        if !is_group(source) {
            if self.learned.len() >= MOST && !self.learned.contains_key(&source) {
                self.learned.retain(|_, (_, seen)| now.saturating_sub(*seen) < AGEING);
            }
            if self.learned.len() < MOST || self.learned.contains_key(&source) {
                self.learned.insert(source, (from, now));
            }
        }
        // A group address is never learned.
        match self.learned.get(&destination) {
            Some((port, seen)) if now.saturating_sub(*seen) < AGEING => {
                if *port == from {
                    Way::Nowhere
                } else {
                    Way::Port(*port)
                }
            }
            _ => Way::Everywhere,
        }
    }

    /// Returns true if a bridge with this number of ports can have this state at that time.
    pub fn is_possible(&self, ports: usize, now: Time) -> bool {
        let station = |(mac, (port, seen)): (&Mac, &(usize, Time))| !is_group(*mac) && *port < ports && *seen <= now;
        self.learned.len() <= MOST && self.learned.iter().all(station)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(destination: u8, source: u8) -> Vec<u8> {
        let mut bytes = vec![0; 60];
        (bytes[5], bytes[11]) = (destination, source);
        bytes
    }

    #[test]
    fn a_bridge_learns_and_forgets() {
        let mut bridge = Bridge::default();
        assert_eq!(bridge.forward(0, 0, &frame(2, 1)), Way::Everywhere);
        assert_eq!(bridge.forward(1, 1, &frame(1, 2)), Way::Port(0));
        assert_eq!(bridge.forward(2, 0, &frame(2, 1)), Way::Port(1));
        assert_eq!(bridge.forward(3, 0, &frame(1, 3)), Way::Nowhere);
        // A station that moves is found at its new port.
        assert_eq!(bridge.forward(4, 2, &frame(9, 2)), Way::Everywhere);
        assert_eq!(bridge.forward(5, 0, &frame(2, 1)), Way::Port(2));
        assert_eq!(bridge.forward(4 + AGEING, 0, &frame(2, 1)), Way::Everywhere);
        let mut broadcast = frame(0, 1);
        broadcast[..6].fill(0xff);
        assert_eq!(bridge.forward(6 + AGEING, 0, &broadcast), Way::Everywhere);
        assert_eq!(bridge.forward(6 + AGEING, 0, &[1, 2, 3]), Way::Nowhere);
    }

    #[test]
    fn senders_without_end_take_no_memory() {
        let mut bridge = Bridge::default();
        for sender in 0..2 * MOST as u32 + 9 {
            let mut bytes = frame(1, 0);
            bytes[7..11].copy_from_slice(&sender.to_be_bytes());
            bridge.forward(0, 0, &bytes);
        }
        assert_eq!(bridge.learned.len(), MOST);
        // Silent stations make room; those that have been heard since stay.
        let mut heard = frame(1, 0);
        heard[7..11].copy_from_slice(&9u32.to_be_bytes());
        bridge.forward(1, 2, &heard);
        bridge.forward(AGEING, 0, &frame(1, 7));
        assert_eq!(bridge.learned.len(), 2);
        let to_it: Vec<u8> = [&heard[6..12], &heard[..6], &[0; 48]].concat();
        assert_eq!(bridge.forward(AGEING, 0, &to_it), Way::Port(2));
    }

    #[test]
    fn a_bridge_has_only_ports_and_times_that_exist() {
        let mut bridge = Bridge::default();
        bridge.forward(5, 2, &frame(9, 1));
        bridge.forward(7, 0, &frame(9, 2));
        let cases = [(3, 7, true), (3, 8, true), (2, 7, false), (3, 6, false), (2, 6, false)];
        for (ports, now, possible) in cases {
            assert_eq!(bridge.is_possible(ports, now), possible, "{ports} ports at {now}");
        }
        let stations = |count: u32| Bridge {
            learned: (0..count).map(|n| ([2, 0, 0, 0, (n >> 8) as u8, n as u8], (0, 0))).collect(),
        };
        assert!(stations(MOST as u32).is_possible(1, 0));
        assert!(!stations(MOST as u32 + 1).is_possible(1, 0));
        assert!(!Bridge { learned: [([1, 0, 0, 0, 0, 0], (0, 0))].into() }.is_possible(1, 0), "a group sends nothing");
    }
}
