//! The console device (type 3): one port, with queues 0 and 1 for its data, 2 and 3 for control messages.
//!
//! A driver that negotiates control messages says when it has opened the port. Before that it drops what arrives, so nothing is sent.

use crate::state::{Plain, StateError, require};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

use super::{Broken, Device, Ring};
use crate::device::DeviceContext;
use crate::pci::Inbox;
use ledger::Ticks;

const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
const CONTROL_RECEIVE: u16 = 2;
/// Bytes taken from one transmit request; the rest of a longer one is lost.
const MAX_REQUEST: usize = 64 << 10;
/// Control messages that wait for the driver; further ones are lost.
const MAX_MESSAGES: usize = 64;

/// VIRTIO_CONSOLE_F_MULTIPORT: there are control messages.
pub(super) const MULTIPORT: u64 = 1 << 1;
/// Columns, rows, number of ports, emergency write.
const CONFIG: [u8; 12] = [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// What control messages are about (virtio 1.2, 5.3.6.2).
pub(super) mod event {
    pub const DEVICE_READY: u16 = 0;
    pub const PORT_ADD: u16 = 1;
    pub const PORT_READY: u16 = 3;
    pub const CONSOLE_PORT: u16 = 4;
    pub const PORT_OPEN: u16 = 6;
    pub const PORT_NAME: u16 = 7;
}

/// Bytes of a control message: port, event, value.
type Message = [u8; 8];

/// A message about port 0.
fn message(event: u16, value: u16) -> Message {
    let ([e0, e1], [v0, v1]) = (event.to_le_bytes(), value.to_le_bytes());
    [0, 0, 0, 0, e0, e1, v0, v1]
}

/// A console device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Console {
    /// What the driver has not taken yet.
    input: VecDeque<u8>,
    /// The driver takes input.
    open: bool,
    /// The driver says by control messages when that is so.
    controlled: bool,
    /// Control messages that it has not taken.
    messages: VecDeque<Message>,
}

impl Console {
    fn receive(&mut self, ring: &mut Ring) -> Result<(), Broken> {
        while self.open && !self.input.is_empty() {
            let Some(mut chain) = ring.pop()? else { break };
            let len = chain.writer.available_bytes().min(self.input.len());
            let written = chain.write(&self.input.make_contiguous()[..len]);
            self.input.drain(..written);
            ring.push(chain, written as u32)?;
        }
        Ok(())
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

    fn control(&mut self, ring: &mut Ring) -> Result<(), Broken> {
        while let Some(mut chain) = ring.pop()? {
            let mut bytes = Message::default();
            if chain.read(&mut bytes) == bytes.len() {
                self.hear(bytes);
            }
            ring.push(chain, 0)?;
        }
        Ok(())
    }

    /// A message of the driver.
    fn hear(&mut self, [p0, p1, p2, p3, e0, e1, v0, v1]: Message) {
        let (port, value) = (u32::from_le_bytes([p0, p1, p2, p3]), u16::from_le_bytes([v0, v1]));
        let answers: &[Message] = match u16::from_le_bytes([e0, e1]) {
            event::DEVICE_READY if value == 1 => &[message(event::PORT_ADD, 1)],
            event::PORT_READY if (port, value) == (0, 1) => {
                &[message(event::CONSOLE_PORT, 1), message(event::PORT_OPEN, 1)]
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

    fn answer(&mut self, ring: &mut Ring) -> Result<(), Broken> {
        while let Some(message) = self.messages.front() {
            let Some(mut chain) = ring.pop()? else { break };
            let written = chain.write(message);
            self.messages.pop_front();
            ring.push(chain, written as u32)?;
        }
        Ok(())
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
        // A driver without control messages takes input as soon as it is ready.
        self.open |= queue == RECEIVE && !self.controlled;
    }

    fn stopped(&mut self, queue: u16, _now: Ticks) {
        self.open &= queue != RECEIVE;
    }

    fn process(&mut self, queue: u16, ring: &mut Ring, ctx: &mut DeviceContext) -> Result<(), Broken> {
        match queue {
            RECEIVE => self.receive(ring),
            TRANSMIT => Self::transmit(ring, &mut ctx.out.printed),
            CONTROL_RECEIVE => self.answer(ring),
            _ => self.control(ring),
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
