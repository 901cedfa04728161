//! Snapshots: a whole machine in one file, from which it continues without a difference.
//!
//! A snapshot is taken between two slices, when no instruction is in progress. It contains the state of the machine:
//! processors, memory, devices, the hypervisor, and the charges so far. Data that only speeds up execution
//! (translations and other caches) and data that follows from the options is created again: the restored machine is
//! created with the same options, and the snapshot of a different one is refused.
//!
//! `file.rs` defines the layout of the file, `pages.rs` that of memory.

pub mod bytes;
#[cfg(test)]
mod damage_tests;
pub(crate) mod error;
pub(crate) mod file;
pub(crate) mod moved;
#[cfg(test)]
mod moved_tests;
#[allow(unsafe_code, reason = "pages are copied by host pointers")]
mod pages;
#[cfg(test)]
mod tests;
mod together;

pub use error::SnapshotError;
pub use pages::prepare;

use crate::console::PanicWatch;
use crate::machine::{ClockSource, Machine, WORKLOAD};
use crate::moves::{self, Move};
use crate::replay::Turns;
use crate::state::{DeviceState, Plain, decode, encode, require};
use crate::tasks::TasksState;
use crate::vcpus::Activity;
use cpu::arch::Arch;
use cpu::micro::Micro;
use cpu::saved::SavedBlocks;
use file::Kind;
use ledger::profile::Clock;
use ledger::recorder::{Saved as Record, SavedCharges};
use ledger::{Recorder, Ticks};
use pages::{Chunk, Restoring};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use together::both;

/// State of a processor.
#[derive(Serialize, Deserialize)]
struct Processor {
    arch: Arch,
    micro: Micro,
    activity: Activity,
    nmis: u8,
    spun: Ticks,
    guest: Option<hypervisor::Vcpu>,
}

/// All state except memory.
#[derive(Serialize, Deserialize)]
struct State {
    processors: Vec<Processor>,
    hypervisor: Option<hypervisor::Saved>,
    devices: Vec<DeviceState>,
    record: Record,
    blocks: SavedBlocks,
    tasks: TasksState,
    watch: PanicWatch,
    look: (Ticks, Ticks),
    turns: Turns,
    monitors: Vec<Option<u64>>,
    triggered: bool,
    moves: Vec<Move>,
}

/// The contents of a snapshot, before they are a file. The machine no longer changes them, so another thread can write them.
pub struct Captured {
    command: Vec<String>,
    machine: Facts,
    state: Vec<u8>,
    charges: SavedCharges,
    memory: Vec<Chunk<'static>>,
}

impl Captured {
    /// Returns the file.
    pub fn file(self) -> Result<Vec<u8>, SnapshotError> {
        let contents = Contents {
            command: self.command,
            machine: self.machine,
            state: lz4_flex::block::compress_prepend_size(&self.state).into(),
            charges: lz4_flex::block::compress_prepend_size(&encode(&self.charges)?).into(),
            memory: self.memory,
        };
        file::seal(Kind::Snapshot, &contents)
    }
}

/// Facts by name and value.
type Facts = Vec<(String, String)>;

/// Contents of a snapshot file.
#[derive(Serialize, Deserialize)]
struct Contents<'a> {
    /// Options of the command line that describe the machine.
    command: Vec<String>,
    /// Description of the machine, by name and value.
    machine: Vec<(String, String)>,
    #[serde(borrow, with = "serde_bytes")]
    state: Cow<'a, [u8]>,
    /// The charges so far, which nothing needs to go on.
    #[serde(borrow, with = "serde_bytes")]
    charges: Cow<'a, [u8]>,
    #[serde(borrow)]
    memory: Vec<Chunk<'a>>,
}

/// The origin of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Options of the command line that describe the machine. A snapshot may come from anybody, and so do they.
    pub command: Vec<String>,
    /// Description of the machine and its images, by name and value.
    pub facts: Vec<(String, String)>,
}

/// When the charges of a snapshot are restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charges {
    /// They are restored with the machine.
    Now,
    /// A thread restores them while the machine runs. [`Machine::is_whole`] says whether they were damaged, after the run.
    Later,
    /// They are left out. Nobody may read the ledger of the run.
    Never,
}

/// Returns the origin of a snapshot.
pub fn made(file: &[u8]) -> Result<Made, SnapshotError> {
    let contents: Contents = decode(file::open(Kind::Snapshot, file)?)?;
    Ok(Made { command: contents.command, facts: contents.machine })
}

impl Machine {
    /// Returns the properties that must be equal for a snapshot to fit this machine. `images` identifies the images
    /// that it was booted from.
    pub(crate) fn made_from(&self, images: &[(String, String)]) -> Vec<(String, String)> {
        let mut facts: Vec<(String, String)> = images.to_vec();
        facts.push(("number of processors".to_owned(), self.vcpus.all.len().to_string()));
        facts.extend(moved::facts(&self.profile));
        // The workload device decides if its workload must be the same.
        let described = self.description.iter().filter(|(key, _)| *key != WORKLOAD);
        facts.extend(described.map(|(key, value)| ((*key).to_owned(), value.clone())));
        facts
    }

