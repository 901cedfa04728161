//! Tests of the paravirtual interface: its protocol, its savings, and guests that lie.

use crate::common::*;
use cpu::bus::lock;
use hypervisor::config::{MmuMode, VmConfig};
use hypervisor::paravirt::{MSR_HYPERCALL_PAGE, MSR_STATE_PAGE, SIGNATURE, hypercall_code};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use x86::vmx::reason;

/// Address of the guests' state page.
const STATE: u64 = 0x60_0000;
/// Address of the guests' hypercall page.
const HYPERCALLS: u64 = 0x61_0000;

fn config(mmu: MmuMode) -> VmConfig {
    VmConfig { mmu, paravirt: true, unrestricted_guest: mmu.is_tdp(), ..VmConfig::default() }
}

fn long(config: VmConfig) -> Guest {
    Guest::new("skx", Some(config), Mode::Long)
}

fn wrmsr(a: &mut CodeAssembler, index: u32, value: u64) -> Result<(), IcedError> {
    a.mov(ecx, index)?;
    a.mov(eax, value as u32)?;
    a.mov(edx, (value >> 32) as u32)?;
    a.wrmsr()
}

/// Fills in and registers the state page.
fn register(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(rbx, STATE)?;
    a.mov(dword_ptr(rbx), 1)?;
    a.mov(dword_ptr(rbx + 8), 0x58)?;
    a.mov(dword_ptr(rbx + 12), 0)?;
    wrmsr(a, MSR_STATE_PAGE, STATE | 1)
}

/// Loads the CR3 in RDX through the cache, as a guest does.
fn cached_load(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let mut next = a.create_label();
    let mut miss = a.create_label();
    let mut done = a.create_label();
    a.mov(rsi, STATE)?;
    a.xor(ecx, ecx)?;
    a.set_label(&mut next)?;
    a.cmp(ecx, dword_ptr(rsi + 0x50))?;
    a.jae(miss)?;
    a.mov(rax, rcx)?;
    a.shl(rax, 4)?;
    a.inc(ecx)?;
    a.cmp(qword_ptr(rsi + rax + 0x10), rdx)?;
    a.jne(next)?;
    a.mov(rax, qword_ptr(rsi + rax + 0x18))?;
    a.test(rax, rax)?;
    a.jz(miss)?;
    a.mov(cr3, rax)?;
    a.jmp(done)?;
    a.set_label(&mut miss)?;
    a.mov(cr3, rdx)?;
    a.set_label(&mut done)?;
    a.nop()
}

/// Creates `count` address spaces that differ at 1 GiB, where each has its number.
fn spaces(guest: &mut Guest, count: u64) -> Vec<u64> {
    let ram = guest.cpu.wiring.ram.clone();
    (0..count)
        .map(|space| {
            let tables = TABLES + (space << 14);
            let page = 0x40_0000 + (space << 12);
            ram.write(tables, (tables + 0x1000) | 7);
            ram.write(tables + 0x1000, 0x3007u64);
            ram.write(tables + 0x1008, (tables + 0x2000) | 7);
            ram.write(tables + 0x2000, (tables + 0x3000) | 7);
            ram.write(tables + 0x3000, page | 7);
            ram.write(page, space);
            tables
        })
        .collect()
}

