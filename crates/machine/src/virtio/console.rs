//! The console device (type 3): one port, with queues 0 and 1 for its data, 2 and 3 for control messages.
//!
//! A driver that negotiates control messages says when it has opened the port. Before that it drops what arrives, so nothing is sent.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::{Broken, Device, Ring};

const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
const CONTROL_RECEIVE: u16 = 2;
/// Bytes taken from one transmit request; the rest of a longer one is lost.
const MAX_REQUEST: usize = 64 << 10;
/// Control messages that wait for the driver; further ones are lost.
const MAX_MESSAGES: usize = 64;

/// VIRTIO_CONSOLE_F_MULTIPORT: there are control messages.
const MULTIPORT: u64 = 1 << 1;
/// Columns, rows, number of ports, emergency write.
const CONFIG: [u8; 12] = [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// What control messages are about (virtio 1.2, 5.3.6.2).
mod event {
    pub const DEVICE_READY: u16 = 0;
    pub const PORT_ADD: u16 = 1;
    pub const PORT_READY: u16 = 3;
    pub const CONSOLE_PORT: u16 = 4;
    pub const PORT_OPEN: u16 = 6;
}

/// Bytes of a control message: port, event, value.
type Message = [u8; 8];

/// A message about port 0.
fn message(event: u16, value: u16) -> Message {
    let ([e0, e1], [v0, v1]) = (event.to_le_bytes(), value.to_le_bytes());
    [0, 0, 0, 0, e0, e1, v0, v1]
}

#[derive(Debug, Default)]
struct Streams {
    input: VecDeque<u8>,
    output: Vec<u8>,
    /// The driver takes input.
    open: bool,
}

/// The outside end of a console: the board puts input in and takes output out. Clones are the same port.
#[derive(Clone, Debug, Default)]
pub struct ConsolePort(Rc<RefCell<Streams>>);

impl ConsolePort {
    /// Queues input for the guest. It is delivered when the bus is polled next, or when the driver adds buffers, once it has opened
    /// the port.
    pub fn send(&self, bytes: &[u8]) {
        self.0.borrow_mut().input.extend(bytes);
    }

    /// Bytes of input that the driver has not taken yet.
    pub fn waiting(&self) -> usize {
        self.0.borrow().input.len()
    }

    /// Whether the guest has a driver that takes input.
    pub fn open(&self) -> bool {
        self.0.borrow().open
    }

    /// Takes what the guest has written. To be drained after each access to the bus.
    pub fn take_output(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.borrow_mut().output)
    }
}

/// A console device.
#[derive(Debug)]
pub struct Console {
    port: ConsolePort,
    /// The driver sends control messages.
    controlled: bool,
    /// What it has not taken of those for it.
    messages: VecDeque<Message>,
}

impl Console {
    /// A console with its outside end at `port`.
    pub fn new(port: ConsolePort) -> Self {
        Self { port, controlled: false, messages: VecDeque::new() }
    }

    fn receive(&self, ring: &mut Ring) -> Result<(), Broken> {
        let Streams { input, open, .. } = &mut *self.port.0.borrow_mut();
        // A driver without control messages takes input once it offers buffers.
        *open |= !self.controlled;
        while *open && !input.is_empty() {
            let Some(mut chain) = ring.pop()? else { break };
            let len = chain.writer.available_bytes().min(input.len());
            let written = chain.write(&input.make_contiguous()[..len]);
            input.drain(..written);
            ring.push(chain, written as u32)?;
        }
        Ok(())
    }

    fn transmit(&self, ring: &mut Ring) -> Result<(), Broken> {
        let output = &mut self.port.0.borrow_mut().output;
        while let Some(mut chain) = ring.pop()? {
            let start = output.len();
            output.resize(start + chain.reader.available_bytes().min(MAX_REQUEST), 0);
            let read = chain.read(&mut output[start..]);
            output.truncate(start + read);
            ring.push(chain, 0)?;
        }
        Ok(())
    }
}

impl Console {
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
        self.controlled = true;
        let (port, value) = (u32::from_le_bytes([p0, p1, p2, p3]), u16::from_le_bytes([v0, v1]));
        let answers: &[Message] = match u16::from_le_bytes([e0, e1]) {
            event::DEVICE_READY if value == 1 => &[message(event::PORT_ADD, 1)],
            event::PORT_READY if (port, value) == (0, 1) => {
                &[message(event::CONSOLE_PORT, 1), message(event::PORT_OPEN, 1)]
            }
            event::PORT_OPEN if port == 0 => {
                self.port.0.borrow_mut().open = value != 0;
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

    fn process(&mut self, queue: u16, ring: &mut Ring) -> Result<(), Broken> {
        match queue {
            RECEIVE => self.receive(ring),
            TRANSMIT => self.transmit(ring),
            CONTROL_RECEIVE => self.answer(ring),
            _ => self.control(ring),
        }
    }

    fn has_input(&self, queue: u16) -> bool {
        match queue {
            RECEIVE => self.port.open() && self.port.waiting() != 0,
            CONTROL_RECEIVE => !self.messages.is_empty(),
            _ => false,
        }
    }

    fn reset(&mut self) {
        self.controlled = false;
        self.messages.clear();
        self.port.0.borrow_mut().open = false;
    }
}
