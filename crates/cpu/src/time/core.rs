//! The model `core`: the price of a run is what the pipeline of [`uarch`] takes for it.

use super::runs::leads_on;
use super::{Context, Followed, Lead, Price, Repeated, Resolution, Step, Steps, Timing};
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind};
use ledger::{Class, Costs, Ticks};
use std::cell::RefCell;
use uarch::{CoreTable, End, InFlight, Repeat, State, step, string};

thread_local! {
    /// A state of the pipeline, of several kilobytes, and what iced-x86 needs: most runs are short.
    static SCRATCH: RefCell<(State, InstructionInfoFactory)> = RefCell::new((State::new(), InstructionInfoFactory::new()));
}

/// The model with a pipeline and caches.
#[derive(Clone, Copy, Debug)]
pub struct Core {
    /// The core; `None` for a processor of which no table is known: instructions cost the prices of their classes, as in
    /// [`super::Flat`].
    pub table: Option<&'static CoreTable>,
}

impl Timing for Core {
    fn run(
        &self,
        costs: &Costs,
        before: &Context,
        run: &mut Steps,
        put: &mut dyn FnMut(Price),
        after: Option<&mut Context>,
    ) {
        let Some(table) = self.table else { return Self::by_class(costs, before, run, put, after) };
        SCRATCH.with_borrow_mut(|(state, info)| {
            // Contexts of saved states are checked when they are restored.
            if state.take(&before.0).is_none() {
                state.reset();
            }
            let last = Self::by_pipeline(table, costs, (state, info), run, put);
            if let Some(after) = after {
                match last {
                    Some((_, branch)) if branch.end() == End::Conditional => state.fall_through(table, &branch),
                    Some((class, _)) if leads_on(class) => state.call_through(table),
                    Some((_, branch)) if branch.end() == End::Taken => state.reset(),
                    _ => {}
                }
                after.0 = state.encode();
            }
        });
    }

    fn called(&self) -> Context {
        self.table.map_or_else(Context::default, |table| {
            let mut state = State::new();
            state.call_through(table);
            Context(state.encode())
        })
    }

    fn follow(&self, costs: &Costs, run: &mut Steps) -> Followed {
        let Some(table) = self.table else { return Followed::default() };
        let mut info = InstructionInfoFactory::new();
        let step = |at: Step| (Self::priced(table, costs, &mut info, at), has_own_price(at.class));
        Followed(run.map(step).collect())
    }

    fn late_behind(&self, runs: &mut dyn Iterator<Item = (&Followed, Option<Lead>)>) -> u32 {
        let Some(table) = self.table else { return 0 };
        let mut late = 0;
        let mut all = InFlight::default();
        for (Followed(run), lead) in runs {
            let Some(((branch, _), before)) = run.split_last() else {
                all.complete();
                continue;
            };
            for (next, waits) in before {
                if *waits {
                    all.complete();
                }
                all.step(table, next);
            }
            late = all.branch(table, branch);
            match lead {
                Some(lead) => all.begin(table, branch, lead),
                None => all.complete(),
            }
        }
        late
    }

    fn repeated(&self, repeated: &Repeated) -> Option<Ticks> {
        let Repeated { size, length, destination, source } = *repeated;
        let repeat = match (source, size) {
            (Some(_), 0..=2) => Repeat::Movs,
            (Some(_), _) => Repeat::MovsWide,
            (None, 0..=2) => Repeat::Stos,
            (None, _) => Repeat::StosWide,
        };
        self.table.map(|table| string(table, repeat, length, destination, source))
    }

    fn elapsed(&self, context: &Context) -> u32 {
        match self.table {
            Some(_) => State::time_of(&context.0),
            None => sum_of(context),
        }
    }

    fn begins(&self, context: &Context) -> bool {
        match self.table {
            Some(_) => State::begins(&context.0),
            None => context.0.is_empty(),
        }
    }

