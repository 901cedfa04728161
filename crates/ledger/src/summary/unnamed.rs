//! Charges to code without a name: how much, where that code is, and the reason as far as the machine knew it.

use super::{Cause, Selection};
use crate::charge::AddressSpace;
use crate::coarse::HALF;
use crate::entry::SavedSymbol;
use crate::ledger::Ledger;
use crate::task::{Context, TaskId};
use std::collections::BTreeMap;

/// Beginning of the keys under which a ledger's [metadata](crate::Header::metadata) has the reasons.
pub const FACT: &str = "unnamed ";
/// Least share of the selected time from which code without names is mentioned, in per cent.
const MENTIONED: u64 = 5;
/// Addresses to which a 64-bit Linux loads its modules; the same memory holds the code that it makes of BPF programs.
const MODULES: std::ops::Range<u64> = 0xffff_ffff_c000_0000..0xffff_ffff_ff00_0000;

/// A part of a machine's code, as far as it can be distinguished without a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Code below ring 3 in the upper half of the address space, except modules.
    Kernel,
    /// Code at the addresses of Linux's modules.
    Modules,
    /// Code below ring 3 in the lower half: firmware, a boot loader, a decompressor, or a kernel that lies there.
    Low,
    /// Code of ring 3.
    Programs,
    /// Code of any kind that is charged to no task. A ledger mentions it only if it has the reason: machines without tasks have nothing to name.
    Tasks,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 5] = [Self::Kernel, Self::Modules, Self::Low, Self::Programs, Self::Tasks];

    fn of(ring: u8, rip: u64) -> Self {
        match ring {
            3 => Self::Programs,
            _ if MODULES.contains(&rip) => Self::Modules,
            _ if rip & HALF == 0 => Self::Low,
            _ => Self::Kernel,
        }
    }

    /// Returns the part's name for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Modules => "modules",
            Self::Low => "low",
            Self::Programs => "programs",
            Self::Tasks => "tasks",
        }
    }

    /// Returns true if a run says at its end that much of this part has no name. Every boot has code at low addresses, and programs have names only if
    /// the user gives their files.
    pub fn is_said(self) -> bool {
        matches!(self, Self::Kernel | Self::Modules | Self::Tasks)
    }

    /// Returns the key of the reason in a ledger's [metadata](crate::Header::metadata). `nested` is true for a guest of
    /// a hypervisor that runs on the machine.
    pub fn fact(self, nested: bool) -> String {
        format!("{FACT}{}{}", if nested { "nested " } else { "" }, self.name())
    }

    /// Returns the words for the part's code.
    fn place(self, nested: bool) -> &'static str {
        match (self, nested) {
            (Self::Kernel, false) => "code of the kernel",
            (Self::Modules, false) => "code of kernel modules",
            (Self::Low, false) => "kernel code at low addresses",
            (Self::Programs, false) => "code of programs",
            (Self::Tasks, false) => "the work of tasks",
            (Self::Kernel, true) => "code of the nested guest's kernel",
            (Self::Modules, true) => "code of the nested guest's kernel modules",
            (Self::Low, true) => "the nested guest's kernel code at low addresses",
            (Self::Programs, true) => "code of the nested guest's programs",
            (Self::Tasks, true) => "the work of the nested guest's tasks",
        }
    }
}

/// Charges to code without a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unnamed {
    /// The part that the code belongs to.
    pub part: Part,
    /// True if the code is a guest's of a hypervisor that runs on the machine.
    pub nested: bool,
    /// Ticks, except those spent halted.
    pub ticks: u64,
    /// Ticks of the whole selection, except those spent halted.
    pub of: u64,
    /// The reason, if the ledger contains it.
    pub reason: Option<String>,
}

impl Unnamed {
    /// Returns the share of the selected time.
    pub fn share(&self) -> f64 {
        self.ticks as f64 / self.of.max(1) as f64
    }

    fn reason(&self) -> &str {
        self.reason.as_deref().unwrap_or("the ledger does not contain the reason")
    }

    /// Describes the code and the reason, for a line whose label says that names are missing.
    pub fn describe(&self) -> String {
        format!("{}: {}", self.part.place(self.nested), self.reason())
    }

    /// Describes the code and the reason as the rest of a sentence that begins with the code's share and "is spent in".
    pub fn describe_in_sentence(&self) -> String {
        format!("{} without names: {}", self.part.place(self.nested), self.reason())
    }
}

/// Addresses that an address space knows by one name.
#[derive(Clone, Copy)]
struct Named {
    space: AddressSpace,
    start: u64,
    size: u64,
}

impl Named {
    /// Returns the addresses of the first symbol, up to the next one.
    fn new(space: AddressSpace, symbols: &[SavedSymbol]) -> Self {
        let SavedSymbol { start, size, space: of, .. } = symbols[0];
        let next = symbols.get(1).filter(|next| next.space == of).map_or(u64::MAX, |next| next.start - start);
        Self { space, start, size: size.min(next) }
    }

    fn has(&self, space: AddressSpace, rip: u64) -> bool {
        self.space == space && rip.wrapping_sub(self.start) < self.size
    }
}

