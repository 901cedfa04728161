//! The main loop: finds a block, charges it, executes its operations, and handles events between blocks.

use crate::access::Access;
use crate::arch::{NOT_LOADED, attention};
use crate::blocks::{Derived, MAX_BLOCK, key};
use crate::bus::Ident;
use crate::cache::Cache;
use crate::decode::{MAX_LENGTH, operation};
use crate::decoded::operations;
use crate::fault::{Cause, Exec, Flow};
use crate::mode;
use crate::op::Timed;
use crate::op::{Form, Op};
use crate::saved::SavedBlock;
use crate::state::Cpu;
use crate::table;
use crate::time::{Place, Runs, START};
use crate::translate::Before;
use crate::translate::BlockCache;
use crate::usage::NONE;
use iced_x86::Instruction;
use ledger::{Class, Family, Kind, OriginId, Ticks};
use x86::control::CR4_CET;
use x86::debug::{DR6_BS, DR7_ENABLED};
use x86::msr::DEBUGCTL_BTF;
use x86::page::PAGE;
use x86::vmx::activity;
use x86::{flags, seg};

/// Reason for which [`Cpu::run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The deadline has been reached.
    Deadline,
    /// A device was accessed: timers and interrupt lines may have changed.
    Bus,
    /// HLT: the processor waits for an interrupt.
    Halt,
    /// An INIT signal that VMX operation had blocked resets the processor.
    Init,
    /// A guest of the machine's own hypervisor waits for a start-up signal.
    WaitForStartup,
    /// MWAIT: the processor waits for an interrupt or a write to the monitored line.
    Mwait {
        /// True if interrupts wake the processor even if they are masked.
        masked: bool,
    },
    /// Triple fault.
    Shutdown,
    /// VM exit: [`vm_exit`](crate::arch::Arch::vm_exit) has the details. The processor is in root mode.
    Vm,
    /// The next instruction has a probe: [`Cpu::take_probe`] returns it. The instruction is executed when the processor
    /// runs again.
    Probe,
    /// A debugger stops the processor: see [`crate::stops`].
    Debug,
    /// A sample is due: see [`crate::sampling`]. The processor continues at the same instruction.
    Sample,
}

impl Cpu {
    /// Runs until an event that concerns the board, or until `deadline`.
    pub fn run(&mut self, cache: &mut BlockCache, deadline: Ticks) -> Exit {
        self.follow_tally(cache);
        if let Some(stops) = self.engine.stopping.stops.clone() {
            return self.run_debugged(cache, deadline, &stops);
        }
        self.arrive(deadline);
        self.run_on(cache)
    }

    /// Runs after the preparation by [`Cpu::arrive`].
    #[inline(always)]
    pub(crate) fn run_on(&mut self, cache: &mut BlockCache) -> Exit {
        // The host's code may have changed the MXCSR flags in the meantime.
        self.arch.vector.loaded = NOT_LOADED;
        let mut before = NONE;
        let mut led = Before::Nothing;
        loop {
            if self.micro.clock >= self.engine.stop_at {
                led = Before::Nothing;
                if let Some(exit) = self.between_blocks(cache) {
                    return exit;
                }
                // The event may have caused another one that precedes the next block (a trap after a single step).
                if self.micro.clock >= self.engine.stop_at {
                    continue;
                }
            }
            match self.next_block(cache, before, led) {
                Some(index) => {
                    if cache.code.blocks[index as usize].probe && self.stops_at_probe() {
                        return Exit::Probe;
                    }
                    if self.run_translated(cache, before, index, &mut led) {
                        before = NONE;
                    } else {
                        led = Before::Nothing;
                        self.run_block(cache, index);
                        before = index;
                    }
                }
                None => {
                    led = Before::Nothing;
                    before = NONE;
                }
            }
        }
    }

    /// Prepares to run until `deadline`.
    pub(crate) fn arrive(&mut self, deadline: Ticks) {
        self.engine.deadline = deadline;
        if self.arch.cr4 & CR4_CET != 0 {
            self.follow_tracker();
        }
        self.engine.stop_at = if self.arch.attention == 0 && !self.arch.vmx.active { self.next_stop() } else { 0 };
        // Another processor may have decoded code or armed a monitor in the meantime.
        self.follow_marks();
    }

