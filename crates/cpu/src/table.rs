//! The instruction table: one row per mnemonic that the processor executes.
//!
//! It drives decoding (a mnemonic without a row is #UD, counted by name), execution (a row's `bind` picks the handler for
//! the operands at hand) and the list of supported instructions in the documentation. Rows live beside the handlers, one file
//! per family, and are put together here.

use crate::exec;
use crate::op::{Handler, Op};
use iced_x86::{Instruction, Mnemonic};
use ledger::Class;
use std::sync::OnceLock;

/// Picks the handler for an instruction whose operands are already in `op`; may change `op` (its class, `imm`, ...). `None`:
/// this form does not exist, #UD.
pub type Bind = fn(&Instruction, &mut Op) -> Option<Handler>;

/// One mnemonic.
pub struct Row {
    /// The mnemonic.
    pub mnemonic: Mnemonic,
    /// Picks the handler.
    pub bind: Bind,
    /// What it is charged as; [`Class::Alu`] with a memory operand becomes Load, Store or ReadModifyWrite.
    pub class: Class,
    /// Always the last of its block: branches, and what changes mode, mappings, interrupt state or reads time.
    pub ends: bool,
}

impl Row {
    /// A row of an instruction that goes on to the next.
    pub const fn new(mnemonic: Mnemonic, class: Class, bind: Bind) -> Self {
        Self { mnemonic, bind, class, ends: false }
    }

    /// A row of an instruction that ends its block.
    pub const fn end(mnemonic: Mnemonic, class: Class, bind: Bind) -> Self {
        Self { mnemonic, bind, class, ends: true }
    }
}

/// The families, by name.
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

/// The row of a mnemonic.
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

/// Name of a decoder's code number, as [`crate::op::Op::code`] holds it.
pub fn code_name(code: u32) -> Option<String> {
    iced_x86::Code::try_from(code as usize).ok().map(|code| format!("{code:?}"))
}
