//! Tests of x87 exceptions, availability, and the formats of the environment in each mode.

use cpu::arch::F80;
use iced_x86::code_asm::*;
use testkit::{DATA, Machine, Raised};
use x86::control::*;
use x86::vector;

const MF: Raised = Raised { vector: vector::MF, code: None };
const NM: Raised = Raised { vector: vector::NM, code: None };
/// ZE, with ES, B and TOP = 7.
const DIVIDED: u16 = 0xb884;

/// Computes 1 / 0 with division by zero unmasked.
fn divide_by_zero(machine: &mut Machine) {
    machine.poke(DATA, &0x037bu16.to_le_bytes());
    machine
        .execute(|a| {
            a.fninit()?;
            a.fldcw(word_ptr(DATA))?;
            a.fld1()?;
            a.fldz()?;
            a.fdivp(st1, st0)
        })
        .unwrap();
}

#[test]
fn an_unmasked_exception_waits_for_the_next_waiting_instruction() {
    let mut machine = Machine::long64(3);
    divide_by_zero(&mut machine);
    // Neither written nor popped.
    assert_eq!(machine.cpu.arch.x87.status, 0xb084);
    assert_eq!((machine.cpu.arch.x87.st(0), machine.cpu.arch.x87.st(1)), (F80::ZERO, F80::ONE));
    for waiting in [
        (|a| a.wait()) as fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>,
        |a| a.fld1(),
        |a| a.fnop(),
        |a| a.fldcw(word_ptr(DATA)),
        |a| a.fstp(st0),
    ] {
        let start = machine.cpu.arch.rip;
        assert_eq!(machine.execute(waiting), Err(MF));
        assert_eq!(machine.cpu.arch.rip, start);
    }
    machine
        .execute(|a| {
            a.fnstsw(ax)?;
            a.fnstcw(word_ptr(DATA + 8))?;
            a.fnclex()?;
            a.wait()
        })
        .unwrap();
    assert_eq!(machine.cpu.arch.gpr[0], 0xb084);
    assert_eq!(machine.cpu.arch.x87.status, 0x3000);
}

#[test]
fn without_ne_nothing_is_raised() {
    let mut machine = Machine::long64(0);
    divide_by_zero(&mut machine);
    machine.cpu.arch.cr0 &= !CR0_NE;
    machine.execute(|a| a.fld1()).unwrap();
    assert_eq!(machine.cpu.arch.x87.status & 0x8080, 0x8080);
}

#[test]
fn masking_and_unmasking_follow_the_flags() {
    let mut machine = Machine::long64(3);
    divide_by_zero(&mut machine);
    // FNSTENV masks all exceptions, so that the exception is no longer pending; unmasking it makes it pending again.
    machine.poke(DATA + 64, &0x037bu16.to_le_bytes());
    machine.execute(|a| a.fnstenv(dword_ptr(DATA + 128))).unwrap();
    assert_eq!((machine.cpu.arch.x87.control, machine.cpu.arch.x87.status), (0x37f, 0x3004));
    machine.execute(|a| a.fldcw(word_ptr(DATA + 64))).unwrap();
    assert_eq!(machine.cpu.arch.x87.status, DIVIDED & !0x3800 | 0x3000);
    assert_eq!(machine.execute(|a| a.wait()), Err(MF));
}

#[test]
fn unavailable_units_raise_nm() {
    let mut machine = Machine::long64(0);
    for bit in [CR0_EM, CR0_TS] {
        machine.cpu.arch.cr0 = machine.cpu.arch.cr0 & !(CR0_EM | CR0_TS) | bit;
        assert_eq!(machine.execute(|a| a.fninit()), Err(NM));
        assert_eq!(machine.execute(|a| a.fld1()), Err(NM));
        assert_eq!(machine.execute(|a| a.fnstsw(ax)), Err(NM));
    }
    // WAIT requires MP and TS.
    machine.cpu.arch.cr0 = machine.cpu.arch.cr0 & !(CR0_EM | CR0_TS) | CR0_TS | CR0_MP;
    assert_eq!(machine.execute(|a| a.wait()), Err(NM));
    machine.cpu.arch.cr0 &= !CR0_MP;
    machine.execute(|a| a.wait()).unwrap();
}

#[test]
fn a_faulting_operand_changes_nothing() {
    let mut machine = Machine::long64(3);
    machine
        .execute(|a| {
            a.fninit()?;
            a.fldpi()
        })
        .unwrap();
    let before = format!("{:?}", machine.cpu.arch.x87);
    let nowhere = testkit::RAM;
    for faulting in [
        (|a| a.fstp(dword_ptr(testkit::RAM))) as fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>,
        |a| a.fistp(qword_ptr(testkit::RAM)),
        |a| a.fbstp(tbyte_ptr(testkit::RAM)),
        |a| a.fadd(qword_ptr(testkit::RAM)),
        |a| a.fld(tbyte_ptr(testkit::RAM - 4)),
        |a| a.fnsave(dword_ptr(testkit::RAM - 4)),
        |a| a.frstor(dword_ptr(testkit::RAM - 4)),
    ] {
        assert_eq!(machine.execute(faulting).unwrap_err().vector, vector::PF);
        assert_eq!(machine.cpu.engine.fault_address, nowhere);
        assert_eq!(format!("{:?}", machine.cpu.arch.x87), before);
    }
}

