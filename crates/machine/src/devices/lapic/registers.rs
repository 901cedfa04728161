//! The registers of the local APIC, memory-mapped (xAPIC) and as model-specific registers (x2APIC).

use ledger::Ticks;
use x86::msr::{APIC_BASE, TSC_DEADLINE, X2APIC_FIRST};

use crate::devices::ioapic::{Delivery, InterruptMessage, Target};

use super::{LVT_LEVEL, LVT_MASKED, LVT_REMOTE_IRR, Lapic, Lvt, Mode, SVR_ENABLED, error};

/// Register numbers: MMIO offset / 16.
mod register {
    pub const ID: u32 = 0x02;
    pub const VERSION: u32 = 0x03;
    pub const TPR: u32 = 0x08;
    pub const APR: u32 = 0x09;
    pub const PPR: u32 = 0x0a;
    pub const EOI: u32 = 0x0b;
    pub const LDR: u32 = 0x0d;
    pub const DFR: u32 = 0x0e;
    pub const SVR: u32 = 0x0f;
    pub const ISR: u32 = 0x10;
    pub const TMR: u32 = 0x18;
    pub const IRR: u32 = 0x20;
    pub const ESR: u32 = 0x28;
    pub const ICR: u32 = 0x30;
    pub const ICR_HIGH: u32 = 0x31;
    pub const LVT: u32 = 0x32;
    pub const LVT_LAST: u32 = 0x37;
    pub const INITIAL_COUNT: u32 = 0x38;
    pub const CURRENT_COUNT: u32 = 0x39;
    pub const DIVIDE: u32 = 0x3e;
    pub const SELF_IPI: u32 = 0x3f;
}
use register as r;

/// Version 0x14, with 5 as the highest LVT entry.
const VERSION: u32 = 0x0005_0014;

/// Writable bits of each LVT entry.
pub const LVT_WRITABLE: [u32; 6] = [0x7_00ff, 0x1_07ff, 0x1_07ff, 0x1_a7ff, 0x1_a7ff, 0x1_00ff];
/// LVT bits that may be written as 1 without effect: delivery status and remote IRR.
const LVT_READ_ONLY: u32 = 1 << 12 | LVT_REMOTE_IRR;

/// Writable bits of the lower half of ICR in xAPIC mode.
const ICR_WRITABLE: u32 = 0x000c_cfff;
const ICR_LEVEL: u32 = 1 << 15;
const ICR_ASSERT: u32 = 1 << 14;
const ICR_LOGICAL: u32 = 1 << 11;
const ICR_STATUS: u32 = 1 << 12;

