//! Accesses to lines of the modelled caches.
//!
//! An access that the fast path does not know finds its lines in the first-level cache, or charges a miss ([`crate::time::memory`]).
//! Afterwards the fast path knows the line, until it leaves the cache or its page the TLB. The fast path therefore never has a line
//! that is not in the cache, and a hit changes nothing.
//!
//! A line is on the fast path under one linear address at a time, so that it can be removed.
//!
//! **The time of an access** is that before its instruction: a block is charged when it is entered, so that the rest of the block,
//! from the instruction on, is subtracted. As prices are marginal, this does not depend on where blocks are cut.

use crate::front::{KnownPage, Mapped, Mode, Tables};
use crate::ram::Ram;
use crate::state::Cpu;
use crate::time::memory::{Access, LINE_SHIFT, Memory, Miss};
use ledger::caches::{Caches, LINE};
use ledger::{Family, Kind, Ticks};
use x86::page::PAGE;

/// Returns the first line of a range of bytes, and the number of its lines.
fn range(address: u64, size: u64) -> (u64, u64) {
    let (first, last) = (address >> LINE_SHIFT, (address + size.max(1) - 1) >> LINE_SHIFT);
    (first, last - first + 1)
}

/// Reads lines of RAM, in which the model of time looks for pointers.
pub(crate) fn read_lines(ram: &Ram) -> impl Fn(u64) -> Option<[u64; 8]> {
    |line: u64| ram.read::<[u64; 8]>(line << LINE_SHIFT).map(|words| words.map(u64::from_le))
}

impl Cpu {
    /// Returns true if caches are modelled.
    #[inline]
    pub(crate) fn has_lines(&self) -> bool {
        !self.engine.exposed.is_empty()
    }

    /// Returns true if an access is in one line, or caches are not modelled.
    #[inline]
    pub(crate) fn in_one_line(&self, linear: u64, size: u64) -> bool {
        !self.has_lines() || linear % LINE + size <= LINE
    }

    /// Accesses bytes of a page of RAM: lines that the first-level cache does not have are charged.
    pub(crate) fn reach_lines(&mut self, physical: u64, linear: u64, size: u64, write: bool) {
        if self.engine.emulation.is_some() {
            return;
        }
        let (first, count) = range(physical, size);
        for line in first..first + count {
            if self.slot_of(line, write).is_some() {
                continue;
            }
            match self.engine.streams {
                true => self.stream_line(line),
                false => _ = self.miss_line(line, linear.wrapping_add((line - first) * LINE), write),
            }
        }
    }

    /// Returns true if an access to one line certainly costs less than `room`.
    pub(crate) fn has_room_for(&self, physical: u64, write: bool, room: Ticks) -> bool {
        let Some(memory) = &self.micro.memory else { return true };
        self.has_room_at(memory, memory.find(physical >> LINE_SHIFT), write, room)
    }

    /// Returns true if an access to one line, whose slot in the first-level cache is `found`, certainly costs less than `room`.
    fn has_room_at(&self, memory: &Memory, found: Option<usize>, write: bool, room: Ticks) -> bool {
        found.is_some_and(|slot| self.is_free(memory, slot, write)) || self.costs_less(room, Memory::most)
    }

    /// Returns true if an access to the line in a slot certainly costs nothing: it needs nothing from other processors, or
    /// nobody waits for that, nor observes it.
    fn is_free(&self, memory: &Memory, slot: usize, write: bool) -> bool {
        !write || memory.is_changed(slot) || !self.engine.locked && self.wiring.observer.is_none()
    }

    /// Returns true if a question for code ([`crate::code_lines`]) certainly costs less than `room`.
    pub(crate) fn may_ask(&self, room: Ticks) -> bool {
        self.costs_less(room, |caches| Memory::most(caches) + caches.code.transfer + caches.code.branches.table.latency)
    }

    /// Returns true if `most`, the most that something costs, is less than `room`, and nobody observes charges.
    fn costs_less(&self, room: Ticks, most: impl FnOnce(&Caches) -> Ticks) -> bool {
        self.wiring.model.geometry.caches.as_ref().map_or(0, most) < room && self.wiring.observer.is_none()
    }

