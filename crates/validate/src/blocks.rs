//! Basic blocks of this machine's programs, repeated: the code that `silicon` executes natively, on the model.

use crate::bare::{Bare, BareError};
use iced_x86::{Decoder, DecoderOptions, Instruction};
use ledger::profile::Profile;
use silicon::layout::{self, CODE, PAGE, PATTERN, SLOTS, Slot};
use silicon::measure::Traced;

/// Stack of the caller of a block.
const STACK: u64 = 0x9_0000;
/// Most rounds of a loop: the model has no noise to overcome.
const ROUNDS: u64 = 8;

/// Returns the instruction of a measured block at an address, if there is one.
pub fn instruction_at(traced: &Traced, address: u64) -> Option<Instruction> {
    let at = usize::try_from(address.checked_sub(CODE)?).ok()?;
    let code = traced.code.bytes.get(at..)?;
    let instruction = Decoder::with_ip(64, code, address, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// Returns the cycles of one repetition of a measured block on the processor of a profile.
pub fn measure(profile: &Profile, traced: &Traced) -> Result<f64, BareError> {
    let code = &traced.code;
    let mut bare = Bare::new(profile, 8 << 20);
    bare.map(CODE, code.bytes.len() as u64);
    bare.map(SLOTS, PAGE);
    bare.map(STACK - PAGE, PAGE);
    traced.pages.iter().for_each(|page| bare.map(*page, PAGE));
    bare.write(CODE, &code.bytes);
    bare.write_quad(Slot::Vector.address(), layout::VECTOR);
    bare.write_quad(Slot::VectorHigh.address(), layout::VECTOR);
    bare.write(Slot::Mxcsr.address() + 4, &layout::MXCSR.to_le_bytes());
    let pattern: Vec<u8> = PATTERN.to_le_bytes().repeat(PAGE as usize / 8);
    let mut run = |function, rounds| {
        traced.pages.iter().for_each(|page| bare.write(*page, &pattern));
        bare.write_quad(Slot::Rounds.address(), rounds);
        bare.call(function, STACK)?;
        let stamps = [Slot::Start, Slot::End].map(|slot| bare.read_quad(slot.address()));
        Ok(stamps[1].wrapping_sub(stamps[0]) as i64)
    };
    let rounds = traced.rounds.min(ROUNDS);
    // The first executions fill the caches.
    run(code.once, rounds)?;
    run(code.twice, rounds)?;
    let taken = run(code.twice, rounds)? - run(code.once, rounds)?;
    Ok(taken as f64 / (rounds * code.copies as u64) as f64)
}
