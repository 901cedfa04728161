//! The network of the board's NICs as a device: its state is saved with the board's. The device claims no addresses and
//! has no events; NICs wait for the network's events.

use crate::device::{At, Claim, Device, DeviceContext};
use crate::state::{Saved, StateError, decode, encode, require};
use network::Network;
use std::sync::{Arc, Mutex, MutexGuard};

/// A network that NICs share.
#[derive(Clone, Debug, Default)]
pub struct SharedNetwork(pub Arc<Mutex<Network>>);

impl SharedNetwork {
    /// Locks the network.
    pub fn get(&self) -> MutexGuard<'_, Network> {
        cpu::bus::lock(&self.0)
    }
}

impl Device for SharedNetwork {
    fn claims(&self) -> &'static [Claim] {
        &[]
    }

    fn read(&mut self, _at: At, _ctx: &mut DeviceContext) -> u64 {
        0
    }

    fn write(&mut self, _at: At, _value: u64, _ctx: &mut DeviceContext) {}
}

impl Saved for SharedNetwork {
    fn save(&self) -> Result<Vec<u8>, StateError> {
        encode(&self.get().save())
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let saved = decode(bytes)?;
        let mut network = self.get();
        require(network.accepts(&saved), "a network")?;
        network.restore(saved);
        Ok(())
    }
}