    /// Returns the block at RIP, or `None` if the fetch faulted (the fault is delivered).
    #[inline(always)]
    pub(crate) fn next_block(&mut self, cache: &mut BlockCache, before: u32, led: Before) -> Option<u32> {
        self.engine.ilen = 0;
        let mode = self.engine.mode;
        let linear = if mode & 3 == mode::BITS64 {
            self.arch.rip
        } else {
            self.arch.seg[seg::CS as usize].base.wrapping_add(self.arch.rip) & 0xffff_ffff
        };
        if self.engine.fetch.page != linear & !(PAGE - 1) && self.enter_page(linear).is_err() {
            self.deliver_fetch_fault();
            return None;
        }
        let physical = self.engine.fetch.physical | (linear & (PAGE - 1));
        let key = key(mode, self.micro.run);
        let found = match led {
            Before::Head { index } if cache.code.is(index, physical, self.arch.rip, key) => Some(index),
            _ => cache.find(before, physical, self.arch.rip, key),
        };
        let found = found.or_else(|| self.decode_waiting(cache, physical, self.arch.rip, key));
        if let Some(index) = found {
            let block = &cache.code.blocks[index as usize];
            if mode & 3 == mode::BITS64 || (block.second == 0 && self.within_limit(u64::from(block.len))) {
                if block.second == 0 {
                    return Some(index);
                }
                return self.check_second(cache, index, linear);
            }
            if block.second != 0 {
                return self.check_second(cache, index, linear);
            }
        }
        self.build(cache, linear, physical, mode)
    }

    fn within_limit(&self, len: u64) -> bool {
        self.arch.rip + len - 1 <= u64::from(self.arch.seg[seg::CS as usize].limit)
    }

    /// Checks a block whose instruction crosses pages: it is valid only while the second page has the same translation.
    #[cold]
    fn check_second(&mut self, cache: &mut BlockCache, index: u32, linear: u64) -> Option<u32> {
        let next_page = (linear & !(PAGE - 1)).wrapping_add(PAGE);
        let next_page = if self.engine.long64 { next_page } else { next_page & 0xffff_ffff };
        let privilege = self.privilege();
        let limit_ok = self.engine.long64 || self.within_limit(u64::from(cache.code.blocks[index as usize].len));
        let fetched = match limit_ok {
            true => self.translate(next_page, Access::Fetch, privilege),
            false => Err(self.gp(0)),
        };
        match fetched {
            Ok((physical, _)) if physical == cache.code.blocks[index as usize].second => Some(index),
            Ok(_) => {
                let page = cache.code.blocks[index as usize].physical & !(PAGE - 1);
                let line = 1 << 63;
                cache.code.invalidate(page, line, &self.wiring.ram);
                None
            }
            Err(_) => {
                self.deliver_fetch_fault();
                None
            }
        }
    }

    /// Executes a block and charges it.
    #[inline(always)]
    pub(crate) fn run_block(&mut self, cache: &mut BlockCache, index: u32) {
        if self.wiring.model.recorded {
            cache.count(index, self.engine.origin, &mut self.wiring.recorder);
        }
        // The block is charged to this origin, even if its instructions change the origin.
        let origin = self.engine.origin;
        self.enter_block(cache, index);
        self.run_operations(cache, index, origin, 0);
    }

    /// Charges a block as if it were executed completely.
    #[inline(always)]
    pub(crate) fn enter_block(&mut self, cache: &BlockCache, index: u32) {
        let block = &cache.code.blocks[index as usize];
        if self.has_lines() {
            self.note_block(cache, index);
        }
        if self.notes_begin(&cache.code.runs, block.context()) {
            self.micro.recent.begin(block.physical);
        }
        self.micro.clock += block.cost;
        self.micro.run = block.after;
    }

    /// Returns true if mispredictions cost what the condition of the branch waits for.
    #[inline]
    pub(crate) fn follows_runs(&self) -> bool {
        self.wiring.model.recorded && self.micro.predictor.predicts_directions()
    }

    /// Returns true if [`Recent`](crate::time::recent::Recent) notes the begin of instructions that follow the context `place`, because a run begins with them.
    #[inline]
    pub(crate) fn notes_begin(&self, runs: &Runs, place: Place) -> bool {
        self.follows_runs() && runs.begins(place)
    }

    /// Notes how much has been charged since the begin of the run, all of a block included.
    fn note_block(&mut self, cache: &BlockCache, index: u32) {
        self.engine.ahead = self.charged_ahead(cache, index);
    }

