//! A run's state as bytes, and back: what a context is.
//!
//! Nothing is lost: the price of what follows is the same after the state was encoded, wherever that happens. The state at a run's begin is
//! no bytes at all.

use super::state::{
    FURTHEST, Followed, LATEST, MOST_BEHIND, MOST_BYTES, MOST_LATE, ORIGINS, PLACE_COUNT, PREDICTED, State, UNPREDICTED,
};
use super::step::{PLACES, Place, REGS, Reg};
use crate::core::BOUNDS;

impl State {
    /// Returns the state as bytes: equal states are equal bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.bytes == 0 && self.time == 0 && self.fell == 0 && !self.called {
            return bytes;
        }
        let mut put = |number: u64| put(&mut bytes, number);
        put(u64::from(self.time));
        put(u64::from(self.unpredicted.saturating_sub(self.time)));
        put(u64::from(self.bytes));
        put(u64::from(self.fell));
        put(zigzag(self.stack));
        put(u64::from(self.engine) | u64::from(self.adds_first) << 1 | u64::from(self.called) << 2);
        put(u64::from(self.comparison));
        for store in [self.store, self.first_store] {
            put(store.map_or(0, |place| u64::from(place.base) + 1));
            put(store.map_or(0, |place| zigzag(place.displacement)));
        }
        put(u64::from(self.slots));
        self.stored.iter().for_each(|slot| put(u64::from(*slot)));
        put(u64::from(self.pairs));
        put(u64::from(self.behind));
        if self.behind > 0 {
            self.behind_at.iter().for_each(|behind| put(u64::from(*behind)));
        }
        put(self.origins.len() as u64);
        self.origins.iter().for_each(|reg| put(u64::from(*reg)));
        put(self.places.len() as u64);
        for known in &self.places {
            put(u64::from(known.reg));
            put(u64::from(known.place.base));
            put(zigzag(known.place.displacement));
            put(u64::from(known.bytes) << 2 | u64::from(known.vector) << 1 | u64::from(known.loaded));
        }
        // A bound is behind the run's time by less than the window, or unused.
        for used in &self.used {
            put(u64::from(self.time - used));
        }
        for reg in 0..REGS {
            if self.written >> reg & 1 == 0 {
                continue;
            }
            put(reg as u64 + 1);
            let late = |which: usize| u64::from(self.ready[which][reg].saturating_sub(self.time));
            let ways = &self.ways[reg];
            let same = late(PREDICTED) == late(UNPREDICTED) && ways[PREDICTED] == ways[UNPREDICTED];
            let loaded = (self.loaded >> reg & 1) as u64 | u64::from(!same) << 1;
            let from = |mask, (at, way): (usize, &u16)| mask | u64::from(*way > 0) << at;
            put(ways[PREDICTED].iter().enumerate().fold(loaded << ORIGINS, from));
            for which in if same { &[PREDICTED][..] } else { &[PREDICTED, UNPREDICTED] } {
                put(late(*which));
                ways[*which]
                    .iter()
                    .zip(&ways[PREDICTED])
                    .filter(|way| *way.1 > 0)
                    .for_each(|way| put(u64::from(*way.0)));
            }
        }
        put(0);
        bytes
    }

    /// Returns the state of which these are the bytes, which may come from a file. Returns `None` if there is no such state, or if the prices of what
    /// follows could overflow.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut state = Self::new();
        state.take(bytes)?;
        Some(state)
    }

    /// Returns the time of the state of which these are the bytes, in ticks.
    pub fn time_of(mut bytes: &[u8]) -> u32 {
        get(&mut bytes).and_then(|time| at_most(time, LATEST)).unwrap_or(0)
    }

    /// Returns true if these are the bytes of the state at a run's begin.
    pub fn begins(mut bytes: &[u8]) -> bool {
        // The time, how much later it is without predictions, and the bytes of code.
        bytes.is_empty() || [0; 3].map(|_| get(&mut bytes)) == [Some(0); 3]
    }

    /// Makes this the state of which these are the bytes, as [`State::decode`] does. After `None` the state is of no use until its next
    /// [`State::reset`].
    pub fn take(&mut self, bytes: &[u8]) -> Option<()> {
        let state = self;
        state.reset();
        if bytes.is_empty() {
            return Some(());
        }
        let mut rest = bytes;
        let mut get = || get(&mut rest);
        state.time = at_most(get()?, LATEST)?;
        state.unpredicted = state.time + at_most(get()?, MOST_LATE)?;
        state.bytes = at_most(get()?, MOST_BYTES)?;
        state.fell = at_most(get()?, MOST_BEHIND + 1)?;
        state.stack = Some(unzigzag(get()?)).filter(|stack| stack.unsigned_abs() <= FURTHEST)?;
        let flags = at_most(get()?, 7)?;
        (state.engine, state.adds_first, state.called) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
        state.comparison = u16::try_from(get()?).ok()?;
        for store in [&mut state.store, &mut state.first_store] {
            let (base, displacement) = (get()?, unzigzag(get()?));
            if let Some(base) = base.checked_sub(1) {
                *store = Some(Place { base: reg(base, true)?, displacement });
            }
        }
        state.slots = at_most(get()?, MOST_BYTES)?;
        for slot in &mut state.stored {
            *slot = at_most(get()?, state.slots + 1)?;
        }
        state.pairs = u8::try_from(get()?).ok()?;
        state.behind = at_most(get()?, state.time + MOST_LATE)?;
        if state.behind > 0 {
            for behind in &mut state.behind_at {
                *behind = at_most(get()?, state.behind)?;
            }
        }
        let origins = usize::try_from(get()?).ok().filter(|count| *count <= ORIGINS)?;
        for _ in 0..origins {
            state.origins.push(reg(get()?, true)?);
        }
        let places = usize::try_from(get()?).ok().filter(|count| *count <= PLACE_COUNT)?;
        for _ in 0..places {
            let of = reg(get()?, false).filter(|of| *of >= PLACES)?;
            let place = Place { base: reg(get()?, true)?, displacement: unzigzag(get()?) };
            let kind = get()?;
            let bytes = u8::try_from(kind >> 2).ok()?;
            // A place has been stored to where its last store is known.
            if (bytes > 0) != (state.stored[usize::from(of - PLACES)] > 0) {
                return None;
            }
            state.places.push(Followed { place, reg: of, bytes, vector: kind & 2 != 0, loaded: kind & 1 != 0 });
        }
        for bound in 0..BOUNDS {
            state.used[bound] = state.time.checked_sub(u32::try_from(get()?).ok()?)?;
        }
        loop {
            let number = get()?;
            let Some(number) = number.checked_sub(1) else { break };
            let at = usize::from(reg(number, false)?);
            state.written |= 1 << at;
            let mask = get()?;
            state.loaded |= u128::from(mask >> ORIGINS & 1) << at;
            let same = mask >> (ORIGINS + 1) & 1 == 0;
            for which in if same { &[PREDICTED][..] } else { &[PREDICTED, UNPREDICTED] } {
                state.ready[*which][at] = state.time + at_most(get()?, MOST_LATE)?;
                state.ways[at][*which] = [0; ORIGINS];
                for origin in (0..ORIGINS).filter(|origin| mask >> origin & 1 != 0) {
                    state.ways[at][*which][origin] = u16::try_from(get()?).ok()?;
                }
            }
            if same {
                state.ready[UNPREDICTED][at] = state.ready[PREDICTED][at];
                state.ways[at][UNPREDICTED] = state.ways[at][PREDICTED];
            }
        }
        rest.is_empty().then_some(())
    }
}

fn at_most(number: u64, most: u32) -> Option<u32> {
    u32::try_from(number).ok().filter(|number| *number <= most)
}

fn reg(number: u64, none: bool) -> Option<Reg> {
    let reg = Reg::try_from(number).ok()?;
    (usize::from(reg) < REGS || none && reg == Reg::MAX).then_some(reg)
}

fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn get(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
