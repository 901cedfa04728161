//! Lines of code in the modelled caches, and branches that the modelled front end knows: the way of instructions into
//! [`crate::time::memory`].
//!
//! **The rule.** An instruction asks for the line in which it begins, before it is executed. A branch that is taken asks whether the
//! front end knows the branches of its line: an unconditional one before it is executed, a conditional one when it is taken.
//! Both are questions to tables in which a hit changes nothing. Therefore it does not matter how often they are asked,
//! and an engine may leave out every question whose answer it knows: whether the line is that of the instruction before, or one of
//! [`KnownCode`](crate::known_code::KnownCode).
//!
//! **Time.** The time of a question is that before the instruction. A block is charged when it is entered, so that the rest of the
//! block, from the instruction on, is subtracted: prices are marginal ([`crate::time`]), and the result does not depend on where
//! blocks are cut.

use crate::known_code::{Question, always_branches};
use crate::op::Op;
use crate::state::Cpu;
use crate::time::memory::LINE_SHIFT;
use crate::time::memory::code::{Entries, branch_key};
use crate::translate::BlockCache;
use ledger::{Family, Kind, Ticks};
use x86::page::PAGE;

impl Cpu {
    /// Returns true if the way of code is modelled.
    #[inline(always)]
    pub(crate) fn models_code(&self) -> bool {
        self.engine.known_code.is_modelled()
    }

    /// Asks for the line of an instruction at a guest-physical address, and whether its branch is known if it always branches.
    #[inline]
    pub(crate) fn ask_for(&mut self, op: &Op, physical: u64) {
        let line = physical >> LINE_SHIFT;
        if !self.engine.known_code.has(Question::line(line)) {
            self.look_for_line(line);
        }
        if always_branches(op.class) {
            self.ask_for_branch(op);
        }
    }

    /// Returns true if it is known that no question of a block, from an instruction on, is answered by no; the instructions
    /// are at these guest-physical addresses.
    #[inline]
    pub(crate) fn knows_code(&self, first: u64, last: u64, op: &Op) -> bool {
        let mut lines = first >> LINE_SHIFT..=last >> LINE_SHIFT;
        lines.all(|line| self.engine.known_code.has(Question::line(line)))
            && (!always_branches(op.class) || self.engine.known_code.has(Question::branch(op.rip(), op.branches_far())))
    }

    /// Returns true if it is known that no question of a block, from operation `first` on, is answered by no.
    #[inline]
    pub(crate) fn knows_block(&self, cache: &BlockCache, index: u32, first: usize) -> bool {
        let block = &cache.code.blocks[index as usize];
        let ops = cache.code.ops_of(index);
        let (Some(first), Some(last)) = (ops.get(first), ops.last()) else { return true };
        self.knows_code(block.at(first), block.at(last), last)
    }

    /// Asks for the line of an instruction that is executed alone, if it is in RAM.
    pub(crate) fn ask_for_stepped(&mut self, op: &Op, linear: u64) {
        let physical = self.engine.fetch.physical | (linear & (PAGE - 1));
        if self.models_code() && self.wiring.ram.visible_page(physical).is_some() {
            (self.arch.rip, self.engine.ilen) = (op.next, op.len);
            self.ask_for(op, physical);
            (self.arch.rip, self.engine.ilen) = (op.rip(), 0);
        }
    }

    /// Asks for an operation of a block, which [`Self::note_operation`] has noted.
    #[inline]
    pub(crate) fn ask_for_operation(&mut self, cache: &BlockCache, index: u32, at: usize) {
        let op = &cache.code.ops_of(index)[at];
        self.ask_for(op, cache.code.blocks[index as usize].at(op));
    }

    /// Looks for a line of code, by its guest-physical address divided by 64.
    #[inline(never)]
    fn look_for_line(&mut self, line: u64) {
        if self.engine.emulation.is_some() {
            return;
        }
        let now = self.micro.clock.saturating_sub(self.engine.rest);
        if let Some((kind, ticks)) = self.bring_code(line, now) {
            self.charge_ticks(kind, 1, ticks);
        }
    }

    /// Brings a line of code to the first level at `now`, if it is not there. Returns the kind of event, and the time for which the
    /// core waits.
    #[inline]
    pub(crate) fn bring_code(&mut self, line: u64, now: Ticks) -> Option<(Kind, Ticks)> {
        let (memory, caches) = (self.micro.memory.as_mut()?, self.wiring.model.geometry.caches.as_ref()?);
        self.engine.known_code.add(Question::line(line));
        if memory.front.has(line) {
            return None;
        }
        let (kind, ticks, old) = memory.miss_code(caches, line, now);
        if let Some(old) = old {
            self.engine.known_code.remove(Question::line(old));
        }
        Some((kind, ticks))
    }

    /// Asks whether the branches of an instruction's line are known, and charges for one that is not.
    #[inline]
    pub(crate) fn ask_for_branch(&mut self, op: &Op) {
        if !self.engine.known_code.has(Question::branch(op.rip(), op.branches_far())) {
            self.look_for_branch(op);
        }
    }

    #[inline(never)]
    fn look_for_branch(&mut self, op: &Op) {
        if self.engine.emulation.is_some() {
            return;
        }
        let (Some(memory), Some(caches)) = (&mut self.micro.memory, &self.wiring.model.geometry.caches) else { return };
        let (key, branches) = (branch_key(op.rip()), &caches.code.branches);
        let entries = Entries::of(op.branches_far(), branches);
        if !memory.front.knows(key, entries) {
            for old in memory.front.learn(key, entries).into_iter().flatten() {
                self.engine.known_code.remove(Question::key(old, false));
                self.engine.known_code.remove(Question::key(old, true));
            }
            let (price, known): (Ticks, bool) = (branches.table.latency, memory.front.knows(key, entries));
            self.charge_ticks(Kind::new(Family::UnknownBranch, 0), 1, price);
            // Sets of one way have no room for two entries.
            if !known {
                return;
            }
        }
        self.engine.known_code.add(Question::branch(op.rip(), op.branches_far()));
    }

    /// Notes that the front end begins anew after an event of this kind, which has been charged.
    #[inline]
    pub(crate) fn redirect(&mut self, kind: Kind) {
        if let Some(memory) = &mut self.micro.memory
            && kind.family.redirects()
        {
            let began = self.micro.clock + self.engine.late;
            match kind.family {
                Family::UnknownBranch => memory.front.turned = began,
                _ => memory.front.redirected = began,
            }
        }
    }
}
