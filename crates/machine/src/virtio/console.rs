//! The console device (type 3): one port, with queues 0 and 1 for its data, 2 and 3 for control messages.
//!
//! A driver that negotiates control messages reports when it has opened the port. Before that it would drop input, so
//! the device sends none.

use crate::state::{Plain, StateError, require};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

use super::ports::{self, MULTIPORT, Message, event, message};
use super::{Broken, Device, Ring};
use crate::device::DeviceContext;
use crate::pci::Inbox;
use ledger::Ticks;

const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
const CONTROL_RECEIVE: u16 = 2;
/// Maximum number of bytes taken from one transmit request; the rest of a longer one is lost.
const MAX_REQUEST: usize = 64 << 10;
/// Maximum number of control messages that wait for the driver; further ones are lost.
const MAX_MESSAGES: usize = 64;

/// Columns, rows, number of ports, emergency write.
const CONFIG: [u8; 12] = [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// A console device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Console {
    /// Input that the driver has not taken yet.
    input: VecDeque<u8>,
    /// True if the driver accepts input.
    open: bool,
    /// True if the driver uses control messages to open the port.
    controlled: bool,
    /// Control messages that the driver has not taken yet.
    messages: VecDeque<Message>,
}

impl Console {
    fn receive(&mut self, ring: &mut Ring) -> Result<(), Broken> {
        if self.open { ports::give(ring, &mut self.input) } else { Ok(()) }
    }

    fn transmit(ring: &mut Ring, output: &mut Vec<u8>) -> Result<(), Broken> {
        while let Some(mut chain) = ring.pop()? {
            let start = output.len();
            output.resize(start + chain.reader.available_bytes().min(MAX_REQUEST), 0);
            let read = chain.read(&mut output[start..]);
            output.truncate(start + read);
            ring.push(chain, 0)?;
        }
        Ok(())
    }

    /// Handles a control message of the driver.
    fn heard(&mut self, port: u32, event: u16, value: u16) {
        let answers: &[Message] = match event {
            event::DEVICE_READY if value == 1 => &[message(0, event::PORT_ADD, 1)],
            event::PORT_READY if (port, value) == (0, 1) => {
                &[message(0, event::CONSOLE_PORT, 1), message(0, event::PORT_OPEN, 1)]
            }
            event::PORT_OPEN if port == 0 => {
                self.open = value != 0;
                &[]
            }
            _ => &[],
        };
        let room = MAX_MESSAGES.saturating_sub(self.messages.len());
        self.messages.extend(answers.iter().take(room));
    }
}

impl Device for Console {
    fn name(&self) -> &'static str {
        "virtio console"
    }

    fn kind(&self) -> u16 {
        3
    }

    fn class(&self) -> u32 {
        0x07_8000
    }

    fn features(&self) -> u64 {
        MULTIPORT
    }

    fn queues(&self) -> &[u16] {
        &[64; 4]
    }

    fn config(&self) -> &[u8] {
        &CONFIG
    }

    fn negotiated(&mut self, features: u64) {
        self.controlled = features & MULTIPORT != 0;
    }

    fn started(&mut self, queue: u16, _now: Ticks) {
        // A driver without control messages accepts input as soon as it is ready.
        self.open |= queue == RECEIVE && !self.controlled;
    }

    fn stopped(&mut self, queue: u16, _now: Ticks) {
        self.open &= queue != RECEIVE;
    }

    fn process(&mut self, queue: u16, ring: &mut Ring, ctx: &mut DeviceContext) -> Result<(), Broken> {
        match queue {
            RECEIVE => self.receive(ring),
            TRANSMIT => Self::transmit(ring, &mut ctx.out.printed),
            CONTROL_RECEIVE => ports::answer(ring, &mut self.messages),
            _ => ports::hear(ring, |port, event, value| self.heard(port, event, value)),
        }
    }

    fn has_input(&self, queue: u16) -> bool {
        match queue {
            RECEIVE => self.open && !self.input.is_empty(),
            CONTROL_RECEIVE => !self.messages.is_empty(),
            _ => false,
        }
    }

    fn input(&mut self, bytes: &[u8]) {
        self.input.extend(bytes);
    }

    fn inbox(&self) -> Inbox {
        Inbox { open: self.open, unread: self.input.len() }
    }

    fn reset(&mut self) {
        self.controlled = false;
        self.messages.clear();
    }
}

impl Plain for Console {
    fn check(&self, _current: &Self) -> Result<(), StateError> {
        require(self.messages.len() <= MAX_MESSAGES, "more control messages than are kept")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_receive_queue_opens_and_closes_the_port() {
        let mut console = Console::default();
        let mut open = |change: &dyn Fn(&mut Console)| {
            change(&mut console);
            console.inbox().open
        };
        assert!(!open(&|console| console.started(TRANSMIT, 0)));
        assert!(open(&|console| console.started(RECEIVE, 0)));
        assert!(open(&|console| console.stopped(TRANSMIT, 0)));
        assert!(!open(&|console| console.stopped(RECEIVE, 0)));
        // A driver with control messages opens it by one.
        assert!(!open(&|console| {
            console.negotiated(MULTIPORT);
            console.started(RECEIVE, 0);
        }));
        assert!(!open(&|console| console.heard(1, event::PORT_OPEN, 1)));
        assert!(open(&|console| console.heard(0, event::PORT_OPEN, 1)));
        assert!(open(&|console| console.heard(1, event::PORT_OPEN, 0)));
    }

    #[test]
    fn only_what_the_driver_has_is_answered() {
        for (port, event, value, answers) in [
            (0, event::DEVICE_READY, 1, 1),
            (0, event::DEVICE_READY, 0, 0),
            (0, event::PORT_READY, 1, 2),
            (0, event::PORT_READY, 0, 0),
            (1, event::PORT_READY, 1, 0),
            (0, event::PORT_NAME, 1, 0),
        ] {
            let mut console = Console::default();
            console.heard(port, event, value);
            assert_eq!(console.messages.len(), answers, "{port} {event} {value}");
            console.reset();
            assert!(console.messages.is_empty());
        }
    }

    #[test]
    fn so_many_messages_are_restored_and_no_more() {
        let console = |count: usize| Console { messages: vec![Message::default(); count].into(), ..Console::default() };
        assert_eq!(console(MAX_MESSAGES).check(&console(0)), Ok(()));
        assert!(console(MAX_MESSAGES + 1).check(&console(0)).is_err());
    }
}
