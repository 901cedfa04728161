//! The local APIC: one per processor, as memory-mapped xAPIC and as x2APIC model-specific registers.
//!
//! The board delivers messages ([`route`]), collects interprocessor interrupts and end-of-interrupt broadcasts
//! ([`Lapic::pop_message`], [`Lapic::pop_eoi`]), and collects the events for the processor ([`Lapic::interrupt`],
//! [`Lapic::take_nmis`], [`Lapic::take_init`], [`Lapic::take_startup`]).
//!
//! The board sets the frequency of the timer; [`TIMER_HZ`] is the usual one of virtual machines. Software learns the
//! frequency by calibration or from CPUID leaf 0x15, which must agree with it. The reset state follows the SDM;
//! [`Lapic::set_virtual_wire`] applies the settings of firmware on the bootstrap processor. The APIC ID cannot be
//! changed.

mod all;
mod registers;
mod routing;
mod timer;

use crate::state::{StateError, require, same};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use x86::msr::{APIC_BASE_BSP, APIC_BASE_ENABLE, APIC_BASE_X2APIC};

use ledger::Ticks;

use super::Clock;
use super::ioapic::{Delivery, InterruptMessage};
pub use all::Lapics;
pub use routing::route;
pub use timer::{Mode, Timer};

/// Base address after reset.
pub const DEFAULT_BASE: u64 = 0xfee0_0000;
/// Size of the decoded address range.
pub const SIZE: u64 = 0x1000;
/// Frequency of the timer's undivided clock.
pub const TIMER_HZ: u64 = 1_000_000_000;

const LVT_MASKED: u32 = 1 << 16;
const LVT_LEVEL: u32 = 1 << 15;
const LVT_REMOTE_IRR: u32 = 1 << 14;
const SVR_ENABLED: u32 = 1 << 8;

/// Local vector table entries with a source on this board, in the order of their registers from 0x320. The thermal entry
/// (1) is a register without a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum Lvt {
    Timer = 0,
    Performance = 2,
    Lint0 = 3,
    Lint1 = 4,
    Error = 5,
}

/// Error status register bits.
mod error {
    pub const SEND_ILLEGAL_VECTOR: u32 = 1 << 5;
    pub const RECEIVE_ILLEGAL_VECTOR: u32 = 1 << 6;
    pub const ILLEGAL_REGISTER: u32 = 1 << 7;
}

/// An external interrupt that waits for the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// A vector of this APIC, taken with [`Lapic::acknowledge`].
    Vector(u8),
    /// The 8259A's INTR: the 8259A supplies the vector; the caller then calls [`Lapic::acknowledge_extint`].
    ExtInt,
}

/// 256 bits, one per vector.
type Vectors = [u32; 8];

fn highest(set: &Vectors) -> Option<u8> {
    (0..8u8).rev().find_map(|word| {
        let bits = set[usize::from(word)];
        (bits != 0).then(|| word * 32 + 31 - bits.leading_zeros() as u8)
    })
}

fn assign(set: &mut Vectors, vector: u8, value: bool) {
    let bit = 1 << (vector & 31);
    let word = &mut set[usize::from(vector >> 5)];
    *word = if value { *word | bit } else { *word & !bit };
}

fn contains(set: &Vectors, vector: u8) -> bool {
    set[usize::from(vector >> 5)] & 1 << (vector & 31) != 0
}

/// Parameters of a local APIC.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LapicConfig {
    /// APIC ID, which is fixed.
    pub id: u32,
    /// True for the bootstrap processor.
    pub bsp: bool,
    /// True if x2APIC mode is supported (CPUID.1:ECX bit 21).
    pub x2apic: bool,
    /// Physical address width (CPUID leaf 0x8000_0008).
    pub physical_bits: u32,
    /// The board's clock.
    pub clock: Clock,
    /// Frequency of the timer's undivided clock.
    pub timer_hz: u64,
}

/// A local APIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lapic {
    config: LapicConfig,
    base: u64,
    tpr: u8,
    ldr: u32,
    dfr: u32,
    svr: u32,
    isr: Vectors,
    irr: Vectors,
    tmr: Vectors,
    /// Value of the error status register, and its value after the next write.
    esr: u32,
    errors: u32,
    icr: u64,
    lvt: [u32; 6],
    timer: Timer,
    lint: [bool; 2],
    extint_message: bool,
    nmis: u8,
    init: bool,
    startup: Option<u8>,
    messages: VecDeque<InterruptMessage>,
    eois: VecDeque<u8>,
}

