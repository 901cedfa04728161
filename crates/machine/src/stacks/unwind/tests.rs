use super::*;
use ledger::stack::DEEPEST;
use ledger::symbols::program::Program;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Words of memory, and ORC entries by address.
#[derive(Default)]
struct Guest {
    bytes: BTreeMap<u64, u8>,
    entries: BTreeMap<u64, Entry>,
    program: Program,
}

impl Guest {
    fn word(mut self, address: u64, value: u64) -> Self {
        self.bytes.extend((address..).zip(value.to_le_bytes()));
        self
    }

    /// Writes a CALL of a relative address in front of a return address.
    fn call(mut self, back: u64) -> Self {
        self.bytes.extend((back - 8..).zip([0x90, 0x90, 0x90, 0xe8, 1, 2, 3, 4]));
        self
    }

    fn entry(mut self, address: u64, sp: (Base, i16), bp: (Base, i16), frame: Frame) -> Self {
        self.entries.insert(address, Entry { sp, bp, frame });
        self
    }
}

impl Unwindable for Guest {
    fn read(&mut self, linear: u64, out: &mut [u8]) -> bool {
        (linear..).zip(out).all(|(at, byte)| self.bytes.get(&at).map(|found| *byte = *found).is_some())
    }

    fn entry(&mut self, address: u64) -> Option<Entry> {
        self.entries.get(&address).copied()
    }

    fn row(&mut self, address: u64) -> Option<Row> {
        self.program.row(address.checked_sub(MAPPED)?)
    }
}

/// The address at which the program's file is mapped.
const MAPPED: u64 = 0x7f00_0000_0000;
const K: u64 = 0xffff_ffff_8100_0000;
const S: u64 = 0xffff_c900_0000_0000;
const NONE: (Base, i16) = (Base::Undefined, 0);

fn kernel(ip: u64, sp: u64, bp: u64) -> Registers {
    Registers { ip, sp, bp, kernel: true, ..Registers::default() }
}

#[test]
fn a_system_call_leads_to_its_program() {
    let regs = S + 0x40;
    let mut guest = Guest::default()
        .entry(K, (Base::Sp, 8), NONE, Frame::Call)
        .word(S, K + 0x100)
        .entry(K + 0xff, (Base::Bp, 16), (Base::CallerSp, -16), Frame::Call)
        .word(S + 0x20, 0x77)
        .word(S + 0x28, K + 0x200)
        .entry(K + 0x1ff, (Base::Sp, 0x10), NONE, Frame::Registers)
        .word(regs + saved::IP, 0x40_1000)
        .word(regs + saved::IP + 8, 0x33)
        .word(regs + saved::IP + 24, 0x7fff_0000)
        .word(regs + saved::BP, 0x7fff_0010)
        .word(regs + saved::R13, 0)
        .word(regs + saved::R10, 0)
        .word(regs + saved::DX, 0)
        .word(regs + saved::DI, 0)
        .word(0x7fff_0010, 0)
        .word(0x7fff_0018, 0x40_2000)
        .call(0x40_2000);
    let stack = unwind(&mut guest, kernel(K, S, S + 0x20));
    let expected = vec![K, K + 0xff, K + 0x1ff, 0x40_1000, 0x40_1fff];
    assert_eq!(stack, Stack { frames: expected, whole: true });
}

#[test]
fn an_interrupt_of_the_kernel_is_crossed_and_the_address_is_exact() {
    let mut guest = Guest::default()
        .entry(K, (Base::AtSp, 8), NONE, Frame::Interrupt)
        .word(S, S + 0x100)
        .word(S + 0x108, K + 0x50)
        .word(S + 0x110, 0x10)
        .word(S + 0x120, S + 0x200)
        .entry(K + 0x50, NONE, NONE, Frame::End);
    let stack = unwind(&mut guest, kernel(K, S, 0));
    assert_eq!(stack, Stack { frames: vec![K, K + 0x50], whole: true });
}

#[test]
fn a_register_that_nobody_knows_any_more_ends_the_stack() {
    let mut guest = Guest::default().entry(K, (Base::R10, 0), NONE, Frame::Call).word(S - 8, K + 0x100).entry(
        K + 0xff,
        (Base::R10, 0),
        NONE,
        Frame::Call,
    );
    let stack = unwind(&mut guest, Registers { r10: S, ..kernel(K, S - 0x100, 0) });
    assert_eq!(stack, Stack { frames: vec![K, K + 0xff], whole: false });
}

#[test]
fn the_way_in_and_out_of_the_kernel_belongs_to_the_program() {
    let way = |guest: Guest| guest.entry(K, NONE, NONE, Frame::End);
    let syscall = Registers { cx: 0x40_1002, r11: 0x246, ..kernel(K, 0x7fff_0000, 0) };
    let stack = unwind(&mut way(Guest::default()), syscall);
    assert_eq!(stack, Stack { frames: vec![K, 0x40_1001], whole: true });
    let guest =
        Guest::default().word(S + 8, 0x40_3000).word(S + 16, 0x33).word(S + 24, 0x202).word(S + 32, 0x7fff_0000);
    let stack = unwind(&mut way(guest.word(S, 5)), kernel(K, S, 0));
    assert_eq!(stack, Stack { frames: vec![K, 0x40_3000], whole: true });
    let stack = unwind(&mut way(Guest::default()), kernel(K, S, 0));
    assert_eq!(stack, Stack { frames: vec![K], whole: true });
}

