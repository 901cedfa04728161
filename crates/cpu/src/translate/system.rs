//! Instructions on system flags, instructions on bits in memory, and the system instructions whose handlers would be
//! called most often.

use super::asm::{M, R};
use super::emit::Emit;
use super::key::AccessMode;
use super::layout::{BUDGET, FIRST, SECOND, TEST, field, host, memory_register, segment_base};
use super::trace::Surcharge;
use crate::arch::Segment;
use crate::state::Cpu;
use iced_x86::{Mnemonic, OpKind};
use ledger::TICKS_PER_CYCLE;
use std::mem::offset_of;
use x86::control::{CR4_FSGSBASE, CR4_PKE, CR4_TSD};
use x86::msr::SPEC_CTRL;
use x86::{flags, seg};

const RDX: R = R(2);

/// Location of a field of the processor, given a register with the address of its general registers.
macro_rules! state {
    ($at:expr, $($name:tt)+) => {
        M::at($at, (offset_of!(Cpu, $($name)+) - offset_of!(Cpu, arch.gpr)) as i32)
    };
}

/// Returns the location of a field of a segment register.
fn segment(at: R, number: u8, field: usize) -> M {
    let start = offset_of!(Cpu, arch.seg) - offset_of!(Cpu, arch.gpr);
    M::at(at, (start + usize::from(number & 7) * size_of::<Segment>() + field) as i32)
}

