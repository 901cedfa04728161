//! Cost profiles: what a processor is, what everything costs on it, and where each figure comes from.
//!
//! A profile is a TOML file. Those of `profiles/` are built in ([`Profile::named`]); any other can be loaded
//! ([`Profile::load`]). Reading one never panics: whatever is wrong is reported with the file, the key and the reason.
//!
//! A profile also selects the model of time ([`Clock`]) that turns its figures into the time of a run.

mod cpuid;
mod frequency;
mod microcode;
mod moved;
mod options;
mod parse;
mod pmu;

pub use cpuid::CpuidLeaf;
pub use frequency::Frequency;
pub use microcode::Microcode;
pub use moved::Identity;
pub use options::{Choice, Options};

use crate::caches::{Branches, Caches, Code, DeviceWrites, Level, Walks};
use crate::{Class, Costs, Family, Geometry, Kind, Sets, Ticks};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use strum::{EnumString, IntoStaticStr, VariantArray};

/// The model of time that turns a profile's figures into the time of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Clock {
    /// An instruction costs the price of its class, and an event that of its kind; prices add up.
    #[default]
    Flat,
    /// Straight-line code takes what the core's pipeline takes for it. Data accesses go through caches: a miss costs the
    /// time for which the core waits, which depends on the level that has the line, and on the misses around it. Events
    /// cost the price of their kind.
    Core,
}

impl Clock {
    /// The word used in profiles and on the command line.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The reliability of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumString, IntoStaticStr, VariantArray)]
pub enum Confidence {
    /// Read in a primary measured source, for this processor or one with the same core.
    #[strum(serialize = "H")]
    High,
    /// A secondary source, or a neighbouring processor, or raw logs that were never published.
    #[strum(serialize = "M")]
    Medium,
    /// Known from the literature, the text itself was not checked.
    #[strum(serialize = "L")]
    Low,
    /// Not published: reasoned from other figures, as its source says.
    #[strum(serialize = "estimate")]
    Estimate,
}

impl Confidence {
    /// All of them, the best first.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The word used in profiles.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The origin of a figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provenance {
    /// The publication, or the reasoning of an estimate.
    pub source: String,
    /// The reliability of the figure.
    pub confidence: Confidence,
}

/// A value with its provenance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// The origin of the value.
    pub from: Provenance,
}

/// The maker of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// Intel.
    Intel,
    /// AMD.
    Amd,
}

/// Sizes of the modelled structures, each with its provenance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// TLBs, in the order of the fields of [`Geometry`]: name, size.
    pub tlb: [(&'static str, Sourced<Sets>); 7],
    /// Entries of the indirect target cache.
    pub target_cache: Sourced<u16>,
    /// Depth of the return stack.
    pub return_stack: Sourced<u16>,
}

/// The caches and the way to memory, each figure with its provenance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFigures {
    /// First level, data.
    pub l1d: Sourced<Level>,
    /// See [`Caches::set_loads`].
    pub set_loads: u16,
    /// First level, code.
    pub l1i: Sourced<Level>,
    /// How the front end asks for lines of code.
    pub fetch: Sourced<Fetch>,
    /// Lines of code whose branches the front end knows, and what a taken branch costs that it does not know.
    pub branches: Sourced<Branches>,
    /// Second level.
    pub l2: Sourced<Level>,
    /// Third level, if there is one.
    pub l3: Option<Sourced<Level>>,
    /// The way to memory.
    pub memory: Sourced<MemoryFigures>,
    /// Latency of a line that another processor has changed, in ticks.
    pub between_cores: Sourced<Ticks>,
    /// Where lines are that devices have written.
    pub devices: Sourced<DeviceWrites>,
    /// Ticks that an access across lines takes more, and one across pages.
    pub splits: Sourced<[Ticks; 2]>,
    /// Ticks of latency that the core hides behind the instructions that follow.
    pub window: Sourced<Ticks>,
    /// Misses that may wait at the same time.
    pub fill_buffers: Sourced<u16>,
    /// Page walks.
    pub walks: Sourced<Walks>,
}

/// The way to memory, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFigures {
    /// See [`Caches::memory_latency`].
    pub latency: Ticks,
    /// See [`Caches::memory_transfer`].
    pub transfer: Ticks,
    /// See [`Caches::memory_stream`].
    pub stream: Ticks,
    /// See [`Caches::memory_same_set`].
    pub same_set: Ticks,
}