    /// Returns how much has been charged since the begin of the run when all of a block has been charged.
    pub(crate) fn charged_ahead(&self, cache: &BlockCache, index: u32) -> Ticks {
        let block = &cache.code.blocks[index as usize];
        block.cost + cache.code.runs.elapsed(block.context())
    }

    /// Notes how much of a block, all of which has been charged, is that of an operation and those behind it.
    pub(crate) fn note_operation(&mut self, cache: &BlockCache, index: u32, at: usize) {
        self.note_block(cache, index);
        self.engine.rest = cache.code.rests_of(index)[at];
        self.note_accesses(&cache.code.ops_of(index)[at]);
    }

    /// Notes what kind of accesses an operation makes.
    #[inline]
    fn note_accesses(&mut self, op: &Op) {
        (self.engine.locked, self.engine.streams) = op.accesses();
    }

    /// Executes the operations of a block from `first` on, where caches are modelled: each access has its time, and, unless it
    /// is known that this changes nothing, each instruction asks for its line of code. Returns false if one of them faulted; the
    /// fault has been handled.
    #[inline(never)]
    fn run_timed(&mut self, cache: &mut BlockCache, index: u32, origin: OriginId, first: usize) -> bool {
        let asks = self.models_code() && !self.knows_block(cache, index, first);
        let ops = cache.code.ops_of(index).iter().zip(cache.code.rests_of(index));
        for (i, (op, rest)) in ops.enumerate().skip(first) {
            self.arch.rip = op.next;
            self.engine.ilen = op.len;
            self.engine.rest = *rest;
            self.note_accesses(op);
            if asks {
                self.ask_for(op, cache.code.blocks[index as usize].at(op));
            }
            let ran = (op.exec)(self, op);
            if !matches!(ran, Ok(Flow::Next)) {
                return self.end_block(cache, index, origin, i, ran);
            }
        }
        true
    }

    /// Executes the operations of a block from `first` on. Returns false if one of them faulted; the fault has been
    /// handled.
    #[inline(always)]
    pub(crate) fn run_operations(
        &mut self,
        cache: &mut BlockCache,
        index: u32,
        origin: OriginId,
        first: usize,
    ) -> bool {
        if self.has_lines() {
            return self.run_timed(cache, index, origin, first);
        }
        for (i, op) in cache.code.ops_of(index).iter().enumerate().skip(first) {
            self.arch.rip = op.next;
            self.engine.ilen = op.len;
            let ran = (op.exec)(self, op);
            if !matches!(ran, Ok(Flow::Next)) {
                return self.end_block(cache, index, origin, i, ran);
            }
        }
        true
    }

    /// Continues after operation `at` of a block, and executes the rest unless the block has ended. Returns false after
    /// a fault, which has been handled.
    pub(crate) fn finish_block(
        &mut self,
        cache: &mut BlockCache,
        index: u32,
        origin: OriginId,
        at: usize,
        ran: Exec<Flow>,
    ) -> bool {
        match ran {
            Ok(Flow::Next) => {
                self.micro.run = cache.code.blocks[index as usize].after;
                self.run_operations(cache, index, origin, at + 1)
            }
            _ => self.end_block(cache, index, origin, at, ran),
        }
    }

    /// Returns the context after operation `at` of a block, which has ended the block.
    #[inline(always)]
    pub(crate) fn place_after(&self, cache: &BlockCache, index: u32, at: usize) -> Place {
        let op = &cache.code.ops_of(index)[at];
        if self.leads_on(op) { cache.code.blocks[index as usize].after } else { START }
    }

    /// Returns true if an operation has ended a run behind which the next one has a context of its own: a conditional branch that was not taken,
    /// a direct call, or a return that was predicted.
    #[inline(always)]
    fn leads_on(&self, op: &Op) -> bool {
        match op.class {
            Class::Branch => self.arch.rip == op.next,
            Class::Call => true,
            Class::Return => self.engine.returned,
            _ => false,
        }
    }

    /// Ends a block at operation `at`, which ended it or faulted: the rest is not charged. Returns false if it faulted;
    /// the fault has been handled.
    #[inline(always)]
    pub(crate) fn end_block(
        &mut self,
        cache: &mut BlockCache,
        index: u32,
        origin: OriginId,
        at: usize,
        ran: Exec<Flow>,
    ) -> bool {
        if ran.is_ok() {
            self.micro.run = self.place_after(cache, index, at);
            if at + 1 != cache.code.ops_of(index).len() {
                self.uncharge(cache, index, origin, at + 1);
            }
            return true;
        }
        self.arch.rip = cache.code.ops_of(index)[at].rip();
        self.micro.run = self.place_in(cache, index, at);
        self.uncharge(cache, index, origin, at);
        self.after_fault(cache);
        false
    }