impl Lapic {
    /// Reads `size` bytes at `offset` of the mapped registers, which are 32 bits wide at intervals of 16 bytes.
    pub fn mmio_read(&mut self, offset: u64, size: u8, now: Ticks) -> u64 {
        self.advance(now);
        let within = (offset & 0xf) as u32;
        if within > 3 {
            return 0;
        }
        let number = (offset >> 4) as u32 & 0xff;
        let value = match self.register(number, now) {
            Some(value) => value,
            None => {
                self.report(error::ILLEGAL_REGISTER);
                0
            }
        };
        let bytes = u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8)));
        u64::from(value) >> (8 * within) & bytes
    }

    /// Writes `size` bytes at `offset`; only aligned 32-bit writes (or the low half of 64-bit ones) have an effect.
    pub fn mmio_write(&mut self, offset: u64, size: u8, value: u64, now: Ticks) {
        self.advance(now);
        if offset & 0xf != 0 || size < 4 {
            return;
        }
        let value = value as u32;
        match (offset >> 4) as u32 & 0xff {
            r::ID => {}
            r::LDR => self.ldr = value & 0xff00_0000,
            r::DFR => self.dfr = value | 0x0fff_ffff,
            r::ICR => {
                self.icr = self.icr & !0xffff_ffff | u64::from(value & ICR_WRITABLE);
                self.send();
            }
            r::ICR_HIGH => self.icr = self.icr & 0xffff_ffff | u64::from(value & 0xff00_0000) << 32,
            r::SELF_IPI => self.report(error::ILLEGAL_REGISTER),
            number => {
                if !self.write_common(number, value, now) {
                    self.report(error::ILLEGAL_REGISTER);
                }
            }
        }
        self.advance(now);
    }

    /// Handles RDMSR of `IA32_APIC_BASE`, `IA32_TSC_DEADLINE` or an x2APIC register. Returns `None` for #GP.
    pub fn msr_read(&mut self, index: u32, now: Ticks) -> Option<u64> {
        self.advance(now);
        match index {
            APIC_BASE => return Some(self.base),
            TSC_DEADLINE => return Some(self.timer.deadline()),
            _ => {}
        }
        if !self.is_x2apic() {
            return None;
        }
        match index.checked_sub(X2APIC_FIRST)? {
            r::ICR => Some(self.icr),
            r::APR | r::DFR | r::EOI | r::ICR_HIGH | r::SELF_IPI => None,
            number => self.register(number, now).map(u64::from),
        }
    }

    /// Handles WRMSR of the same registers. Returns false for #GP.
    pub fn msr_write(&mut self, index: u32, value: u64, now: Ticks) -> bool {
        self.advance(now);
        let done = match index {
            APIC_BASE => self.set_apic_base(value),
            TSC_DEADLINE => {
                self.timer.set_deadline(value);
                true
            }
            _ if !self.is_x2apic() => false,
            _ => index.checked_sub(X2APIC_FIRST).is_some_and(|number| self.x2apic_write(number, value, now)),
        };
        self.advance(now);
        done
    }

    fn x2apic_write(&mut self, number: u32, value: u64, now: Ticks) -> bool {
        let allowed = match number {
            r::ICR => 0xffff_ffff_000c_dfff,
            r::TPR | r::SELF_IPI => 0xff,
            r::EOI | r::ESR => 0,
            r::SVR => 0x3ff,
            r::LVT..=r::LVT_LAST => u64::from(LVT_WRITABLE[(number - r::LVT) as usize] | LVT_READ_ONLY),
            r::INITIAL_COUNT => 0xffff_ffff,
            r::DIVIDE => 0xb,
            _ => return false,
        };
        if value & !allowed != 0 {
            return false;
        }
        match number {
            r::ICR => {
                self.icr = value & !u64::from(ICR_STATUS);
                self.send();
                true
            }
            r::SELF_IPI => {
                self.self_ipi(value as u8);
                true
            }
            _ => self.write_common(number, value as u32, now),
        }
    }

    /// Returns a register that both interfaces have, or `None` if there is none with this number.
    fn register(&self, number: u32, now: Ticks) -> Option<u32> {
        let word = (number & 7) as usize;
        Some(match number {
            r::ID if self.is_x2apic() => self.id(),
            r::ID => self.id() << 24,
            r::VERSION => VERSION,
            r::TPR => u32::from(self.tpr),
            r::APR | r::PPR => u32::from(self.ppr()),
            r::EOI => 0,
            r::LDR => self.ldr,
            r::DFR => self.dfr,
            r::SVR => self.svr,
            r::ISR..r::TMR => self.isr[word],
            r::TMR..r::IRR => self.tmr[word],
            r::IRR..r::ESR => self.irr[word],
            r::ESR => self.esr,
            r::ICR => self.icr as u32,
            r::ICR_HIGH => (self.icr >> 32) as u32,
            r::LVT..=r::LVT_LAST => self.lvt[(number - r::LVT) as usize],
            r::INITIAL_COUNT => self.timer.initial(),
            r::CURRENT_COUNT => self.timer.current(now),
            r::DIVIDE => self.timer.divide_bits(),
            _ => return None,
        })
    }

    /// Writes a register that both interfaces have. Returns false if it cannot be written.
    fn write_common(&mut self, number: u32, value: u32, now: Ticks) -> bool {
        match number {
            r::TPR => self.tpr = value as u8,
            r::EOI => self.end_of_interrupt(),
            r::SVR => self.set_svr(value & 0x3ff),
            r::ESR => self.esr = std::mem::take(&mut self.errors),
            r::LVT..=r::LVT_LAST => self.set_lvt((number - r::LVT) as usize, value),
            r::INITIAL_COUNT => self.timer.set_initial(value, now),
            r::DIVIDE => self.timer.set_divide(value, now),
            // Writes to read-only registers are ignored.
            r::VERSION | r::APR | r::PPR | r::ISR..r::ESR | r::CURRENT_COUNT => {}
            _ => return false,
        }
        true
    }

    fn set_svr(&mut self, value: u32) {
        self.svr = value;
        if value & SVR_ENABLED == 0 {
            self.lvt.iter_mut().for_each(|lvt| *lvt |= LVT_MASKED);
        }
    }

    fn set_lvt(&mut self, index: usize, value: u32) {
        let kept = self.lvt[index] & LVT_REMOTE_IRR;
        let mut lvt = value & LVT_WRITABLE[index];
        if lvt & LVT_LEVEL != 0 {
            lvt |= kept;
        }
        if self.svr & SVR_ENABLED == 0 {
            lvt |= LVT_MASKED;
        }
        self.lvt[index] = lvt;
        if index == Lvt::Timer as usize {
            self.timer.set_mode(Mode::from_lvt(lvt));
        }
        for (pin, entry) in [Lvt::Lint0, Lvt::Lint1].into_iter().enumerate() {
            if entry as usize == index {
                self.serve_level_pin(pin);
            }
        }
    }

    fn self_ipi(&mut self, vector: u8) {
        if vector < 16 {
            self.report(error::SEND_ILLEGAL_VECTOR);
        } else {
            self.accept(vector, false);
        }
    }

    /// Sends the interprocessor interrupt in the interrupt command register.
    fn send(&mut self) {
        let low = self.icr as u32;
        let vector = low as u8;
        let Some(delivery) = Delivery::from_bits(low >> 8) else { return };
        let by_vector = matches!(delivery, Delivery::Fixed | Delivery::LowestPriority);
        if by_vector && vector < 16 {
            self.report(error::SEND_ILLEGAL_VECTOR);
            return;
        }
        // Level de-assert exists for INIT only, and has no effect on processors of this age.
        if delivery == Delivery::Init && low & (ICR_LEVEL | ICR_ASSERT) == ICR_LEVEL {
            return;
        }
        let wide = self.is_x2apic();
        let destination = (self.icr >> if wide { 32 } else { 56 }) as u32;
        let target = match low >> 18 & 3 {
            1 => Target::Only(self.id()),
            2 => Target::All,
            3 => Target::AllBut(self.id()),
            _ if low & ICR_LOGICAL != 0 => Target::Logical(destination),
            _ => Target::Physical(destination),
        };
        let to_self = matches!(target, Target::Only(_));
        if to_self && by_vector {
            self.accept(vector, false);
        } else if !(to_self && matches!(delivery, Delivery::Init | Delivery::StartUp)) {
            self.messages.push_back(InterruptMessage { target, wide, delivery, vector, level_triggered: false });
        }
    }
}
