//! Receive steering: selection of a frame's receive queue and of the hash that is reported with it (virtio 1.2, 5.1.6.4
//! and 5.1.6.5.7).

use crate::state::{StateError, require};
use network::rss::{self, Input, KEY};
use serde::{Deserialize, Serialize};

/// Entries of an indirection table.
pub const TABLE: usize = 128;
/// Number of flows whose queue is remembered.
const FLOWS: usize = 256;
/// Marks a flow without a remembered queue.
const UNKNOWN: u8 = 0xff;

/// RSS hash inputs: the bit of the hash type, and the reported value.
const HASHES: [(Input, u32, u16); 6] = [
    (Input::Ip4, 1 << 0, 1),
    (Input::Tcp4, 1 << 1, 2),
    (Input::Udp4, 1 << 2, 3),
    (Input::Ip6, 1 << 3, 4),
    (Input::Tcp6, 1 << 4, 5),
    (Input::Udp6, 1 << 5, 6),
];
/// All supported hash types.
pub const HASH_TYPES: u32 = 0x3f;

/// Settings of the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Steering {
    /// Enabled hash types.
    types: u32,
    #[serde(with = "serde_bytes")]
    key: Vec<u8>,
    /// The indirection table; empty while automatic steering selects the queue from which a flow's frames were last
    /// sent.
    table: Vec<u16>,
    unclassified: u16,
    /// The queue from which each flow's frames were last sent.
    #[serde(with = "serde_bytes")]
    flows: Vec<u8>,
}

impl Default for Steering {
    fn default() -> Self {
        Self { types: 0, key: Vec::new(), table: Vec::new(), unclassified: 0, flows: vec![UNKNOWN; FLOWS] }
    }
}

impl Steering {
    /// Sets hash types and key. Returns false if they are invalid.
    pub fn set_hash(&mut self, types: u32, key: &[u8]) -> bool {
        let known = types & !HASH_TYPES == 0 && key.len() <= KEY;
        if known {
            (self.types, self.key) = (types, key.to_vec());
        }
        known
    }

    /// Sets the indirection table and the queue for unhashed frames, of `queues` queues.
    pub fn set_table(&mut self, table: Vec<u16>, unclassified: u16, queues: u16) -> bool {
        let good = table.len().is_power_of_two()
            && table.len() <= TABLE
            && unclassified < queues
            && table.iter().all(|queue| *queue < queues);
        if good {
            (self.table, self.unclassified) = (table, unclassified);
        }
        good
    }

    /// Returns the hash of a frame, and the hash type that is reported.
    pub fn hash(&self, frame: &[u8]) -> Option<(u32, u16)> {
        let of = |input| HASHES.iter().find(|(known, ..)| *known == input);
        if self.types == 0 {
            return None;
        }
        let allowed = |input| of(input).is_some_and(|(_, bit, _)| self.types & bit != 0);
        let (hash, input) = rss::hash(frame, &self.key, allowed)?;
        of(input).map(|(_, _, report)| (hash, *report))
    }

    /// Selects the queue of a frame, of `queues` queues.
    pub fn queue(&self, frame: &[u8], hash: Option<(u32, u16)>, queues: u16) -> u16 {
        if !self.table.is_empty() {
            return hash.map_or(self.unclassified, |(hash, _)| self.table[hash as usize & (self.table.len() - 1)]);
        }
        if queues <= 1 {
            return 0;
        }
        let Some(hash) = rss::symmetric(frame) else { return 0 };
        match self.flows[hash as usize % FLOWS] {
            queue if u16::from(queue) < queues => queue.into(),
            _ => ((u64::from(hash) * u64::from(queues)) >> 32) as u16,
        }
    }

    /// Remembers the queue from which a frame is sent for the answers to it.
    pub fn sent(&mut self, frame: &[u8], queue: u16, queues: u16) {
        if self.table.is_empty()
            && queues > 1
            && let Some(hash) = rss::symmetric(frame)
        {
            self.flows[hash as usize % FLOWS] = queue as u8;
        }
    }

    /// Checks that this can be the state of a device with `queues` pairs of queues.
    pub fn check(&self, queues: u16) -> Result<(), StateError> {
        let table = self.table.is_empty()
            || self.table.len().is_power_of_two()
                && self.table.len() <= TABLE
                && self.table.iter().all(|queue| *queue < queues);
        let known = self.types & !HASH_TYPES == 0 && self.key.len() <= KEY && self.flows.len() == FLOWS;
        require(table && known && self.unclassified < queues, "the steering of a network device")
    }
}
