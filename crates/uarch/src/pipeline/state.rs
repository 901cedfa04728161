//! The state of a run, and the price of its next instruction.

use super::step::{CARRY, End, MASKS, PLACES, Place, REGS, RSP as STACK, Reg, Step, VECTORS};
use crate::core::{BOUNDS, COMMIT, CoreTable, FETCH, FormId, ISSUE, NO_FORM, SERIAL};

/// Ticks of a cycle.
pub(super) const CYCLE: u32 = 1000;

/// Ticks after which a run begins anew, so that no sum overflows: a million cycles without a branch.
const LONGEST: u32 = 1 << 30;

/// Ticks that one instruction adds at most: what its bounds and chains take, but not the price of its class.
const MOST_ADDED: u32 = 1 << 27;

/// The greatest time of a state.
pub(super) const LATEST: u32 = u32::MAX - MOST_ADDED;

/// The most ticks for which a register is ready later than the run's time.
pub(super) const MOST_LATE: u32 = 1 << 25;

/// The most ticks for which the front end still reads lines of code in front of a run.
pub(super) const MOST_BEHIND: u32 = 8 * CYCLE;

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

/// Figures if the core predicts which stores its loads need, and figures if it does not.
pub(super) const PREDICTED: usize = 0;
pub(super) const UNPREDICTED: usize = 1;
/// Both kinds of figures.
pub(super) type Both<T> = [T; 2];

/// A place in memory that is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Followed {
    pub place: Place,
    /// The register that stands for it.
    pub reg: Reg,
    /// Bytes of the last store of this run; 0 for none.
    pub bytes: u8,
    /// The last store was that of a vector.
    pub vector: bool,
    /// What was there before the run was loaded by a load of the kind that is predicted.
    pub loaded: bool,
}

impl Followed {
    /// Returns true if the last store wrote a part of what a load reads.
    fn overlaps(&self, place: Place, bytes: u8) -> bool {
        let beyond = place.displacement.wrapping_sub(self.place.displacement);
        self.place.base == place.base && beyond < i64::from(self.bytes) && beyond > -i64::from(bytes)
    }
}

