//! Readable listings of translated code, for golden files and reports of differences.
//!
//! Addresses are offsets from the start of the translation, and data at the stack pointer has names, so that a listing
//! changes only with the code.

use super::layout::{BIAS, IN_MEMORY, Running};
use super::{
    EXIT_AT, Entry, LAST_AT, LOAD_AT, LOAD_WIDE_AT, LOAD_X87_AT, REFILL_AT, REFILL_LAST_AT, REFILL_LINE_AT,
    REFILL_LINE_LAST_AT, RETURN_AT, SLOW_AT, Translations,
};
use crate::front::{Area, Half, MODES, Slot, Table};
use crate::translate::BlockCache;
use iced_x86::{
    Decoder, DecoderOptions, Formatter, GasFormatter, Instruction, OpKind, Register, SymbolResolver, SymbolResult,
};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::mem::{offset_of, size_of};

/// Listing of the host code of one translation.
pub struct Listing {
    /// Number of instructions in line, which an execution without a miss may pass.
    pub straight: usize,
    /// Number of instructions out of line: misses, and exits that are not linked.
    pub aside: usize,
    /// Text of all instructions, one per line.
    pub text: String,
}

impl BlockCache {
    /// Returns the translations of the block at these addresses, one for each access mode that has one.
    pub fn listings(&self, physical: u64, rip: u64) -> Vec<Listing> {
        let found = self.code.blocks.iter().rposition(|block| block.physical == physical && block.rip == rip);
        found.map_or_else(Vec::new, |index| self.code.translations.listings(index))
    }
}

impl Translations {
    fn listings(&self, index: usize) -> Vec<Listing> {
        let entries = self.blocks.get(index).map_or([0; super::KEYS], |block| block.entries);
        let entries = entries.into_iter().filter(|&number| number != 0);
        entries.filter_map(|number| self.listing(&self.entries[number as usize - 1])).collect()
    }

    fn listing(&self, entry: &Entry) -> Option<Listing> {
        let code = self.memory.as_ref()?.read(entry.due as usize..entry.end as usize);
        let mut formatter = GasFormatter::with_options(Some(Box::new(Names::new(entry))), None);
        let options = formatter.options_mut();
        options.set_uppercase_hex(false);
        options.set_branch_leading_zeros(false);
        options.set_space_after_operand_separator(true);
        let (mut straight, mut aside, mut text) = (0, 0, String::new());
        let begin = u64::from(entry.begin - entry.due);
        let stubs = u64::from(entry.stubs - entry.due);
        for i in Decoder::with_ip(64, code, 0, DecoderOptions::NONE) {
            if i.ip() == stubs {
                text.push_str("aside:\n");
            }
            if i.ip() == u64::from(entry.checked - entry.due) {
                text.push_str("checked:\n");
            }
            if i.ip() == begin {
                text.push_str("begin:\n");
            }
            if i.ip() == u64::from(entry.head - entry.due) {
                text.push_str("head:\n");
            }
            if i.ip() >= stubs {
                aside += 1;
            } else if i.ip() >= begin {
                straight += 1;
            }
            let mut line = String::new();
            formatter.format(&i, &mut line);
            let _ = writeln!(text, "{:5x}  {line}", i.ip());
        }
        Some(Listing { straight, aside, text })
    }
}

/// Names of data and code to which translated code refers.
struct Names {
    /// Names by offset from the stack pointer.
    fields: BTreeMap<i64, String>,
    /// Names by offset from the start of the translation.
    code: BTreeMap<i64, &'static str>,
}

impl Names {
    fn new(entry: &Entry) -> Self {
        let mut fields = BTreeMap::new();
        let mut name = |offset: usize, name: String| fields.insert(offset as i64 - BIAS as i64, name);
        macro_rules! running {
            ($($field:ident)*) => {
                $(name(offset_of!(Running, $field), stringify!($field).replace('_', "-"));)*
            };
        }
        running! {
            returns counts bases slot_mask offset_mask beyond_mask jump_mask found targets registers flags interrupts access_control system_flags budget
            missing refused loaded upper vector host_mxcsr
            aligned_to_16 aligned_to_32 aligned_to_64 target wanted resume host_stack context jumps ops base non_root
        }
        macro_rules! x87 {
            ($($field:ident)*) => {
                $(name(offset_of!(Running, x87.$field), concat!("x87-", stringify!($field)).replace('_', "-"));)*
            };
        }
        x87! { last last_data data at_hand exceptions precision }
        name(offset_of!(Running, bases) + 8, "gs-base".into());
        name(offset_of!(Running, bases), "fs-base".into());
        for (slot, register) in IN_MEMORY.into_iter().enumerate() {
            name(offset_of!(Running, memory) + 8 * slot, format!("guest-r{register}"));
        }
        for mode in 0..MODES {
            for (half, what) in [(offset_of!(Table, read), "read"), (offset_of!(Table, write), "write")] {
                let at = offset_of!(Area<Running>, tables) + mode * size_of::<Table>() + half;
                let first = at + offset_of!(Half, slots);
                name(first + offset_of!(Slot, negated), format!("{what}{mode}-page"));
                name(first + offset_of!(Slot, addend), format!("{what}{mode}-addend"));
            }
        }
        name(offset_of!(Area<Running>, fetch), "fetch".into());
        name(offset_of!(Area<Running>, large), "large".into());
        let at = |place: usize| place as i64 - i64::from(entry.due);
        Self {
            fields,
            code: [
                (at(SLOW_AT), "slow"),
                (at(LAST_AT), "last"),
                (at(REFILL_AT), "refill"),
                (at(REFILL_LAST_AT), "refill-last"),
                (at(REFILL_LINE_AT), "refill-line"),
                (at(REFILL_LINE_LAST_AT), "refill-line-last"),
                (at(EXIT_AT), "exit"),
                (at(LOAD_AT), "load"),
                (at(LOAD_X87_AT), "load-x87"),
                (at(LOAD_WIDE_AT), "load-wide"),
                (at(RETURN_AT), "return"),
            ]
            .into(),
        }
    }
}

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        i: &Instruction,
        _: u32,
        operand: Option<u32>,
        address: u64,
        _: u32,
    ) -> Option<SymbolResult<'_>> {
        let at = address as i64;
        if i.is_call_near() || i.is_jmp_near() {
            return Some(SymbolResult::with_str(address, self.code.get(&at)?));
        }
        let memory = operand.is_some_and(|n| i.op_kind(n) == OpKind::Memory);
        if !memory || i.memory_base() != Register::RSP {
            return None;
        }
        // Addresses inside tables follow their names.
        let at = i.memory_displacement64() as i64;
        let (start, name) = self.fields.range(..=at).next_back()?;
        Some(SymbolResult::with_str(start.wrapping_add(address as i64 - at) as u64, name))
    }
}
