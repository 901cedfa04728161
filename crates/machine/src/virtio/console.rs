//! The console device (type 3): one port, receive queue 0, transmit queue 1.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::{Broken, Device, Ring};

const RECEIVE: u16 = 0;
/// Bytes taken from one transmit request; the rest of a longer one is lost.
const MAX_REQUEST: usize = 64 << 10;

#[derive(Debug, Default)]
struct Streams {
    input: VecDeque<u8>,
    output: Vec<u8>,
    /// The driver has offered buffers for input.
    attached: bool,
}

/// The outside end of a console: the board puts input in and takes output out. Clones are the same port.
#[derive(Clone, Debug, Default)]
pub struct ConsolePort(Rc<RefCell<Streams>>);

impl ConsolePort {
    /// Queues input for the guest. It is delivered when the bus is polled next, or when the driver adds buffers.
    pub fn send(&self, bytes: &[u8]) {
        self.0.borrow_mut().input.extend(bytes);
    }

    /// Bytes of input that the driver has not taken yet.
    pub fn waiting(&self) -> usize {
        self.0.borrow().input.len()
    }

    /// Whether the guest has a driver for this console.
    pub fn attached(&self) -> bool {
        self.0.borrow().attached
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
}

impl Console {
    /// A console with its outside end at `port`.
    pub fn new(port: ConsolePort) -> Self {
        Self { port }
    }

    fn receive(&self, ring: &mut Ring) -> Result<(), Broken> {
        let Streams { input, attached, .. } = &mut *self.port.0.borrow_mut();
        *attached = true;
        while !input.is_empty() {
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

impl Device for Console {
    fn kind(&self) -> u16 {
        3
    }

    fn class(&self) -> u32 {
        0x07_8000
    }

    fn features(&self) -> u64 {
        0
    }

    fn queues(&self) -> &[u16] {
        &[64, 64]
    }

    fn config(&self) -> &[u8] {
        &[0; 12]
    }

    fn process(&mut self, queue: u16, ring: &mut Ring) -> Result<(), Broken> {
        if queue == RECEIVE { self.receive(ring) } else { self.transmit(ring) }
    }

    fn has_input(&self) -> Option<u16> {
        (!self.port.0.borrow().input.is_empty()).then_some(RECEIVE)
    }
}
