//! Tests that guests behave under every configuration of the hypervisor as on bare hardware.

use crate::common::*;
use cpu::bus::lock;
use iced_x86::code_asm::*;

/// CR0.WP, for MOV to CR0 through RAX.
const CR0_WP: i32 = 1 << 16;

#[test]
fn registers_and_devices() {
    everywhere(Mode::Long, |guest| {
        guest.code(64, |a| {
            a.mov(rbx, DATA)?;
            // Control registers read back as written.
            a.mov(rax, cr0)?;
            a.mov(qword_ptr(rbx), rax)?;
            a.xor(rax, 1 << 18)?;
            a.mov(cr0, rax)?;
            a.mov(rax, cr0)?;
            a.mov(qword_ptr(rbx + 8), rax)?;
            a.mov(rax, cr4)?;
            a.mov(qword_ptr(rbx + 16), rax)?;
            a.xor(rax, 1 << 7 | 1 << 2)?;
            a.mov(cr4, rax)?;
            a.mov(rax, cr4)?;
            a.mov(qword_ptr(rbx + 24), rax)?;
            a.mov(rax, cr3)?;
            a.mov(qword_ptr(rbx + 32), rax)?;
            a.mov(cr3, rax)?;
            a.smsw(eax)?;
            a.mov(qword_ptr(rbx + 40), rax)?;
            a.clts()?;
            // EFER, a base, a register that does not exist.
            a.mov(ecx, 0xc000_0080u32)?;
            a.rdmsr()?;
            a.mov(qword_ptr(rbx + 48), rax)?;
            a.wrmsr()?;
            a.mov(ecx, 0xc000_0100u32)?;
            a.mov(eax, 0x1234)?;
            a.xor(edx, edx)?;
            a.wrmsr()?;
            a.rdmsr()?;
            a.mov(qword_ptr(rbx + 56), rax)?;
            a.mov(ecx, 0xc000_0081u32)?;
            a.mov(eax, 0x5678)?;
            a.wrmsr()?;
            a.rdmsr()?;
            a.mov(qword_ptr(rbx + 64), rax)?;
            let mut unknown = a.create_label();
            a.lea(rbp, ptr(unknown))?;
            a.mov(ecx, 0x7777)?;
            a.rdmsr()?;
            a.set_label(&mut unknown)?;
            // A port and a register in memory, in several ways.
            a.mov(dx, i32::from(PORT))?;
            a.in_(eax, dx)?;
            a.mov(dword_ptr(rbx + 72), eax)?;
            a.mov(al, 0x5a)?;
            a.out(dx, al)?;
            a.mov(rsi, DEVICE)?;
            a.mov(eax, dword_ptr(rsi))?;
            a.add(dword_ptr(rsi + 4), eax)?;
            a.mov(qword_ptr(rbx + 80), rax)?;
            a.lea(rdi, qword_ptr(rbx + 88))?;
            a.mov(ecx, 3)?;
            a.rep().insd()?;
            a.mov(rdi, DEVICE + 0x100)?;
            a.lea(rsi, qword_ptr(rbx))?;
            a.mov(ecx, 4)?;
            a.rep().movsq()?;
            a.mov(rdx, DEVICE + 0x20)?;
            a.cmpxchg(dword_ptr(rdx), ecx)?;
            // CR8.
            a.mov(eax, 5)?;
            a.mov(cr8, rax)?;
            a.mov(rax, cr8)?;
            a.mov(qword_ptr(rbx + 104), rax)?;
            // Debug registers.
            a.mov(rax, 0x1111u64)?;
            a.mov(dr1, rax)?;
            a.mov(rcx, dr1)?;
            a.mov(qword_ptr(rbx + 112), rcx)?;
            // An opcode that does not exist, a division by zero.
            let mut ud = a.create_label();
            a.lea(rbp, ptr(ud))?;
            a.ud2()?;
            a.set_label(&mut ud)?;
            let mut de = a.create_label();
            a.lea(rbp, ptr(de))?;
            a.xor(ecx, ecx)?;
            a.div(ecx)?;
            a.set_label(&mut de)?;
            a.xor(edx, edx)?;
            a.xor(esi, esi)?;
            a.cli()?;
            a.hlt()
        });
    });
}

