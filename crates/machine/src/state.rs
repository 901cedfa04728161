//! Saved state of devices as bytes, and the checks that a restored state is possible.
//!
//! The state of a device is plain data. The parameters with which it was created (its clock's frequency, sizes,
//! identities) are saved too, and must be equal where it is restored. All other bytes are checked before they replace
//! anything: a file may come from an untrusted source.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Saved state of a device, with the device's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceState {
    /// Name of the device.
    pub name: String,
    /// Version of the encoding. It changes whenever the meaning of the bytes changes.
    pub version: u32,
    /// Encoded state.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// Reason for which a state can't be saved or restored.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StateError {
    /// The bytes can't be decoded.
    #[error("the state is {0}")]
    Damaged(&'static str),
    /// The state is followed by more bytes.
    #[error("the state is followed by {0} unexpected bytes")]
    Trailing(usize),
    /// The state belongs to a different machine.
    #[error("the state is of a machine with another {0}")]
    Other(&'static str),
    /// No machine can be in this state.
    #[error("there is no such state: {0}")]
    Impossible(&'static str),
    /// The guest can write to the disk image itself.
    #[error("a disk that is written to can be saved and restored only with an overlay in memory")]
    NoOverlay,
    /// The guest has mounted files of the host.
    #[error("the guest has mounted files of this host, which a snapshot cannot contain")]
    Mounted,
    /// The disk can't be read.
    #[error("the disk can't be read: {0}")]
    Disk(String),
}

/// Reason for which a board can't be saved or restored.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RestoreError {
    /// The state names a device that the board does not have.
    #[error("there is a state of {0:?}, which this machine does not have")]
    Unknown(String),
    /// The state of a device is missing.
    #[error("there is no state of {0:?}")]
    Missing(String),
    /// There is more than one state of a device.
    #[error("there is more than one state of {0:?}")]
    Twice(String),
    /// The state has another version than this program's.
    #[error("the state of {name:?} has version {found}, and this program knows version {known}")]
    Version {
        /// Name of the device.
        name: String,
        /// Version of the state.
        found: u32,
        /// Version of this program.
        known: u32,
    },
    /// The device rejected its state.
    #[error("{name:?}: {cause}")]
    Device {
        /// Name of the device.
        name: String,
        /// The reason.
        cause: StateError,
    },
}

impl From<postcard::Error> for StateError {
    /// Says what is wrong with the bytes in words for users. The decoder's own messages name the types of the program.
    fn from(error: postcard::Error) -> Self {
        match error {
            postcard::Error::DeserializeUnexpectedEnd => Self::Damaged("cut off"),
            _ => Self::Damaged("malformed"),
        }
    }
}

/// An object whose state can be saved and restored.
pub trait Saved {
    /// Returns the version of the encoding.
    fn version(&self) -> u32 {
        1
    }

    /// Returns the state as bytes. Equal states give equal bytes.
    fn save(&self) -> Result<Vec<u8>, StateError>;

    /// Restores a state. After an error nothing has changed.
    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError>;
}

/// An object that consists of plain state.
pub trait Plain: Serialize + DeserializeOwned {
    /// Checks that this can be a state of `current`.
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

/// Encodes plain data.
pub fn encode<T: Serialize>(state: &T) -> Result<Vec<u8>, StateError> {
    Ok(postcard::to_allocvec(state)?)
}

/// Decodes plain data; trailing bytes are an error.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, StateError> {
    match postcard::take_from_bytes(bytes)? {
        (state, []) => Ok(state),
        (_, rest) => Err(StateError::Trailing(rest.len())),
    }
}

/// Returns the error [`StateError::Impossible`] unless `holds` is true.
pub fn require(holds: bool, otherwise: &'static str) -> Result<(), StateError> {
    if holds { Ok(()) } else { Err(StateError::Impossible(otherwise)) }
}

/// Returns the error [`StateError::Other`] unless both values are equal.
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
            let error = decode::<(u8, bool)>(damaged).unwrap_err();
            let words = ["the state is cut off", "the state is malformed"];
            assert!(words.contains(&&*error.to_string()), "{damaged:?}: {error}");
            assert!(std::error::Error::source(&error).is_none(), "the reason is said once");
        }
        // A length of 2^63 bytes must not allocate memory.
        let vast = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01];
        assert!(decode::<Vec<u64>>(&vast).is_err());
    }
}
