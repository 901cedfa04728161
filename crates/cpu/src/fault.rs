//! Faults: how an instruction says that it did not complete.
//!
//! A handler returns [`Exec`]; the error is a marker without data, so that results stay in registers. What happened is in
//! [`fault`](crate::engine::Engine::fault), put there by one of the `raise` functions.

use crate::state::Cpu;
use x86::vector;

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

impl Cpu {
    /// Raises an exception without error code.
    #[cold]
    pub fn raise(&mut self, vector: u8) -> Fault {
        self.engine.fault = Cause::Exception(vector, None);
        Fault
    }

    /// Raises an exception with an error code.
    #[cold]
    pub fn raise_code(&mut self, vector: u8, code: u32) -> Fault {
        self.engine.fault = Cause::Exception(vector, Some(code));
        Fault
    }

    /// #GP(code).
    #[cold]
    pub fn gp(&mut self, code: u32) -> Fault {
        self.raise_code(vector::GP, code)
    }

    /// #UD.
    #[cold]
    pub fn ud(&mut self) -> Fault {
        self.raise(vector::UD)
    }

    /// #NM.
    #[cold]
    pub fn nm(&mut self) -> Fault {
        self.raise(vector::NM)
    }

    /// #PF with an error code, at a linear address. CR2 is written on delivery.
    #[cold]
    pub fn page_fault(&mut self, address: u64, code: u32) -> Fault {
        self.engine.fault_address = address;
        self.raise_code(vector::PF, code)
    }

    /// #DB with the DR6 bits it sets.
    #[cold]
    pub fn debug_trap(&mut self, dr6: u64) -> Fault {
        self.engine.fault_dr6 = dr6;
        self.raise(vector::DB)
    }
}