/// How the front end asks for lines of code: see [`Code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// See [`Code::transfer`].
    pub transfer: Ticks,
    /// See [`Code::ahead`].
    pub ahead: Ticks,
    /// See [`Code::scattered`].
    pub scattered: u16,
    /// See [`Code::sequential`].
    pub sequential: u16,
}

impl CacheFigures {
    /// Caches as the processor wants them.
    pub fn caches(&self) -> Caches {
        Caches {
            l1d: self.l1d.value,
            code: Code {
                l1i: self.l1i.value,
                transfer: self.fetch.value.transfer,
                ahead: self.fetch.value.ahead,
                scattered: self.fetch.value.scattered,
                sequential: self.fetch.value.sequential,
                branches: self.branches.value,
            },
            l2: self.l2.value,
            l3: self.l3.as_ref().map(|level| level.value),
            memory_latency: self.memory.value.latency,
            memory_transfer: self.memory.value.transfer,
            memory_stream: self.memory.value.stream,
            memory_same_set: self.memory.value.same_set,
            set_loads: self.set_loads,
            between_cores: self.between_cores.value,
            device_writes: self.devices.value,
            splits: self.splits.value,
            window: self.window.value,
            fill_buffers: self.fill_buffers.value,
            walks: self.walks.value,
        }
    }
}

/// The prices of instructions and events, on the processor itself or in a program that emulates it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prices {
    /// Ticks per instruction, by class in the order of [`Class::ALL`].
    pub classes: Vec<Sourced<Ticks>>,
    /// Ticks per event, by family in the order of [`Family::ALL`]; `None` for those that have prices by class or operation only,
    /// and for those that can't occur.
    pub families: Vec<Option<Sourced<Ticks>>>,
    /// Ticks of kinds that differ from their family, and of every operation.
    pub kinds: BTreeMap<Kind, Sourced<Ticks>>,
}

impl Prices {
    /// Prices as the processor wants them.
    pub fn costs(&self) -> Costs {
        let mut by_class = Costs::free().class;
        for (class, figure) in Class::ALL.into_iter().zip(&self.classes) {
            by_class[class as usize] = figure.value as u32;
        }
        let mut by_family = [0; Family::COUNT];
        for (price, figure) in by_family.iter_mut().zip(&self.families) {
            *price = figure.as_ref().map_or(0, |figure| figure.value);
        }
        let leaf = self.kinds.get(&Kind::cpuid(0xd, 0)).into_iter();
        let subleaves = leaf.flat_map(|leaf| (0..Kind::CPUID_SUBLEAVES).map(|n| (Kind::cpuid(0xd, n), leaf.value)));
        let kinds = self.kinds.iter().map(|(kind, figure)| (*kind, figure.value));
        Costs::new(by_class, by_family, subleaves.chain(kinds))
    }

    /// The price of an event with its provenance; `None` for instructions and for what can't occur.
    pub fn figure(&self, kind: Kind) -> Option<&Sourced<Ticks>> {
        self.kinds.get(&kind).or_else(|| self.families[kind.family as usize].as_ref())
    }
}

impl Sizes {
    /// Sizes as the processor wants them.
    pub fn geometry(&self) -> Geometry {
        let [dtlb_4k, dtlb_2m, dtlb_1g, itlb_4k, itlb_2m, stlb, stlb_1g] = std::array::from_fn(|i| self.tlb[i].1.value);
        Geometry {
            dtlb_4k,
            dtlb_2m,
            dtlb_1g,
            itlb_4k,
            itlb_2m,
            stlb,
            stlb_1g,
            target_cache: self.target_cache.value,
            return_stack: self.return_stack.value,
            predicts_directions: false,
            keeps_global: true,
            keeps_large: true,
            caches: None,
        }
    }
}

/// A program that emulates the processor without its help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulator {
    /// The program, and the processor it runs on.
    pub title: String,
    /// The emulator's prices of the guest's instructions and events.
    pub prices: Prices,
    /// The sizes of the emulator's substitutes for TLBs and predictors.
    pub sizes: Sizes,
    /// True if translations of global pages survive a MOV to CR3.
    pub keeps_global: Sourced<bool>,
    /// True if large pages are kept as such, and not in pieces of 4 KiB.
    pub keeps_large: Sourced<bool>,
}