#[test]
fn page_tables_that_change() {
    everywhere(Mode::Long, |guest| {
        // A table at 1 GiB: 4 KiB pages, which the guest edits.
        let (directory, table) = (TABLES, TABLES + 0x1000);
        guest.cpu.wiring.ram.write(0x2000 + 8, directory | 7);
        guest.cpu.wiring.ram.write(directory, table | 7);
        for i in 0..8u64 {
            guest.cpu.wiring.ram.write(table + 8 * i, (0x40_0000 + (i << 12)) | 7);
            guest.cpu.wiring.ram.write(0x40_0000 + (i << 12), 0x1000 + i);
        }
        let linear = 1u64 << 30;
        guest.code(64, |a| {
            a.mov(rbx, DATA)?;
            a.mov(rsi, linear)?;
            a.mov(rdi, table)?;
            // Reads of all of them, a write to one.
            for i in 0..8 {
                a.mov(rax, qword_ptr(rsi + (i << 12)))?;
                a.mov(qword_ptr(rbx + 8 * i), rax)?;
            }
            a.mov(qword_ptr(rsi + 8), rax)?;
            // Another page, which is visible after INVLPG.
            a.mov(rax, 0x40_5007u64)?;
            a.mov(qword_ptr(rdi), rax)?;
            a.invlpg(ptr(rsi))?;
            a.mov(rax, qword_ptr(rsi))?;
            a.mov(qword_ptr(rbx + 64), rax)?;
            // The page is no longer present.
            a.mov(qword_ptr(rdi + 8), 0)?;
            a.invlpg(ptr(rsi + 0x1000))?;
            let mut absent = a.create_label();
            a.lea(rbp, ptr(absent))?;
            a.mov(rax, qword_ptr(rsi + 0x1000))?;
            a.set_label(&mut absent)?;
            // Read-only: a write faults with CR0.WP, does not fault without it, and faults with it again.
            a.mov(qword_ptr(rdi + 16), 0x40_2005)?;
            a.invlpg(ptr(rsi + 0x2000))?;
            for i in 0..3 {
                a.mov(rax, cr0)?;
                if i == 1 {
                    a.and(rax, !CR0_WP)?;
                } else {
                    a.or(rax, CR0_WP)?;
                }
                a.mov(cr0, rax)?;
                let mut denied = a.create_label();
                a.lea(rbp, ptr(denied))?;
                a.mov(dword_ptr(rsi + 0x2000), 0x77 + i)?;
                a.set_label(&mut denied)?;
                a.mov(rax, qword_ptr(rsi + 0x2000))?;
                a.mov(qword_ptr(rbx + 72 + 8 * i), rax)?;
            }
            // A full flush makes changes visible that INVLPG did not.
            a.mov(rax, 0x40_7007u64)?;
            a.mov(qword_ptr(rdi + 24), rax)?;
            a.mov(rax, cr3)?;
            a.mov(cr3, rax)?;
            a.mov(rax, qword_ptr(rsi + 0x3000))?;
            a.mov(qword_ptr(rbx + 96), rax)?;
            // The accessed and dirty flags.
            for i in 0..8 {
                a.mov(rax, qword_ptr(rdi + 8 * i))?;
                a.mov(qword_ptr(rbx + 104 + 8 * i), rax)?;
            }
            // A no-execute page, and an instruction fetch from it.
            a.mov(rax, 0x8000_0000_0040_4007u64)?;
            a.mov(qword_ptr(rdi + 32), rax)?;
            a.mov(byte_ptr(rsi + 0x4000), 0xc3)?;
            a.invlpg(ptr(rsi + 0x4000))?;
            let mut fetched = a.create_label();
            a.lea(rbp, ptr(fetched))?;
            a.lea(rax, qword_ptr(rsi + 0x4000))?;
            a.mov(r14, rsp)?;
            a.call(rax)?;
            a.set_label(&mut fetched)?;
            a.mov(rsp, r14)?;
            // A table moves: the directory refers to another one.
            a.mov(rcx, table + 0x1000)?;
            a.mov(rax, 0x40_6007u64)?;
            a.mov(qword_ptr(rcx), rax)?;
            a.mov(rdx, directory)?;
            a.or(rcx, 7)?;
            a.mov(qword_ptr(rdx), rcx)?;
            a.mov(rax, cr3)?;
            a.mov(cr3, rax)?;
            a.mov(rax, qword_ptr(rsi))?;
            a.mov(qword_ptr(rbx + 176), rax)?;
            // An address outside of RAM, and a non-canonical address.
            a.mov(qword_ptr(rdi + 0x1008), 0x4000_0007)?;
            a.invlpg(ptr(rsi + 0x1000))?;
            a.mov(rax, qword_ptr(rsi + 0x1000))?;
            a.mov(qword_ptr(rbx + 184), rax)?;
            let mut wild = a.create_label();
            a.lea(rbp, ptr(wild))?;
            a.mov(rax, 0x8000_0000_0000_0000u64)?;
            a.mov(rax, qword_ptr(rax))?;
            a.set_label(&mut wild)?;
            a.cli()?;
            a.hlt()
        });
    });
}

