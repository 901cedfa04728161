//! Blocks: straight-line code that can be repeated.

use crate::failure::Failure;
use crate::layout::{MOST_BYTES, PAGE, STATICS};
use iced_x86::{
    CpuidFeature, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    Register,
};

/// Straight-line 64-bit code without branches, whose RIP-relative operands point to the pages of a measurement.
#[derive(Clone, Debug)]
pub struct Block {
    instructions: Vec<Instruction>,
}

impl Block {
    /// Checks that these instructions can be repeated, and moves their RIP-relative operands.
    pub fn new(instructions: &[Instruction]) -> Result<Self, Failure> {
        if instructions.is_empty() {
            return Err(Failure::Empty);
        }
        if let Some(unfit) = instructions.iter().find(|i| !is_repeatable(i)) {
            return Err(Failure::Unfit(unfit.to_string()));
        }
        if instructions.iter().map(Instruction::len).sum::<usize>() > MOST_BYTES {
            return Err(Failure::TooLong);
        }
        Ok(Self { instructions: instructions.iter().map(|i| moved(*i)).collect() })
    }

    /// Decodes 64-bit code and does as [`Block::new`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        Self::new(&Decoder::new(64, bytes, DecoderOptions::NONE).into_iter().collect::<Vec<_>>())
    }

    /// Returns the instructions.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Returns a general register that the block neither reads nor writes.
    pub fn free_register(&self) -> Option<Register> {
        let mut factory = InstructionInfoFactory::new();
        let mut used = 0u32;
        for instruction in &self.instructions {
            let info = factory.info(instruction);
            let registers = info.used_registers().iter().filter(|used| used.access() != OpAccess::None);
            for register in registers.map(|used| used.register().full_register()).filter(|r| r.is_gpr64()) {
                used |= 1 << (register as u32 - Register::RAX as u32);
            }
        }
        // RSP is never free: signals and calls need it.
        let free = |n: &u32| *n != 4 && used >> n & 1 == 0;
        (0..16).rev().find(free).map(|n| Register::RAX + n)
    }
}

/// Returns true if the instruction goes on to the next one, may be executed by programs, and leaves the processor's
/// mode and the caller's segments as they are.
fn is_repeatable(i: &Instruction) -> bool {
    use Mnemonic::*;
    let to_next = i.flow_control() == FlowControl::Next && !i.is_invalid() && !i.is_privileged();
    let state = matches!(
        i.mnemonic(),
        Syscall
            | Sysenter
            | In
            | Out
            | Insb
            | Insw
            | Insd
            | Outsb
            | Outsw
            | Outsd
            | Hlt
            | Cli
            | Sti
            | Std
            | Popfq
            | Popf
            | Ldmxcsr
            | Vldmxcsr
            | Fldcw
            | Fldenv
            | Frstor
            | Fxrstor
            | Fxrstor64
            | Xrstor
            | Xrstor64
            | Wrfsbase
            | Wrgsbase
            | Wrpkru
            | Xsetbv
            | Lfs
            | Lgs
            | Lss
            | Swapgs
            | Monitor
            | Mwait
            | Monitorx
            | Mwaitx
            | Umonitor
            | Umwait
            | Tpause
            | Clac
            | Stac
            | Vmcall
            | Vmmcall
            | Fstenv
            | Fnstenv
            | Fsave
            | Fnsave
            | Enclu
            | Senduipi
    );
    let segment = (0..i.op_count()).any(|n| i.op_register(n).is_segment_register());
    let shadow = i.cpuid_features().iter().any(|f| matches!(f, CpuidFeature::CET_SS | CpuidFeature::RTM));
    to_next && !state && !segment && !shadow
}

/// Returns the instruction without an address of its own, and with its RIP-relative operand at the same place of one of
/// two pages of the measurement.
fn moved(mut i: Instruction) -> Instruction {
    // The assembler takes addresses for targets of branches, and there are none.
    i.set_ip(0);
    if i.is_ip_rel_memory_operand() {
        let address = i.ip_rel_memory_address();
        i.set_memory_base(Register::RIP);
        i.set_memory_displacement64(STATICS + address % (2 * PAGE));
    }
    i
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_and_system_instructions_are_refused() {
        for (bytes, fits) in [
            (&[0x48, 0x01, 0xd8][..], true), // add rax, rbx
            (&[0x90], true),
            (&[0xeb, 0x00], false),      // jmp
            (&[0x0f, 0x05], false),      // syscall
            (&[0xf4], false),            // hlt
            (&[0x9d], false),            // popfq
            (&[0x8e, 0xd8], false),      // mov ds, eax
            (&[0x0f, 0x0b], false),      // ud2
            (&[0xcc], false),            // int3
            (&[0xf3, 0x48, 0xa5], true), // rep movsq
            (&[], false),
        ] {
            assert_eq!(Block::decode(bytes).is_ok(), fits, "{bytes:x?}");
        }
    }

    #[test]
    fn operands_relative_to_rip_are_moved() {
        let block = Block::decode(&[0x48, 0x8b, 0x05, 0x10, 0x30, 0, 0]).unwrap(); // mov rax, [rip + 3010h]
        assert_eq!(block.instructions()[0].ip_rel_memory_address(), STATICS + 0x1017);
    }

    #[test]
    fn a_free_register_is_used_by_no_operand() {
        let block = Block::decode(&[0x4d, 0x89, 0x3c, 0x24]).unwrap(); // mov [r12], r15
        assert_eq!(block.free_register(), Some(Register::R14));
        let all: Vec<u8> = (0..16).filter(|n| *n != 4).flat_map(|n: u8| [0x40 | n >> 3, 0xff, 0xc0 | n & 7]).collect();
        assert_eq!(Block::decode(&all).unwrap().free_register(), None);
    }
}
