//! Dependence of an access's address on what an earlier instruction has loaded, found by following the value through the code
//! between them.
//!
//! The model of time asks when an access misses while the line of an earlier load is still on its way: only an address that is
//! computed from what was loaded waits for it. The answer is a property of the code: it is followed from the load on, along the way that static
//! prediction takes (backward branches are taken, forward ones are not), and then along the other ways, until the access is
//! reached. Values are followed through registers and flags, and not through memory.

use crate::mode;
use crate::state::Cpu;
use crate::time::memory::Access;
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register, UsedRegister,
};
use x86::page::PAGE;
use x86::seg;

/// The most instructions that are looked at for one question.
const MOST_STEPS: usize = 48;
/// The most ways that are left for later.
const MOST_WAYS: usize = 3;
/// The most calls that are followed into each other.
const MOST_CALLS: usize = 4;

/// Registers that have a value computed from the load: a bit for each general and vector register, and one for the flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Derived(u64);

const FLAGS: u64 = 1 << 63;

/// Returns the bit of a register; none for one that holds no data.
fn bit(register: Register) -> u64 {
    let full = register.full_register();
    if full.is_gpr() {
        1 << (full.number() & 31)
    } else if full.is_vector_register() {
        1 << (16 + (full.number() & 31))
    } else {
        0
    }
}

impl Derived {
    fn has(self, register: Register) -> bool {
        self.0 & bit(register) != 0
    }

    fn any(self, used: &[UsedRegister], counts: impl Fn(&UsedRegister) -> bool) -> bool {
        used.iter().any(|used| counts(used) && self.has(used.register()))
    }

    fn set(&mut self, bits: u64, derived: bool) {
        self.0 = if derived { self.0 | bits } else { self.0 & !bits };
    }

    /// Follows an instruction. `loads` is true for the load in question.
    fn follow(&mut self, i: &Instruction, loads: bool, factory: &mut InstructionInfoFactory) {
        let info = factory.info(i);
        // The stack pointer moves by a constant.
        let counts =
            |used: &UsedRegister| !(i.is_stack_instruction() && used.register().full_register() == Register::RSP);
        let by_flags = i.rflags_read() != 0 && self.0 & FLAGS != 0;
        let derived = loads || by_flags || self.any(info.used_registers(), |used| reads(used.access()) && counts(used));
        for used in info.used_registers().iter().filter(|used| counts(used)) {
            let whole = used.register().size() >= 4;
            match used.access() {
                // A part of a register leaves the rest as it is.
                OpAccess::Write if derived || whole => self.set(bit(used.register()), derived),
                OpAccess::ReadWrite => self.set(bit(used.register()), derived),
                OpAccess::CondWrite | OpAccess::ReadCondWrite if derived => self.set(bit(used.register()), true),
                _ => {}
            }
        }
        if i.rflags_modified() != 0 {
            self.set(FLAGS, derived);
        }
    }

    /// Returns true if the address of a memory operand is among the values.
    fn is_address_of(self, i: &Instruction, factory: &mut InstructionInfoFactory) -> bool {
        let mut operands = factory.info(i).used_memory().iter();
        operands.any(|memory| self.has(memory.base()) || self.has(memory.index()))
    }
}