/// The state of a run of instructions in a core: what the prices of the next instructions depend on.
///
/// Times are ticks from the run's begin. The state holds how far the bounds are used up, when the registers are ready, and how long
/// the chains of dependence are from the registers at the run's begin to the registers now.
#[derive(Clone, Debug)]
pub struct State {
    /// The run's time: the greatest of all bounds.
    pub(super) time: u32,
    /// The time as far as loads delay it for which the core does not predict the store.
    pub(super) unpredicted: u32,
    /// When each bound is used up.
    pub(super) used: [u32; BOUNDS],
    /// When each register is ready.
    pub(super) ready: Both<[u32; REGS]>,
    /// Registers of which the value at the run's begin was read, in that order.
    pub(super) origins: Vec<Reg>,
    /// Registers that were written.
    pub(super) written: u128,
    /// Registers whose value comes from a load of the run.
    pub(super) loaded: u128,
    /// Latencies from the origins to each register that was written.
    pub(super) ways: [Both<Row>; REGS],
    /// Places in memory, the latest last.
    pub(super) places: Vec<Followed>,
    /// Bytes by which the run has moved the stack pointer.
    pub(super) stack: i64,
    /// The stack engine's offset: PUSH, POP, CALL or RET has moved the stack pointer since an instruction last added to it.
    pub(super) engine: bool,
    /// The run's first addition to the stack pointer had no such instruction in front of it in the run.
    pub(super) adds_first: bool,
    /// The comparison in front, if a branch can become one with it.
    pub(super) comparison: FormId,
    /// The last store, if the cache can take another one to the same bytes in the same cycle.
    pub(super) store: Option<Place>,
    /// The first store: that of the next pass, if the run follows on itself.
    pub(super) first_store: Option<Place>,
    /// Issue slots since the begin.
    pub(super) slots: u32,
    /// The slots, plus one, at the last store to each place; 0 for none.
    pub(super) stored: [u32; PLACE_COUNT],
    /// Loads for which the core has to predict the store that they need.
    pub(super) pairs: u8,
    /// Ticks by which the core completes instructions later than its width allows, because loads waited for stores to leave the
    /// store queue.
    pub(super) behind: u32,
    /// The same at the last store to each place.
    pub(super) behind_at: [u32; PLACE_COUNT],
    /// Bytes of code since the begin.
    pub(super) bytes: u32,
    /// 0 if a branch led to the run. Otherwise the branch in front was not taken, so that the front end goes on: this is, plus one, the number of
    /// ticks for which it still reads the lines of code in front.
    pub(super) fell: u32,
    /// A direct call or a return led to the run, in a core for which that makes a difference.
    pub(super) called: bool,
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
            unpredicted: 0,
            used: [0; BOUNDS],
            ready: [[0; REGS]; 2],
            origins: Vec::new(),
            written: 0,
            loaded: 0,
            ways: [[[0; ORIGINS]; 2]; REGS],
            places: Vec::new(),
            stack: 0,
            engine: false,
            adds_first: false,
            comparison: NO_FORM,
            store: None,
            first_store: None,
            slots: 0,
            stored: [0; PLACE_COUNT],
            pairs: 0,
            behind: 0,
            behind_at: [0; PLACE_COUNT],
            bytes: 0,
            fell: 0,
            called: false,
        }
    }

    /// Makes this the state at a run's begin again. The ways of registers that are not written are left as they are, because nothing
    /// reads them: they are most of a state.
    pub fn reset(&mut self) {
        // The pattern names all fields, so that a new one is not forgotten.
        let Self {
            time,
            unpredicted,
            used,
            ready,
            origins,
            written,
            loaded,
            ways: _,
            places,
            stack,
            engine,
            adds_first,
            comparison,
            store,
            first_store,
            slots,
            stored,
            pairs,
            behind,
            behind_at,
            bytes,
            fell,
            called,
        } = self;
        origins.clear();
        places.clear();
        [*time, *unpredicted, *slots, *behind, *bytes, *fell] = [0; 6];
        [*written, *loaded] = [0; 2];
        [*store, *first_store] = [None; 2];
        [*stored, *behind_at] = [[0; PLACE_COUNT]; 2];
        (*used, *ready) = ([0; BOUNDS], [[0; REGS]; 2]);
        (*stack, *comparison, *pairs) = (0, NO_FORM, 0);
        [*engine, *adds_first, *called] = [false; 3];
    }

    /// Makes this the state at the begin of a run to which a direct call or a return leads.
    pub fn call_through(&mut self, core: &CoreTable) {
        self.reset();
        self.called = core.parameters.front.called > 0.0;
    }

    /// Makes this the state at the begin of the run behind the conditional branch that has ended this run and was not taken.
    pub fn fall_through(&mut self, core: &CoreTable, branch: &Step) {
        let behind = self.fetched(core, branch).saturating_sub(self.time);
        self.reset();
        self.fell = behind.min(MOST_BEHIND) + 1;
    }

    /// Returns the time at which the front end has read the lines of code of a run that ends with this branch, one in a cycle.
    fn fetched(&self, core: &CoreTable, branch: &Step) -> u32 {
        let line = core.parameters.front.line;
        let lines = match self.bytes.checked_sub(1) {
            Some(before) if line > 0 => {
                let last = u32::from(branch.at) + u32::from(branch.length) - 1;
                let first = last.wrapping_sub(before) % line;
                // A run behind a branch that was not taken begins in a line that has been read, unless it begins with the line.
                (first + before) / line + u32::from(self.fell == 0 || first == 0)
            }
            _ => u32::from(self.fell == 0),
        };
        self.fell.saturating_sub(1) + lines.min(LONGEST / CYCLE) * CYCLE
    }

    /// A taken branch ends a run, and an entry of decoded uops.
    fn turn(&mut self, core: &CoreTable, branch: &Step) {
        let fetched = self.fetched(core, branch);
        if self.fell == 0 {
            let taken = if self.called { branch.taken_when_called } else { branch.taken };
            self.used[FETCH] = self.used[FETCH].next_multiple_of(CYCLE).max(taken);
            self.time = self.time.max(self.used[FETCH]);
        } else if self.fell > 1 {
            self.time = self.time.max(self.fell - 1 + branch.taken.saturating_sub(CYCLE));
        }
        if core.parameters.front.line > 0 || self.fell > 0 {
            self.time = self.time.max(fetched);
        }
    }

    /// Returns the time since the run's begin, in ticks.
    pub fn time(&self) -> u32 {
        self.time
    }

    /// Returns the time at which the operands of the next instruction, a branch, are known, less a cycle: a comparison of registers right in
    /// front of the branch is not counted. An indirect branch may load its target.
    pub fn known_at(&self, core: &CoreTable, branch: &Step) -> u32 {
        let ready = |regs: &[Reg]| regs.iter().map(|reg| self.ready[PREDICTED][usize::from(*reg)]).max().unwrap_or(0);
        let loaded = match branch.load {
            Some(_) => {
                let addressed = ready(branch.addresses.as_slice()).max(self.time);
                addressed.saturating_add(core.parameters.memory.load * CYCLE)
            }
            None => 0,
        };
        ready(branch.reads.as_slice()).max(loaded).saturating_sub(CYCLE)
    }

    /// The bounds are as if a run began at this time. Registers, and places in memory, are ready when they were.
    pub(super) fn begin_at(&mut self, time: u32) {
        (self.time, self.unpredicted, self.used) = (time, time, [time; BOUNDS]);
        (self.behind, self.pairs, self.comparison) = (0, 0, NO_FORM);
    }

    /// Returns the ticks for which the operands of a branch are not known yet when the branch could execute, and when what it and the end of its
    /// run take has passed: a chain that is charged from turn to turn of a loop is not waited for again. The operands are
    /// [`known`](State::known_at), and the branch costs `ticks` behind instructions that take `before`.
    pub fn late(known: u32, before: u32, ticks: u32) -> u32 {
        known.saturating_sub(before.saturating_add(ticks.saturating_sub(CYCLE)))
    }

    /// Returns true if an operand of the next instruction comes from a load of the run.
    pub fn waits_for_load(&self, next: &Step) -> bool {
        next.reads.as_slice().iter().any(|reg| self.loaded >> reg & 1 != 0)
    }

    /// Returns true for a run that is so long that its sums could overflow.
    pub(super) fn is_long(&self) -> bool {
        self.time > LONGEST || self.bytes.max(self.slots) > MOST_BYTES / 2 || self.stack.unsigned_abs() > FURTHEST / 2
    }

    /// Returns the names of the bounds and their ticks, and the longest chain from a register to itself.
    pub fn bounds(&self, core: &CoreTable) -> Vec<(String, u32)> {
        let used = (0..core.bounds()).filter(|bound| self.used[*bound] > 0);
        let mut bounds: Vec<_> = used.map(|bound| (core.bound(bound), self.used[bound])).collect();
        bounds.push(("chain".into(), self.chain(core)));
        bounds
    }

    /// Ends a run: returns what its chains add to the other bounds. If the run follows on itself (`again`), that is all by which they
    /// exceed those bounds. Otherwise another run follows, which takes a cycle at least, and executes beside them: the rule of overlap of decision 0026.
    pub fn close(&mut self, core: &CoreTable, again: bool) -> u32 {
        let before = self.time;
        if self.store.is_some() && self.store != self.first_store {
            self.used[COMMIT] += CYCLE / 2;
            self.time = self.time.max(self.used[COMMIT]);
        }
        let beyond = self.chain(core).saturating_sub(self.time);
        let more = if again { beyond } else { beyond.saturating_sub(CYCLE) };
        self.time += more;
        self.time - before
    }

    /// The run ends with an indirect branch. Nothing reads the register with its target any more: a compiler has computed it for the
    /// branch alone. A chain from that register to itself is none that the next run continues.
    fn end_targets(&mut self, branch: &Step) {
        for &reg in branch.reads.as_slice().iter().filter(|reg| **reg < CARRY && **reg != STACK) {
            self.written |= 1 << reg;
            self.ways[usize::from(reg)] = [[0; ORIGINS]; 2];
        }
    }

    /// Returns the rows of a register: its latencies from the origins. A register that the run has not written is an origin.
    fn row(&mut self, reg: Reg) -> Both<Row> {
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
        [row; 2]
    }

    fn write(&mut self, reg: Reg, value: &Value, loaded: bool) {
        for (ready, done) in self.ready.iter_mut().zip(value.done) {
            ready[usize::from(reg)] = done;
        }
        self.ways[usize::from(reg)] = value.rows;
        self.written |= 1 << reg;
        self.loaded = self.loaded & !(1 << reg) | u128::from(loaded) << reg;
    }

    /// Returns the position of the place that a load reads: the last store that wrote a part of it, or what was there before the run.
    fn source(&mut self, place: Place, bytes: u8) -> usize {
        let stored = |at: &usize| self.stored[usize::from(self.places[*at].reg - PLACES)];
        let last = (0..self.places.len()).filter(|at| self.places[*at].overlaps(place, bytes)).max_by_key(stored);
        match last {
            Some(at) => self.latest(at),
            None => self.place(place),
        }
    }

    /// Returns the registers that stand for the places of which a load reads a part that this run has stored.
    fn overlapping(&self, place: Place, bytes: u8) -> Vec<Reg> {
        self.places.iter().filter(|known| known.overlaps(place, bytes)).map(|known| known.reg).collect()
    }

    /// Makes a place the latest, and returns its position.
    fn latest(&mut self, at: usize) -> usize {
        self.places[at..].rotate_left(1);
        self.places.len() - 1
    }

    /// Returns the position of a place.
    fn place(&mut self, place: Place) -> usize {
        if let Some(at) = self.places.iter().position(|known| known.place == place) {
            return self.latest(at);
        }
        let reg = if self.places.len() < PLACE_COUNT {
            let free = (PLACES..REGS as Reg).find(|reg| !self.places.iter().any(|known| known.reg == *reg));
            free.unwrap_or(PLACES)
        } else {
            let oldest = self.places.remove(0).reg;
            self.forget(oldest);
            oldest
        };
        self.places.push(Followed { place, reg, bytes: 0, vector: false, loaded: false });
        self.places.len() - 1
    }

    /// A register that stands for a place stands for no place any more.
    fn forget(&mut self, reg: Reg) {
        self.written &= !(1 << reg);
        self.loaded &= !(1 << reg);
        let n = usize::from(reg - PLACES);
        (self.stored[n], self.behind_at[n]) = (0, 0);
        self.ready.iter_mut().for_each(|ready| ready[usize::from(reg)] = 0);
        self.ways[usize::from(reg)] = [[0; ORIGINS]; 2];
        if let Some(at) = self.origins.iter().position(|origin| *origin == reg) {
            self.origins[at] = Reg::MAX;
        }
    }

    /// Counts a load for which the core has to predict the store. Beyond the most that it remembers, it predicts none of them.
    fn predict(&mut self, most: u8) {
        self.pairs = self.pairs.saturating_add(1);
        if self.pairs == most.saturating_add(1) {
            self.time = self.time.max(self.unpredicted);
            self.ready[PREDICTED] = self.ready[UNPREDICTED];
            self.ways.iter_mut().for_each(|ways| ways[PREDICTED] = ways[UNPREDICTED]);
        }
    }

    /// Returns the ticks at which the core has completed all instructions, in their order: as many as it completes in a cycle, after
    /// the loads that waited for stores to leave the store queue.
    fn retired(&self, core: &CoreTable) -> u32 {
        let ticks = width(self.slots, core) + u64::from(self.behind);
        ticks.min(u64::from(self.time + MOST_LATE)) as u32
    }

    /// Returns true for a place that is another one in the next pass, because the stack pointer is.
    fn is_elsewhere(&self, reg: Reg) -> bool {
        reg >= PLACES
            && self.stack != 0
            && self.places.iter().any(|known| known.reg == reg && known.place.base == STACK)
    }

    /// Returns the longest chain from one pass of the run to the next, in ticks for each pass.
    fn chain(&self, core: &CoreTable) -> u32 {
        let way = |from: usize, to: Reg| -> u32 {
            if to == Reg::MAX || self.is_elsewhere(to) {
                0
            } else if self.written >> to & 1 == 0 {
                u32::from(self.origins[from] == to)
            } else {
                u32::from(self.ways[usize::from(to)][PREDICTED][from])
            }
        };
        let mut longest = if self.behind > 0 { self.retired(core) } else { 0 };
        for (a, &reg_a) in self.origins.iter().enumerate() {
            let own = way(a, reg_a);
            // The first addition to the stack pointer is behind the last PUSH or POP of the pass in front.
            let adds = reg_a == STACK && self.adds_first && self.engine;
            let added = if adds { core.parameters.memory.stack_offset } else { 0 };
            if own > 0 {
                longest = longest.max((own - 1 + added) * CYCLE);
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

/// Returns the ticks in which the core completes so many slots.
fn width(slots: u32, core: &CoreTable) -> u64 {
    u64::from(slots) * u64::from(CYCLE) / u64::from(core.parameters.window.retire)
}

/// A result: when it is ready, and how long the ways from the origins to it are.
#[derive(Clone, Copy)]
struct Value {
    done: Both<u32>,
    rows: Both<Row>,
}

impl Value {
    /// The result is ready so many cycles after a register.
    fn after(&mut self, state: &mut State, reg: Reg, cycles: u32) {
        self.after_place(state, reg, [cycles; 2], 0);
    }

    /// The result is ready so many cycles after what was stored to a place, whose register is ready `later`.
    fn after_place(&mut self, state: &mut State, reg: Reg, cycles: Both<u32>, later: u32) {
        let ways = state.row(reg);
        for which in [PREDICTED, UNPREDICTED] {
            join(&mut self.rows[which], &ways[which], cycles[which]);
            let stored = state.ready[which][usize::from(reg)].saturating_sub(later * CYCLE);
            self.done[which] = self.done[which].max(stored + cycles[which] * CYCLE);
        }
    }

    /// The result is not ready before this time.
    fn not_before(&mut self, time: u32) {
        self.done = self.done.map(|done| done.max(time));
    }
}

/// Returns the marginal price of an instruction in ticks, and changes the state to that after it.
pub fn step(core: &CoreTable, state: &mut State, step: &Step) -> u32 {
    if state.is_long() || state.time > (LATEST - MOST_ADDED).saturating_sub(step.flat) {
        state.reset();
    }
    let before = state.time;
    execute(core, state, step);
    match step.end {
        End::None => {}
        end => {
            let back = step.distance == Some(-i64::from(state.bytes));
            if end == End::Taken || step.distance.is_some_and(|distance| distance < 0) {
                state.turn(core, step);
            }
            if end == End::Taken && step.distance.is_none() {
                state.end_targets(step);
            }
            state.close(core, back);
        }
    }
    state.time - before
}

/// Executes an instruction. It does not end the run.
pub(super) fn execute(core: &CoreTable, state: &mut State, step: &Step) {
    state.bytes += u32::from(step.length);
    match core.forms.values(step.form) {
        None => unknown(state, step),
        Some(_) => known(core, state, step),
    }
}

/// An instruction of which no table tells more than the price of its class: nothing overlaps with it.
fn unknown(state: &mut State, step: &Step) {
    state.time += step.flat;
    for used in &mut state.used {
        *used += step.flat;
    }
    state.comparison = NO_FORM;
    state.stack += i64::from(step.stack);
    state.engine = step.engine || state.engine && !step.writes.contains(STACK);
    let time = state.time;
    for &reg in step.writes.as_slice() {
        state.write(reg, &Value { done: [time; 2], rows: [[0; ORIGINS]; 2] }, false);
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
    if !fused {
        state.used[FETCH] += step.entries;
    }
    state.used[FETCH] += step.length_changing;
    if step.high_byte {
        state.used[SERIAL] += CYCLE;
    }
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
    // What a load takes from a store in front includes what the store takes.
    let latency = if step.idiom || step.moves || step.moves_to_memory { 0 } else { u32::from(greatest) };
    let latency = latency + if step.high_byte { memory.high_byte } else { 0 };
    let shorter = if step.crosses { latency.saturating_sub(u32::from(least)) } else { 0 };
    let mut value = Value { done: [state.time + latency * CYCLE; 2], rows: [[0; ORIGINS]; 2] };
    let added = if step.adds_to_stack && state.engine { memory.stack_offset } else { 0 };
    for &reg in step.reads.as_slice() {
        // The stack engine's offset is added to the stack pointer first.
        let latency = if reg == STACK { latency + added } else { latency };
        // The result depends for less time on a register of its own class than on one of the other.
        let sooner = if (VECTORS..MASKS).contains(&reg) { shorter } else { 0 };
        value.after(state, reg, latency - sooner);
    }
    let stack_before = if step.stack < 0 { state.stack + i64::from(step.stack) } else { state.stack };
    let absolute = |place: Place, moved: i64| match place.base {
        STACK => Place { displacement: place.displacement.wrapping_add(moved), ..place },
        _ => place,
    };
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
            value.after(state, reg, through + latency);
        }
        value.not_before(state.time + (through + latency) * CYCLE);
        if let Some(from) = step.from {
            load(core, state, step, absolute(from, state.stack), latency, &mut value);
        }
    }
    // PUSH's address is the stack pointer's new value.
    let pushes = step.stack < 0 && step.store.is_some();
    let to = step.to.map(|to| if pushes && to.base == STACK { Place { displacement: 0, ..to } } else { to });
    let to = to.map(|to| absolute(to, stack_before));
    if let Some(width) = step.store
        && memory.paired_bytes > 0
    {
        // Two stores of 32 bytes are to one line of 64, but never to one half of it.
        let pairs = [16, 16, 32, 64][usize::from(width)] < memory.paired_bytes;
        let line = memory.paired_bytes.trailing_zeros();
        let here = to.filter(|_| pairs).map(|at| Place { displacement: at.displacement >> line, ..at });
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
    // No more waits than the window holds.
    time = time.max(value.done[PREDICTED].saturating_sub(reach));
    state.unpredicted = state.unpredicted.max(value.done[UNPREDICTED].saturating_sub(reach));
    if step.fence {
        // The fence begins when all in front of it is complete, and what is behind it begins when the fence is.
        let ready = state.ready[PREDICTED][..usize::from(PLACES)].iter().copied().max().unwrap_or(0).max(state.time);
        let takes = if values.serial { values.throughput } else { 0 };
        time = time.max(ready + takes).max(value.done[PREDICTED]);
        state.used = state.used.map(|used| used.max(time));
    }
    state.time = time;
    state.adds_first |= step.adds_to_stack && !state.engine && state.written >> STACK & 1 == 0;
    state.engine = step.engine || state.engine && !step.writes.contains(STACK);
    let loaded = step.load.is_some() || state.waits_for_load(step);
    for &reg in step.writes.as_slice() {
        state.write(reg, &value, loaded);
        // A stack pointer that moves by a known distance still names the same places.
        if reg < CARRY && !(reg == STACK && step.stack != 0) {
            moved(state, reg);
        }
    }
    if let (Some(width), Some(to)) = (step.store, to) {
        let at = state.place(to);
        let known = &mut state.places[at];
        let was_loaded = std::mem::take(&mut known.loaded);
        (known.bytes, known.vector) = (step.bytes, width > 0);
        let reg = known.reg;
        // The register of a place is ready when every load has what was stored: a time that has passed is then one that no load waits for.
        value.done = value.done.map(|done| done + memory.longest() * CYCLE);
        state.write(reg, &value, false);
        let n = usize::from(reg - PLACES);
        (state.stored[n], state.behind_at[n]) = (state.slots + 1, state.behind);
        if was_loaded {
            // The load needs this store in the next pass.
            state.predict(memory.predicted_pairs);
        }
    }
    state.stack += i64::from(step.stack);
    state.slots += slots;
    if state.behind > 0 {
        state.time = state.time.max(state.retired(core).saturating_sub(reach));
    }
}

/// A load depends on the store to its place.
fn load(core: &CoreTable, state: &mut State, step: &Step, from: Place, latency: u32, value: &mut Value) {
    let memory = &core.parameters.memory;
    let at = state.source(from, step.bytes);
    let known = state.places[at];
    let beyond = from.displacement.wrapping_sub(known.place.displacement);
    let vector = step.load.is_some_and(|width| width > 0);
    let n = usize::from(known.reg - PLACES);
    if known.bytes > 0 && (beyond < 0 || beyond + i64::from(step.bytes) > i64::from(known.bytes)) {
        // The store has only a part of what the load needs: the load waits until it has left the store queue, if it is still there.
        let stored = state.stored[n] - 1;
        let away = (state.slots - stored.min(state.slots)) / core.parameters.front.issue;
        if away + memory.load + 1 < memory.blocked {
            let more = if vector { memory.forward_to_vector.saturating_sub(memory.forward) } else { 0 };
            let cycles = memory.blocked + more + latency;
            for reg in state.overlapping(from, step.bytes) {
                value.after_place(state, reg, [cycles; 2], memory.longest());
            }
            let completed = width(stored, core) + u64::from(state.behind_at[n] + memory.blocked * CYCLE);
            let behind = completed.saturating_sub(width(state.slots, core)) as u32;
            state.behind = state.behind.max(behind);
        }
        return;
    }
    let stored = known.bytes > 0;
    let forward = match (vector, if stored { known.vector } else { vector }) {
        (false, false) if step.store.is_some() => memory.forward_modify,
        (false, false) if step.moves_from_memory => memory.forward,
        (false, false) => memory.forward_operation,
        (true, false) => memory.forward_to_vector,
        (false, true) => memory.forward_from_vector,
        (true, true) => memory.forward_vector,
    };
    // Renaming knows addresses, and no parts of what is there.
    let whole = !stored || beyond == 0 && !known.vector && known.bytes >= memory.renamed_bytes;
    let predicted = step.predicted && whole && memory.predicted_pairs > 0;
    if predicted && stored {
        state.predict(memory.predicted_pairs);
    } else if predicted {
        state.places[at].loaded = true;
    }
    let both = match (step.renamed && whole, predicted && state.pairs <= memory.predicted_pairs) {
        (true, _) => [memory.forward_renamed; 2],
        (_, true) => [memory.forward_renamed, forward],
        _ => [forward; 2],
    };
    value.after_place(state, known.reg, both.map(|forward| forward + latency), memory.longest());
}

/// Places whose address has a base that changes are other places now.
fn moved(state: &mut State, base: Reg) {
    let mut at = 0;
    while at < state.places.len() {
        if state.places[at].place.base == base {
            let reg = state.places.remove(at).reg;
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
