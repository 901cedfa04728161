//! A debugger stub for gdb's remote protocol.
//!
//!
//! task | file |
//! |---|---|
//! | run with a debugger | `mod.rs` |
//! | stops | `session.rs`; in the processor, [`cpu::stops`] |
//! | reverse execution | `history.rs` |
//! | interface to the protocol's library | `target.rs` |
//! | registers | `registers.rs` |
//! | memory | `memory.rs` |
//! | `monitor` commands | `monitor.rs` |
//! | packets on the connection | `wire.rs` |
//!
//! A debugger is no part of the run: the guest can't see it, and the ledger is the same with and without it.

mod history;
mod memory;
mod monitor;
mod registers;
mod session;
mod target;
mod unreached;
mod wire;

pub use history::{History, Make};
pub use wire::{Listener, Wire};

use crate::host::Host;
use crate::machine::{Machine, Outcome};
use cpu::stops::Watched;
use gdbstub::common::Signal;
use gdbstub::stub::state_machine::GdbStubStateMachine;
use gdbstub::stub::{DisconnectReason, GdbStub, MultiThreadStopReason};
use gdbstub::target::ext::base::reverse_exec::ReplayLogPosition;
use gdbstub::target::ext::breakpoints::WatchKind;
use session::{Session, Stop};
use std::collections::VecDeque;
use std::io;
use std::time::Duration;
use target::thread;
use wire::{Framer, Incoming, LONGEST, Outbox};

/// Interval at which a stopped machine polls the host.
const PATIENCE: Duration = Duration::from_millis(50);

/// Reason for the end of a debugger's session.
enum End {
    /// The debugger has detached: the machine continues without it.
    Detached,
    /// The debugger or the host ends the run, or the guest has ended it.
    Over(Outcome),
}

/// Connection to the debugger.
struct Link {
    wire: Box<dyn Wire>,
    framer: Framer,
    outbox: Outbox,
    received: VecDeque<u8>,
    open: bool,
}

/// gdb's interrupt character, outside of packets.
const INTERRUPT: u8 = 3;

impl Link {
    /// Receives bytes, and waits no longer than `wait`.
    fn receive(&mut self, wait: Duration) {
        self.open = self.open && matches!(self.wire.receive(wait, &mut self.received), Ok(true));
    }

    /// Returns true if the debugger cancels an operation.
    fn interrupted(&mut self) -> bool {
        self.receive(Duration::ZERO);
        let at = self.received.iter().position(|byte| *byte == INTERRUPT);
        if let Some(at) = at {
            self.received.remove(at);
        }
        at.is_some() || !self.open
    }

    fn send(&mut self) {
        let bytes = self.outbox.take();
        if !bytes.is_empty() && self.open {
            self.open = self.wire.send(&bytes).is_ok();
        }
    }

    /// Returns the next bytes for the protocol's library.
    fn next(&mut self, session: &mut Session) -> Option<Vec<u8>> {
        while let Some(byte) = self.received.pop_front() {
            let acknowledged = !self.framer.unacknowledged;
            match self.framer.push(byte) {
                None => {}
                Some(Incoming::Bytes(bytes)) => return Some(bytes),
                Some(Incoming::AskPhysical) => {
                    self.outbox.answer(if session.physical { "1" } else { "0" }, acknowledged);
                }
                Some(Incoming::SetPhysical(physical)) => {
                    session.physical = physical;
                    self.outbox.answer("OK", acknowledged);
                }
            }
        }
        None
    }
}

impl Machine {
    /// Runs as [`Machine::run`] does, under a debugger: nothing is executed before a debugger has connected and
    /// continues the machine.
    ///
    /// A debugger that detaches, or whose connection ends, leaves the machine running; the next one that connects stops
    /// it.
    pub fn run_debugged(
        &mut self,
        host: &mut dyn Host,
        listener: &mut dyn Listener,
        history: History<'_>,
    ) -> io::Result<Outcome> {
        let mut session = Session::new(self, history);
        let outcome = session.run(host, listener)?;
        session.give_up();
        drop(session);
        self.end(host);
        Ok(outcome)
    }
}

