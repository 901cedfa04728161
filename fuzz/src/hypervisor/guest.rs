//! The guests' memory before they start: tables in each mode, and handlers that continue after the interrupted code.

use cpu::Cpu;
use cpu::arch::{Segment, TableRegister};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use std::cell::OnceCell;
use testkit::{assemble, set_flat_segments, set_long_mode};
use x86::control::*;
use x86::{reg, rights, seg};

/// Size of guest memory in bytes.
pub const RAM: u64 = 4 << 20;
/// Address of the hypervisor's tables.
pub const POOL: u64 = 0xd000_0000;
/// Page tables; the first is the root.
pub const TABLES: u64 = 0x1000;
/// Number of page-table pages.
pub const TABLE_PAGES: u64 = 8;
/// The interrupt descriptor table.
pub const IDT: u64 = 0x9000;
/// The global descriptor table.
pub const GDT: u64 = 0xa000;
/// Address of the handlers.
pub const HANDLERS: u64 = 0xb000;
/// Counters of the handlers, by vector.
pub const LOG: u64 = 0xe000;
/// The task-state segment.
pub const TSS: u64 = 0xd000;
/// Address of the code, outside real mode.
pub const CODE: u64 = 0x10_0000;
/// Address of the code in real mode.
pub const REAL_CODE: u64 = 0x1_0000;
/// Data, in small pages of its own.
pub const DATA: u64 = 0x20_0000;
/// Initial stack pointer.
pub const STACK: u64 = 0x18_0000;
/// The state page of the paravirtual interface, filled in for its registration.
pub const STATE: u64 = 0x28_0000;
/// Address for the hypercall page.
pub const HYPERCALLS: u64 = 0x29_0000;
/// Linear addresses whose tables are meant to be changed.
pub const WINDOW: u64 = 0x4000_0000;
/// A page of a device.
pub const DEVICE: u64 = 0xfe00_0000;
/// Alignment of the code's pieces; after an exception, execution continues at the next one.
pub const SLOT: usize = 32;

/// The guest's mode at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Real-address mode.
    Real,
    /// Protected mode without paging.
    Protected,
    /// 32-bit paging.
    Legacy,
    /// PAE paging.
    Pae,
    /// 64-bit mode.
    Long,
}

impl Mode {
    /// All modes, 64-bit mode most often.
    pub const ALL: [Mode; 8] = {
        use Mode::*;
        [Real, Protected, Legacy, Pae, Long, Long, Legacy, Pae]
    };

    /// Returns the width of code.
    pub fn bits(self) -> u32 {
        match self {
            Mode::Real => 16,
            Mode::Long => 64,
            _ => 32,
        }
    }

    /// Returns the address at which code starts.
    pub fn code(self) -> u64 {
        if self == Mode::Real { REAL_CODE } else { CODE }
    }
}

/// Puts the processor and its memory into a mode.
pub fn prepare(cpu: &mut Cpu, mode: Mode, user: bool) {
    let ram = cpu.wiring.ram.clone();
    let cpl = if user { 3 } else { 0 };
    page_tables(cpu, mode);
    match mode {
        Mode::Real => {
            cpu.arch.cr0 = CR0_ET;
            for i in 0..6 {
                cpu.arch.seg[i] = Segment::real(0, i == usize::from(seg::CS));
            }
            cpu.arch.seg[usize::from(seg::CS)] = Segment::real((REAL_CODE >> 4) as u16, true);
        }
        Mode::Long => {
            set_long_mode(cpu, TABLES, cpl, true);
            cpu.arch.cr4 &= !CR4_OSXSAVE;
            cpu.arch.xcr0 = 1;
        }
        _ => {
            cpu.arch.cr0 = CR0_PE | CR0_ET | CR0_NE;
            set_flat_segments(cpu, cpl, rights::DB);
            if mode != Mode::Protected {
                cpu.arch.cr0 |= CR0_PG | CR0_WP;
                cpu.arch.cr3 = TABLES;
                cpu.arch.cr4 = if mode == Mode::Pae { CR4_PAE } else { CR4_PSE };
            }
            for i in 0..4 {
                cpu.arch.pdpte[i as usize] = if mode == Mode::Pae { ram.read(TABLES + 8 * i).unwrap_or(0) } else { 0 };
            }
        }
    }
    cpu.arch.gpr = [0; 32];
    cpu.arch.gpr[usize::from(reg::RSP)] = if mode == Mode::Real { 0x7000 } else { STACK };
    cpu.arch.rip = if mode == Mode::Real { 0 } else { CODE };
    cpu.set_rflags(2);
    descriptors(cpu, mode, user);
    // The page is ready for registration: version, size.
    ram.write(STATE, 1u32);
    ram.write(STATE + 8, 0x58u32);
    ram.write_bytes(HYPERCALLS, &[0x0f, 0x01, 0xc1, 0xc3]);
    cpu.micro.tlb.flush_all();
    cpu.mapping_changed();
    cpu.mode_changed();
}

