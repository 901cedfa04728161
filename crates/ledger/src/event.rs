//! Everything that can be charged: instruction classes, and the families of events that cross a boundary or stall the processor.

use serde::{Deserialize, Serialize};
use strum::{EnumCount, EnumMessage, EnumString, IntoStaticStr, VariantArray};

/// Classes of ordinary instructions: each has one cost per profile and is charged per block.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    EnumCount,
    EnumString,
    IntoStaticStr,
    VariantArray,
    Serialize,
    Deserialize,
)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Class {
    /// Register-only integer arithmetic, logic, moves, LEA, SETcc, CMOVcc.
    Alu,
    /// Integer instruction that reads memory.
    Load,
    /// Integer instruction that writes memory.
    Store,
    /// Integer instruction that reads and writes memory.
    ReadModifyWrite,
    /// LOCK-prefixed instruction or XCHG with memory.
    Locked,
    /// Integer multiplication.
    Mul,
    /// Integer division.
    Div,
    /// Conditional branch.
    Branch,
    /// Direct jump.
    Jump,
    /// Direct call.
    Call,
    /// Near return.
    Return,
    /// Indirect jump.
    IndirectJump,
    /// Indirect call.
    IndirectCall,
    /// String instruction start-up (with a repeat prefix what it then does is [`Class::StringStep`]).
    String,
    /// One iteration of LODS, CMPS or SCAS with a repeat prefix; for MOVS and STOS each started 8 bytes of what they moved
    /// from where they began, or went on after an interruption.
    StringStep,
    /// No operation, prefetch, hint.
    Nop,
    /// PAUSE.
    Pause,
    /// LFENCE, SFENCE, MFENCE, SERIALIZE.
    Fence,
    /// Cache-line flush or write-back.
    CacheLine,
    /// Vector integer and vector move.
    Vector,
    /// Vector or scalar SSE/AVX floating point except division and square root.
    VectorFp,
    /// SSE/AVX division and square root.
    VectorDiv,
    /// x87 and MMX state handling and arithmetic.
    X87,
    /// x87 division, square root and transcendentals.
    X87Slow,
    /// AES, PCLMULQDQ, SHA.
    Crypto,
    /// XSAVE, XRSTOR, FXSAVE, FXRSTOR and variants.
    StateSave,
    /// Segment register loads, far transfers, flag image moves and other microcoded instructions.
    Microcode,
    /// RDTSC, RDTSCP, RDPMC.
    ReadTsc,
    /// RDRAND, RDSEED.
    Random,
    /// System instructions whose toll is charged as an event of its own.
    System,
    /// Configuration, load, store or clearing of tiles.
    TileMove,
    /// Multiplication of tiles.
    TileMultiply,
}

impl Class {
    /// Every class, in the order of its discriminant.
    pub const ALL: [Self; Self::COUNT] = *<Self as VariantArray>::VARIANTS.first_chunk().unwrap();
    /// The number of classes.
    pub const COUNT: usize = <Self as EnumCount>::COUNT;
    /// The number of classes for which every ledger has prices. A ledger has the price of a later class if it has instructions of that class.
    pub const FIRST: usize = Self::System as usize + 1;
}

