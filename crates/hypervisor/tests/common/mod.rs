//! Guests that run on bare hardware and under the hypervisor: a processor of a profile, memory, and a board with one
//! device of each kind.

use cpu::arch::{Segment, TableRegister, attention};
use cpu::bus::lock;
use cpu::bus::{Bus, Ident};
use cpu::model::Model;
use cpu::{BlockCache, Cpu, Exit, Ram};
use hypervisor::config::{Cr0Wp, MmuMode, VmConfig};
use hypervisor::mmu::Mmu;
use hypervisor::{Failure, Hypervisor, Vcpu};
use iced_x86::IcedError;
use iced_x86::code_asm::CodeAssembler;
use ledger::{Family, Kind, Operation, Profile, Recorder};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use testkit::{assemble, set_flat_segments, set_long_mode};
use x86::control::*;
use x86::{reg, rights, seg};

/// Size of guest memory in bytes.
pub const RAM: u64 = 16 << 20;
/// Address of the hypervisor's tables.
pub const POOL: u64 = 0xd000_0000;
/// A device register whose reads count up.
pub const DEVICE: u64 = 0xfe00_0000;
/// A port whose reads count up.
pub const PORT: u16 = 0x500;
/// Address of code.
pub const CODE: u64 = 0x10_0000;
/// Address of results.
pub const DATA: u64 = 0x20_0000;
/// The first of the pages for the guests' page tables.
pub const TABLES: u64 = 0x30_0000;
/// The interrupt descriptor table.
pub const IDT: u64 = 0x9000;
/// The global descriptor table: null, code, data, 64-bit code.
pub const GDT: u64 = 0xa000;
/// Addresses of exception handler stubs.
pub const STUBS: u64 = 0xb000;
/// Address of the handlers' log: a count, then vector, error code and CR2 for each exception.
pub const LOG: u64 = 0xe000;
/// Initial stack pointer.
pub const STACK: u64 = 0x80_0000;

const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const PD: u64 = 0x3000;

/// A board with counters as devices, and interrupts that tests request.
#[derive(Default)]
pub struct TestBus {
    pub count: u64,
    pub written: Vec<(u64, u64)>,
    pub interrupts: VecDeque<u8>,
    pub cr8: u8,
}

impl Bus for TestBus {
    fn read(&mut self, _: Ident, address: u64, size: u8) -> u64 {
        if address & !0xfff != DEVICE {
            return u64::MAX >> (64 - 8 * u32::from(size));
        }
        self.count += 1;
        self.count
    }
    fn write(&mut self, _: Ident, address: u64, _: u8, value: u64) {
        self.written.push((address, value));
    }
    fn device(&self, _: u64) -> u32 {
        0
    }
    fn port_in(&mut self, _: Ident, _: u16, _: u8) -> u32 {
        self.count += 1;
        self.count as u32
    }
    fn port_out(&mut self, _: Ident, port: u16, _: u8, value: u32) {
        self.written.push((u64::from(port), u64::from(value)));
    }
    fn msr_read(&mut self, _: Ident, index: u32) -> Option<u64> {
        (index == 0x1b).then_some(0xfee0_0900)
    }
    fn msr_write(&mut self, _: Ident, index: u32, _: u64) -> bool {
        index == 0x1b
    }
    fn acknowledge(&mut self, _: Ident) -> Option<u8> {
        self.interrupts.pop_front()
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

/// A guest and its platform.
pub struct Guest {
    pub cpu: Cpu,
    pub cache: BlockCache,
    pub hypervisor: Option<Hypervisor>,
    pub vcpu: Vcpu,
    pub bus: Arc<Mutex<TestBus>>,
}

/// Initial mode of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// 64-bit mode, memory mapped one to one by 2 MiB user pages.
    Long,
    /// 32-bit protected mode without paging.
    Protected,
    /// Real mode, at CODE - 0xf0000 so that it is in the first megabyte.
    Real,
}

/// Results of a guest.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// General registers.
    pub registers: Vec<u64>,
    /// Words at [`DATA`].
    pub results: Vec<u64>,
    /// Words at [`LOG`].
    pub exceptions: Vec<u64>,
    /// Writes to devices.
    pub written: Vec<(u64, u64)>,
}