impl Session<'_> {
    fn run(&mut self, host: &mut dyn Host, listener: &mut dyn Listener) -> io::Result<Outcome> {
        let mut begun = false;
        loop {
            if let Some(wire) = listener.accept(if begun { Duration::ZERO } else { PATIENCE })? {
                begun = true;
                self.attach();
                let end = self.serve(wire, host);
                if let Some(text) = unreached::describe(self) {
                    listener.note(&text);
                }
                self.detach();
                if let End::Over(outcome) = end {
                    return Ok(outcome);
                }
            }
            if !begun {
                if self.look(host) {
                    return Ok(Outcome::Stopped);
                }
                continue;
            }
            let pause = self.machine.slice();
            if let Some(outcome) = self.pause(pause, host) {
                return Ok(outcome);
            }
        }
    }

    /// Polls the host while the machine is stopped. Returns true if the run should end.
    fn look(&mut self, host: &mut dyn Host) -> bool {
        let poll = host.poll(self.machine.vcpus.now(), false);
        let stop = poll.stop;
        self.machine.replay.keep(poll);
        stop
    }

    /// Serves a debugger until it disconnects.
    fn serve(&mut self, wire: Box<dyn Wire>, host: &mut dyn Host) -> End {
        let outbox = Outbox::default();
        let mut link =
            Link { wire, framer: Framer::default(), outbox: outbox.clone(), received: VecDeque::new(), open: true };
        let mut buffer = vec![0; LONGEST];
        let stub = GdbStub::builder(outbox).with_packet_buffer(&mut buffer).build();
        let Ok(Ok(mut stub)) = stub.map(|stub| stub.run_state_machine(self)) else { return End::Detached };
        loop {
            link.send();
            if !link.open && link.received.is_empty() {
                return End::Detached;
            }
            let next = match stub {
                GdbStubStateMachine::Idle(idle) => {
                    let Some(bytes) = link.next(self) else {
                        link.send();
                        link.receive(PATIENCE);
                        if self.look(host) {
                            return End::Over(Outcome::Stopped);
                        }
                        stub = idle.into();
                        continue;
                    };
                    feed(idle.into(), self, &bytes)
                }
                GdbStubStateMachine::Running(running) => {
                    link.receive(Duration::ZERO);
                    match link.next(self) {
                        Some(bytes) => feed(running.into(), self, &bytes),
                        None => {
                            let stop = self.go(host, &mut || link.interrupted());
                            let Some(stop) = stop else {
                                stub = running.into();
                                continue;
                            };
                            let reported = running.report_stop(self, reason(self, stop));
                            if let Stop::Ended(outcome) = stop {
                                link.send();
                                return End::Over(outcome);
                            }
                            reported.ok()
                        }
                    }
                }
                GdbStubStateMachine::CtrlCInterrupt(interrupt) => {
                    let stop = self.interrupt();
                    interrupt.interrupt_handled(self, Some(reason(self, stop))).ok()
                }
                GdbStubStateMachine::Disconnected(gone) => {
                    link.send();
                    return match gone.get_reason() {
                        DisconnectReason::Kill => End::Over(Outcome::Stopped),
                        _ => End::Detached,
                    };
                }
            };
            match next {
                Some(next) => stub = next,
                // The packet was invalid: the session ends, the run continues.
                None => {
                    link.send();
                    return End::Detached;
                }
            }
        }
    }
}

type Stub<'a, 's> = GdbStubStateMachine<'a, Session<'s>, Outbox>;

/// Passes bytes to the protocol's library. Returns `None` if they are invalid.
fn feed<'a, 's>(mut stub: Stub<'a, 's>, session: &mut Session<'s>, bytes: &[u8]) -> Option<Stub<'a, 's>> {
    for byte in bytes {
        stub = match stub {
            GdbStubStateMachine::Idle(idle) => idle.incoming_data(session, *byte).ok()?,
            GdbStubStateMachine::Running(running) => running.incoming_data(session, *byte).ok()?,
            // Nothing follows an interrupt or a packet that ends the session.
            other => other,
        };
    }
    Some(stub)
}

/// Converts a stop to the protocol's stop reason.
fn reason(session: &Session, stop: Stop) -> MultiThreadStopReason<u64> {
    let signal = |processor, signal| MultiThreadStopReason::SignalWithThread { tid: thread(processor), signal };
    match stop {
        Stop::Step(processor) => signal(processor, Signal::SIGTRAP),
        Stop::Breakpoint(processor) if session.is_hardware(processor) => {
            MultiThreadStopReason::HwBreak(thread(processor))
        }
        Stop::Breakpoint(processor) => MultiThreadStopReason::SwBreak(thread(processor)),
        Stop::Watch(processor, addr, kind) => {
            let kind = match kind {
                Watched::Write => WatchKind::Write,
                Watched::Read => WatchKind::Read,
                Watched::Both => WatchKind::ReadWrite,
            };
            MultiThreadStopReason::Watch { tid: thread(processor), kind, addr }
        }
        Stop::Interrupted(processor) => signal(processor, Signal::SIGINT),
        Stop::Dead(processor) => signal(processor, Signal::SIGABRT),
        Stop::Beginning(processor) => {
            MultiThreadStopReason::ReplayLog { tid: Some(thread(processor)), pos: ReplayLogPosition::Begin }
        }
        Stop::Ended(Outcome::DebugExit(status)) => MultiThreadStopReason::Exited(status),
        Stop::Ended(Outcome::PowerOff | Outcome::Reset) => MultiThreadStopReason::Exited(0),
        Stop::Ended(_) => MultiThreadStopReason::Terminated(Signal::SIGTERM),
    }
}

#[cfg(test)]
mod tests;