#[test]
fn discovery() {
    for (paravirt, mmu) in [(false, MmuMode::Shadow), (true, MmuMode::Shadow), (true, MmuMode::Tdp)] {
        let mut guest = long(VmConfig { paravirt, ..config(mmu) });
        guest.code(64, |a| {
            a.mov(r8, DATA)?;
            for (i, leaf) in [0x4000_0000u32, 0x4000_0001, 0x4000_0002, 1].into_iter().enumerate() {
                let at = 16 * i as i32;
                a.mov(eax, leaf)?;
                a.xor(ecx, ecx)?;
                a.cpuid()?;
                a.mov(dword_ptr(r8 + at), eax)?;
                a.mov(dword_ptr(r8 + at + 4), ebx)?;
                a.mov(dword_ptr(r8 + at + 8), ecx)?;
                a.mov(dword_ptr(r8 + at + 12), edx)?;
            }
            let mut gp = a.create_label();
            a.lea(rbp, ptr(gp))?;
            a.mov(ecx, MSR_STATE_PAGE)?;
            a.rdmsr()?;
            a.set_label(&mut gp)?;
            a.cli()?;
            a.hlt()
        });
        guest.finish();
        let word = |i: u64| guest.cpu.wiring.ram.read::<u32>(DATA + 4 * i).unwrap();
        assert_eq!([word(0), word(1), word(2), word(3)], [0x4000_0001, SIGNATURE[0], SIGNATURE[1], SIGNATURE[2]]);
        let features = match (paravirt, mmu.is_tdp()) {
            (false, _) => 0,
            (true, true) => 0x3b,
            (true, false) => 0x3f,
        };
        assert_eq!(word(4), features);
        assert_eq!([word(5), word(6)], if paravirt { [1, 0x58] } else { [0, 0] });
        assert_eq!([word(8), word(9), word(10), word(11)], [0; 4]);
        assert_eq!((word(14) >> 31, word(14) >> 3 & 1, word(14) >> 5 & 1), (1, 0, 0));
        assert_eq!(guest.word(LOG), u64::from(!paravirt));
    }
}

#[test]
fn hypercalls_go_through_the_page() {
    for mmu in [MmuMode::Shadow, MmuMode::Tdp, MmuMode::ShadowNocache] {
        let mut guest = long(config(mmu));
        guest.code(64, |a| {
            a.mov(r8, DATA)?;
            wrmsr(a, MSR_HYPERCALL_PAGE, HYPERCALLS | 1)?;
            a.rdmsr()?;
            a.mov(dword_ptr(r8), eax)?;
            for (i, (number, argument)) in
                [(2u64, 0u64), (1, TABLES), (1, 0xe000_0000), (3, 0), (77, 0)].into_iter().enumerate()
            {
                a.mov(rax, number)?;
                a.mov(rbx, argument)?;
                a.mov(rdi, HYPERCALLS)?;
                a.call(rdi)?;
                a.mov(qword_ptr(r8 + 8 + 8 * i as i32), rax)?;
            }
            a.cli()?;
            a.hlt()
        });
        guest.finish();
        assert_eq!(guest.word(DATA), HYPERCALLS | 1);
        let results: Vec<i64> = (1..6).map(|i| guest.word(DATA + 8 * i) as i64).collect();
        assert_eq!(results, [0, 0, -22, -1000, -1000]);
        let mut page = [0; 4096];
        assert!(guest.cpu.wiring.ram.read_bytes(HYPERCALLS, &mut page));
        assert_eq!(page[..4], hypercall_code(false));
        assert!(page[4..].iter().all(|byte| *byte == 0xcc));
    }
}

#[test]
fn cached_loads_do_not_exit() {
    let loads = |paravirt| {
        let mut guest = long(VmConfig { paravirt, ..config(MmuMode::Shadow) });
        let roots = spaces(&mut guest, 3);
        guest.code(64, |a| {
            if paravirt {
                register(a)?;
                a.mov(ecx, MSR_STATE_PAGE)?;
                a.rdmsr()?;
                a.mov(ebx, eax)?;
            }
            a.mov(r8d, 100)?;
            a.xor(r9d, r9d)?;
            a.mov(r11, 1u64 << 30)?;
            let mut again = a.create_label();
            a.set_label(&mut again)?;
            for root in &roots {
                a.mov(rdx, *root)?;
                cached_load(a)?;
                a.shl(r9, 1)?;
                a.add(r9, qword_ptr(r11))?;
                a.inc(qword_ptr(r11 + 8))?;
            }
            a.dec(r8d)?;
            a.jnz(again)?;
            a.mov(r10, cr3)?;
            a.cli()?;
            a.hlt()
        });
        guest.finish();
        assert_eq!(guest.cpu.arch.gpr[10], roots[2]);
        if paravirt {
            assert_eq!(guest.cpu.arch.gpr[3], STATE | 1);
        }
        for space in 0..3 {
            assert_eq!(guest.word(0x40_0008 + (space << 12)), 100);
        }
        (guest.cpu.arch.gpr[9], guest.exits(reason::CONTROL_REGISTER))
    };
    let (with, without) = (loads(true), loads(false));
    assert_eq!(with.0, without.0);
    assert_eq!(without.1, 301);
    assert!(with.1 <= 5, "{} exits for control registers", with.1);
}

