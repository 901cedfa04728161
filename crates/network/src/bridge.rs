//! A learning bridge (IEEE 802.1D without the spanning tree): where each address was last seen.

use crate::headers::{Mac, is_group, macs};
use crate::time::{SECOND, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How long an address is remembered.
const AGEING: Time = 300 * SECOND;
/// Addresses that are remembered; those of further senders are not, and frames for them go everywhere.
const MOST: usize = 4096;

/// Where the frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To that port.
    Port(usize),
    /// To all ports but the one that it came from.
    Everywhere,
    /// It is where it should be.
    Nowhere,
}

/// What a bridge has learned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bridge {
    learned: BTreeMap<Mac, (usize, Time)>,
}

impl Bridge {
    /// Learns from a frame that has come from a port, and says where it goes.
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
        match self.learned.get(&destination) {
            _ if is_group(destination) => Way::Everywhere,
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

    /// Whether it can be the state of a bridge among so many ports, at that time.
    pub fn is_possible(&self, ports: usize, now: Time) -> bool {
        self.learned.len() <= MOST && self.learned.values().all(|(port, seen)| *port < ports && *seen <= now)
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
        // A station that moves is found where it is.
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
        for sender in 0..3 * MOST as u32 {
            let mut bytes = frame(1, 0);
            bytes[7..11].copy_from_slice(&sender.to_be_bytes());
            bridge.forward(0, 0, &bytes);
        }
        assert_eq!(bridge.learned.len(), MOST);
        // Those that have fallen silent make room.
        bridge.forward(AGEING, 0, &frame(1, 7));
        assert_eq!(bridge.learned.len(), 1);
    }
}