    /// Accesses bytes of a line in a page that the TLB has, and adds the line to the fast path: a short way for most
    /// accesses that the fast path does not know. Returns their host address; `None` if another way is needed, or if the
    /// access may cost `room` or more, and nothing has changed then.
    pub(crate) fn reach_known(
        &mut self,
        mode: Mode,
        linear: u64,
        size: u64,
        write: bool,
        room: Ticks,
    ) -> Option<*mut u8> {
        self.reach_known_by(mode, linear, size, write, room, |cpu, kind, ticks| cpu.charge_ticks(kind, 1, ticks))
    }

    /// Does the same with another way to charge for a miss.
    #[inline(always)]
    pub(crate) fn reach_known_by(
        &mut self,
        mode: Mode,
        linear: u64,
        size: u64,
        write: bool,
        room: Ticks,
        charge: impl FnOnce(&mut Self, Kind, Ticks),
    ) -> Option<*mut u8> {
        if !self.has_lines() || linear % LINE + size > LINE || self.engine.emulation.is_some() || self.engine.streams {
            return None;
        }
        let KnownPage { host, physical, writable, mapped } = self.engine.front.page(mode, linear, size, write)?;
        let line = physical >> LINE_SHIFT;
        let memory = self.micro.memory.as_ref()?;
        let found = memory.find(line);
        if found.is_none() {
            memory.expect(line);
        }
        if !self.has_room_at(memory, found, write, room) {
            return None;
        }
        let slot = match found {
            Some(slot) => self.found(line, slot, write),
            None => {
                let Miss { slot, kind, ticks } = self.bring_line(line, linear, write)?;
                charge(self, kind, ticks);
                slot
            }
        };
        self.expose_slot(mode, slot, &Exposed { physical, linear, host, writable, mapped });
        Some(host as *mut u8)
    }

    /// Returns the time of an access of the current instruction, and the time at which its run began, plus what events and misses
    /// have charged since.
    pub(crate) fn time_of_access(&self) -> (Ticks, Ticks) {
        let clock = self.micro.clock;
        (clock.saturating_sub(self.engine.rest), clock.saturating_sub(self.engine.ahead))
    }

    /// Returns the slot of a line in the first-level cache, if it is there. A store takes it from other processors.
    #[inline]
    fn slot_of(&mut self, line: u64, write: bool) -> Option<usize> {
        let slot = self.micro.memory.as_ref()?.find(line)?;
        Some(self.found(line, slot, write))
    }

    /// Accesses a line in a slot of the first-level cache. A store takes it from other processors.
    #[inline]
    fn found(&mut self, line: u64, slot: usize, write: bool) -> usize {
        if write && self.micro.memory.as_ref().is_some_and(|memory| !memory.is_changed(slot)) {
            self.take_line(line, slot);
        }
        slot
    }

    /// Takes a line that the first level has from other processors, for a store.
    fn take_line(&mut self, line: u64, slot: usize) {
        let (now, _) = self.time_of_access();
        let (Some(memory), Some(caches)) = (&mut self.micro.memory, &self.wiring.model.geometry.caches) else { return };
        if let Some(wait) = memory.change(caches, line, slot, now) {
            // The core waits for the answers of the others only if nothing may pass the store.
            let ticks = if self.engine.locked { wait } else { 0 };
            self.charge_ticks(Kind::cache_miss(false, Kind::PROCESSOR, false), 1, ticks);
        }
    }

    /// Sends a line that the first level does not have to memory, past the caches.
    fn stream_line(&mut self, line: u64) {
        let (now, _) = self.time_of_access();
        let (Some(memory), Some(caches)) = (&mut self.micro.memory, &self.wiring.model.geometry.caches) else { return };
        let ticks = memory.stream(caches, line, now);
        self.charge_way(ticks);
    }

    /// Charges for the time, if any, for which the core waits until lines that it sends to memory are on their way.
    fn charge_way(&mut self, ticks: Ticks) {
        if ticks != 0 {
            self.charge_ticks(Kind::cache_miss(false, Kind::MEMORY, false), 1, ticks);
        }
    }

    /// Charges for an access to data that is not in one line.
    pub(crate) fn charge_split(&mut self, linear: u64, size: u64) {
        if self.in_one_line(linear, size) {
            return;
        }
        let Some(caches) = &self.wiring.model.geometry.caches else { return };
        let pages = linear % PAGE + size > PAGE;
        let ticks = caches.splits[usize::from(pages)];
        self.charge_ticks(Kind::new(Family::Split, pages.into()), 1, ticks);
    }

