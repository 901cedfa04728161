//! Tests of emulation: its effects, its reports, and the state that it must preserve.

use super::{DeviceAccess, Emulation, Flush, GuestPhysical, GuestView, Outcome, Stretch, Surroundings};
use crate::arch::{Segment, attention};
use crate::bus::lock;
use crate::bus::{Bus, Ident};
use crate::ram::Ram;
use crate::testing::{CODE, DATA, Machine, RAM, STACK};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use std::sync::{Arc, Mutex};
use x86::control::*;
use x86::vmx::interruptibility;
use x86::{flags, reg, vector};

/// Memory-mapped device registers beyond RAM.
const DEVICE: u64 = 0xfee0_0000;
/// Difference between guest-physical and host-physical addresses in the second half of RAM.
const MOVED: u64 = 0x4000_0000;

#[derive(Default)]
struct Board {
    register: u64,
    port: u32,
    cr8: u8,
}

impl Bus for Board {
    fn read(&mut self, _: Ident, address: u64, size: u8) -> u64 {
        if address == DEVICE { self.register & (u64::MAX >> (64 - 8 * u32::from(size))) } else { u64::MAX }
    }
    fn write(&mut self, _: Ident, address: u64, _: u8, value: u64) {
        if address == DEVICE {
            self.register = value;
        }
    }
    fn device(&self, _: u64) -> u32 {
        0
    }
    fn port_in(&mut self, _: Ident, _: u16, _: u8) -> u32 {
        self.port
    }
    fn port_out(&mut self, _: Ident, _: u16, _: u8, value: u32) {
        self.port = value;
    }
    fn msr_read(&mut self, _: Ident, _: u32) -> Option<u64> {
        Some(self.register)
    }
    fn msr_write(&mut self, _: Ident, _: u32, value: u64) -> bool {
        self.register = value;
        true
    }
    fn acknowledge(&mut self, _: Ident) -> Option<u8> {
        None
    }
    fn end_of_interrupt(&mut self, _: Ident) {}
    fn cr8(&mut self, _: Ident) -> u8 {
        self.cr8
    }
    fn set_cr8(&mut self, _: Ident, value: u8) {
        self.cr8 = value;
    }
    fn performance_interrupt(&mut self, _: Ident, _: bool) {}
}

/// A guest on the machine's registers: its view has the original control registers, and the machine's own are then
/// different.
struct Guest {
    machine: Machine,
    view: GuestView,
    board: Arc<Mutex<Board>>,
    memory: Option<Arc<dyn GuestPhysical>>,
}

impl Guest {
    fn new(mut machine: Machine) -> Self {
        let board = Arc::new(Mutex::new(Board::default()));
        machine.cpu.wiring.bus = board.clone();
        let view = GuestView::of(&machine.cpu);
        // A processor with shadow paging: other tables, no WP, no caching.
        machine.cpu.arch.cr3 = 0x7000;
        machine.cpu.arch.cr0 ^= CR0_WP | CR0_TS;
        machine.cpu.mapping_changed();
        machine.cpu.mode_changed();
        Self { machine, view, board, memory: None }
    }

    fn long() -> Self {
        let guest = Self::new(Machine::long64(0));
        // The device's page is mapped at linear 16 MiB.
        guest.machine.cpu.wiring.ram.write(0x3000 + 8 * (RAM >> 21), DEVICE & !0x1f_ffff | 0xe7);
        guest
    }

