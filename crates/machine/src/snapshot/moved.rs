//! Moves of a guest: a snapshot goes on under a hypervisor on another processor.

use super::error::SnapshotError;
use super::{Charges, Contents, Facts, file};
use crate::machine::Machine;
use crate::moves::Move;
use crate::platform::Platform;
use hypervisor::config::{MmuMode, Switches};
use hypervisor::moving::Destination;
use ledger::profile::Profile;

/// Name of the fact that identifies the processor.
pub const PROCESSOR: &str = "processor";
/// Name of the fact that identifies what the guest knows of its processor.
const SHOWN: &str = "guest's processor";
/// Facts that follow from the processor. They may change in a move, together with the hypervisor's switches. The model of time stays: the
/// ledger names one for the whole run.
const OF_PROCESSOR: [&str; 2] = [PROCESSOR, OPTIONS];
/// Name of the fact with the options of the processor, if it has any.
const OPTIONS: &str = "processor options";
/// The switch on which the guest may rely.
const PARAVIRT: &str = "paravirt";
/// The switch that is a fact if the guest may be a hypervisor itself.
const NESTED: &str = "nested";
/// Returns the facts that identify a processor and what it shows a guest.
pub fn facts(profile: &Profile) -> Facts {
    let hash = |text: &str| file::hash(text.as_bytes());
    let name = match &profile.moved_to {
        Some(_) => format!("{} for a guest of {}", profile.name, profile.identity.name),
        None => profile.name.clone(),
    };
    let processor = format!("{name} {}", hash(&format!("{profile:?}")));
    vec![(SHOWN.to_owned(), hash(&profile.shown())), (PROCESSOR.to_owned(), processor)]
}

/// Returns the value of a fact.
fn value<'a>(facts: &'a [(String, String)], key: &str) -> Option<&'a str> {
    facts.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
}

/// Returns the name of the processor in facts, and all of the fact.
fn processor(facts: &[(String, String)]) -> (&str, &str) {
    let whole = value(facts, PROCESSOR).unwrap_or_default();
    (whole.rsplit_once(' ').map_or(whole, |(name, _)| name), whole)
}

/// Returns the error for a difference in this fact, if it belongs to the processor.
pub fn other_processor(key: &str, saved: &[(String, String)], here: &[(String, String)]) -> Option<SnapshotError> {
    [SHOWN, PROCESSOR].contains(&key).then(|| {
        let options = [saved, here].map(|facts| value(facts, OPTIONS));
        let ((saved, all_saved), (here, all_here)) = (processor(saved), processor(here));
        if saved != here {
            return SnapshotError::OtherProcessor { saved: saved.to_owned(), here: here.to_owned() };
        }
        let with = |name: &str, options: Option<&str>| match options {
            Some(options) => format!("{name},{options}"),
            None => format!("{name} without options"),
        };
        match options {
            [of_saved, of_here] if of_saved != of_here => {
                SnapshotError::OtherProcessor { saved: with(saved, of_saved), here: with(here, of_here) }
            }
            _ => SnapshotError::OtherProcessor { saved: all_saved.to_owned(), here: all_here.to_owned() },
        }
    })
}

impl Machine {
    /// Restores a snapshot as [`Self::restore`] does. If the snapshot is of a machine with another processor, or with other switches of the
    /// hypervisor, moves its guest to this machine, which must have been created for a guest of the saved machine's processor
    /// ([`Profile::for_guest_of`]).
    pub fn restore_or_move(&mut self, bytes: &[u8], images: &[(String, String)]) -> Result<(), SnapshotError> {
        self.read(bytes, |machine, contents| machine.put_or_move(contents, images))
    }

    fn put_or_move(&mut self, contents: Contents, images: &[(String, String)]) -> Result<(), SnapshotError> {
        let here = self.made_from(images);
        if super::same_machine(&contents.machine, &here).is_ok() {
            return self.put(contents, Charges::Now, None);
        }
        let made = self.check_move(&contents, &here)?;
        self.put(contents, Charges::Now, Some(made))
    }

    /// Checks that the guest of a snapshot can be moved to this machine.
    fn check_move(&self, contents: &Contents, here: &[(String, String)]) -> Result<Move, SnapshotError> {
        let saved = &contents.machine;
        let stays = |(key, _): &&(String, String)| {
            let switch = Switches::ALL.iter().any(|switch| switch.name == key);
            key != SHOWN && !OF_PROCESSOR.contains(&key.as_str()) && (!switch || key == PARAVIRT)
        };
        if value(saved, SHOWN) != value(here, SHOWN) {
            let first = processor(saved).0.rsplit(' ').next().unwrap_or_default();
            return Err(SnapshotError::FirstProcessor(first.to_owned()));
        }
        let kept = |facts: &[(String, String)]| facts.iter().filter(stays).cloned().collect::<Facts>();
        super::same_machine(&kept(saved), &kept(here))?;
        let Platform::Hvm(config) = &self.platform else { return Err(SnapshotError::NoHypervisor) };
        if value(saved, NESTED).is_some() {
            return Err(SnapshotError::Nested);
        }
        if config.nested {
            return Err(SnapshotError::NestedHere);
        }
        let mut left = config.clone();
        left.mmu = value(saved, "mmu").and_then(|mmu| mmu.parse::<MmuMode>().ok()).ok_or(SnapshotError::Platform)?;
        let itself = self.profile.moved_to.as_deref().unwrap_or(&self.profile);
        if let Some(lack) = (Destination { config, processor: itself }).lacks(&self.profile, &left) {
            return Err(SnapshotError::Lacks(lack));
        }
        let name = |facts| processor(facts).0.split(' ').next().unwrap_or_default().to_owned();
        Ok(Move { from: name(saved), to: name(here), at: 0 })
    }

    /// Records a move of the restored guest.
    pub(super) fn moved(&mut self, made: Move) {
        self.moves.push(Move { at: self.vcpus.now(), ..made });
    }
}