/// Families of events. With a parameter they form a [`Kind`].
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    EnumCount,
    EnumString,
    EnumMessage,
    IntoStaticStr,
    VariantArray,
    Serialize,
    Deserialize,
)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Family {
    /// Instructions of a class; parameter: [`Class`].
    #[strum(message = "instructions")]
    Instruction,
    /// System call entry; parameter: 0 SYSCALL, 1 SYSENTER.
    #[strum(message = "system calls")]
    Syscall,
    /// System call return; parameter: 0 SYSRET, 1 SYSEXIT.
    #[strum(message = "system call returns")]
    Sysret,
    /// Exception delivered; parameter: vector.
    #[strum(message = "exceptions")]
    Exception,
    /// External interrupt delivered; parameter: vector.
    #[strum(message = "interrupts")]
    Interrupt,
    /// NMI delivered.
    #[strum(message = "NMIs")]
    Nmi,
    /// INT n, INT3, INTO, INT1; parameter: vector.
    #[strum(message = "software interrupts")]
    SoftwareInterrupt,
    /// IRET.
    #[strum(message = "IRET")]
    Iret,
    /// Far CALL, JMP or RET through a gate or to another segment.
    #[strum(message = "far transfers")]
    FarTransfer,
    /// Hardware task switch.
    #[strum(message = "task switches")]
    TaskSwitch,
    /// MOV to a control register; parameter: its number. CR3 without flush (PCID bit 63) is 0x13.
    #[strum(message = "control register writes")]
    ControlRegister,
    /// MOV to or from a debug register; parameter: its number.
    #[strum(message = "debug register moves")]
    DebugRegister,
    /// TLB flush; parameter: 0 non-global, 1 all, 2 one PCID.
    #[strum(message = "TLB flushes")]
    TlbFlush,
    /// First-level data TLB miss that hit the second level.
    #[strum(message = "second-level TLB hits, data")]
    StlbHitData,
    /// First-level instruction TLB miss that hit the second level.
    #[strum(message = "second-level TLB hits, code")]
    StlbHitCode,
    /// Data TLB miss; parameter: memory references of the walk.
    #[strum(message = "TLB misses, data")]
    TlbMissData,
    /// Instruction TLB miss; parameter: memory references of the walk.
    #[strum(message = "TLB misses, code")]
    TlbMissCode,
    /// INVLPG.
    #[strum(message = "INVLPG")]
    Invlpg,
    /// INVPCID; parameter: type.
    #[strum(message = "INVPCID")]
    Invpcid,
    /// CPUID; parameter: leaf (EAX), for leaf 0xD with its sub-leaf, see [`Kind::cpuid`].
    #[strum(message = "CPUID")]
    Cpuid,
    /// RDMSR; parameter: index.
    #[strum(message = "RDMSR")]
    Rdmsr,
    /// WRMSR; parameter: index.
    #[strum(message = "WRMSR")]
    Wrmsr,
    /// Port read; parameter: port.
    #[strum(message = "port reads")]
    PortIn,
    /// Port write; parameter: port.
    #[strum(message = "port writes")]
    PortOut,
    /// Memory-mapped read; parameter: device number given by the board.
    #[strum(message = "memory-mapped reads")]
    MmioRead,
    /// Memory-mapped write; parameter: device number given by the board.
    #[strum(message = "memory-mapped writes")]
    MmioWrite,
    /// Time spent halted (HLT or MWAIT); the count is the number of halts.
    #[strum(message = "halts")]
    Halt,
    /// Indirect jump or call whose target was not predicted.
    #[strum(message = "mispredicted indirect branches")]
    IndirectMiss,
    /// Near return whose target was not predicted.
    #[strum(message = "mispredicted returns")]
    ReturnMiss,
    /// WBINVD, INVD.
    #[strum(message = "cache flushes")]
    CacheFlush,
    /// LGDT, LIDT, LLDT, LTR, SGDT and their kin; parameter: 0 store, 1 load. 2: VERW of memory, which on some processors
    /// clears buffers.
    #[strum(message = "descriptor table instructions")]
    DescriptorTable,
    /// SWAPGS.
    #[strum(message = "SWAPGS")]
    Swapgs,
    /// XSETBV.
    #[strum(message = "XSETBV")]
    Xsetbv,
    /// WRPKRU.
    #[strum(message = "WRPKRU")]
    Wrpkru,
    /// Opcode the processor does not have (#UD); parameter: decoder's opcode number, named in the ledger.
    #[strum(message = "undefined opcodes")]
    Undefined,
    /// The processor's part of leaving VMX non-root mode; parameter: basic exit reason.
    #[strum(message = "VM exits")]
    VmExit,
    /// The processor's part of entering VMX non-root mode.
    #[strum(message = "VM entries")]
    VmEntry,
    /// Something that a hypervisor's software does; parameter: [`crate::Operation`].
    #[strum(message = "hypervisor operations")]
    Operation,
    /// Instruction of VMX other than those that enter a guest; parameter: the basic exit reason that it has in non-root mode.
    #[strum(message = "VMX instructions")]
    VmxInstruction,
    /// MSR loaded or stored from a list on a VM entry or exit; parameter: index.
    #[strum(message = "MSRs of VM entries and exits")]
    MsrList,
    /// Data access that missed the first-level cache, and the time for which the core waited; parameter: see
    /// [`Kind::cache_miss`].
    #[strum(message = "cache misses, data")]
    CacheMissData,
    /// Instruction fetch that missed the first-level cache, and the time for which the core waited; parameter: as for data.
    #[strum(message = "cache misses, code")]
    CacheMissCode,
    /// Conditional branch whose direction was not predicted.
    #[strum(message = "mispredicted conditional branches")]
    BranchMiss,
    /// Taken branch that the front end did not know, so that it went on behind the branch until the decoder found it.
    #[strum(message = "unknown branches")]
    UnknownBranch,
    /// Access to data that is not in one line of the caches, and what it takes more; parameter: 0 for two lines of a page, 1 for two
    /// pages.
    #[strum(message = "accesses across lines")]
    Split,
}

