//! The block device (type 2): one queue, sectors of 512 bytes. Requests complete at once on the backing.

use super::disk::{Backing, SECTOR};
use super::overlay::Overlay;
use super::{Broken, Chain, Device, Ring};
use crate::device::DeviceContext;
use crate::state::{Saved, StateError, decode, encode, same};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use sha2::{Digest, Sha256};
use std::cell::OnceCell;
use std::io;

const QUEUE_SIZE: u16 = 256;
const HEADER_LEN: usize = 16;
const ID_LEN: usize = 20;
const CONFIG_LEN: usize = 60;
type Hash = [u8; 32];

/// Maximum number of bytes copied at a time.
const PIECE: usize = 128 << 10;

const FEATURE_SEG_MAX: u64 = 1 << 2;
const FEATURE_READ_ONLY: u64 = 1 << 5;
const FEATURE_BLOCK_SIZE: u64 = 1 << 6;
const FEATURE_FLUSH: u64 = 1 << 9;

const REQUEST_IN: u32 = 0;
const REQUEST_OUT: u32 = 1;
const REQUEST_FLUSH: u32 = 4;
const REQUEST_GET_ID: u32 = 8;

/// Outcome of a request, as stored in the request's last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Status {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}

/// A block device.
pub struct Block {
    backing: Box<dyn Backing>,
    /// Sectors that the guest has written, unless writes go to the backing.
    overlay: Option<Overlay>,
    /// SHA-256 of the backing, after it has been computed once.
    hash: OnceCell<Hash>,
    id: [u8; ID_LEN],
    config: [u8; CONFIG_LEN],
    buffer: Vec<u8>,
}

impl Block {
    /// Creates a device on `backing`; the guest can read the first 20 bytes of `id`.
    pub fn new(backing: Box<dyn Backing>, id: &str) -> Self {
        let mut id_bytes = [0; ID_LEN];
        id_bytes.iter_mut().zip(id.bytes()).for_each(|(to, from)| *to = from);
        let mut config = [0; CONFIG_LEN];
        config[0..8].copy_from_slice(&(backing.len() / SECTOR).to_le_bytes());
        // Besides its data, each request needs one descriptor for its header and one for its status.
        config[12..16].copy_from_slice(&(u32::from(QUEUE_SIZE) - 2).to_le_bytes());
        config[20..24].copy_from_slice(&(SECTOR as u32).to_le_bytes());
        Self { backing, overlay: None, hash: OnceCell::new(), id: id_bytes, config, buffer: vec![0; PIECE] }
    }

    /// Adds an overlay: the guest's writes stay in memory and are part of the saved state.
    pub fn with_overlay(self) -> Self {
        Self { overlay: Some(Overlay::default()), ..self }
    }

    /// Returns the hash of the backing, by which a saved state identifies its disk. The first call reads the whole
    /// disk.
    fn hash(&self) -> Result<Hash, StateError> {
        if let Some(hash) = self.hash.get() {
            return Ok(*hash);
        }
        let (mut sha, mut buffer, len) = (Sha256::new(), vec![0; PIECE], self.backing.len());
        let mut at = 0;
        while at < len {
            let piece = &mut buffer[..(len - at).min(PIECE as u64) as usize];
            self.backing.read(at, piece).map_err(|error| StateError::Disk(error.to_string()))?;
            sha.update(&*piece);
            at += piece.len() as u64;
        }
        Ok(*self.hash.get_or_init(|| sha.finalize().into()))
    }

    /// Executes a request. Returns its outcome and the number of data bytes written.
    fn request(&mut self, chain: &mut Chain) -> (Status, usize) {
        let mut header = [0; HEADER_LEN];
        if chain.read(&mut header) != HEADER_LEN {
            return (Status::IoError, 0);
        }
        let [a, b, c, d, _, _, _, _, sector @ ..] = header;
        let sector = u64::from_le_bytes(sector);
        match u32::from_le_bytes([a, b, c, d]) {
            REQUEST_IN => self.read(chain, sector),
            REQUEST_OUT => (self.write(chain, sector), 0),
            REQUEST_FLUSH if self.overlay.is_some() => (Status::Ok, 0),
            REQUEST_FLUSH => (done(self.backing.flush()), 0),
            REQUEST_GET_ID => (Status::Ok, chain.write(&self.id)),
            _ => (Status::Unsupported, 0),
        }
    }