/// Initializes a unit with known pointers.
fn pointers(machine: &mut Machine) {
    let x = &mut machine.cpu.arch.x87;
    (x.ip, x.cs, x.dp, x.ds, x.opcode) = (0x1_2345, 0x28, 0x6_789a, 0x30, 0x5d7);
}

#[test]
fn environments_have_the_format_of_the_mode() {
    let field = |bytes: &[u8], i: usize, width: usize| {
        bytes[i * width..(i + 1) * width].iter().rev().fold(0u32, |v, b| v << 8 | u32::from(*b))
    };
    for mut machine in [Machine::protected32(3), Machine::compatibility32(3)] {
        pointers(&mut machine);
        machine.execute(|a| a.fnstenv(dword_ptr(DATA as u32))).unwrap();
        let bytes = machine.peek::<28>(DATA);
        let fields: [u32; 7] = std::array::from_fn(|i| field(&bytes, i, 4));
        assert_eq!(fields, [0xffff_037f, 0xffff_0000, 0xffff_ffff, 0x1_2345, 0x5d7_0028, 0x6_789a, 0xffff_0030]);
        pointers(&mut machine);
        let before = format!("{:?}", machine.cpu.arch.x87);
        machine.execute(|a| a.fninit()).unwrap();
        machine.execute(|a| a.fldenv(dword_ptr(DATA as u32))).unwrap();
        assert_eq!(format!("{:?}", machine.cpu.arch.x87), before);
    }
    let mut machine = Machine::real16();
    pointers(&mut machine);
    // The segments are part of the linear addresses: 28h * 16 and 30h * 16 are added.
    machine.poke(machine.cpu.arch.rip, &[0xd9, 0x36, 0x00, 0x40, 0x66, 0xd9, 0x36, 0x00, 0x50]);
    machine.step().unwrap();
    let bytes = machine.peek::<14>(0x4000);
    let fields: [u32; 7] = std::array::from_fn(|i| field(&bytes, i, 2));
    assert_eq!(fields, [0x037f, 0, 0xffff, 0x25c5, 0x15d7, 0x7b9a, 0x6000]);
    machine.step().unwrap();
    let bytes = machine.peek::<28>(0x5000);
    let fields: [u32; 7] = std::array::from_fn(|i| field(&bytes, i, 4));
    assert_eq!(fields, [0xffff_037f, 0xffff_0000, 0xffff_ffff, 0xffff_25c5, 0x15d7, 0xffff_7b9a, 0x6000]);
}

#[test]
fn the_environment_instruction_without_wait_prefix_is_two_instructions() {
    // 9B D9 /7 is WAIT and FNSTCW.
    let mut machine = Machine::long64(3);
    machine.cpu.arch.gpr[6] = DATA;
    machine.poke(machine.cpu.arch.rip, &[0x9b, 0xd9, 0x3e]);
    machine.step().unwrap();
    machine.step().unwrap();
    assert_eq!(machine.peek::<2>(DATA), 0x37fu16.to_le_bytes());
}

#[test]
fn alignment_is_checked_where_it_is_enabled() {
    const AC: Raised = Raised { vector: vector::AC, code: Some(0) };
    let mut machine = Machine::long64(3);
    machine.cpu.arch.cr0 |= CR0_AM;
    machine.cpu.set_rflags(1 << 18 | 2);
    machine.cpu.access_changed();
    assert_eq!(machine.execute(|a| a.fld(tbyte_ptr(DATA + 4))), Err(AC));
    assert_eq!(machine.execute(|a| a.fld(qword_ptr(DATA + 4))), Err(AC));
    assert_eq!(machine.execute(|a| a.fbstp(tbyte_ptr(DATA + 2))), Err(AC));
    assert_eq!(machine.execute(|a| a.fnsave(dword_ptr(DATA + 2))), Err(AC));
    machine
        .execute(|a| {
            a.fld(tbyte_ptr(DATA + 8))?;
            a.fnsave(dword_ptr(DATA + 4))
        })
        .unwrap();
}

#[test]
fn older_processors_keep_all_pointers() {
    let mut machine = Machine::compatibility32(3);
    let start = machine.cpu.arch.rip;
    machine.execute(|a| a.fld(dword_ptr(DATA as u32))).unwrap();
    let x = &machine.cpu.arch.x87;
    assert_eq!((x.ip, x.cs, x.dp, x.ds, x.opcode), (start, 0x0b, DATA, 0x13, 0));

    let mut machine = Machine::compatibility32(3);
    machine.cpu.wiring.fdp_on_exception = true;
    machine.cpu.wiring.fcs_deprecated = true;
    machine.execute(|a| a.fld(dword_ptr(DATA as u32))).unwrap();
    let x = &machine.cpu.arch.x87;
    assert_eq!((x.ip, x.cs, x.dp, x.ds), (start, 0, 0, 0));
}
