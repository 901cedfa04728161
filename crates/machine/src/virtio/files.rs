//! The file system device (type 26): requests of the FUSE protocol, which a file server answers (virtio 1.2, 5.11).
//!
//! Files are outside of the machine, and no saved state contains them. A machine can be saved while the guest has not
//! mounted the file system, and can be restored with other files.

use super::{Broken, Device, Ring};
use crate::device::DeviceContext;
use crate::state::{Saved, StateError};
use guestfs::Server;
use guestfs::server::LARGEST_TRANSFER;

/// Tag by which a guest mounts the file system.
pub const TAG: &str = "tollgate";
const TAG_LEN: usize = 36;
/// Number of request queues, which follow the high-priority queue.
const REQUEST_QUEUES: u32 = 1;
const QUEUE_SIZE: u16 = 128;
/// Maximum size of a request without its data: headers and names.
const OVERHEAD: usize = 64 << 10;

/// A file system device.
pub struct Files {
    server: Server,
    config: Vec<u8>,
}

impl Files {
    /// Creates a device whose requests `server` answers.
    pub fn new(server: Server) -> Self {
        let mut config = TAG.as_bytes().to_vec();
        config.resize(TAG_LEN, 0);
        config.extend(REQUEST_QUEUES.to_le_bytes());
        Self { server, config }
    }
}

impl Device for Files {
    fn name(&self) -> &'static str {
        "virtio file system"
    }

    fn kind(&self) -> u16 {
        26
    }

    fn class(&self) -> u32 {
        0x01_8000
    }

    fn features(&self) -> u64 {
        0
    }

    fn queues(&self) -> &[u16] {
        &[QUEUE_SIZE; 1 + REQUEST_QUEUES as usize]
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn process(&mut self, _queue: u16, ring: &mut Ring, _ctx: &mut DeviceContext) -> Result<(), Broken> {
        while let Some(mut chain) = ring.pop()? {
            let len = chain.reader.available_bytes().min(LARGEST_TRANSFER as usize + OVERHEAD);
            let mut request = vec![0; len];
            let read = chain.read(&mut request);
            let answer = self.server.answer(&request[..read], chain.writer.available_bytes());
            let written = answer.map_or(0, |answer| chain.write(&answer));
            ring.push(chain, written as u32)?;
        }
        Ok(())
    }
}

impl Saved for Files {
    fn save(&self) -> Result<Vec<u8>, StateError> {
        if self.server.mounted() { Err(StateError::Mounted) } else { Ok(Vec::new()) }
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        if self.server.mounted() {
            return Err(StateError::Mounted);
        }
        if bytes.is_empty() { Ok(()) } else { Err(StateError::Trailing(bytes.len())) }
    }
}
