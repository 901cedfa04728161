//! What a core is: what each instruction takes on it, and what a run of instructions takes.
//!
//! ```
//! use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory};
//! use uarch::{CoreTable, State, step};
//!
//! let core = CoreTable::named("zen3").unwrap();
//! let code = [0x48, 0x01, 0xc3, 0x48, 0x0f, 0xaf, 0xd8]; // add rbx, rax; imul rbx, rax
//! let (mut info, mut state) = (InstructionInfoFactory::new(), State::new());
//! let mut ticks = 0;
//! for instruction in Decoder::with_ip(64, &code, 0x1000, DecoderOptions::NONE) {
//!     ticks += step(core, &mut state, &core.step(&mut info, &instruction, 1000));
//! }
//! ticks += state.close(core, true); // what a branch back to the run's begin adds: the chain through RBX
//! assert_eq!(ticks, 4000);
//! ```
//!
//! - [`CoreTable`] is a core: its [`Forms`](core::Forms) say what an instruction takes by the decoder's code and the kind of its
//!   operands, its [`Parameters`](core::Parameters) say what the pipeline is. [`CoreTable::named`] returns one that is built in.
//! - [`Step`] is what the pipeline needs to know of an instruction, derived once by [`CoreTable::step`]. [`Step::known`] is false if no
//!   table has its form: then it takes the price that the caller passed, and a report can count it.
//! - [`step`] returns the marginal price of an instruction in a run, in ticks (thousandths of a cycle), and changes the [`State`], which
//!   [`State::encode`] makes a context of few bytes. [`State::close`] is the run's end.
//! - [`InFlight`] follows several runs, each of which takes its price, and says how long after that the condition of a branch is known.
//! - [`string`](fn@string) is the price of a repeated string instruction by length, alignment and the distance of its operands.
//!
//! Nothing here knows caches, predictors or the rest of a machine; every access hits the first level.

pub mod core;
pub mod pipeline;
mod string;

pub use core::{CoreError, CoreTable};
pub use pipeline::{End, InFlight, Lead, State, Step, step};
pub use string::{Repeat, string};
