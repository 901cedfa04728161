//! State of a whole board: the state of each device under the device's name, and the board's own.

use super::Board;
use super::devices::Id;
use crate::console::Input;
use crate::device::Ending;
use crate::state::{DeviceState, RestoreError, Saved, StateError, decode, encode, require};
use ledger::Ticks;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name and version of the board's own state.
const BOARD: (&str, u32) = ("board", 2);

/// State of the board itself, without its devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct BoardState {
    now: Ticks,
    input: Input,
    ending: Option<Ending>,
    status: Option<u8>,
    suspended: bool,
    #[serde(with = "serde_bytes")]
    printed: Vec<u8>,
    /// Output on channels that has not been taken.
    channels: Vec<(u8, Vec<u8>)>,
}

/// Returns the name of the state of a function on the PCI bus.
fn function_name(device: usize, name: &str) -> String {
    format!("pci {device}: {name}")
}

/// The saved states, each of which must be used once.
struct States<'a>(BTreeMap<&'a str, &'a DeviceState>);

impl<'a> States<'a> {
    fn new(all: &'a [DeviceState]) -> Result<Self, RestoreError> {
        let mut states = BTreeMap::new();
        for state in all {
            if states.insert(state.name.as_str(), state).is_some() {
                return Err(RestoreError::Twice(state.name.clone()));
            }
        }
        Ok(Self(states))
    }

    /// Takes the bytes of the state with this name, which must have this version.
    fn take(&mut self, name: &str, known: u32) -> Result<&'a [u8], RestoreError> {
        let state = self.0.remove(name).ok_or_else(|| RestoreError::Missing(name.to_owned()))?;
        if state.version != known {
            return Err(RestoreError::Version { name: name.to_owned(), found: state.version, known });
        }
        Ok(&state.bytes)
    }

    fn restore(&mut self, name: &str, device: &mut (impl Saved + ?Sized)) -> Result<(), RestoreError> {
        device.restore(self.take(name, device.version())?).map_err(of(name))
    }

    fn finish(self) -> Result<(), RestoreError> {
        match self.0.into_keys().next() {
            Some(name) => Err(RestoreError::Unknown(name.to_owned())),
            None => Ok(()),
        }
    }
}

/// Returns a conversion that adds a device's name to its error.
fn of(name: &str) -> impl FnOnce(StateError) -> RestoreError {
    move |cause| RestoreError::Device { name: name.to_owned(), cause }
}

fn saved(name: String, device: &(impl Saved + ?Sized)) -> Result<DeviceState, RestoreError> {
    let bytes = device.save().map_err(of(&name))?;
    Ok(DeviceState { version: device.version(), name, bytes })
}

impl Board {
    /// Saves the state of every device, in a fixed order. Guest memory and processors are not included.
    pub fn save(&self) -> Result<Vec<DeviceState>, RestoreError> {
        let own = BoardState {
            now: self.now,
            input: self.input.clone(),
            ending: self.ending,
            status: self.status,
            suspended: self.suspended,
            printed: self.outputs.printed.clone(),
            channels: self.outputs.channels.clone(),
        };
        let bytes = encode(&own).map_err(of(BOARD.0))?;
        let mut states = vec![DeviceState { name: BOARD.0.to_owned(), version: BOARD.1, bytes }];
        for &id in Id::ALL {
            states.push(saved(id.name().to_owned(), self.devices.look(id))?);
        }
        for (number, function) in self.devices.pci.functions().enumerate() {
            states.push(saved(function_name(number, function.name()), function)?);
        }
        Ok(states)
    }

    /// Restores the state of a board that was created from the same parts. After an error the board is unusable.
    pub fn restore(&mut self, states: &[DeviceState]) -> Result<(), RestoreError> {
        let mut states = States::new(states)?;
        let own: BoardState = decode(states.take(BOARD.0, BOARD.1)?).map_err(of(BOARD.0))?;
        own.input.check(&self.input, own.now).map_err(of(BOARD.0))?;
        for &id in Id::ALL {
            states.restore(id.name(), self.devices.get(id))?;
        }
        let mut number = 0;
        while let Some(function) = self.devices.pci.function(number) {
            states.restore(&function_name(number, function.name()), &mut **function)?;
            number += 1;
        }
        states.finish()?;
        for &id in Id::ALL {
            let event = self.devices.look(id).next_event();
            // Time would never pass an overdue event.
            require(event.is_none_or(|event| event > own.now), "an event whose time has passed")
                .map_err(of(id.name()))?;
            self.events.set(id, event);
        }
        let BoardState { now, input, ending, status, suspended, printed, channels } = own;
        (self.now, self.input, self.ending, self.status, self.suspended) = (now, input, ending, status, suspended);
        (self.outputs.printed, self.outputs.channels) = (printed, channels);
        Ok(())
    }
}
