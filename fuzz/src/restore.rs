//! The state of a board: saved after some accesses, changed as the bytes select, and restored. A board that accepts the
//! state must work; a board that accepts an unchanged state must do the same as the original.

use crate::devices::{board, calm, step};
use arbitrary::{Result, Unstructured};
use machine::state::DeviceState;

const STEPS: usize = 60;

/// Saves a board, and restores the state as changed by the bytes.
pub fn run(data: &[u8]) {
    // An input that is too short ends this early.
    let _ = drive(&mut Unstructured::new(data));
}

fn drive(input: &mut Unstructured) -> Result<()> {
    let (mut original, ram) = board();
    let mut now = 0;
    for _ in 0..input.int_in_range(0..=STEPS)? {
        step(&mut original, &ram, input, &mut now)?;
        calm(&mut original);
    }
    let mut states = original.save().expect("nothing can't be read");
    let changes = input.int_in_range(0..=3u8)?;
    for _ in 0..changes {
        change(&mut states, input)?;
    }
    let (mut copy, ram) = board();
    match copy.restore(&states) {
        Ok(()) => {}
        Err(error) if changes == 0 => panic!("{error}"),
        Err(_) => return Ok(()),
    }
    if changes == 0 {
        assert_eq!(copy.save().expect("nothing can't be read"), states);
    }
    now = now.max(copy.now());
    for _ in 0..STEPS {
        step(&mut copy, &ram, input, &mut now)?;
        calm(&mut copy);
    }
    Ok(())
}

/// Changes the state of one device: a byte, its length, or all of it.
fn change(states: &mut [DeviceState], input: &mut Unstructured) -> Result<()> {
    let which = input.choose_index(states.len())?;
    let bytes = &mut states[which].bytes;
    match input.int_in_range(0..=4u8)? {
        0 => *bytes = input.arbitrary()?,
        1 => bytes.truncate(usize::from(input.arbitrary::<u16>()?)),
        _ if bytes.is_empty() => bytes.push(input.arbitrary()?),
        _ => {
            let at = usize::from(input.arbitrary::<u16>()?) % bytes.len();
            bytes[at] = input.arbitrary()?;
        }
    }
    Ok(())
}

/// Returns accesses as those of `devices`, then no change, or one of each device's first bytes.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for which in 0..22u8 {
        for at in [0u8, 7, 40] {
            let mut seed = crate::devices::seeds().into_iter().nth(usize::from(which % 5)).unwrap_or_default();
            seed.extend([1, which, 3, at, 0, 0x80]);
            seeds.push(seed);
        }
    }
    seeds
}