/// Returns every valid configuration, on a processor with all features.
pub fn configurations() -> Vec<VmConfig> {
    let mut all = Vec::new();
    for &mmu in MmuMode::ALL {
        for vpid in [false, true] {
            let base = VmConfig { mmu, vpid, unrestricted_guest: mmu.is_tdp(), ..VmConfig::default() };
            all.push(base.clone());
            all.push(VmConfig { huge_pages: false, unsync: false, ..base.clone() });
            all.push(VmConfig { paravirt: true, cr0_wp: Cr0Wp::Unload, ..base.clone() });
            if mmu.is_tdp() {
                all.push(VmConfig { cr0_wp: Cr0Wp::Role, ..base.clone() });
                all.push(VmConfig { cr0_wp: Cr0Wp::GuestOwned, ..base.clone() });
                all.push(VmConfig { unrestricted_guest: false, ..base });
            }
        }
    }
    all
}

impl Guest {
    /// Creates a guest in `mode` on the processor of a profile, under a hypervisor if there is a configuration.
    pub fn new(profile: &str, config: Option<VmConfig>, mode: Mode) -> Self {
        Self::on(&Profile::named(profile).unwrap(), config, mode)
    }

    /// Creates a guest as [`Self::new`] does.
    pub fn on(profile: &Profile, config: Option<VmConfig>, mode: Mode) -> Self {
        let guest_pages = RAM >> 12;
        let pages = config.as_ref().map_or(16, |config| Mmu::pool_pages(config, guest_pages, 1));
        let ram = Ram::with_hidden(RAM, POOL, u64::from(pages) << 12);
        let bus = Arc::new(Mutex::new(TestBus::default()));
        let model = Model::of(profile, profile.costs(), profile.geometry(), &profile.cpuid());
        let mut cpu = Cpu::new(0, Arc::new(model), ram.clone(), bus.clone(), Recorder::default());
        let hypervisor = config.map(|config| Hypervisor::new(config, &ram, profile).unwrap());
        cpu.arch.gpr = [0; 32];
        match mode {
            Mode::Long => {
                ram.write(PML4, PDPT | 7);
                ram.write(PDPT, PD | 7);
                // The device's gigabyte is mapped one to one as well, by an additional table.
                ram.write(PDPT + 8 * 3, (PD + 0x1000) | 7);
                ram.write(PD + 0x1000 + 8 * 0x1f0, DEVICE | 0x87);
                for i in 0..RAM >> 21 {
                    ram.write(PD + 8 * i, i << 21 | 0x87);
                }
                set_long_mode(&mut cpu, PML4, 0, true);
                cpu.arch.cr4 &= !CR4_OSXSAVE;
                cpu.arch.xcr0 = 1;
            }
            Mode::Protected => {
                cpu.arch.cr0 = CR0_PE | CR0_ET | CR0_NE;
                set_flat_segments(&mut cpu, 0, rights::DB);
            }
            Mode::Real => {
                cpu.arch.cr0 = CR0_ET;
                for i in 0..6 {
                    cpu.arch.seg[i] = Segment::real(0, i == usize::from(seg::CS));
                }
            }
        }
        cpu.arch.tr = Segment { base: 0xd000, limit: 0x67, rights: 0x8b, selector: 0x20 };
        cpu.arch.ldtr = Segment { rights: rights::UNUSABLE, ..Segment::default() };
        cpu.arch.rip = if mode == Mode::Real { 0x8000 } else { CODE };
        cpu.arch.gpr[usize::from(reg::RSP)] = if mode == Mode::Real { 0x7000 } else { STACK };
        cpu.mode_changed();
        cpu.mapping_changed();
        let mut guest = Self { cpu, cache: BlockCache::new(), hypervisor, vcpu: Vcpu::new(), bus };
        if mode != Mode::Real {
            guest.tables(if mode == Mode::Long { 64 } else { 32 });
        }
        guest
    }

    fn poke(&mut self, address: u64, bytes: &[u8]) {
        assert!(self.cpu.wiring.ram.write_bytes(address, bytes));
    }