impl Family {
    /// Every family, in the order of its discriminant.
    pub const ALL: [Self; Self::COUNT] = *<Self as VariantArray>::VARIANTS.first_chunk().unwrap();
    /// The number of families.
    pub const COUNT: usize = <Self as EnumCount>::COUNT;
}

/// One kind of event: a family and its parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Kind {
    /// The family.
    pub family: Family,
    /// Its parameter, as [`Family`] says; 0 where it has none.
    pub param: u32,
}

impl Kind {
    /// A kind with a parameter.
    pub const fn new(family: Family, param: u32) -> Self {
        Self { family, param }
    }

    /// The kind of a CPUID execution. Sub-leaves of leaf 0xD cost differently and are told apart: the sub-leaf, at most
    /// [`Kind::CPUID_SUBLEAVES`] - 1, is kept in bits 8 to 23 of the parameter, which no leaf in use needs.
    pub const fn cpuid(leaf: u32, subleaf: u32) -> Self {
        let last = Self::CPUID_SUBLEAVES - 1;
        let subleaf = if subleaf > last { last } else { subleaf };
        let param = if leaf == 0xd { leaf | subleaf << 8 } else { leaf };
        Self { family: Family::Cpuid, param }
    }

    /// The kind of a first-level cache miss that level `level` served: 2 or 3 for a cache, [`Kind::MEMORY`] for memory;
    /// `prefetched` if the line was already on its way, as the next one of a stream.
    pub const fn cache_miss(code: bool, level: u32, prefetched: bool) -> Self {
        let family = if code { Family::CacheMissCode } else { Family::CacheMissData };
        let flag = if prefetched { Self::PREFETCHED } else { 0 };
        Self { family, param: level | flag }
    }

    /// The kind of a step of a hypervisor's software.
    pub const fn operation(operation: crate::Operation) -> Self {
        Self { family: Family::Operation, param: operation as u32 }
    }

    /// The same family for all numbers that a guest can choose at will, such as those of MSRs; other kinds are themselves.
    pub const fn without_number(self) -> Self {
        match self.family {
            Family::SoftwareInterrupt
            | Family::Interrupt
            | Family::Cpuid
            | Family::Rdmsr
            | Family::Wrmsr
            | Family::PortIn
            | Family::PortOut
            | Family::Undefined => Self { param: Self::FURTHER, ..self },
            _ => self,
        }
    }

    /// Returns true if the kind stands for many numbers.
    pub fn is_without_number(self) -> bool {
        self.param == Self::FURTHER && self == self.without_number()
    }

    /// The parameter that stands for all.
    const FURTHER: u32 = u32::MAX;

    /// The level of memory in the parameter of a cache miss.
    pub const MEMORY: u32 = 4;
    /// In place of the level: another processor, which has changed the line.
    pub const PROCESSOR: u32 = 5;
    /// In the parameter of a cache miss: the line was already on its way.
    pub const PREFETCHED: u32 = 8;

    /// The number of sub-leaves of CPUID leaf 0xD that are distinguished: one per bit of XCR0 and IA32_XSS.
    pub const CPUID_SUBLEAVES: u32 = 64;
}
