//! Models of time of the processor under test, for blocks that are repeated.

use cpu::Model;
use cpu::time::Context;
use iced_x86::Instruction;
use ledger::TICKS_PER_CYCLE;
use ledger::profile::Profile;
use silicon::model::BlockModel;

/// The prices of the instructions of a run, as the processor under test charges them.
pub struct OfProfile {
    name: String,
    model: Model,
}

/// Repetitions after which a block is priced, and repetitions that are priced.
const BEFORE: usize = 16;
const PRICED: usize = 48;

impl OfProfile {
    /// Returns the model of a profile, with the model of time that the profile selects.
    pub fn new(profile: &Profile) -> Self {
        let model = Model::of(profile, profile.costs(), profile.geometry(), &profile.cpuid());
        Self { name: format!("{:?}:{}", profile.clock, profile.name).to_lowercase(), model }
    }
}

impl BlockModel for OfProfile {
    fn name(&self) -> &str {
        &self.name
    }

    fn cycles(&self, block: &[Instruction]) -> f64 {
        let ops: Vec<_> = block.iter().map(|i| cpu::decode::operation(i, cpu::mode::BITS64).0).collect();
        let mut context = Context::default();
        let mut once = || -> u64 {
            let price = |op| u64::from(self.model.timing.instruction(&self.model.costs, &mut context, op));
            ops.iter().map(price).sum()
        };
        (0..BEFORE).for_each(|_| {
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
    fn a_flat_model_adds_the_prices_of_classes() {
        let profile = Profile::named("zen3").unwrap();
        let model = OfProfile::new(&profile);
        let block = silicon::Block::decode(&[0x48, 0x01, 0xd8, 0x48, 0x8b, 0x03]).unwrap(); // add rax, rbx; mov rax, [rbx]
        let price = |class: ledger::Class| f64::from(profile.costs().class[class as usize]) / TICKS_PER_CYCLE as f64;
        assert_eq!(model.name(), "flat:zen3");
        assert_eq!(model.cycles(block.instructions()), price(ledger::Class::Alu) + price(ledger::Class::Load));
    }
}