    /// Returns the byte offset of a transfer, if all of it is inside the disk.
    fn offset(&self, sector: u64, len: usize) -> Option<u64> {
        let start = sector.checked_mul(SECTOR)?;
        let end = start.checked_add(len as u64)?;
        let whole = (len as u64).is_multiple_of(SECTOR) && end <= self.backing.len() / SECTOR * SECTOR;
        whole.then_some(start)
    }

    fn read(&mut self, chain: &mut Chain, sector: u64) -> (Status, usize) {
        let len = chain.writer.available_bytes();
        let Some(offset) = self.offset(sector, len) else { return (Status::IoError, 0) };
        let mut at = 0;
        while at < len {
            let piece = &mut self.buffer[..(len - at).min(PIECE)];
            let place = offset + at as u64;
            let read = match &self.overlay {
                Some(overlay) => overlay.read(&*self.backing, place, piece),
                None => self.backing.read(place, piece),
            };
            if read.is_err() || chain.write(piece) != piece.len() {
                return (Status::IoError, at);
            }
            at += piece.len();
        }
        (Status::Ok, len)
    }

    fn write(&mut self, chain: &mut Chain, sector: u64) -> Status {
        let len = chain.reader.available_bytes();
        let Some(offset) = self.offset(sector, len) else { return Status::IoError };
        if self.backing.read_only() {
            return Status::IoError;
        }
        let mut at = 0;
        while at < len {
            let piece = &mut self.buffer[..(len - at).min(PIECE)];
            if chain.read(piece) != piece.len() {
                return Status::IoError;
            }
            let place = offset + at as u64;
            let written = match &mut self.overlay {
                Some(overlay) => overlay.write(&*self.backing, place, piece),
                None => self.backing.write(place, piece),
            };
            if written.is_err() {
                return Status::IoError;
            }
            at += piece.len();
        }
        Status::Ok
    }
}

fn done(result: io::Result<()>) -> Status {
    if result.is_ok() { Status::Ok } else { Status::IoError }
}

impl Device for Block {
    fn name(&self) -> &'static str {
        "virtio block"
    }

    fn kind(&self) -> u16 {
        2
    }

    fn class(&self) -> u32 {
        0x01_8000
    }

    fn features(&self) -> u64 {
        let read_only = if self.backing.read_only() { FEATURE_READ_ONLY } else { 0 };
        FEATURE_SEG_MAX | FEATURE_BLOCK_SIZE | FEATURE_FLUSH | read_only
    }

    fn queues(&self) -> &[u16] {
        &[QUEUE_SIZE]
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn process(&mut self, _queue: u16, ring: &mut Ring, _ctx: &mut DeviceContext) -> Result<(), Broken> {
        while let Some(mut chain) = ring.pop()? {
            let room = chain.writer.available_bytes();
            // A request without a byte for its status can't be answered: the device returns it unprocessed.
            let Some(status_at) = room.checked_sub(1) else {
                ring.push(chain, 0)?;
                continue;
            };
            let mut tail = chain.writer.split_at(status_at)?;
            let (status, written) = self.request(&mut chain);
            let answered = tail.write(&[status as u8]);
            ring.push(chain, (written + answered) as u32)?;
        }
        Ok(())
    }
}

/// Saved state of a disk: identity of the backing and contents of the overlay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedBlock {
    hash: Hash,
    len: u64,
    read_only: bool,
    blocks: Vec<(u64, ByteBuf)>,
}

impl Block {
    /// Checks that the backing does not change: the disk is read-only or has an overlay.
    fn is_fixed(&self) -> Result<(), StateError> {
        if self.overlay.is_some() || self.backing.read_only() { Ok(()) } else { Err(StateError::NoOverlay) }
    }
}

impl Saved for Block {
    fn save(&self) -> Result<Vec<u8>, StateError> {
        self.is_fixed()?;
        encode(&SavedBlock {
            hash: self.hash()?,
            len: self.backing.len(),
            read_only: self.backing.read_only(),
            blocks: self.overlay.as_ref().map(Overlay::blocks).unwrap_or_default(),
        })
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let SavedBlock { hash, len, read_only, blocks } = decode(bytes)?;
        same(&(len, read_only), &(self.backing.len(), self.backing.read_only()), "disk")?;
        self.is_fixed()?;
        same(&hash, &self.hash()?, "disk")?;
        let overlay = Overlay::of_blocks(blocks, len)?;
        match &mut self.overlay {
            Some(current) => *current = overlay,
            None => same(&overlay, &Overlay::default(), "disk")?,
        }
        Ok(())
    }
}
