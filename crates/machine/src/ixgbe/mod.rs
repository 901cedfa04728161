//! An Intel 82599 with one port (PCI ID 8086:10fb), modelled after its datasheet to the extent that the Linux driver
//! `ixgbe` uses it.
//!
//! As with the virtio device, frames are exchanged with a port of a network at the network's times. DMA happens within
//! the access or the event that causes it and takes no time; interrupts are throttled in virtual time. Nothing polls:
//! an idle device has no events.
//!
//! The device reports the following as absent: a second port, virtual functions, traffic classes, IPsec and MACsec
//! (fused off), FCoE, wake-up, packet time stamps, and MSI (MSI-X and INTx are present). The device does not coalesce
//! received segments (RSC) and sends no pause frames.

mod crc;
mod director;
mod eeprom;
mod file;
mod filter;
mod identity;
mod interrupts;
mod module;
mod packet;
mod receive;
mod reg;
mod segments;
mod statistics;
mod sums;
#[cfg(test)]
mod tests;
mod transmit;

use crate::device::DeviceContext;
use crate::devices::Clock;
use crate::pci::{ConfigSpace, Function, MsiX};
use crate::state::{Plain, Saved, StateError, decode, encode, require};
use director::Director;
use eeprom::Eeprom;
use file::{File, Kind, SavedFile};
use interrupts::Interrupts;
use ledger::Ticks;
use module::Bus;
use network::headers::Mac;
use network::time::SECOND;
use network::{Offloads, Port, Time};
use receive::Receive;
use reg::bit;
use serde::{Deserialize, Serialize};
use transmit::Transmit;

/// Base address registers: the device registers, and MSI-X with its table and its pending bits.
const REGISTERS: usize = 0;
const VECTORS: usize = 4;
const PENDING: u64 = 0x2000;
const VECTORS_SIZE: u64 = 0x4000;

/// Unit of the time stamp clock at 10 Gb/s: 6.4 ns.
const CLOCK_UNIT: Time = 6_400;
/// Unit of the free-running timer.
const MICROSECOND: Time = SECOND / 1_000_000;

/// State other than the registers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct State {
    interrupts: Interrupts,
    receive: Receive,
    transmit: Transmit,
    director: Director,
    bus: Bus,
    /// True if the network knows that the device receives frames.
    listens: bool,
    /// Value of the time stamp clock, and the time at which it had that value.
    clock: (u64, Time),
    /// Time of the last access or event.
    now: Time,
}

/// An 82599.
pub struct Ixgbe {
    port: Box<dyn Port>,
    clock: Clock,
    mac: Mac,
    eeprom: Eeprom,
    config: ConfigSpace,
    capabilities: identity::Capabilities,
    msix: MsiX,
    file: File,
    state: State,
}

impl Ixgbe {
    /// Creates a device with the address `mac`, connected to `port`.
    pub fn new(mac: Mac, port: Box<dyn Port>, clock: Clock) -> Self {
        let (config, msix, capabilities) = identity::config(interrupts::VECTORS as u16);
        let mut device = Self {
            port,
            clock,
            mac,
            eeprom: Eeprom::new(mac),
            config,
            capabilities,
            msix,
            file: File::default(),
            state: State::default(),
        };
        device.load_address();
        device
    }

    /// Loads the first receive address from the EEPROM.
    fn load_address(&mut self) {
        let [a, b, c, d, e, f] = self.mac;
        self.file.set(reg::RAL, u32::from_le_bytes([a, b, c, d]));
        self.file.set(reg::RAL + 4, bit::RAH_VALID | u32::from(u16::from_le_bytes([e, f])));
    }

    fn time(&self, now: Ticks) -> Time {
        self.clock.count(now, SECOND)
    }

    /// Resets everything except configuration space.
    fn reset(&mut self, now: Time) {
        self.file = File::default();
        self.state = State { now, listens: self.state.listens, ..State::default() };
        self.load_address();
        self.state.interrupts.cause(bit::EICR_LINK);
        self.listen(now);
    }

