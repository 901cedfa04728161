//! Common parts of tests of whole machines: a guest of a few instructions, and a host that does nothing.

use crate::board::Parts;
use crate::host::{Host, Poll};
use crate::machine::{ClockSource, Config, Machine};
use crate::platform::Platform;
use cpu::Tier;
use ledger::{Profile, Ticks};
use std::time::Duration;

/// Load address of the image.
pub const LOAD: u32 = 0x10_0000;
/// Entry point, after the header.
pub const ENTRY: u32 = LOAD + 0x30;

/// Returns the configuration of a machine with one skx processor that runs 32-bit code, as a multiboot 1 image.
pub fn config(code: &[u8], platform: Platform, tier: Tier) -> Config {
    let (flags, end) = (1u32 << 16, ENTRY + code.len() as u32);
    let checksum = 0u32.wrapping_sub(0x1bad_b002 + flags);
    let head = [0x1bad_b002, flags, checksum, LOAD, LOAD, end, end, ENTRY, 0, 0, 0, 0];
    Config {
        memory: 4 << 20,
        cpus: 1,
        profile: Profile::named("skx").unwrap(),
        kernel: head.iter().flat_map(|word| word.to_le_bytes()).chain(code.iter().copied()).collect(),
        kernel_name: "counter".into(),
        modules: Vec::new(),
        cmdline: String::new(),
        parts: Parts::default(),
        clock: ClockSource::Virtual,
        branches: false,
        stacks: ledger::stack::Keeps::default(),
        platform,
        tier,
    }
}

/// Returns the platform with a hypervisor on that processor, with default settings.
pub fn hvm() -> Platform {
    let profile = Profile::named("skx").unwrap();
    Platform::Hvm(hypervisor::config::Switches::default().resolve(&profile).unwrap())
}

/// A host that does nothing.
pub struct Nobody;

impl Host for Nobody {
    fn output(&mut self, _: &[u8]) {}
    fn poll(&mut self, _: Ticks, _: bool) -> Poll {
        Poll::default()
    }
    fn idle(&mut self, _: Duration) {}
}

/// Runs a machine for a number of slices, at whose end its guest has not ended.
pub fn run_slices(machine: &mut Machine, slices: u64) {
    let mut left = slices + 1;
    let mut over = |_: &Machine| {
        left -= 1;
        left == 0
    };
    assert_eq!(machine.run_until(&mut Nobody, &mut over), None, "it runs longer");
}
