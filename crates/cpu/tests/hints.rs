//! Tests of opcodes that processors without a feature execute as older ones: NOPs, or the instruction without the
//! prefix.

use cpu::{Exit, Model, Tier};
use ledger::profile::Profile;
use std::sync::Arc;
use testkit::tiers::{ABSENT, LIVES, LOW, STACK, Start, Tiers, Width};
use testkit::{CODE, Machine, Raised};
use x86::vector;

/// Prefixes of an opcode, some of which select another instruction.
const PREFIXES: [&[u8]; 9] =
    [&[], &[0x66], &[0xf2], &[0xf3], &[0x66, 0xf3], &[0x66, 0xf2], &[0x48], &[0x66, 0x48], &[0xf3, 0x48]];

/// NOPs by the opcode map (SDM vol. 2, table A-3; APM vol. 3, table A-3): all but the first with any operand.
const OPCODES: [u8; 9] = [0x0d, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f];

/// Generates every form of these opcodes that is a NOP or a hint, in code of this width.
fn forms(bits: u32, mut each: impl FnMut(&[u8])) {
    for opcode in OPCODES {
        for prefixes in PREFIXES {
            if bits != 64 && prefixes.contains(&0x48) {
                continue;
            }
            for modrm in 0..=u8::MAX {
                each(&[prefixes, &[0x0f, opcode, modrm]].concat());
            }
        }
    }
}

/// Loads addresses that are not mapped into the registers, so that an access would fault.
fn nowhere(machine: &mut Machine) {
    machine.cpu.arch.gpr[..8].fill(0x5555_5000);
}

#[test]
fn the_nop_space_does_nothing_whatever_prefixes_it_has() {
    for mut machine in [Machine::long64(3), Machine::compatibility32(3), Machine::protected32(0), Machine::real16()] {
        nowhere(&mut machine);
        let before = machine.cpu.arch.gpr;
        let (start, bits) = (machine.cpu.arch.rip, machine.bits());
        let mut tried = 0;
        forms(bits, |bytes| {
            machine.cpu.arch.rip = start;
            machine.poke(start, &[bytes, &[0; 8]].concat());
            let result = machine.step();
            assert!(result.is_ok(), "{bytes:02x?} in {bits}-bit code: {result:?}");
            assert_eq!(machine.cpu.arch.gpr, before, "{bytes:02x?}");
            tried += 1;
        });
        assert_eq!(tried, OPCODES.len() * 256 * if bits == 64 { 9 } else { 6 });
    }
}

#[test]
fn the_nop_space_does_not_take_lock() {
    let mut machine = Machine::long64(3);
    for opcode in OPCODES {
        for modrm in [0x00, 0x38, 0xc8] {
            let start = machine.cpu.arch.rip;
            machine.poke(start, &[0xf0, 0x0f, opcode, modrm, 0, 0, 0, 0]);
            assert_eq!(machine.step(), Err(Raised { vector: vector::UD, code: None }), "{opcode:02x} {modrm:02x}");
        }
    }
}

/// Without shadow stacks their instructions raise #UD, except RDSSP (SDM vol. 2): INCSSP, SAVEPREVSSP, RSTORSSP, WRSS,
/// WRUSS, SETSSBSY, CLRSSBSY.
#[test]
fn what_changes_a_shadow_stack_does_not_exist_without_one() {
    let mut machine = Machine::long64(0);
    for bytes in [
        &[0xf3, 0x0f, 0xae, 0xe8][..],
        &[0xf3, 0x48, 0x0f, 0xae, 0xe8],
        &[0xf3, 0x0f, 0x01, 0xea],
        &[0xf3, 0x0f, 0x01, 0x28],
        &[0x0f, 0x38, 0xf6, 0x00],
        &[0x48, 0x0f, 0x38, 0xf6, 0x00],
        &[0x66, 0x0f, 0x38, 0xf5, 0x00],
        &[0xf3, 0x0f, 0x01, 0xe8],
        &[0xf3, 0x0f, 0xae, 0x30],
    ] {
        let start = machine.cpu.arch.rip;
        machine.poke(start, &[bytes, &[0; 8]].concat());
        assert_eq!(machine.step(), Err(Raised { vector: vector::UD, code: None }), "{bytes:02x?}");
    }
}