    /// Tells the network if the device receives frames.
    fn listen(&mut self, now: Time) {
        let on = receive::is_on(&self.file) && !self.is_loop();
        if !receive::is_on(&self.file) {
            self.state.receive.clear();
        }
        if on != self.state.listens {
            self.state.listens = on;
            self.port.listen(now, on, Offloads::default());
        }
    }

    /// Returns true if transmitted frames are looped back.
    fn is_loop(&self) -> bool {
        self.file.has(reg::HLREG0, bit::HLREG0_LOOPBACK)
    }

    /// Returns true if the device may access memory (bus master).
    fn is_master(&self) -> bool {
        self.config.is_bus_master()
            && self.capabilities.is_on(&self.config)
            && !self.file.has(reg::CTRL, bit::CTRL_MASTER_DISABLE)
    }

    /// Receives the frames that have arrived.
    fn pull(&mut self, ctx: &DeviceContext) {
        let now = self.time(ctx.now);
        self.state.now = self.state.now.max(now);
        let master = self.is_master();
        let State { interrupts, receive, director, .. } = &mut self.state;
        let mut unit = receive::Unit { file: &mut self.file, director, interrupts, ram: ctx.ram, master };
        receive.pull(&mut *self.port, now, &mut unit);
    }

    /// Transmits as many frames as there is room for.
    fn push(&mut self, ctx: &DeviceContext) {
        let now = self.time(ctx.now);
        self.state.now = self.state.now.max(now);
        let (master, returns, rate) = (self.is_master(), self.is_loop(), self.port.rate());
        let State { interrupts, transmit, receive, .. } = &mut self.state;
        let mut came = false;
        loop {
            let mut unit = transmit::Unit { file: &mut self.file, interrupts, ram: ctx.ram, master };
            let Some((queue, frames)) = transmit.next(&mut unit, now, self.port.busy(), rate) else { break };
            for frame in frames {
                transmit::count(&mut self.file, queue, &frame);
                if !returns {
                    self.port.send(now, frame);
                    continue;
                }
                came = true;
                frame.finish().into_iter().for_each(|frame| receive.admit(frame, &mut self.file));
            }
        }
        if came {
            self.pull(ctx);
        }
    }

    /// Transmits, and raises the interrupts that are due.
    fn settle(&mut self, ctx: &mut DeviceContext) {
        self.push(ctx);
        self.interrupt(ctx);
    }

    fn interrupt(&mut self, ctx: &mut DeviceContext) {
        let now = self.time(ctx.now);
        if self.is_master() || !self.msix.enabled() {
            self.state.interrupts.settle(now, &self.file, &mut self.msix, &mut ctx.out.messages);
        }
        self.config.set_interrupt_status(self.state.interrupts.line());
    }

    /// Returns the value of the time stamp clock.
    fn stamp(&self, now: Time) -> u64 {
        let increment = self.file.get(reg::TIMINCA);
        let (value, step) = (u64::from(increment & 0xff_ffff), Time::from(increment >> 24).max(1) * CLOCK_UNIT);
        let (base, since) = self.state.clock;
        base.wrapping_add((now.saturating_sub(since) / step).wrapping_mul(value))
    }

    /// Returns the value of LINKS: the link is up, at the highest speed that the port's rate reaches.
    fn links(&self) -> u32 {
        let speed = match self.port.rate().bits() {
            10_000_000_000.. => 3,
            1_000_000_000.. => 2,
            _ => 1,
        };
        bit::LINKS_UP | speed << 28
    }

