//! Exit qualifications (SDM vol. 3, 27.2.1).

/// Control-register accesses (table 27-3), and the common part of MOV DR (table 27-4).
pub mod control_register {
    /// The number of the register.
    pub const NUMBER: u64 = 0xf;
    /// The type of access: one of the three below; otherwise MOV to the register.
    pub const TYPE: u64 = 3 << 4;
    /// MOV from the register.
    pub const FROM: u64 = 1 << 4;
    /// CLTS.
    pub const CLTS: u64 = 2 << 4;
    /// LMSW.
    pub const LMSW: u64 = 3 << 4;
    /// The operand of LMSW is memory.
    pub const LMSW_MEMORY: u64 = 1 << 6;
    /// Position of the general register.
    pub const REGISTER_SHIFT: u32 = 8;
    /// The general register, after a shift by [`REGISTER_SHIFT`].
    pub const REGISTER: u64 = 0xf;
    /// Position of the operand of LMSW.
    pub const SOURCE_SHIFT: u32 = 16;
}

/// I/O instructions (table 27-5).
pub mod io {
    /// Size of the access minus one.
    pub const SIZE: u64 = 7;
    /// Input.
    pub const IN: u64 = 1 << 3;
    /// INS or OUTS.
    pub const STRING: u64 = 1 << 4;
    /// With a REP prefix.
    pub const REP: u64 = 1 << 5;
    /// The port is an immediate.
    pub const IMMEDIATE: u64 = 1 << 6;
    /// Position of the port.
    pub const PORT_SHIFT: u32 = 16;
}

/// EPT violations (table 27-7). Bits 2:0 are the access, in the format of [`crate::ept::RIGHTS`].
pub mod ept {
    /// Position of the permissions that the translation grants.
    pub const RIGHTS_SHIFT: u32 = 3;
    /// The guest-linear address is valid.
    pub const LINEAR_VALID: u64 = 1 << 7;
    /// The access was to the translation of the linear address; otherwise to a table.
    pub const FINAL: u64 = 1 << 8;
    /// The linear address is a user-mode address. This bit and the next two are valid with [`LINEAR_VALID`] and
    /// [`FINAL`], on processors with advanced information.
    pub const USER: u64 = 1 << 9;
    /// The guest's tables allow writes.
    pub const WRITABLE: u64 = 1 << 10;
    /// The guest's tables forbid fetches.
    pub const NO_EXECUTE: u64 = 1 << 11;
    /// IRET had unblocked NMIs.
    pub const NMI_UNBLOCKED: u64 = 1 << 12;
    /// EPT permits fetches of user code, with mode-based execute control.
    pub const USER_EXECUTE: u64 = 1 << 6;
}

/// APIC accesses (table 27-6). Bits 11:0 are the offset in the page.
pub mod apic {
    /// Position of the access type.
    pub const TYPE_SHIFT: u32 = 12;
    /// A linear access reads data.
    pub const READ: u64 = 0;
    /// A linear access writes data.
    pub const WRITE: u64 = 1;
    /// A linear access fetches an instruction.
    pub const FETCH: u64 = 2;
    /// A linear access during the delivery of an event.
    pub const DELIVERY: u64 = 3;
    /// A guest-physical access during the delivery of an event.
    pub const PHYSICAL_DELIVERY: u64 = 10;
    /// A guest-physical access of an instruction.
    pub const PHYSICAL: u64 = 15;
}

/// Failed VM entries because of the guest's state (26.8).
pub mod entry_failure {
    /// PDPTEs could not be loaded.
    pub const PDPTE: u64 = 2;
    /// An NMI would be injected while STI blocks events.
    pub const NMI_BLOCKED_BY_STI: u64 = 3;
    /// The VMCS link pointer is invalid.
    pub const LINK_POINTER: u64 = 4;
}

/// Task switches (table 27-2).
pub mod task_switch {
    /// Position of the source.
    pub const SOURCE_SHIFT: u32 = 30;
    /// The source, after a shift by [`SOURCE_SHIFT`].
    pub const SOURCE: u64 = 3;
    /// The source is a task gate in the IDT.
    pub const GATE: u64 = 3;
}
