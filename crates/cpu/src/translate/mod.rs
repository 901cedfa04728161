//! The second tier: blocks translated to host code.
//!
//! The guest's instruction set is the host's, so a translation consists mostly of the guest's own instructions with
//! other registers: guest registers are in host registers (`layout`), guest flags in the host's flags, and all code
//! between two guest instructions preserves flags (`asm`). Memory operands probe the fast path's tables inline
//! (`address`). After a miss, and for every instruction without a translation, the interpreter's handler executes the
//! instruction with all state stored (`dispatch::slow`), so that a fault finds the architectural state. Blocks are the
//! interpreter's, charged on entry and left at the same boundaries; a translation is a trace of several blocks
//! (`trace`).
//!
//! Reading order: `plan` (the translation of an instruction), `fit` (what the host executes), `trace` (selection of blocks), `group` (operands that are
//! probed for together), `emit` (code emission), `branch` (ends of blocks), `vector`, `x87`, `string`, `divide`,
//! `system` (kinds of instructions), `entry` (entry and exit), `unit` (the x87 unit's state), `dispatch` (callers and callbacks), and this file:
//! storage, linking and removal of translations.

mod accesses;
mod address;
mod asm;
mod branch;
#[allow(unsafe_code, reason = "translated code is machine code")]
mod dispatch;
mod divide;
mod emit;
#[allow(unsafe_code, reason = "translated code is machine code")]
mod entry;
mod fit;
mod fix;
mod group;
mod jumps;
mod key;
#[allow(unsafe_code, reason = "its data begins as memory of zeroes")]
mod layout;
mod listing;
mod plan;
#[allow(unsafe_code, reason = "called by translated code, with the guest's registers in the host's")]
mod predict;
mod questions;
mod string;
mod system;
mod trace;
#[allow(unsafe_code, reason = "translated code is machine code")]
mod unit;
mod vector;
mod waits;
mod x87;

pub(crate) use dispatch::Before;
pub(crate) use jumps::Jumps;
pub use key::{KEYS, Key};
pub use layout::Running;

use crate::blocks::Derived;
use crate::cache::Cache;
use crate::native::Executable;
use accesses::Access;
use emit::{Aim, Link};
use iced_x86::{Encoder, InstructionInfoFactory};
use questions::LineQuestion;
use rustc_hash::FxHashMap;
use trace::TraceSource;

/// The blocks of a machine, their translations, and the processors' use of them.
pub type BlockCache = Cache<Translations>;

/// Size of the memory for translated code. When it is full, everything is dropped and translated again.
const SIZE: usize = 64 << 20;
/// Offset of the first translation, after the common exits.
const FIRST_CODE: usize = 288;
const EXIT_AT: usize = 0;
const SLOW_AT: usize = 16;
const LOAD_AT: usize = 32;
const LAST_AT: usize = 48;
const LOAD_X87_AT: usize = 64;
const RETURN_AT: usize = 80;
const LOAD_WIDE_AT: usize = 96;
const REFILL_AT: usize = 112;
const REFILL_LAST_AT: usize = 128;
const PREDICT_AT: usize = 144;
const MISSED_AT: usize = 160;
const MISSED_TAKEN_AT: usize = 176;
const ASK_AT: usize = 192;
const ASK_TAKEN_AT: usize = 208;
const PREDICT_TARGET_AT: usize = 224;
const ASK_LINE_AT: usize = 240;
const REFILL_LINE_AT: usize = 256;
const REFILL_LINE_LAST_AT: usize = 272;

/// Meaning of an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// The processor's state has the address of the next instruction.
    Plain,
    /// A return has no known translation at its target, [`Running::wanted`].
    Return,
    /// An event is due before this block, or its page is not known.
    Head {
        /// Index of the block.
        index: u32,
    },
    /// An exit has no known translation.
    Link {
        /// Index of the translation.
        number: u32,
        /// Index of the exit in the translation.
        link: u8,
    },
}

/// Position of a link's index in an exit code.
const LINK: u32 = 24;
/// Maximum number of links in a translation, whose indices have six bits: each of its two copies may be left after each
/// part, and twice at its end; each call has one for its return.
const _: () = assert!(2 * (trace::MOST_PARTS + 1) + trace::MOST_PARTS <= 1 << 6);