    /// Handles a read of a register.
    fn read(&mut self, at: u32, ctx: &DeviceContext) -> u32 {
        let Some((at, kind)) = file::look_up(at) else { return 0 };
        let now = self.time(ctx.now);
        match kind {
            Kind::Count => {
                self.pull(ctx);
                let value = self.file.get(at);
                self.file.set(at, 0);
                value
            }
            Kind::Status if self.file.has(reg::CTRL, bit::CTRL_MASTER_DISABLE) => 0,
            Kind::Status => bit::STATUS_MASTER,
            Kind::I2c => self.state.bus.read(),
            Kind::Timer => (now / MICROSECOND) as u32,
            Kind::Swsm => {
                let value = self.file.get(at);
                self.file.set(at, value | bit::SWSM_DRIVER);
                value
            }
            Kind::Links => self.links(),
            Kind::Eicr => self.state.interrupts.read_causes(&self.file, self.msix.enabled()),
            Kind::Eics => self.state.interrupts.causes(),
            Kind::Eims => self.state.interrupts.masks(),
            Kind::EimsEx => self.state.interrupts.vector_masks((at - reg::EIMS_EX) / 4),
            Kind::Eimc | Kind::EicsEx | Kind::EimcEx => 0,
            Kind::Clock if at == reg::SYSTIML => {
                let stamp = self.stamp(now);
                self.file.set(reg::SYSTIMH, (stamp >> 32) as u32);
                stamp as u32
            }
            _ => self.file.get(at),
        }
    }

    /// Handles a write to a register.
    fn write(&mut self, at: u32, value: u32, ctx: &DeviceContext) {
        let Some((at, kind)) = file::look_up(at) else { return };
        let now = self.time(ctx.now);
        let receives = matches!(kind, Kind::RxCtrl | Kind::RxQueue | Kind::RxTail);
        if receives {
            // Frames that have arrived are received with the old register value.
            self.pull(ctx);
        }
        if kind == Kind::Clock {
            self.set_clock(at, value, now);
            return;
        }
        self.file.write(at, value);
        let State { interrupts, transmit, director, bus, receive, .. } = &mut self.state;
        match kind {
            Kind::Ctrl if value & (bit::CTRL_RESET | bit::CTRL_LINK_RESET) != 0 => self.reset(now),
            Kind::I2c => bus.write(value),
            Kind::Eerd => self.read_eeprom(at, value),
            Kind::Msca => {
                // The bus to external PHYs is empty: reads return ones.
                self.file.set(at, value & !bit::MSCA_COMMAND);
                let data = self.file.get(reg::MSRWD) | 0xffff_0000;
                self.file.set(reg::MSRWD, data);
            }
            Kind::Autoc if value & bit::AUTOC_RESTART != 0 => interrupts.cause(bit::EICR_LINK),
            Kind::Eicr => interrupts.clear(value),
            Kind::Eics => interrupts.raise(value),
            Kind::Eims => interrupts.enable(value),
            Kind::Eimc => interrupts.disable(value),
            Kind::EicsEx => interrupts.raise_vectors((at - reg::EICS_EX) / 4, value),
            Kind::EimsEx => interrupts.enable_vectors((at - reg::EIMS_EX) / 4, value),
            Kind::EimcEx => interrupts.disable_vectors((at - reg::EIMC_EX) / 4, value),
            Kind::Eitr => interrupts.throttle(throttle_of(at), value),
            Kind::RxCtrl => self.listen(now),
            Kind::RxQueue => receive.queues_changed(&self.file),
            Kind::TxControl => transmit.all_offered(&self.file),
            Kind::TxQueue => transmit.switched(file::queue_of(at), &self.file),
            Kind::TxTail => transmit.offered(file::queue_of(at)),
            Kind::DirectorControl => director.initialize(&mut self.file),
            Kind::DirectorCommand if director.command(&mut self.file) => interrupts.cause(bit::EICR_FLOW_DIRECTOR),
            _ => {}
        }
        if receives {
            self.pull(ctx);
        }
    }

    fn read_eeprom(&mut self, at: u32, value: u32) {
        if value & bit::EERD_START != 0 {
            let address = value >> 2 & 0x3fff;
            let word = u32::from(self.eeprom.word(address as usize));
            self.file.set(at, word << 16 | address << 2 | bit::EERD_DONE);
        }
    }

    fn set_clock(&mut self, at: u32, value: u32, now: Time) {
        let stamp = self.stamp(now);
        let base = match at {
            reg::SYSTIML => stamp & !0xffff_ffff | u64::from(value),
            reg::SYSTIMH => stamp & 0xffff_ffff | u64::from(value) << 32,
            _ => stamp,
        };
        self.state.clock = (base, now);
        self.file.write(at, value);
    }
}