/// The capabilities of the processor's virtualization. The names are Intel's; AMD's nested paging and address-space identifiers are
/// equivalent, and SVM always ran unpaged guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Virtualization {
    /// Two-dimensional paging.
    pub ept: bool,
    /// Its tables have accessed and dirty flags.
    pub ept_ad: bool,
    /// Its tables can map 1 GiB at once.
    pub ept_1g: bool,
    /// Its tables can map pages that may be executed but not read.
    pub ept_execute_only: bool,
    /// Translations tagged by guest.
    pub vpid: bool,
    /// INVVPID.
    pub invvpid: bool,
    /// Guests in real mode and in protected mode without paging.
    pub unrestricted_guest: bool,
    /// MSR accesses exit by a bitmap, not always.
    pub msr_bitmap: bool,
    /// CR3-target values: MOV to CR3 of one of them does not exit.
    pub cr3_targets: u8,
}

impl Virtualization {
    /// Features by the names that profiles give them.
    pub(self) fn features(&mut self) -> [(&'static str, &mut bool); 8] {
        [
            ("ept", &mut self.ept),
            ("ept_ad", &mut self.ept_ad),
            ("ept_1g", &mut self.ept_1g),
            ("ept_execute_only", &mut self.ept_execute_only),
            ("vpid", &mut self.vpid),
            ("invvpid", &mut self.invvpid),
            ("unrestricted_guest", &mut self.unrestricted_guest),
            ("msr_bitmap", &mut self.msr_bitmap),
        ]
    }

    /// Names of what there is, as profiles write them.
    pub fn names(mut self) -> impl Iterator<Item = &'static str> {
        self.features()
            .map(|(name, there)| (name, *there))
            .into_iter()
            .filter(|feature| feature.1)
            .map(|feature| feature.0)
    }
}

/// Settings of a word of VMX controls that the processor admits (SDM vol. 3, A.2): the two halves of a capability MSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedSettings {
    /// Controls that must be 1.
    pub allowed_0: u32,
    /// Those of them that must be 1 for software that knows the TRUE capability MSR, if the processor has that.
    pub true_allowed_0: Option<u32>,
    /// Controls that may be 1.
    pub allowed_1: u32,
}

/// Contents of the VMX capability MSRs (SDM vol. 3, appendix A).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vmx {
    /// VMCS revision identifier.
    pub revision: Sourced<u32>,
    /// Pin-based controls.
    pub pin: Sourced<AllowedSettings>,
    /// Primary processor-based controls.
    pub primary: Sourced<AllowedSettings>,
    /// Secondary processor-based controls.
    pub secondary: Sourced<AllowedSettings>,
    /// VM-exit controls.
    pub exit: Sourced<AllowedSettings>,
    /// VM-entry controls.
    pub entry: Sourced<AllowedSettings>,
    /// IA32_VMX_MISC.
    pub misc: Sourced<u64>,
    /// IA32_VMX_EPT_VPID_CAP; 0 if the processor does not have it.
    pub ept_vpid: Sourced<u64>,
}