impl Lapic {
    /// Creates a local APIC in its power-on state.
    pub fn new(config: LapicConfig) -> Self {
        let mut lapic = Self {
            config,
            base: DEFAULT_BASE | APIC_BASE_ENABLE | if config.bsp { APIC_BASE_BSP } else { 0 },
            tpr: 0,
            ldr: 0,
            dfr: u32::MAX,
            svr: 0xff,
            isr: [0; 8],
            irr: [0; 8],
            tmr: [0; 8],
            esr: 0,
            errors: 0,
            icr: 0,
            lvt: [LVT_MASKED; 6],
            timer: Timer::new(config.clock, config.timer_hz),
            lint: [false; 2],
            extint_message: false,
            nmis: 0,
            init: false,
            startup: None,
            messages: VecDeque::new(),
            eois: VecDeque::new(),
        };
        lapic.reset();
        lapic
    }

    /// Resets the registers as INIT does: everything except `IA32_APIC_BASE` and the ID. Input pins, and pending NMI,
    /// INIT and start-up, are not affected.
    pub fn reset(&mut self) {
        self.tpr = 0;
        self.dfr = u32::MAX;
        self.svr = 0xff;
        self.isr = [0; 8];
        self.irr = [0; 8];
        self.tmr = [0; 8];
        self.esr = 0;
        self.errors = 0;
        self.icr = 0;
        self.lvt = [LVT_MASKED; 6];
        self.timer.reset();
        self.extint_message = false;
        self.set_logical_id();
    }

    /// Applies the settings of PC firmware on the bootstrap processor: enabled, the 8259A through LINT0, NMI through
    /// LINT1.
    pub fn set_virtual_wire(&mut self) {
        self.svr = SVR_ENABLED | 0xff;
        self.lvt[Lvt::Lint0 as usize] = 7 << 8;
        self.lvt[Lvt::Lint1 as usize] = 4 << 8;
    }

    /// Sets the logical ID, which follows from the ID in x2APIC mode and is set by software otherwise.
    fn set_logical_id(&mut self) {
        let id = self.config.id;
        self.ldr = if self.is_x2apic() { (id >> 4) << 16 | 1 << (id & 0xf) } else { 0 };
    }

    /// Returns the APIC ID.
    pub fn id(&self) -> u32 {
        self.config.id
    }

    /// Returns `IA32_APIC_BASE`.
    pub fn apic_base(&self) -> u64 {
        self.base
    }

    /// Returns true if the APIC is enabled in `IA32_APIC_BASE` (CPUID.1:EDX bit 9 has the same value).
    pub fn is_enabled(&self) -> bool {
        self.base & APIC_BASE_ENABLE != 0
    }

    /// Returns true in x2APIC mode.
    pub fn is_x2apic(&self) -> bool {
        self.base & (APIC_BASE_ENABLE | APIC_BASE_X2APIC) == APIC_BASE_ENABLE | APIC_BASE_X2APIC
    }

    /// Returns true if the APIC is enabled in `IA32_APIC_BASE` and by software in the spurious vector register.
    pub fn is_active(&self) -> bool {
        self.is_enabled() && self.svr & SVR_ENABLED != 0
    }

    /// Returns the base address of the registers, or `None` if the APIC is disabled or in x2APIC mode.
    pub fn mmio_base(&self) -> Option<u64> {
        (self.is_enabled() && !self.is_x2apic()).then_some(self.base & !0xfff)
    }

    /// Returns true if the value is valid for `IA32_APIC_BASE`.
    fn is_base(&self, value: u64) -> bool {
        let address = (1u64 << self.config.physical_bits.min(52)) - 0x1000;
        let modes = APIC_BASE_ENABLE | if self.config.x2apic { APIC_BASE_X2APIC } else { 0 };
        value & !(address | APIC_BASE_BSP | modes) == 0
            && value & (APIC_BASE_ENABLE | APIC_BASE_X2APIC) != APIC_BASE_X2APIC
    }

    /// Writes `IA32_APIC_BASE`. Returns false for #GP. Disabling resets the registers.
    pub fn set_apic_base(&mut self, value: u64) -> bool {
        let mode = value & (APIC_BASE_ENABLE | APIC_BASE_X2APIC);
        let from = self.base & (APIC_BASE_ENABLE | APIC_BASE_X2APIC);
        const X2APIC: u64 = APIC_BASE_ENABLE | APIC_BASE_X2APIC;
        if !self.is_base(value) || matches!((from, mode), (X2APIC, APIC_BASE_ENABLE) | (0, X2APIC)) {
            return false;
        }
        self.base = value;
        if mode != from {
            match mode {
                0 => self.reset(),
                _ => self.set_logical_id(),
            }
        }
        true
    }