    /// Sets up descriptor tables. Exceptions are logged, and execution continues at the address in RBP if it is not 0
    /// (outside 64-bit mode: EBP bytes further); interrupts from 0x20 on are counted in R15 (EDI outside 64-bit mode).
    fn tables(&mut self, bits: u32) {
        use iced_x86::code_asm::*;
        let descriptors = [0u64, 0x00cf_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0x00af_9b00_0000_ffff];
        for (i, descriptor) in descriptors.iter().enumerate() {
            self.cpu.wiring.ram.write(GDT + 8 * i as u64, *descriptor);
        }
        let long = bits == 64;
        let size = if long { 16 } else { 8 };
        self.cpu.arch.gdtr = TableRegister { base: GDT, limit: 31 };
        self.cpu.arch.idtr = TableRegister { base: IDT, limit: 256 * size - 1 };
        // Code, data: the flat segments with which tests start.
        let code = if long { 0x18u16 } else { 0x08 };
        self.cpu.arch.seg[usize::from(seg::CS)].selector = code;
        for vector in 0..256u64 {
            let stub = STUBS + vector * 32;
            let coded = matches!(vector, 8 | 10..=14 | 17);
            let bytes = assemble(bits, stub, |a| {
                if vector >= 32 {
                    if long {
                        a.inc(r15)?
                    } else {
                        a.inc(edi)?
                    }
                    return if long { a.iretq() } else { a.iretd() };
                }
                if !coded {
                    a.push(0)?;
                }
                a.push(vector as i32)?;
                a.jmp(STUBS + 0x2100)
            });
            self.poke(stub, &bytes);
            let low = stub & 0xffff | u64::from(code) << 16 | 0x8e00 << 32 | (stub >> 16) << 48;
            self.cpu.wiring.ram.write(IDT + vector * u64::from(size), low);
            if long {
                self.cpu.wiring.ram.write(IDT + vector * 16 + 8, 0u64);
            }
        }
        let common = if long {
            assemble(64, STUBS + 0x2100, |a| {
                let mut fatal = a.create_label();
                a.push(rax)?;
                a.push(rbx)?;
                a.mov(rbx, qword_ptr(LOG))?;
                a.inc(qword_ptr(LOG))?;
                a.and(rbx, 63)?;
                a.shl(rbx, 5)?;
                a.mov(rax, qword_ptr(rsp + 16))?;
                a.mov(qword_ptr(rbx + (LOG + 32) as i32), rax)?;
                a.mov(rax, qword_ptr(rsp + 24))?;
                a.mov(qword_ptr(rbx + (LOG + 40) as i32), rax)?;
                a.mov(rax, cr2)?;
                a.mov(qword_ptr(rbx + (LOG + 48) as i32), rax)?;
                a.test(rbp, rbp)?;
                a.jz(fatal)?;
                a.mov(qword_ptr(rsp + 32), rbp)?;
                a.pop(rbx)?;
                a.pop(rax)?;
                a.add(rsp, 16)?;
                a.iretq()?;
                a.set_label(&mut fatal)?;
                a.cli()?;
                a.hlt()
            })
        } else {
            assemble(32, STUBS + 0x2100, |a| {
                let mut fatal = a.create_label();
                a.push(eax)?;
                a.push(ebx)?;
                a.mov(ebx, dword_ptr(LOG as u32))?;
                a.inc(dword_ptr(LOG as u32))?;
                a.and(ebx, 63)?;
                a.shl(ebx, 5)?;
                a.mov(eax, dword_ptr(esp + 8))?;
                a.mov(dword_ptr(ebx + (LOG + 32) as i32), eax)?;
                a.mov(eax, dword_ptr(esp + 12))?;
                a.mov(dword_ptr(ebx + (LOG + 40) as i32), eax)?;
                a.mov(eax, cr2)?;
                a.mov(dword_ptr(ebx + (LOG + 48) as i32), eax)?;
                a.test(ebp, ebp)?;
                a.jz(fatal)?;
                a.add(dword_ptr(esp + 16), ebp)?;
                a.pop(ebx)?;
                a.pop(eax)?;
                a.add(esp, 8)?;
                a.iretd()?;
                a.set_label(&mut fatal)?;
                a.cli()?;
                a.hlt()
            })
        };
        self.poke(STUBS + 0x2100, &common);
    }

