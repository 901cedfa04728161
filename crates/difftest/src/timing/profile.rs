//! Models of time of the processor under test, for blocks that are repeated.

use cpu::Model;
use cpu::time::{Context, Price, Step};
use iced_x86::Instruction;
use ledger::TICKS_PER_CYCLE;
use ledger::profile::{Clock, Profile};
use silicon::model::BlockModel;

/// The prices of the instructions of a run, as the processor under test charges them with one of its models of time.
pub struct OfProfile {
    name: String,
    model: Model,
}

/// Instructions after which repetitions are priced: more than a core has in flight.
const BEFORE: usize = 1024;
/// Repetitions that are priced.
const PRICED: usize = 48;

impl OfProfile {
    /// Returns a model of time with the figures of a profile, or `None` if the profile has none for it.
    pub fn new(profile: &Profile, clock: Clock) -> Option<Self> {
        let profile = profile.clone().with_clock(clock).ok()?;
        let model = Model::of(&profile, profile.costs(), profile.geometry(), &profile.cpuid());
        Some(Self { name: format!("{clock:?}:{}", profile.name).to_lowercase(), model })
    }
}

impl BlockModel for OfProfile {
    fn name(&self) -> &str {
        &self.name
    }

    fn cycles(&self, block: &[Instruction]) -> f64 {
        let class = |i: &Instruction| cpu::decode::operation(i, cpu::mode::BITS64).0.class();
        let classes: Vec<_> = block.iter().map(class).collect();
        let mut context = Context::default();
        let mut once = || -> u64 {
            let mut ticks = 0;
            let mut steps = classes.iter().zip(block).map(|(class, instruction)| Step { class: *class, instruction });
            let mut add = |price: Price| ticks += u64::from(price.ticks);
            let mut after = Context::default();
            self.model.timing.run(&self.model.costs, &context, &mut steps, &mut add, Some(&mut after));
            context = after;
            ticks
        };
        (0..BEFORE.div_ceil(block.len())).for_each(|_| {
            once();
        });
        let ticks: u64 = (0..PRICED).map(|_| once()).sum();
        ticks as f64 / (PRICED as u64 * TICKS_PER_CYCLE) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_of_time_price_repetitions() {
        let profile = Profile::named("zen3").unwrap();
        let model = OfProfile::new(&profile, Clock::Flat).unwrap();
        let block = silicon::Block::decode(&[0x48, 0x01, 0xd8, 0x48, 0x8b, 0x03]).unwrap(); // add rax, rbx; mov rax, [rbx]
        let price = |class: ledger::Class| f64::from(profile.costs().class[class as usize]) / TICKS_PER_CYCLE as f64;
        assert_eq!(model.name(), "flat:zen3");
        let core = OfProfile::new(&profile, Clock::Core).unwrap();
        let chain = silicon::Block::decode(&[0x48, 0x0f, 0xaf, 0xc3]).unwrap(); // imul rax, rbx
        assert_eq!((core.name(), core.cycles(chain.instructions())), ("core:zen3", 3.0));
        assert_eq!(model.cycles(block.instructions()), price(ledger::Class::Alu) + price(ledger::Class::Load));
    }
}
