//! Faults: the reporting of instructions that did not complete.
//!
//! A handler returns [`Exec`]; the error is a marker without data, so that results stay in registers. The cause is in
//! [`fault`](crate::engine::Engine::fault), where one of the functions in `raise.rs` has stored it.

/// Marker for an instruction that did not complete, see [`fault`](crate::engine::Engine::fault).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Result of an operation that may fault.
pub type Exec<T = ()> = Result<T, Fault>;

/// Continuation after an instruction that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Flow {
    /// Continues with the next instruction of the block.
    Next,
    /// Leaves the block and continues at [`rip`](crate::arch::Arch::rip): after branches, and after changes of mode,
    /// mappings or time.
    End,
}

/// Cause of an instruction's stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Cause {
    /// Nothing.
    #[default]
    None,
    /// An exception to be delivered: vector, and error code for those that push one. For #PF the address is in
    /// [`fault_address`](crate::engine::Engine::fault_address); for #DB the DR6 bits are in
    /// [`fault_dr6`](crate::engine::Engine::fault_dr6).
    Exception(u8, Option<u32>),
    /// A write to decoded bytes: the instruction restarts alone, after the blocks have been dropped.
    CodeWrite,
    /// A read of the time-stamp counter on a processor that is ahead of others: the instruction restarts after they
    /// have caught up. See [`Cpu::set_time_limit`](crate::Cpu::set_time_limit).
    Ahead,
    /// An access to the performance counters: the instruction restarts alone, after they have been brought up to date.
    Counters,
    /// A repeated string instruction has completed an iteration, after which a debugger stops; nothing is delivered.
    Iteration,
    /// Shutdown (triple fault).
    Shutdown,
    /// A VM exit: the details are in [`vm_exit`](crate::arch::Arch::vm_exit).
    VmExit,
}
