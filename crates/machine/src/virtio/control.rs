//! Queues of a console device: bytes for the guest, and control messages (virtio 1.2, 5.3).

use super::{Broken, Ring};
use std::collections::VecDeque;

/// VIRTIO_CONSOLE_F_MULTIPORT: the device uses control messages.
pub const MULTIPORT: u64 = 1 << 1;

/// Events of control messages (virtio 1.2, 5.3.6.2).
pub mod event {
    pub const DEVICE_READY: u16 = 0;
    pub const PORT_ADD: u16 = 1;
    pub const PORT_READY: u16 = 3;
    pub const CONSOLE_PORT: u16 = 4;
    pub const PORT_OPEN: u16 = 6;
    pub const PORT_NAME: u16 = 7;
}

/// Bytes of a control message without a name: port, event, value.
pub type Message = [u8; 8];

/// Encodes a control message.
pub fn message(port: u32, event: u16, value: u16) -> Message {
    let ([p0, p1, p2, p3], [e0, e1], [v0, v1]) = (port.to_le_bytes(), event.to_le_bytes(), value.to_le_bytes());
    [p0, p1, p2, p3, e0, e1, v0, v1]
}

/// Writes pending input to the driver's buffers, as far as there are buffers.
pub fn give(ring: &mut Ring, input: &mut VecDeque<u8>) -> Result<(), Broken> {
    while !input.is_empty() {
        let Some(mut chain) = ring.pop()? else { break };
        let len = chain.writer.available_bytes().min(input.len());
        let written = chain.write(&input.make_contiguous()[..len]);
        input.drain(..written);
        ring.push(chain, written as u32)?;
    }
    Ok(())
}

/// Writes control messages to the driver's buffers, one message per buffer.
pub fn answer<M: AsRef<[u8]>>(ring: &mut Ring, messages: &mut VecDeque<M>) -> Result<(), Broken> {
    while let Some(message) = messages.front() {
        let Some(mut chain) = ring.pop()? else { break };
        let written = chain.write(message.as_ref());
        messages.pop_front();
        ring.push(chain, written as u32)?;
    }
    Ok(())
}

/// Calls `heard` with port, event and value of each control message of the driver. Messages that are too short are
/// dropped.
pub fn hear(ring: &mut Ring, mut heard: impl FnMut(u32, u16, u16)) -> Result<(), Broken> {
    while let Some(mut chain) = ring.pop()? {
        let mut bytes = Message::default();
        if chain.read(&mut bytes) == bytes.len() {
            let [p0, p1, p2, p3, e0, e1, v0, v1] = bytes;
            heard(u32::from_le_bytes([p0, p1, p2, p3]), u16::from_le_bytes([e0, e1]), u16::from_le_bytes([v0, v1]));
        }
        ring.push(chain, 0)?;
    }
    Ok(())
}