#[test]
fn two_address_spaces() {
    everywhere(Mode::Long, |guest| {
        let ram = guest.cpu.wiring.ram.clone();
        // Two roots that share the low memory and differ at 1 GiB.
        for space in 0..2u64 {
            let (pml4, pdpt, directory, table) = (
                TABLES + (space << 14),
                TABLES + 0x1000 + (space << 14),
                TABLES + 0x2000 + (space << 14),
                TABLES + 0x3000 + (space << 14),
            );
            ram.write(pml4, pdpt | 7);
            ram.write(pdpt, 0x3007u64);
            ram.write(pdpt + 8, directory | 7);
            ram.write(directory, table | 7);
            for i in 0..512u64 {
                ram.write(table + 8 * i, (0x40_0000 + (space << 20) + ((i & 15) << 12)) | 7);
            }
        }
        guest.code(64, |a| {
            let mut again = a.create_label();
            a.mov(rbx, DATA)?;
            a.mov(rsi, 1u64 << 30)?;
            a.xor(r8d, r8d)?;
            a.mov(r9, TABLES)?;
            a.mov(r10, TABLES + (1 << 14))?;
            a.set_label(&mut again)?;
            a.mov(cr3, r9)?;
            a.inc(qword_ptr(rsi))?;
            a.mov(cr3, r10)?;
            a.add(qword_ptr(rsi), 3)?;
            // Occasionally a new page is mapped in the inactive address space.
            a.mov(rax, r8)?;
            a.shl(rax, 12)?;
            a.and(rax, 0xf000)?;
            a.or(rax, 0x43_0007)?;
            a.mov(rdx, TABLES + 0x3000)?;
            a.mov(qword_ptr(rdx + r8 * 8 + 8), rax)?;
            a.mov(rdx, r8)?;
            a.shl(rdx, 12)?;
            a.mov(cr3, r9)?;
            a.inc(qword_ptr(rsi + rdx + 0x1000))?;
            a.inc(r8d)?;
            a.cmp(r8d, 100)?;
            a.jb(again)?;
            a.mov(rcx, 0x40_0000u64)?;
            a.mov(rax, qword_ptr(rcx))?;
            a.mov(qword_ptr(rbx), rax)?;
            a.mov(rcx, 0x50_0000u64)?;
            a.mov(rax, qword_ptr(rcx))?;
            a.mov(qword_ptr(rbx + 8), rax)?;
            for i in 0..16 {
                a.mov(rcx, 0x43_0000u64 + (i << 12))?;
                a.mov(rax, qword_ptr(rcx))?;
                a.mov(qword_ptr(rbx + (16 + 8 * i) as i32), rax)?;
            }
            a.cli()?;
            a.hlt()
        });
    });
}

#[test]
fn interrupts_arrive_when_they_may() {
    everywhere(Mode::Long, |guest| {
        lock(&guest.bus).interrupts.extend([0x30, 0x31, 0x32]);
        guest.code(64, |a| {
            a.mov(rbx, DATA)?;
            // Interrupts are disabled for a while.
            a.mov(ecx, 1000)?;
            let mut wait = a.create_label();
            a.set_label(&mut wait)?;
            a.dec(ecx)?;
            a.jnz(wait)?;
            a.mov(qword_ptr(rbx), r15)?;
            a.sti()?;
            a.hlt()?;
            a.mov(ecx, 1000)?;
            let mut more = a.create_label();
            a.set_label(&mut more)?;
            a.dec(ecx)?;
            a.jnz(more)?;
            a.cli()?;
            a.mov(qword_ptr(rbx + 8), r15)?;
            a.hlt()
        });
    });
}