    /// Sets the difference between the guest's TSC and the virtual clock, in cycles.
    pub fn set_tsc_offset(&mut self, offset: u64) {
        self.timer.set_tsc_offset(offset);
    }

    /// Returns the time of the next timer interrupt. A masked timer keeps running, and is brought up to date at the
    /// next access.
    pub fn next_event(&self) -> Option<Ticks> {
        self.timer.due().filter(|_| self.lvt[Lvt::Timer as usize] & LVT_MASKED == 0)
    }

    /// Advances the APIC to `now`.
    pub fn advance(&mut self, now: Ticks) {
        if self.timer.advance(now) {
            self.deliver_local(Lvt::Timer);
        }
    }

    /// Drives LINT0 (`pin` 0: the 8259A's INTR) or LINT1 (`pin` 1: NMI).
    pub fn set_lint(&mut self, pin: usize, level: bool) {
        let Some(line) = self.lint.get_mut(pin) else { return };
        let rose = level && !*line;
        *line = level;
        let entry = if pin == 0 { Lvt::Lint0 } else { Lvt::Lint1 };
        if !self.is_enabled() {
            // While the APIC is disabled the pins are INTR and NMI; `interrupt` evaluates INTR.
            if rose && pin == 1 {
                self.add_nmi();
            }
            return;
        }
        let lvt = self.lvt[entry as usize];
        if lvt & LVT_LEVEL != 0 && lvt >> 8 & 7 == 0 {
            self.serve_level_pin(pin);
        } else if rose {
            self.deliver_local(entry);
        }
    }

    /// Raises the interrupt of a fixed, level-triggered pin that is asserted and not in service.
    fn serve_level_pin(&mut self, pin: usize) {
        let entry = if pin == 0 { Lvt::Lint0 } else { Lvt::Lint1 } as usize;
        let lvt = self.lvt[entry];
        let waiting = lvt & (LVT_LEVEL | LVT_MASKED | LVT_REMOTE_IRR | 7 << 8) == LVT_LEVEL;
        if self.lint[pin] && waiting && self.is_active() {
            self.lvt[entry] |= LVT_REMOTE_IRR;
            self.accept(lvt as u8, true);
        }
    }

    fn deliver_local(&mut self, entry: Lvt) {
        let lvt = self.lvt[entry as usize];
        if lvt & LVT_MASKED != 0 {
            return;
        }
        let timer_or_error = matches!(entry, Lvt::Timer | Lvt::Error);
        match Delivery::from_bits(lvt >> 8) {
            _ if timer_or_error => self.accept(lvt as u8, false),
            Some(Delivery::Fixed) => self.accept(lvt as u8, false),
            Some(Delivery::Nmi) => self.add_nmi(),
            Some(Delivery::Init) => self.set_init(),
            // ExtINT is a level, which `interrupt` evaluates.
            _ => {}
        }
    }

    /// Handles an overflow of a performance counter. The entry is masked then if `masks` is true.
    pub fn performance_interrupt(&mut self, masks: bool) {
        self.deliver_local(Lvt::Performance);
        if masks {
            self.lvt[Lvt::Performance as usize] |= LVT_MASKED;
        }
    }

    /// Accepts a message that was routed to this APIC.
    pub fn receive(&mut self, message: &InterruptMessage) {
        match message.delivery {
            Delivery::Fixed | Delivery::LowestPriority => self.accept(message.vector, message.level_triggered),
            Delivery::Nmi if self.is_enabled() => self.add_nmi(),
            Delivery::Init if self.is_enabled() => self.set_init(),
            Delivery::StartUp if self.is_enabled() => self.startup = Some(message.vector),
            Delivery::ExtInt if self.is_active() => self.extint_message = true,
            _ => {}
        }
    }

    fn accept(&mut self, vector: u8, level: bool) {
        if !self.is_active() {
            return;
        }
        if vector < 16 {
            self.report(error::RECEIVE_ILLEGAL_VECTOR);
            return;
        }
        assign(&mut self.irr, vector, true);
        assign(&mut self.tmr, vector, level);
    }

    fn report(&mut self, bit: u32) {
        self.errors |= bit;
        let lvt = self.lvt[Lvt::Error as usize];
        if lvt as u8 >= 16 {
            self.deliver_local(Lvt::Error);
        }
    }

    /// Adds an NMI. Two NMIs can be pending: one that is delivered next, and one latched behind it.
    fn add_nmi(&mut self) {
        self.nmis = (self.nmis + 1).min(2);
    }

