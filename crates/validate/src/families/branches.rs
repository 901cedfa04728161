//! The time of a branch by the pattern of its directions or targets.

use crate::kernel::{Data, Kernel};
use crate::layout::SMALL;
use iced_x86::code_asm::{CodeAssembler, byte_ptr, ptr, registers::*};
use silicon::random::Random;

/// Branches that a pattern has: more than a predictor can learn by heart, although a measurement is repeated many times. A Zen 4 learns seven
/// of eight directions of 65,536 at random.
const LEN: u64 = 1 << 20;
/// Branches in front of the measured ones, by which periodic patterns are learnt.
const WARM: u64 = 1 << 16;

/// Returns the kernels: each round executes one branch whose direction or target is read from memory.
pub fn kernels(quick: bool) -> Vec<Kernel> {
    let mut random = Random::new(7);
    let mut coin = |percent: u64| -> Vec<u8> { (0..LEN).map(|_| u8::from(random.below(100) < percent)).collect() };
    let mut patterns = vec![
        ("always".to_string(), vec![1; LEN as usize]),
        ("never".to_string(), vec![0; LEN as usize]),
        ("random".to_string(), coin(50)),
        ("random, 10% taken".to_string(), coin(10)),
        ("random, 2% taken".to_string(), coin(2)),
        ("random, 90% taken".to_string(), coin(90)),
    ];
    let periods: &[u64] = if quick { &[2, 8, 64] } else { &[2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256] };
    for period in periods {
        let once = (0..LEN).map(|n| u8::from(n % period == 0)).collect();
        patterns.push((format!("one of {period} taken"), once));
    }
    for period in if quick { &[16, 128][..] } else { &[8, 16, 32, 64, 128, 256, 1024, 4096] } {
        let word = Random::bytes(*period, *period as usize);
        let repeated = (0..LEN).map(|n| word[(n % period) as usize] & 1).collect();
        patterns.push((format!("random word of {period}"), repeated));
    }
    let mut all: Vec<Kernel> = patterns.into_iter().map(|(name, pattern)| conditional(name, pattern)).collect();
    all.push(correlated("two branches on one random bit", false));
    all.push(correlated("the second branch is the first one's opposite", true));
    all.push(sorted("comparison with random data", false));
    all.push(sorted("comparison with sorted data", true));
    for targets in if quick { &[1u64, 8][..] } else { &[1, 2, 4, 8, 16] } {
        all.push(indirect(format!("indirect call, {targets} in turn"), *targets, |n, targets| n % targets));
    }
    for targets in if quick { &[8u64][..] } else { &[2, 4, 8, 16] } {
        let word = Random::bytes(*targets, LEN as usize);
        let random = move |n: u64, targets: u64| u64::from(word[n as usize]) % targets;
        all.push(indirect(format!("indirect call, {targets} at random"), *targets, random));
    }
    all
}

/// Part of the time of calls to random targets that calls to targets in turn take at least if nothing predicts them.
const UNPREDICTED: f64 = 0.8;

/// Returns true if indirect branches are predicted by their last target alone: calls to eight targets in turn take as long as calls to eight
/// targets at random. `cycles` gives the figure of a kernel.
pub fn forgets_targets(cycles: impl Fn(&str) -> Option<f64>) -> bool {
    let [turn, random] = ["in turn", "at random"].map(|order| cycles(&format!("indirect call, 8 {order}")));
    turn.zip(random).is_some_and(|(turn, random)| turn > random * UNPREDICTED)
}

/// A branch over an addition.
fn conditional(name: String, pattern: Vec<u8>) -> Kernel {
    let body = |a: &mut CodeAssembler| {
        let mut over = a.create_label();
        a.movzx(ecx, byte_ptr(rsi + SMALL))?;
        a.inc(esi)?;
        a.and(esi, LEN as i32 - 1)?;
        a.test(ecx, ecx)?;
        a.jne(over)?;
        a.add(r8, r9)?;
        a.set_label(&mut over)?;
        a.add(r10, r9)
    };
    Kernel::new(name, LEN / 4, |a| a.xor(esi, esi), body).warm(WARM).with(Data::Bytes(SMALL, pattern))
}

