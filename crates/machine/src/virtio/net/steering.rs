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

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;

    /// Returns packets over IPv4 and IPv6: without ports, of TCP and of UDP.
    fn packets(port: u16) -> [Vec<u8>; 6] {
        let packet = |v6: bool, kind: usize| {
            let builder = PacketBuilder::ethernet2([2; 6], [4; 6]);
            let builder = match v6 {
                false => builder.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64),
                true => builder.ipv6([1; 16], [2; 16], 64),
            };
            let mut bytes = Vec::new();
            match kind {
                0 => builder.icmpv4_echo_request(1, 1).write(&mut bytes, &[]),
                1 => builder.tcp(port, 2, 0, 0).write(&mut bytes, &[]),
                _ => builder.udp(port, 2).write(&mut bytes, &[]),
            }
            .unwrap();
            bytes
        };
        [(false, 0), (false, 1), (false, 2), (true, 0), (true, 1), (true, 2)].map(|(v6, kind)| packet(v6, kind))
    }

    #[test]
    fn a_hash_is_of_the_fields_that_the_driver_wants() {
        let key: Vec<u8> = (1..=40).collect();
        let reports = |types: u32| {
            let mut steering = Steering::default();
            assert!(steering.set_hash(types, &key));
            packets(1).map(|packet| steering.hash(&packet).map_or(0, |(_, report)| report))
        };
        for (types, expected) in [
            (0, [0; 6]),
            (0x3f, [1, 2, 3, 4, 5, 6]),
            (1 << 0, [1, 1, 1, 0, 0, 0]),
            (1 << 1, [0, 2, 0, 0, 0, 0]),
            (1 << 2, [0, 0, 3, 0, 0, 0]),
            (1 << 3, [0, 0, 0, 4, 4, 4]),
            (1 << 4, [0, 0, 0, 0, 5, 0]),
            (1 << 5, [0, 0, 0, 0, 0, 6]),
        ] {
            assert_eq!(reports(types), expected, "{types:#x}");
        }
        let mut steering = Steering::default();
        assert!(steering.set_hash(0x3f, &key));
        let known = steering.clone();
        assert!(!steering.set_hash(0x40, &key) && !steering.set_hash(1, &[0; 41]));
        assert_eq!(steering, known, "what is refused changes nothing");
        let udp = &packets(1)[2];
        assert_eq!(steering.hash(udp).map(|(hash, _)| hash), rss::hash(udp, &key, |_| true).map(|(hash, _)| hash));
    }

    #[test]
    fn a_table_selects_queues_that_exist() {
        let mut steering = Steering::default();
        for (table, unclassified, good) in [
            (vec![], 0, false),
            (vec![0; 3], 0, false),
            (vec![0; 256], 0, false),
            (vec![0, 4], 0, false),
            (vec![0], 4, false),
            (vec![0; 128], 0, true),
            (vec![3, 2, 1, 0], 3, true),
        ] {
            assert_eq!(steering.set_table(table.clone(), unclassified, 4), good, "{table:?} {unclassified}");
        }
        let packet = &packets(1)[2];
        let queues = [0, 1, 2, 7].map(|hash| steering.queue(packet, Some((hash, 3)), 4));
        assert_eq!((queues, steering.queue(packet, None, 4)), ([3, 2, 1, 0], 3));
        // Automatic steering learns nothing while there is a table.
        let before = steering.clone();
        steering.sent(packet, 2, 4);
        assert_eq!(steering, before);
    }

    #[test]
    fn a_flow_comes_back_to_its_sender_and_others_are_spread() {
        let mut steering = Steering::default();
        let mut seen = [false; 4];
        for port in 0..40 {
            let packet = &packets(port)[2];
            let hash = u64::from(rss::symmetric(packet).unwrap());
            let queue = steering.queue(packet, None, 4);
            assert_eq!(u64::from(queue), hash / (1 << 30), "each queue has a quarter of the hashes");
            seen[usize::from(queue)] = true;
            assert_eq!(steering.queue(packet, None, 1), 0);
        }
        assert_eq!(seen, [true; 4]);
        let spread = |packet: &[u8]| (rss::symmetric(packet).unwrap() >> 30) as u16;
        let packet = packets(7)[2].clone();
        let other = (spread(&packet) + 1) % 4;
        steering.sent(&packet, other, 1);
        assert_eq!(steering.queue(&packet, None, 4), spread(&packet), "one queue is not remembered");
        steering.sent(&packet, other, 4);
        assert_eq!(steering.queue(&packet, None, 4), other);
        steering.sent(&packet, 3, 4);
        assert_eq!(
            [4, 3].map(|queues| steering.queue(&packet, None, queues)),
            [3, ((u64::from(rss::symmetric(&packet).unwrap()) * 3) >> 32) as u16]
        );
        steering.sent(&[0; 60], 3, 4);
        assert_eq!(steering.queue(&[0; 60], None, 4), 0, "no flow");
    }

    #[test]
    fn forged_settings_are_refused() {
        let known = Steering::default();
        let table = |table: Vec<u16>| Steering { table, ..known.clone() };
        for (forged, accepted) in [
            (known.clone(), true),
            (Steering { types: 0x3f, key: vec![0; 40], table: vec![1; 128], unclassified: 1, ..known.clone() }, true),
            (Steering { types: 0x40, ..known.clone() }, false),
            (Steering { key: vec![0; 41], ..known.clone() }, false),
            (Steering { flows: vec![0; 255], ..known.clone() }, false),
            (Steering { flows: vec![0; 257], ..known.clone() }, false),
            (Steering { unclassified: 2, ..known.clone() }, false),
            (table(vec![0; 3]), false),
            (table(vec![0; 256]), false),
            (table(vec![0, 2]), false),
        ] {
            assert_eq!(forged.check(2).is_ok(), accepted, "{forged:?}");
        }
    }
}
