//! Options that select the guest's platform.

use crate::usage::WrongArguments;
use anyhow::{Result, bail};
use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use hypervisor::config::{PlatformName, Switch, Switches};
use hypervisor::switches::{ON_OFF, Takes};
use ledger::profile::Profile;
use machine::Platform;

/// Options that select the guest's platform.
#[derive(Args)]
pub struct PlatformArgs {
    /// Environment of the guest
    #[arg(long, default_value = "bare", value_parser = platforms())]
    platform: PlatformName,
    #[command(flatten)]
    hvm: HvmArgs,
}

/// The switches of the hypervisor, each with an option.
struct HvmArgs(Switches);

/// Returns the platforms by name, each with a description.
fn platforms() -> impl TypedValueParser<Value = PlatformName> {
    let named = |platform: &PlatformName| PossibleValue::new(<&'static str>::from(*platform)).help(platform.help());
    PossibleValuesParser::new(PlatformName::ALL.iter().map(named)).try_map(|name| name.parse::<PlatformName>())
}

/// Returns the option of a switch. The switch itself parses the value.
fn option(switch: &Switch) -> Arg {
    let option = Arg::new(switch.name).long(switch.name).help(switch.help);
    let option = option.help_heading("Options of --platform hvm");
    match switch.takes {
        Takes::Word(called, words) => option.value_name(called).value_parser(PossibleValuesParser::new(words.iter())),
        Takes::OnOff => {
            let on_off = |text: String| if ON_OFF.contains(&text.as_str()) { Ok(text) } else { Err("on or off") };
            option.value_name("on|off").value_parser(StringValueParser::new().try_map(on_off))
        }
        Takes::Number => {
            option.value_name("N").value_parser(clap::value_parser!(u32).map(|number: u32| number.to_string()))
        }
    }
}

impl Args for HvmArgs {
    fn augment_args(command: Command) -> Command {
        command.args(Switches::ALL.iter().map(option))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for HvmArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self(Switches::default());
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for switch in Switches::ALL {
            if let Some(value) = matches.get_one::<String>(switch.name) {
                let refused = || clap::Error::new(clap::error::ErrorKind::InvalidValue);
                self.0.set(switch, value).ok_or_else(refused)?;
            }
        }
        Ok(())
    }
}

impl PlatformArgs {
    /// Returns true if the guest has the machine to itself, and no switch is given.
    pub fn is_bare(&self) -> bool {
        self.platform == PlatformName::Bare && self.hvm.0.given().next().is_none()
    }

    /// Returns the platform on a processor profile.
    pub fn resolve(&self, profile: &Profile) -> Result<Platform> {
        let HvmArgs(switches) = &self.hvm;
        if let Some((switch, _)) = switches.given().next().filter(|_| self.platform != PlatformName::Hvm) {
            let text = format!("--{} is a switch of the hypervisor: it needs --platform hvm", switch.name);
            bail!(WrongArguments::new(text));
        }
        if profile.options.pmu && self.platform != PlatformName::Bare {
            let text = "--cpu NAME,pmu has performance counters of the processor itself: it needs --platform bare";
            bail!(WrongArguments::new(text));
        }
        Ok(match self.platform {
            PlatformName::Bare => Platform::Bare,
            PlatformName::Emulated => Platform::Emulated,
            PlatformName::Hvm => Platform::Hvm(switches.resolve(profile)?),
        })
    }
}
