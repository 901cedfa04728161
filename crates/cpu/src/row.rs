//! A row of the instruction table: what an instruction is.
//!
//! A row states the handler, the class, the CPUID bits, the translator's treatment and the part that the instruction
//! plays in programs. Nothing else lists instructions by mnemonic for one of these questions. The CPUID bits of an
//! encoding are those of the decoder library; a row adds what a processor without them does. The key under which time is
//! looked up is finer than a row: the form of each encoding (`Form` in `op.rs`).

use crate::op::{Handler, Op};
use iced_x86::{Code, Instruction, Mnemonic};
use ledger::Class;

/// Selects the handler of an instruction whose operands are already in `op`; may change `op` (its class, `imm`, ...).
/// Returns `None` if this form does not exist (#UD).
pub type Bind = fn(&Instruction, &mut Op) -> Option<Handler>;

/// A row: one mnemonic.
pub struct Row {
    /// The mnemonic.
    pub mnemonic: Mnemonic,
    /// Function that selects the handler.
    pub(crate) bind: Bind,
    /// Class as which it is charged; [`Class::Alu`] with a memory operand becomes Load, Store or ReadModifyWrite.
    pub class: Class,
    /// True if it always is the last of its block: branches, and instructions that change mode, mappings or interrupt
    /// state, or read the time.
    pub ends: bool,
    /// Meaning of its bytes for a processor whose CPUID lacks its bits.
    pub lacking: Lacking,
    /// The translator's treatment.
    pub treatment: Treatment,
    /// The part that it plays in programs.
    pub role: Role,
}

/// Meaning of an instruction for a processor whose CPUID lacks its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// The instruction raises #UD.
    Undefined,
    /// The instruction has no effect, as with the bits: it is a hint, or its handler decides.
    Ignored,
    /// The processor ignores a mandatory prefix, and executes an older instruction with the same opcode.
    Older(&'static [(Code, Code)]),
}

/// The translator's treatment of an instruction. Forms that the treatment does not cover are executed by their handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// The handler executes the instruction.
    Handler,
    /// The handler executes the instruction, and loads a segment register.
    LoadSegment,
    /// Nothing happens.
    Nothing,
    /// Nothing happens unless caches are modelled.
    Prefetch,
    /// The host executes the instruction as the interpreter does, on general registers and memory, except for some flags.
    Native(Flags),
    /// As [`Treatment::Native`], unless operands have 16 bits: for counts above 16, processors differ in the result.
    DoubleShift,
    /// As [`Treatment::Native`]; with a number in a register, the bit may be beyond the operand in memory.
    BitTest,
    /// As [`Treatment::Native`], for general registers; MOV of other registers has code of its own.
    Move,
    /// As [`Treatment::Native`], if the operand size is that of Intel's processors.
    ExtendDouble,
    /// The host's vector units execute the instruction as the interpreter does.
    Vector,
    /// As [`Treatment::Vector`], on opmasks in every encoding.
    Opmask,
    /// The host's x87 unit executes the instruction as the interpreter does.
    X87 {
        /// True if the instruction records itself in the unit's pointers.
        notes: bool,
        /// True if it writes its memory operand.
        writes: bool,
    },
    /// LEA.
    Lea,
    /// PUSH.
    Push,
    /// POP.
    Pop,
    /// LEAVE.
    Leave,
    /// PUSHFQ.
    PushFlags,
    /// CLI.
    MaskInterrupts,
    /// STI.
    EnableInterrupts,
    /// STAC or CLAC.
    AccessControl {
        /// Value of RFLAGS.AC afterwards.
        set: bool,
    },
    /// RDTSC or RDTSCP.
    ReadTime,
    /// PAUSE.
    Pause,
    /// SWAPGS.
    SwapBases,
    /// RDFSBASE, RDGSBASE, WRFSBASE or WRGSBASE.
    Base {
        /// The segment.
        segment: u8,
        /// True if the instruction writes the base.
        write: bool,
    },
    /// RDPKRU.
    ReadRights,
    /// WRMSR.
    WriteMsr,
    /// CMPXCHG16B.
    CompareExchange16,
    /// DIV or IDIV.
    Divide,
    /// MOVS or STOS; MOVSD also is the name of a vector instruction.
    String,
    /// Conditional jump.
    Branch,
    /// JMP.
    Jump,
    /// CALL.
    Call,
    /// RET.
    Return,
}

/// Differences between the flags that a host's processor leaves and the interpreter's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flags {
    /// The flags that the manual leaves undefined may differ.
    Listed,
    /// None: all processors clear AF, or change only CF, although the manual leaves flags undefined.
    Same,
    /// The flags that the manual leaves undefined may differ; for some counts no flag changes.
    ByCount,
    /// Vendors differ even in flags that the manual defines for some of them: the interpreter's are always set.
    Differ,
}

/// The part that an instruction plays in programs. Random programs of tests are drawn by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Compilers use it everywhere.
    Common,
    /// Neither of the others.
    Other,
    /// It changes the processor's mode, or leaves the program for its system.
    System,
}

impl Row {
    /// Creates the row of an instruction after which the block continues.
    pub const fn new(mnemonic: Mnemonic, class: Class, bind: Bind) -> Self {
        Self {
            mnemonic,
            bind,
            class,
            ends: false,
            lacking: Lacking::Undefined,
            treatment: Treatment::Handler,
            role: Role::Other,
        }
    }

    /// Creates the row of an instruction that ends its block.
    pub const fn end(mnemonic: Mnemonic, class: Class, bind: Bind) -> Self {
        Self { ends: true, ..Self::new(mnemonic, class, bind) }
    }

    /// Sets the translator's treatment.
    pub(crate) const fn treated(self, treatment: Treatment) -> Self {
        Self { treatment, ..self }
    }

    /// Sets the treatment to native execution.
    pub(crate) const fn native(self, flags: Flags) -> Self {
        self.treated(Treatment::Native(flags))
    }

    /// Says that compilers use the instruction everywhere.
    pub(crate) const fn common(self) -> Self {
        Self { role: Role::Common, ..self }
    }

    /// Says that the instruction changes the mode, or leaves the program.
    pub(crate) const fn of_system(self) -> Self {
        Self { role: Role::System, ..self }
    }

    /// Says what a processor does that lacks the instruction's CPUID bits.
    pub(crate) const fn lacking(self, lacking: Lacking) -> Self {
        Self { lacking, ..self }
    }
}
