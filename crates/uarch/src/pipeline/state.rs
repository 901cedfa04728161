//! The state of a run, and the price of its next instruction.

use super::step::{CARRY, End, MASKS, PLACES, Place, REGS, RSP as STACK, Reg, Step, VECTORS};
use crate::core::{BOUNDS, COMMIT, CoreTable, FETCH, FormId, ISSUE, NO_FORM};

/// Ticks of a cycle.
const CYCLE: u32 = 1000;

/// Ticks after which a run begins anew, so that no sum overflows: a million cycles without a branch.
const LONGEST: u32 = 1 << 30;

/// Ticks that one instruction adds at most: what its bounds and chains take, but not the price of its class.
const MOST_ADDED: u32 = 1 << 27;

/// The greatest time of a state.
pub(super) const LATEST: u32 = u32::MAX - MOST_ADDED;

/// The most ticks for which a register is ready later than the run's time.
pub(super) const MOST_LATE: u32 = 1 << 25;

/// The most bytes of code, and the most issue slots, of a run.
pub(super) const MOST_BYTES: u32 = 1 << 30;

/// The most bytes by which a run moves the stack pointer.
pub(super) const FURTHEST: u64 = 1 << 60;

/// Most registers whose chains from the begin of a run are followed.
pub(super) const ORIGINS: usize = 16;

/// Most places in memory that are followed.
pub(super) const PLACE_COUNT: usize = REGS - PLACES as usize;

/// Latencies in cycles, plus one, from each origin; 0 where there is no way.
type Row = [u16; ORIGINS];

/// The state of a run of instructions in a core: what the prices of the next instructions depend on.
///
/// Times are ticks from the run's begin. The state holds how far the bounds are used up, when the registers are ready, and how long
/// the chains of dependence are from the registers at the run's begin to the registers now.
#[derive(Clone, Debug)]
pub struct State {
    /// The run's time: the greatest of all bounds.
    pub(super) time: u32,
    /// When each bound is used up.
    pub(super) used: [u32; BOUNDS],
    /// When each register is ready.
    pub(super) ready: [u32; REGS],
    /// Registers of which the value at the run's begin was read, in that order.
    pub(super) origins: Vec<Reg>,
    /// Registers that were written.
    pub(super) written: u128,
    /// Registers whose value comes from a load of the run.
    pub(super) loaded: u128,
    /// Latencies from the origins to each register.
    pub(super) ways: [Row; REGS],
    /// Places in memory, the latest last.
    pub(super) places: Vec<(Place, Reg)>,
    /// Bytes by which the run has moved the stack pointer.
    pub(super) stack: i64,
    /// The comparison in front, if a branch can become one with it.
    pub(super) comparison: FormId,
    /// The last store, if the cache can take another one to the same 32 bytes in the same cycle.
    pub(super) store: Option<Place>,
    /// The first store: that of the next pass, if the run follows on itself.
    pub(super) first_store: Option<Place>,
    /// Issue slots since the begin.
    pub(super) slots: u32,
    /// The slots, plus one, at the last store to each place and at the first load of what was there before the run; 0 for none.
    pub(super) at: [[u32; PLACE_COUNT]; 2],
    /// Bytes of code since the begin.
    pub(super) bytes: u32,
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// Returns the state at a run's begin.
    pub fn new() -> Self {
        Self {
            time: 0,
            used: [0; BOUNDS],
            ready: [0; REGS],
            origins: Vec::new(),
            written: 0,
            loaded: 0,
            ways: [[0; ORIGINS]; REGS],
            places: Vec::new(),
            stack: 0,
            comparison: NO_FORM,
            store: None,
            first_store: None,
            slots: 0,
            at: [[0; PLACE_COUNT]; 2],
            bytes: 0,
        }
    }

    /// Returns the time since the run's begin, in ticks.
    pub fn time(&self) -> u32 {
        self.time
    }

    /// Returns the ticks for which the operands of the next instruction, a branch, are not known yet when the branch could
    /// execute; a comparison of registers right in front of the branch is not counted.
    pub fn late(&self, branch: &Step) -> u32 {
        let ready = branch.reads.as_slice().iter().map(|reg| self.ready[usize::from(*reg)]).max();
        ready.unwrap_or(0).saturating_sub(self.time + CYCLE)
    }

    /// Returns true if an operand of the next instruction comes from a load of the run.
    pub fn waits_for_load(&self, next: &Step) -> bool {
        next.reads.as_slice().iter().any(|reg| self.loaded >> reg & 1 != 0)
    }