/// Two branches on the same bit.
fn correlated(name: &str, opposite: bool) -> Kernel {
    let pattern = Random::bytes(11, LEN as usize).into_iter().map(|byte| byte & 1).collect();
    let body = move |a: &mut CodeAssembler| {
        let (mut first, mut second) = (a.create_label(), a.create_label());
        a.movzx(ecx, byte_ptr(rsi + SMALL))?;
        a.inc(esi)?;
        a.and(esi, LEN as i32 - 1)?;
        a.test(ecx, ecx)?;
        a.jne(first)?;
        a.add(r8, r9)?;
        a.set_label(&mut first)?;
        a.add(r10, r9)?;
        a.test(ecx, ecx)?;
        if opposite {
            a.je(second)?;
        } else {
            a.jne(second)?;
        }
        a.add(r8, r9)?;
        a.set_label(&mut second)?;
        a.add(r11, r9)
    };
    Kernel::new(name, LEN / 4, |a| a.xor(esi, esi), body).warm(WARM).with(Data::Bytes(SMALL, pattern))
}

/// A comparison of each byte with 128, as in the sum of those that are at least as great.
fn sorted(name: &str, in_order: bool) -> Kernel {
    let mut bytes = Random::bytes(13, LEN as usize);
    if in_order {
        bytes.sort_unstable();
    }
    let body = |a: &mut CodeAssembler| {
        let mut less = a.create_label();
        a.movzx(ecx, byte_ptr(rsi + SMALL))?;
        a.inc(esi)?;
        a.and(esi, LEN as i32 - 1)?;
        a.cmp(ecx, 128)?;
        a.jb(less)?;
        a.add(r8, rcx)?;
        a.set_label(&mut less)?;
        a.add(r10, r9)
    };
    Kernel::new(name, LEN, |a| a.xor(esi, esi), body).warm(WARM).with(Data::Bytes(SMALL, bytes))
}

/// Size of a function that is called indirectly.
const FUNCTION: usize = 16;

/// An indirect call of one of some functions, which are so short that each has the same size.
fn indirect(name: String, targets: u64, which: impl Fn(u64, u64) -> u64) -> Kernel {
    let offsets = (0..LEN).map(|n| which(n, targets) as u8).collect();
    let body = move |a: &mut CodeAssembler| {
        let (mut functions, mut over) = (a.create_label(), a.create_label());
        a.jmp(over)?;
        a.set_label(&mut functions)?;
        for n in 0..targets {
            a.add(r8, n as i32 + 1)?;
            a.ret()?;
            a.nops_with_size(FUNCTION - 5)?;
        }
        a.set_label(&mut over)?;
        a.movzx(ecx, byte_ptr(rsi + SMALL))?;
        a.inc(esi)?;
        a.and(esi, LEN as i32 - 1)?;
        a.shl(ecx, FUNCTION.trailing_zeros())?;
        a.lea(rbx, ptr(functions))?;
        a.add(rcx, rbx)?;
        a.call(rcx)
    };
    Kernel::new(name, LEN / 4, |a| a.xor(esi, esi), body).warm(WARM).with(Data::Bytes(SMALL, offsets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_that_are_not_predicted_are_noticed() {
        let machine = |turn: f64| {
            move |name: &str| match name {
                "indirect call, 8 in turn" => Some(turn),
                "indirect call, 8 at random" => Some(24.3),
                _ => None,
            }
        };
        assert!(forgets_targets(machine(25.6)));
        assert!(!forgets_targets(machine(6.1)));
        assert!(!forgets_targets(|_| None));
        let names: Vec<String> = kernels(true).into_iter().map(|kernel| kernel.name).collect();
        let cycles = |name: &str| names.iter().any(|known| known == name).then_some(1.0);
        assert!(forgets_targets(cycles), "a quick validation has both");
    }
}
