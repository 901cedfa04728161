//! The settings of a cell: the options of `tollgate run`, under the same names.

use hypervisor::config::{PlatformName, Switch, Switches};
use hypervisor::switches::{ON_OFF, Takes};
use ledger::profile::Clock;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;
use strum::VariantArray;

/// The name of a guest of the experiment.
pub type GuestName = String;

/// The environment of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// A platform of `tollgate run`.
    Own(PlatformName),
    /// The distribution's KVM, which runs on the bare machine.
    Kvm,
}

impl Platform {
    const KVM: &str = "kvm";

    /// The one of that name.
    fn named(name: &str) -> Option<Self> {
        if name == Self::KVM { Some(Platform::Kvm) } else { name.parse().ok().map(Platform::Own) }
    }

    /// Returns true if the hypervisor's switches apply to the platform.
    pub fn has_switches(self) -> bool {
        matches!(self, Platform::Kvm | Platform::Own(PlatformName::Hvm))
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Platform::Own(platform) => platform.fmt(f),
            Platform::Kvm => f.write_str(Self::KVM),
        }
    }
}

/// The settings of a row, a column or an experiment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The guest that is run.
    pub guest: Option<GuestName>,
    /// The guest's command line; those of experiment, column and row are joined.
    pub append: Option<String>,
    /// The answer to a guest that asks for its workload after its boot.
    pub workload: Option<String>,
    /// Name of a built-in profile.
    pub profile: Option<String>,
    /// The model of time; experiments without one are run under `flat`.
    pub model: Option<Clock>,
    /// The platform.
    pub platform: Option<Platform>,
    /// `hvm` and `kvm`: the hypervisor's switches.
    pub switches: Switches,
    /// Guest memory, such as 64M.
    pub memory: Option<String>,
    /// Virtual processors.
    pub cpus: Option<u32>,
    /// Network devices, as `--net` names them, with spaces between them.
    pub net: Option<String>,
    /// Seconds of the host's time after which a cell has failed.
    pub timeout: Option<u32>,
    /// The kernel of the user, by its number, that takes the place of the guest's own: of columns that are run over kernels, which no file has.
    pub kernel: Option<usize>,
}

impl Settings {
    /// Options of `tollgate run` for the hypervisor alone, that are set.
    pub fn hypervisor_options(&self) -> BTreeMap<&'static str, String> {
        self.switches.given().map(|(switch, value)| (switch.name, value)).collect()
    }

    /// These settings, with `defaults` where nothing is set. Command lines are joined.
    pub fn or(&self, defaults: &Self) -> Self {
        let append = [&defaults.append, &self.append].into_iter().flatten().map(String::as_str).collect::<Vec<_>>();
        Self {
            guest: self.guest.clone().or_else(|| defaults.guest.clone()),
            append: (!append.is_empty()).then(|| append.join(" ")),
            workload: self.workload.clone().or_else(|| defaults.workload.clone()),
            profile: self.profile.clone().or_else(|| defaults.profile.clone()),
            model: self.model.or(defaults.model),
            platform: self.platform.or(defaults.platform),
            switches: self.switches.clone().or(&defaults.switches),
            memory: self.memory.clone().or_else(|| defaults.memory.clone()),
            cpus: self.cpus.or(defaults.cpus),
            net: self.net.clone().or_else(|| defaults.net.clone()),
            timeout: self.timeout.or(defaults.timeout),
            kernel: self.kernel.or(defaults.kernel),
        }
    }

    /// A setting, other than the command line, that both make.
    pub fn conflict(&self, other: &Self) -> Option<&'static str> {
        let both = [
            ("guest", self.guest.is_some() && other.guest.is_some()),
            ("workload", self.workload.is_some() && other.workload.is_some()),
            ("profile", self.profile.is_some() && other.profile.is_some()),
            ("model", self.model.is_some() && other.model.is_some()),
            ("platform", self.platform.is_some() && other.platform.is_some()),
            ("memory", self.memory.is_some() && other.memory.is_some()),
            ("cpus", self.cpus.is_some() && other.cpus.is_some()),
            ("net", self.net.is_some() && other.net.is_some()),
            ("timeout", self.timeout.is_some() && other.timeout.is_some()),
        ];
        let (mine, others) = (self.hypervisor_options(), other.hypervisor_options());
        let general = both.into_iter().find_map(|(name, both)| both.then_some(name));
        general.or_else(|| mine.keys().find(|option| others.contains_key(*option)).copied())
    }
}

