//! The instruction table: one row per mnemonic that the processor executes.
//!
//! The table drives decoding (a mnemonic without a row raises #UD, counted by name), execution (the `bind` function of
//! a row selects the handler for the operands) and the list of supported instructions in the documentation. Rows are
//! next to their handlers, one file per family, and are collected here.

use crate::exec;
use crate::op::{Handler, Op};
use iced_x86::{Instruction, Mnemonic};
use ledger::Class;
use std::sync::OnceLock;

/// Selects the handler of an instruction whose operands are already in `op`; may change `op` (its class, `imm`, ...).
/// Returns `None` if this form does not exist (#UD).
pub type Bind = fn(&Instruction, &mut Op) -> Option<Handler>;

/// A row: one mnemonic.
pub struct Row {
    /// The mnemonic.
    pub mnemonic: Mnemonic,
    /// Function that selects the handler.
    pub bind: Bind,
    /// Class as which it is charged; [`Class::Alu`] with a memory operand becomes Load, Store or ReadModifyWrite.
    pub class: Class,
    /// True if it always is the last of its block: branches, and instructions that change mode, mappings or interrupt
    /// state, or read the time.
    pub ends: bool,
}

impl Row {
    /// Creates the row of an instruction after which the block continues.
    pub const fn new(mnemonic: Mnemonic, class: Class, bind: Bind) -> Self {
        Self { mnemonic, bind, class, ends: false }
    }

    /// Creates the row of an instruction that ends its block.
    pub const fn end(mnemonic: Mnemonic, class: Class, bind: Bind) -> Self {
        Self { mnemonic, bind, class, ends: true }
    }
}

/// Rows by family name.
pub static FAMILIES: &[(&str, &[Row])] = &[
    ("integer", exec::integer::ROWS),
    ("shift", exec::shift::ROWS),
    ("multiply and divide", exec::muldiv::ROWS),
    ("bits", exec::bits::ROWS),
    ("string", exec::string::ROWS),
    ("stack", exec::stack::ROWS),
    ("control", exec::control::ROWS),
    ("miscellaneous", exec::misc::ROWS),
    ("x87", exec::x87::ROWS),
    ("vector-move", exec::vector::rows::MOVES),
    ("vector-integer", exec::vector::rows::INTEGER),
    ("vector-integer-vex", exec::vector::rows::VEX_INTEGER),
    ("vector-float", exec::vector::rows::FLOAT),
    ("vector-float-vex", exec::vector::rows::VEX_FLOAT),
    ("vector-division", exec::vector::rows::DIVISION),
    ("vector-crypto", exec::vector::rows::CRYPTO),
    ("vector-sha", exec::vector::rows::SHA),
    ("vector-approximate", exec::vector::rows::APPROXIMATE),
    ("vector-masked", exec::vector::rows::MASKED),
    ("vector-gather", exec::vector::rows::GATHERS),
    ("vector-control", exec::vector::rows::CONTROL),
    ("avx512-move", exec::vector::evex::rows::MOVES),
    ("avx512-integer", exec::vector::evex::rows::INTEGER),
    ("avx512-float", exec::vector::evex::rows::FLOAT),
    ("avx512-approximate", exec::vector::evex::rows::APPROXIMATE),
    ("avx512-half-move", exec::vector::evex::rows::HALF_MOVES),
    ("avx512-half", exec::vector::evex::rows::HALF),
    ("avx512-half-division", exec::vector::evex::rows::HALF_DIVISION),
    ("avx512-scatter", exec::vector::evex::rows::SCATTERS),
    ("vnni", exec::vector::evex::rows::VNNI),
    ("galois-field", exec::vector::evex::rows::GALOIS),
    ("opmask", exec::vector::evex::rows::OPMASKS),
    ("state", exec::xsave::ROWS),
    ("tiles", exec::amx::ROWS),
    ("shadow stacks", exec::cet::ROWS),
    ("segments", exec::segment::ROWS),
    ("far transfers", exec::far::ROWS),
    ("interrupt returns", exec::iret::ROWS),
    ("fast system calls", exec::syscall::ROWS),
    ("flags", exec::flagsops::ROWS),
    ("control registers", exec::control_register::ROWS),
    ("descriptor tables", exec::tables::ROWS),
    ("model-specific registers", exec::msr::ROWS),
    ("cpuid", exec::cpuid::ROWS),
    ("ports", exec::io::ROWS),
    ("system", exec::system::ROWS),
    ("virtual machines", crate::vmx::root::ROWS),
];

/// Returns the row of a mnemonic.
pub fn row(mnemonic: Mnemonic) -> Option<&'static Row> {
    static INDEX: OnceLock<Vec<Option<&'static Row>>> = OnceLock::new();
    let index = INDEX.get_or_init(|| {
        let mut index = vec![None; Mnemonic::values().len()];
        for row in FAMILIES.iter().flat_map(|(_, rows)| rows.iter()) {
            let slot = &mut index[row.mnemonic as usize];
            assert!(slot.is_none(), "two rows for {:?}", row.mnemonic);
            *slot = Some(row);
        }
        index
    });
    index[mnemonic as usize]
}

/// Returns the name of a decoder's code number, as stored in [`crate::op::Op::code`].
pub fn code_name(code: u32) -> Option<String> {
    iced_x86::Code::try_from(code as usize).ok().map(|code| format!("{code:?}"))
}
