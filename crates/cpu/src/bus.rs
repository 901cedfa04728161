//! The processor's interface to the board.

use ledger::Ticks;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Identity of the accessing processor, and its time.
#[derive(Clone, Copy, Debug)]
pub struct Ident {
    /// Index of the virtual processor.
    pub cpu: usize,
    /// Clock of the processor.
    pub now: Ticks,
}

/// The board as seen by a processor: everything except the processor's own state and RAM.
///
/// After any call on behalf of an instruction, [`crate::Cpu::run`] returns [`crate::Exit::Bus`] when the instruction is
/// complete, so that the board can check timers and interrupt lines.
pub trait Bus {
    /// Reads 1, 2, 4 or 8 bytes at a guest-physical address outside of RAM. An unclaimed address reads as all ones.
    fn read(&mut self, who: Ident, address: u64, size: u8) -> u64;
    /// Writes 1, 2, 4 or 8 bytes at a guest-physical address outside of RAM.
    fn write(&mut self, who: Ident, address: u64, size: u8, value: u64);
    /// Returns the number under which accesses at `address` are charged (the ledger's `MmioRead`/`MmioWrite`
    /// parameter).
    fn device(&self, address: u64) -> u32;
    /// Executes IN of 1, 2 or 4 bytes. An unclaimed port reads as all ones.
    fn port_in(&mut self, who: Ident, port: u16, size: u8) -> u32;
    /// Executes OUT of 1, 2 or 4 bytes.
    fn port_out(&mut self, who: Ident, port: u16, size: u8, value: u32);
    /// Executes RDMSR of a register that the processor does not hold itself (APIC base, x2APIC, TSC deadline, ...).
    /// Returns `None` for #GP.
    fn msr_read(&mut self, who: Ident, index: u32) -> Option<u64>;
    /// Executes WRMSR of such a register. Returns false for #GP.
    fn msr_write(&mut self, who: Ident, index: u32, value: u64) -> bool;
    /// Takes the pending external interrupt of highest priority (the INTA cycle), if it is still pending.
    fn acknowledge(&mut self, who: Ident) -> Option<u8>;
    /// Ends the interrupt in service, as a write of zero to the local APIC's EOI register.
    fn end_of_interrupt(&mut self, who: Ident);
    /// Returns the task priority: bits 7:4 of TPR, in bits 3:0 as in CR8.
    fn cr8(&mut self, who: Ident) -> u8;
    /// Sets the task priority through CR8.
    fn set_cr8(&mut self, who: Ident, value: u8);
    /// Raises the interrupt of the performance counters in the local APIC, whose entry is masked then if `masks` is true.
    fn performance_interrupt(&mut self, who: Ident, masks: bool);
}

/// The board of a machine, which its processors share.
pub type SharedBus = Arc<Mutex<dyn Bus + Send>>;

/// Returns what a lock protects, also after a panic of another holder: who keeps its parts consistent is the owner of the
/// machine, which ends with the panic.
pub fn lock<T: ?Sized>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A board without devices: nothing is claimed, and no interrupt is pending.
pub struct NoDevices;

impl Bus for NoDevices {
    fn read(&mut self, _: Ident, _: u64, size: u8) -> u64 {
        u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8)))
    }
    fn write(&mut self, _: Ident, _: u64, _: u8, _: u64) {}
    fn device(&self, _: u64) -> u32 {
        0
    }
    fn port_in(&mut self, _: Ident, _: u16, size: u8) -> u32 {
        u32::MAX >> (32 - 8 * u32::from(size.clamp(1, 4)))
    }
    fn port_out(&mut self, _: Ident, _: u16, _: u8, _: u32) {}
    fn msr_read(&mut self, _: Ident, _: u32) -> Option<u64> {
        None
    }
    fn msr_write(&mut self, _: Ident, _: u32, _: u64) -> bool {
        false
    }
    fn acknowledge(&mut self, _: Ident) -> Option<u8> {
        None
    }
    fn end_of_interrupt(&mut self, _: Ident) {}
    fn cr8(&mut self, _: Ident) -> u8 {
        0
    }
    fn set_cr8(&mut self, _: Ident, _: u8) {}
    fn performance_interrupt(&mut self, _: Ident, _: bool) {}
}