#[test]
fn software_interrupts_push_the_flags_there_were() {
    everywhere(Mode::Long, |guest| {
        guest.code(64, |a| {
            a.mov(rbx, DATA)?;
            // The first of them finds the tables unmapped.
            for i in 0..2 {
                a.int(0x30)?;
                a.mov(rax, qword_ptr(rsp - 24))?;
                a.mov(qword_ptr(rbx + 8 * i), rax)?;
            }
            a.cli()?;
            a.hlt()
        });
    });
}

#[test]
fn protected_mode_without_and_with_paging() {
    everywhere(Mode::Protected, |guest| {
        let ram = guest.cpu.wiring.ram.clone();
        // A directory of 4 MiB pages, and one table.
        for i in 0..4u32 {
            ram.write(TABLES + 4 * u64::from(i), i << 22 | 0x87);
        }
        ram.write(TABLES + 4 * 0x100, (TABLES as u32 + 0x1000) | 7);
        for i in 0..1024u32 {
            ram.write(TABLES + 0x1000 + 4 * u64::from(i), (0x40_0000 + ((i & 7) << 12)) | 7);
        }
        // The same tables for PAE.
        ram.write(TABLES + 0x2000, TABLES + 0x3001);
        ram.write(TABLES + 0x2008, TABLES + 0x4001);
        for i in 0..8u64 {
            ram.write(TABLES + 0x3000 + 8 * i, i << 21 | 0xe7);
        }
        ram.write(TABLES + 0x4000, TABLES + 0x5007);
        for i in 0..512u64 {
            ram.write(TABLES + 0x5000 + 8 * i, (0x40_0000 + ((i & 3) << 12)) | 7);
        }
        guest.code(32, |a| {
            let tables = TABLES as u32;
            a.mov(ebx, DATA as u32)?;
            a.mov(dword_ptr(ebx), 0x1234_5678)?;
            a.mov(eax, cr0)?;
            a.mov(dword_ptr(ebx + 4), eax)?;
            // 32-bit paging.
            a.mov(eax, 0x10)?;
            a.mov(cr4, eax)?;
            a.mov(eax, tables)?;
            a.mov(cr3, eax)?;
            a.mov(eax, cr0)?;
            a.or(eax, 0x8001_0000u32 as i32)?;
            a.mov(cr0, eax)?;
            a.mov(esi, 0x4000_0000)?;
            for i in 0..8 {
                a.add(dword_ptr(esi + (i << 12)), 1 + i)?;
            }
            a.add(dword_ptr(esi + (9 << 12)), 0x100)?;
            a.mov(eax, dword_ptr(esi + 0x1000))?;
            a.mov(dword_ptr(ebx + 8), eax)?;
            // A page that is not present, and a change of a table.
            a.mov(ebp, 5)?;
            a.mov(eax, dword_ptr(0x8000_0000u32))?;
            a.mov(dword_ptr(tables + 0x1000), 0x40_6005)?;
            a.invlpg(ptr(esi))?;
            a.mov(eax, dword_ptr(esi))?;
            a.mov(dword_ptr(ebx + 12), eax)?;
            a.mov(ebp, 6)?;
            a.mov(dword_ptr(esi), 1)?;
            // Without paging, then with PAE.
            a.mov(eax, cr0)?;
            a.and(eax, 0x7fff_ffff)?;
            a.mov(cr0, eax)?;
            a.mov(eax, dword_ptr(tables + 0x1000))?;
            a.mov(dword_ptr(ebx + 16), eax)?;
            a.mov(eax, 0x20)?;
            a.mov(cr4, eax)?;
            a.mov(eax, tables + 0x2000)?;
            a.mov(cr3, eax)?;
            a.mov(eax, cr0)?;
            a.or(eax, 0x8000_0000u32 as i32)?;
            a.mov(cr0, eax)?;
            for i in 0..8 {
                a.add(dword_ptr(esi + (i << 12)), 0x1000 << i)?;
            }
            // A PDPTE takes effect at the next load of CR3.
            a.mov(dword_ptr(tables + 0x2010), tables + 0x4001)?;
            a.mov(ebp, 5)?;
            a.mov(eax, dword_ptr(0x8000_0000u32))?;
            a.mov(eax, cr3)?;
            a.mov(cr3, eax)?;
            a.mov(eax, dword_ptr(0x8000_0000u32))?;
            a.mov(dword_ptr(ebx + 20), eax)?;
            a.mov(eax, dword_ptr(tables + 0x5000))?;
            a.mov(dword_ptr(ebx + 24), eax)?;
            a.cli()?;
            a.hlt()
        });
    });
}

