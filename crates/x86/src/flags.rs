//! RFLAGS (SDM vol. 3, 2.3).

/// Carry flag.
pub const CF: u64 = 1 << 0;
/// Always set.
pub const FIXED: u64 = 1 << 1;
/// Parity flag.
pub const PF: u64 = 1 << 2;
/// Auxiliary carry flag.
pub const AF: u64 = 1 << 4;
/// Zero flag.
pub const ZF: u64 = 1 << 6;
/// Sign flag.
pub const SF: u64 = 1 << 7;
/// Trap flag.
pub const TF: u64 = 1 << 8;
/// Interrupt enable flag.
pub const IF: u64 = 1 << 9;
/// Direction flag.
pub const DF: u64 = 1 << 10;
/// Overflow flag.
pub const OF: u64 = 1 << 11;
/// I/O privilege level (two bits).
pub const IOPL: u64 = 3 << IOPL_SHIFT;
/// Position of the I/O privilege level.
pub const IOPL_SHIFT: u32 = 12;
/// Nested task.
pub const NT: u64 = 1 << 14;
/// Resume flag.
pub const RF: u64 = 1 << 16;
/// Virtual-8086 mode.
pub const VM: u64 = 1 << 17;
/// Alignment check / access control.
pub const AC: u64 = 1 << 18;
/// Virtual interrupt flag.
pub const VIF: u64 = 1 << 19;
/// Virtual interrupt pending.
pub const VIP: u64 = 1 << 20;
/// CPUID is supported.
pub const ID: u64 = 1 << 21;
/// The six arithmetic flags.
pub const ARITH: u64 = CF | PF | AF | ZF | SF | OF;
/// Defined flags, without [`FIXED`].
pub const ALL: u64 = ARITH | TF | IF | DF | IOPL | NT | RF | VM | AC | VIF | VIP | ID;

/// The flags of a single bit, with their names.
pub const NAMES: [(u64, &str); 16] = [
    (CF, "CF"),
    (PF, "PF"),
    (AF, "AF"),
    (ZF, "ZF"),
    (SF, "SF"),
    (TF, "TF"),
    (IF, "IF"),
    (DF, "DF"),
    (OF, "OF"),
    (NT, "NT"),
    (RF, "RF"),
    (VM, "VM"),
    (AC, "AC"),
    (VIF, "VIF"),
    (VIP, "VIP"),
    (ID, "ID"),
];
