//! Random tests: emulation of instructions against their ordinary execution.

use super::{GuestView, Outcome};
use crate::arch::{Segment, TableRegister, attention};
use crate::testing::{DATA, Machine, RAM, Raised, Random, STACK};
use testkit::bytes;
use x86::{reg, vector};

/// State of both processors before and after a test case.
#[derive(Clone, Debug, PartialEq)]
struct State {
    gpr: [u64; 32],
    rip: u64,
    flags: u64,
    seg: [Segment; 8],
    cpl: u8,
    view: GuestView,
    tables: [TableRegister; 2],
    system: [Segment; 2],
    dr: [u64; 8],
    cr2: u64,
    blocked: u32,
}

const BLOCKED: u32 = attention::STI_SHADOW | attention::SS_SHADOW;

fn state(m: &Machine) -> State {
    let cpu = &m.cpu;
    State {
        gpr: cpu.arch.gpr,
        rip: cpu.arch.rip,
        flags: cpu.rflags(),
        seg: cpu.arch.seg,
        cpl: cpu.arch.cpl,
        view: GuestView::of(cpu),
        tables: [cpu.arch.gdtr, cpu.arch.idtr],
        system: [cpu.arch.ldtr, cpu.arch.tr],
        dr: cpu.arch.dr,
        cr2: cpu.arch.cr2,
        blocked: cpu.arch.attention & BLOCKED,
    }
}

fn load(m: &mut Machine, s: &State) {
    let cpu = &mut m.cpu;
    (cpu.arch.gpr, cpu.arch.rip, cpu.arch.seg, cpu.arch.cpl) = (s.gpr, s.rip, s.seg, s.cpl);
    (cpu.arch.cr0, cpu.arch.cr3, cpu.arch.cr4, cpu.arch.msr.efer) = (s.view.cr0, s.view.cr3, s.view.cr4, s.view.efer);
    (cpu.arch.pdpte, cpu.arch.xcr0, cpu.arch.dr, cpu.arch.cr2) = (s.view.pdpte, s.view.xcr0, s.dr, s.cr2);
    [cpu.arch.gdtr, cpu.arch.idtr] = s.tables;
    [cpu.arch.ldtr, cpu.arch.tr] = s.system;
    cpu.set_rflags(s.flags);
    cpu.arch.attention = 0;
    cpu.arch.pending_dr6 = 0;
    cpu.arch.nmi_blocked = false;
    cpu.micro.clock = 0;
    cpu.micro.tlb.flush_all();
    cpu.mapping_changed();
    cpu.mode_changed();
}

#[test]
fn random_instructions_do_the_same_in_emulation() {
    let mut random = Random::new(1);
    let mut kinds = [0u32; 2];
    for make in [|| Machine::long64(0), || Machine::long64(3), || Machine::protected32(0), || Machine::real16()] {
        let (mut plain, mut emulated) = (make(), make());
        let start = state(&plain);
        for _ in 0..8000 {
            let mut from = start.clone();
            for gpr in &mut from.gpr[..16] {
                *gpr = match random.below(4) {
                    0 => random.next(),
                    1 => random.below(64),
                    _ => DATA + random.below(0x4000),
                };
            }
            from.gpr[usize::from(reg::RSP)] =
                if start.rip != 0x8000 { STACK - 0x1000 + random.below(64) } else { 0x7000 };
            from.flags = start.flags ^ random.next() & 0xcd5;
            let instruction = bytes::instruction(&mut random);
            for m in [&mut plain, &mut emulated] {
                load(m, &from);
                m.poke(start.rip, &instruction);
            }
            // A repeated instruction would take long.
            plain.cpu.engine.stop_at = 0;
            let before = plain.cpu.wiring.ram.clone();
            let result = plain.step();
            let view = GuestView::of(&emulated.cpu);
            let done = emulated.cpu.emulate(&view, None, &mut emulated.cache);
            assert_eq!(GuestView::of(&emulated.cpu), view);
            match (result, done.outcome) {
                (Err(Raised { vector, code }), Outcome::Exception { vector: v, code: c, address, .. }) => {
                    kinds[1] += 1;
                    assert_eq!((vector, code), (v, c), "{instruction:x?}");
                    if vector == vector::PF {
                        assert_eq!(address, plain.cpu.engine.fault_address, "{instruction:x?}");
                    }
                }
                (Ok(_), Outcome::Completed | Outcome::Halt | Outcome::Mwait { .. }) => kinds[0] += 1,
                (result, outcome) => panic!("{instruction:x?}: {result:?} but {outcome:?}"),
            }
            let expected = state(&plain);
            let mut got = state(&emulated);
            got.view = done.view;
            assert_eq!(got, expected, "{instruction:x?}");
            for write in &done.accesses.writes {
                let mut both = [vec![0; write.len as usize], vec![0; write.len as usize]];
                before.read_bytes(write.address, &mut both[0]);
                emulated.cpu.wiring.ram.read_bytes(write.address, &mut both[1]);
                assert_eq!(both[0], both[1], "{instruction:x?}");
            }
        }
        let mut all = [vec![0; RAM as usize], vec![0; RAM as usize]];
        plain.cpu.wiring.ram.read_bytes(0, &mut all[0]);
        emulated.cpu.wiring.ram.read_bytes(0, &mut all[1]);
        let different = all[0].iter().zip(&all[1]).position(|(a, b)| a != b);
        assert_eq!(different, None);
    }
    assert!(kinds.iter().all(|n| *n > 5000), "too few of a kind: {kinds:?}");
}
