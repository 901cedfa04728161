//! Numbers of general registers, as instructions encode them (SDM vol. 2, table 2-1).

/// RAX.
pub const RAX: u8 = 0;
/// RCX.
pub const RCX: u8 = 1;
/// RDX.
pub const RDX: u8 = 2;
/// RBX.
pub const RBX: u8 = 3;
/// RSP.
pub const RSP: u8 = 4;
/// RBP.
pub const RBP: u8 = 5;
/// RSI.
pub const RSI: u8 = 6;
/// RDI.
pub const RDI: u8 = 7;

/// The names of all sixteen, as assemblers write them.
pub const NAMES: [&str; 16] =
    ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];