impl Code {
    pub(crate) fn encode(self) -> u32 {
        match self {
            Self::Plain => entry::PLAIN as u32,
            Self::Return => 1,
            Self::Head { index } => 1 << 31 | index,
            Self::Link { number, link } => 1 << 30 | u32::from(link) << LINK | number,
        }
    }

    pub(crate) fn decode(code: u32) -> Self {
        let number = code & ((1 << LINK) - 1);
        match code >> 30 {
            0 if number == 0 => Self::Plain,
            0 => Self::Return,
            1 => Self::Link { number, link: (code >> LINK) as u8 & 63 },
            _ => Self::Head { index: number },
        }
    }
}

/// A translation: offsets in the code memory.
#[derive(Clone, Copy, Default)]
struct Entry {
    checked: u32,
    head: u32,
    begin: u32,
    due: u32,
    stubs: u32,
    end: u32,
    /// Time from the begin of its first block to the begin of its last.
    span: u32,
    /// Index of its first exit in [`Translations::ways_out`].
    ways_out: u32,
    /// Index of its first part in [`Translations::parts`].
    parts: u32,
}

/// Translations of a block.
#[derive(Clone, Copy, Default)]
struct Block {
    /// Indices plus one of the translations that begin with it, by key.
    entries: [u32; KEYS],
}

/// An exit of a translation.
#[derive(Clone, Copy)]
pub(crate) struct WayOut {
    /// Offset of the jump's distance field.
    site: u32,
    /// Target of the jump until it is linked.
    stub: u32,
    /// Block that ends there.
    pub(crate) index: u32,
    /// True if the block ends with a jump to its target, false if with its next instruction.
    pub(crate) taken: bool,
    /// True if another operation may have intervened.
    far: bool,
}

/// A link to a block: the distance field, and the previous target.
struct Incoming {
    site: u32,
    stub: u32,
}

/// All translations of a machine.
pub struct Translations {
    memory: Option<Executable>,
    /// True if the host denies executable memory.
    refused: bool,
    used: usize,
    /// Maximum number of bytes used.
    most: usize,
    /// Number of times that everything was dropped.
    generation: u64,
    blocks: Vec<Block>,
    entries: Vec<Entry>,
    ways_out: Vec<WayOut>,
    /// Blocks of the traces.
    parts: Vec<u32>,
    /// By block: first blocks of the traces that contain it.
    within: FxHashMap<u32, Vec<u32>>,
    incoming: FxHashMap<u32, Vec<Incoming>>,
    /// Questions for lines of code.
    questions: Vec<LineQuestion>,
    /// Accesses that may miss lines of the fast path, and the arguments of their calls for a handler.
    accesses: Vec<Access>,
    access_codes: Vec<u64>,
    tools: Option<Box<(Encoder, InstructionInfoFactory)>>,
}

impl Translations {
    fn new() -> Self {
        Self {
            memory: None,
            refused: false,
            used: 0,
            most: 0,
            generation: 0,
            blocks: Vec::new(),
            entries: Vec::new(),
            ways_out: Vec::new(),
            parts: Vec::new(),
            within: FxHashMap::default(),
            incoming: FxHashMap::default(),
            questions: Vec::new(),
            accesses: Vec::new(),
            access_codes: Vec::new(),
            tools: None,
        }
    }