    /// Returns a snapshot of the machine as a file. `images` identifies the images that it was booted from, which
    /// [`Machine::restore`] compares. The snapshot has no effect on the run.
    pub fn snapshot(&mut self, images: &[(String, String)]) -> Result<Vec<u8>, SnapshotError> {
        self.capture(images)?.file()
    }

    /// Does the same without the part of the work for which the machine is not needed.
    pub fn capture(&mut self, images: &[(String, String)]) -> Result<Captured, SnapshotError> {
        if self.clock == ClockSource::Host {
            return Err(SnapshotError::HostClock);
        }
        self.vcpus.gather();
        self.vcpus.lend_to(0);
        let (record, charges) = self.vcpus.all[0].cpu.wiring.recorder.save();
        self.is_whole()?;
        let ram = &self.vcpus.all[0].cpu.wiring.ram;
        let (monitors, triggered) = ram.monitors();
        let processor = |vcpu: &crate::vcpus::Vcpu| Processor {
            arch: vcpu.cpu.arch.clone(),
            micro: vcpu.cpu.micro.clone(),
            activity: vcpu.activity,
            nmis: vcpu.nmis,
            spun: vcpu.spun,
            guest: vcpu.guest.clone(),
        };
        let state = State {
            processors: self.vcpus.all.iter().map(processor).collect(),
            hypervisor: self.vcpus.hypervisor.as_ref().map(hypervisor::Hypervisor::save),
            devices: self.board().save()?,
            record,
            blocks: self.vcpus.cache.code.save(ram),
            tasks: self.vcpus.tasks.save(),
            watch: self.watch.clone(),
            look: self.look,
            turns: self.replay.time(),
            monitors,
            triggered,
            moves: self.moves.clone(),
        };
        let (memory, state) = both(|| pages::save(ram), || encode(&state));
        Ok(Captured { command: self.command.clone(), machine: self.made_from(images), state: state?, charges, memory })
    }

    /// Restores a snapshot of a machine that was created with the same options; this machine must not have run. After
    /// an error the machine is unusable.
    pub fn restore(&mut self, file: &[u8], images: &[(String, String)]) -> Result<(), SnapshotError> {
        self.restore_with(file, images, Charges::Now)
    }

    /// Does the same, with the charges as `charges` says.
    pub fn restore_with(
        &mut self,
        file: &[u8],
        images: &[(String, String)],
        charges: Charges,
    ) -> Result<(), SnapshotError> {
        self.read(file, |machine, contents| {
            same_machine(&contents.machine, &machine.made_from(images))?;
            machine.put(contents, charges, None)
        })
    }

    /// Returns an error if charges that were restored [`Charges::Later`] were damaged.
    pub fn is_whole(&self) -> Result<(), SnapshotError> {
        Ok(self.recorder().is_whole()?)
    }

    /// Passes the contents of a snapshot to `put`.
    fn read(
        &mut self,
        file: &[u8],
        put: impl FnOnce(&mut Self, Contents) -> Result<(), SnapshotError>,
    ) -> Result<(), SnapshotError> {
        match self.clock {
            ClockSource::Host => Err(SnapshotError::HostClock),
            ClockSource::Virtual => file::read(Kind::Snapshot, file, |content| put(self, decode(content)?)),
        }
    }

    /// Puts the contents of a snapshot into this machine. `made` is given if its guest moves here from another processor.
    fn put(&mut self, contents: Contents, charges: Charges, made: Option<Move>) -> Result<(), SnapshotError> {
        let ram = self.vcpus.all[0].cpu.wiring.ram.clone();
        let count = self.vcpus.all.len();
        let memory = match made {
            Some(_) => Restoring::guest(&ram, &contents.memory),
            None => Restoring::all(&ram, &contents.memory),
        }?;
        let state = || -> Result<_, SnapshotError> {
            let state = file::decompress(&contents.state, file::LARGEST_STATE).ok_or(SnapshotError::Damaged)?;
            let mut state: State = decode(&state)?;
            if state.processors.len() != count {
                return Err(SnapshotError::Processors(state.processors.len(), count));
            }
            state.watch.check(&self.watch)?;
            state.turns.check()?;
            require(moves::fit(&state.moves), "more moves than there can be")?;
            let record = std::mem::take(&mut state.record);
            let recorder = match charges {
                Charges::Now => Recorder::restore(record, decode_charges(&contents.charges)?)?,
                Charges::Later => {
                    let bytes = contents.charges.to_vec();
                    Recorder::restore_with_later(record, move || decode_charges(&bytes).ok())?
                }
                Charges::Never => Recorder::restore_without_charges(record)?,
            };
            Ok((state, recorder.keeping(self.recorder().keeps())))
        };
        let (restored, state) = both(|| memory.work(), || (state(), memory.work()));
        let (state, rest) = state;
        let (state, recorder) = state?;
        restored.and(rest)?;
        drop(contents);
        self.vcpus.all.iter_mut().for_each(|vcpu| vcpu.cpu.wiring.recorder = recorder.another());
        if let Some(first) = self.vcpus.all.first_mut() {
            first.cpu.wiring.recorder = recorder;
        }
        match made {
            Some(_) => self.take_over(state.processors)?,
            None => self.put_processors(state.processors, state.hypervisor)?,
        }
        self.board().restore(&state.devices)?;
        let first = &mut self.vcpus.all[0].cpu;
        self.vcpus.tasks.restore(state.tasks, &first.wiring.recorder, &mut self.vcpus.cache, &ram)?;
        // After a move code is decoded again when it is executed, at the new processor's prices.
        if made.is_none() {
            first
                .restore_blocks(&state.blocks, &mut self.vcpus.cache)
                .map_err(|error| SnapshotError::Processor(0, error))?;
        }
        for (number, vcpu) in self.vcpus.all.iter().enumerate() {
            vcpu.cpu.check_place(&self.vcpus.cache).map_err(|error| SnapshotError::Processor(number, error))?;
        }
        ram.restore_monitors(&state.monitors[..state.monitors.len().min(count)], state.triggered);
        (self.watch, self.look, self.moves) = (state.watch, state.look, state.moves);
        if let Some(made) = made {
            self.moved(made);
        }
        self.replay.go_on_from(state.turns);
        drop(self.ram.take_written());
        Ok(())
    }