#[test]
fn more_spaces_than_entries_and_freed_directories() {
    let mut guest = long(config(MmuMode::Shadow));
    let roots = spaces(&mut guest, 7);
    guest.code(64, |a| {
        register(a)?;
        wrmsr(a, MSR_HYPERCALL_PAGE, HYPERCALLS | 1)?;
        a.mov(r11, 1u64 << 30)?;
        for round in 0..5 {
            for (number, root) in roots.iter().enumerate() {
                a.mov(rdx, *root)?;
                cached_load(a)?;
                a.add(qword_ptr(r11 + 16), number as i32 + round)?;
            }
        }
        // One directory is freed and used for data: its entry must be removed.
        a.mov(rdx, roots[0])?;
        cached_load(a)?;
        for root in &roots[1..] {
            a.mov(rax, 1u64)?;
            a.mov(rbx, *root)?;
            a.mov(rdi, HYPERCALLS)?;
            a.call(rdi)?;
            a.mov(rdi, *root)?;
            a.mov(ecx, 16)?;
            a.xor(eax, eax)?;
            a.rep().stosq()?;
        }
        a.cli()?;
        a.hlt()
    });
    guest.finish();
    for number in 0..7u64 {
        assert_eq!(guest.word(0x40_0010 + (number << 12)), number * 5 + 10);
    }
    let cached: Vec<u64> = (0..4).map(|i| guest.word(STATE + 0x10 + 16 * i)).filter(|root| *root != 0).collect();
    assert_eq!(cached, [roots[0]]);
}

#[test]
fn changes_of_a_cached_directory_are_seen() {
    let mut guest = long(config(MmuMode::Shadow));
    let roots = spaces(&mut guest, 2);
    guest.code(64, |a| {
        register(a)?;
        a.mov(r11, 1u64 << 30)?;
        for root in [roots[0], roots[1], roots[0]] {
            a.mov(rdx, root)?;
            cached_load(a)?;
            a.mov(rax, qword_ptr(r11))?;
        }
        // The other address space's top-level table, and its last-level one, change while it is only cached.
        a.mov(rdi, roots[1])?;
        a.mov(rax, roots[0] + 0x1007)?;
        a.mov(qword_ptr(rdi), rax)?;
        a.mov(rdx, roots[1])?;
        cached_load(a)?;
        a.mov(r12, qword_ptr(r11))?;
        a.mov(rdi, roots[0] + 0x3000)?;
        a.mov(rax, 0x40_1007u64)?;
        a.mov(qword_ptr(rdi), rax)?;
        a.mov(rdx, roots[1])?;
        cached_load(a)?;
        a.mov(r13, qword_ptr(r11))?;
        a.cli()?;
        a.hlt()
    });
    guest.finish();
    assert_eq!((guest.cpu.arch.gpr[12], guest.cpu.arch.gpr[13]), (0, 1));
}

