//! Caches, and the time for which the core waits for memory.
//!
//! **What a hit changes: nothing.** Lines of the first level are replaced in turn, so that the fast path, which knows a
//! part of the lines that are there, need not report hits, and any part of the truth gives the same time. All accesses that miss
//! the first level come here, and so the other levels replace the least recently used line. The third level has what the
//! second has replaced.
//!
//! **What a miss costs.** The core goes on while a line is on its way, until its reorder buffer is full, after the *window*
//! of the profile; then it waits for the line. In detail, for a miss at time `now`:
//!
//! - The load was *issued* at `now`. If the core has waited for another miss less than a window ago, the load was already
//!   in the reorder buffer then, and was issued earlier by that wait: independent misses overlap.
//! - A load whose address comes from a line that is itself on its way is issued when that line arrives: a chain of pointers or of
//!   indices pays for each. The address counts as such if the code computes it from what the earlier instruction has loaded
//!   (`chains.rs`), or if the line contains a pointer to its neighbourhood.
//! - The line arrives after the latency of its level, and the core waits from `now` plus the window until then.
//! - A line that the prefetchers have asked for (`prefetch.rs`) has arrived.
//! - A line that an instruction has asked for (`asked.rs`) arrives after its latency from then on.
//! - Nobody waits for a store. One with a non-temporal hint goes past the caches (`combining.rs`), unless the first level has its line.
//! - Lines come one after the other: each occupies the way from its level for the time of a transfer, and one of the fill buffers for
//!   its latency. The core waits if the backlog exceeds what the buffers hold.
//! - Lines that go to the same set of the first level come one after the other too, each after a time of the level that it is from
//!   (`same_set.rs`).
//! - Changed lines that leave the caches have a way of their own to memory, which carries a line in the same time. A line that is
//!   written therefore takes as long as one that is read. Non-temporal stores take the way of the loads: reading and streaming add up.

mod asked;
mod chains;
pub mod code;
mod combining;
mod prefetch;
mod same_set;
pub mod shared;
mod tags;
mod translation;
mod waits;

use asked::Asked;
use chains::Chains;
use code::Front;
use combining::Combining;
use ledger::caches::{Caches, DeviceWrites, Level};
use ledger::{Kind, Ticks};
use prefetch::Prefetchers;
use same_set::SameSet;
use serde::{Deserialize, Serialize};
use shared::{Notice, Shared};
use tags::{InTurn, Recent};
use translation::Translations;
use waits::Waits;

/// Log2 of the size of a line.
pub const LINE_SHIFT: u8 = 6;

/// Number of lines of the guest-physical address space.
const LINES: u64 = 1 << (52 - LINE_SHIFT);

/// Number of misses that are remembered for the dependence of later ones.
const REMEMBERED: usize = 8;
/// Distance from a pointer up to which an address counts as that of what the pointer points to.
const NEIGHBOURHOOD: u64 = 512;
/// Lowest pointer: small values are numbers.
const LOWEST_POINTER: u64 = 4096;

/// An access that missed the first level.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Guest-physical address divided by the size of a line.
    pub line: u64,
    /// Linear address.
    pub linear: u64,
    /// True for a store.
    pub write: bool,
    /// True for an access of a locked instruction.
    pub locked: bool,
    /// Address of the instruction.
    pub rip: u64,
    /// Time of the access.
    pub now: Ticks,
    /// Time at which the run of instructions began, plus what events and misses have charged since.
    pub began: Ticks,
}

/// Outcome of a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// Slot of the first level that has the line now, instead of another one.
    pub slot: usize,
    /// Kind of event.
    pub kind: Kind,
    /// Time for which the core waits.
    pub ticks: Ticks,
}

/// The origin of a line of data.
struct Brought {
    /// True if another processor had changed it.
    theirs: bool,
    /// Time until which another processor keeps the line for accesses of its own.
    kept: Ticks,
    /// Number of the level, or [`Kind::PROCESSOR`].
    level: u32,
    /// Its latency.
    latency: Ticks,
    /// Time of a transfer from there.
    transfer: Ticks,
    /// Time for each of many lines from there to the same set of the first level.
    same_set: Ticks,
}