/// A key of settings.
#[derive(Clone, Copy)]
enum Key {
    Guest,
    Append,
    Workload,
    Profile,
    Model,
    Platform,
    Switch(&'static Switch),
    Memory,
    Cpus,
    Net,
    Timeout,
}

impl Key {
    /// Every key, in the order in which a message lists them.
    fn all() -> impl Iterator<Item = Self> {
        let before = [Key::Guest, Key::Append, Key::Workload, Key::Profile, Key::Model, Key::Platform].into_iter();
        before.chain(Switches::ALL.iter().map(Key::Switch)).chain([Key::Memory, Key::Cpus, Key::Net, Key::Timeout])
    }

    fn name(self) -> &'static str {
        match self {
            Key::Guest => "guest",
            Key::Append => "append",
            Key::Workload => "workload",
            Key::Profile => "profile",
            Key::Model => "model",
            Key::Platform => "platform",
            Key::Switch(switch) => switch.name,
            Key::Memory => "memory",
            Key::Cpus => "cpus",
            Key::Net => "net",
            Key::Timeout => "timeout",
        }
    }
}

static PLATFORMS: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| PlatformName::NAMES.iter().copied().chain([Platform::KVM]).collect());

static MODELS: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| Clock::VARIANTS.iter().map(|model| model.name()).collect());

static KEYS: LazyLock<Vec<&'static str>> = LazyLock::new(|| Key::all().map(Key::name).collect());

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::all().find(|key| key.name() == name).ok_or_else(|| Error::unknown_field(&name, &KEYS))
    }
}

/// One of these words.
struct OneOf(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for OneOf {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        let word = String::deserialize(deserializer)?;
        if self.0.contains(&word.as_str()) { Ok(word) } else { Err(Error::unknown_variant(&word, self.0)) }
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Settings;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("struct Settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Settings, A::Error> {
        let mut settings = Settings::default();
        while let Some(key) = map.next_key()? {
            match key {
                Key::Guest => settings.guest = Some(map.next_value()?),
                Key::Append => settings.append = Some(map.next_value()?),
                Key::Workload => settings.workload = Some(map.next_value()?),
                Key::Profile => settings.profile = Some(map.next_value()?),
                Key::Model => settings.model = map.next_value_seed(OneOf(&MODELS))?.parse().ok(),
                Key::Platform => settings.platform = Platform::named(&map.next_value_seed(OneOf(&PLATFORMS))?),
                Key::Switch(switch) => {
                    let value = match switch.takes {
                        Takes::Word(_, words) => map.next_value_seed(OneOf(words))?,
                        Takes::OnOff => map.next_value_seed(OneOf(ON_OFF))?,
                        Takes::Number => map.next_value::<u32>()?.to_string(),
                    };
                    let refused = || Error::custom(format!("{} can't be {value}", switch.name));
                    settings.switches.set(switch, &value).ok_or_else(refused)?;
                }
                Key::Memory => settings.memory = Some(map.next_value()?),
                Key::Cpus => settings.cpus = Some(map.next_value()?),
                Key::Net => settings.net = Some(map.next_value()?),
                Key::Timeout => settings.timeout = Some(map.next_value()?),
            }
        }
        Ok(settings)
    }
}

impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("Settings", &KEYS, Reader)
    }
}

/// The image that is booted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// A bare-metal image.
    Bare(String),
    /// A Linux kernel with its initial RAM disk.
    Linux {
        /// The kernel.
        kernel: String,
        /// The initial RAM disk.
        initrd: Option<String>,
    },
}

/// A guest: files are named relative to the directory that the laboratory is started in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// The image that is booted.
    pub image: Image,
    /// Exit status of `tollgate run` when the guest ran as it should.
    pub status: i32,
    /// Files with symbols for its user programs, besides the image's own.
    pub symbols: Vec<String>,
    /// The command that makes the image.
    pub made_by: String,
}