fn page_tables(cpu: &mut Cpu, mode: Mode) {
    let ram = cpu.wiring.ram.clone();
    let table = |n: u64| TABLES + n * 0x1000;
    match mode {
        Mode::Real | Mode::Protected | Mode::Legacy => {
            // All memory is mapped in small pages, the window over it, and the device by a large page.
            let entry = |at: u64, value: u64| ram.write(at, value as u32);
            entry(TABLES, table(1) | 7);
            entry(TABLES + 4 * (WINDOW >> 22), table(2) | 7);
            entry(TABLES + 4 * (DEVICE >> 22), (DEVICE & !0x3f_ffff) | 0x87);
            for i in 0..1024 {
                entry(table(1) + 4 * i, i << 12 | 7);
                entry(table(2) + 4 * i, (DATA + ((i & 15) << 12)) | 7);
            }
        }
        Mode::Pae | Mode::Long => {
            let entry = |at: u64, value: u64| ram.write(at, value);
            let (directories, flags) = if mode == Mode::Long { (table(1), 7) } else { (table(0), 1) };
            if mode == Mode::Long {
                entry(TABLES, directories | 7);
            }
            entry(directories, table(2) | flags);
            entry(directories + 8 * (WINDOW >> 30), table(4) | flags);
            entry(directories + 8 * (DEVICE >> 30), table(6) | flags);
            entry(table(2), 0x87);
            entry(table(2) + 8, table(3) | 7);
            entry(table(4), table(5) | 7);
            entry(table(6) + 8 * (DEVICE >> 21 & 511), DEVICE | 0x87);
            for i in 0..512 {
                entry(table(3) + 8 * i, (DATA + (i << 12)) | 7);
                entry(table(5) + 8 * i, (DATA + ((i & 15) << 12)) | 7);
            }
        }
    }
}

/// Writes the selectors: code and data of both levels as flat segments have them, then a task.
fn descriptors(cpu: &mut Cpu, mode: Mode, user: bool) {
    let ram = cpu.wiring.ram.clone();
    let long = mode == Mode::Long;
    let code = if long { 0x0020_0000_0000_0000 } else { 0x0040_0000_0000_0000 };
    let task = |base: u64| 0x0000_8900_0000_0067 | base << 16;
    let gdt = [
        0,
        0x008f_9b00_0000_ffff | code,
        0x00cf_9300_0000_ffff,
        0x008f_fb00_0000_ffff | code,
        0x00cf_f300_0000_ffff,
        task(TSS),
        0,
        task(TSS + 0x800),
        0,
        0x0000_9b00_0000_ffff,
        0x0000_9300_0000_ffff,
        0x00cf_9b00_0000_ffff,
    ];
    for (i, descriptor) in gdt.into_iter().enumerate() {
        ram.write(GDT + 8 * i as u64, descriptor);
    }
    let size = if long { 16 } else { 8 };
    cpu.arch.gdtr = TableRegister { base: GDT, limit: 8 * gdt.len() as u16 - 1 };
    cpu.arch.idtr = TableRegister { base: IDT, limit: 256 * size - 1 };
    cpu.arch.ldtr = Segment { rights: rights::UNUSABLE, ..Segment::default() };
    cpu.arch.tr = Segment { base: TSS, limit: 0x67, rights: 0x8b, selector: 0x28 };
    let rpl = if user { 3 } else { 0 };
    if mode != Mode::Real {
        for i in 0..6 {
            let code = i == usize::from(seg::CS);
            cpu.arch.seg[i].selector = (if code { 8 } else { 0x10 } + if user { 0x10 } else { 0 }) | rpl;
        }
    }
    // Both tasks get a stack of level 0, and a state to switch to.
    for task in [TSS, TSS + 0x800] {
        if long {
            for i in 0..3 {
                ram.write(task + 4 + 8 * i, (STACK - 0x4000) as u32);
            }
            continue;
        }
        ram.write(task + 4, (STACK - 0x4000) as u32);
        ram.write(task + 8, 0x10u32);
        ram.write(task + 28, TABLES as u32);
        ram.write(task + 32, (CODE + SLOT as u64) as u32);
        ram.write(task + 36, 2u32);
        ram.write(task + 56, (STACK - 0x8000) as u32);
        for (i, selector) in [0x10u32, 8, 0x10, 0x10, 0x10, 0x10].into_iter().enumerate() {
            ram.write(task + 72 + 4 * i as u64, selector);
        }
        ram.write(task + 100, 0x68_0000u32);
    }
    handlers(cpu, mode);
}