    /// Returns true for a run that is so long that its sums could overflow.
    fn is_long(&self) -> bool {
        self.time > LONGEST || self.bytes.max(self.slots) > MOST_BYTES / 2 || self.stack.unsigned_abs() > FURTHEST / 2
    }

    /// Returns the names of the bounds and their ticks, and the longest chain from a register to itself.
    pub fn bounds(&self, core: &CoreTable) -> Vec<(String, u32)> {
        let used = (0..core.bounds()).filter(|bound| self.used[*bound] > 0);
        let mut bounds: Vec<_> = used.map(|bound| (core.bound(bound), self.used[bound])).collect();
        bounds.push(("chain".into(), self.chain(core)));
        bounds
    }

    /// Ends a run: returns what its chains add. If the run follows on itself (`again`), its chains are carried in full. If another run
    /// follows, that one may continue them or not: half of what they exceed the other bounds by is the rule of decision 0026.
    pub fn close(&mut self, core: &CoreTable, again: bool) -> u32 {
        let before = self.time;
        if self.store.is_some() && self.store != self.first_store {
            self.used[COMMIT] += CYCLE / 2;
            self.time = self.time.max(self.used[COMMIT]);
        }
        let beyond = self.chain(core).saturating_sub(self.time);
        let more = if again { beyond } else { beyond / 2 };
        self.time += more;
        self.time - before
    }

    /// Returns the row of a register: its latencies from the origins. A register that the run has not written is an origin.
    fn row(&mut self, reg: Reg) -> Row {
        if self.written >> reg & 1 != 0 {
            return self.ways[usize::from(reg)];
        }
        let mut row = [0; ORIGINS];
        let at = self.origins.iter().position(|origin| *origin == reg).or_else(|| {
            (self.origins.len() < ORIGINS).then(|| {
                self.origins.push(reg);
                self.origins.len() - 1
            })
        });
        if let Some(at) = at {
            row[at] = 1;
        }
        row
    }

    fn write(&mut self, reg: Reg, ready: u32, row: Row, loaded: bool) {
        self.ready[usize::from(reg)] = ready;
        self.ways[usize::from(reg)] = row;
        self.written |= 1 << reg;
        self.loaded = self.loaded & !(1 << reg) | u128::from(loaded) << reg;
    }

    /// Returns the register that stands for a place, and whether it was there before.
    fn place(&mut self, mut place: Place, before: i64) -> Reg {
        if place.base == STACK {
            place.displacement += before;
        }
        if let Some(at) = self.places.iter().position(|known| known.0 == place) {
            let known = self.places.remove(at);
            self.places.push(known);
            return known.1;
        }
        let reg = if self.places.len() < PLACE_COUNT {
            let free = (PLACES..REGS as Reg).find(|reg| !self.places.iter().any(|known| known.1 == *reg));
            free.unwrap_or(PLACES)
        } else {
            let oldest = self.places.remove(0).1;
            self.forget(oldest);
            oldest
        };
        self.places.push((place, reg));
        reg
    }

    /// A register that stands for a place stands for no place any more.
    fn forget(&mut self, reg: Reg) {
        self.written &= !(1 << reg);
        self.loaded &= !(1 << reg);
        for at in &mut self.at {
            at[usize::from(reg - PLACES)] = 0;
        }
        self.ready[usize::from(reg)] = 0;
        self.ways[usize::from(reg)] = [0; ORIGINS];
        if let Some(at) = self.origins.iter().position(|origin| *origin == reg) {
            self.origins[at] = Reg::MAX;
        }
    }

    /// Returns the cycles by which a place's value is there sooner in the next pass, because its load does not issue with its store.
    fn sooner(&self, core: &CoreTable, reg: Reg) -> u32 {
        let Some(n) = usize::from(reg).checked_sub(usize::from(PLACES)) else { return 0 };
        let memory = &core.parameters.memory;
        match [self.at[0][n], self.at[1][n]] {
            [stored, loaded]
                if stored > 0
                    && loaded > 0
                    && (self.slots + loaded).saturating_sub(stored) >= core.parameters.front.issue =>
            {
                memory.forward.saturating_sub(memory.forward_renamed)
            }
            _ => 0,
        }
    }

    /// Returns true for a place that is another one in the next pass, because the stack pointer is.
    fn is_elsewhere(&self, reg: Reg) -> bool {
        reg >= PLACES && self.stack != 0 && self.places.iter().any(|known| known.1 == reg && known.0.base == STACK)
    }