    /// Assembles one instruction at RIP and emulates it; compares all state that must be preserved.
    fn emulate(&mut self, write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Emulation {
        let bits = if self.view.efer & EFER_LMA != 0 { self.machine.bits() } else { 16 };
        let bytes = crate::testing::assemble(bits, self.machine.cpu.arch.rip, write);
        let linear = self.machine.cpu.code_linear();
        self.machine.poke(linear, &bytes);
        self.go()
    }

    fn go(&mut self) -> Emulation {
        let cpu = &mut self.machine.cpu;
        let before = (GuestView::of(cpu), cpu.micro.clock, cpu.engine.origin, cpu.engine.ilen);
        let done = cpu.emulate(&self.view, self.memory.as_ref(), &mut self.machine.cache);
        assert_eq!((GuestView::of(cpu), cpu.micro.clock, cpu.engine.origin, cpu.engine.ilen), before);
        assert!(cpu.engine.emulation.is_none() && !cpu.engine.code_write_allowed);
        done
    }
}

/// Linear address of the device's register, see [`Guest::long`].
const REGISTER: u64 = RAM + (DEVICE & 0x1f_ffff);

fn exception(vector: u8, code: Option<u32>) -> Outcome {
    Outcome::Exception { vector, code, address: 0, dr6: 0 }
}

#[test]
fn control_registers_change_in_the_view_only() {
    let mut g = Guest::long();
    g.machine.cpu.arch.gpr[0] = g.view.cr0 & !CR0_WP;
    let done = g.emulate(|a| a.mov(cr0, rax));
    assert_eq!((done.outcome, done.view.cr0), (Outcome::Completed, g.view.cr0 & !CR0_WP));
    assert_eq!(g.machine.cpu.arch.rip, CODE + 3);

    g.machine.cpu.arch.gpr[0] = 0x5000;
    let done = g.emulate(|a| a.mov(cr3, rax));
    assert_eq!((done.view.cr3, done.accesses.flushes), (0x5000, vec![Flush::Pcid(0)]));

    g.machine.cpu.arch.gpr[0] = g.view.cr4 ^ CR4_PGE;
    let done = g.emulate(|a| a.mov(cr4, rax));
    assert_eq!((done.view.cr4, done.accesses.flushes), (g.view.cr4 ^ CR4_PGE, vec![Flush::All]));

    // Reads return the guest's view.
    g.emulate(|a| a.mov(rbx, cr3));
    assert_eq!(g.machine.cpu.arch.gpr[3], g.view.cr3);

    let done = g.emulate(|a| a.invlpg(byte_ptr(DATA as u32)));
    assert_eq!((done.outcome, done.accesses.flushes), (Outcome::Completed, vec![Flush::Page(DATA)]));

    g.machine.cpu.arch.gpr[0] = 5;
    let done = g.emulate(|a| a.mov(cr8, rax));
    assert_eq!(done.accesses.devices, [DeviceAccess::TaskPriority { write: true }]);
    assert_eq!(lock(&g.board).cr8, 5);
}

#[test]
fn bad_values_raise_and_leave_no_trace() {
    let mut g = Guest::long();
    for (register, value) in [(cr0, CR0_PG), (cr4, 1 << 63), (cr3, 1 << 60)] {
        g.machine.cpu.arch.gpr[0] = value;
        let (gpr, rip) = (g.machine.cpu.arch.gpr, g.machine.cpu.arch.rip);
        let done = g.emulate(|a| a.mov(register, rax));
        assert_eq!((done.outcome, done.view), (exception(vector::GP, Some(0)), g.view));
        assert_eq!((g.machine.cpu.arch.gpr, g.machine.cpu.arch.rip), (gpr, rip));
        assert!(done.accesses.flushes.is_empty() && done.accesses.writes.is_empty());
    }
}

#[test]
fn clts_and_lmsw() {
    let mut g = Guest::long();
    g.view.cr0 |= CR0_TS;
    assert_eq!(g.emulate(|a| a.clts()).view.cr0, g.view.cr0 & !CR0_TS);
    g.machine.cpu.arch.gpr[0] = (CR0_TS | CR0_MP) & 0xe;
    let view = g.emulate(|a| a.lmsw(ax)).view;
    assert_eq!(view.cr0 & 0xf, CR0_PE | CR0_TS | CR0_MP);
}

#[test]
fn real_mode_enters_protected_mode() {
    let mut g = Guest::new(Machine::real16());
    g.view = GuestView { cr0: CR0_ET, ..g.view };
    g.machine.cpu.arch.gpr[0] = 1;
    let done = g.emulate(|a| a.lmsw(ax));
    assert_eq!((done.outcome, done.view.cr0), (Outcome::Completed, CR0_ET | CR0_PE));
    assert_eq!(done.accesses.walks, 1);
    assert_eq!(done.accesses.references, 0);
    // The real registers are in protected mode; the load of a segment follows real mode.
    g.machine.cpu.arch.cr0 |= CR0_PE;
    g.machine.cpu.arch.gpr[0] = 0x1234;
    g.emulate(|a| a.mov(ds, ax));
    assert_eq!(g.machine.cpu.arch.seg[3], Segment { base: 0x12340, ..Segment::real(0x1234, false) });
}

#[test]
fn model_specific_registers() {
    let mut g = Guest::long();
    let set = |g: &mut Guest, index: u32, value: u64| {
        g.machine.cpu.arch.gpr[1] = u64::from(index);
        g.machine.cpu.arch.gpr[0] = value & 0xffff_ffff;
        g.machine.cpu.arch.gpr[2] = value >> 32;
    };
    let efer = g.view.efer;
    set(&mut g, 0xc000_0080, efer & !EFER_NXE);
    let done = g.emulate(|a| a.wrmsr());
    assert_eq!((done.outcome, done.view.efer), (Outcome::Completed, efer & !EFER_NXE));
    assert_eq!(done.accesses.flushes, [Flush::All]);
    set(&mut g, 0xc000_0080, efer & !EFER_LME);
    assert_eq!(g.emulate(|a| a.wrmsr()).outcome, exception(vector::GP, Some(0)));
    set(&mut g, 0xc000_0082, 0xffff_8000_0000_1000);
    g.emulate(|a| a.wrmsr());
    assert_eq!(g.machine.cpu.arch.msr.lstar, 0xffff_8000_0000_1000);
    set(&mut g, 0x1b, 0xfee0_0900);
    let done = g.emulate(|a| a.wrmsr());
    assert_eq!(done.accesses.devices, [DeviceAccess::Msr { index: 0x1b, write: true }]);
    assert_eq!(lock(&g.board).register, 0xfee0_0900);
}

#[test]
fn ports() {
    let mut g = Guest::long();
    lock(&g.board).port = 0x1234_5678;
    let done = g.emulate(|a| a.in_(ax, 0x60));
    assert_eq!(g.machine.cpu.arch.gpr[0], 0x5678);
    assert_eq!(done.accesses.devices, [DeviceAccess::Port { port: 0x60, size: 2, write: false }]);
    assert!(g.machine.cpu.arch.attention & attention::BUS != 0);
    g.machine.cpu.arch.gpr[0] = 0xabcd;
    g.machine.cpu.arch.gpr[2] = 0x3f8;
    g.emulate(|a| a.out(dx, al));
    assert_eq!(lock(&g.board).port, 0xcd);
}

#[test]
fn repeated_input_goes_one_at_a_time() {
    let mut g = Guest::long();
    lock(&g.board).port = 0x77;
    g.machine.cpu.arch.gpr[1] = 3;
    g.machine.cpu.arch.gpr[2] = 0x1f0;
    g.machine.cpu.arch.gpr[7] = DATA;
    for left in [2, 1, 0] {
        let done = g.emulate(|a| a.rep().insb());
        let cpu = &g.machine.cpu;
        assert_eq!((done.outcome, cpu.arch.gpr[1]), (Outcome::Completed, left));
        assert_eq!(cpu.arch.rip == CODE, left != 0);
        assert_eq!(done.accesses.writes, [Stretch { address: DATA + 2 - left, len: 1 }]);
    }
    assert_eq!(g.machine.peek::<4>(DATA), [0x77, 0x77, 0x77, 0]);
    g.machine.cpu.arch.rip = CODE;
    g.machine.cpu.arch.gpr[1] = 2;
    g.machine.cpu.arch.gpr[6] = DATA;
    g.machine.cpu.arch.gpr[7] = DATA + 100;
    g.emulate(|a| a.rep().movsb());
    assert_eq!((g.machine.cpu.arch.gpr[1], g.machine.cpu.arch.rip), (1, CODE));
}

#[test]
fn memory_mapped_devices() {
    let mut g = Guest::long();
    g.machine.cpu.arch.gpr[3] = REGISTER;
    lock(&g.board).register = 0x1_0000_0005;
    let done = g.emulate(|a| a.mov(eax, dword_ptr(rbx)));
    assert_eq!(g.machine.cpu.arch.gpr[0], 5);
    let access = |write| DeviceAccess::Memory { address: DEVICE, size: 4, write };
    assert_eq!(done.accesses.devices, [access(false)]);
    assert!(done.accesses.reads.is_empty());
    // Three levels to a 2 MiB page, for the code and for the register.
    assert_eq!((done.accesses.walks, done.accesses.references), (2, 6));
    g.emulate(|a| a.mov(dword_ptr(rbx), 9));
    assert_eq!(lock(&g.board).register, 9);
    let done = g.emulate(|a| a.or(dword_ptr(rbx), 0x40));
    assert_eq!(lock(&g.board).register, 0x49);
    assert_eq!(done.accesses.devices, [access(false), access(true)]);
}

#[test]
fn pushes_across_pages_are_all_or_nothing() {
    let mut g = Guest::long();
    let ram = g.machine.cpu.wiring.ram.clone();
    // 4 KiB pages for the two megabytes of the stack; the page below STACK is not present.
    for i in 0..512 {
        ram.write(0x4000 + 8 * i, (STACK - 0x20_0000 + 4096 * i) | 0x67);
    }
    ram.write(0x3000 + 8 * ((STACK - 1) >> 21), 0x4027u64);
    ram.write(0x4000 + 8 * 510, 0u64);
    let top = STACK - 4096 + 4;
    g.machine.cpu.arch.gpr[usize::from(reg::RSP)] = top;
    g.machine.cpu.arch.gpr[0] = u64::MAX;
    let done = g.emulate(|a| a.push(rax));
    let address = STACK - 4096 - 4;
    assert_eq!(done.outcome, Outcome::Exception { vector: vector::PF, code: Some(2), address, dr6: 0 });
    assert_eq!(g.machine.cpu.arch.gpr[usize::from(reg::RSP)], top);
    assert_eq!(g.machine.peek::<4>(STACK - 4096), [0; 4]);
    ram.write(0x4000 + 8 * 510, (STACK - 8192) | 7);
    let done = g.emulate(|a| a.push(rax));
    assert_eq!(done.outcome, Outcome::Completed);
    assert_eq!(done.accesses.writes, [Stretch { address, len: 4 }, Stretch { address: STACK - 4096, len: 4 }]);
    assert_eq!(done.accesses.marked_entries, [0x4000 + 8 * 510]);
    assert_eq!(g.machine.peek::<8>(address), [0xff; 8]);
}

#[test]
fn the_guests_permissions_hold() {
    let mut g = Guest::long();
    let entry = 0x3000 + 8 * (DATA >> 21);
    g.machine.cpu.wiring.ram.write(entry, DATA | 0x85);
    let code = Some(3);
    let outcome = g.emulate(|a| a.mov(byte_ptr(DATA as u32), 1)).outcome;
    assert_eq!(outcome, Outcome::Exception { vector: vector::PF, code, address: DATA, dr6: 0 });
    // Without WP in the view, independently of the real CR0.
    g.view.cr0 &= !CR0_WP;
    g.machine.cpu.arch.cr0 |= CR0_WP;
    let done = g.emulate(|a| a.mov(byte_ptr(DATA as u32), 1));
    assert_eq!((done.outcome, done.accesses.marked_entries), (Outcome::Completed, vec![entry]));
    assert_eq!(g.machine.cpu.wiring.ram.read::<u64>(entry), Some(DATA | 0xe5));
}

#[derive(Debug)]
struct Slots;

impl GuestPhysical for Slots {
    fn host(&self, address: u64) -> Option<u64> {
        match address {
            0..0x80_0000 => Some(address),
            _ => address.checked_sub(MOVED).filter(|a| *a < 0x80_0000).map(|a| a + 0x80_0000),
        }
    }
}

#[test]
fn memory_is_where_the_slots_have_it() {
    let mut g = Guest::long();
    g.memory = Some(Arc::new(Slots));
    g.machine.cpu.wiring.ram.write(0x3000 + 8 * 4u64, MOVED | 0xe7);
    g.machine.cpu.arch.gpr[0] = 0x55;
    let done = g.emulate(|a| a.mov(byte_ptr(0x80_0010), al));
    assert_eq!(done.accesses.writes, [Stretch { address: MOVED + 0x10, len: 1 }]);
    assert_eq!(g.machine.peek::<1>(0x80_0010), [0x55]);
    // Guest-physical addresses of the second half are no longer mapped.
    g.machine.cpu.wiring.ram.write(0x3000 + 8 * 4u64, 0x80_00e7u64);
    let done = g.emulate(|a| a.mov(al, byte_ptr(0x80_0010)));
    assert_eq!(done.accesses.devices, [DeviceAccess::Memory { address: 0x80_0010, size: 1, write: false }]);
    assert_eq!(g.machine.cpu.arch.gpr[0], 0xff);
}

#[test]
fn hidden_memory_stays_hidden() {
    let mut g = Guest::new(Machine::long64(0));
    let ram = Ram::with_hidden(RAM, DEVICE & !0x1f_ffff, 0x20_0000);
    let mut all = vec![0; RAM as usize];
    g.machine.cpu.wiring.ram.read_bytes(0, &mut all);
    ram.write_bytes(0, &all);
    g.machine.cpu.wiring.ram = ram;
    g.machine.cpu.wiring.ram.write(0x3000 + 8 * (RAM >> 21), DEVICE & !0x1f_ffff | 0xe7);
    g.machine.cpu.arch.gpr[3] = REGISTER;
    let done = g.emulate(|a| a.mov(qword_ptr(rbx), 1));
    assert_eq!(done.accesses.devices, [DeviceAccess::Memory { address: DEVICE, size: 8, write: true }]);
    assert_eq!(g.machine.cpu.wiring.ram.read::<u64>(DEVICE), Some(0));
}

#[test]
fn halting_shadows_and_traps() {
    let mut g = Guest::long();
    assert_eq!(g.emulate(|a| a.hlt()).outcome, Outcome::Halt);
    assert_eq!(g.machine.cpu.arch.attention & attention::HALT, 0);
    g.emulate(|a| a.sti());
    assert_eq!(g.machine.cpu.controls().interruptibility, interruptibility::STI);
    assert!(g.machine.cpu.arch.attention & attention::STI_SHADOW != 0);
    g.emulate(|a| a.nop());
    assert_eq!(g.machine.cpu.controls().interruptibility, 0);
    assert!(g.machine.cpu.arch.attention & attention::STI_SHADOW == 0);
    g.machine.cpu.arch.flags |= flags::TF;
    let done = g.emulate(|a| a.nop());
    assert_eq!((done.outcome, done.trap), (Outcome::Completed, 1 << 14));
    g.machine.cpu.arch.flags &= !flags::TF;
    g.machine.cpu.arch.dr[0] = DATA;
    g.machine.cpu.arch.dr[7] = 0x1_0002;
    let done = g.emulate(|a| a.mov(byte_ptr(DATA as u32), 1));
    assert_eq!((done.outcome, done.trap), (Outcome::Completed, 1));
    assert_eq!(g.machine.cpu.arch.pending_dr6, 0);
}

#[test]
fn events_are_delivered_in_software() {
    let mut g = Guest::new(Machine::real16());
    g.view = GuestView { cr0: CR0_ET, ..g.view };
    g.machine.poke(4 * 0x21, &[0x34, 0x12, 0x00, 0x02]);
    let (view, rip) = (g.view, g.machine.cpu.arch.rip);
    let cpu = &mut g.machine.cpu;
    let done = cpu.emulate_event(&view, &mut Surroundings::default(), &mut g.machine.cache, (1 << 31 | 0x21, 0, 0));
    assert_eq!((done.outcome, cpu.arch.rip, cpu.arch.seg[1].selector), (Outcome::Completed, 0x1234, 0x200));
    assert_eq!(g.machine.peek::<2>(0x7000 - 6), (rip as u16).to_le_bytes());
    assert_eq!(done.accesses.reads, [Stretch { address: 4 * 0x21, len: 4 }]);
}

#[test]
fn written_code_is_decoded_anew() {
    let mut g = Guest::long();
    // Execute code at DATA so that it is decoded, then change it by emulation and execute it again.
    g.machine.cpu.arch.cr3 = g.view.cr3;
    g.machine.cpu.mapping_changed();
    g.machine.cpu.mode_changed();
    let run = |g: &mut Guest| {
        g.machine.cpu.arch.rip = DATA;
        g.machine.cpu.arch.gpr[1] = 0;
        g.machine.run(0);
        g.machine.cpu.engine.stop_at = 0;
        let deadline = g.machine.cpu.micro.clock + 1;
        g.machine.cpu.run(&mut g.machine.cache, deadline);
        g.machine.cpu.arch.gpr[1]
    };
    g.machine.poke(DATA, &[0xb1, 1, 0xf4]);
    assert_eq!(run(&mut g), 1);
    g.machine.cpu.arch.rip = CODE;
    let done = g.emulate(|a| a.mov(byte_ptr(DATA as u32 + 1), 2));
    assert_eq!(done.outcome, Outcome::Completed);
    assert_eq!(g.machine.cpu.arch.attention & attention::CODE, 0);
    assert_eq!(run(&mut g), 2);
}
