//! Recording of indirect branches by address and target, if the run requests it (`Model::branches`).
//!
//! A retpoline (D. Woodhouse, P. Turner, "Retpoline: a software construct for preventing branch-target-injection") is a
//! RET whose return address was replaced. The program's branch is the CALL of the thunk that contains the RET. It is
//! found by its return address, which the RET has left at the top of the stack.

use crate::state::Cpu;
use ledger::{Branch, Way};
use x86::reg;

/// A CALL with a relative target: opcode and 32 bits.
const CALL: u8 = 0xe8;
const CALL_LENGTH: u64 = 5;
/// Maximum distance of a thunk's RET from the thunk's first instruction.
const LONGEST_THUNK: u64 = 64;

impl Cpu {
    /// Records an indirect branch.
    #[cold]
    pub(crate) fn record_branch(&mut self, branch: Branch, missed: bool) {
        // Instructions that the board's hypervisor emulates are executed by its software.
        if self.wiring.model.recorded && self.engine.emulation.is_none() {
            self.wiring.recorder.add_branch(self.engine.origin, branch, missed);
        }
    }

    /// Records a near return from `site`, after its target was taken from the stack.
    #[cold]
    pub(crate) fn record_return(&mut self, site: u64, target: u64, missed: bool) {
        let thunk = if missed && self.engine.long64 { self.calls_thunk(site) } else { None };
        let branch = match thunk {
            Some(site) => Branch { site, way: Way::Retpoline, target },
            None => Branch { site, way: Way::Return, target },
        };
        self.record_branch(branch, missed);
    }

    /// Returns the address of the CALL of the thunk whose RET is at `site`, if the top of the stack shows that there is
    /// one.
    fn calls_thunk(&self, site: u64) -> Option<u64> {
        let caller = u64::from_le_bytes(self.glance(self.arch.gpr[usize::from(reg::RSP)])?);
        let call = caller.wrapping_sub(CALL_LENGTH);
        let [opcode, distance @ ..]: [u8; CALL_LENGTH as usize] = self.glance(call)?;
        let thunk = caller.wrapping_add(i64::from(i32::from_le_bytes(distance)) as u64);
        (opcode == CALL && site.wrapping_sub(thunk) < LONGEST_THUNK).then_some(call)
    }

    /// Reads bytes at a linear address without side effects.
    fn glance<const N: usize>(&self, linear: u64) -> Option<[u8; N]> {
        let cr3 = self.visible().cr3;
        let mut bytes = [0; N];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = self.wiring.ram.read(self.look_up_on_board(cr3, linear.wrapping_add(i as u64))?)?;
        }
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use crate::Exit;
    use crate::testing::Machine;
    use iced_x86::code_asm::*;
    use ledger::{Taken, Way};
    use std::sync::Arc;
    use x86::reg;

    /// Returns the branches of a program that ends with HLT, by kind: site and target relative to the program's first
    /// byte, and the number of executions.
    fn branches(
        write: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>,
    ) -> Vec<(Way, u64, u64, Taken)> {
        let mut m = Machine::long64(0);
        Arc::make_mut(&mut m.cpu.wiring.model).branches = true;
        let length = m.code(write);
        let start = m.cpu.arch.rip;
        assert!(length != 0 && m.cpu.reg(reg::RSP) != 0);
        assert_eq!(m.run(1 << 30), Exit::Halt);
        let recorder = &m.cpu.wiring.recorder;
        let place = |address: u64| address.wrapping_sub(start);
        let mut all: Vec<_> = recorder
            .branches()
            .map(|(_, branch, taken)| (branch.way, place(branch.site), place(branch.target), taken))
            .collect();
        all.sort_unstable();
        all
    }

    fn taken(count: u64, missed: u64) -> Taken {
        Taken { count, missed }
    }

    #[test]
    fn calls_and_returns_have_their_targets() {
        // 0: lea (7), 7: mov (5), 12: call (2), 14: dec (2), 16: jnz (2), 18: hlt, 19: ret.
        let all = branches(|a| {
            let (mut function, mut again) = (a.create_label(), a.create_label());
            a.lea(rax, ptr(function))?;
            a.mov(ecx, 3)?;
            a.set_label(&mut again)?;
            a.call(rax)?;
            a.dec(ecx)?;
            a.jnz(again)?;
            a.hlt()?;
            a.set_label(&mut function)?;
            a.ret()
        });
        assert_eq!(all, [(Way::Call, 12, 19, taken(3, 1)), (Way::Return, 19, 14, taken(3, 0))]);
    }

    #[test]
    fn a_retpoline_is_the_call_of_its_thunk() {
        // 0: lea (7), 7: call thunk (5), 12: hlt, 13: function: ret, 14: thunk.
        let all = branches(|a| {
            let (mut function, mut thunk, mut turn, mut capture) =
                (a.create_label(), a.create_label(), a.create_label(), a.create_label());
            a.lea(rax, ptr(function))?;
            a.call(thunk)?;
            a.hlt()?;
            a.set_label(&mut function)?;
            a.ret()?;
            a.set_label(&mut thunk)?;
            a.call(turn)?;
            a.set_label(&mut capture)?;
            a.pause()?;
            a.jmp(capture)?;
            a.set_label(&mut turn)?;
            a.mov(qword_ptr(rsp), rax)?;
            a.ret()
        });
        assert_eq!(all, [(Way::Return, 13, 12, taken(1, 0)), (Way::Retpoline, 7, 13, taken(1, 1))]);
    }
}