    /// Returns the longest chain from one pass of the run to the next, in ticks for each pass.
    fn chain(&self, core: &CoreTable) -> u32 {
        let way = |from: usize, to: Reg| -> u32 {
            if to == Reg::MAX || self.is_elsewhere(to) {
                0
            } else if self.written >> to & 1 == 0 {
                u32::from(self.origins[from] == to)
            } else {
                u32::from(self.ways[usize::from(to)][from])
            }
        };
        let mut longest = 0;
        for (a, &reg_a) in self.origins.iter().enumerate() {
            let own = way(a, reg_a);
            if own > 0 {
                longest = longest.max((own - 1).saturating_sub(self.sooner(core, reg_a)) * CYCLE);
            }
            for (b, &reg_b) in self.origins[..a].iter().enumerate() {
                let (there, back) = (way(a, reg_b), way(b, reg_a));
                if there > 0 && back > 0 {
                    longest = longest.max((there + back - 2) * CYCLE / 2);
                }
            }
        }
        longest
    }
}

/// Returns the marginal price of an instruction in ticks, and changes the state to that after it.
pub fn step(core: &CoreTable, state: &mut State, step: &Step) -> u32 {
    if state.is_long() || state.time > (LATEST - MOST_ADDED).saturating_sub(step.flat) {
        *state = State::new();
    }
    let before = state.time;
    state.bytes += u32::from(step.length);
    match core.forms.values(step.form) {
        None => unknown(state, step),
        Some(_) => known(core, state, step),
    }
    match step.end {
        End::None => {}
        end => {
            let back = step.distance == Some(-i64::from(state.bytes));
            if end == End::Taken || step.distance.is_some_and(|distance| distance < 0) {
                state.used[FETCH] = state.used[FETCH].max((core.parameters.front.taken * f64::from(CYCLE)) as u32);
                state.time = state.time.max(state.used[FETCH]);
            }
            state.close(core, back);
        }
    }
    state.time - before
}

/// An instruction of which no table tells more than the price of its class: nothing overlaps with it.
fn unknown(state: &mut State, step: &Step) {
    state.time += step.flat;
    for used in &mut state.used {
        *used += step.flat;
    }
    state.comparison = NO_FORM;
    state.stack += i64::from(step.stack);
    let time = state.time;
    for &reg in step.writes.as_slice() {
        state.write(reg, time, [0; ORIGINS], false);
    }
}

