//! What the processor asks of the board.

use ledger::Ticks;

/// Which processor asks, and its time.
#[derive(Clone, Copy, Debug)]
pub struct Ident {
    /// Index of the virtual processor.
    pub cpu: usize,
    /// Its clock.
    pub now: Ticks,
}

/// The board as a processor sees it: everything that is not its own state and not RAM.
///
/// After any call that is made on behalf of an instruction, [`crate::Cpu::run`] leaves with [`crate::Exit::Bus`] once the
/// instruction is complete, so that the board can look at timers and interrupt lines again.
pub trait Bus {
    /// Reads 1, 2, 4 or 8 bytes at a guest-physical address that is not RAM. Nothing there: all ones.
    fn read(&mut self, who: Ident, address: u64, size: u8) -> u64;
    /// Writes 1, 2, 4 or 8 bytes at a guest-physical address that is not RAM.
    fn write(&mut self, who: Ident, address: u64, size: u8, value: u64);
    /// Number under which accesses at `address` are charged (the ledger's `MmioRead`/`MmioWrite` parameter).
    fn device(&self, address: u64) -> u32;
    /// IN of 1, 2 or 4 bytes. Nothing there: all ones.
    fn port_in(&mut self, who: Ident, port: u16, size: u8) -> u32;
    /// OUT of 1, 2 or 4 bytes.
    fn port_out(&mut self, who: Ident, port: u16, size: u8, value: u32);
    /// RDMSR of an index the processor does not hold itself (APIC base, x2APIC, TSC deadline, ...); `None` is #GP.
    fn msr_read(&mut self, who: Ident, index: u32) -> Option<u64>;
    /// WRMSR likewise; `false` is #GP.
    fn msr_write(&mut self, who: Ident, index: u32, value: u64) -> bool;
    /// Takes the pending external interrupt of highest priority (the INTA cycle), if there still is one.
    fn acknowledge(&mut self, who: Ident) -> Option<u8>;
    /// Ends the interrupt in service, as a write of zero to the local APIC's EOI register.
    fn end_of_interrupt(&mut self, who: Ident);
    /// Task priority, bits 7:4 as CR8 shows them in bits 3:0.
    fn cr8(&mut self, who: Ident) -> u8;
    /// Sets the task priority through CR8.
    fn set_cr8(&mut self, who: Ident, value: u8);
}