#[test]
fn pages_that_are_not_memory_are_refused() {
    let bad = [STATE, STATE | 3, STATE | 0x801, 0xe000_0001, POOL | 1, (1 << 52) | 1, u64::MAX];
    for index in [MSR_STATE_PAGE, MSR_HYPERCALL_PAGE] {
        let mut guest = long(config(MmuMode::Shadow));
        guest.code(64, |a| {
            for value in bad {
                let mut gp = a.create_label();
                a.lea(rbp, ptr(gp))?;
                wrmsr(a, index, value)?;
                a.set_label(&mut gp)?;
            }
            a.mov(ecx, index)?;
            a.rdmsr()?;
            a.cli()?;
            a.hlt()
        });
        guest.finish();
        assert_eq!((guest.word(LOG), guest.cpu.arch.gpr[0], guest.cpu.arch.gpr[2]), (bad.len() as u64, 0, 0));
        assert!((0..bad.len() as u64).all(|i| guest.word(LOG + 32 + 32 * i) == 13));
    }
}

#[test]
fn another_version_is_refused_without_a_fault() {
    for (version, size) in [(2, 0x58), (0, 0x58), (1, 4096)] {
        let mut guest = long(config(MmuMode::Shadow));
        guest.code(64, |a| {
            a.mov(rbx, STATE)?;
            a.mov(dword_ptr(rbx), version)?;
            a.mov(dword_ptr(rbx + 8), size)?;
            wrmsr(a, MSR_STATE_PAGE, STATE | 1)?;
            a.rdmsr()?;
            a.cli()?;
            a.hlt()
        });
        guest.finish();
        assert_eq!((guest.cpu.arch.gpr[0], guest.word(LOG)), (0, 0));
        assert_eq!(guest.cpu.wiring.ram.read::<u32>(STATE + 4), Some(1));
        assert_eq!(guest.cpu.wiring.ram.read::<u32>(STATE + 0x50), Some(0));
    }
}

#[test]
fn a_lying_guest_harms_itself_only() {
    // Value that the guest loads after it has filled its page with invalid data: a root that is not cached, another
    // entry's, the hypervisor's tables, an arbitrary value.
    for lie in 0..4 {
        let mut guest = long(config(MmuMode::Shadow));
        let roots = spaces(&mut guest, 2);
        guest.code(64, |a| {
            register(a)?;
            for root in &roots {
                a.mov(rdx, *root)?;
                cached_load(a)?;
            }
            a.mov(rsi, STATE)?;
            a.mov(r10, qword_ptr(rsi + 0x18))?;
            a.mov(rdi, STATE)?;
            a.mov(ecx, 512)?;
            a.mov(rax, 0x0123_4567_89ab_c000u64)?;
            a.rep().stosq()?;
            a.mov(rax, r10)?;
            match lie {
                0 => a.add(rax, 0x20)?,
                1 => a.nop()?,
                2 => a.mov(rax, POOL + 0x1000)?,
                _ => a.mov(rax, 0xffff_f000u64)?,
            }
            a.mov(cr3, rax)?;
            a.mov(rbx, 1u64 << 30)?;
            a.mov(rax, qword_ptr(rbx))?;
            a.cli()?;
            a.hlt()
        });
        // It may end itself in a defined way, but never the hypervisor.
        for _ in 0..100 {
            match guest.run(1_000_000) {
                Ok(cpu::Exit::Shutdown | cpu::Exit::Halt) => break,
                Ok(_) => {}
                Err(failure) => panic!("{failure}"),
            }
        }
    }
}

#[test]
fn the_delay_port_does_not_exit() {
    for (paravirt, exits) in [(true, 1), (false, 11)] {
        let mut guest = long(VmConfig { paravirt, ..config(MmuMode::Shadow) });
        guest.code(64, |a| {
            for _ in 0..10 {
                a.out(0x80, al)?;
            }
            a.out(0x21, al)?;
            a.cli()?;
            a.hlt()
        });
        guest.finish();
        assert_eq!(guest.exits(reason::IO), exits);
        assert_eq!(lock(&guest.bus).written.len(), 11);
    }
}