fn reads(access: OpAccess) -> bool {
    matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

/// A way through the code that is followed later.
struct Way {
    at: u64,
    derived: Derived,
    calls: Vec<u64>,
}

/// Returns true if an access of the instruction at `access` has an address that is computed from what the instruction at `load` loads.
/// `code` reads bytes at an instruction's address, as many as it can of 15.
fn depends(code: &mut dyn FnMut(u64, &mut [u8; 15]) -> usize, bits: u32, load: u64, access: u64) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let mut decode = |at: u64| {
        let mut bytes = [0; 15];
        let len = code(at, &mut bytes);
        let i = Decoder::with_ip(bits, &bytes[..len], at, DecoderOptions::NONE).decode();
        (i.code() != Code::INVALID).then_some(i)
    };
    let Some(first) = decode(load) else { return false };
    let mut derived = Derived::default();
    derived.follow(&first, true, &mut factory);
    let mut ways = vec![Way { at: first.next_ip(), derived, calls: Vec::new() }];
    let mut left = MOST_STEPS;
    while let Some(Way { mut at, mut derived, mut calls }) = ways.pop() {
        loop {
            if left == 0 || derived == Derived::default() {
                break;
            }
            left -= 1;
            let Some(i) = decode(at) else { break };
            if at == access {
                return derived.is_address_of(&i, &mut factory);
            }
            derived.follow(&i, false, &mut factory);
            at = match i.flow_control() {
                FlowControl::Next => i.next_ip(),
                FlowControl::UnconditionalBranch => i.near_branch_target(),
                FlowControl::ConditionalBranch => {
                    let (next, target) = (i.next_ip(), i.near_branch_target());
                    let (likely, other) = if target <= at { (target, next) } else { (next, target) };
                    if ways.len() < MOST_WAYS {
                        ways.push(Way { at: other, derived, calls: calls.clone() });
                    }
                    likely
                }
                FlowControl::Call if calls.len() < MOST_CALLS => {
                    calls.push(i.next_ip());
                    i.near_branch_target()
                }
                FlowControl::Return => match calls.pop() {
                    Some(back) => back,
                    None => break,
                },
                _ => break,
            };
        }
    }
    false
}

impl Cpu {
    /// Finds out, once for each pair of instructions, whether the address of an access depends on the loads whose lines are still on their
    /// way.
    pub(crate) fn learn_chains(&mut self, access: &Access) {
        let (Some(memory), Some(caches)) = (&self.micro.memory, &self.wiring.model.geometry.caches) else { return };
        if access.write && !access.locked {
            return;
        }
        let unknown: Vec<u64> = memory.unknown_chains(caches, access).collect();
        for load in unknown {
            let depends = self.depends_on(load, access.rip);
            if let Some(memory) = &mut self.micro.memory {
                memory.learn_chain(load, access.rip, depends);
            }
        }
    }

