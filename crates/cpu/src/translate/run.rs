//! Entering translated code, and what it calls back for.

use super::emit::{Miss, Source};
use super::layout::Running;
use super::vector::NEEDS;
use super::{Code, Key, entry};
use crate::cache::BlockCache;
use crate::decode::mode;
use crate::exec::vector::run::{MASKS, XCR0_AVX};
use crate::fault::Flow;
use crate::flags;
use crate::front::{JUMP_MASK, Mode, PAGE_MASK};
use crate::native::HOST_MXCSR;
use crate::op::Op;
use crate::ram::PAGE;
use crate::state::{Cpu, NOT_LOADED, bits::*, rights, seg};
use crate::tier::Tier;
use iced_x86::{Decoder, DecoderOptions, Instruction};
use ledger::{Class, Family, Kind, OriginId, Ticks};

/// Executions after which a block is translated.
const THRESHOLD: u16 = 40;
/// Time that translated code runs at most before it leaves.
const LONGEST: Ticks = 1 << 30;
/// What a translated block costs at least.
const CHEAPEST: Ticks = 400;
/// Time after which counters are drained: no block can have been executed so often that its counter overflows.
const DRAIN: Ticks = CHEAPEST << 31;

/// Flags that are kept apart or never pushed; LAHF gives the bit that is always set.
const KEPT_APART: u64 = flags::IF | flags::AC | flags::RF | flags::VM | 2;

/// What translated code and those it calls share.
pub struct Context {
    cpu: *mut Cpu,
    cache: *mut BlockCache,
    /// The current area's.
    running: *mut Running,
    /// What [`Running::budget`] counts from.
    base: Ticks,
    /// When translated code is left at the latest.
    until: Ticks,
    /// Who is charged for blocks.
    origin: OriginId,
    /// Whose counters the current area refers to.
    counted: Option<OriginId>,
    /// The last block ended with its handler, and where that led was not known.
    indirect: bool,
}

/// What came before a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Before {
    /// Nothing that concerns it.
    #[default]
    Nothing,
    /// A translated block that could lead here, unless everything has been dropped since.
    Link { index: u32, key: u8, number: u8, generation: u64 },
    /// A block whose end says where to go on.
    Indirect,
}

impl Cpu {
    /// Under which access code runs now; `None` if it is not translated.
    #[inline]
    fn key(&self) -> Option<Key> {
        // Nobody uses the rings between.
        if matches!(self.cpl, 1 | 2) {
            return None;
        }
        let key = match self.front.mode() {
            Mode::User => Key::User,
            Mode::SupervisorOnly => Key::SupervisorOnly,
            Mode::Supervisor if self.cr4 & CR4_SMAP != 0 => Key::Override,
            Mode::Supervisor => Key::Supervisor,
            Mode::Slow => return None,
        };
        if self.long64 {
            return Some(key);
        }
        self.flat().then(|| key.narrowed())
    }

    /// Whether this is 32-bit protected-mode code whose segments all begin at 0 and have no limit, as compilers expect.
    fn flat(&self) -> bool {
        let whole = |number: u8| {
            let segment = &self.seg[usize::from(number)];
            segment.base == 0 && segment.limit == u32::MAX && segment.usable()
        };
        let data = |number: u8| {
            const KIND: u32 = rights::CODE | rights::DC | rights::RW;
            whole(number) && self.seg[usize::from(number)].rights & KIND == rights::RW
        };
        self.mode == mode::BITS32 | mode::PROTECTED
            && whole(seg::CS)
            && data(seg::DS)
            && data(seg::ES)
            && data(seg::SS)
            && self.seg[usize::from(seg::SS)].rights & rights::DB != 0
    }

