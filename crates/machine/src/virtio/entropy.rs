//! The entropy device (type 4).
//!
//! The bytes come from a generator with a fixed seed, so that two runs see the same stream and are reproducible. The
//! bytes are not secret, and nothing that runs here should rely on them for protection.

use super::{Broken, Device, Ring};
use crate::device::DeviceContext;
use crate::state::{Plain, StateError};
use serde::{Deserialize, Serialize};

/// Maximum number of bytes for one request. A driver that wants more asks again.
const MAX_REQUEST: usize = 64 << 10;

/// An entropy source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entropy {
    state: u64,
}

impl Entropy {
    /// Creates a source whose stream depends on the seed alone.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next number of SplitMix64 (Steele, Lea, Flood 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

impl Device for Entropy {
    fn name(&self) -> &'static str {
        "virtio entropy"
    }

    fn kind(&self) -> u16 {
        4
    }

    fn class(&self) -> u32 {
        0x00_ff00
    }

    fn features(&self) -> u64 {
        0
    }

    fn queues(&self) -> &[u16] {
        &[64]
    }

    fn config(&self) -> &[u8] {
        &[]
    }

    fn process(&mut self, _queue: u16, ring: &mut Ring, _ctx: &mut DeviceContext) -> Result<(), Broken> {
        while let Some(mut chain) = ring.pop()? {
            let len = chain.writer.available_bytes().min(MAX_REQUEST);
            let bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
            let written = chain.write(&bytes[..len]);
            ring.push(chain, written as u32)?;
        }
        Ok(())
    }
}

impl Plain for Entropy {
    fn check(&self, _current: &Self) -> Result<(), StateError> {
        Ok(())
    }
}
