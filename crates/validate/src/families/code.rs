//! The time of a line of code by the size of the code that is executed in a loop: in a row, and with a branch from line to
//! line, in the order of addresses and in random order.

use crate::kernel::Kernel;
use iced_x86::IcedError;
use iced_x86::code_asm::CodeAssembler;
use silicon::random::Random;

/// Size of a line.
const LINE: u64 = 64;
/// Instructions in a line, in front of its branch if it has one.
const WORK: usize = 7;
/// An instruction: `lea r8, [r9 + 0x10000000]` in eight bytes. None waits for another.
const LEA: [u8; 8] = [0x4d, 0x8d, 0x84, 0x21, 0, 0, 0, 0x10];

/// How control goes from line to line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Without branches.
    Straight,
    /// By a branch to the next line.
    InOrder,
    /// By a branch to any line.
    Random,
}

impl Order {
    /// Every order.
    pub const ALL: [Self; 3] = [Self::Straight, Self::InOrder, Self::Random];

    /// Returns the order's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Straight => "no branches",
            Self::InOrder => "branches to the next line",
            Self::Random => "branches to any line",
        }
    }
}

/// Returns the sizes, in bytes.
pub fn sizes(quick: bool) -> &'static [u64] {
    match quick {
        false => &[8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10],
        true => &[8 << 10, 64 << 10, 256 << 10],
    }
}

/// Returns the kernels, with their orders and sizes.
pub fn kernels(quick: bool) -> Vec<(Order, u64, Kernel)> {
    let of = |order: Order| sizes(quick).iter().map(move |size| (order, *size, kernel(order, *size)));
    Order::ALL.into_iter().flat_map(of).collect()
}

/// Returns the line that follows each line, so that one loop goes through all of them.
fn successors(order: Order, lines: usize) -> Vec<usize> {
    let mut way: Vec<usize> = (0..lines).collect();
    if order == Order::Random {
        let mut random = Random::new(lines as u64);
        // The first line is where the loop begins.
        for i in (2..lines).rev() {
            way.swap(i, 1 + random.below(i as u64) as usize);
        }
    }
    let mut next = vec![0; lines];
    way.iter().zip(way.iter().cycle().skip(1)).for_each(|(from, to)| next[*from] = *to);
    next
}

fn kernel(order: Order, size: u64) -> Kernel {
    let lines = size / LINE;
    // Some hundred thousand lines, and the code at least twice.
    let rounds = (200_000 / lines).max(2);
    let body = move |a: &mut CodeAssembler| body(a, order, lines as usize);
    Kernel::new(format!("code {}, {size}", order.name()), rounds, |_| Ok(()), body).steps(lines as f64).warm(2)
}

fn body(a: &mut CodeAssembler, order: Order, lines: usize) -> Result<(), IcedError> {
    let next = successors(order, lines);
    for (line, next) in next.into_iter().enumerate() {
        for _ in 0..WORK {
            a.db(&LEA)?;
        }
        match order {
            Order::Straight => a.db(&LEA)?,
            _ => a.db(&branch(line, if next == 0 { lines } else { next }))?,
        }
    }
    Ok(())
}

/// Returns a near branch from the end of a line to the begin of another one, with its padding to eight bytes.
fn branch(from: usize, to: usize) -> [u8; 8] {
    let behind = from as i32 * LINE as i32 + 8 * WORK as i32 + 5;
    let [a, b, c, d] = (to as i32 * LINE as i32 - behind).to_le_bytes();
    [0xe9, a, b, c, d, 0xcc, 0xcc, 0xcc]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_loop_goes_through_all_lines() {
        for order in Order::ALL {
            let next = successors(order, 128);
            let mut at = 0;
            for _ in 0..127 {
                at = next[at];
                assert_ne!(at, 0, "{order:?}");
            }
            assert_eq!(next[at], 0);
            let in_order = next.iter().zip(1..).filter(|(next, after)| **next == *after).count();
            assert_eq!(in_order > 100, order != Order::Random);
        }
    }

    #[test]
    fn each_line_has_a_branch_to_its_successor() {
        let mut assembler = CodeAssembler::new(64).unwrap();
        body(&mut assembler, Order::Random, 16).unwrap();
        let code = assembler.assemble(0).unwrap();
        assert_eq!(code.len() as u64, 16 * LINE);
        let next = successors(Order::Random, 16);
        for (line, bytes) in code.chunks(LINE as usize).enumerate() {
            let mut decoder = iced_x86::Decoder::with_ip(64, bytes, line as u64 * LINE, 0);
            let branch = decoder.iter().nth(WORK).unwrap();
            let to = if next[line] == 0 { 16 } else { next[line] };
            assert_eq!((branch.is_jmp_near(), branch.near_branch_target()), (true, to as u64 * LINE));
        }
    }
}
