//! Tests that time always advances: otherwise nothing could stop a guest.

use cpu::Exit;
use cpu::arch::TableRegister;
use testkit::{DATA, Machine, RAM};

/// Far more than the number of cycles until the stack is used up without charges.
const CYCLES: u64 = 1000;

#[test]
fn exceptions_take_time_even_where_nothing_is_charged() {
    let mut machine = Machine::long64(0);
    // The handler of page faults is not mapped, so each delivery causes the next page fault.
    let (selector, handler) = (0x08u64, 2 * RAM);
    let gate = handler & 0xffff | selector << 16 | 0x8e << 40 | (handler >> 16 & 0xffff) << 48;
    machine.poke(DATA + 14 * 16, &gate.to_le_bytes());
    machine.poke(DATA + 0x1000 + 8, &0x00af_9b00_0000_ffffu64.to_le_bytes());
    machine.cpu.arch.idtr = TableRegister { base: DATA, limit: 0xfff };
    machine.cpu.arch.gdtr = TableRegister { base: DATA + 0x1000, limit: 0xfff };
    machine.cpu.arch.rip = handler;
    assert_eq!(machine.run(CYCLES * ledger::TICKS_PER_CYCLE), Exit::Deadline);
    assert_eq!(machine.cpu.micro.clock, CYCLES * ledger::TICKS_PER_CYCLE);
}
