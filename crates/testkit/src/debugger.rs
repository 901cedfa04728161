//! A debugger that stops a processor at random and changes nothing.

use crate::{CODE, DATA, Machine, Random};
use cpu::Exit;
use cpu::stops::{Stops, Watch, Watched};
use ledger::Ticks;
use std::sync::Arc;

/// Number of stops after which the debugger detaches.
const MOST_STOPS: u32 = 2000;

/// The random debugger.
pub struct Debugger {
    stops: Arc<Stops>,
    random: Random,
    watches: Vec<Watch>,
    breakpoints: Vec<u64>,
    left: u32,
}

impl Debugger {
    /// Attaches to a machine that has not run. A few stops are set before the code is decoded.
    pub fn attach(machine: &mut Machine, seed: u64) -> Self {
        let stops = Arc::new(Stops::default());
        machine.cpu.debug(stops.clone());
        let mut debugger =
            Self { stops, random: Random::new(!seed), watches: Vec::new(), breakpoints: Vec::new(), left: MOST_STOPS };
        for _ in 0..8 {
            debugger.change(machine);
        }
        debugger
    }

    /// Adds or removes a stop.
    fn change(&mut self, machine: &mut Machine) {
        match self.random.below(8) {
            0..=2 => {
                let near = self.random.of(&[machine.cpu.code_linear(), CODE, CODE + 4096]);
                let address = near + self.random.below(64);
                machine.cache.code.add_breakpoint(address);
                self.breakpoints.push(address);
            }
            3 => {
                if let Some(address) = self.breakpoints.pop() {
                    machine.cache.code.remove_breakpoint(address);
                }
            }
            4 => {
                let near = self.random.of(&[machine.cpu.arch.gpr[4], DATA, DATA + 4096]);
                let kind = self.random.of(&[Watched::Write, Watched::Read, Watched::Both]);
                let start = near.wrapping_add(self.random.below(256));
                let watch = Watch { start, len: 1 + self.random.below(40), kind };
                self.stops.watch(watch);
                self.watches.push(watch);
                machine.cpu.watches_changed();
            }
            _ => {
                if let Some(watch) = self.watches.pop() {
                    assert!(self.stops.unwatch(watch));
                    machine.cpu.watches_changed();
                }
            }
        }
    }

    /// Runs the machine until `deadline`, with stops on the way.
    pub fn run(&mut self, machine: &mut Machine, deadline: Ticks) -> Exit {
        loop {
            let exit = machine.cpu.run(&mut machine.cache, deadline);
            if exit != Exit::Debug {
                return exit;
            }
            assert!(self.stops.take_why().is_some(), "it has stopped for a reason");
            self.stops.clear();
            self.left = self.left.saturating_sub(1);
            if self.left == 0 {
                machine.cpu.leave_alone();
                continue;
            }
            if self.random.one_in(4) {
                self.change(machine);
            }
            if self.random.one_in(2) {
                machine.cpu.seen();
                self.stops.step(Some(0));
            }
        }
    }
}