#[test]
fn at_the_start_of_a_function_its_caller_is_on_top_of_the_stack() {
    let code = |bytes: u64| Guest::default().word(0x40_1000, bytes).call(0x40_2000).call(0x40_3000);
    let frames = |guest: Guest| guest.word(0x7fff_0020, 0).word(0x7fff_0028, 0x40_3000);
    let registers = Registers { ip: 0x40_1000, sp: 0x7fff_0000, bp: 0x7fff_0020, ..Registers::default() };
    let expected = Stack { frames: vec![0x40_1000, 0x40_1fff, 0x40_2fff], whole: true };
    let mut entered = frames(code(0xe589_4855)).word(0x7fff_0000, 0x40_2000);
    assert_eq!(unwind(&mut entered, registers), expected);
    let mut pushed = frames(code(0x90e5_8948)).word(0x7fff_0000, 0x7fff_0020).word(0x7fff_0008, 0x40_2000);
    assert_eq!(unwind(&mut pushed, registers), expected);
}

#[test]
fn the_table_of_a_program_leads_to_the_caller_without_a_frame_pointer() {
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let program = Program::parse(&own);
    let offset = |name: &str| program.functions().iter().find(|f| f.name == name).unwrap().start;
    let (main, start) = (MAPPED + offset("main"), MAPPED + offset("_start"));
    // At its first instruction `main` has only its return address on the stack. `_start` has no caller.
    let back = start + 8;
    let mut guest = Guest::default().word(0x7fff_0000, back).call(back);
    guest.program = program;
    let registers = Registers { ip: main, sp: 0x7fff_0000, bp: 1, ..Registers::default() };
    assert_eq!(unwind(&mut guest, registers), Stack { frames: vec![main, back - 1], whole: true });
}

#[test]
fn what_is_no_frame_pointer_is_not_followed() {
    let mut guest = Guest::default().word(0x40_1000, 0).word(0x7fff_0010, 0).word(0x7fff_0018, 0x40_2000);
    // No call is in front of the return address.
    guest = guest.word(0x40_1ff8, 0);
    for bp in [0x7fff_0010, 0x7fff_0011, 0x7ffe_0000, 0x7fff_ffff_0000, 1] {
        let stack = unwind(&mut guest, Registers { ip: 0x40_1000, sp: 0x7fff_0000, bp, ..Registers::default() });
        assert_eq!(stack, Stack { frames: vec![0x40_1000], whole: false }, "{bp:#x}");
    }
}

#[test]
fn a_stack_without_end_is_cut() {
    // A function that calls itself for ever: its return address and its frame never move.
    let mut guest =
        Guest::default().entry(K, (Base::AtBp, 0), NONE, Frame::Call).entry(K - 1, (Base::AtBp, 0), NONE, Frame::Call);
    guest = guest.word(S, S + 8).word(S, S + 0x10).word(S + 8, K);
    let stack = unwind(&mut guest, kernel(K, S + 0x10, S));
    assert!(!stack.whole && stack.frames.len() <= 3, "{stack:?}");
    let mut guest =
        Guest::default().entry(K, (Base::Sp, 8), NONE, Frame::Call).entry(K - 1, (Base::Sp, 8), NONE, Frame::Call);
    for at in 0..1000 {
        guest = guest.word(S + 8 * at, K);
    }
    assert_eq!(unwind(&mut guest, kernel(K, S, 0)).frames.len(), DEEPEST);
}

proptest! {
    #[test]
    fn no_memory_makes_it_panic(
        words in prop::collection::vec((0u64..64, any::<u64>()), 0..40),
        bases in prop::collection::vec((0usize..8, any::<i16>(), 0u8..5), 1..8),
        is_kernel: bool,
    ) {
        let mut guest = Guest::default();
        for (at, value) in words {
            let value = if value % 3 == 0 { value % 512 } else { value };
            guest = guest.word(8 * at, value);
        }
        let all = [Base::Sp, Base::Bp, Base::AtBp, Base::AtSp, Base::Dx, Base::R10, Base::CallerSp, Base::Undefined];
        let kinds = [Frame::Call, Frame::Registers, Frame::Interrupt, Frame::End, Frame::Undefined];
        for (at, (base, offset, kind)) in bases.into_iter().enumerate() {
            for address in (0..512).filter(|address| address % 8 == at as u64) {
                guest = guest.entry(address, (all[base], offset), (all[base], offset), kinds[usize::from(kind)]);
            }
        }
        let stack = unwind(&mut guest, Registers { ip: 8, sp: 16, bp: 32, kernel: is_kernel, ..Registers::default() });
        prop_assert!(stack.frames.len() <= DEEPEST);
    }
}
