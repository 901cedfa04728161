//! The state that the processors of a machine share: the third level, and the processor that has changed a line last.
//!
//! The processors take turns, and the one whose turn it is holds this state. What its accesses mean for the others is
//! left to them as *notices*, which each takes before it goes on: a line that another processor has changed is no longer in
//! its caches, and one that another has read is no longer its own, so that its next store asks for the line again.
//!
//! - A line that another processor has changed, and still has in its own levels, is brought from there, after the latency of the profile.
//! - A store to a line that the processor does not own takes it from all others. Nobody waits for that, unless the instruction is
//!   locked: then the core goes on when it has the line. If processors contend for the line, the other one has it until its turn ends,
//!   or for as long as the line takes to go and to come back.
//! - The owner of a line that leaves its second level no longer has it: others find it in the third.
//!
//! The table of owners has room for a number of lines; a line that the table has forgotten is in no processor's caches.
//!
//! **Contention.** A processor is ahead of the others by as much as its turn lasts, and a line that it takes is taken from a processor
//! whose time is another. Where processors hand a line to and fro, that decides how long each waits. Then turns become short: see
//! [`Contention`].

use super::tags::Recent;
use ledger::caches::Caches;
use ledger::{TICKS_PER_CYCLE, Ticks};
use serde::{Deserialize, Serialize};

/// Number of lines whose owners are known.
const LINES: usize = 1 << 15;
/// Number of an owner that is several processors, or none.
const SEVERAL: u8 = 255;
/// The most notices that wait for a processor: a multiple of the lines that it may have. It never learns of more.
const MOST_NOTICES: usize = 1 << 16;

/// A change of a processor's caches by another processor's access, or by a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// The line has been changed by another processor.
    Taken(u64),
    /// The line has been read by another processor.
    Read(u64),
}

/// The processor that has changed a line last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    /// The line plus 1; 0 for none.
    line: u64,
    /// The only processor that has it, or [`SEVERAL`].
    owner: u8,
    /// The processor that has taken it last.
    last: u8,
    /// The processor that had taken it before that one.
    before: u8,
    /// Time at which it was taken last.
    taken: Ticks,
}

const NOBODY: Owner = Owner { line: 0, owner: SEVERAL, last: SEVERAL, before: SEVERAL, taken: 0 };

/// The sign that processors contend for lines, by which turns become short.
///
/// A line that a processor takes back from the one that has taken it is a sign of contention if that happens within the time
/// `SLOW`, of which a turn of the usual length is the larger part. For a time, turns are then short, and it shows whether the line goes to
/// and fro within the time `FAST`: as long as it does, turns remain short. Otherwise they are long again, and the next attempt
/// is made after a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contention {
    /// Time until which turns are short.
    until: Ticks,
    /// Time before which no attempt is made.
    rests: Ticks,
    /// True if turns will be short when the present one has ended.
    suspected: bool,
}

/// Time in which a line comes back, if contention is suspected.
const SLOW: Ticks = 50_000 * TICKS_PER_CYCLE;
/// Time in which it comes back, if processors do contend.
const FAST: Ticks = 4_000 * TICKS_PER_CYCLE;
/// Time for which turns are short.
const SHORT: Ticks = 20_000 * TICKS_PER_CYCLE;
/// Time between the begins of two attempts.
const REST: Ticks = 16 * SHORT;

impl Contention {
    /// Returns true if turns that begin at `now` should be short.
    pub fn is_seen(&self, now: Ticks) -> bool {
        now < self.until
    }

    /// Notes that a line has come back at `now` after `age`.
    fn came_back(&mut self, now: Ticks, age: Ticks) {
        if age < FAST {
            self.until = now + SHORT;
            self.rests = now;
        } else if age < SLOW && now >= self.rests {
            self.suspected = true;
            self.rests = now + REST;
        }
    }

    /// Notes that a turn ends at `now`.
    fn end_turn(&mut self, now: Ticks) {
        if std::mem::take(&mut self.suspected) {
            self.until = now + SHORT;
        }
    }
}

/// What the processors of a machine share.
#[derive(Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct Shared {
    pub(super) l3: Option<Recent>,
    /// For a machine of several processors, the owners of lines, by the line modulo the length.
    owners: Vec<Owner>,
    /// For each processor, what it has to take notice of, also of devices.
    notices: Vec<Vec<Notice>>,
    contention: Contention,
    /// For each processor, the time at which its last turn ended.
    ended: Vec<Ticks>,
}

impl Shared {
    /// Creates the state of a machine with one processor.
    pub fn new(caches: &Caches) -> Self {
        Self { l3: caches.l3.as_ref().map(Recent::new), notices: vec![Vec::new()], ..Self::default() }
    }

    /// Makes this the state of a machine with so many processors.
    pub fn of(&mut self, processors: usize) {
        if processors > 1 {
            self.owners = vec![NOBODY; LINES];
            self.notices.resize(processors, Vec::new());
            self.ended = vec![0; processors];
        }
    }