    /// Asks for a line that the program says it needs soon, `write` to change it.
    pub(crate) fn ask_for_data(&mut self, physical: u64, write: bool) {
        let (now, _) = self.time_of_access();
        let (Some(memory), Some(caches)) = (&mut self.micro.memory, &self.wiring.model.geometry.caches) else { return };
        if let Some((kind, ticks)) = memory.ask(caches, physical >> LINE_SHIFT, write, now) {
            self.charge_ticks(kind, 1, ticks);
        }
    }

    /// Writes a line to memory, and removes it from the caches unless `keep`.
    pub(crate) fn flush_line(&mut self, physical: u64, keep: bool) {
        let (now, _) = self.time_of_access();
        let (Some(memory), Some(caches)) = (&mut self.micro.memory, &self.wiring.model.geometry.caches) else { return };
        let (slot, ticks) = memory.flush(caches, physical >> LINE_SHIFT, keep, now);
        slot.into_iter().for_each(|slot| self.hide(slot));
        self.charge_way(ticks);
    }

    /// A device has written bytes of a page of RAM.
    pub fn device_wrote(&mut self, physical: u64, size: u64) {
        let (Some(memory), Some(caches)) = (&mut self.micro.memory, &self.wiring.model.geometry.caches) else { return };
        let (first, count) = range(physical, size);
        (first..first + count).for_each(|line| memory.device_write(caches, line));
    }

    /// Takes notice of what other processors have done since this one's last turn.
    pub fn take_notice(&mut self) {
        let Some(memory) = &mut self.micro.memory else { return };
        let engine = &mut self.engine;
        memory.take_notice(|slot| {
            if let Some(left) = engine.exposed[slot].leave() {
                engine.front.drop_range(left);
            }
        });
    }

    /// Brings a line to the first-level cache, and charges for it. Returns the line's slot.
    #[cold]
    fn miss_line(&mut self, line: u64, linear: u64, write: bool) -> Option<usize> {
        let Miss { slot, kind, ticks } = self.bring_line(line, linear, write)?;
        self.charge_ticks(kind, 1, ticks);
        Some(slot)
    }

    /// Brings a line to the first-level cache. The caller charges for it.
    fn bring_line(&mut self, line: u64, linear: u64, write: bool) -> Option<Miss> {
        let rip = self.arch.rip.wrapping_sub(u64::from(self.engine.ilen));
        let (now, began) = self.time_of_access();
        let access = Access { line, linear, write, locked: self.engine.locked, rip, now, began };
        self.learn_chains(&access);
        let (memory, caches) = (self.micro.memory.as_mut()?, self.wiring.model.geometry.caches.as_ref()?);
        let miss = memory.miss(caches, access, &read_lines(&self.wiring.ram));
        self.hide(miss.slot);
        Some(miss)
    }

    /// Removes the line that was in a slot of the cache from the fast path.
    fn hide(&mut self, slot: usize) {
        if let Some(left) = self.engine.exposed[slot].leave() {
            self.engine.front.drop_range(left);
        }
    }

    /// Adds the line of an access to the fast path.
    pub(crate) fn expose_line(&mut self, mode: Mode, at: &Exposed) {
        let slot = self.micro.memory.as_mut().and_then(|memory| memory.find(at.physical >> LINE_SHIFT));
        if let Some(slot) = slot {
            self.expose_slot(mode, slot, at);
        }
    }

    /// Adds the line in a slot of the cache to the fast path. The line can be written there if its page may be and the cache
    /// knows that the line has changed.
    fn expose_slot(&mut self, mode: Mode, slot: usize, at: &Exposed) {
        let Exposed { linear, host, writable, mapped, .. } = *at;
        let writable = writable && self.micro.memory.as_ref().is_some_and(|memory| memory.is_changed(slot));
        let offset = linear % LINE;
        let start = linear - offset;
        if !self.engine.exposed[slot].is_at(start) {
            self.hide(slot);
        }
        self.engine.exposed[slot].add(start, Tables::of(mode, writable));
        self.engine.front.fill_line(mode, start, host - offset, writable, mapped);
    }
}

/// An access to be exposed to the fast path.
pub(crate) struct Exposed {
    /// Guest-physical address.
    pub physical: u64,
    /// Linear address.
    pub linear: u64,
    /// Address on the host.
    pub host: u64,
    /// True if the page may be written on the fast path.
    pub writable: bool,
    /// The page in the TLB.
    pub mapped: Mapped,
}
