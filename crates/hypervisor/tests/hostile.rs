//! Tests with hostile guests, which can end only themselves: no panic, no failure of the hypervisor except a limit, and
//! repeatable runs.

use crate::common::*;
use crate::nested::{EPT, HANDLER, INNER, OPERANDS, hypervisor, nested_configurations, with_ept};
use cpu::Exit;
use cpu::bus::lock;
use hypervisor::Failure;
use iced_x86::code_asm::*;
use testkit::{Random, assemble, bytes};
use x86::vmx::{pin, vmcs};

/// Instructions that involve the hypervisor, as bytes; operands are random registers.
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

/// Values with a special meaning.
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
    // Tables, data and stack contain entries that are almost valid.
    for page in [TABLES, TABLES + 0x1000, DATA, STACK - 0x1000, LOG] {
        for i in 0..512 {
            let entry = (random.next() & 0xff_f000) | (random.next() & 0xe7) | 1;
            ram.write(page + 8 * i, if random.one_in(8) { random.next() } else { entry });
        }
    }
    // Often preceded by a load of a register: RAX, RCX, RDX, RSI, RDI.
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
    // After an exception it continues elsewhere in its code.
    let further = if mode == Mode::Long { guest.cpu.arch.rip + random.below(800) } else { 1 + random.below(8) };
    guest.cpu.arch.gpr[usize::from(x86::reg::RBP)] = further;
    for round in 0..60 {
        if round % 7 == 3 {
            lock(&guest.bus).interrupts.push_back((random.next() as u8) | 0x20);
        }
        if round % 11 == 5 {
            guest.cpu.attend(cpu::arch::attention::NMI);
        }
        match guest.run(20_000) {
            Ok(Exit::Shutdown) => return,
            // As if an event had woken it.
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

/// Address of the EPT entries that a guest hypervisor will write, their number, and the address of its counter.
const LIES: u64 = 0x54_0000;
const LIES_COUNT: u64 = 256;
const COUNTER: u64 = LIES - 8;

/// Runs a guest hypervisor that changes its EPT at each exit of its nested guest, which executes anything, and executes
/// INVEPT at random.
fn lie(guest: &mut Guest, seed: u64, ept: bool) {
    let mut random = Random::new(seed);
    let mut more = if ept { with_ept(guest).to_vec() } else { Vec::new() };
    // Exceptions exit, and so does code that takes long.
    more.push((vmcs::PIN_BASED_CONTROLS, u64::from(0x16 | pin::PREEMPTION_TIMER)));
    more.push((vmcs::PREEMPTION_TIMER_VALUE, 20));
    more.push((vmcs::EXCEPTION_BITMAP, 0xffff_ffff));
    if ept {
        more.push((vmcs::VPID, 1));
    }
    hypervisor(guest, &more, |a| a.nop());
    let ram = guest.cpu.wiring.ram.clone();
    let code = bytes::of_known(&mut random, 300, PIECES, |random| {
        let (value, register) = (random.of(VALUES).to_le_bytes(), 0xb8 + random.of(&[0u8, 1, 2, 6, 7]));
        if random.one_in(2) { [&[0x48, register], &value[..]].concat() } else { Vec::new() }
    });
    ram.write_bytes(INNER, &code);
    for lie in 0..LIES_COUNT {
        // Usually a change after which the nested guest can continue.
        let any = random.below(512);
        let index = random.of(&[0, 0, 0, 1, 2, 3, any]);
        let table = EPT + random.of(&[0, 0x1000, 0x2000, 0x2000, 0x2000]);
        let same = ram.read::<u64>(table + 8 * index).unwrap_or(0);
        let value = match random.below(8) {
            0 => random.next(),
            1 => 0,
            2 => same & !random.below(8),
            3 => (EPT + (random.below(5) << 12)) | 7,
            4 => random.below(8) << 21 | 0xb0 | random.below(8),
            _ => same | 7,
        };
        ram.write(LIES + 16 * lie, table + 8 * index);
        ram.write(LIES + 16 * lie + 8, value);
    }
    let [own_cr0, own_cr3, own_cr4] =
        [guest.cpu.arch.cr0, guest.cpu.arch.cr3, guest.cpu.arch.cr4 | x86::control::CR4_VMXE];
    let handler = assemble(64, HANDLER, |a| {
        let mut kept = a.create_label();
        a.mov(rbx, COUNTER)?;
        a.mov(r14, qword_ptr(rbx))?;
        a.inc(qword_ptr(rbx))?;
        a.and(r14, LIES_COUNT as i32 - 1)?;
        a.shl(r14, 4)?;
        a.mov(rbx, LIES)?;
        a.add(rbx, r14)?;
        a.mov(rax, qword_ptr(rbx))?;
        a.mov(rdx, qword_ptr(rbx + 8))?;
        a.mov(qword_ptr(rax), rdx)?;
        a.test(r14d, 0x30)?;
        a.jnz(kept)?;
        if ept {
            a.mov(rbx, OPERANDS + 0x100)?;
            a.mov(r8d, 2)?;
            a.invept(r8, xmmword_ptr(rbx))?;
        }
        a.set_label(&mut kept)?;
        for (field, value) in [
            (vmcs::GUEST_INTERRUPTIBILITY_STATE, 0),
            (vmcs::GUEST_ACTIVITY_STATE, 0),
            (vmcs::ENTRY_INTERRUPTION_INFORMATION, 0),
            (vmcs::GUEST_CR3, own_cr3),
            (vmcs::GUEST_CR0, own_cr0),
            (vmcs::GUEST_CR4, own_cr4),
        ] {
            a.mov(r8d, field)?;
            a.mov(r9, value)?;
            a.vmwrite(r8, r9)?;
        }
        a.and(r14d, 0x3f0)?;
        a.add(r14, INNER as i32)?;
        a.mov(r8d, vmcs::GUEST_RIP)?;
        a.vmwrite(r8, r14)?;
        a.vmresume()?;
        a.cli()?;
        a.hlt()
    });
    assert!(ram.write_bytes(HANDLER, &handler));
    for round in 0..8 {
        if round % 7 == 3 {
            lock(&guest.bus).interrupts.push_back((random.next() as u8) | 0x20);
        }
        match guest.run(200_000_000) {
            Ok(Exit::Shutdown) => return,
            Ok(_) | Err(Failure::Limit { .. }) => {}
            Err(failure) => panic!("seed {seed}: {failure}"),
        }
        if let Some(Err(wrong)) = guest.hypervisor.as_ref().map(|vm| vm.check([&guest.vcpu].into_iter())) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

#[test]
fn a_guest_that_lies_about_its_own_guest_s_memory_ends_itself_only() {
    let mut seed = 1;
    let mut lies = 0;
    for config in nested_configurations() {
        for _ in 0..2 {
            let ends = [(), ()].map(|()| {
                let mut guest = Guest::new("icx", Some(config.clone()), Mode::Long);
                lie(&mut guest, seed, config.nested_ept);
                lies += guest.word(COUNTER);
                (guest.cpu.micro.clock, guest.cpu.arch.rip, guest.cpu.arch.gpr)
            });
            assert!(ends[0] == ends[1], "seed {seed} differs from itself under {config:?}");
            seed += 1;
        }
    }
    assert!(lies > 500, "{lies} exits");
}
