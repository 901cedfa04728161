//! The console device (type 3): a console, or channels between programs of the guest and the host. A channel has a name, by
//! which a Linux guest finds its device file (`/sys/class/virtio-ports/*/name`).
//!
//! Each port has a receive queue and a transmit queue, and one further pair of queues carries control messages (virtio 1.2, 5.3). The guest reports when
//! a program opens a port; before that it would drop input, so that the device sends none. A driver without control messages has the first port alone,
//! and opens it by its receive queue. The host closes a channel once its input has ended; the guest's program then reads the end of the file.

use super::control::{self, MULTIPORT, event, message};
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

/// The purpose of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Purpose {
    /// The console of the machine.
    Console,
    /// A channel of this name.
    Channel(String),
}

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

impl Port {
    fn inbox(&self) -> Inbox {
        Inbox { open: self.open && !self.ended, unread: self.input.len() }
    }
}

/// The state that a snapshot saves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    ports: Vec<Port>,
    /// True if the driver uses control messages.
    controlled: bool,
    /// Control messages: port, event and value, then a name where the event has one.
    messages: VecDeque<Vec<u8>>,
}

/// The device.
#[derive(Clone, Debug)]
pub struct Ports {
    purposes: Vec<Purpose>,
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

impl Ports {
    /// Creates a device whose only port is a console.
    pub fn console() -> Self {
        Self::new(vec![Purpose::Console])
    }

    /// Creates a device with one channel per name, at most 16.
    pub fn channels(mut names: Vec<String>) -> Self {
        names.truncate(MOST);
        Self::new(names.into_iter().map(Purpose::Channel).collect())
    }

    fn new(purposes: Vec<Purpose>) -> Self {
        let mut config = [0; 12];
        config[4..8].copy_from_slice(&(purposes.len() as u32).to_le_bytes());
        let ports = vec![Port::default(); purposes.len()];
        let queues = vec![QUEUE_SIZE; 2 * (purposes.len() + 1)];
        Self { purposes, config, queues, state: State { ports, ..State::default() } }
    }

    fn is_console(&self) -> bool {
        self.purposes.first() == Some(&Purpose::Console)
    }

    fn send(&mut self, message: &[u8]) {
        if self.state.messages.len() < MAX_MESSAGES {
            self.state.messages.push_back(message.to_vec());
        }
    }

    fn receive(&mut self, number: usize, ring: &mut Ring) -> Result<(), Broken> {
        let Some(port) = self.state.ports.get_mut(number) else { return Ok(()) };
        if port.open {
            control::give(ring, &mut port.input)?;
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

    fn transmit(&self, number: usize, ring: &mut Ring, ctx: &mut DeviceContext) -> Result<(), Broken> {
        while let Some(mut chain) = ring.pop()? {
            let mut bytes = vec![0; chain.reader.available_bytes().min(MAX_REQUEST)];
            let read = chain.read(&mut bytes);
            bytes.truncate(read);
            match self.purposes.get(number) {
                Some(Purpose::Console) => ctx.out.printed.extend(&bytes),
                Some(Purpose::Channel(_)) if !bytes.is_empty() => ctx.out.channels.push((number as u8, bytes)),
                Some(Purpose::Channel(_)) | None => {}
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
                (0..self.purposes.len() as u32).for_each(|port| self.send(&message(port, event::PORT_ADD, 1)));
            }
            event::PORT_READY if value == 1 && number < self.purposes.len() => {
                let purpose = match &self.purposes[number] {
                    Purpose::Console => message(port, event::CONSOLE_PORT, 1).to_vec(),
                    Purpose::Channel(name) => [&message(port, event::PORT_NAME, 1), name.as_bytes()].concat(),
                };
                self.send(&purpose);
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

impl Device for Ports {
    fn name(&self) -> &'static str {
        if self.is_console() { "virtio console" } else { "virtio channels" }
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

    fn negotiated(&mut self, features: u64) {
        self.state.controlled = features & MULTIPORT != 0;
    }

    fn started(&mut self, queue: u16, _now: Ticks) {
        if let (Use::Input(0), false, Some(port)) = (usage(queue), self.state.controlled, self.state.ports.first_mut())
        {
            port.open = true;
        }
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
            Use::Output(number) => self.transmit(number, ring, ctx),
            Use::ControlReceive => control::answer(ring, &mut self.state.messages),
            Use::ControlTransmit => control::hear(ring, |port, event, value| self.heard(port, event, value)),
        }
    }

    fn has_input(&self, queue: u16) -> bool {
        match usage(queue) {
            Use::Input(number) => self.state.ports.get(number).is_some_and(|port| port.open && !port.input.is_empty()),
            Use::ControlReceive => !self.state.messages.is_empty(),
            Use::Output(_) | Use::ControlTransmit => false,
        }
    }

    fn input(&mut self, bytes: &[u8]) {
        if let (true, Some(port)) = (self.is_console(), self.state.ports.first_mut()) {
            port.input.extend(bytes);
        }
    }

    fn inbox(&self) -> Inbox {
        self.state.ports.first().filter(|_| self.is_console()).map_or(Inbox::default(), Port::inbox)
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
        self.state.ports.get(usize::from(channel)).map_or(Inbox::default(), Port::inbox)
    }

    fn reset(&mut self) {
        self.state.controlled = false;
        self.state.messages.clear();
        self.state.ports.iter_mut().for_each(|port| port.told = false);
    }
}

impl Saved for Ports {
    fn save(&self) -> Result<Vec<u8>, StateError> {
        encode(&(&self.purposes, &self.state))
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let (purposes, state): (Vec<Purpose>, State) = decode(bytes)?;
        same(&purposes, &self.purposes, "set of channels")?;
        require(state.ports.len() == self.purposes.len(), "a number of channels")?;
        require(state.messages.len() <= MAX_MESSAGES, "more control messages than are kept")?;
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECEIVE: u16 = 0;
    const TRANSMIT: u16 = 1;

    #[test]
    fn only_the_receive_queue_opens_and_closes_a_console() {
        let mut console = Ports::console();
        let mut open = |change: &dyn Fn(&mut Ports)| {
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
            let mut console = Ports::console();
            console.heard(port, event, value);
            assert_eq!(console.state.messages.len(), answers, "{port} {event} {value}");
            console.reset();
            assert!(console.state.messages.is_empty());
        }
    }

    #[test]
    fn a_console_and_a_channel_are_not_each_other() {
        let (console, channel) = (Ports::console(), Ports::channels(vec!["console".into()]));
        assert!(console.clone().restore(&channel.save().unwrap()).is_err());
        assert!(channel.clone().restore(&console.save().unwrap()).is_err());
        let (mut console, mut channel) = (console, channel);
        [&mut console, &mut channel].into_iter().for_each(|device| device.input(b"typed"));
        assert_eq!((console.inbox().unread, channel.inbox().unread, channel.channel_inbox(0).unread), (5, 0, 0));
    }
}
