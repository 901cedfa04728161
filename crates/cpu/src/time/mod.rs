//! Time: the only module that knows what anything costs.
//!
//! Everything else says what happens, and this module says how long it takes:
//!
//! | what happens | asked by | function |
//! |---|---|---|
//! | instructions in a straight line | blocks, when they are decoded; an instruction that is executed alone | [`Runs::price`] |
//! | a branch whose direction is predicted | its handler | `Cpu::conditional_branch` |
//! | how late the condition of a mispredicted branch is known, because it waits for earlier runs | its handler | `Cpu::late_behind_runs` |
//! | a branch, call or return whose target is predicted | its handler | `Cpu::indirect_branch`, `Cpu::near_call`, `Cpu::near_return` |
//! | a translation of an address | the miss of a TLB | `Cpu::charge_second_level`, `Cpu::charge_walk` |
//! | any other event | its handler | [`Cpu::charge`](crate::Cpu::charge) |
//!
//! **The price of a run.** A *run* is a straight line of executed instructions: it begins after a branch, after an
//! instruction that ends its block by its row of the table, and after an event, and it ends with the next of these. A
//! [`Timing`] prices the instructions of a run one after the other: the price of an instruction is the *marginal* one,
//! by which it makes the run longer, and depends on the instructions in front of it through a [`Context`]. Decoded
//! operations store marginal prices. The price of any part of a run is therefore a sum, and where a run is cut does not
//! matter: at a probe, at the end of a page or after the most operations of a block, before an instruction that restarts
//! alone, by a trace, a sample or a debugger. The block after a cut is decoded for the context that it follows, and is
//! found by it: the same bytes in another context are another block. The run behind a conditional branch that is not taken, and the run
//! behind a direct call or a predicted return, may have a context at their begin, too.
//!
//! **State.** What a model remembers is plain data in [`Micro`](crate::micro::Micro): clock, TLBs, predictor, the
//! context at the next instruction, and where the last runs began. Addresses of translated code and of the host's memory are in
//! [`Engine`](crate::engine::Engine).

mod charge;
pub(crate) mod conditional;
mod core;
mod late;
pub mod memory;
pub(crate) mod paths;
mod place;
pub mod predictor;
pub(crate) mod recent;
pub(crate) mod resolution;
mod runs;

pub use self::core::Core;
pub use place::{Place, START};
pub use runs::{By, Context, End, Runs};

use iced_x86::Instruction;
use ledger::profile::{Clock, Profile};
use ledger::{Class, Costs, Ticks};
use std::fmt::Debug;
use std::sync::Arc;
use uarch::CoreTable;
pub use uarch::Lead;

/// An instruction to be priced.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The class as which it is charged.
    pub class: Class,
    /// The instruction.
    pub instruction: &'a Instruction,
}

/// The instructions of a run, for [`Timing::late_behind`]. Each is as a pipeline needs it, with true if it waits for all in front of it.
#[derive(Clone, Debug, Default)]
pub struct Followed(Box<[(uarch::Step, bool)]>);

/// Instructions to be priced, in their order.
pub type Steps<'a> = dyn Iterator<Item = Step<'a>> + 'a;

/// The price of an instruction in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// Marginal price, in ticks.
    pub ticks: u32,
    /// For a conditional branch, what a misprediction costs in addition to the refill.
    pub branch: Resolution,
}

/// MOVS or STOS with a repeat prefix, which moves forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repeated {
    /// Size of an element in bytes.
    pub size: u8,
    /// Number of bytes.
    pub length: u64,
    /// Address of the first byte that is written.
    pub destination: u64,
    /// For MOVS, the address of the first byte that is read.
    pub source: Option<u64>,
}

/// When the condition of a conditional branch is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resolution {
    /// Ticks since the begin of the run to the end of the branch.
    pub elapsed: u32,
    /// Ticks for which the condition is not known yet when the branch could execute, if all loads hit.
    pub late: u32,
    /// True if the condition comes from a load of the run.
    pub waits_for_load: bool,
}

impl Price {
    /// Returns the price of an instruction that is no branch.
    pub fn of(ticks: u32) -> Self {
        Self { ticks, branch: Resolution::default() }
    }
}

/// A model of the time that instructions take.
///
/// The price may depend on nothing but the instruction and the context, and the context on nothing but the instructions
/// in front of it in the run: then virtual time is a function of what the guest executes.
pub trait Timing: Debug + Send + Sync {
    /// Passes the marginal prices of instructions that follow a context to `put`, and writes the context after them to `after`, unless
    /// nobody needs it. Behind a conditional branch, that is the context at the begin of the run to which the branch does not lead; behind a call or
    /// return, it is [`Timing::called`].
    fn run(
        &self,
        costs: &Costs,
        before: &Context,
        run: &mut Steps,
        put: &mut dyn FnMut(Price),
        after: Option<&mut Context>,
    );

    /// Returns the context at the begin of a run to which a direct call or a predicted return leads.
    fn called(&self) -> Context {
        Context::default()
    }

    /// Prepares the instructions of a run for [`Timing::late_behind`].
    fn follow(&self, costs: &Costs, run: &mut Steps) -> Followed {
        let _ = (costs, run);
        Followed::default()
    }

    /// Returns the ticks for which the condition of a mispredicted branch, the last instruction of these runs, is not known yet when the branch
    /// could execute; 0 if the model does not follow that. With each run comes how it leads to the next one, or `None` if what is in between is not
    /// known.
    fn late_behind(&self, runs: &mut dyn Iterator<Item = (&Followed, Option<Lead>)>) -> u32 {
        let _ = runs;
        0
    }

    /// Returns the price of MOVS or STOS with a repeat prefix, start-up included, which its run does not contain; `None` if
    /// the instruction has the price of its class and of steps.
    fn repeated(&self, repeated: &Repeated) -> Option<Ticks> {
        let _ = repeated;
        None
    }

    /// Returns the sum of the prices of the instructions in front of a context, since the begin of the run. A model without
    /// caches need not know it.
    fn elapsed(&self, context: &Context) -> u32 {
        let _ = context;
        0
    }

    /// Returns true if no instruction of its run is in front of a context.
    fn begins(&self, context: &Context) -> bool {
        context.0.is_empty()
    }

    /// Returns true if a context, which may come from a file, can be one of this model's.
    fn knows(&self, context: &Context) -> bool {
        let _ = context;
        true
    }

    /// Returns true if there are contexts other than the empty one.
    fn has_contexts(&self) -> bool {
        true
    }
}

/// The additive model: an instruction costs the price of its class, whatever is in front of it.
#[derive(Clone, Copy, Debug)]
pub struct Flat;

impl Timing for Flat {
    fn run(&self, costs: &Costs, _: &Context, run: &mut Steps, put: &mut dyn FnMut(Price), _: Option<&mut Context>) {
        run.for_each(|step| put(Price::of(costs.class[step.class as usize])));
    }

    fn has_contexts(&self) -> bool {
        false
    }
}

/// Returns the model of time that a profile selects. A core that is not known counts as none.
pub fn timing(profile: &Profile) -> Arc<dyn Timing> {
    match profile.clock {
        Clock::Flat => Arc::new(Flat),
        Clock::Core => {
            let table = profile.core.as_ref().and_then(|core| CoreTable::named(&core.value).ok());
            Arc::new(Core { table })
        }
    }
}