    /// Assembles code at RIP.
    pub fn code(&mut self, bits: u32, write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) {
        let rip = self.cpu.arch.rip;
        let bytes = assemble(bits, rip, write);
        self.poke(rip, &bytes);
    }

    /// Runs for at most `ticks`.
    pub fn run(&mut self, ticks: u64) -> Result<Exit, Failure> {
        let deadline = self.cpu.micro.clock + ticks;
        if lock(&self.bus).interrupts.is_empty() {
            self.cpu.arch.attention &= !attention::INTR;
        } else {
            self.cpu.attend(attention::INTR);
        }
        match &mut self.hypervisor {
            Some(vm) => self.vcpu.run(vm, &mut self.cpu, &mut self.cache, deadline),
            None => Ok(self.cpu.run(&mut self.cache, deadline)),
        }
    }

    /// Runs until the guest halts for good, which it must within a time limit.
    pub fn finish(&mut self) {
        let end = self.cpu.micro.clock + 40_000_000_000;
        loop {
            let exit = self.run(1_000_000).unwrap_or_else(|failure| panic!("{failure}"));
            match exit {
                Exit::Halt if self.cpu.arch.flags & x86::flags::IF == 0 => return,
                Exit::Halt if lock(&self.bus).interrupts.is_empty() => panic!("nothing wakes the guest"),
                Exit::Shutdown => panic!("triple fault at {:#x}", self.cpu.arch.rip),
                _ => assert!(self.cpu.micro.clock < end, "the guest does not end; it is at {:#x}", self.cpu.arch.rip),
            }
        }
    }

    /// Returns a quadword of guest memory.
    pub fn word(&self, address: u64) -> u64 {
        self.cpu.wiring.ram.read(address).unwrap()
    }

    /// Returns the results of the guest.
    pub fn outcome(&self) -> Outcome {
        let words = |from: u64, count: u64| (0..count).map(|i| self.word(from + 8 * i)).collect::<Vec<_>>();
        let written = lock(&self.bus).written.clone();
        let registers = self.cpu.arch.gpr[..16].to_vec();
        Outcome { registers, results: words(DATA, 64), exceptions: words(LOG, 64), written }
    }

    /// Returns the number of events and operations so far of the requested kinds.
    pub fn charged(&self, kind: impl Fn(&Kind) -> bool) -> u64 {
        let recorder = &self.cpu.wiring.recorder;
        recorder.events().filter(|event| kind(&event.2)).map(|event| event.3.count).sum()
    }

    /// Returns the number of exits with a reason so far.
    pub fn exits(&self, reason: u32) -> u64 {
        self.charged(|kind| *kind == Kind::new(Family::VmExit, reason))
    }

    /// Returns the number of CPUIDs of a sub-leaf that the hypervisor has executed.
    pub fn cpuids(&self, leaf: u32, subleaf: u32) -> u64 {
        self.charged(|kind| *kind == Kind::cpuid(leaf, subleaf))
    }

    /// Returns the number of operations of a kind so far.
    pub fn operations(&self, operation: Operation) -> u64 {
        self.charged(|kind| *kind == Kind::operation(operation))
    }
}

/// Runs a guest on bare hardware and under every configuration, and compares the results.
pub fn everywhere(mode: Mode, prepare: impl Fn(&mut Guest)) {
    everywhere_on("icx", mode, prepare);
}

/// Runs a guest everywhere, on the processor of a profile.
pub fn everywhere_on(profile: &str, mode: Mode, prepare: impl Fn(&mut Guest)) {
    let run = |config: Option<VmConfig>| {
        let mut guest = Guest::new(profile, config, mode);
        prepare(&mut guest);
        guest.finish();
        guest.outcome()
    };
    let bare = run(None);
    for config in configurations() {
        assert_eq!(run(Some(config.clone())), bare, "on {profile} under {config:?}");
    }
}