    /// Runs a block, and those it leads to, as translated code. `false`: it is for the interpreter.
    #[inline]
    pub(crate) fn run_translated(&mut self, cache: &mut BlockCache, index: u32, before: &mut Before) -> bool {
        let threshold = match cache.tier {
            Tier::Interpreter => return false,
            Tier::Translator => 1,
            Tier::Auto => THRESHOLD,
        };
        let Some(key) = self.key() else { return false };
        let (mut entry, hot) = cache.translations.find(index, key, threshold);
        if entry == 0 {
            if !hot {
                return false;
            }
            entry = self.translate_block(cache, index, key);
            if entry == 0 {
                return false;
            }
        }
        let block = &cache.blocks[index as usize];
        match std::mem::take(before) {
            Before::Nothing => {}
            Before::Link { index: from, key: from_key, number, generation } => {
                if generation == cache.translations.generation() {
                    let same_page = cache.blocks[from as usize].rip & !(PAGE - 1) == block.rip & !(PAGE - 1);
                    cache.translations.link(from, from_key, number, index, entry, same_page);
                }
            }
            Before::Indirect => {
                let code = cache.translations.checked(entry) as u64;
                let generation = cache.translations.generation();
                let area = self.front.current();
                area.follow_code(generation, key.narrow());
                area.fill_jump(key as usize, block.rip, code);
            }
        }
        *before = self.enter_translated(cache, entry);
        true
    }