    /// Puts the state of the processors and of the hypervisor into this machine.
    fn put_processors(
        &mut self,
        processors: Vec<Processor>,
        hypervisor: Option<hypervisor::Saved>,
    ) -> Result<(), SnapshotError> {
        match (&mut self.vcpus.hypervisor, hypervisor) {
            (Some(vm), Some(saved)) => vm.restore(saved, processors.iter().filter_map(|p| p.guest.as_ref()))?,
            (None, None) => {}
            _ => return Err(SnapshotError::Platform),
        }
        for (number, (vcpu, saved)) in self.vcpus.all.iter_mut().zip(processors).enumerate() {
            vcpu.cpu.restore(saved.arch, saved.micro).map_err(|error| SnapshotError::Processor(number, error))?;
            if vcpu.guest.is_some() != saved.guest.is_some() {
                return Err(SnapshotError::Platform);
            }
            (vcpu.activity, vcpu.nmis, vcpu.spun, vcpu.guest) = (saved.activity, saved.nmis, saved.spun, saved.guest);
        }
        Ok(())
    }

    /// Lets this machine's hypervisor take over the virtual CPUs of another one.
    fn take_over(&mut self, processors: Vec<Processor>) -> Result<(), SnapshotError> {
        let vm = self.vcpus.hypervisor.as_ref().ok_or(SnapshotError::Platform)?;
        for (number, (vcpu, saved)) in self.vcpus.all.iter_mut().zip(processors).enumerate() {
            let mut guest = saved.guest.ok_or(SnapshotError::Platform)?;
            vm.rejects(number, &guest).map_or(Ok(()), Err)?;
            let arch = saved.arch.clone();
            vcpu.cpu.take_over(saved.arch, saved.micro).map_err(|error| SnapshotError::Processor(number, error))?;
            vm.take_over(&mut guest, &mut vcpu.cpu, &arch);
            (vcpu.activity, vcpu.nmis, vcpu.spun, vcpu.guest) = (saved.activity, saved.nmis, saved.spun, Some(guest));
        }
        Ok(())
    }
}

fn decode_charges(bytes: &[u8]) -> Result<SavedCharges, SnapshotError> {
    Ok(decode(&file::decompress(bytes, file::LARGEST_STATE).ok_or(SnapshotError::Damaged)?)?)
}

/// Name of the fact that names the model of time.
const MODEL: &str = "model";

/// Checks that a snapshot is of a machine that was created in the same way.
pub(crate) fn same_machine(saved: &[(String, String)], here: &[(String, String)]) -> Result<(), SnapshotError> {
    let other = |what: &str, saved_value: &str, here_value: &str| {
        moved::other_processor(what, saved, here).unwrap_or_else(|| SnapshotError::OtherMachine {
            what: what.to_owned(),
            saved: saved_value.to_owned(),
            here: here_value.to_owned(),
        })
    };
    let value = |of: &[(String, String)], key: &str| of.iter().find(|(k, _)| k == key).map(|(_, value)| value.clone());
    // The usual model of time is not stated.
    let unstated = |key: &str| if key == MODEL { Clock::default().name() } else { "nothing" };
    // A processor whose model of time is another one is another processor too, but the model says what to change.
    let model = |of: &[(String, String)]| value(of, MODEL).unwrap_or_else(|| unstated(MODEL).to_owned());
    if model(saved) != model(here) {
        let (what, saved, here) = (MODEL.to_owned(), model(saved), model(here));
        return Err(SnapshotError::OtherMachine { what, saved, here });
    }
    for (key, saved_value) in saved {
        let here_value = value(here, key).unwrap_or_else(|| unstated(key).to_owned());
        if *saved_value != here_value {
            return Err(other(key, saved_value, &here_value));
        }
    }
    match here.iter().find(|(key, _)| value(saved, key).is_none()) {
        Some((key, here)) => Err(other(key, unstated(key), here)),
        None => Ok(()),
    }
}