impl Selection<'_> {
    /// Returns the ticks that are charged to code without a name, without halted time: by part and
    /// [guest](crate::Origin::guest).
    pub fn unnamed_ticks(self) -> BTreeMap<(Part, u64), u64> {
        let mut sums = BTreeMap::new();
        // Charges come by address, so that most are in the function of the one before.
        let mut last = None;
        self.charges(|(origin, rip, _), cause, _, amount| {
            let who = &self.ledger.origins[origin as usize];
            let space = who.address_space();
            if cause == Cause::Halted || last.is_some_and(|last: Named| last.has(space, rip)) {
                return;
            }
            match self.ledger.symbol_at(space, rip) {
                Some(at) => last = Some(Named::new(space, &self.ledger.symbols[at..])),
                None => {
                    let sum: &mut u64 = sums.entry((Part::of(who.ring, rip), who.guest)).or_default();
                    *sum = sum.saturating_add(amount.ticks);
                }
            }
        });
        sums
    }

    /// Returns the ticks that are charged to no task although the ledger has the reason for which tasks have no names, without halted time and without
    /// what runs before a kernel.
    fn ticks_without_task(self, nested: bool) -> u64 {
        let mut sum = 0u64;
        if self.ledger.header.metadata.contains_key(&Part::Tasks.fact(nested)) {
            self.charges(|(origin, rip, _), cause, _, amount| {
                let who = &self.ledger.origins[origin as usize];
                let nobody = who.task == TaskId(0) && who.context == Context::Task && (who.guest != 0) == nested;
                if nobody && cause != Cause::Halted && Part::of(who.ring, rip) != Part::Low {
                    sum = sum.saturating_add(amount.ticks);
                }
            });
        }
        sum
    }

    /// Returns the parts of which so much has no name that a reader must know, the largest first.
    pub fn unnamed(self) -> Vec<Unnamed> {
        let of = self.total().busy();
        let mut parts: BTreeMap<(Part, bool), u64> = BTreeMap::new();
        for ((part, guest), ticks) in self.unnamed_ticks() {
            let sum = parts.entry((part, guest != 0)).or_default();
            *sum = sum.saturating_add(ticks);
        }
        parts.extend([false, true].map(|nested| ((Part::Tasks, nested), self.ticks_without_task(nested))));
        let mut mentioned: Vec<Unnamed> = parts
            .into_iter()
            .filter(|(_, ticks)| u128::from(*ticks) * 100 >= u128::from(MENTIONED) * u128::from(of.max(1)))
            .map(|((part, nested), ticks)| {
                let reason = self.ledger.header.metadata.get(&part.fact(nested)).cloned();
                Unnamed { part, nested, ticks, of, reason }
            })
            .collect();
        mentioned.sort_by_key(|unnamed| std::cmp::Reverse(unnamed.ticks));
        mentioned
    }
}

/// A part of a run's code without names, and where most of it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning<'a> {
    /// The region of interest in which the share is largest, or `None` for the whole run.
    pub region: Option<&'a str>,
    /// The code.
    pub unnamed: Unnamed,
}

