//! A bus with memory, for one device that a driver of fuzzed bytes drives.

use machine::device::{DeviceContext, Outputs};
use machine::memory::GuestRam;
use machine::pci::{Function, PciBus};
use network::Network;
use std::sync::{Arc, Mutex};

/// A bus and its memory.
pub struct Rig {
    pub bus: PciBus,
    pub ram: GuestRam,
    pub out: Outputs,
    pub now: u64,
    pub network: Arc<Mutex<Network>>,
}

impl Rig {
    /// Creates a rig with one device, which may answer at its addresses and write to memory.
    pub fn new(device: Box<dyn Function>, network: Arc<Mutex<Network>>) -> Self {
        let ram = GuestRam::new(1 << 20).expect("the host has memory");
        let mut bus = PciBus::new();
        bus.add(device).expect("the bus is empty");
        let mut rig = Self { bus, ram, out: Outputs::default(), now: 0, network };
        rig.with(|bus, ctx| bus.config_write(1, 4, 2, 6, ctx));
        rig
    }

    pub fn with<R>(&mut self, act: impl FnOnce(&mut PciBus, &mut DeviceContext) -> R) -> R {
        act(&mut self.bus, &mut DeviceContext { now: self.now, cpu: 0, ram: &self.ram, out: &mut self.out })
    }

    pub fn write(&mut self, address: u64, size: u8, value: u64) {
        self.with(|bus, ctx| bus.memory_write(address, size, value, ctx));
    }
}