/// Writes the handlers, which count and continue at the next slot: [`SLOT`].
fn handlers(cpu: &mut Cpu, mode: Mode) {
    thread_local! {
        static ASSEMBLED: [OnceCell<Vec<u8>>; 3] = const { [const { OnceCell::new() }; 3] };
    }
    let ram = cpu.wiring.ram.clone();
    if mode == Mode::Real {
        cpu.arch.idtr = TableRegister { base: 0, limit: 0x3ff };
        for vector in 0..256u64 {
            ram.write(4 * vector, HANDLERS as u32);
        }
    } else {
        let wide = if mode == Mode::Long { 2 } else { 1 };
        for vector in 0..256u64 {
            // Only some vectors may be called from level 3; a task gate is among the others.
            let rights = if matches!(vector, 3 | 4 | 0x80..) { 0xee00u64 } else { 0x8e00 };
            let at = HANDLERS + stub(vector) * 16;
            let gate = match vector {
                0x22 if mode != Mode::Long => 0x8500 << 32 | 0x38 << 16,
                _ => at & 0xffff | 8 << 16 | rights << 32,
            };
            ram.write(IDT + 8 * wide * vector, gate);
        }
    }
    let bits = mode.bits();
    let code = ASSEMBLED.with(|all| {
        all[(bits / 32) as usize]
            .get_or_init(|| {
                assemble(bits, if bits == 16 { 0 } else { HANDLERS }, |a| match bits {
                    16 => real_handler(a),
                    32 => protected_handler(a),
                    _ => long_handler(a),
                })
            })
            .clone()
    });
    assert!(ram.write_bytes(HANDLERS, &code));
}

/// Returns the entry of a vector's handler: one for vectors with an error code, one for the others.
fn stub(vector: u64) -> u64 {
    u64::from(!matches!(vector, 8 | 10..=14 | 17))
}

fn real_handler(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.push(bp)?;
    a.mov(bp, sp)?;
    a.or(word_ptr(bp + 2), SLOT as i32 - 1)?;
    a.inc(word_ptr(bp + 2))?;
    a.and(word_ptr(bp + 6), 0xfeff)?;
    a.pop(bp)?;
    a.iret()
}

fn protected_handler(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let mut common = a.create_label();
    // This entry is for vectors with an error code.
    a.jmp(common)?;
    for _ in 2..16 {
        a.nop()?;
    }
    a.push(0)?;
    a.set_label(&mut common)?;
    a.or(dword_ptr(esp + 4), SLOT as i32 - 1)?;
    a.inc(dword_ptr(esp + 4))?;
    a.and(dword_ptr(esp + 12), !0x100)?;
    a.push(eax)?;
    a.mov(eax, cr2)?;
    a.add(dword_ptr(LOG as u32), eax)?;
    a.inc(dword_ptr(LOG as u32 + 8))?;
    a.mov(eax, dword_ptr(esp + 4))?;
    a.add(dword_ptr(LOG as u32 + 16), eax)?;
    a.pop(eax)?;
    a.add(esp, 4)?;
    a.iretd()
}

fn long_handler(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let mut common = a.create_label();
    a.jmp(common)?;
    for _ in 2..16 {
        a.nop()?;
    }
    a.push(0)?;
    a.set_label(&mut common)?;
    a.or(qword_ptr(rsp + 8), SLOT as i32 - 1)?;
    a.inc(qword_ptr(rsp + 8))?;
    a.and(qword_ptr(rsp + 24), !0x100)?;
    a.push(rax)?;
    a.mov(rax, cr2)?;
    a.add(qword_ptr(LOG as i32), rax)?;
    a.inc(qword_ptr(LOG as i32 + 8))?;
    a.mov(rax, qword_ptr(rsp + 8))?;
    a.add(qword_ptr(LOG as i32 + 16), rax)?;
    a.pop(rax)?;
    a.add(rsp, 8)?;
    a.iretq()
}