    /// Returns the generation of the code cache, which changes when everything is dropped.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    fn block(&mut self, index: u32) -> &mut Block {
        let index = index as usize;
        if self.blocks.len() <= index {
            self.blocks.resize(index + 1, Block::default());
        }
        &mut self.blocks[index]
    }

    /// Returns the index plus one of a block's translation, or 0 if it has none.
    #[inline]
    pub(crate) fn find(&self, index: u32, key: Key) -> u32 {
        self.blocks.get(index as usize).map_or(0, |block| block.entries[key.index()])
    }

    /// Returns true if a block is translated, for any key.
    fn has(&self, index: u32) -> bool {
        self.blocks.get(index as usize).is_some_and(|block| block.entries != [0; KEYS])
    }

    /// Returns the index of the next translation.
    pub(crate) fn next_number(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Returns the index of the next question for a line of code.
    pub(crate) fn next_question(&self) -> u32 {
        self.questions.len() as u32
    }

    /// Returns the index of the next access that may miss lines of the fast path.
    pub(crate) fn next_access(&self) -> u32 {
        self.accesses.len() as u32
    }

    /// Returns the time from the begin of a translation's first block to the begin of its last.
    #[inline]
    pub(crate) fn span(&self, entry: u32) -> u64 {
        self.span_of(entry - 1)
    }

    /// Does the same for the index of a translation.
    pub(crate) fn span_of(&self, number: u32) -> u64 {
        u64::from(self.entries[number as usize].span)
    }

    /// Returns a block of a translation.
    pub(crate) fn part(&self, number: u32, part: usize) -> u32 {
        self.parts[self.entries[number as usize].parts as usize + part]
    }

    /// Returns an exit of a translation.
    pub(crate) fn way_out(&self, number: u32, link: u8) -> WayOut {
        self.ways_out[self.entries[number as usize].ways_out as usize + usize::from(link)]
    }

    /// Returns the entry point that checks the page of a block's translation, if there is one.
    pub(crate) fn known(&self, index: u32, key: Key) -> Option<*const u8> {
        let entry = self.blocks.get(index as usize)?.entries[key.index()];
        (entry != 0).then(|| self.checked(entry))
    }

    /// Returns the entry point of a translation whose page is the current one and before which no event is due.
    #[inline]
    pub(crate) fn begin(&self, entry: u32) -> *const u8 {
        self.address(self.entries[entry as usize - 1].begin)
    }

    /// Returns the entry point that checks the page.
    pub(crate) fn checked(&self, entry: u32) -> *const u8 {
        self.address(self.entries[entry as usize - 1].checked)
    }

    /// Returns the address at which returns with an unknown translation continue.
    pub(crate) fn unknown_return(&self) -> u64 {
        self.address(RETURN_AT as u32) as u64
    }

    fn address(&self, at: u32) -> *const u8 {
        self.memory.as_ref().map_or(std::ptr::null(), |memory| memory.address(at as usize))
    }

    /// Translates a trace. Returns the index of the translation plus one, or 0 if that is not possible.
    pub(crate) fn translate(&mut self, source: &TraceSource) -> u32 {
        if !self.prepare() {
            return 0;
        }
        let Some(mut tools) = self.tools.take() else { return 0 };
        let mut emitted = emit::emit(source, &mut tools.0, &mut tools.1);
        if self.used + emitted.code.len() > SIZE {
            self.drop_all();
            // The code names the translation by its number, which is another one now.
            let (number, question, access) = (self.next_number(), self.next_question(), self.next_access());
            let anew = TraceSource { number, question, access, ..*source };
            emitted = emit::emit(&anew, &mut tools.0, &mut tools.1);
        }
        self.tools = Some(tools);
        let base = self.used;
        for (site, aim) in &emitted.aims {
            let to = match aim {
                Aim::Slow => SLOW_AT,
                Aim::Last => LAST_AT,
                Aim::Refill => REFILL_AT,
                Aim::RefillLast => REFILL_LAST_AT,
                Aim::RefillLine => REFILL_LINE_AT,
                Aim::RefillLineLast => REFILL_LINE_LAST_AT,
                Aim::Predict => PREDICT_AT,
                Aim::PredictTarget => PREDICT_TARGET_AT,
                Aim::Missed => MISSED_AT,
                Aim::MissedTaken => MISSED_TAKEN_AT,
                Aim::Ask => ASK_AT,
                Aim::AskTaken => ASK_TAKEN_AT,
                Aim::AskLine => ASK_LINE_AT,
                Aim::Exit => EXIT_AT,
                Aim::Load => LOAD_AT,
                Aim::LoadX87 => LOAD_X87_AT,
                Aim::LoadWide => LOAD_WIDE_AT,
                Aim::Return => RETURN_AT,
            };
            let distance = (to as i64 - (base + site + 4) as i64) as i32;
            emitted.code[*site..site + 4].copy_from_slice(&distance.to_le_bytes());
        }
        let Some(memory) = &mut self.memory else { return 0 };
        memory.write(base, &emitted.code);
        self.used = (base + emitted.code.len()).next_multiple_of(16);
        self.most = self.most.max(self.used);
        let at = |offset: usize| (base + offset) as u32;
        self.entries.push(Entry {
            checked: at(emitted.checked),
            head: at(emitted.head),
            begin: at(emitted.begin),
            due: at(emitted.due),
            stubs: at(emitted.stubs),
            end: at(emitted.code.len()),
            span: source.span() as u32,
            ways_out: self.ways_out.len() as u32,
            parts: self.parts.len() as u32,
        });
        let way_out = |link: &Link| WayOut {
            site: at(link.site),
            stub: at(link.stub),
            index: link.index,
            taken: link.taken,
            far: link.far,
        };
        self.ways_out.extend(emitted.links.iter().map(way_out));
        self.questions.extend(emitted.questions);
        self.accesses.extend(emitted.accesses);
        self.access_codes.extend(emitted.access_codes);
        let head = source.parts[0].index;
        self.parts.extend(source.parts.iter().map(|part| part.index));
        for part in source.parts.iter().filter(|part| part.index != head) {
            let heads = self.within.entry(part.index).or_default();
            if !heads.contains(&head) {
                heads.push(head);
            }
        }
        let number = self.entries.len() as u32;
        self.block(head).entries[source.key.index()] = number;
        number
    }

    fn aim(&mut self, site: u32, to: u32) {
        let distance = (i64::from(to) - i64::from(site + 4)) as i32;
        if let Some(memory) = &mut self.memory {
            memory.write(site as usize, &distance.to_le_bytes());
        }
    }

    /// Links an exit to the translation `entry` of block `to`, which is in the same page or not.
    pub(crate) fn link(&mut self, number: u32, link: u8, to: u32, entry: u32, same_page: bool) {
        let WayOut { site, stub, far, .. } = self.way_out(number, link);
        let target = self.entries[entry as usize - 1];
        self.aim(site, if same_page && !far { target.head } else { target.checked });
        self.incoming.entry(to).or_default().push(Incoming { site, stub });
    }

    /// Drops the translations that begin with a block.
    fn remove_from(&mut self, index: u32) {
        let Some(block) = self.blocks.get_mut(index as usize) else { return };
        let entries = std::mem::take(block).entries;
        for entry in entries.into_iter().filter(|entry| *entry != 0) {
            // Targets of indirect branches use the entry point that checks the page.
            let Entry { checked, due, .. } = self.entries[entry as usize - 1];
            let mut jump = [0xe9, 0, 0, 0, 0];
            jump[1..].copy_from_slice(&((i64::from(due) - i64::from(checked + 5)) as i32).to_le_bytes());
            if let Some(memory) = &mut self.memory {
                memory.write(checked as usize, &jump);
            }
        }
        for Incoming { site, stub } in self.incoming.remove(&index).unwrap_or_default() {
            self.aim(site, stub);
        }
    }

    fn drop_all(&mut self) {
        self.generation += 1;
        self.used = FIRST_CODE;
        self.blocks.clear();
        self.entries.clear();
        self.ways_out.clear();
        self.parts.clear();
        self.within.clear();
        self.incoming.clear();
        self.questions.clear();
        self.accesses.clear();
        self.access_codes.clear();
    }
}

