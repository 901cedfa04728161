//! Channels between programs of the guest and the host: a console device (type 3) with several ports, none of which is a console. Each port
//! has a name, by which a Linux guest finds its device file (`/sys/class/virtio-ports/*/name`).
//!
//! Each port has a receive queue and a transmit queue, and one further pair of queues carries control messages (virtio 1.2, 5.3). The guest reports when
//! a program opens a port. The host closes a port once its input has ended; the guest's program then reads the end of the file.

use super::ports::{self, MULTIPORT, event, message};
use super::{Broken, Device, Ring};
use crate::device::DeviceContext;
use crate::host::Piece;
use crate::pci::Inbox;
use crate::state::{Saved, StateError, decode, encode, require, same};
use ledger::Ticks;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The queue on which the guest receives control messages. The next queue carries the messages that the guest sends.
const CONTROL_RECEIVE: u16 = 2;
/// Entries per queue.
const QUEUE_SIZE: u16 = 64;
/// Bytes taken from one transmit request. The rest of a longer request is dropped.
const MAX_REQUEST: usize = 1 << 20;
/// Control messages that may wait for the driver. Further messages are dropped.
const MAX_MESSAGES: usize = 256;
/// The largest number of ports.
pub const MOST: usize = 16;

/// The state of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Port {
    /// Input that the guest has not read.
    input: VecDeque<u8>,
    /// True once the host has no further input.
    ended: bool,
    /// True once the guest has been told of the end.
    told: bool,
    /// True while a program of the guest has the port open.
    open: bool,
}

/// The state that a snapshot saves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    ports: Vec<Port>,
    /// Control messages: port, event and value, then a name where the event has one.
    messages: VecDeque<Vec<u8>>,
}

/// The device.
#[derive(Clone, Debug)]
pub struct Channels {
    names: Vec<String>,
    config: [u8; 12],
    queues: Vec<u16>,
    state: State,
}

/// The purpose of a queue.
enum Use {
    /// The guest reads from a port.
    Input(usize),
    /// The guest writes to a port.
    Output(usize),
    ControlReceive,
    ControlTransmit,
}

/// Returns the purpose of a queue. The queues of the control messages lie between those of the first port and those of the others.
fn usage(queue: u16) -> Use {
    let pair = match queue / 2 {
        0 => 0,
        1 if queue == CONTROL_RECEIVE => return Use::ControlReceive,
        1 => return Use::ControlTransmit,
        pair => usize::from(pair) - 1,
    };
    if queue.is_multiple_of(2) { Use::Input(pair) } else { Use::Output(pair) }
}

impl Channels {
    /// Creates a device with one port per name, at most 16.
    pub fn new(mut names: Vec<String>) -> Self {
        names.truncate(MOST);
        let mut config = [0; 12];
        config[4..8].copy_from_slice(&(names.len() as u32).to_le_bytes());
        let ports = vec![Port::default(); names.len()];
        let queues = vec![QUEUE_SIZE; 2 * (names.len() + 1)];
        Self { names, config, queues, state: State { ports, messages: VecDeque::new() } }
    }

    fn send(&mut self, message: &[u8]) {
        if self.state.messages.len() < MAX_MESSAGES {
            self.state.messages.push_back(message.to_vec());
        }
    }

    fn receive(&mut self, number: usize, ring: &mut Ring) -> Result<(), Broken> {
        let Some(port) = self.state.ports.get_mut(number) else { return Ok(()) };
        if port.open {
            ports::give(ring, &mut port.input)?;
        }
        self.tell_end(number);
        Ok(())
    }

    /// Closes the port for the guest once the guest has opened it and read all input.
    fn tell_end(&mut self, number: usize) {
        let Some(port) = self.state.ports.get_mut(number) else { return };
        if port.ended && port.open && !port.told && port.input.is_empty() {
            port.told = true;
            self.send(&message(number as u32, event::PORT_OPEN, 0));
        }
    }

    fn transmit(number: usize, ring: &mut Ring, ctx: &mut DeviceContext) -> Result<(), Broken> {
        while let Some(mut chain) = ring.pop()? {
            let mut bytes = vec![0; chain.reader.available_bytes().min(MAX_REQUEST)];
            let read = chain.read(&mut bytes);
            bytes.truncate(read);
            if !bytes.is_empty() {
                ctx.out.channels.push((number as u8, bytes));
            }
            ring.push(chain, 0)?;
        }
        Ok(())
    }

    /// Handles a control message from the driver.
    fn heard(&mut self, port: u32, event: u16, value: u16) {
        let number = port as usize;
        match event {
            event::DEVICE_READY if value == 1 => {
                (0..self.names.len() as u32).for_each(|port| self.send(&message(port, event::PORT_ADD, 1)));
            }
            event::PORT_READY if value == 1 && number < self.names.len() => {
                let name = [&message(port, event::PORT_NAME, 1), self.names[number].as_bytes()].concat();
                self.send(&name);
                self.send(&message(port, event::PORT_OPEN, 1));
            }
            event::PORT_OPEN => {
                if let Some(port) = self.state.ports.get_mut(number) {
                    port.open = value != 0;
                    self.tell_end(number);
                }
            }
            _ => {}
        }
    }
}

impl Device for Channels {
    fn name(&self) -> &'static str {
        "virtio channels"
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
        &self.queues
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn stopped(&mut self, queue: u16, _now: Ticks) {
        if let Use::Input(number) = usage(queue)
            && let Some(port) = self.state.ports.get_mut(number)
        {
            port.open = false;
        }
    }

    fn process(&mut self, queue: u16, ring: &mut Ring, ctx: &mut DeviceContext) -> Result<(), Broken> {
        match usage(queue) {
            Use::Input(number) => self.receive(number, ring),
            Use::Output(number) => Self::transmit(number, ring, ctx),
            Use::ControlReceive => ports::answer(ring, &mut self.state.messages),
            Use::ControlTransmit => ports::hear(ring, |port, event, value| self.heard(port, event, value)),
        }
    }

    fn has_input(&self, queue: u16) -> bool {
        match usage(queue) {
            Use::Input(number) => self.state.ports.get(number).is_some_and(|port| port.open && !port.input.is_empty()),
            Use::ControlReceive => !self.state.messages.is_empty(),
            Use::Output(_) | Use::ControlTransmit => false,
        }
    }

    fn piece(&mut self, piece: &Piece) {
        let number = usize::from(piece.channel);
        if let Some(port) = self.state.ports.get_mut(number) {
            port.input.extend(&piece.bytes);
            port.ended |= piece.last;
            self.tell_end(number);
        }
    }

    fn channel_inbox(&self, channel: u8) -> Inbox {
        let port = self.state.ports.get(usize::from(channel));
        port.map_or(Inbox::default(), |port| Inbox { open: port.open && !port.ended, unread: port.input.len() })
    }

    fn reset(&mut self) {
        self.state.messages.clear();
        self.state.ports.iter_mut().for_each(|port| port.told = false);
    }
}

impl Saved for Channels {
    fn save(&self) -> Result<Vec<u8>, StateError> {
        encode(&(&self.names, &self.state))
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let (names, state): (Vec<String>, State) = decode(bytes)?;
        same(&names, &self.names, "set of channels")?;
        require(state.ports.len() == self.names.len(), "a number of channels")?;
        require(state.messages.len() <= MAX_MESSAGES, "more control messages than are kept")?;
        self.state = state;
        Ok(())
    }
}
