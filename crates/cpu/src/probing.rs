//! Stops of a processor at probes: see [`crate::probe`].

use crate::probe::Hit;
use crate::state::Cpu;
use x86::reg;

impl Cpu {
    /// Stops before the instruction at RIP, which has a probe, unless the board has already handled it.
    #[cold]
    pub(crate) fn stops_at_probe(&mut self) -> bool {
        if std::mem::take(&mut self.micro.probe_passed) {
            return false;
        }
        self.micro.probe_passed = true;
        let register = |number: u8| self.arch.gpr[usize::from(number)];
        self.engine.probe = Some(Hit {
            address: self.arch.rip,
            stack: register(reg::RSP),
            first: register(reg::RDI),
            second: register(reg::RSI),
            guest: self.guest_of_software(),
        });
        true
    }

    /// Takes the probe that made [`Cpu::run`] return.
    pub fn take_probe(&mut self) -> Option<Hit> {
        self.engine.probe.take()
    }
}