    /// Returns true if the code computes the address of an access from what an instruction loads, by the instructions' addresses.
    fn depends_on(&self, load: u64, access: u64) -> bool {
        let bits = match self.engine.mode & (mode::BITS32 | mode::BITS64) {
            mode::BITS64 => 64,
            mode::BITS32 => 32,
            _ => 16,
        };
        let base = if self.engine.long64 { 0 } else { self.arch.seg[usize::from(seg::CS)].base };
        // The page of the last instruction.
        let mut known = None;
        let mut code = |at: u64, bytes: &mut [u8; 15]| {
            let mut done = 0;
            while done < bytes.len() {
                let linear = base.wrapping_add(at).wrapping_add(done as u64);
                let (page, offset) = (linear & !(PAGE - 1), linear & (PAGE - 1));
                let physical = match known {
                    Some((of, physical)) if of == page => Some(physical),
                    _ => self.look_up(page),
                };
                let Some(physical) = physical else { break };
                known = Some((page, physical));
                let more = (bytes.len() - done).min((PAGE - offset) as usize);
                if !self.wiring.ram.read_bytes(physical + offset, &mut bytes[done..done + more]) {
                    break;
                }
                done += more;
            }
            done
        };
        depends(&mut code, bits, load, access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::code_asm::*;

    const AT: u64 = 0x1000;

    /// Returns whether the access of the instruction with one number depends on the load of that with another.
    fn asked(load: usize, access: usize, write: impl FnOnce(&mut CodeAssembler)) -> bool {
        let mut assembler = CodeAssembler::new(64).unwrap();
        write(&mut assembler);
        let bytes = assembler.assemble(AT).unwrap();
        let instructions: Vec<u64> = Decoder::with_ip(64, &bytes, AT, 0).iter().map(|i| i.ip()).collect();
        let mut code = |at: u64, out: &mut [u8; 15]| {
            let from = bytes.get((at - AT) as usize..).unwrap_or_default();
            let len = from.len().min(15);
            out[..len].copy_from_slice(&from[..len]);
            len
        };
        depends(&mut code, 64, instructions[load], instructions[access])
    }

    #[test]
    fn an_index_is_followed_through_arithmetic() {
        let chain = |a: &mut CodeAssembler| {
            a.mov(eax, dword_ptr(rsi + rax * 4)).unwrap();
            a.shl(rax, 3).unwrap();
            a.lea(rcx, qword_ptr(rax + 64)).unwrap();
            a.mov(rdx, qword_ptr(rdi + rcx)).unwrap();
            a.mov(rdx, qword_ptr(rdi)).unwrap();
        };
        assert!(asked(0, 3, chain));
        assert!(!asked(0, 4, chain), "another address");
        assert!(!asked(3, 4, chain));
    }

    #[test]
    fn a_value_that_is_replaced_is_not_followed() {
        assert!(!asked(0, 2, |a| {
            a.mov(eax, dword_ptr(rsi)).unwrap();
            a.xor(eax, eax).unwrap();
            a.mov(edx, dword_ptr(rdi + rax)).unwrap();
        }));
        assert!(!asked(0, 2, |a| {
            a.mov(rax, qword_ptr(rsi)).unwrap();
            a.mov(eax, 5).unwrap();
            a.mov(edx, dword_ptr(rdi + rax)).unwrap();
        }));
        assert!(asked(0, 2, |a| {
            a.mov(rax, qword_ptr(rsi)).unwrap();
            a.mov(al, 5).unwrap();
            a.mov(edx, dword_ptr(rdi + rax)).unwrap();
        }));
    }

    #[test]
    fn loops_calls_flags_and_stacks_are_followed() {
        // The load of the next round.
        assert!(asked(0, 0, |a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(eax, dword_ptr(rsi + rax * 4)).unwrap();
            a.dec(ecx).unwrap();
            a.jnz(again).unwrap();
        }));
        // A conditional move, in a function that is called.
        assert!(asked(0, 8, |a| {
            let (mut function, mut end) = (a.create_label(), a.create_label());
            a.mov(rax, qword_ptr(rsi)).unwrap();
            a.push(rbx).unwrap();
            a.call(function).unwrap();
            a.pop(rbx).unwrap();
            a.jmp(end).unwrap();
            a.set_label(&mut function).unwrap();
            a.cmp(rax, rbx).unwrap();
            a.cmovb(rcx, rdx).unwrap();
            a.ret().unwrap();
            a.set_label(&mut end).unwrap();
            a.mov(rax, qword_ptr(rcx)).unwrap();
        }));
        // The stack pointer has nothing of what is popped.
        assert!(!asked(0, 1, |a| {
            a.pop(rax).unwrap();
            a.pop(rbx).unwrap();
        }));
        // Behind a branch that static prediction does not take.
        assert!(asked(0, 4, |a| {
            let mut other = a.create_label();
            a.mov(rax, qword_ptr(rsi)).unwrap();
            a.test(rcx, rcx).unwrap();
            a.jz(other).unwrap();
            a.ret().unwrap();
            a.set_label(&mut other).unwrap();
            a.mov(rbx, qword_ptr(rax)).unwrap();
        }));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::array::uniform32(0u8..), bits in 0..3usize, access in 0..40u64) {
            let mut code = |at: u64, out: &mut [u8; 15]| {
                out.iter_mut().enumerate().for_each(|(n, byte)| *byte = bytes[(at as usize).wrapping_add(n) % 32]);
                15
            };
            depends(&mut code, [16, 32, 64][bits], AT, AT + access);
        }
    }
}