/// A processor: costs, sizes, identification.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Short name, as given on the command line.
    pub name: String,
    /// The processor in full.
    pub title: String,
    /// True for a processor that does not exist.
    pub synthetic: bool,
    /// Remarks that a reader of the figures must know.
    pub notes: String,
    /// The maker of the processor.
    pub vendor: Vendor,
    /// The processor that CPUID names: another one for a guest that was moved.
    pub identity: Identity,
    /// The processor itself, if the guest was moved to it and knows another one.
    pub moved_to: Option<Box<Profile>>,
    /// Frequency of the core and of the TSC, in hertz, which all times assume: the base frequency, unless another one is chosen.
    pub tsc_hz: Sourced<u64>,
    /// The highest frequency of a core that runs alone, in hertz. The modelled core has it only with [`Frequency::Boost`]; published microseconds
    /// are often of cores that did boost. `None`: the processor does not boost.
    pub boost_hz: Option<Sourced<u64>>,
    /// MAXPHYADDR.
    pub physical_bits: Sourced<u8>,
    /// The capabilities of its virtualization.
    pub virtualization: Sourced<Virtualization>,
    /// The contents of its VMX capability MSRs, if it has VMX.
    pub vmx: Option<Vmx>,
    /// Contents of IA32_ARCH_CAPABILITIES, if the processor has it.
    pub arch_capabilities: Option<Sourced<u64>>,
    /// XCR0 of a Linux host on the processor, on which a hypervisor runs. `None`: it has no XSAVE.
    pub host_xcr0: Option<Sourced<u64>>,
    /// The model of time.
    pub clock: Clock,
    /// True if its file names the model of time.
    pub names_clock: bool,
    /// The name of the core whose tables say what instructions take, for [`Clock::Core`]. `None`: no table is known, and an
    /// instruction takes the price of its class.
    pub core: Option<Sourced<String>>,
    /// Sizes of TLBs and predictors.
    pub sizes: Sizes,
    /// Caches, if they are known.
    pub caches: Option<CacheFigures>,
    /// The prices.
    pub prices: Prices,
    /// A program that emulates it.
    pub emulator: Emulator,
    /// The origin of the CPUID contents.
    pub cpuid_from: Provenance,
    /// CPUID as the real processor answers: (leaf, sub-leaf, registers).
    raw_cpuid: Vec<[u32; 6]>,
    /// What microcode updates add to the processor; `None`: there are none.
    pub microcode: Option<Microcode>,
    /// What the user has chosen.
    pub options: Options,
}

/// Why a profile can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// There is no built-in profile of that name.
    #[error("there is no processor profile '{name}'; there are: {known}, or give the path of a .toml file")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The file can't be read.
    #[error("profile {file} can't be read")]
    Read {
        /// The file.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("profile {file}: {reason}")]
    Syntax {
        /// The file.
        file: String,
        /// The place and the reason.
        reason: String,
    },
    /// An option is unknown, or the processor can't have it.
    #[error("processor profile {name} with the option '{word}': {reason}")]
    Choice {
        /// The name of the profile.
        name: String,
        /// The option.
        word: String,
        /// Why.
        reason: String,
    },
    /// The model of time needs caches.
    #[error("profile {name} has no [cache], which the model 'core' needs")]
    NoCaches {
        /// The name of the profile.
        name: String,
    },
    /// A value is missing or unusable.
    #[error("profile {file}: {key}: {reason}")]
    Value {
        /// The file.
        file: String,
        /// The key, with the tables it is in.
        key: String,
        /// Why.
        reason: String,
    },
}

/// The profiles that are built in, by name.
const BUILT_IN: &[(&str, &str)] = &[
    ("clx", include_str!("../../../../profiles/clx.toml")),
    ("core2", include_str!("../../../../profiles/core2.toml")),
    ("emr", include_str!("../../../../profiles/emr.toml")),
    ("hsw", include_str!("../../../../profiles/hsw.toml")),
    ("icx", include_str!("../../../../profiles/icx.toml")),
    ("max", include_str!("../../../../profiles/max.toml")),
    ("skx", include_str!("../../../../profiles/skx.toml")),
    ("spr", include_str!("../../../../profiles/spr.toml")),
    ("zen3", include_str!("../../../../profiles/zen3.toml")),
    ("zen4", include_str!("../../../../profiles/zen4.toml")),
    ("zen5", include_str!("../../../../profiles/zen5.toml")),
];

/// Other names of built-in profiles, as the processors are called elsewhere.
const ALIASES: &[(&str, &str)] = &[
    ("cascadelake", "clx"),
    ("cascadelake-server", "clx"),
    ("cascade-lake", "clx"),
    ("conroe", "core2"),
    ("merom", "core2"),
    ("emeraldrapids", "emr"),
    ("emerald-rapids", "emr"),
    ("haswell", "hsw"),
    ("haswell-server", "hsw"),
    ("haswell-ep", "hsw"),
    ("icelake", "icx"),
    ("icelake-server", "icx"),
    ("ice-lake", "icx"),
    ("skylake", "skx"),
    ("skylake-server", "skx"),
    ("skylake-sp", "skx"),
    ("sapphirerapids", "spr"),
    ("sapphire-rapids", "spr"),
    ("epyc-milan", "zen3"),
    ("milan", "zen3"),
    ("epyc-genoa", "zen4"),
    ("genoa", "zen4"),
    ("epyc-turin", "zen5"),
    ("turin", "zen5"),
];

