//! What can be charged: instruction classes, and the families of events that cross a boundary or stall the processor.

/// Classes of ordinary instructions: each has one cost per profile and is charged per block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
}

impl Class {
    /// Every class, in the order of its discriminant.
    pub const ALL: [Class; Class::COUNT] = [
        Class::Alu,
        Class::Load,
        Class::Store,
        Class::ReadModifyWrite,
        Class::Locked,
        Class::Mul,
        Class::Div,
        Class::Branch,
        Class::Jump,
        Class::Call,
        Class::Return,
        Class::IndirectJump,
        Class::IndirectCall,
        Class::String,
        Class::StringStep,
        Class::Nop,
        Class::Pause,
        Class::Fence,
        Class::CacheLine,
        Class::Vector,
        Class::VectorFp,
        Class::VectorDiv,
        Class::X87,
        Class::X87Slow,
        Class::Crypto,
        Class::StateSave,
        Class::Microcode,
        Class::ReadTsc,
        Class::Random,
        Class::System,
    ];
    /// How many classes there are.
    pub const COUNT: usize = 30;
}

/// Families of events. With a parameter they form a [`Kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Family {
    /// Instructions of a class; parameter: [`Class`].
    Instruction,
    /// System call entry; parameter: 0 SYSCALL, 1 SYSENTER.
    Syscall,
    /// System call return; parameter: 0 SYSRET, 1 SYSEXIT.
    Sysret,
    /// Exception delivered; parameter: vector.
    Exception,
    /// External interrupt delivered; parameter: vector.
    Interrupt,
    /// NMI delivered.
    Nmi,
    /// INT n, INT3, INTO, INT1; parameter: vector.
    SoftwareInterrupt,
    /// IRET.
    Iret,
    /// Far CALL, JMP or RET through a gate or to another segment.
    FarTransfer,
    /// Hardware task switch.
    TaskSwitch,
    /// MOV to a control register; parameter: its number. CR3 without flush (PCID bit 63) is 0x13.
    ControlRegister,
    /// MOV to or from a debug register; parameter: its number.
    DebugRegister,
    /// TLB flush; parameter: 0 non-global, 1 all, 2 one PCID.
    TlbFlush,
    /// First-level data TLB miss that hit the second level.
    StlbHitData,
    /// First-level instruction TLB miss that hit the second level.
    StlbHitCode,
    /// Data TLB miss; parameter: memory references of the walk.
    TlbMissData,
    /// Instruction TLB miss; parameter: memory references of the walk.
    TlbMissCode,
    /// INVLPG.
    Invlpg,
    /// INVPCID; parameter: type.
    Invpcid,
    /// CPUID; parameter: leaf (EAX), for leaf 0xD with its sub-leaf, see [`Kind::cpuid`].
    Cpuid,
    /// RDMSR; parameter: index.
    Rdmsr,
    /// WRMSR; parameter: index.
    Wrmsr,
    /// Port read; parameter: port.
    PortIn,
    /// Port write; parameter: port.
    PortOut,
    /// Memory-mapped read; parameter: device number given by the board.
    MmioRead,
    /// Memory-mapped write; parameter: device number given by the board.
    MmioWrite,
    /// Time spent halted (HLT or MWAIT); the count is the number of halts.
    Halt,
    /// Indirect jump or call whose target was not predicted.
    IndirectMiss,
    /// Near return whose target was not predicted.
    ReturnMiss,
    /// WBINVD, INVD.
    CacheFlush,
    /// LGDT, LIDT, LLDT, LTR, SGDT and their kin; parameter: 0 store, 1 load. 2: VERW of memory, which on some processors
    /// clears buffers.
    DescriptorTable,
    /// SWAPGS.
    Swapgs,
    /// XSETBV.
    Xsetbv,
    /// WRPKRU.
    Wrpkru,
    /// Opcode the processor does not have (#UD); parameter: decoder's opcode number, named in the ledger.
    Undefined,
    /// The processor's part of leaving VMX non-root mode; parameter: basic exit reason.
    VmExit,
    /// The processor's part of entering VMX non-root mode.
    VmEntry,
    /// Something that a hypervisor's software does; parameter: [`crate::Operation`].
    Operation,
}

impl Family {
    /// Every family, in the order of its discriminant.
    pub const ALL: [Family; crate::costs::FAMILIES] = [
        Family::Instruction,
        Family::Syscall,
        Family::Sysret,
        Family::Exception,
        Family::Interrupt,
        Family::Nmi,
        Family::SoftwareInterrupt,
        Family::Iret,
        Family::FarTransfer,
        Family::TaskSwitch,
        Family::ControlRegister,
        Family::DebugRegister,
        Family::TlbFlush,
        Family::StlbHitData,
        Family::StlbHitCode,
        Family::TlbMissData,
        Family::TlbMissCode,
        Family::Invlpg,
        Family::Invpcid,
        Family::Cpuid,
        Family::Rdmsr,
        Family::Wrmsr,
        Family::PortIn,
        Family::PortOut,
        Family::MmioRead,
        Family::MmioWrite,
        Family::Halt,
        Family::IndirectMiss,
        Family::ReturnMiss,
        Family::CacheFlush,
        Family::DescriptorTable,
        Family::Swapgs,
        Family::Xsetbv,
        Family::Wrpkru,
        Family::Undefined,
        Family::VmExit,
        Family::VmEntry,
        Family::Operation,
    ];
}

/// One kind of event: a family and its parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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

    /// Whether the kind stands for many numbers.
    pub fn is_without_number(self) -> bool {
        self.param == Self::FURTHER && self == self.without_number()
    }

    /// The parameter that stands for all.
    const FURTHER: u32 = u32::MAX;

    /// How many sub-leaves of CPUID leaf 0xD are told apart: one per bit of XCR0 and IA32_XSS.
    pub const CPUID_SUBLEAVES: u32 = 64;
}
