//! Random blocks: instructions of random forms on a few registers, with memory operands that stay on one page.

use crate::forms::Form;
use cpu::row::Role;
use iced_x86::{Code, FlowControl, Instruction, OpKind, Register};
use silicon::Block;
use testkit::Random;
use testkit::operands::{Class, Operands, Part, instruction};

/// Numbers of the registers for values, of which a block uses a few, and of those for addresses, which no instruction
/// names as an operand.
const VALUES: [u32; 9] = [0, 1, 2, 3, 8, 9, 10, 11, 13];
const POINTERS: [u32; 5] = [5, 6, 7, 14, 15];

/// A source of random blocks.
pub struct Blocks {
    random: Random,
    families: Vec<Vec<Form>>,
    common: Vec<Form>,
}

fn flow_control(code: Code) -> FlowControl {
    let mut i = Instruction::default();
    i.set_code(code);
    i.flow_control()
}

/// The operands of a block.
struct Chosen<'a> {
    random: &'a mut Random,
    /// Registers of each class that the block uses: more registers make shorter chains.
    registers: u64,
    /// Percentage of operands in memory.
    memory: u64,
}

impl Operands for Chosen<'_> {
    fn in_memory(&mut self) -> bool {
        self.random.chance(self.memory)
    }

    fn accepts(&mut self, part: Part) -> bool {
        use Part::*;
        match part {
            Register(class) | Either(class) => {
                !matches!(class, Class::Segment | Class::Control | Class::Debug | Class::Test)
            }
            Fixed(_) | Memory | Immediate(_) | One => true,
            Gathered { .. } | Offset | Source | Destination | Masked | Table | Branch { .. } => false,
        }
    }

    fn register(&mut self, class: Class) -> Register {
        let count = self.registers.min(VALUES.len() as u64);
        let value = VALUES[self.random.below(count) as usize];
        let vector = self.random.below(2 * self.registers) as u32 % 16;
        match class {
            Class::Byte if value < 4 => Register::AL + value,
            Class::Byte => Register::R8L + (value - 8),
            Class::Word => Register::AX + value,
            Class::Double => Register::EAX + value,
            Class::Quad => Register::RAX + value,
            Class::Mmx => Register::MM0 + vector % 8,
            Class::Xmm => Register::XMM0 + vector,
            Class::Ymm => Register::YMM0 + vector,
            Class::Zmm => Register::ZMM0 + vector,
            Class::Opmask => Register::K0 + vector % 8,
            Class::X87 => Register::ST0 + vector % 8,
            Class::Segment | Class::Control | Class::Debug | Class::Test => Register::None,
        }
    }

    fn memory(&mut self, i: &mut Instruction, _: Part) {
        i.set_memory_base(Register::RAX + self.random.of(&POINTERS));
        let displacement = 64 * self.random.below(3);
        i.set_memory_displacement64(displacement);
        i.set_memory_displ_size(u32::from(displacement > 0));
    }

    fn offset(&mut self, _: &mut Instruction) {}

    fn address_bits(&mut self) -> u32 {
        64
    }

    fn immediate(&mut self, _: OpKind) -> u64 {
        self.random.below(100)
    }

    fn branch(&mut self, _: bool) -> u64 {
        0
    }

    fn prefixes(&mut self, _: &mut Instruction) {}
}

impl Blocks {
    /// Creates the source of a seed, with these forms.
    pub fn new(seed: u64, forms: &[Form]) -> Self {
        let role = |form: &Form| cpu::table::row(form.code.mnemonic()).map(|row| row.role);
        let fits = |form: &&Form| {
            role(form).is_some_and(|role| role != Role::System) && flow_control(form.code) == FlowControl::Next
        };
        let forms: Vec<Form> = forms.iter().filter(fits).copied().collect();
        let mut families: Vec<Vec<Form>> = Vec::new();
        for form in &forms {
            match families.iter_mut().find(|family| family[0].family == form.family) {
                Some(family) => family.push(*form),
                None => families.push(vec![*form]),
            }
        }
        let common = forms.iter().filter(|form| role(form) == Some(Role::Common)).copied().collect();
        Self { random: Random::new(seed), families, common }
    }

    /// Returns the next block: a few common instructions, instructions of one family among common ones, or one
    /// instruction alone.
    pub fn next_block(&mut self) -> Block {
        loop {
            let theme = self.random.below(self.families.len() as u64) as usize;
            let (length, special) = match self.random.below(10) {
                0..=4 => (2 + self.random.below(11), 0),
                5..=7 => (2 + self.random.below(9), 40),
                _ => (1, 100),
            };
            let registers = 2 + self.random.below(7);
            let memory = self.random.of(&[0, 20, 20, 50]);
            let mut instructions = Vec::new();
            while (instructions.len() as u64) < length {
                let forms = if self.random.chance(special) { &self.families[theme] } else { &self.common };
                let form = self.random.of(forms);
                let mut chosen = Chosen { random: &mut self.random, registers, memory };
                match instruction(form.code, &mut chosen) {
                    Some(made) if Block::new(&[made]).is_ok() => instructions.push(made),
                    // The family may have no instruction that fits: another one is drawn.
                    _ if self.random.one_in(50) => break,
                    _ => {}
                }
            }
            if instructions.is_empty() {
                continue;
            }
            if let Ok(block) = Block::new(&instructions)
                && silicon::corpus::hexadecimal(block.instructions()).is_ok()
            {
                return block;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_depend_on_the_seed_alone() {
        let (forms, _) = crate::forms::forms(64);
        let blocks = |seed| {
            let mut blocks = Blocks::new(seed, &forms);
            (0..200)
                .map(|_| silicon::corpus::hexadecimal(blocks.next_block().instructions()).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(blocks(1), blocks(1));
        assert_ne!(blocks(1), blocks(2));
    }
}