    fn set_init(&mut self) {
        self.init = true;
        self.startup = None;
    }

    /// Takes the pending NMIs, two at most. The processor latches one NMI while it serves another.
    pub fn take_nmis(&mut self) -> u8 {
        std::mem::take(&mut self.nmis)
    }

    /// Takes a pending INIT. The board then resets the processor and calls [`Lapic::reset`].
    pub fn take_init(&mut self) -> bool {
        std::mem::take(&mut self.init)
    }

    /// Takes a pending start-up, and returns its page. Only a processor in the wait-for-SIPI state uses it; others drop
    /// it.
    pub fn take_startup(&mut self) -> Option<u8> {
        self.startup.take()
    }

    /// Returns true if NMI, INIT or start-up are pending.
    pub fn has_signals(&self) -> bool {
        self.nmis > 0 || self.init || self.startup.is_some()
    }

    /// Takes the next interprocessor interrupt.
    pub fn pop_message(&mut self) -> Option<InterruptMessage> {
        self.messages.pop_front()
    }

    /// Takes the next vector whose end is broadcast to I/O APICs.
    pub fn pop_eoi(&mut self) -> Option<u8> {
        self.eois.pop_front()
    }

    /// Returns the processor priority register.
    pub fn ppr(&self) -> u8 {
        let serving = highest(&self.isr).unwrap_or(0);
        if self.tpr >> 4 >= serving >> 4 { self.tpr } else { serving & 0xf0 }
    }

    /// Returns the vector that can be delivered now.
    fn deliverable(&self) -> Option<u8> {
        highest(&self.irr).filter(|vector| vector >> 4 > self.ppr() >> 4)
    }

    /// Returns true if the 8259A's request reaches the processor.
    fn extint(&self) -> bool {
        let lint0 = self.lvt[Lvt::Lint0 as usize];
        let wired = !self.is_enabled() || lint0 & (LVT_MASKED | 7 << 8) == 7 << 8;
        self.lint[0] && (wired || self.extint_message)
    }

    /// Returns the external interrupt that the processor would take now with interrupts enabled.
    pub fn interrupt(&self) -> Option<Interrupt> {
        match self.deliverable() {
            Some(vector) if self.is_enabled() => Some(Interrupt::Vector(vector)),
            _ => self.extint().then_some(Interrupt::ExtInt),
        }
    }

    /// Puts the deliverable vector of highest priority into service.
    pub fn acknowledge(&mut self) -> Option<u8> {
        let vector = self.deliverable()?;
        assign(&mut self.irr, vector, false);
        assign(&mut self.isr, vector, true);
        Some(vector)
    }

    /// Records the acknowledgement of the 8259A's interrupt on this processor.
    pub fn acknowledge_extint(&mut self) {
        self.extint_message = false;
    }

    /// Returns the task priority in the format of CR8.
    pub fn cr8(&self) -> u8 {
        self.tpr >> 4
    }

    /// Sets the task priority through CR8.
    pub fn set_cr8(&mut self, value: u8) {
        self.tpr = value << 4;
    }

    /// Ends the interrupt of highest priority in service, as a write to EOI does.
    pub fn end_of_interrupt(&mut self) {
        let Some(vector) = highest(&self.isr) else { return };
        assign(&mut self.isr, vector, false);
        if !contains(&self.tmr, vector) {
            return;
        }
        self.eois.push_back(vector);
        for (pin, entry) in [Lvt::Lint0, Lvt::Lint1].into_iter().enumerate() {
            if self.lvt[entry as usize] as u8 == vector {
                self.lvt[entry as usize] &= !LVT_REMOTE_IRR;
                self.serve_level_pin(pin);
            }
        }
    }
}

impl Lapic {
    /// Checks that this can be a state of `current`.
    fn check(&self, current: &Self) -> Result<(), StateError> {
        same(&self.config, &current.config, "local APIC or TSC frequency")?;
        self.timer.check(&current.timer)?;
        let mode = Mode::from_lvt(self.lvt[Lvt::Timer as usize]);
        require(self.timer.mode() == mode, "the mode of an APIC timer")?;
        require(self.is_base(self.base), "IA32_APIC_BASE")?;
        let lvt = self.lvt.iter().zip(registers::LVT_WRITABLE).all(|(lvt, bits)| lvt & !(bits | LVT_REMOTE_IRR) == 0);
        require(lvt && self.svr < 0x400 && self.nmis <= 2, "registers of a local APIC")?;
        require(self.messages.is_empty() && self.eois.is_empty(), "messages on their way")
    }
}

#[cfg(test)]
mod tests;