fn known(core: &CoreTable, state: &mut State, step: &Step) {
    let Some(values) = core.forms.values(step.form) else { return };
    let parameters = &core.parameters;
    let memory = &parameters.memory;
    let reach = parameters.window.reorder * CYCLE / parameters.front.issue;

    // Slots and ports.
    let fused = step.end == End::Conditional && state.comparison != NO_FORM;
    let mut slots = u32::from(values.fused) + u32::from(step.unlaminated);
    let mut add = |loads: &[(u8, u32)]| {
        for &(bound, ticks) in loads {
            state.used[usize::from(bound)] += ticks;
        }
    };
    if fused {
        // One uop does both, on the ports of branches.
        slots = 0;
        for &(bound, ticks) in core.loads(state.comparison) {
            let used = &mut state.used[usize::from(bound)];
            *used = used.saturating_sub(ticks);
        }
        for &(bound, ticks) in core.branch() {
            state.used[usize::from(bound)] += ticks;
        }
    } else if !step.idiom {
        add(core.loads(step.form));
        if let Some(width) = step.load {
            add(core.memory(false, usize::from(width)));
        }
        if let Some(width) = step.store {
            add(core.memory(true, usize::from(width)));
        }
    }
    state.used[ISSUE] += slots * CYCLE / parameters.front.issue;
    if values.serial {
        state.used[usize::from(step.unit)] += values.throughput;
    }
    state.comparison = if step.fuses { step.form } else { NO_FORM };
    // What a bound did not use before the window reached it is lost.
    let mut time = state.time;
    for used in &state.used[..core.bounds()] {
        time = time.max(*used);
    }
    let oldest = time.saturating_sub(reach);
    for used in &mut state.used[..core.bounds()] {
        *used = (*used).max(oldest);
    }

    // Dependence.
    let (least, greatest) = values.latency.unwrap_or((1, 1));
    let greatest = if step.low { least } else { greatest };
    let latency = if step.idiom || step.moves { 0 } else { u32::from(greatest) };
    let shorter = if step.crosses { latency.saturating_sub(u32::from(least)) } else { 0 };
    let mut row = [0; ORIGINS];
    let mut done = state.time + latency * CYCLE;
    for &reg in step.reads.as_slice() {
        let way = state.row(reg);
        // The result depends for less time on a register of its own class than on one of the other.
        let sooner = if (VECTORS..MASKS).contains(&reg) { shorter } else { 0 };
        join(&mut row, &way, latency - sooner);
        done = done.max(state.ready[usize::from(reg)] + (latency - sooner) * CYCLE);
    }
    let mut place = None;
    let stack_before = if step.stack < 0 { state.stack + i64::from(step.stack) } else { state.stack };
    // PUSH's address is the stack pointer's new value.
    let pushes = step.stack < 0 && step.store.is_some();
    let known = step.place.map(|at| if pushes && at.base == STACK { Place { displacement: 0, ..at } } else { at });
    if let Some(known) = known {
        place = Some(state.place(known, if step.store.is_some() { stack_before } else { state.stack }));
    }
    if let Some(width) = step.store
        && memory.stores_pair
    {
        let here = known.filter(|_| width < 2).map(|at| Place {
            displacement: (if at.base == STACK { at.displacement + stack_before } else { at.displacement }) >> 5,
            ..at
        });
        state.used[COMMIT] += CYCLE / 2;
        if here.is_some() && state.store == here {
            state.store = None;
        } else {
            // The store in front has a cycle of its own.
            if state.store.is_some() || here.is_none() {
                state.used[COMMIT] += CYCLE / 2;
            }
            state.store = here;
        }
        if state.first_store.is_none() {
            state.first_store = here;
        }
        time = time.max(state.used[COMMIT]);
    }
    if let Some(width) = step.load {
        let mut cycles = match width {
            0 => memory.load,
            width => memory.load_vector[usize::from(width) - 1],
        };
        if step.scaled {
            cycles += memory.load_indexed;
        }
        let through = match values.address {
            Some(address) if address >= greatest => u32::from(address) - latency,
            _ => cycles,
        };
        for &reg in step.addresses.as_slice() {
            let way = state.row(reg);
            join(&mut row, &way, through + latency);
            done = done.max(state.ready[usize::from(reg)] + (through + latency) * CYCLE);
        }
        done = done.max(state.time + (through + latency) * CYCLE);
        if let Some(reg) = place {
            let way = state.row(reg);
            let forward = if width > 0 { memory.forward_vector } else { memory.forward };
            let at = usize::from(reg - PLACES);
            let renamed = step.renamed
                || step.distant && state.at[0][at] > 0 && state.slots + 1 >= state.at[0][at] + parameters.front.issue;
            if step.distant && state.at[0][at] == 0 && state.at[1][at] == 0 {
                state.at[1][at] = state.slots + 1;
            }
            let forward = if renamed { memory.forward_renamed } else { forward };
            join(&mut row, &way, forward + latency);
            // A place is ready when a load that is not renamed has what was stored.
            let sooner = if renamed { memory.forward.saturating_sub(forward) } else { 0 };
            done = done.max(state.ready[usize::from(reg)].saturating_sub(sooner * CYCLE) + latency * CYCLE);
        }
    }
    // No more waits than the window holds.
    time = time.max(done.saturating_sub(reach));
    if step.fence {
        time = time.max(state.ready.iter().copied().max().unwrap_or(0)).max(done);
        state.used = state.used.map(|used| used.max(time));
    }
    state.time = time;
    let loaded = step.load.is_some() || state.waits_for_load(step);
    for &reg in step.writes.as_slice() {
        state.write(reg, done, row, loaded);
        // A stack pointer that moves by a known distance still names the same places.
        if reg < CARRY && !(reg == STACK && step.stack != 0) {
            moved(state, reg);
        }
    }
    if let (Some(width), Some(reg)) = (step.store, place) {
        let forward = if width > 0 { memory.forward_vector } else { memory.forward };
        state.write(reg, done + forward * CYCLE, row, false);
        state.at[0][usize::from(reg - PLACES)] = state.slots + 1;
    }
    state.stack += i64::from(step.stack);
    state.slots += slots;
}

/// Places whose address has a base that changes are other places now.
fn moved(state: &mut State, base: Reg) {
    let mut at = 0;
    while at < state.places.len() {
        if state.places[at].0.base == base {
            let reg = state.places.remove(at).1;
            state.forget(reg);
        } else {
            at += 1;
        }
    }
}

/// Adds the ways of a source to those of a result.
fn join(row: &mut Row, source: &Row, latency: u32) {
    for (to, from) in row.iter_mut().zip(source) {
        if *from > 0 {
            *to = (*to).max(from.saturating_add(latency as u16));
        }
    }
}