    fn knows(&self, context: &Context) -> bool {
        match self.table {
            Some(_) => State::decode(&context.0).is_some(),
            None => matches!(context.0.len(), 0 | 4),
        }
    }

    fn has_contexts(&self) -> bool {
        true
    }
}

impl Core {
    /// Prices instructions by a table. Returns the last of them, and its class.
    fn by_pipeline(
        table: &CoreTable,
        costs: &Costs,
        (state, info): (&mut State, &mut InstructionInfoFactory),
        run: &mut Steps,
        put: &mut dyn FnMut(Price),
    ) -> Option<(Class, uarch::Step)> {
        let mut last = None;
        for at @ Step { class, .. } in run {
            let next = Self::priced(table, costs, info, at);
            if matches!(class, Class::Branch | Class::IndirectJump | Class::IndirectCall) {
                let (known, before, waits_for_load) =
                    (state.known_at(table, &next), state.time(), state.waits_for_load(&next));
                let ticks = step(table, state, &next);
                let late = State::late(known, before, ticks);
                put(Price { ticks, branch: Resolution { elapsed: state.time(), late, waits_for_load } });
            } else {
                put(Price::of(step(table, state, &next)));
            }
            last = Some((class, next));
        }
        last
    }

    /// Returns what the pipeline needs to know of an instruction.
    fn priced(table: &CoreTable, costs: &Costs, info: &mut InstructionInfoFactory, at: Step) -> uarch::Step {
        let Step { class, instruction } = at;
        let flat = if repeats(at) { 0 } else { costs.class[class as usize] };
        let next = table.step(info, instruction, flat);
        let measured = || table.is_measured_alone(&next) && is_measured_as_used(instruction);
        let own = has_own_price(class) || class == Class::Microcode && !measured();
        if own { next.priced_by_caller() } else { next }
    }

    /// Prices instructions by their classes. The context is the time since the begin of the run.
    fn by_class(
        costs: &Costs,
        before: &Context,
        run: &mut Steps,
        put: &mut dyn FnMut(Price),
        after: Option<&mut Context>,
    ) {
        let (mut elapsed, mut branches) = (sum_of(before), false);
        for Step { class, .. } in run {
            let price = costs.class[class as usize];
            elapsed = elapsed.saturating_add(price);
            branches = leads_on(class);
            put(Price::of(price));
        }
        if let Some(after) = after {
            after.0 = if branches { Vec::new() } else { elapsed.to_le_bytes().to_vec() };
        }
    }
}

/// Returns the time since the begin of the run, from a context of [`Core::by_class`].
fn sum_of(context: &Context) -> u32 {
    context.0.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Returns true for MOVS or STOS with a repeat prefix, which [`Timing::repeated`] prices.
fn repeats(Step { class, instruction }: Step) -> bool {
    // Of the string instructions only these write memory, which is then the first operand.
    class == Class::String
        && matches!(instruction.op0_kind(), OpKind::MemoryESDI | OpKind::MemoryESEDI | OpKind::MemoryESRDI)
        && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
}

/// Returns true for classes whose prices are not those of a pipeline: what the instruction does is an event, depends on
/// its operands, or is a price that the board relies on.
fn has_own_price(class: Class) -> bool {
    use Class::*;
    matches!(
        class,
        System | String | StringStep | Pause | ReadTsc | StateSave | CacheLine | Random | TileMove | TileMultiply
    )
}

/// Returns true if what a table of forms has of an instruction in microcode is what code pays for it. VERW's cost is that of its
/// event. STI and CLI were measured in rows of themselves: on Zen 4, STI takes 47 cycles there. A whole system call with an invalid
/// number takes 285 cycles on Zen 5, which leaves no room for that.
fn is_measured_as_used(instruction: &Instruction) -> bool {
    !matches!(instruction.mnemonic(), Mnemonic::Verw | Mnemonic::Sti | Mnemonic::Cli)
}