impl Emit<'_> {
    /// CLI, if the privilege is certain.
    pub fn mask_interrupts(&mut self) -> bool {
        if self.key.access == AccessMode::User {
            return false;
        }
        self.asm.flagless_store_constant(field!(interrupts), 0);
        true
    }

    /// STAC or CLAC, if the processor certainly supports them and they are permitted.
    pub fn access_control(&mut self, set: bool) -> bool {
        if !matches!(self.key.access, AccessMode::SupervisorOnly | AccessMode::Override) {
            return false;
        }
        self.asm.flagless_store_constant(field!(access_control), if set { flags::AC as i32 } else { 0 });
        true
    }

    /// BT, BTS, BTR or BTC of memory by a register: the bit may be far from the operand.
    pub fn bit_in_memory(&mut self) -> bool {
        let Some(index) = host(self.op().r1) else { return false };
        let opcode = match self.instruction().mnemonic() {
            Mnemonic::Bt => 0xa3,
            Mnemonic::Bts => 0xab,
            Mnemonic::Btr => 0xb3,
            _ => 0xbb,
        };
        self.let_go();
        if self.key.narrow || !self.address(FIRST, false, true) {
            return false;
        }
        self.asm.flagless_constant(TEST, 6);
        self.asm.flagless_shift_right_signed(TEST, index, TEST);
        self.asm.flagless_lea(FIRST, M::indexed(FIRST, TEST, 3, 0));
        let write = opcode != 0xa3;
        let stub = self.probe_at(FIRST, 8, write);
        self.asm.flagless_load(TEST, self.operand);
        self.bit(opcode, TEST, index);
        if write {
            self.asm.flagless_store(self.operand, TEST);
        }
        self.back_here(stub);
        true
    }

    /// Continues if not in non-root mode, so that nothing is intercepted.
    fn outside(&mut self) {
        self.asm.flagless_load(TEST, field!(non_root));
        self.or_otherwise();
    }

    /// Charges an instruction's cost in addition to its class.
    fn charge_event(&mut self, Surcharge { counter, ticks }: Surcharge) {
        if ticks != 0 {
            self.asm.flagless_lea(BUDGET, M::at(BUDGET, ticks as i32));
        }
        if let Some(counter) = counter {
            self.count_under(counter);
        }
    }

    /// STI, if no event waits for it, with the NOP after it.
    pub fn enable_interrupts(&mut self) -> bool {
        let Some(event) = self.event() else { return false };
        // The shadow exists if IF was clear.
        self.asm.flagless_load(TEST, field!(interrupts));
        self.or_otherwise();
        self.outside();
        self.asm.flagless_load(TEST, field!(registers));
        self.asm.flagless_load32(TEST, state!(TEST, arch.attention));
        self.or_otherwise();
        self.asm.flagless_store_constant(field!(interrupts), flags::IF as i32);
        self.charge_event(event);
        if let Some(physical) = self.part().shadow.and_then(|shadow| shadow.begins) {
            self.note_run(physical);
        }
        true
    }

    /// PAUSE.
    pub fn pause(&mut self) -> bool {
        self.outside();
        self.asm.flagless_load(FIRST, field!(registers));
        self.asm.flagless_constant(SECOND, 1);
        self.asm.flagless_store_part(false, state!(FIRST, micro.spins), SECOND);
        true
    }

    /// RDTSC or RDTSCP.
    pub fn read_time(&mut self) -> bool {
        if self.key.narrow {
            return false;
        }
        self.outside();
        self.asm.flagless_load(FIRST, field!(registers));
        if self.key.access == AccessMode::User {
            self.load_cr4_bit(CR4_TSD);
            self.or_otherwise();
        }
        // In the order of time: see `Cpu::in_time_order`. TEST is negative if the limit has passed.
        self.asm.flagless_load(SECOND, state!(FIRST, engine.time_limit));
        self.asm.flagless_load(TEST, field!(base));
        self.asm.flagless_lea(TEST, M::indexed(TEST, BUDGET, 0, 0));
        self.asm.flagless_not(TEST);
        self.asm.flagless_lea(SECOND, M::indexed(SECOND, TEST, 0, 1));
        self.asm.flagless_constant(TEST, 63);
        self.asm.flagless_shift_right(TEST, SECOND, TEST);
        self.or_otherwise();
        // Conversion of ticks to cycles by a multiplication, as compilers divide by 1000.
        const _: () = assert!(TICKS_PER_CYCLE == 1000);
        self.asm.flagless_load(SECOND, field!(base));
        self.asm.flagless_lea(SECOND, M::indexed(SECOND, BUDGET, 0, 0));
        self.asm.flagless_constant(TEST, 3);
        self.asm.flagless_shift_right(SECOND, SECOND, TEST);
        self.asm.flagless_constant(RDX, 0x20c4_9ba5_e353_f7cf);
        self.asm.flagless_multiply(RDX, R::RAX, SECOND);
        self.asm.flagless_constant(TEST, 4);
        self.asm.flagless_shift_right(RDX, RDX, TEST);
        self.asm.flagless_load(FIRST, state!(FIRST, arch.msr.tsc_offset));
        self.asm.flagless_lea(R::RAX, M::indexed(RDX, FIRST, 0, 0));
        self.asm.flagless_rotate(true, RDX, R::RAX, 32);
        self.asm.flagless_lea32(RDX, M::at(RDX, 0));
        self.asm.flagless_lea32(R::RAX, M::at(R::RAX, 0));
        if self.instruction().mnemonic() == Mnemonic::Rdtscp {
            self.asm.flagless_load(FIRST, field!(registers));
            self.asm.flagless_load32(R::R9, state!(FIRST, arch.msr.tsc_aux));
        }
        true
    }

    /// MOV from CR2 or CR3.
    pub fn read_control(&mut self) -> bool {
        let op = *self.op();
        if self.key.access == AccessMode::User || self.key.narrow || !matches!(op.r1, 2 | 3) {
            return false;
        }
        self.outside();
        self.asm.flagless_load(FIRST, field!(registers));
        let from = if op.r1 == 2 { state!(FIRST, arch.cr2) } else { state!(FIRST, arch.cr3) };
        match host(op.r0) {
            Some(to) => self.asm.flagless_load(to, from),
            None => {
                self.asm.flagless_load(FIRST, from);
                self.asm.flagless_store(memory_register(op.r0), FIRST);
            }
        }
        true
    }

    /// SWAPGS.
    pub fn swap_bases(&mut self) -> bool {
        let Some(event) = self.event() else { return false };
        if self.key.access == AccessMode::User || self.key.narrow {
            return false;
        }
        let (gs, other) = (segment_base(seg::GS), state!(FIRST, arch.msr.kernel_gs_base));
        self.asm.flagless_load(FIRST, field!(registers));
        self.asm.flagless_load(TEST, other);
        self.asm.flagless_load(SECOND, gs);
        self.asm.flagless_store(other, SECOND);
        self.asm.flagless_store(gs, TEST);
        self.asm.flagless_store(segment(FIRST, seg::GS, offset_of!(Segment, base)), TEST);
        self.charge_event(event);
        true
    }

    /// Loads a bit of CR4 into `TEST`, as 0 or 1. `FIRST` has the address of the general registers. Uses `SECOND`.
    fn load_cr4_bit(&mut self, bit: u64) {
        self.asm.flagless_load(SECOND, state!(FIRST, arch.cr4));
        self.asm.flagless_constant(TEST, bit);
        self.asm.flagless_extract_by(TEST, SECOND, TEST);
    }

    /// Continues if a bit of CR4 is set. `FIRST` has the address of the general registers afterwards.
    fn enabled(&mut self, bit: u64) {
        self.asm.flagless_load(FIRST, field!(registers));
        self.load_cr4_bit(bit);
        self.asm.flagless_lea(TEST, M::at(TEST, -1));
        self.or_otherwise();
    }

    /// RDFSBASE, RDGSBASE, WRFSBASE or WRGSBASE.
    pub fn base(&mut self, number: u8, write: bool) -> bool {
        if self.key.narrow {
            return false;
        }
        let op = *self.op();
        let wide = op.size == 8;
        self.enabled(CR4_FSGSBASE);
        if !write {
            let to = host(op.r0).unwrap_or(TEST);
            match wide {
                true => self.asm.flagless_load(to, segment_base(number)),
                false => self.asm.flagless_load32(to, segment_base(number)),
            }
            if to == TEST {
                self.asm.flagless_store(memory_register(op.r0), TEST);
            }
            return true;
        }
        let mut from = self.value(op.r0, SECOND);
        if wide {
            // Bits 47 to 63 are equal. Wider addresses are left to the handler, which knows whether they are canonical.
            self.asm.flagless_constant(TEST, 47);
            self.asm.flagless_shift_right_signed(TEST, from, TEST);
            self.asm.flagless_lea(TEST, M::at(TEST, 1));
            self.asm.flagless_constant(FIRST, 1);
            self.asm.flagless_shift_right(TEST, TEST, FIRST);
            self.or_otherwise();
            self.asm.flagless_load(FIRST, field!(registers));
        } else {
            self.asm.flagless_lea32(SECOND, M::at(from, 0));
            from = SECOND;
        }
        self.asm.flagless_store(segment_base(number), from);
        self.asm.flagless_store(segment(FIRST, number, offset_of!(Segment, base)), from);
        true
    }

    /// RDPKRU.
    pub fn read_rights(&mut self) -> bool {
        self.enabled(CR4_PKE);
        // ECX must be 0.
        self.asm.flagless_lea32(TEST, M::at(R::R9, 0));
        self.or_otherwise();
        self.asm.flagless_load32(R::RAX, state!(FIRST, arch.pkru));
        self.asm.flagless_constant(RDX, 0);
        true
    }

    /// WRMSR of IA32_SPEC_CTRL, which has no effect.
    pub fn write_msr(&mut self) -> bool {
        let Some(event) = self.event() else { return false };
        let known = self.source.spec_ctrl;
        if self.key.access == AccessMode::User || self.key.narrow || known == 0 {
            return false;
        }
        self.asm.flagless_lea32(TEST, M::at(R::R9, -(SPEC_CTRL as i32)));
        self.or_otherwise();
        self.outside();
        self.asm.flagless_lea32(TEST, M::at(RDX, 0));
        self.or_otherwise();
        self.asm.flagless_constant(SECOND, !known & 0xffff_ffff);
        self.asm.flagless_extract_by(TEST, R::RAX, SECOND);
        self.or_otherwise();
        self.asm.flagless_lea32(SECOND, M::at(R::RAX, 0));
        self.asm.flagless_load(FIRST, field!(registers));
        self.asm.flagless_store(state!(FIRST, arch.msr.spec_ctrl), SECOND);
        if event.ticks != 0 && event.counter.is_some() {
            self.asm.flagless_load(TEST, state!(FIRST, micro.stays.mitigation));
            self.asm.flagless_lea(TEST, M::at(TEST, event.ticks as i32));
            self.asm.flagless_store(state!(FIRST, micro.stays.mitigation), TEST);
        }
        self.charge_event(event);
        true
    }

    /// MOV from a segment register.
    pub fn selector(&mut self) -> bool {
        let op = *self.op();
        let from = |at| segment(at, op.r1, offset_of!(Segment, selector));
        if self.instruction().op0_kind() == OpKind::Memory {
            let Some(stub) = self.probe(true) else { return false };
            self.asm.flagless_load(TEST, field!(registers));
            self.asm.flagless_load_part(true, TEST, from(TEST));
            self.asm.flagless_store_part(true, self.operand, TEST);
            self.back_here(stub);
            return true;
        }
        self.asm.flagless_load(TEST, field!(registers));
        match (host(op.r0), op.size) {
            (Some(to), 2) => self.asm.flagless_load16(to, from(TEST)),
            (Some(to), _) => self.asm.flagless_load_part(true, to, from(TEST)),
            (None, size) => {
                self.asm.flagless_load_part(true, TEST, from(TEST));
                let to = memory_register(op.r0);
                if size == 2 { self.asm.flagless_store_part(true, to, TEST) } else { self.asm.flagless_store(to, TEST) }
            }
        }
        true
    }

    /// CMPXCHG16B, which changes only ZF.
    pub fn compare_exchange_16(&mut self) -> bool {
        if self.key.narrow {
            return false;
        }
        let Some(stub) = self.probe(true) else { return false };
        self.aligned(15);
        self.asm.flagless_copy(TEST, R::R9);
        self.asm.compare_exchange_16(self.operand);
        self.back_here(stub);
        true
    }

    /// `bt at, index` and similar, which change only CF.
    fn bit(&mut self, opcode: u8, at: R, index: R) {
        let rex = 0x48 | (index.0 >> 3) << 2 | at.0 >> 3;
        self.asm.bytes(&[rex, 0x0f, opcode, 0xc0 | (index.0 & 7) << 3 | at.0 & 7]);
    }
}