/// Returns the vector of a throttle register.
fn throttle_of(at: u32) -> usize {
    let index = if at < reg::EITR_HIGH { at - reg::EITR } else { at - reg::EITR_HIGH + 24 * 4 };
    index as usize / 4
}

impl Function for Ixgbe {
    fn name(&self) -> &'static str {
        "82599"
    }

    fn config(&self) -> &ConfigSpace {
        &self.config
    }

    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn config_write(&mut self, at: usize, size: u8, value: u32, ctx: &mut DeviceContext) {
        let was_on = self.capabilities.is_on(&self.config);
        self.config.write(at, size, value);
        self.msix.refresh(&self.config, &mut ctx.out.messages);
        let asked = self.capabilities.take_reset(&mut self.config);
        if asked || was_on != self.capabilities.is_on(&self.config) {
            self.reset(self.time(ctx.now));
        }
        self.pull(ctx);
        self.settle(ctx);
    }

    fn bar_read(&mut self, bar: usize, offset: u64, size: u8, ctx: &mut DeviceContext) -> u64 {
        match bar {
            _ if !self.capabilities.is_on(&self.config) => u64::MAX,
            REGISTERS => {
                let at = (offset & !3) as u32;
                let low = u64::from(self.read(at, ctx));
                let value = match size {
                    8 => low | u64::from(self.read(at + 4, ctx)) << 32,
                    _ => low >> (8 * (offset & 3)),
                };
                self.settle(ctx);
                value
            }
            VECTORS if offset >= PENDING => self.msix.read_pending(offset - PENDING, size),
            VECTORS => self.msix.read_table(offset, size),
            _ => 0,
        }
    }

    fn bar_write(&mut self, bar: usize, offset: u64, size: u8, value: u64, ctx: &mut DeviceContext) {
        match (bar, size) {
            _ if !self.capabilities.is_on(&self.config) => {}
            (REGISTERS, 4 | 8) if offset.is_multiple_of(4) => {
                self.write(offset as u32, value as u32, ctx);
                if size == 8 {
                    self.write(offset as u32 + 4, (value >> 32) as u32, ctx);
                }
                self.settle(ctx);
            }
            (VECTORS, _) if offset < PENDING => self.msix.write_table(offset, size, value, &mut ctx.out.messages),
            _ => {}
        }
    }

    fn next_event(&self) -> Option<Ticks> {
        let State { interrupts, receive, transmit, now, .. } = &self.state;
        let arrival = if receive.listens(&self.file) { self.port.next_arrival() } else { None };
        let room = transmit.next_event(&self.file, self.port.busy(), self.port.rate());
        let due = interrupts.next_event(*now, &self.file, self.msix.enabled());
        // An event that was already due and was not handled waits for the driver.
        let first = [arrival, room, due].into_iter().flatten().filter(|time| time > now).min()?;
        Some(self.clock.ticks(first, SECOND))
    }

    fn advance(&mut self, ctx: &mut DeviceContext) {
        self.pull(ctx);
        self.settle(ctx);
    }

    fn intx(&self) -> bool {
        self.state.interrupts.line() && !self.msix.enabled() && self.config.intx_allowed()
    }
}

/// Saved state of the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedDevice {
    config: ConfigSpace,
    msix: MsiX,
    file: SavedFile,
    state: State,
}

impl Saved for Ixgbe {
    fn save(&self) -> Result<Vec<u8>, StateError> {
        encode(&SavedDevice {
            config: self.config.clone(),
            msix: self.msix.clone(),
            file: self.file.save(),
            state: self.state.clone(),
        })
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let SavedDevice { config, msix, file, state } = decode(bytes)?;
        config.check(&self.config)?;
        msix.check(&self.msix, &config)?;
        let file = file.restore()?;
        state.interrupts.check()?;
        state.receive.check(&file)?;
        state.transmit.check()?;
        state.director.check(&file)?;
        require(state.bus.is_possible() && state.now < Time::MAX, "a network device")?;
        require(config.interrupt_status() == state.interrupts.line(), "the interrupt status of a PCI function")?;
        (self.config, self.msix, self.file, self.state) = (config, msix, file, state);
        Ok(())
    }
}