/// A line on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Coming {
    line: u64,
    arrives: Ticks,
    /// Address of the instruction that loads.
    rip: u64,
}

/// Caches of one processor, and what is on its way to them.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    l1d: InTurn,
    /// The way of code.
    pub(crate) front: Front,
    l2: Recent,
    /// The state that the processors of the machine share, while this processor holds it.
    shared: Box<Shared>,
    /// The processor's number.
    number: usize,
    prefetchers: Prefetchers,
    asked: Asked,
    /// The last misses.
    coming: [Coming; REMEMBERED],
    newest: u8,
    chains: Chains,
    combining: Combining,
    /// The waits for data, of which instructions within a window after them know nothing.
    waits: Waits,
    /// Time of the last miss's access with its wait, and the time at which the last of the lines that were missed in the same
    /// run arrives.
    last: (Ticks, Ticks),
    /// Time at which the way from memory, or from another level, is free.
    free: Ticks,
    /// Time at which the way of changed lines to memory is free.
    back: Ticks,
    /// Lines on their way to each set of the first level.
    same_set: SameSet,
    translations: Translations,
}

/// Reads the 64 bytes of a line, by its guest-physical address divided by 64.
pub type ReadLine<'a> = &'a dyn Fn(u64) -> Option<[u64; 8]>;

impl Memory {
    /// Creates empty caches for a processor, which holds what it shares with no other one.
    pub fn new(caches: &Caches, number: usize) -> Self {
        Self {
            l1d: InTurn::new(&caches.l1d),
            front: Front::new(&caches.code),
            l2: Recent::new(&caches.l2),
            shared: Box::new(Shared::new(caches)),
            number,
            prefetchers: Prefetchers::default(),
            asked: Asked::default(),
            coming: [Coming::default(); REMEMBERED],
            newest: 0,
            chains: Chains::default(),
            combining: Combining::default(),
            waits: Waits::default(),
            last: (0, 0),
            free: 0,
            back: 0,
            same_set: SameSet::new(caches),
            translations: Translations::default(),
        }
    }

    /// Returns true if a state at a time, which may come from a file, is possible for caches of these sizes. A line on its way
    /// or a queue for the way to memory beyond what the core waits for would let a miss cost more than [`Self::most`].
    ///
    /// In a saved state of `processors` the first one holds what they share.
    pub fn fits(&self, caches: &Caches, clock: Ticks, number: usize, processors: usize) -> bool {
        self.number == number
            && self.shared.fits(caches, number == 0, processors)
            && self.l1d.fits(&caches.l1d)
            && self.front.fits(&caches.code, clock)
            && self.l2.fits(&caches.l2)
            && self.prefetchers.fits()
            && self.asked.fits(caches, clock)
            && usize::from(self.newest) < REMEMBERED
            && self.chains.fits()
            && self.combining.fits()
            && self.translations.fits(caches, clock)
            && self.waits.fits(clock)
            && self.same_set.fits(caches, clock + reach(caches))
            && self.free.max(self.back) <= clock + reach(caches)
            && self.last.0 <= clock
            && self.last.1 <= clock + caches.window
            && self.coming.iter().all(|coming| coming.line < LINES && coming.arrives <= clock + caches.window)
    }