    #[cold]
    fn translate_block(&mut self, cache: &mut BlockCache, index: u32, key: Key) -> u32 {
        let block = &cache.blocks[index as usize];
        // The counter of a block that costs next to nothing could overflow; outside 64-bit mode, the limit of CS would have to be
        // compared with where the second page begins.
        let crosses = block.second != 0 && key.narrow();
        if crosses || block.cost < CHEAPEST || (block.mode & 3 == mode::BITS64) == key.narrow() {
            cache.translations.refuse(index);
            return 0;
        }
        let mut bytes = vec![0; usize::from(block.len)];
        let here = bytes.len().min((PAGE - (block.physical & (PAGE - 1))) as usize);
        let (here, there) = bytes.split_at_mut(here);
        if !self.ram.read_bytes(block.physical, here) || !self.ram.read_bytes(block.second, there) {
            return 0;
        }
        let ops = &cache.ops[block.first as usize..][..block.count as usize];
        let mut decoder = Decoder::with_ip(if key.narrow() { 32 } else { 64 }, &bytes, block.rip, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        let mut instructions = Vec::with_capacity(ops.len());
        while decoder.can_decode() && instructions.len() < ops.len() {
            decoder.decode_out(&mut instruction);
            instructions.push(self.as_model(instruction));
        }
        let same = instructions.len() == ops.len()
            && instructions.iter().zip(ops).all(|(i, op)| i.len() == usize::from(op.len));
        if !same {
            cache.translations.refuse(index);
            return 0;
        }
        let misses = match ops.last().map(|op| op.class) {
            _ if !self.model.recorded => None,
            Some(Class::Return) => Some(Kind::new(Family::ReturnMiss, 0)),
            Some(Class::IndirectJump | Class::IndirectCall) => Some(Kind::new(Family::IndirectMiss, 0)),
            _ => None,
        };
        let miss = misses.and_then(|kind| {
            let price = self.model.costs.of(kind);
            let ticks = i32::try_from(price).ok()?;
            let at =
                cache.ops[(cache.blocks[index as usize].first + cache.blocks[index as usize].count - 1) as usize].rip();
            Some(Miss { counter: cache.event(at, kind, price)?, ticks })
        });
        let block = &cache.blocks[index as usize];
        let ops = &cache.ops[block.first as usize..][..block.count as usize];
        let source = Source {
            index,
            first: block.first,
            rip: block.rip,
            physical: block.physical,
            second: block.second,
            large: self.front.is_large(block.rip),
            cost: block.cost,
            ops,
            instructions: &instructions,
            key,
            recorded: self.model.recorded,
            target_slots: self.predictor.slots(),
            miss,
            data_pointers: !self.fdp_on_exception,
        };
        let entry = cache.translations.translate(&source);
        if entry == 0 {
            cache.translations.refuse(index);
        }
        entry
    }

    fn enter_translated(&mut self, cache: &mut BlockCache, entry: u32) -> Before {
        let code = cache.translations.begin(entry);
        let started = self.clock;
        let mut context = Context {
            cpu: self,
            cache,
            running: std::ptr::null_mut(),
            base: 0,
            until: started.saturating_add(LONGEST),
            origin: self.origin,
            counted: None,
            indirect: false,
        };
        let running = self.prepare_area(cache, &mut context);
        context.cpu = self;
        context.cache = cache;
        // SAFETY: the area has been prepared for the current state, and `code` is the head of a translation for the key in
        // force whose page is the current one. Until it returns, `self` and `cache` are only used through `context`.
        let exit = unsafe { entry::enter(running, code) };
        let left = Code::decode(exit as u32);
        if left != Code::Plain {
            self.leave_area(&context, cache);
        }
        cache.translations.pending += self.clock.wrapping_sub(started);
        if cache.translations.pending >= DRAIN {
            cache.translations.pending = 0;
            self.settle(cache);
        }
        match left {
            Code::Plain if context.indirect => Before::Indirect,
            Code::Plain => Before::Nothing,
            Code::Head { index } => {
                self.rip = cache.blocks[index as usize].rip;
                Before::Nothing
            }
            Code::Link { index, key, number } => {
                let block = &cache.blocks[index as usize];
                let last = &cache.ops[(block.first + block.count - 1) as usize];
                self.rip = if number == 0 { last.imm } else { last.next };
                Before::Link { index, key, number, generation: cache.translations.generation() }
            }
        }
    }

    /// Prepares the current area for translated code.
    fn prepare_area(&mut self, cache: &mut BlockCache, context: &mut Context) -> *mut Running {
        let stop = self.stop_at.min(context.until);
        // If something is due, it is so at the head of the next block. So it is if that may be elsewhere by now.
        let due = self.clock >= stop || self.fetch.left() || self.origin != context.origin;
        context.base = if due { self.clock } else { stop };
        let image = self.lazy.image();
        let generation = cache.translations.generation();
        let (returns, targets) = self.predictor.expose();
        let bases = [self.seg[usize::from(seg::FS)].base, self.seg[usize::from(seg::GS)].base];
        let registers = self.gpr.as_mut_ptr();
        let budget = self.clock.wrapping_sub(context.base) as i64;
        let refused = self.refused();
        let system = self.flags;
        let narrow = !self.long64;
        let vector = &raw mut self.vector;
        let x87 = &raw mut self.x87;
        let area = self.front.current();
        area.follow_code(generation, narrow);
        let running = &mut area.running;
        if !std::ptr::eq(context.running, running) {
            if !context.running.is_null() {
                // SAFETY: the area that was current until now; areas live as long as the processor.
                let before = unsafe { &*context.running };
                running.resume = before.resume;
                running.host_stack = before.host_stack;
            }
            context.running = running;
            // What stays as it is until the area is left.
            running.page_mask = PAGE_MASK;
            running.jump_mask = JUMP_MASK;
            running.registers = registers;
            running.vector = vector;
            running.x87.of(x87);
            running.host_mxcsr = u64::from(HOST_MXCSR);
            running.aligned_to_16 = 15;
            running.aligned_to_32 = 31;
            running.context = context;
            running.ops = cache.ops.as_ptr();
            running.targets = targets;
            context.counted = None;
        }
        if context.counted != Some(context.origin) {
            context.counted = Some(context.origin);
            running.counts = match self.model.recorded {
                true => cache.counts(context.origin, &mut self.recorder.borrow_mut()),
                false => std::ptr::null_mut(),
            };
        }
        running.returns = returns;
        running.bases = bases;
        running.flags = image >> 11 & 1 | (image & 0xff) << 8;
        running.interrupts = system & flags::IF;
        running.access_control = system & flags::AC;
        running.system_flags = system & !KEPT_APART;
        running.budget = budget;
        running.refused = refused;
        running
    }

    /// Which kinds of vector and x87 instructions must be left to their handlers, by [`super::vector::Need`].
    fn refused(&self) -> [u64; NEEDS] {
        let sse = self.cr0 & (CR0_EM | CR0_TS) == 0 && self.cr4 & CR4_OSFXSR != 0;
        let avx =
            self.cr0 & (CR0_TS | CR0_PE) == CR0_PE && self.cr4 & CR4_OSXSAVE != 0 && self.xcr0 & XCR0_AVX == XCR0_AVX;
        // Arithmetic runs under the guest's MXCSR: no exception may come of it.
        let arithmetic = sse && self.vector.mxcsr & MASKS == MASKS;
        [!sse, !arithmetic, !avx, !(avx && arithmetic), self.x87_refused()].map(u64::from)
    }

    /// Goes on after a block whose last instruction its handler ran, without leaving if the translation of what comes next is
    /// known and nothing is due.
    fn go_on(&mut self, cache: &mut BlockCache, context: &mut Context) -> *mut Running {
        context.indirect = true;
        let goes_on = self.goes_on(cache);
        let key = match self.key() {
            Some(key) if goes_on => key,
            _ => return std::ptr::null_mut(),
        };
        let area = self.front.current();
        area.follow_code(cache.translations.generation(), key.narrow());
        let Some(code) = area.jump(key as usize, self.rip) else { return std::ptr::null_mut() };
        // The translation checks its page itself.
        self.fetch.follow();
        context.origin = self.origin;
        let running = self.prepare_area(cache, context);
        // SAFETY: the current area's, which nobody else refers to.
        unsafe { (*running).resume = code };
        running
    }

    /// Takes state back from where translated code left it.
    fn leave_area(&mut self, context: &Context, cache: &BlockCache) {
        // SAFETY: the area that is current since translated code was entered.
        let running = unsafe { &mut *context.running };
        if running.x87.loaded() {
            self.take_x87(running, cache);
        }
        self.clock = context.base.wrapping_add(running.budget as u64);
        self.lazy.load(running.flags >> 8 & 0xff | (running.flags & 1) << 11);
        self.predictor.set_top(running.returns);
        let changed = (self.flags ^ (running.interrupts | running.access_control)) & (flags::IF | flags::AC);
        if changed != 0 {
            self.flags ^= changed;
            if changed & flags::AC != 0 {
                self.access_changed();
            }
        }
        // The host's MXCSR is the one for compiled code.
        self.vector.loaded = NOT_LOADED;
    }
}

/// Runs one instruction by its handler, the `LAST` of its block or another one. Returns the area's [`Running`] if translated
/// code goes on, else null.
///
/// # Safety
/// Called by translated code that was entered with this context; `op` is one of its operations.
pub unsafe extern "sysv64" fn slow<const LAST: bool>(context: *mut Context, op: *const Op) -> *mut Running {
    // SAFETY: as our caller promises, nobody else uses the context, the processor or the cache meanwhile; handlers do not change
    // operations.
    let (context, cpu, cache, op) = unsafe {
        let context = &mut *context;
        let (cpu, cache) = (context.cpu, context.cache);
        (context, &mut *cpu, &mut *cache, &*op)
    };
    cpu.leave_area(context, cache);
    cpu.rip = op.next;
    cpu.ilen = op.len;
    match (op.exec)(cpu, op) {
        Ok(Flow::Next) if !LAST => cpu.prepare_area(cache, context),
        Ok(_) => {
            if !LAST {
                let (index, at) = cache.block_of(number_of(cache, op));
                cpu.uncharge(cache, index, context.origin, at + 1);
            }
            cpu.go_on(cache, context)
        }
        Err(_) => {
            cpu.rip = op.rip();
            let (index, at) = cache.block_of(number_of(cache, op));
            cpu.uncharge(cache, index, context.origin, at);
            cpu.after_fault(cache);
            std::ptr::null_mut()
        }
    }
}

/// The number of one of the cache's operations.
fn number_of(cache: &BlockCache, op: &Op) -> u32 {
    ((std::ptr::from_ref(op).addr() - cache.ops.as_ptr().addr()) / size_of::<Op>()) as u32
}