impl Default for Translations {
    fn default() -> Self {
        Self::new()
    }
}

impl Derived for Translations {
    fn renewed(&self) -> Self {
        Self { generation: self.generation + 1, ..Self::new() }
    }

    fn taken(&self) -> (usize, usize) {
        let incoming: usize = self.incoming.values().map(|list| (list.capacity() + 4) * size_of::<Incoming>()).sum();
        let within: usize = self.within.values().map(|list| list.capacity() * size_of::<u32>() + 32).sum();
        let kept = self.blocks.capacity() * size_of::<Block>()
            + self.entries.capacity() * size_of::<Entry>()
            + self.ways_out.capacity() * size_of::<WayOut>()
            + self.parts.capacity() * size_of::<u32>()
            + self.questions.capacity() * size_of::<LineQuestion>()
            + self.accesses.capacity() * size_of::<Access>()
            + self.access_codes.capacity() * size_of::<u64>();
        (self.most, kept + incoming + within)
    }

    fn prepare(&mut self) -> bool {
        if self.memory.is_none() && !self.refused {
            match Executable::new(c"tollgate-code", SIZE) {
                Ok(mut memory) => {
                    let way_out = |to: u64| {
                        // jmp [rip + 0]
                        let mut code = [0xff, 0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                        code[6..].copy_from_slice(&to.to_le_bytes());
                        code
                    };
                    memory.write(EXIT_AT, &way_out(entry::exit as *const () as u64));
                    memory.write(SLOW_AT, &way_out(entry::slow as *const () as u64));
                    memory.write(REFILL_AT, &way_out(entry::refill as *const () as u64));
                    memory.write(REFILL_LAST_AT, &way_out(entry::refill_last as *const () as u64));
                    memory.write(REFILL_LINE_AT, &way_out(entry::refill_line as *const () as u64));
                    memory.write(REFILL_LINE_LAST_AT, &way_out(entry::refill_line_last as *const () as u64));
                    memory.write(PREDICT_AT, &way_out(predict::predict as *const () as u64));
                    memory.write(PREDICT_TARGET_AT, &way_out(predict::predict_target as *const () as u64));
                    memory.write(MISSED_AT, &way_out(entry::missed as *const () as u64));
                    memory.write(MISSED_TAKEN_AT, &way_out(entry::missed_taken as *const () as u64));
                    memory.write(ASK_AT, &way_out(entry::ask as *const () as u64));
                    memory.write(ASK_TAKEN_AT, &way_out(entry::ask_taken as *const () as u64));
                    memory.write(ASK_LINE_AT, &way_out(entry::ask_line as *const () as u64));
                    memory.write(LOAD_AT, &way_out(entry::load as *const () as u64));
                    memory.write(LOAD_WIDE_AT, &way_out(entry::load_wide as *const () as u64));
                    memory.write(LAST_AT, &way_out(entry::last as *const () as u64));
                    memory.write(LOAD_X87_AT, &way_out(unit::load as *const () as u64));
                    // mov ecx, code; jmp exit
                    let mut leave = [0xb9, 0, 0, 0, 0, 0xe9, 0, 0, 0, 0];
                    leave[1..5].copy_from_slice(&Code::Return.encode().to_le_bytes());
                    let distance = EXIT_AT as i32 - (RETURN_AT + leave.len()) as i32;
                    leave[6..].copy_from_slice(&distance.to_le_bytes());
                    memory.write(RETURN_AT, &leave);
                    self.memory = Some(memory);
                    self.used = FIRST_CODE;
                    self.tools = Some(Box::new((Encoder::new(64), InstructionInfoFactory::new())));
                }
                Err(_) => self.refused = true,
            }
        }
        self.memory.is_some()
    }

    fn remove(&mut self, index: u32) {
        for head in self.within.remove(&index).unwrap_or_default() {
            self.remove_from(head);
        }
        self.remove_from(index);
    }

    fn clear(&mut self) {
        self.drop_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jump tables and return stacks contain addresses of code.
    #[test]
    fn code_that_is_gone_is_told_from_what_comes_after_it() {
        let mut translations = Translations::new();
        let first = translations.generation();
        translations.clear();
        let second = translations.generation();
        assert_ne!(first, second);
        assert!(![first, second].contains(&translations.renewed().generation()));
    }

    #[test]
    fn exit_codes_say_what_they_were_made_of() {
        let last = (1 << LINK) - 1;
        for code in [
            Code::Plain,
            Code::Return,
            Code::Head { index: 0 },
            Code::Head { index: last },
            Code::Link { number: 0, link: 0 },
            Code::Link { number: last, link: 63 },
        ] {
            assert_eq!(Code::decode(code.encode()), code);
        }
    }
}