    /// Makes this processor the one that holds what so many processors share; `others` are theirs.
    pub fn share<'a>(&mut self, processors: usize, others: impl Iterator<Item = &'a mut Self>) {
        self.shared.of(processors);
        others.for_each(|other| *other.shared = Shared::default());
    }

    /// Gives what the processors share to another one.
    pub fn lend(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.shared, &mut other.shared);
    }

    /// Notes that a turn of this processor ends at `now`.
    pub fn end_turn(&mut self, now: Ticks) {
        self.shared.end_turn(self.number, now);
    }

    /// Returns how long turns that begin at `now` should be, because processors contend for lines; `None` if they do not.
    pub fn turn(&self, caches: &Caches, now: Ticks) -> Option<Ticks> {
        self.shared.contention().is_seen(now).then_some(there_and_back(caches))
    }

    /// Takes notice of what other processors have done. Calls `hide` for each slot of the first level of which the fast path
    /// knows too much.
    pub fn take_notice(&mut self, mut hide: impl FnMut(usize)) {
        for notice in self.shared.notices(self.number) {
            let (Notice::Taken(line) | Notice::Read(line)) = notice;
            let slot = self.l1d.find(line);
            slot.into_iter().for_each(&mut hide);
            match notice {
                Notice::Taken(_) => {
                    slot.into_iter().for_each(|slot| self.l1d.drop(slot));
                    self.l2.take(line);
                    self.asked.take(line);
                }
                Notice::Read(_) => {
                    slot.into_iter().for_each(|slot| self.l1d.clean(slot));
                    self.l2.clean(line);
                }
            }
        }
    }

    /// Returns the slot of a line in the first level.
    #[inline]
    pub fn find(&self, line: u64) -> Option<usize> {
        self.l1d.find(line)
    }

    /// Stores to the line in a slot of the first level, at `now`. If other processors may have it, returns the time until a locked
    /// instruction has it.
    #[inline]
    pub fn change(&mut self, caches: &Caches, line: u64, slot: usize, now: Ticks) -> Option<Ticks> {
        if self.l1d.is_changed(slot) {
            return None;
        }
        let kept = self.shared.take(line, self.number, now);
        self.l1d.change(slot);
        kept.map(|until| wait_until(caches, now, until) + caches.between_cores)
    }

    /// Returns true if the line in a slot of the first level has been changed.
    #[inline]
    pub fn is_changed(&self, slot: usize) -> bool {
        self.l1d.is_changed(slot)
    }

    /// Returns how long the lines are still on their way that were missed in the present run of instructions: `now` is the time
    /// at which the run began, plus what events and misses have charged since.
    pub fn outstanding(&self, now: Ticks) -> Ticks {
        if self.last.0 >= now { self.last.1.saturating_sub(now) } else { 0 }
    }

    /// Returns the most that a miss costs: the latency of memory, or what is behind in the way from memory, which is the
    /// latency of another line before this miss. The miss itself may send two changed lines to memory.
    pub fn most(caches: &Caches) -> Ticks {
        let cores = there_and_back(caches);
        2 * caches.memory_latency.max(caches.between_cores) + 3 * caches.memory_transfer + caches.window + cores
    }

    /// Asks the host for what [`Self::miss`] needs to know of a line: most of its time is that of the host's own cache misses.
    #[inline]
    pub fn expect(&self, line: u64) {
        self.l2.expect(line);
        self.shared.l3.iter().for_each(|l3| l3.expect(line));
    }

    /// Handles an access that missed the first level.
    pub fn miss(&mut self, caches: &Caches, access: Access, read: ReadLine) -> Miss {
        let prefetched = self.prefetchers.observe(access.line, access.linear, access.rip);
        let Brought { theirs, kept, level, latency, transfer, same_set } =
            self.bring(caches, access.line, access.write, access.now);
        let kept = if access.locked { kept } else { 0 };
        // No prefetcher asks for a line that another processor has just changed.
        let prefetched = prefetched && !theirs;
        let asked = self.asked.take(access.line).filter(|_| !prefetched && !theirs);
        let slot = self.fill(caches, access);
        // A load that follows a store gets the stored value.
        let on_its_way = prefetched || asked.is_some();
        // The second level has what a prefetcher has brought.
        let same_set = if on_its_way { same_set.min(caches.l2.same_set) } else { same_set };
        let arrives = match (access.write && !access.locked, on_its_way) {
            (true, _) => access.now,
            (_, true) => self.address_known(&access).unwrap_or(access.now).max(asked.unwrap_or(0)),
            (_, false) => self.issued(caches, &access, read) + wait_until(caches, access.now, kept) + latency,
        };
        // Instructions behind a locked one do not begin before it has ended.
        let window = if access.locked { 0 } else { caches.window };
        let wait = arrives.saturating_sub(access.now + window);
        let backlog = self.transfer(caches, access.now, latency, transfer, on_its_way);
        let ticks = wait.max(backlog).max(self.in_set(caches, access.line, access.now, latency, same_set));
        self.remember(&access, ticks, arrives);
        self.wait(caches, access.now, ticks);
        Miss { slot, kind: Kind::cache_miss(false, level, on_its_way), ticks }
    }

    /// Handles an instruction that asks for a line, `write` with the intention to change it. Returns the kind of event and the time for
    /// which the core waits, if the first level does not have the line.
    pub fn ask(&mut self, caches: &Caches, line: u64, write: bool, now: Ticks) -> Option<(Kind, Ticks)> {
        if self.l1d.find(line).is_some() || self.asked.has(line) {
            return None;
        }
        let Brought { level, latency, transfer, same_set, .. } = self.bring(caches, line, write, now);
        let backlog = self.transfer(caches, now, latency, transfer, false);
        let ticks = backlog.max(self.in_set(caches, line, now, latency, same_set));
        self.asked.add(line, now + latency);
        self.wait(caches, now, ticks);
        Some((Kind::cache_miss(false, level, false), ticks))
    }

    /// Handles CLFLUSH and CLFLUSHOPT, or with `keep` CLWB, of a line: memory has it then. Returns the slot of the first level that had
    /// it, and the time for which the core waits.
    pub fn flush(&mut self, caches: &Caches, line: u64, keep: bool, now: Ticks) -> (Option<usize>, Ticks) {
        let slot = self.l1d.find(line);
        let mut changed = slot.is_some_and(|slot| self.l1d.is_changed(slot));
        if keep {
            slot.into_iter().for_each(|slot| self.l1d.clean(slot));
            changed |= self.l2.clean(line);
            changed |= self.shared.l3.as_mut().is_some_and(|l3| l3.clean(line));
        } else {
            slot.into_iter().for_each(|slot| self.l1d.drop(slot));
            changed |= self.l2.take(line).1;
            changed |= self.shared.l3.as_mut().is_some_and(|l3| l3.take(line).1);
            self.asked.take(line);
            changed |= self.shared.drop_line(line, self.number);
        }
        if changed {
            self.send(caches, now);
        }
        let ticks = self.behind(caches, now);
        self.wait(caches, now, ticks);
        (slot, ticks)
    }

    /// Handles a non-temporal store at `now` to a line that the first level does not have: the line goes to memory, together with other
    /// stores to it (write combining, SDM volume 3, 13.3.1), and no cache has it then. Returns the time for which the core waits.
    pub fn stream(&mut self, caches: &Caches, line: u64, now: Ticks) -> Ticks {
        if self.combining.has(line) {
            return 0;
        }
        self.combining.add(line);
        self.l2.take(line);
        if let Some(l3) = &mut self.shared.l3 {
            l3.take(line);
        }
        self.asked.take(line);
        self.shared.drop_line(line, self.number);
        self.free = self.free.max(now) + caches.memory_stream;
        let ticks = self.behind(caches, now);
        self.wait(caches, now, ticks);
        ticks
    }

    /// A device has written a line: the caches of cores no longer have it.
    pub fn device_write(&mut self, caches: &Caches, line: u64) {
        self.shared.device_write(line);
        if let Some(l3) = &mut self.shared.l3 {
            l3.take(line);
            if caches.device_writes == DeviceWrites::L3 {
                l3.add(line, true);
            }
        }
    }

    /// Notes that the line of an access, for which the core waits, arrives at a time.
    fn remember(&mut self, access: &Access, ticks: Ticks, arrives: Ticks) {
        let Access { line, rip, now, began, .. } = *access;
        if self.coming[usize::from(self.newest)].line != line {
            self.newest = (self.newest + 1) % REMEMBERED as u8;
        }
        self.coming[usize::from(self.newest)] = Coming { line, arrives, rip };
        let with = if self.last.0 >= began { self.last.1 } else { 0 };
        self.last = (now + ticks, arrives.max(with));
    }

    /// Brings a line of code to the first level at `now`. Returns the kind of event, the time for which the core waits, and
    /// the line that leaves the first level.
    pub fn miss_code(&mut self, caches: &Caches, line: u64, now: Ticks) -> (Kind, Ticks, Option<u64>) {
        let (level, latency, transfer) = self.fetch(caches, line, now);
        let old = self.front.fill(line);
        let ticks = self.front.arrival(caches, line, now, latency, transfer).max(self.behind(caches, now));
        self.front.waits.add(now, ticks, caches.code.ahead);
        (Kind::cache_miss(true, level, false), ticks, old)
    }

    /// Brings data to the second level, `write` to change it: from another processor that has changed it, or from the level that has
    /// it.
    fn bring(&mut self, caches: &Caches, line: u64, write: bool, now: Ticks) -> Brought {
        let theirs = self.shared.read(line, self.number);
        let taken = if write { self.shared.take(line, self.number, now) } else { None };
        let (level, latency, transfer) = self.fetch(caches, line, now);
        let same_set = match level {
            2 => caches.l2.same_set,
            Kind::MEMORY => caches.memory_same_set,
            _ => caches.l3.map_or(0, |l3| l3.same_set),
        };
        let (level, latency) = if theirs { (Kind::PROCESSOR, caches.between_cores) } else { (level, latency) };
        Brought { theirs, kept: taken.unwrap_or(0), level, latency, transfer, same_set }
    }

    /// Finds the level that has a line at `now`, and takes the line from there. Returns the number of the level, its latency, and the
    /// time of a transfer.
    fn fetch(&mut self, caches: &Caches, line: u64, now: Ticks) -> (u32, Ticks, Ticks) {
        if self.l2.touch(line) {
            return (2, caches.l2.latency, caches.l2.transfer);
        }
        let (found, changed) = self.shared.l3.as_mut().map_or((false, false), |l3| l3.take(line));
        self.second(caches, line, changed, now);
        match caches.l3 {
            Some(Level { latency, transfer, .. }) if found => (3, latency, transfer),
            _ => (Kind::MEMORY, caches.memory_latency, caches.memory_transfer),
        }
    }

    /// Adds a line to the second level, whose oldest line goes to the third, whose oldest goes to memory.
    fn second(&mut self, caches: &Caches, line: u64, changed: bool, now: Ticks) {
        let Some(old) = self.l2.add(line, changed) else { return };
        if old.changed {
            self.shared.gone(old.line, self.number);
        }
        let gone = match &mut self.shared.l3 {
            Some(l3) => l3.add(old.line, old.changed),
            None => Some(old),
        };
        if gone.is_some_and(|gone| gone.changed) {
            self.send(caches, now);
        }
    }

    /// Sends a changed line to memory.
    fn send(&mut self, caches: &Caches, now: Ticks) {
        self.back = self.back.max(now) + caches.memory_transfer;
    }

    /// Adds a line to the first level. Returns its slot.
    fn fill(&mut self, caches: &Caches, access: Access) -> usize {
        self.combining.end(access.line);
        let (slot, old) = self.l1d.add(access.line, access.write);
        if let Some(old) = old.filter(|old| old.changed)
            && !self.l2.change(old.line)
        {
            self.second(caches, old.line, true, access.now);
        }
        slot
    }

    /// Returns the loads whose lines are on their way when an access is made, and of which it is not known whether its address depends on
    /// them, by the addresses of the instructions.
    pub fn unknown_chains(&self, caches: &Caches, access: &Access) -> impl Iterator<Item = u64> {
        let later = self.later(self.waits.without(access.now, caches.window));
        let to = access.rip;
        later.map(|coming| coming.rip).filter(move |from| self.chains.find(*from, to).is_none())
    }

    /// Remembers whether the address of an access depends on a load.
    pub fn learn_chain(&mut self, load: u64, access: u64, depends: bool) {
        self.chains.learn(load, access, depends);
    }

    /// Returns the lines that arrive after a time.
    fn later(&self, time: Ticks) -> impl Iterator<Item = &Coming> {
        self.coming.iter().filter(move |coming| coming.arrives > time)
    }

    /// Returns the time at which a load was issued.
    fn issued(&self, caches: &Caches, access: &Access, read: ReadLine) -> Ticks {
        let own = self.waits.without(access.now, caches.window);
        let own = self.address_known(access).map_or(own, |known| own.max(known.min(access.now + caches.window)));
        // The line of this access is on its way since its address was translated, and nothing was loaded from it.
        let leads = |coming: &&Coming| {
            coming.line != access.line
                && (self.chains.find(coming.rip, access.rip) == Some(true)
                    || points_to(coming.line, access.linear, read))
        };
        self.later(own).filter(leads).map(|coming| coming.arrives).max().unwrap_or(own)
    }

    /// Returns the time at which the address of an access was known, if it has just been translated.
    fn address_known(&self, access: &Access) -> Option<Ticks> {
        let Translations { line, known, .. } = self.translations;
        (line == access.line).then_some(known)
    }

    /// Returns the time for which the core waits at `now`, because lines occupy one of the ways for longer than the core goes on.
    fn behind(&self, caches: &Caches, now: Ticks) -> Ticks {
        self.free.max(self.back).saturating_sub(now).saturating_sub(reach(caches))
    }

    /// Occupies the way from a level. Returns the time for which the core waits, because more lines are on their way
    /// than the fill buffers hold.
    fn transfer(&mut self, caches: &Caches, now: Ticks, latency: Ticks, transfer: Ticks, prefetched: bool) -> Ticks {
        let buffer = if prefetched { 0 } else { latency / Ticks::from(caches.fill_buffers) };
        self.free = self.free.max(now) + buffer.max(transfer);
        (self.free - now).saturating_sub(latency.max(caches.window)).max(self.behind(caches, now))
    }

    /// A line occupies its set of the first level. Returns the time for which the core waits, because the set's lines take longer than it goes on.
    fn in_set(&mut self, caches: &Caches, line: u64, now: Ticks, latency: Ticks, same_set: Ticks) -> Ticks {
        self.same_set.add(caches, line, now, same_set, latency.max(caches.window).min(reach(caches)))
    }

    /// The core waits for data. Meanwhile its front end goes on.
    fn wait(&mut self, caches: &Caches, now: Ticks, ticks: Ticks) {
        self.waits.add(now, ticks, caches.window);
        self.front.waits.add(now, ticks, caches.code.ahead);
    }
}

