//! Saved state: what a device was when a machine was saved, as bytes, and the checks by which what is read is known to be possible.
//!
//! The state of a device is plain data. What it was made from (its clock's frequency, sizes, identities) is saved with it, and must be
//! the same where it is restored. Whatever else the bytes say is checked before it replaces anything: a file may come from anywhere.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A device's state by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceState {
    /// Which device.
    pub name: String,
    /// What the bytes mean. It changes whenever that does.
    pub version: u32,
    /// Its state.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// Why a state can't be saved or restored.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StateError {
    /// The bytes are no such state.
    #[error("the state is damaged: {0}")]
    Damaged(#[from] postcard::Error),
    /// There is more than the state.
    #[error("the state is followed by {0} bytes that mean nothing")]
    Trailing(usize),
    /// It is another machine's.
    #[error("the state is of a machine with another {0}")]
    Other(&'static str),
    /// No machine can be in this state.
    #[error("there is no such state: {0}")]
    Impossible(&'static str),
    /// The guest can write to the disk itself.
    #[error("a disk that is written to can be saved and restored only with an overlay in memory")]
    NoOverlay,
    /// The guest has files of the host.
    #[error("the guest has mounted files of this host, which no snapshot has")]
    Mounted,
    /// The disk can't be read.
    #[error("the disk can't be read: {0}")]
    Disk(String),
}

/// Why a board can't be saved or restored.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RestoreError {
    /// The board has no such device.
    #[error("there is a state of {0:?}, which this machine does not have")]
    Unknown(String),
    /// There is no state of a device.
    #[error("there is no state of {0:?}")]
    Missing(String),
    /// There is more than one.
    #[error("there is more than one state of {0:?}")]
    Twice(String),
    /// The bytes mean something else than here.
    #[error("the state of {name:?} has version {found}, and this program knows version {known}")]
    Version {
        /// Which device.
        name: String,
        /// What it says.
        found: u32,
        /// What was expected.
        known: u32,
    },
    /// A device's own reason.
    #[error("{name:?}: {cause}")]
    Device {
        /// Which device.
        name: String,
        /// The reason.
        cause: StateError,
    },
}

/// What has a state that can be saved and restored.
pub trait Saved {
    /// What the bytes of a state mean.
    fn version(&self) -> u32 {
        1
    }

    /// The state as bytes; the same for the same state.
    fn save(&self) -> Result<Vec<u8>, StateError>;

    /// Takes on a state. After an error nothing has changed.
    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError>;
}

/// What is all state.
pub trait Plain: Serialize + DeserializeOwned {
    /// Whether it can be the state of `current`.
    fn check(&self, current: &Self) -> Result<(), StateError>;
}

impl<T: Plain> Saved for T {
    fn save(&self) -> Result<Vec<u8>, StateError> {
        encode(self)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let state: T = decode(bytes)?;
        state.check(self)?;
        *self = state;
        Ok(())
    }
}

/// Plain data as bytes.
pub fn encode<T: Serialize>(state: &T) -> Result<Vec<u8>, StateError> {
    Ok(postcard::to_allocvec(state)?)
}

/// The plain data that bytes stand for, and nothing but that.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, StateError> {
    match postcard::take_from_bytes(bytes)? {
        (state, []) => Ok(state),
        (_, rest) => Err(StateError::Trailing(rest.len())),
    }
}

/// The state is impossible unless this holds.
pub fn require(holds: bool, otherwise: &'static str) -> Result<(), StateError> {
    if holds { Ok(()) } else { Err(StateError::Impossible(otherwise)) }
}

/// The state is another machine's unless these are equal.
pub fn same<T: PartialEq>(saved: &T, current: &T, what: &'static str) -> Result<(), StateError> {
    if saved == current { Ok(()) } else { Err(StateError::Other(what)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_state_and_nothing_else() {
        let bytes = encode(&(5u8, true)).unwrap();
        assert_eq!(decode(&bytes), Ok((5u8, true)));
        assert_eq!(decode::<(u8, bool)>(&[5, 1, 0, 0]), Err(StateError::Trailing(2)));
        for damaged in [&[5][..], &[5, 2], &[]] {
            assert!(matches!(decode::<(u8, bool)>(damaged), Err(StateError::Damaged(_))), "{damaged:?}");
        }
        // A length of 2^63 bytes takes no memory.
        let vast = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01];
        assert!(decode::<Vec<u64>>(&vast).is_err());
    }
}