#[test]
fn from_real_mode_to_protected_mode() {
    everywhere(Mode::Real, |guest| {
        let ram = guest.cpu.wiring.ram.clone();
        for (i, descriptor) in [0u64, 0x00cf_9b00_0000_ffff, 0x00cf_9300_0000_ffff].iter().enumerate() {
            ram.write(0x6000 + 8 * i as u64, *descriptor);
        }
        ram.write_bytes(0x6100, &[0x17, 0, 0, 0x60, 0, 0]);
        // A software interrupt of real mode.
        ram.write(0x21 * 4, 0x0000_7800u32);
        ram.write_bytes(0x7800, &[0x43, 0xcf]);
        let flat = testkit::assemble(32, 0x9000, |a| {
            a.mov(ax, 0x10)?;
            a.mov(ds, ax)?;
            a.mov(ss, ax)?;
            a.mov(dword_ptr(DATA as u32), ebx)?;
            a.mov(eax, cr0)?;
            a.mov(dword_ptr(DATA as u32 + 4), eax)?;
            a.cli()?;
            a.hlt()
        });
        ram.write_bytes(0x9000, &flat);
        guest.code(16, |a| {
            a.mov(bx, 1)?;
            a.int(0x21)?;
            a.mov(dx, i32::from(PORT))?;
            a.in_(al, dx)?;
            a.mov(byte_ptr(0x7900), al)?;
            a.add(bl, byte_ptr(0x7900))?;
            a.lgdt(ptr(0x6100))?;
            a.mov(eax, cr0)?;
            a.or(al, 1)?;
            a.mov(cr0, eax)?;
            a.db(&[0x66, 0xea, 0x00, 0x90, 0x00, 0x00, 0x08, 0x00])
        });
    });
}

/// A single step traps to a page that the hypervisor has not mapped yet: the trap is injected again, and pushes the
/// same flags.
#[test]
fn a_trap_whose_delivery_exits_pushes_the_same_flags() {
    everywhere(Mode::Long, |guest| {
        guest.code(64, |a| {
            // The exception's handler halts.
            a.xor(ebp, ebp)?;
            a.pushfq()?;
            a.or(qword_ptr(rsp), 1 << 8)?;
            a.popfq()?;
            a.mov(rsp, DATA + 0x100)?;
            a.nop()?;
            a.hlt()
        });
    });
}

#[test]
fn user_code_reaches_ports_after_sysret_of_either_vendor() {
    for profile in ["icx", "zen3"] {
        everywhere_on(profile, Mode::Long, |guest| {
            guest.code(64, |a| {
                let (mut user, mut back) = (a.create_label(), a.create_label());
                for (register, low, high) in [(0xc000_0080u32, 0xd01u32, 0), (0xc000_0081, 0, 0x1b << 16 | 0x18)] {
                    a.mov(ecx, register)?;
                    a.mov(eax, low)?;
                    a.mov(edx, high)?;
                    a.wrmsr()?;
                }
                a.mov(ecx, 0xc000_0082u32)?;
                a.lea(rax, ptr(back))?;
                a.xor(edx, edx)?;
                a.wrmsr()?;
                a.lea(rcx, ptr(user))?;
                // IOPL 3.
                a.mov(r11d, 0x3002)?;
                a.sysretq()?;
                a.set_label(&mut user)?;
                a.mov(edx, u32::from(PORT))?;
                a.in_(eax, dx)?;
                a.mov(ebx, eax)?;
                a.out(dx, al)?;
                a.mov(esi, cs)?;
                a.mov(edi, ss)?;
                a.mov(r8d, DATA as u32)?;
                a.inc(qword_ptr(r8))?;
                a.syscall()?;
                a.set_label(&mut back)?;
                a.xor(ecx, ecx)?;
                a.cli()?;
                a.hlt()
            });
        });
    }
}
