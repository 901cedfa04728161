//! Whatever a guest does, it ends itself at worst: no panic, no failure of the hypervisor but a limit, and all again the same.

use crate::common::*;
use cpu::Exit;
use hypervisor::Failure;
use testkit::{Random, bytes};

/// Instructions that make a hypervisor work, as bytes; operands come from random registers.
const PIECES: &[&[u8]] = &[
    &[0x0f, 0x22, 0xc0],             // mov cr0, rax
    &[0x0f, 0x20, 0xc0],             // mov rax, cr0
    &[0x0f, 0x22, 0xd8],             // mov cr3, rax
    &[0x0f, 0x20, 0xd8],             // mov rax, cr3
    &[0x0f, 0x22, 0xe0],             // mov cr4, rax
    &[0x0f, 0x20, 0xe0],             // mov rax, cr4
    &[0x44, 0x0f, 0x22, 0xc0],       // mov cr8, rax
    &[0x0f, 0x01, 0xf0],             // lmsw ax
    &[0x0f, 0x06],                   // clts
    &[0x0f, 0x32],                   // rdmsr
    &[0x0f, 0x30],                   // wrmsr
    &[0x0f, 0xa2],                   // cpuid
    &[0x0f, 0x01, 0xc1],             // vmcall
    &[0x0f, 0x01, 0xd1],             // xsetbv
    &[0x0f, 0x01, 0x3f],             // invlpg [rdi]
    &[0x66, 0x0f, 0x38, 0x82, 0x07], // invpcid rax, [rdi]
    &[0x0f, 0x21, 0xc0],             // mov rax, dr0
    &[0x0f, 0x23, 0xf8],             // mov dr7, rax
    &[0xec],                         // in al, dx
    &[0xf3, 0x6d],                   // rep insd
    &[0xf3, 0x6f],                   // rep outsd
    &[0xf3, 0xa5],                   // rep movsd
    &[0xab],                         // stosd
    &[0xf4],                         // hlt
    &[0xfb],                         // sti
    &[0xfa],                         // cli
    &[0x8e, 0xd0],                   // mov ss, ax
    &[0x0f, 0x01, 0x17],             // lgdt [rdi]
    &[0x0f, 0x01, 0x1f],             // lidt [rdi]
    &[0x0f, 0x00, 0xd8],             // ltr ax
    &[0x9d],                         // popf
    &[0xcf],                         // iret
    &[0xcd, 0x21],                   // int 0x21
    &[0x48, 0x89, 0x07],             // mov [rdi], rax
    &[0x48, 0x8b, 0x06],             // mov rax, [rsi]
    &[0x0f, 0x09],                   // wbinvd
    &[0x0f, 0x01, 0xc9],             // mwait
    &[0xf1],                         // int1
    &[0xff, 0x2f],                   // jmp far [rdi]
];

/// Values that matter to somebody.
const VALUES: &[u64] = &[
    0,
    1,
    0x11,
    0x21,
    0x8000_0011,
    0x8001_0033,
    0x6000_0010,
    0x20,
    0xa0,
    0x2_06a0,
    TABLES,
    TABLES | 5,
    TABLES | 1 << 63,
    0x1000,
    POOL,
    POOL | 1,
    POOL + 0x1000,
    DEVICE,
    RAM - 4,
    0xfee0_0000,
    0xc000_0080,
    0xc000_0102,
    0x5447_4c00,
    0x5447_4c01,
    0x10,
    0x1b,
    0x830,
    u64::MAX,
    1 << 47,
    0x500,
    LOG,
    STACK,
    DATA,
];

fn attack(guest: &mut Guest, seed: u64, mode: Mode) {
    let mut random = Random::new(seed);
    let ram = guest.cpu.wiring.ram.clone();
    // Tables, data and the stack hold entries that are almost right.
    for page in [TABLES, TABLES + 0x1000, DATA, STACK - 0x1000, LOG] {
        for i in 0..512 {
            let entry = (random.next() & 0xff_f000) | (random.next() & 0xe7) | 1;
            ram.write(page + 8 * i, if random.one_in(8) { random.next() } else { entry });
        }
    }
    // Often a value for a register first: RAX, RCX, RDX, RSI, RDI.
    let code = bytes::of_known(&mut random, 300, PIECES, |random| {
        if !random.one_in(2) {
            return Vec::new();
        }
        let (value, register) = (random.of(VALUES).to_le_bytes(), 0xb8 + random.of(&[0u8, 1, 2, 6, 7]));
        match mode {
            Mode::Long => [&[0x48, register], &value[..]].concat(),
            Mode::Real => [&[register], &value[..2]].concat(),
            _ => [&[register], &value[..4]].concat(),
        }
    });
    ram.write_bytes(guest.cpu.arch.rip, &code);
    // After an exception it goes on somewhere else in its code.
    let further = if mode == Mode::Long { guest.cpu.arch.rip + random.below(800) } else { 1 + random.below(8) };
    guest.cpu.arch.gpr[usize::from(x86::reg::RBP)] = further;
    for round in 0..60 {
        if round % 7 == 3 {
            guest.bus.borrow_mut().interrupts.push_back((random.next() as u8) | 0x20);
        }
        if round % 11 == 5 {
            guest.cpu.attend(cpu::arch::attention::NMI);
        }
        match guest.run(20_000) {
            Ok(Exit::Shutdown) => return,
            // As if something had woken it.
            Ok(_) | Err(Failure::Limit { .. }) => {}
            Err(failure) => panic!("seed {seed}, {mode:?}: {failure}"),
        }
    }
}

#[test]
fn a_hostile_guest_ends_itself_only() {
    let mut seed = 1;
    for mode in [Mode::Long, Mode::Protected, Mode::Real] {
        for config in configurations() {
            for _ in 0..3 {
                let ends = [(), ()].map(|()| {
                    let mut guest = Guest::new("icx", Some(config.clone()), mode);
                    attack(&mut guest, seed, mode);
                    (guest.cpu.micro.clock, guest.cpu.arch.rip, guest.cpu.arch.gpr)
                });
                assert!(ends[0] == ends[1], "seed {seed} differs from itself under {config:?}");
                seed += 1;
            }
        }
    }
}