    /// Replaces the charge of a whole block by that of its first `done` operations.
    #[cold]
    #[inline(never)]
    pub(crate) fn uncharge(&mut self, cache: &mut BlockCache, index: u32, origin: OriginId, done: usize) {
        if self.wiring.model.recorded {
            cache.uncount(index, origin);
        }
        let block = &cache.code.blocks[index as usize];
        if done == 0 && self.notes_begin(&cache.code.runs, block.context()) {
            self.micro.recent.undo();
        }
        self.micro.clock -= block.cost;
        (self.engine.ahead, self.engine.rest) = (0, 0);
        (self.engine.locked, self.engine.streams) = (false, false);
        let rip = block.rip;
        for (op, ticks) in cache.code.ops_of(index).iter().zip(cache.code.ticks_of(index)).take(done) {
            self.micro.clock += ticks;
            if self.wiring.model.recorded {
                self.put(origin, rip, Kind::new(Family::Instruction, op.class as u32), 1, ticks);
            }
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn after_fault(&mut self, cache: &mut BlockCache) {
        match self.engine.fault {
            Cause::CodeWrite => {
                self.engine.fault = Cause::None;
                self.engine.code_write_allowed = true;
                self.step(cache);
                self.engine.code_write_allowed = false;
            }
            Cause::Counters => _ = self.restart_settled(cache),
            _ => {
                self.engine.ilen = 0;
                self.deliver_fault();
            }
        }
    }

    /// Ends the turn, after which the instruction at RIP restarts; a debugger has seen it already.
    fn give_way(&mut self) {
        self.engine.deadline = 0;
        self.engine.stop_at = 0;
        if self.engine.stopping.stops.is_some() {
            self.seen();
        }
    }

    /// Executes exactly one instruction, which is decoded for this purpose. Returns true if it completed without a
    /// fault.
    pub fn step<D: Derived>(&mut self, cache: &mut Cache<D>) -> bool {
        self.engine.ilen = 0;
        let mode = self.engine.mode;
        let linear = self.code_linear();
        let completed = match self.fetch_operation(cache, linear, mode) {
            Ok((timed, ends)) => {
                let mut op = timed.op;
                self.engine.stepped = op.class;
                let (price, after) =
                    cache.code.runs.price_one(&self.wiring.model.prices(), self.micro.run, timed.step(), ends);
                op.set_price(price);
                let ticks = u64::from(price.ticks);
                (self.engine.ahead, self.engine.rest) = (cache.code.runs.elapsed(self.micro.run), 0);
                self.note_accesses(&op);
                let begins = self.notes_begin(&cache.code.runs, self.micro.run);
                if begins {
                    self.micro.recent.begin(self.engine.fetch.physical | (linear & (PAGE - 1)));
                }
                self.engine.late = ticks;
                self.ask_for_stepped(&op, linear);
                let kind = Kind::new(Family::Instruction, op.class as u32);
                let expected = match self.arch.attention & attention::ENDBRANCH {
                    0 => Ok(()),
                    _ => self.expect_endbranch(&op),
                };
                let ran = expected.and_then(|()| op.execute(self));
                self.engine.late = 0;
                match ran {
                    Ok(flow) => {
                        self.micro.clock += ticks;
                        let leads_on = flow == Flow::Next || self.leads_on(&op);
                        self.micro.run = if leads_on { after } else { START };
                        if self.wiring.model.recorded {
                            self.put(self.engine.origin, op.rip(), kind, 1, ticks);
                        }
                        true
                    }
                    Err(_) => {
                        self.arch.rip = op.rip();
                        if begins {
                            self.micro.recent.undo();
                        }
                        false
                    }
                }
            }
            Err(_) => false,
        };
        if !completed {
            if self.engine.fault == Cause::CodeWrite {
                // Only a step that forbids the write gets here: it is repeated with the write allowed.
                self.engine.fault = Cause::None;
                self.engine.code_write_allowed = true;
                let completed = self.step(cache);
                self.engine.code_write_allowed = false;
                return completed;
            }
            if self.engine.fault == Cause::Counters {
                return self.restart_settled(cache);
            }
            self.engine.ilen = 0;
            self.deliver_fault();
        }
        self.drop_written_code(cache);
        completed
    }

    /// Fetches and decodes one instruction, unless the same bytes were decoded there before. Also returns true if it ends
    /// its block.
    fn fetch_operation<D: Derived>(&mut self, cache: &mut Cache<D>, linear: u64, mode: u8) -> Exec<(Timed, bool)> {
        if mode & 3 != mode::BITS64 || linear & (PAGE - 1) > PAGE - MAX_LENGTH as u64 {
            let (instruction, _) = self.fetch_instruction(linear, mode)?;
            let (op, ends) = self.operation_of(&instruction, mode);
            return Ok((Timed { op, instruction }, ends));
        }
        if self.engine.fetch.page != linear & !(PAGE - 1) {
            self.enter_page(linear)?;
        }
        let physical = self.engine.fetch.physical | (linear & (PAGE - 1));
        let mut bytes = [0u8; MAX_LENGTH];
        let in_ram = self.backing(physical).is_some_and(|backing| self.wiring.ram.read_bytes(backing, &mut bytes));
        if in_ram && let Some(op) = cache.used.stepped(linear, &bytes) {
            return Ok(op);
        }
        let (instruction, _) = self.fetch_at(linear, physical, mode)?;
        let (op, ends) = self.operation_of(&instruction, mode);
        let operation = (Timed { op, instruction }, ends);
        if in_ram {
            cache.used.note_stepped(linear, bytes, operation);
        }
        Ok(operation)
    }

    /// Returns the linear address of the next instruction.
    pub fn code_linear(&self) -> u64 {
        if self.engine.long64 {
            self.arch.rip
        } else {
            self.arch.seg[seg::CS as usize].base.wrapping_add(self.arch.rip) & 0xffff_ffff
        }
    }

    /// Drops decoded code that has been written.
    pub fn drop_written_code<D: Derived>(&mut self, cache: &mut Cache<D>) {
        self.arch.attention &= !attention::CODE;
        for (page, written) in std::mem::take(&mut self.engine.code_writes) {
            cache.code.invalidate(page, written, &self.wiring.ram);
        }
    }

    /// Fetches and decodes the instruction at `linear`. Also returns the guest-physical page of its second part if it
    /// crosses into another page, else 0.
    fn fetch_instruction(&mut self, linear: u64, mode: u8) -> Exec<(Instruction, u64)> {
        if self.engine.fetch.page != linear & !(PAGE - 1) {
            self.enter_page(linear)?;
        }
        self.fetch_at(linear, self.engine.fetch.physical | (linear & (PAGE - 1)), mode)
    }

    /// Fetches and decodes the instruction at `linear`, whose page has been translated: the first byte is at
    /// `physical`.
    pub(crate) fn fetch_at(&mut self, linear: u64, physical: u64, mode: u8) -> Exec<(Instruction, u64)> {
        let offset = linear & (PAGE - 1);
        let mut bytes = [0u8; MAX_LENGTH];
        let here = ((PAGE - offset) as usize).min(MAX_LENGTH);
        self.fetch_bytes(physical, &mut bytes[..here]);
        let limit = u64::from(self.arch.seg[seg::CS as usize].limit);
        if mode & 3 != mode::BITS64 && self.arch.rip > limit {
            return Err(self.gp(0));
        }
        let (instruction, second) = match Self::decode_one(&bytes[..here], self.arch.rip, mode) {
            Ok(instruction) => (instruction, 0),
            Err(_) => {
                let next = (linear & !(PAGE - 1)).wrapping_add(PAGE);
                let next = if self.engine.long64 { next } else { next & 0xffff_ffff };
                if self.engine.long64 && !self.canonical(next) {
                    return Err(self.gp(0));
                }
                let privilege = self.privilege();
                let (physical, _) = self.translate(next, Access::Fetch, privilege)?;
                self.fetch_bytes(physical, &mut bytes[here..]);
                // All fifteen bytes are available, so the decoder can't need more.
                let instruction = Self::decode_one(&bytes, self.arch.rip, mode).unwrap_or_default();
                (instruction, physical)
            }
        };
        if mode & 3 != mode::BITS64 && self.arch.rip + instruction.len().max(1) as u64 - 1 > limit {
            return Err(self.gp(0));
        }
        if instruction.is_invalid() && instruction.len() >= MAX_LENGTH {
            return Err(self.gp(0));
        }
        Ok((instruction, second))
    }

    /// Reads code bytes from RAM, or from the bus outside of RAM.
    fn fetch_bytes(&mut self, physical: u64, out: &mut [u8]) {
        let read = self.backing(physical).is_some_and(|backing| self.wiring.ram.read_bytes(backing, out));
        if !read {
            let who: Ident = self.ident();
            let mut bus = self.wiring.bus();
            for (i, byte) in out.iter_mut().enumerate() {
                *byte = bus.read(who, physical + i as u64, 1) as u8;
            }
        }
    }

    /// Returns the instruction as decoded by this model; invalid if the model lacks it.
    pub(crate) fn as_model(&self, instruction: Instruction) -> Instruction {
        table::view(self.wiring.features, &instruction).unwrap_or_else(|| {
            let mut unknown = instruction;
            unknown.set_code(iced_x86::Code::INVALID);
            unknown
        })
    }

    /// Returns the operation of an instruction on this model, and true if it ends its block. An instruction that the
    /// model lacks keeps its name, under which it is counted.
    pub fn operation_of(&self, instruction: &Instruction, mode: u8) -> (Op, bool) {
        let (mut op, ends) = operation(&self.as_model(*instruction), mode);
        if op.form.code() == iced_x86::Code::INVALID as u16 {
            op.form = Form::of(instruction);
        }
        (op, ends)
    }

    /// Decodes a block at the current instruction.
    #[cold]
    #[inline(never)]
    fn build(&mut self, cache: &mut BlockCache, linear: u64, physical: u64, mode: u8) -> Option<u32> {
        let start = self.arch.rip;
        let mut run: Vec<Timed> = Vec::with_capacity(MAX_BLOCK);
        let mut at = linear;
        let (mut second, mut ended) = (0, false);
        loop {
            let fetched = self.fetch_instruction(at, mode);
            let (instruction, crosses) = match fetched {
                Ok(found) => found,
                // The block ends before an instruction that cannot be fetched; if that is the first one, it faults now.
                Err(_) if run.is_empty() => {
                    self.arch.rip = start;
                    self.deliver_fetch_fault();
                    return None;
                }
                Err(_) => {
                    self.engine.fault = Cause::None;
                    break;
                }
            };
            if crosses != 0 && !run.is_empty() {
                break;
            }
            let (op, ends) = self.operation_of(&instruction, mode);
            run.push(Timed { op, instruction });
            self.arch.rip = op.next;
            at = self.code_linear();
            (second, ended) = (crosses, ends);
            let page_end = at & !(PAGE - 1) != linear & !(PAGE - 1);
            if ends || page_end || run.len() == MAX_BLOCK || cache.code.probes.contains(self.arch.rip) {
                break;
            }
        }
        self.arch.rip = start;
        // The fetch may have moved to another page.
        self.engine.fetch.leave();
        if self.enter_page(linear).is_err() {
            self.deliver_fetch_fault();
            return None;
        }
        let probe = cache.code.probes.contains(start);
        let context = self.micro.run;
        let block = SavedBlock { physical, rip: start, second, mode, context, probe, count: run.len() as u32, len: 0 };
        let block = self.describe_block(block, &mut run, ended, &mut cache.code.runs);
        if self.wiring.ram.visible_page(physical).is_none() {
            // Code outside of RAM is not cached, because changes of it can't be noticed.
            if self.stops_here(cache) {
                return None;
            }
            self.step(cache);
            return None;
        }
        let index = cache.insert(block, &operations(&run), &self.wiring.ram, &mut self.wiring.recorder);
        self.follow_marks();
        Some(index)
    }

    /// Handles the events before the next block: traps, interrupts, invalidations, exits.
    #[cold]
    #[inline(never)]
    pub(crate) fn between_blocks(&mut self, cache: &mut BlockCache) -> Option<Exit> {
        self.engine.ilen = 0;
        (self.engine.ahead, self.engine.rest) = (0, 0);
        (self.engine.locked, self.engine.streams) = (false, false);
        if self.arch.attention & attention::CODE != 0 {
            self.drop_written_code(cache);
        }
        if self.sample_due() {
            return Some(Exit::Sample);
        }
        self.look_at_counters(cache);
        if self.arch.attention & attention::VM_EXIT != 0 {
            self.arch.attention &= !attention::VM_EXIT;
            self.engine.stopping.exited = true;
            if self.arch.vmx.operation.is_on() {
                self.settle_before_exit(cache);
                self.exit_to_software();
                self.follow_tally(cache);
                return None;
            }
            return Some(Exit::Vm);
        }
        let blocks_init = self.arch.vmx.active || self.arch.vmx.operation.is_on();
        if self.arch.attention & attention::INIT != 0 && !blocks_init {
            // The INIT that VMX operation had blocked.
            self.arch.attention &= !attention::INIT;
            return Some(Exit::Init);
        }
        if self.arch.attention & attention::SHUTDOWN != 0 {
            self.arch.attention &= !attention::SHUTDOWN;
            return Some(Exit::Shutdown);
        }
        if self.arch.attention & attention::BUS != 0 {
            self.arch.attention &= !attention::BUS;
            return Some(Exit::Bus);
        }
        if self.monitor_trap() {
            return None;
        }
        let shadow = self.arch.attention & (attention::STI_SHADOW | attention::SS_SHADOW);
        if self.arch.attention & attention::DEBUG != 0 && shadow & attention::SS_SHADOW == 0 {
            // A debug exception ends HLT and MWAIT.
            self.arch.attention &= !(attention::DEBUG | attention::HALT | attention::MWAIT | attention::MWAIT_MASKED);
            let dr6 = std::mem::take(&mut self.arch.pending_dr6);
            self.debug_trap(dr6);
            self.deliver_fault();
            return None;
        }
        if self.arch.attention & attention::HALT != 0 {
            self.arch.attention &= !(attention::HALT | shadow);
            if !self.arch.vmx.active {
                return Some(Exit::Halt);
            }
            self.arch.vmx.activity = activity::HLT;
        }
        if self.arch.attention & attention::MWAIT != 0 {
            let masked = self.arch.attention & attention::MWAIT_MASKED != 0;
            self.arch.attention &= !(attention::MWAIT | attention::MWAIT_MASKED | shadow);
            return Some(Exit::Mwait { masked });
        }
        if self.arch.vmx.active {
            if self.guest_events(shadow) {
                return None;
            }
            match self.arch.vmx.activity {
                activity::ACTIVE => {}
                activity::WAIT_FOR_SIPI => return Some(Exit::WaitForStartup),
                _ => return Some(Exit::Halt),
            }
        } else if shadow == 0 {
            if self.arch.attention & attention::NMI != 0 && !self.arch.nmi_blocked {
                self.arch.attention &= !attention::NMI;
                self.deliver_nmi();
                return None;
            }
            if self.arch.attention & attention::INTR != 0 && self.arch.flags & flags::IF != 0 {
                let who = self.ident();
                let acknowledged = self.wiring.bus().acknowledge(who);
                match acknowledged {
                    Some(vector) => {
                        self.deliver_interrupt(vector);
                        self.attend(attention::BUS);
                        return None;
                    }
                    None => self.arch.attention &= !attention::INTR,
                }
            }
        }
        if self.micro.clock >= self.engine.deadline {
            return Some(Exit::Deadline);
        }
        if self.arch.attention & (attention::STEP | attention::ENDBRANCH) != 0 || shadow != 0 || self.traps_monitored()
        {
            if cache.code.probes.contains(self.arch.rip) && self.stops_at_probe() {
                return Some(Exit::Probe);
            }
            if self.stops_here(cache) {
                return Some(Exit::Debug);
            }
            self.step_attended(cache, shadow);
            return None;
        }
        let waiting = attention::NMI | attention::INTR | attention::INIT;
        self.engine.stop_at =
            if self.arch.attention & !waiting != 0 { 0 } else { self.next_stop().min(self.arch.vmx.timer_at) };
        None
    }

    /// Returns true if no event precedes the next block: the result of [`Cpu::between_blocks`] in its simplest case.
    /// Executes the instruction after STI if necessary.
    pub(crate) fn goes_on(&mut self, cache: &mut BlockCache) -> bool {
        let waiting = attention::NMI | attention::INTR;
        let plain = self.arch.attention & !waiting == attention::STI_SHADOW && !self.arch.vmx.active;
        let stops = cache.code.probes.contains(self.arch.rip) || cache.code.breakpoints.contains(self.code_linear());
        if plain && self.micro.clock < self.next_stop() && !stops {
            self.engine.ilen = 0;
            self.step_attended(cache, attention::STI_SHADOW);
        }
        if self.engine.stop_at == 0 && !self.arch.vmx.active {
            let ready = if self.arch.flags & flags::IF == 0 { attention::INTR } else { 0 };
            if self.arch.attention & !ready == 0 {
                self.engine.stop_at = self.next_stop();
            }
        }
        self.micro.clock < self.engine.stop_at
    }

    /// Executes one instruction alone because of an interrupt shadow, TF, RF or an instruction breakpoint.
    fn step_attended(&mut self, cache: &mut BlockCache, shadow: u32) {
        let traced = self.arch.flags & flags::TF != 0;
        let resume = self.arch.flags & flags::RF != 0;
        // MOV SS defers instruction breakpoints on Intel processors only.
        if !resume && (shadow & attention::SS_SHADOW == 0 || self.wiring.capabilities.amd) {
            let hit = self.instruction_breakpoint();
            if hit != 0 {
                self.debug_trap(hit);
                self.deliver_fault();
                return;
            }
        }
        self.arch.attention &= !shadow;
        self.arch.vmx.shadow = shadow;
        self.arch.single_step = traced;
        let start = self.arch.rip;
        let completed = self.step(cache);
        if traced && self.arch.msr.debugctl & DEBUGCTL_BTF != 0 && !self.has_branched(start) {
            self.arch.single_step = false;
        }
        self.arch.vmx.shadow = 0;
        self.arch.vmx.trap_pending |= self.traps_monitored();
        if completed {
            if resume {
                self.arch.flags &= !flags::RF;
            }
            // MOV SS and POP SS suppress their own trap completely.
            if self.arch.single_step && self.arch.attention & attention::SS_SHADOW == 0 {
                self.arch.pending_dr6 |= DR6_BS;
                self.attend(attention::DEBUG);
            }
        }
        if self.arch.flags & (flags::TF | flags::RF) == 0 && !self.breakpoints_enabled() {
            self.arch.attention &= !attention::STEP;
        }
        self.engine.stop_at = 0;
    }

    /// Returns true if the instruction at `start`, which has been executed alone, was a taken branch.
    fn has_branched(&self, start: u64) -> bool {
        use Class::*;
        let class = self.engine.stepped;
        let next = start.wrapping_add(u64::from(self.engine.ilen));
        match class {
            Jump | Call | Return | IndirectJump | IndirectCall => true,
            String | StringStep => false,
            _ => self.arch.rip != if self.engine.long64 { next } else { next & 0xffff_ffff },
        }
    }

    /// Returns true if DR7 enables any breakpoint. Instructions are then executed one at a time, so that instruction
    /// breakpoints are checked before each, and traps of data breakpoints follow immediately.
    pub fn breakpoints_enabled(&self) -> bool {
        self.arch.dr[7] & DR7_ENABLED != 0
    }

    /// Returns the DR6 bits of instruction breakpoints at the next instruction.
    pub(crate) fn instruction_breakpoint(&self) -> u64 {
        let linear = self.code_linear();
        (0..4)
            .filter(|i| {
                let enabled = self.arch.dr[7] >> (2 * i) & 3 != 0;
                enabled && self.arch.dr[7] >> (16 + 4 * i) & 3 == 0 && self.arch.dr[*i as usize] == linear
            })
            .fold(0, |bits, i| bits | 1 << i)
    }

    /// Delivers the fault in [`fault`](crate::engine::Engine::fault).
    pub(crate) fn deliver_fault(&mut self) {
        match std::mem::take(&mut self.engine.fault) {
            Cause::Exception(vector, code) => self.deliver_exception(vector, code),
            Cause::Ahead => self.give_way(),
            Cause::Shutdown => self.shut_down(),
            Cause::VmExit => self.instruction_exit(),
            Cause::None | Cause::CodeWrite | Cause::Counters | Cause::Iteration => {
                debug_assert!(false, "no fault to deliver")
            }
        }
    }

    /// Delivers a fault of a fetch, between two blocks: the accesses of the delivery are made now, and not within the block before.
    fn deliver_fetch_fault(&mut self) {
        (self.engine.ahead, self.engine.rest) = (0, 0);
        (self.engine.locked, self.engine.streams) = (false, false);
        self.deliver_fault();
    }

    /// Passes the counts of blocks to the recorder, whose totals are complete afterwards.
    pub fn record_counts(&mut self, cache: &mut BlockCache) {
        cache.spill_all(&mut self.wiring.recorder);
    }
}