    /// Returns true if a state at a time, which may come from a file, is possible for the processor that holds it, or for another
    /// one of a machine with so many.
    pub fn fits(&self, caches: &Caches, holds: bool, processors: usize) -> bool {
        if !holds {
            return *self == Self::default();
        }
        let l3 = match (&self.l3, &caches.l3) {
            (Some(l3), Some(level)) => l3.fits(level),
            (None, None) => true,
            _ => false,
        };
        let (lines, turns) = if processors > 1 { (LINES, processors) } else { (0, 0) };
        let possible = |owner: &Owner| owner.line <= super::LINES && owner.taken <= u64::MAX / 4;
        let line = |notice: &Notice| match notice {
            Notice::Taken(line) | Notice::Read(line) => *line < super::LINES,
        };
        l3 && (self.owners.len(), self.notices.len(), self.ended.len()) == (lines, processors.max(1), turns)
            && self.owners.iter().all(possible)
            && self.notices.iter().all(|list| list.len() <= MOST_NOTICES && list.iter().all(line))
            && self.contention.until.max(self.contention.rests) <= u64::MAX / 4
            && self.ended.iter().all(|ended| *ended <= u64::MAX / 4)
    }

    /// Returns true if there are other processors.
    pub fn has_others(&self) -> bool {
        !self.owners.is_empty()
    }

    /// Returns whether processors contend for lines.
    pub fn contention(&self) -> Contention {
        self.contention
    }

    fn owner(&mut self, line: u64) -> &mut Owner {
        let at = line as usize % LINES;
        &mut self.owners[at]
    }

    /// Processor `me` reads a line that it does not have. Returns true if another one has changed it, and has it.
    pub fn read(&mut self, line: u64, me: usize) -> bool {
        if !self.has_others() {
            return false;
        }
        let owner = self.owner(line);
        if owner.line != line + 1 || owner.owner == SEVERAL || usize::from(owner.owner) == me {
            return false;
        }
        let other = std::mem::replace(&mut owner.owner, SEVERAL);
        self.leave(other.into(), Notice::Read(line));
        true
    }

    /// Processor `me` takes a line for a store at `now`. Returns the time until which another processor keeps it for accesses of its
    /// own, or `None` if no other one may have it.
    pub fn take(&mut self, line: u64, me: usize, now: Ticks) -> Option<Ticks> {
        let number = u8::try_from(me).ok().filter(|number| self.has_others() && *number != SEVERAL)?;
        let owner = self.owner(line);
        let was = if owner.line == line + 1 { *owner } else { NOBODY };
        if was.owner == number {
            return None;
        }
        let before = if was.last == number { was.before } else { was.last };
        *owner = Owner { line: line + 1, owner: number, last: number, before, taken: now };
        // Another processor has had the line since this one took it.
        let (read, taken) = (was.last == number, was.last != number && was.before == number);
        let age = now.abs_diff(was.taken);
        if read || taken {
            self.contention.came_back(now, age);
        }
        self.take_from_others(line, me);
        let kept = taken && age < FAST;
        (was.line != 0).then(|| if kept { self.ended.get(usize::from(was.last)).copied().unwrap_or(0) } else { 0 })
    }

    /// Notes that the turn of processor `me` ends at `now`.
    pub fn end_turn(&mut self, me: usize, now: Ticks) {
        if let Some(ended) = self.ended.get_mut(me) {
            *ended = now;
            self.contention.end_turn(now);
        }
    }

    /// Processor `me` no longer has a line that it has changed.
    pub fn gone(&mut self, line: u64, me: usize) {
        if self.has_others() {
            let owner = self.owner(line);
            if owner.line == line + 1 && usize::from(owner.owner) == me {
                owner.owner = SEVERAL;
            }
        }
    }

    /// Takes a line from all processors but `me`, for nobody. Returns true if another one has changed it.
    pub fn drop_line(&mut self, line: u64, me: usize) -> bool {
        self.take_from_others(line, me);
        if !self.has_others() {
            return false;
        }
        let owner = self.owner(line);
        let theirs = owner.line == line + 1 && owner.owner != SEVERAL && usize::from(owner.owner) != me;
        if owner.line == line + 1 {
            *owner = NOBODY;
        }
        theirs
    }

    /// A device has written a line.
    pub fn device_write(&mut self, line: u64) {
        // No processor has this number.
        self.drop_line(line, usize::MAX);
    }

    fn take_from_others(&mut self, line: u64, me: usize) {
        for other in (0..self.notices.len()).filter(|other| *other != me) {
            self.leave(other, Notice::Taken(line));
        }
    }

    fn leave(&mut self, number: usize, notice: Notice) {
        if let Some(notices) = self.notices.get_mut(number)
            && notices.len() < MOST_NOTICES
            && notices.last() != Some(&notice)
        {
            notices.push(notice);
        }
    }

    /// Returns what processor `me` has to take notice of.
    pub fn notices(&mut self, me: usize) -> Vec<Notice> {
        self.notices.get_mut(me).map(std::mem::take).unwrap_or_default()
    }
}
