//! Conversion of registers between KVM and the processor model: for the entry state of an image, the state after INIT,
//! and the state of a guest at the end of its run.

use cpu::Cpu;
use cpu::arch::{Segment, TableRegister};
use kvm_bindings::{kvm_dtable, kvm_regs, kvm_segment, kvm_sregs};
use x86::{reg, rights, seg};

/// General registers in the order of `kvm_regs`.
const ORDER: [u8; 16] =
    [reg::RAX, reg::RBX, reg::RCX, reg::RDX, reg::RSI, reg::RDI, reg::RSP, reg::RBP, 8, 9, 10, 11, 12, 13, 14, 15];

/// Registers of a virtual processor.
#[derive(Clone, Copy, Debug, Default)]
pub struct State {
    /// General registers, RIP and RFLAGS.
    pub regs: kvm_regs,
    /// Segments, tables and control registers. The APIC base and the pending interrupt are not used.
    pub sregs: kvm_sregs,
}

impl State {
    /// Returns the registers of a processor model.
    pub fn of(cpu: &Cpu) -> Self {
        let arch = &cpu.arch;
        let mut regs = kvm_regs { rip: arch.rip, rflags: cpu.rflags(), ..kvm_regs::default() };
        for (slot, number) in general(&mut regs).into_iter().zip(ORDER) {
            *slot = arch.gpr[usize::from(number)];
        }
        let sregs = kvm_sregs {
            es: to_kvm(&arch.seg[usize::from(seg::ES)]),
            cs: to_kvm(&arch.seg[usize::from(seg::CS)]),
            ss: to_kvm(&arch.seg[usize::from(seg::SS)]),
            ds: to_kvm(&arch.seg[usize::from(seg::DS)]),
            fs: to_kvm(&arch.seg[usize::from(seg::FS)]),
            gs: to_kvm(&arch.seg[usize::from(seg::GS)]),
            tr: to_kvm(&arch.tr),
            ldt: to_kvm(&arch.ldtr),
            gdt: table_to_kvm(arch.gdtr),
            idt: table_to_kvm(arch.idtr),
            cr0: arch.cr0,
            cr2: arch.cr2,
            cr3: arch.cr3,
            cr4: arch.cr4,
            efer: arch.msr.efer,
            ..kvm_sregs::default()
        };
        Self { regs, sregs }
    }

    /// Returns the same state in real mode, at the address given by a start-up IPI or by an ACPI waking vector.
    pub fn started(mut self, selector: u16, rip: u64) -> Self {
        self.sregs.cs.selector = selector;
        self.sregs.cs.base = u64::from(selector) << 4;
        self.regs.rip = rip;
        self
    }

    /// Loads the registers into a processor model.
    pub fn show(&self, cpu: &mut Cpu) {
        let mut regs = self.regs;
        for (slot, number) in general(&mut regs).into_iter().zip(ORDER) {
            cpu.arch.gpr[usize::from(number)] = *slot;
        }
        let s = &self.sregs;
        let segments = [
            (seg::ES, &s.es),
            (seg::CS, &s.cs),
            (seg::SS, &s.ss),
            (seg::DS, &s.ds),
            (seg::FS, &s.fs),
            (seg::GS, &s.gs),
        ];
        for (number, segment) in segments {
            cpu.arch.seg[usize::from(number)] = from_kvm(segment);
        }
        cpu.arch.tr = from_kvm(&s.tr);
        cpu.arch.ldtr = from_kvm(&s.ldt);
        cpu.arch.gdtr = TableRegister { base: s.gdt.base, limit: s.gdt.limit };
        cpu.arch.idtr = TableRegister { base: s.idt.base, limit: s.idt.limit };
        (cpu.arch.cr0, cpu.arch.cr2, cpu.arch.cr3, cpu.arch.cr4) = (s.cr0, s.cr2, s.cr3, s.cr4);
        cpu.arch.msr.efer = s.efer;
        cpu.arch.cpl = s.ss.dpl & 3;
        cpu.arch.rip = regs.rip;
        cpu.set_rflags(regs.rflags);
        cpu.mode_changed();
        cpu.mapping_changed();
    }
}

/// Returns the general registers in the order of [`ORDER`].
fn general(regs: &mut kvm_regs) -> [&mut u64; 16] {
    let kvm_regs { rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15, .. } = regs;
    [rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15]
}

fn to_kvm(segment: &Segment) -> kvm_segment {
    let flag = |bit: u32| u8::from(segment.rights & bit != 0);
    kvm_segment {
        base: segment.base,
        limit: segment.limit,
        selector: segment.selector,
        type_: (segment.rights & rights::TYPE) as u8,
        present: flag(rights::P),
        dpl: (segment.rights >> rights::DPL_SHIFT & 3) as u8,
        db: flag(rights::DB),
        s: flag(rights::S),
        l: flag(rights::L),
        g: flag(rights::G),
        avl: 0,
        unusable: flag(rights::UNUSABLE),
        padding: 0,
    }
}

fn from_kvm(segment: &kvm_segment) -> Segment {
    let flag = |value: u8, bit: u32| if value != 0 { bit } else { 0 };
    let rights = u32::from(segment.type_) & rights::TYPE
        | u32::from(segment.dpl & 3) << rights::DPL_SHIFT
        | flag(segment.present, rights::P)
        | flag(segment.db, rights::DB)
        | flag(segment.s, rights::S)
        | flag(segment.l, rights::L)
        | flag(segment.g, rights::G)
        | flag(segment.unusable, rights::UNUSABLE);
    Segment { base: segment.base, limit: segment.limit, rights, selector: segment.selector }
}

fn table_to_kvm(table: TableRegister) -> kvm_dtable {
    kvm_dtable { base: table.base, limit: table.limit, ..kvm_dtable::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_the_same_on_the_way_back() {
        let code = rights::ACCESSED | rights::RW | rights::CODE | rights::S | rights::P | rights::G | rights::L;
        for rights in [code, code | 3 << rights::DPL_SHIFT, rights::UNUSABLE, 0x8b, 0x4093] {
            let segment = Segment { base: 0x1234_5000, limit: 0xf_ffff, rights, selector: 0x33 };
            let back = from_kvm(&to_kvm(&segment));
            assert_eq!((back.base, back.limit, back.rights, back.selector), (0x1234_5000, 0xf_ffff, rights, 0x33));
        }
    }

    #[test]
    fn every_general_register_has_a_place() {
        let mut regs = kvm_regs::default();
        for (number, slot) in general(&mut regs).into_iter().enumerate() {
            *slot = number as u64 + 1;
        }
        assert_eq!((regs.rax, regs.rbx, regs.rsi, regs.rsp, regs.r15), (1, 2, 5, 7, 16));
        let mut numbers = ORDER;
        numbers.sort_unstable();
        assert_eq!(numbers, std::array::from_fn(|i| i as u8));
    }

    #[test]
    fn a_start_up_ipi_names_a_page() {
        let state = State::default().started(0x9a00, 0);
        assert_eq!((state.sregs.cs.base, state.sregs.cs.selector, state.regs.rip), (0x9_a000, 0x9a00, 0));
    }
}
