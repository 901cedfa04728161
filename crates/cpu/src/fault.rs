//! Faults: how an instruction says that it did not complete.
//!
//! A handler returns [`Exec`]; the error is a marker without data, so that results stay in registers. What happened is in
//! [`fault`](crate::engine::Engine::fault), put there by one of the functions in `raise.rs`.

/// Marker: the instruction did not complete, see [`fault`](crate::engine::Engine::fault).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Result of anything that may fault.
pub type Exec<T = ()> = Result<T, Fault>;

/// What the interpreter does after an instruction that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Flow {
    /// Goes on with the next instruction of the block.
    Next,
    /// Leaves the block; [`rip`](crate::arch::Arch::rip) says where to go on. Branches, and whatever changes mode, mappings or time.
    End,
}

/// What stopped an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Cause {
    /// Nothing.
    #[default]
    None,
    /// An exception to be delivered: vector, and error code for those that push one. For #PF the address is in
    /// [`fault_address`](crate::engine::Engine::fault_address); for #DB the DR6 bits to set are in [`fault_dr6`](crate::engine::Engine::fault_dr6).
    Exception(u8, Option<u32>),
    /// A write hit bytes that are decoded: the instruction restarts alone, after the blocks are gone.
    CodeWrite,
    /// A repeated string instruction has done an iteration, after which a debugger looks; nothing is to be delivered.
    Iteration,
    /// Shutdown (triple fault).
    Shutdown,
    /// A VM exit: the details are in [`vm_exit`](crate::arch::Arch::vm_exit).
    VmExit,
}