/// Files larger than this are not profiles.
const LARGEST_FILE: u64 = 1 << 20;

impl ProfileError {
    /// Returns true if the words by which a user names a processor are wrong, whatever files there are.
    pub fn is_of_the_words(&self) -> bool {
        matches!(self, Self::Unknown { .. } | Self::Choice { .. } | Self::NoCaches { .. })
    }
}

impl Profile {
    /// Names of the built-in profiles, sorted.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|entry| entry.0)
    }

    /// Other names of built-in profiles, each with the profile's own name.
    pub fn aliases() -> impl Iterator<Item = (&'static str, &'static str)> {
        ALIASES.iter().copied()
    }

    /// A built-in profile, by its name or another one of it (in capitals, too).
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        let lower = name.to_ascii_lowercase();
        let name = ALIASES.iter().find(|entry| entry.0 == lower).map_or(name, |entry| entry.1);
        parse::profile(&format!("{name}.toml (built in)"), built_in(name)?)
    }

    /// The profile in a file.
    pub fn load(path: &Path) -> Result<Self, ProfileError> {
        let file = path.display().to_string();
        let read = |source| ProfileError::Read { file: file.clone(), source };
        let mut bytes = Vec::new();
        // A device may have no size, and no end.
        File::open(path).and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut bytes)).map_err(read)?;
        if bytes.len() as u64 > LARGEST_FILE {
            return Err(ProfileError::Syntax { file, reason: format!("more than {LARGEST_FILE} bytes are too many") });
        }
        match String::from_utf8(bytes) {
            Ok(text) => parse::profile(&file, &text),
            Err(_) => Err(ProfileError::Syntax { file, reason: "is not UTF-8 text".to_owned() }),
        }
    }

    /// The profile a user means: a built-in name, or the path of a file if it ends in `.toml` or has a directory. Options
    /// may follow after commas, see [`Choice`].
    pub fn find(text: &str) -> Result<Self, ProfileError> {
        let (name, options) = options::split(text);
        let profile = match Self::file_in(text) {
            Some(path) => Self::load(path)?,
            None => Self::named(name)?,
        };
        profile.with_options(options)
    }

    /// The file of a profile in what [`Profile::find`] takes, if it names one.
    pub fn file_in(text: &str) -> Option<&Path> {
        let name = Self::name_in(text);
        (name.ends_with(".toml") || name.contains('/')).then_some(Path::new(name))
    }

    /// The name or path of a profile in what [`Profile::find`] takes, without options.
    pub fn name_in(text: &str) -> &str {
        options::split(text).0
    }

    /// A profile from the text of a file called `file`.
    pub fn parse(file: &str, text: &str) -> Result<Self, ProfileError> {
        parse::profile(file, text)
    }

    /// Prices as the processor wants them, on the machine itself and for a hypervisor on it.
    pub fn costs(&self) -> Costs {
        self.prices.costs()
    }

    /// Sizes as the processor wants them, on the machine itself and for a hypervisor on it.
    pub fn geometry(&self) -> Geometry {
        let modelled = self.caches.as_ref().filter(|_| self.clock == Clock::Core);
        // Without a core, the price of the class has a share of mispredictions.
        let predicts_directions = modelled.is_some() && self.core.is_some();
        Geometry { caches: modelled.map(CacheFigures::caches), predicts_directions, ..self.sizes.geometry() }
    }

    /// Selects the model `core` if the profile has caches and its file names no model.
    pub fn with_usual_clock(mut self) -> Self {
        if !self.names_clock && self.caches.is_some() {
            self.clock = Clock::Core;
        }
        self
    }

    /// Selects a model of time in place of the profile's own.
    pub fn with_clock(mut self, clock: Clock) -> Result<Self, ProfileError> {
        if clock == Clock::Core && self.caches.is_none() {
            return Err(ProfileError::NoCaches { name: self.name });
        }
        self.clock = clock;
        Ok(self)
    }

    /// Prices in a program that emulates the processor.
    pub fn emulated_costs(&self) -> Costs {
        self.emulator.prices.costs()
    }

    /// Sizes in a program that emulates the processor.
    pub fn emulated_geometry(&self) -> Geometry {
        Geometry {
            keeps_global: self.emulator.keeps_global.value,
            keeps_large: self.emulator.keeps_large.value,
            ..self.emulator.sizes.geometry()
        }
    }

    /// CPUID as guests see it: what the real processor has, limited to what the modelled one executes. Bits that depend on
    /// state (OSXSAVE, OSPKE, APIC ids, counts of cores, sizes for the current XCR0) are 0 and are up to the processor.
    pub fn cpuid(&self) -> Vec<CpuidLeaf> {
        let mut leaves =
            cpuid::visible(&self.raw_cpuid, self.identity.vendor, self.physical_bits.value, self.vmx.is_some());
        if self.options.pmu {
            self.show_counters(&mut leaves);
        }
        leaves
    }

    /// A processor that runs a guest by itself: what it says of itself, and its frequency, in place of this profile's. Prices stay, and are of
    /// no use.
    pub fn of_host(mut self, raw_cpuid: Vec<[u32; 6]>, tsc_hz: u64) -> Self {
        let leaf = |number: u32| raw_cpuid.iter().find(|row| row[0] == number);
        if let Some(row) = leaf(0) {
            // EBX of "AuthenticAMD" and of "HygonGenuine".
            let amd = [0x6874_7541, 0x6f67_7948].contains(&row[3]);
            self.vendor = if amd { Vendor::Amd } else { Vendor::Intel };
            self.identity.vendor = self.vendor;
        }
        if let Some(row) = leaf(0x8000_0008) {
            self.physical_bits.value = row[2] as u8;
        }
        let brand =
            (0x8000_0002..=0x8000_0004).filter_map(leaf).flat_map(|row| &row[2..]).flat_map(|word| word.to_le_bytes());
        let brand: Vec<u8> = brand.take_while(|byte| *byte != 0).collect();
        self.title = String::from_utf8_lossy(&brand).trim().to_owned();
        self.name = "host".to_owned();
        self.identity.name.clone_from(&self.name);
        self.tsc_hz.value = tsc_hz;
        self.boost_hz = None;
        self.raw_cpuid = raw_cpuid;
        self.microcode = None;
        self.options = Options::default();
        self
    }

    /// The same processor of Intel without the vulnerabilities for which IA32_ARCH_CAPABILITIES has a bit: a guest's kernel does not mitigate
    /// them. Other processors stay as they are.
    pub fn invulnerable(mut self) -> Self {
        let row = self.raw_cpuid.iter_mut().find(|row| row[..2] == [7, 0]);
        let Some(row) = row.filter(|_| self.vendor == Vendor::Intel) else { return self };
        row[5] |= cpuid::LEAF_7_EDX_ARCH_CAPABILITIES;
        let source = "without the vulnerabilities that the processor has".to_owned();
        let from = Provenance { source, confidence: Confidence::Estimate };
        self.arch_capabilities = Some(Sourced { value: cpuid::NOT_VULNERABLE, from });
        self
    }

    /// The real processor's CPUID for a leaf and sub-leaf, if the profile has it.
    pub fn real_cpuid(&self, leaf: u32, subleaf: u32) -> Option<CpuidLeaf> {
        let entry = self.raw_cpuid.iter().find(|entry| entry[0] == leaf && entry[1] == subleaf)?;
        let [_, _, eax, ebx, ecx, edx] = *entry;
        Some(CpuidLeaf { leaf, subleaf: Some(subleaf), eax, ebx, ecx, edx })
    }

    /// CPUID as guests of a program that emulates the processor see it: without PCIDs and VMX, which such programs do not have.
    pub fn emulated_cpuid(&self) -> Vec<CpuidLeaf> {
        cpuid::emulated(self.cpuid())
    }

    /// The price of an event on the machine itself with its provenance; `None` for instructions.
    pub fn figure(&self, kind: Kind) -> Option<&Sourced<Ticks>> {
        self.prices.figure(kind)
    }
}

fn built_in(name: &str) -> Result<&'static str, ProfileError> {
    match BUILT_IN.iter().find(|entry| entry.0 == name) {
        Some(entry) => Ok(entry.1),
        None => {
            let known = Profile::names().collect::<Vec<_>>().join(", ");
            Err(ProfileError::Unknown { name: name.chars().take(80).collect(), known })
        }
    }
}

#[cfg(test)]
mod tests;
