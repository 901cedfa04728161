//! Families of blocks: what a block mainly exercises.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register};
use serde::{Deserialize, Serialize};

/// Part of the core that a block mainly exercises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Family {
    /// Arithmetic in general registers.
    Registers,
    /// Loads, and arithmetic.
    Loads,
    /// Stores, and arithmetic.
    Stores,
    /// Loads and stores.
    LoadsAndStores,
    /// Vector registers, on integers.
    VectorInteger,
    /// Vector registers, on floating-point numbers.
    VectorFloat,
    /// A division or a square root.
    Division,
    /// The x87 unit or MMX.
    X87,
    /// Strings, locked accesses, fences, or state.
    Special,
}

impl Family {
    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Registers => "registers",
            Self::Loads => "loads",
            Self::Stores => "stores",
            Self::LoadsAndStores => "loads and stores",
            Self::VectorInteger => "vector, integer",
            Self::VectorFloat => "vector, float",
            Self::Division => "division",
            Self::X87 => "x87, MMX",
            Self::Special => "strings, locked, state",
        }
    }

    /// Returns the family of a block: the last that one of its instructions belongs to, in the order of the list, with
    /// loads and stores combined.
    pub fn of(instructions: &[Instruction]) -> Self {
        let mut factory = InstructionInfoFactory::new();
        let (mut loads, mut stores) = (false, false);
        let mut family = Self::Registers;
        for i in instructions {
            let info = factory.info(i);
            for memory in info.used_memory() {
                use OpAccess::*;
                loads |= matches!(memory.access(), Read | CondRead | ReadWrite | ReadCondWrite);
                stores |= matches!(memory.access(), Write | CondWrite | ReadWrite | ReadCondWrite);
            }
            family = family.max(of_one(i));
        }
        match (family, loads, stores) {
            (Self::Registers, true, true) => Self::LoadsAndStores,
            (Self::Registers, true, false) => Self::Loads,
            (Self::Registers, false, true) => Self::Stores,
            _ => family,
        }
    }
}

fn of_one(i: &Instruction) -> Family {
    use Mnemonic::*;
    let registers = || (0..i.op_count()).map(|n| i.op_register(n));
    let name = format!("{:?}", i.mnemonic()).to_ascii_lowercase();
    let float = ["ps", "pd", "ss", "sd"].iter().any(|end| name.ends_with(end)) || name.contains("cvt");
    let special = matches!(
        i.mnemonic(),
        Lfence
            | Mfence
            | Sfence
            | Pause
            | Clflush
            | Clflushopt
            | Clwb
            | Cpuid
            | Rdtsc
            | Rdtscp
            | Rdrand
            | Rdseed
            | Xgetbv
            | Pushfq
            | Xchg
            | Cmpxchg
            | Cmpxchg8b
            | Cmpxchg16b
            | Xadd
            | Enter
            | Xsave
            | Xsavec
            | Fxsave
            | Stmxcsr
    );
    if special || i.has_lock_prefix() || i.is_string_instruction() {
        Family::Special
    } else if i.mnemonic() == Emms
        || registers().any(|r| r.is_mm() || r.is_st())
        || name.starts_with('f') && registers().all(|r| r == Register::None || r.is_st() || r == Register::AX)
    {
        Family::X87
    } else if matches!(i.mnemonic(), Div | Idiv)
        || ["vdiv", "vsqrt", "divs", "divp", "sqrt"].iter().any(|n| name.starts_with(n))
    {
        Family::Division
    } else if registers().any(Register::is_vector_register) {
        if float && !name.starts_with("vpm") { Family::VectorFloat } else { Family::VectorInteger }
    } else {
        Family::Registers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    #[test]
    fn a_block_has_the_family_of_its_most_special_instruction() {
        let family =
            |bytes: &[u8]| Family::of(&Decoder::new(64, bytes, DecoderOptions::NONE).into_iter().collect::<Vec<_>>());
        assert_eq!(family(&[0x48, 0x01, 0xd8]), Family::Registers); // add rax, rbx
        assert_eq!(family(&[0x48, 0x8d, 0x03]), Family::Registers); // lea rax, [rbx]
        assert_eq!(family(&[0x48, 0x8b, 0x03]), Family::Loads); // mov rax, [rbx]
        assert_eq!(family(&[0x48, 0x89, 0x03]), Family::Stores); // mov [rbx], rax
        assert_eq!(family(&[0x48, 0x01, 0x03]), Family::LoadsAndStores); // add [rbx], rax
        assert_eq!(family(&[0x66, 0x0f, 0xfe, 0xc1]), Family::VectorInteger); // paddd xmm0, xmm1
        assert_eq!(family(&[0x66, 0x0f, 0x58, 0xc1]), Family::VectorFloat); // addpd xmm0, xmm1
        assert_eq!(family(&[0x66, 0x0f, 0x58, 0xc1, 0x66, 0x0f, 0x5e, 0xc1]), Family::Division); // divpd xmm0, xmm1
        assert_eq!(family(&[0x48, 0xf7, 0xf1]), Family::Division); // div rcx
        assert_eq!(family(&[0xd8, 0xc1]), Family::X87); // fadd st, st(1)
        assert_eq!(family(&[0xdd, 0x03]), Family::X87); // fld qword ptr [rbx]
        assert_eq!(family(&[0x0f, 0xfe, 0xc1]), Family::X87); // paddd mm0, mm1
        assert_eq!(family(&[0xf3, 0xa4]), Family::Special); // rep movsb
        assert_eq!(family(&[0xf0, 0x48, 0x01, 0x03]), Family::Special); // lock add [rbx], rax
    }
}