impl Ledger {
    /// Returns the code without names that a run warns of: kernels, modules and tasks that are a considerable part of the whole run, or of a region of
    /// interest. Each part is returned once, with the largest share.
    pub fn warnings(&self) -> Vec<Warning<'_>> {
        let regions = self.regions.iter().skip(1).filter_map(|region| {
            let name = region.name.as_str();
            Some((Some(name), self.region(name)?))
        });
        let mut largest: BTreeMap<(Part, bool), Warning> = BTreeMap::new();
        for (region, selection) in std::iter::once((None, self.all())).chain(regions) {
            for unnamed in selection.unnamed().into_iter().filter(|unnamed| unnamed.part.is_said()) {
                let key = (unnamed.part, unnamed.nested);
                if largest.get(&key).is_none_or(|known| known.unnamed.share() < unnamed.share()) {
                    largest.insert(key, Warning { region, unnamed });
                }
            }
        }
        largest.into_values().collect()
    }

    /// Adds the reason for which tasks have no names.
    pub fn explain_tasks(&mut self, nested: bool, reason: String) {
        self.header.metadata.insert(Part::Tasks.fact(nested), reason);
    }

    /// Adds the reasons for which code has no names. `reason` returns the one for a part and the guest that most of its
    /// unnamed code belongs to.
    pub fn explain_unnamed(&mut self, reason: impl Fn(Part, u64) -> String) {
        let mut largest: BTreeMap<(Part, bool), (u64, u64)> = BTreeMap::new();
        for ((part, guest), ticks) in self.all().unnamed_ticks() {
            let most = largest.entry((part, guest != 0)).or_default();
            *most = (*most).max((ticks, guest));
        }
        for ((part, nested), (_, guest)) in largest.into_iter().filter(|(_, (ticks, _))| *ticks != 0) {
            self.header.metadata.insert(part.fact(nested), reason(part, guest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::{Symbol, Symbols};
    use crate::{AddressSpace, Family, Header, Kind, Origin, Profile, Recorder};

    const KERNEL: u64 = 0xffff_ffff_8100_0000;

    /// Returns a ledger with these charges: ring, guest, address, ticks. The kernel has one function.
    fn ledger(charges: &[(u8, u64, u64, u64)]) -> Ledger {
        let profile = Profile::named("skx").unwrap();
        let mut recorder = Recorder::default();
        let mut sum = 0;
        for &(ring, guest, rip, ticks) in charges {
            let origin = recorder.origin(Origin { ring, guest, ..Origin::default() });
            recorder.add(origin, rip, Kind::new(Family::Cpuid, 0), 1, ticks);
            sum += ticks;
        }
        let mut symbols = Symbols::default();
        symbols.add("", AddressSpace::default(), vec![Symbol::new(KERNEL, 0x100, "named")]);
        Ledger::new(Header::new(&profile, vec![sum]), &recorder, &symbols)
    }

    #[test]
    fn a_ledger_in_which_all_is_named_says_nothing() {
        let all = ledger(&[(0, 0, KERNEL, 960), (3, 0, 0x1000, 40)]);
        assert_eq!(all.all().unnamed(), []);
    }

    #[test]
    fn code_without_names_is_told_apart_by_part_and_guest() {
        let charges = [
            (0, 0, KERNEL + 0x100, 100),
            (0, 0, MODULES.start, 200),
            (0, 0, 0x10_0000, 60),
            (3, 0, 0x1000, 70),
            (0, 0x5000, KERNEL, 300),
            (0, 0x6000, KERNEL, 50),
            (3, 0x5000, 0x1000, 20),
        ];
        let mut ledger = ledger(&charges);
        ledger.explain_unnamed(|part, guest| format!("{} of {guest:#x}", part.name()));
        let found: Vec<_> = ledger.all().unnamed().iter().map(|u| (u.ticks, u.of, u.describe())).collect();
        let expected = [
            (350, "code of the nested guest's kernel: kernel of 0x5000"),
            (200, "code of kernel modules: modules of 0x0"),
            (100, "code of the kernel: kernel of 0x0"),
            (70, "code of programs: programs of 0x0"),
            (60, "kernel code at low addresses: low of 0x0"),
        ];
        assert_eq!(found, expected.map(|(ticks, text)| (ticks, 800, text.to_owned())));
        assert_eq!(ledger.all().unnamed()[0].share(), 350.0 / 800.0);
        // The nested guest's programs are too few to be mentioned, but the reason is there for a report on a part.
        assert_eq!(ledger.header.metadata["unnamed nested programs"], "programs of 0x5000");
    }

    #[test]
    fn a_run_warns_of_modules_and_tasks_by_the_region_that_has_most_of_them() {
        let profile = Profile::named("skx").unwrap();
        let mut recorder = Recorder::default();
        let work = recorder.region("work");
        let mut charge = |region, rip, ticks| {
            let origin = recorder.origin(Origin { region, ..Origin::default() });
            recorder.add(origin, rip, Kind::new(Family::Cpuid, 0), 1, ticks);
        };
        charge(crate::RegionId(0), KERNEL, 9_000);
        charge(crate::RegionId(0), 0x10_0000, 9_000);
        charge(work, MODULES.start, 300);
        charge(work, KERNEL, 700);
        let mut symbols = Symbols::default();
        symbols.add("", AddressSpace::default(), vec![Symbol::new(KERNEL, 0x100, "named")]);
        let mut ledger = Ledger::new(Header::new(&profile, vec![19_000]), &recorder, &symbols);
        ledger.explain_unnamed(|part, _| format!("the reason for {}", part.name()));
        let said = |ledger: &Ledger| {
            let said = |warning: &Warning| (warning.region.map(str::to_owned), warning.unnamed.describe());
            ledger.warnings().iter().map(said).collect::<Vec<_>>()
        };
        let modules = (Some("work".to_owned()), "code of kernel modules: the reason for modules".to_owned());
        assert_eq!(
            said(&ledger),
            std::slice::from_ref(&modules),
            "the kernel is named, and low addresses are not said"
        );
        ledger.explain_tasks(false, "no types".to_owned());
        assert_eq!(said(&ledger), [modules, (Some("work".to_owned()), "the work of tasks: no types".to_owned())]);
        assert_eq!(ledger.warnings()[1].unnamed.ticks, 1_000);
        assert_eq!(ledger.all().unnamed().last().map(|tasks| tasks.part), Some(Part::Low));
        let tasks = ledger.all().unnamed().into_iter().find(|unnamed| unnamed.part == Part::Tasks);
        assert_eq!(tasks.map(|tasks| tasks.ticks), Some(10_000), "what runs before a kernel has no task");
    }

    #[test]
    fn a_ledger_without_reasons_says_that() {
        let ledger = ledger(&[(0, 0, KERNEL + 0x100, 100)]);
        let unnamed = &ledger.all().unnamed()[0];
        assert_eq!(unnamed.describe(), "code of the kernel: the ledger does not contain the reason");
        let said = "code of the kernel without names: the ledger does not contain the reason";
        assert_eq!(unnamed.describe_in_sentence(), said);
    }
}