/// A processor without the feature ignores the prefix: WBNOINVD is WBINVD, TZCNT is BSF, LZCNT is BSR.
#[test]
fn prefixes_of_what_a_processor_lacks_are_ignored() {
    let profile = Profile::named("core2").expect("a built-in profile");
    let mut machine = Machine::long64(0);
    let model = Model::of(&profile, profile.costs(), profile.geometry(), &profile.cpuid());
    machine.cpu.wiring.features = cpu::Features::of(&model.cpuid);
    machine.cpu.wiring.model = Arc::new(model);
    let start = machine.cpu.arch.rip;
    // tzcnt eax, ecx; lzcnt edx, ecx; wbnoinvd; hlt
    machine.poke(start, &[0xf3, 0x0f, 0xbc, 0xc1, 0xf3, 0x0f, 0xbd, 0xd1, 0xf3, 0x0f, 0x09, 0xf4]);
    machine.cpu.arch.gpr[1] = 0x10;
    assert_eq!(machine.run(1 << 40), Exit::Halt);
    assert_eq!((machine.cpu.arch.rip, machine.cpu.arch.gpr[0], machine.cpu.arch.gpr[2]), (start + 12, 4, 4));
}

/// The test runs on both tiers, which must give equal charges, and the translator must not call a handler.
#[test]
fn the_nop_space_is_nothing_to_the_translator_too() {
    for (width, bits) in [(Width::Long, 64), (Width::Compatibility, 32), (Width::Protected, 32)] {
        let mut code = Vec::new();
        forms(bits, |bytes| {
            // Operands in registers, and at [RAX], [RCX], [RDX], [RBX], [RSI], [RDI].
            let modrm = bytes[bytes.len() - 1];
            if modrm >> 6 == 3 || modrm >> 6 == 0 && !matches!(modrm & 7, 4 | 5) {
                code.extend_from_slice(bytes);
            }
        });
        // One part at a time, as large as the code area.
        for part in code_parts(&code, bits) {
            let mut program = part;
            let len = program.len() as i32;
            // sub ebp, 1; jnz to the start; hlt
            program.extend([0x83, 0xed, 0x01, 0x0f, 0x85]);
            program.extend((-(len + 9)).to_le_bytes());
            program.push(0xf4);
            let mut gpr = [ABSENT; 16];
            gpr[4] = STACK;
            gpr[5] = 20;
            let mut tiers = Tiers::new();
            tiers.start(&Start {
                probes: Vec::new(),
                width,
                cpl: 0,
                smap: false,
                rip: CODE,
                code: program,
                gpr,
                flags: 2,
                bases: [LOW, LOW],
                pointers: false,
                recorded: true,
                seed: 1,
                tier: Tier::Translator,
                threshold: 1,
            });
            let exit = tiers.run(40_000_000).unwrap();
            assert_eq!(exit, Exit::Halt);
            tiers.charges().unwrap();
            // No instruction faulted.
            assert_eq!(tiers.reference().peek::<4>(LIVES), 40u32.to_le_bytes());
        }
    }
}

/// Splits the forms into pieces that fit into the pages of code.
fn code_parts(code: &[u8], bits: u32) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    let mut decoder = iced_x86::Decoder::new(bits, code, iced_x86::DecoderOptions::NONE);
    while decoder.can_decode() {
        let at = decoder.position();
        let _ = decoder.decode();
        let part = parts.last_mut().expect("there is one");
        part.extend_from_slice(&code[at..decoder.position()]);
        if part.len() > 12_000 {
            parts.push(Vec::new());
        }
    }
    parts
}
