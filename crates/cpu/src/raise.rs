//! Raising exceptions: see [`crate::fault`].

use crate::fault::{Cause, Fault};
use crate::state::Cpu;
use x86::vector;

impl Cpu {
    /// Raises an exception without error code.
    #[cold]
    pub fn raise(&mut self, vector: u8) -> Fault {
        self.engine.fault = Cause::Exception(vector, None);
        Fault
    }

    /// Raises an exception with an error code.
    #[cold]
    pub(crate) fn raise_code(&mut self, vector: u8, code: u32) -> Fault {
        self.engine.fault = Cause::Exception(vector, Some(code));
        Fault
    }

    /// Raises #GP(code).
    #[cold]
    pub fn gp(&mut self, code: u32) -> Fault {
        self.raise_code(vector::GP, code)
    }

    /// Raises #UD.
    #[cold]
    pub fn ud(&mut self) -> Fault {
        self.raise(vector::UD)
    }

    /// Raises #NM.
    #[cold]
    pub(crate) fn nm(&mut self) -> Fault {
        self.raise(vector::NM)
    }

    /// Raises #PF with an error code, at a linear address. CR2 is written on delivery.
    #[cold]
    pub(crate) fn page_fault(&mut self, address: u64, code: u32) -> Fault {
        self.engine.fault_address = address;
        self.raise_code(vector::PF, code)
    }

    /// Raises #DB with the DR6 bits that it sets.
    #[cold]
    pub(crate) fn debug_trap(&mut self, dr6: u64) -> Fault {
        self.engine.fault_dr6 = dr6;
        self.raise(vector::DB)
    }
}