/// Returns the time for which lines may occupy a way before the core waits for that.
fn reach(caches: &Caches) -> Ticks {
    caches.window.max(caches.memory_latency)
}

/// Returns the time that a line takes to another processor and back.
fn there_and_back(caches: &Caches) -> Ticks {
    2 * caches.between_cores
}

/// Returns how long a locked instruction waits at `now` for a line that another processor keeps until a time.
fn wait_until(caches: &Caches, now: Ticks, until: Ticks) -> Ticks {
    until.saturating_sub(now).min(there_and_back(caches))
}

/// Returns true if a line has a pointer to the neighbourhood of an address.
fn points_to(line: u64, linear: u64, read: ReadLine) -> bool {
    let near = |pointer: u64| {
        pointer >= LOWEST_POINTER && linear.wrapping_sub(pointer).wrapping_add(NEIGHBOURHOOD / 2) < NEIGHBOURHOOD
    };
    let narrow = |word: u64| linear >> 32 == 0 && (near(word & 0xffff_ffff) || near(word >> 32));
    read(line).is_some_and(|words| words.iter().any(|word| near(*word) || narrow(*word)))
}

#[cfg(test)]
mod asked_tests;
#[cfg(test)]
mod code_tests;
#[cfg(test)]
mod shared_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod translation_tests;
