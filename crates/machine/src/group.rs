//! A run of several machines whose NICs share bridges.
//!
//! The machines take turns in windows of virtual time. A window is so short that a frame sent within it can't reach
//! another machine before it ends ([`Exchange::window`]). The order of execution within a window therefore changes
//! nothing, and a run is as deterministic as that of a single machine.

use crate::device::SLICE_CYCLES;
use crate::devices::Clock;
use crate::host::Host;
use crate::host_time::Pace;
use crate::machine::{Machine, Outcome};
use crate::vcpus::Pause;
use ledger::{TICKS_PER_CYCLE, Ticks};
use network::time::{NANOSECOND, SECOND};
use network::{Exchange, Time};
use std::time::{Duration, Instant};

/// Longest time for which the host waits for outside input.
const LONGEST_WAIT: Duration = Duration::from_millis(10);
/// Longest step of sleeping machines while outside input may still come.
const ATTENDED_STEP: Time = 1_000_000 * NANOSECOND;

/// A machine of the group.
struct Member {
    machine: Machine,
    clock: Clock,
    /// Time of the machine's next activity, unless it receives a frame before.
    next: Time,
    /// Time at which the machine polls the host next.
    look: Ticks,
    outcome: Option<Outcome>,
}

impl Member {
    fn new(machine: Machine) -> Self {
        let clock = Clock::new(machine.profile.tsc_hz.value);
        Self { machine, clock, next: 0, look: 0, outcome: None }
    }

    fn ticks(&self, time: Time) -> Ticks {
        self.clock.ticks(time, SECOND)
    }

    fn time(&self, ticks: Ticks) -> Time {
        self.clock.count(ticks, SECOND)
    }

    /// Runs the machine to the end of a window, and polls the host if that is due. The host decides how long to wait
    /// for input.
    fn advance(&mut self, until: Time, host: &mut dyn Host) {
        let end = self.ticks(until);
        let pause = self.machine.vcpus.run_to(end);
        self.next = match pause {
            Pause::Idle(Ticks::MAX) => Time::MAX,
            Pause::Idle(event) => self.time(event),
            _ => until,
        };
        let now = self.machine.vcpus.now();
        // A sleeping machine is not stuck: a frame may wake it.
        let pause = match pause {
            Pause::Slice | Pause::Idle(_) if now < self.look => return,
            Pause::Idle(_) => Pause::Slice,
            pause => pause,
        };
        self.look = now.saturating_add(SLICE_CYCLES * TICKS_PER_CYCLE);
        self.outcome = self.machine.outside(pause, host);
        // The host may have delivered input.
        self.next = self.next.min(until);
    }

    /// Returns true if the guest has ended its machine in an orderly way: by power off or the debug-exit port.
    fn is_done(&self) -> bool {
        matches!(self.outcome, Some(Outcome::PowerOff | Outcome::DebugExit(_)))
    }
}

/// A group of connected machines.
pub struct Group {
    members: Vec<Member>,
    exchange: Exchange,
    pace: Pace,
}

impl Group {
    /// Connects machines, each of which was created with its index in the group
    /// ([`Parts::member`](crate::board::Parts::member)).
    pub fn new(machines: Vec<Machine>) -> Self {
        let exchange = {
            let boards: Vec<_> = machines.iter().map(|machine| machine.board()).collect();
            let networks: Vec<_> = boards.iter().map(|board| board.network()).collect();
            Exchange::new(networks.iter().map(|network| &**network))
        };
        Self { members: machines.into_iter().map(Member::new).collect(), exchange, pace: Pace::default() }
    }

    /// Runs until the first machine ends, or until another machine ends otherwise than by power off or the debug-exit
    /// port. `hosts` are the hosts of the machines. Returns the index of the machine that ended the run, and the
    /// outcome of each: the machines that were still running are stopped.
    pub fn run(&mut self, hosts: &mut [&mut dyn Host]) -> (usize, Vec<Outcome>) {
        self.members.iter_mut().for_each(|member| member.machine.start());
        let ended = loop {
            let until = self.window(hosts);
            let mut ended = None;
            for (number, member) in self.members.iter_mut().enumerate() {
                if member.outcome.is_some() || member.next >= until {
                    continue;
                }
                member.advance(until, &mut *hosts[number]);
                self.exchange.collect(number, &mut member.machine.board().network());
                let ends = member.outcome.is_some() && (number == 0 || !member.is_done());
                ended = ended.or(ends.then_some(number));
            }
            if let Some(number) = ended {
                break number;
            }
            if self.is_stuck(hosts) {
                break 0;
            }
        };
        let stuck = self.members[ended].outcome.is_none();
        let mut outcomes = Vec::new();
        for (member, host) in self.members.iter_mut().zip(hosts.iter_mut()) {
            member.machine.end(&mut **host);
            outcomes.push(member.outcome.unwrap_or(if stuck { Outcome::Stuck } else { Outcome::Stopped }));
        }
        (ended, outcomes)
    }

    /// Returns the machines, after the run.
    pub fn machines(&self) -> impl Iterator<Item = &Machine> {
        self.members.iter().map(|member| &member.machine)
    }

    /// Begins a window and returns its end. The frames that bridges receive in the window are forwarded to the NICs. If
    /// no machine has anything to do before a later time, the window begins at that time.
    fn window(&mut self, hosts: &mut [&mut dyn Host]) -> Time {
        let running = self.members.iter().filter(|member| member.outcome.is_none());
        let start = running.map(|member| member.next).chain(self.exchange.next()).min().unwrap_or(0);
        let start = self.pass(start, hosts);
        let until = start.saturating_add(self.exchange.window());
        let Self { members, exchange, .. } = self;
        exchange.forward(until, |network, port, at, frame| {
            let member = &mut members[network];
            if member.outcome.is_none() {
                member.machine.board().network_enter(port, at, frame);
                member.next = member.next.min(at);
            }
        });
        until
    }

    /// Returns the latest time that a machine has reached.
    fn now(&self) -> Time {
        self.members.iter().map(|member| member.time(member.machine.vcpus.now())).max().unwrap_or(0)
    }

    /// Returns the time to which the machines advance, given that none has anything to do before `start`. If outside
    /// input may still come, virtual time passes at the pace of the host's.
    fn pass(&mut self, start: Time, hosts: &mut [&mut dyn Host]) -> Time {
        let Some(host) = hosts.iter().position(|host| host.attended()) else {
            // Without a next activity there is no time to advance to.
            return if start == Time::MAX { self.now() } else { start };
        };
        let now = self.now();
        if start <= now.saturating_add(self.exchange.window()) {
            self.pace.worked();
            return start;
        }
        let ahead = match start {
            Time::MAX => Some(LONGEST_WAIT),
            _ => self.pace.ahead(Instant::now(), Duration::from_nanos(now / NANOSECOND)),
        };
        if let Some(ahead) = ahead {
            hosts[host].idle(LONGEST_WAIT.min(ahead));
        }
        for member in &mut self.members {
            (member.look, member.next) = (0, now);
        }
        start.min(now.saturating_add(ATTENDED_STEP))
    }

    /// Returns true if nothing can wake any machine.
    fn is_stuck(&self, hosts: &[&mut dyn Host]) -> bool {
        let sleeps = |member: &Member| member.outcome.is_some() || member.next == Time::MAX;
        self.exchange.next().is_none() && self.members.iter().all(sleeps) && !hosts.iter().any(|host| host.attended())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Platform;
    use crate::board::Parts;
    use crate::testing::{self, Nobody};
    use cpu::Tier;
    use ledger::symbols::Symbols;

    /// Returns code that writes to the debug-exit port after `rounds` rounds of a loop.
    fn counts(rounds: u32) -> Vec<u8> {
        let [a, b, c, d] = rounds.to_le_bytes();
        // mov ecx, rounds; dec ecx; jnz; xor eax, eax; out 0xf4, al; jmp.
        vec![0xb9, a, b, c, d, 0x49, 0x75, 0xfd, 0x31, 0xc0, 0xe6, 0xf4, 0xeb, 0xfe]
    }

    /// CLI and HLT.
    const HALTS: [u8; 2] = [0xfa, 0xf4];
    /// Stops the PIT (mov al, 0x30; out 0x43, al), then executes STI and HLT in a loop: nothing can wake it.
    const SLEEPS: [u8; 8] = [0xb0, 0x30, 0xe6, 0x43, 0xfb, 0xf4, 0xeb, 0xfd];
    const SPINS: [u8; 2] = [0xeb, 0xfe];

    fn run(guests: &[&[u8]]) -> (usize, Vec<Outcome>, Vec<Vec<u8>>) {
        let machine = |(number, code): (usize, &&[u8])| {
            let config = testing::config(code, Platform::Bare, Tier::Auto);
            let nic = match "bridge".parse() {
                Ok(network::options::Net::Nic(nic)) => nic,
                other => panic!("{other:?}"),
            };
            let parts = Parts { member: Some(number as u8), nics: vec![nic], ..Parts::default() };
            Machine::new(crate::Config { parts, ..config }).unwrap()
        };
        let mut group = Group::new(guests.iter().enumerate().map(machine).collect());
        let mut hosts: Vec<Nobody> = guests.iter().map(|_| Nobody).collect();
        let mut hosts: Vec<&mut dyn Host> = hosts.iter_mut().map(|host| host as &mut dyn Host).collect();
        let (ended, outcomes) = group.run(&mut hosts);
        let ledgers = group.machines().map(|machine| machine.ledger(&Symbols::default()).to_bytes().unwrap());
        (ended, outcomes, ledgers.collect())
    }

    #[test]
    fn the_first_machine_ends_the_run() {
        let (ended, outcomes, ledgers) = run(&[&counts(50_000), &counts(10), &SPINS, &SLEEPS]);
        assert_eq!(ended, 0);
        let done = Outcome::DebugExit(1);
        assert_eq!(outcomes, [done, done, Outcome::Stopped, Outcome::Stopped]);
        assert_eq!(run(&[&counts(50_000), &counts(10), &SPINS, &SLEEPS]).2, ledgers, "a run can be repeated");
    }

    #[test]
    fn a_machine_that_dies_ends_the_run() {
        let (ended, outcomes, _) = run(&[&SPINS, &counts(10), &HALTS]);
        assert_eq!((ended, outcomes), (2, vec![Outcome::Stopped, Outcome::DebugExit(1), Outcome::Stuck]));
    }

    #[test]
    fn machines_that_sleep_for_ever_are_stuck() {
        let (ended, outcomes, _) = run(&[&SLEEPS, &SLEEPS]);
        assert_eq!((ended, outcomes), (0, vec![Outcome::Stuck, Outcome::Stuck]));
    }

    #[test]
    fn machines_advance_together() {
        let (_, _, ledgers) = run(&[&counts(1_000_000), &SPINS]);
        let clocks: Vec<u64> =
            ledgers.iter().map(|bytes| ledger::Ledger::read(bytes).unwrap().header.clocks[0]).collect();
        // A window of 1.07 us and the overshoot of a block, at 2.1 GHz.
        assert!(clocks[0].abs_diff(clocks[1]) < 4_000 * TICKS_PER_CYCLE, "{clocks:?}");
    }
}
