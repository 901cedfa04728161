//! `tollgate exec`: runs a program of this host in a guest kernel.

mod boots;
mod control;
mod controlled;
mod files;
mod image;
mod join;
mod kernel;
mod layout;
mod missing;
pub mod nearest;
pub(crate) mod needs;
mod opened;
mod package;
pub(crate) mod parameters;
mod release;
mod repeat;
mod session;
mod settle;
mod shared;

use crate::contain::Sandbox;
use crate::ending;
use crate::identity::STATE;
use crate::limits;
use crate::model;
use crate::net::{self, Addresses, Connections, Nets};
use crate::output::{self, OutputFile, say};
use crate::platform::PlatformArgs;
use crate::recording::Recording;
use crate::size::{parse_cpus, parse_memory};
use crate::stack_args::StackArgs;
use crate::table::{counted, hexadecimal};
use crate::terminal::{Escape, Terminal, size_text};
use crate::tier::TierName;
use crate::usage::WrongArguments;
use anyhow::{Context, Result, anyhow, bail};
pub use boots::remark as remark_boots;
use boots::{Boot, Keeping, Making};
use clap::Args;
use contain::{Needs, Use};
use control::{CHANNELS, Records};
use files::User;
use guestfs::host_tree::HostTree;
use guestfs::shares::Leaving;
use guestfs::{Packed, Server, Shares, Tree};
use image::Way;
use join::Joins;
pub use kernel::Kernel;
use lab::diff::paid;
use lab::runner::quoted;
use layout::Layout;
use ledger::profile::{Clock, Profile};
use machine::board::Parts;
use machine::loader::{Module, read_kernel, read_symbols};
use machine::snapshot::Charges;
use machine::stacks::NamedTree;
use machine::{ClockSource, Config, Machine, Outcome, Platform};
use network::options::{Attachment, Net};
use repeat::RepeatArgs;
use session::{Limits, Session};
use settle::{Settle, Settled};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Options that a command has which joins a guest. The others are the guest's.
const OF_JOIN: [&str; 8] = ["join", "env", "keep_env", "cwd", "user", "escape", "sandbox", "command"];
/// Exit status after a process was killed for lack of memory.
const OUT_OF_MEMORY: u8 = 120;
/// Exit status after the guest's kernel reported a fault of its own.
const OOPS: u8 = 121;
/// Exit status if the guest ended before the command.
const LOST: u8 = 125;
/// Exit status if the command was not found, as in shells.
const NOT_FOUND: u8 = 127;
/// Taint flags that a kernel sets for a fault of its own (Linux: TAINT_BAD_PAGE, TAINT_DIE, TAINT_SOFTLOCKUP).
const TAINTED_BY_FAULT: u64 = 1 << 5 | 1 << 7 | 1 << 14;
/// Key of the settling time in a ledger: the time from the command's readiness until the guest was idle, in seconds; `inf` if it never was.
pub const SETTLED: &str = "settled after";
/// Key of the seed of a run's layout in a ledger.
const SEED: &str = "random seed";
/// Key of the command's working directory in a ledger, if its name may affect the run of a diff.
pub const DIRECTORY: &str = "working directory";
/// Key of the reason for which a controlled run ended, in a ledger, and its value if the command itself ended.
pub const END: &str = "end";
pub const ENDED: &str = "ended";
/// Key of the list of files of the host that a controlled command gets, in a ledger.
pub const FILES: &str = "files of the host";
/// Fact with the packed files that were changed on the host during the run, a line for each.
pub const CHANGED: &str = "files that changed during the run";
/// Number of console lines shown if the guest's kernel caused the failure.
const LINES: usize = 40;
/// The guest's addresses under `--net user`.
const ADDRESSES: Addresses =
    Addresses { guest: "10.0.2.15", mask: "255.255.255.0", router: "10.0.2.2", names: "10.0.2.3" };
/// The profile of the processor, if no other one is asked for.
pub const CPU: &str = "skx";
/// Command line of the guest's kernel.
const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1";

/// Runs a program of this host in a guest kernel.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate exec -- uname -a
  tollgate exec --kernel cloud -- sh -c 'dmesg | head'
  tollgate exec --kernel ~/linux -- ./reproducer
  tollgate exec --kernel linux-image-6.12.95-amd64.deb -- uname -r
  tollgate exec --kernel trixie-backports -- uname -r
  tollgate exec --kernel bzImage --modules /tmp/staging -- uname -r
  tollgate exec --add-opened -- python3 -c 'import json'
  tollgate exec --root -- python3 -m timeit 'sorted(range(1000))'
  tollgate exec --share .:rw -- make test
  tollgate exec --net user -- curl -s https://www.kernel.org
  tollgate exec --ledger a.ledger -- openssl speed -seconds 1 sha256
  tollgate exec --controlled --env LC_ALL=C --keep-env TZ,EDITOR -- ./benchmark
  tollgate exec --joinable --root -- ./server    and, elsewhere:    tollgate exec --join -- bash

Exit status: the command's, or 128 + n if signal n ended it. Otherwise:
  120  a process was killed for lack of memory and the command failed
  121  the kernel reported a fault of its own, such as an oops (not with --oops-ok)
  122  the machine was reset
  123  the kernel panicked
  124  --timeout or --limit expired
  125  the guest died, or ended before the command
  2    the command line is wrong, whatever files this host has
  126  the command could not be executed, a file that an option names is missing or unusable, the machine could not be created, or the output could not be written
  127  the command was not found
  130  interrupted
With --json, `reason` distinguishes them.")]
pub struct ExecArgs {
    /// Kernel: a bzImage or vmlinux, a build tree, a .deb or .rpm, the directory of an unpacked package, a release that apt knows, or this distribution's `cloud`, `backports` or `amd64`, or a suite such as `trixie-backports` [default: this host's own if it is readable, else cloud]
    #[arg(long, value_name = "K")]
    kernel: Option<String>,
    /// Modules of the kernel: their directory, one with lib/modules in it, or a .deb or .rpm; several are separated by commas [default: those beside the kernel, or in /lib/modules]
    #[arg(long, value_name = "PATH")]
    modules: Option<String>,
    /// Appends words to the kernel's command line
    #[arg(long, value_name = "STRING", default_value = "", hide_default_value = true, allow_hyphen_values = true)]
    append: String,
    /// Guest memory: bytes, or with K, M, G or T
    #[arg(long, short = 'm', value_name = "SIZE", default_value = "1G", value_parser = parse_memory)]
    memory: u64,
    /// Number of virtual processors
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_cpus)]
    cpus: usize,
    /// Processor profile: a name of `tollgate cpu list`, or a TOML file, optionally followed by options, as in skx,pmu
    #[arg(long, value_name = "PROFILE", default_value = CPU)]
    cpu: String,
    /// Model of time: core (pipeline, caches, predictors) or flat (each instruction costs the price of its class; several times faster)
    /// [default: core if the profile has caches]
    #[arg(long, value_name = "MODEL", value_parser = model::parse)]
    model: Option<Clock>,
    /// Packs a file or directory of this host, under its own path, or a program by name with its dependencies. May be repeated
    #[arg(long, value_name = "PATH")]
    add: Vec<PathBuf>,
    /// Runs the command once on this host first, without input and output, and packs the files that it opens, looks at or executes there
    #[arg(long, conflicts_with_all = ["root", "replay"])]
    add_opened: bool,
    /// Shows the host's whole file tree to the command, instead of the packed files. Writes stay in the guest
    #[arg(long)]
    root: bool,
    /// Shares a directory of this host under its own path; `:rw` allows the command to change it. May be repeated
    #[arg(long, value_name = "DIR[:rw]")]
    share: Vec<Share>,
    /// Sets an environment variable of the command. May be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = files::variable)]
    env: Vec<String>,
    /// Gives the command the values that these environment variables have here. May be repeated
    #[arg(long, value_name = "NAME[,NAME...]", value_delimiter = ',')]
    keep_env: Vec<String>,
    /// Working directory of the command [default: the current one]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// User of the command: `root`, `UID` or `UID:GID` [default: the current user]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Network device, as for `tollgate run`; with `user` the guest reaches this host's networks
    #[arg(long, value_name = "KIND[:OPTION,...]")]
    net: Vec<Net>,
    /// Prefix for Tollgate's own keys on a terminal: `ctrl-` and a letter, or `none`
    #[arg(long, value_name = "KEY", default_value = Escape::DEFAULT)]
    escape: Escape,
    /// Ends the run after this many seconds of the host's time
    #[arg(long, value_name = "SECONDS", value_parser = crate::run_cmd::parse_seconds)]
    timeout: Option<Duration>,
    /// Ends the run after this many seconds of virtual time, including the kernel's boot
    #[arg(long, value_name = "SECONDS", value_parser = crate::run_cmd::parse_seconds)]
    limit: Option<Duration>,
    /// Ignores faults that the kernel reports of itself in the exit status
    #[arg(long)]
    oops_ok: bool,
    /// Takes a command that ends with another status than 0 for one that succeeds: the exit status is 0
    #[arg(long)]
    ignore_failure: bool,
    /// Boots the kernel, instead of continuing from a kept boot
    #[arg(long)]
    boot: bool,
    /// Starts the command once only the kernel's idle tasks have run for this many seconds of virtual time
    #[arg(long, value_name = "SECONDS", value_parser = crate::run_cmd::parse_seconds)]
    settle: Option<Duration>,
    /// Draws a layout from a seed: positions of code and data, order of free pages, size of the environment, distance from timer ticks
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Shows the kernel's messages on standard error
    #[arg(long)]
    console: bool,
    /// Confines this process while the guest runs to the files and system calls that its machine needs
    #[arg(long, value_enum, default_value_t = Sandbox::On)]
    sandbox: Sandbox,
    /// Gives the command the same environment, user and working directory wherever and by whomever it is started, as `tollgate diff` does
    #[arg(long)]
    controlled: bool,
    /// Runs the command in a guest that runs already, beside that guest's own command. ID, a process number, is needed if several can be joined
    #[arg(long, value_name = "ID", num_args = 0..=1, default_missing_value = "")]
    join: Option<String>,
    /// Lets other commands join the guest (--join). Its idle time then passes as on the host. Usual if standard input is a terminal
    #[arg(long, conflicts_with = "replay")]
    joinable: bool,
    /// Saves the ledger of the run; the command is the region `exec`
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
    /// Prints the result of the run as JSON on standard error
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    repeat: RepeatArgs,
    /// Records indirect branches in the ledger, with their targets and predictions. The kernel is then booted, and runs slower on the host
    #[arg(long, requires = "ledger")]
    call_sites: bool,
    /// Tier that executes the guest. Affects the duration of the run, but not its ledger
    #[arg(long, value_name = "TIER", value_enum, default_value_t = TierName::Auto)]
    tier: TierName,
    #[command(flatten)]
    stacks: StackArgs,
    #[command(flatten)]
    platform: PlatformArgs,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", required = true, last = true, num_args = 1..)]
    command: Vec<OsString>,
}

/// Returns the parser of the command with the options that exclude `--join`.
pub fn with_join(command: clap::Command) -> clap::Command {
    let others = command.get_arguments().map(clap::Arg::get_id).filter(|id| !OF_JOIN.contains(&id.as_str()));
    let others: Vec<_> = others.cloned().collect();
    command.mut_arg("join", |join| join.conflicts_with_all(others))
}

/// A directory that is shared with the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Share {
    /// The name that the user gave, as an absolute path.
    named: PathBuf,
    /// The real path.
    path: PathBuf,
    writable: bool,
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, writable) = share_mode(text)?;
        let named = std::path::absolute(path).map_err(|error| error.to_string())?;
        // The run finds out whether there is such a directory; a missing one does not make the command line wrong.
        let path = named.canonicalize().unwrap_or_else(|_| named.clone());
        if path.as_os_str().as_bytes().contains(&b'\n') {
            return Err("the name of the directory has a line break".into());
        }
        Ok(Self { named, path, writable })
    }
}

/// Splits an argument of `--share` into the directory and a flag that is true if the guest may change it. A directory whose name ends like a mode is
/// shared under its name, if it exists.
fn share_mode(text: &str) -> Result<(&str, bool), String> {
    match text.rsplit_once(':') {
        _ if Path::new(text).is_dir() => Ok((text, false)),
        Some((path, "rw")) => Ok((path, true)),
        Some((path, "ro")) => Ok((path, false)),
        Some((path, mode)) if Path::new(path).is_dir() => {
            Err(format!("the mode '{mode}' is unknown: there are ro (the default) and rw"))
        }
        _ => Ok((text, false)),
    }
}

impl ExecArgs {
    /// Returns a bit mask of the command's streams that are connected to the terminal.
    fn streams(&self) -> u8 {
        let terminals =
            [std::io::stdin().is_terminal(), std::io::stdout().is_terminal(), std::io::stderr().is_terminal()];
        terminals.iter().enumerate().map(|(bit, is)| u8::from(*is) << bit).sum()
    }

    /// Returns true if any stream is connected to the terminal.
    fn terminal(&self) -> bool {
        self.streams() != 0
    }

    /// Checks the words of options, which are wrong or right whatever the files and the host are. Returns the processor and the platform.
    pub fn check(&self) -> Result<(Profile, Platform)> {
        User::find(self.user.as_deref())?;
        net::check(&[(None, &self.net)])?;
        let profile = model::profile(&self.cpu, self.model)?;
        let platform = self.platform.resolve(&profile)?;
        Ok((profile, platform))
    }

    /// Returns what may be files that are read, with the words that name them.
    fn inputs(&self) -> impl Iterator<Item = (&'static str, PathBuf)> {
        let modules = kernel::places(self.modules.as_deref()).into_iter().map(|place| ("--modules", place));
        let named = self.kernel.iter().map(|kernel| ("--kernel", kernel.as_str())).chain(modules);
        let named = named.map(|(option, value)| (option, PathBuf::from(value)));
        let cpu = Profile::file_in(&self.cpu).map(|file| ("--cpu", file.to_path_buf()));
        let added = self.add.iter().map(|path| ("--add", path.clone()));
        let command = self.command.iter().map(|word| ("the command", PathBuf::from(word)));
        let replayed = net::replayed(&self.net).map(|(option, file)| (option, file.to_path_buf()));
        named.chain(cpu).chain(added).chain(command).chain(self.repeat.input()).chain(replayed)
    }

    /// Returns true if other commands may join although nobody asks for it: a run that takes keys is not repeatable in any case.
    fn invites(&self) -> bool {
        std::io::stdin().is_terminal() && !self.controlled && !self.repeat.replays()
    }

    /// Opens the shared directories. A link in one of them does not name another one.
    fn shares(&self) -> Result<Arc<Shares>> {
        for Share { named, .. } in &self.share {
            let failed = || format!("--share {}", named.display());
            if !named.canonicalize().with_context(failed)?.is_dir() {
                bail!("{}: it is no directory", failed());
            }
        }
        let open = |without: Option<usize>| {
            let others = self.share.iter().enumerate().filter(|(number, _)| Some(*number) != without);
            Shares::open(others.map(|(_, share)| &*share.path)).context("--share")
        };
        for (number, share) in self.share.iter().enumerate() {
            stays("--share", &open(Some(number))?, &share.named)?;
        }
        Ok(Arc::new(open(None)?))
    }
}

/// Checks that an option's path does not lead out of a shared directory by a link there.
fn stays(option: &str, shares: &Shares, path: &Path) -> Result<()> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    // A file that is not there is reported where the file is used, or is made.
    if let Ok(Some(Leaving { from, to, .. })) = shares.leaving(&absolute) {
        let (from, to) = (from.display(), to.display());
        bail!("{option} {}: {from} is a link out of a shared directory, to {to}", path.display());
    }
    Ok(())
}

/// The end of a run.
struct End {
    reason: &'static str,
    status: u8,
    /// Message for people; None after success.
    text: Option<String>,
    /// True if the kernel's last messages explain the end.
    lines: bool,
}

impl End {
    fn bad(reason: &'static str, status: u8, text: impl Into<String>) -> Self {
        Self { reason, status, text: Some(text.into()), lines: true }
    }
}

/// The end of `exec` before its guest ran: a refusal whose reason was said.
struct Refused {
    reason: &'static str,
    status: u8,
    text: String,
}

/// Runs the command.
pub fn run(args: &ExecArgs) -> Result<ExitCode> {
    if let Some(id) = &args.join {
        return join::run(args, id);
    }
    let mut reported = false;
    let (result, refused) = match execute(args, &mut reported) {
        Ok(Ok(status)) => (Ok(status), None),
        Ok(Err(refused)) => {
            say(&format!("tollgate: {}", refused.text));
            (Ok(ExitCode::from(refused.status)), Some(refused))
        }
        Err(error) => {
            let (reason, status) = match error.is::<WrongArguments>() {
                true => ("usage", WrongArguments::STATUS),
                false => ("failed", crate::usage::FAILED),
            };
            let text = output::described(&error);
            (Err(error), Some(Refused { reason, status, text }))
        }
    };
    // A program that reads the line gets one in any case.
    if let Some(Refused { reason, status, text }) = refused.filter(|_| args.json && !reported) {
        output::result(&serde_json::json!({ "reason": reason, "status": status, "error": text }).to_string())?;
    }
    result
}

/// Runs the command in a guest. `reported` is set once the result was printed as JSON.
fn execute(args: &ExecArgs, reported: &mut bool) -> Result<Result<ExitCode, Refused>> {
    let start = Instant::now();
    let (profile, platform) = args.check()?;
    limits::allow_machines(&[limits::Planned { memory: args.memory, counted: args.cpus }])?;
    limits::allow_files()?;
    cpu::host_supported()?;
    let shares = args.shares()?;
    let directory = match &args.cwd {
        Some(directory) => {
            stays("--cwd", &shares, directory)?;
            directory.canonicalize().with_context(|| format!("--cwd {}", directory.display()))?
        }
        None => std::env::current_dir().context("can't determine the current directory")?,
    };
    let ledger = args.ledger.iter().map(|file| ("--ledger", &**file));
    let outputs: Vec<_> = ledger.chain(args.repeat.output()).chain(net::captured(&args.net)).collect();
    for (option, path) in &outputs {
        stays(option, &shares, path)?;
    }
    output::distinct(outputs, args.inputs())?;
    let user = if args.controlled { controlled::user(args)? } else { User::find(args.user.as_deref())? };
    let layout = args.seed.map(Layout::new);
    let mut environment = match args.controlled {
        true => controlled::environment(&directory),
        false => files::environment(&directory),
    };
    files::add_options(&mut environment, &args.keep_env, &args.env);
    environment.extend(layout.as_ref().map(Layout::variable));
    if let Some(missing) = files::missing_interpreter(args, &environment, &directory) {
        let text = format!("{}: {missing}", args.command[0].display());
        return Ok(Err(Refused { reason: "failed", status: crate::usage::FAILED, text }));
    }
    let packed = match args.root {
        true => None,
        false => match files::pack(args, &environment, &directory, &user, shares) {
            Ok(packed) => Some(packed),
            Err(error) => {
                let Some(missing) = error.downcast_ref::<files::NotFound>() else { return Err(error) };
                let place = if args.controlled && !missing.is_path {
                    " in the PATH of a controlled command: give its path, or --keep-env PATH"
                } else {
                    ""
                };
                let (reason, status) = match missing.directory {
                    true => ("failed", crate::usage::FAILED),
                    false => ("not-found", NOT_FOUND),
                };
                return Ok(Err(Refused { reason, status, text: format!("{missing}{place}") }));
            }
        },
    };
    let (packed, place) = match packed {
        Some(packed) if args.controlled && args.cwd.is_none() && args.share.is_empty() => {
            let placed = controlled::place(args, packed, &directory, &user)?;
            let pwd = environment.iter_mut().filter(|(name, _)| name == "PWD");
            let set = files::sets(&args.keep_env, &args.env, "PWD");
            pwd.filter(|_| !set).for_each(|(_, value)| *value = placed.directory.clone().into());
            (Some(placed.files), Some((placed.directory, placed.kept)))
        }
        packed => (packed, None),
    };
    let kernel = Kernel::find(args.kernel.as_deref(), args.modules.as_deref())?;
    for text in parameters::of_values(args.append.split_whitespace(), kernel.release().as_deref()) {
        say(&format!("tollgate: {text}"));
    }
    let modules = kernel.load_modules()?;
    let way = image::way(modules.as_ref());
    let nets = Nets::new(&args.net)?;
    if way == Way::Archived && (args.root || !args.share.is_empty()) {
        let lacking = modules.as_ref().map(image::lacking).unwrap_or_default();
        let place = kernel.modules.as_deref().unwrap_or(Path::new("the kernel")).display();
        bail!("--root and --share need virtiofs and overlay: {lacking} not found in {place}");
    }
    let mut archive = image::archive(modules.as_ref(), way, &nets.nics)?;
    let mut order = Records::default();
    let inside = place.as_ref().map_or(&directory, |(inside, _)| inside);
    give_order(args, &mut order, &environment, inside, &user);
    let identified = args.ledger.is_some() || args.repeat.identifies();
    let mut facts = Vec::new();
    if identified {
        facts.push(("command".to_owned(), command_text(&args.command)));
        // The machine's own number is drawn from that of the user, by which the run can be repeated.
        facts.extend(args.seed.map(|seed| (SEED.to_owned(), seed.to_string())));
        if place.as_ref().is_none_or(|(_, kept)| *kept) && args.controlled && args.cwd.is_none() {
            facts.push((DIRECTORY.to_owned(), directory.display().to_string()));
        }
        let hash = packed.clone().map(|mut packed| packed.hash()).transpose();
        let hash = hash.map_err(|error| anyhow!("a file can't be read: {error}"))?;
        let hash = hash.map(|hash| hexadecimal(&hash));
        facts.push(("files".to_owned(), hash.unwrap_or_else(|| "of the host".to_owned())));
        if let Some(packed) = packed.as_ref().filter(|_| args.controlled) {
            facts.push((FILES.to_owned(), files::listed(&mut packed.clone())?));
        }
    }
    if let (Way::Archived, Some(packed)) = (way, &packed) {
        image::add_files(&mut archive, &mut packed.clone())?;
        order.add(b'i', "");
    }
    if args.settle.is_some() {
        order.add(b's', "");
    }
    if args.controlled && args.ledger.is_some() {
        order.add(b'f', "");
    }
    order.add(b'g', "");
    let archive = archive.finish();
    let server = || -> Result<Option<Server>> {
        if way == Way::Archived {
            return Ok(None);
        }
        let mut server = Server::new();
        for (name, tree) in trees(args, packed.as_ref())? {
            server.add(&name, tree);
        }
        Ok(Some(server))
    };
    let tsc_hz = profile.tsc_hz.value;
    let layout_words = if layout.is_some() { layout::WORDS } else { "" };
    let cmdline = [COMMAND_LINE, layout_words, args.append.trim()].join(" ").replace("  ", " ");
    let image = &kernel.image;
    let configure = |kernel: Vec<u8>| -> Result<Config> {
        let initrd = Module { bytes: archive.clone(), cmdline: Module::NAME.to_owned(), file: String::new() };
        Ok(Config {
            memory: args.memory,
            cpus: args.cpus,
            profile: profile.clone(),
            kernel_name: image.display().to_string(),
            kernel,
            modules: vec![initrd],
            cmdline: cmdline.trim().to_owned(),
            parts: Parts {
                channels: CHANNELS.map(str::to_owned).to_vec(),
                files: server()?,
                random: layout.as_ref().map_or(0, |layout| layout.random),
                nics: nets.nics.clone(),
                ..Parts::default()
            },
            clock: ClockSource::Virtual,
            platform: platform.clone(),
            branches: args.call_sites,
            stacks: args.stacks.keeps(tsc_hz),
            tier: args.tier.tier(),
        })
    };
    if identified {
        facts.extend(crate::identity::facts(&configure(read_kernel(image)?)?, std::iter::empty(), nets.files())?);
    }
    let ledger = match &args.ledger {
        Some(path) => Some(ending::LedgerFile {
            file: OutputFile::create_for(args.sandbox, path, "ledger")?,
            facts: facts.clone(),
        }),
        None => None,
    };
    let refused = |error| crate::run_cmd::refused(error, image);
    let making = Making {
        new: &|| Machine::new(configure(read_kernel(image)?)?).map_err(refused),
        for_boot: &|| Machine::for_snapshot(configure(read_symbols(image)?)?).map_err(refused),
        charges: if args.ledger.is_some() { Charges::Later } else { Charges::Never },
    };
    // If the files are in the initial RAM disk, each command has a boot of its own. A kept boot has recorded no branches.
    let own = args.boot || args.call_sites || way == Way::Archived;
    let stacks = args.stacks.keeps(tsc_hz);
    let boot = if own { None } else { Boot::find(image, &archive, &profile, stacks) };
    let second = machine::machine::ticks(Duration::from_secs(1), tsc_hz);
    let settle = args.settle.map(|quiet| {
        let quiet = machine::machine::ticks(quiet, tsc_hz);
        Settle::new(quiet, second, layout.as_ref().map_or(0, |layout| layout.delay))
    });
    let limits = Limits {
        deadline: args.timeout.map(|timeout| start + timeout),
        limit: args.limit.map(|limit| machine::machine::ticks(limit, tsc_hz)),
        second,
        oops_ok: args.oops_ok,
    };
    let connections = match args.repeat.replays() {
        true => Connections::default(),
        false => Connections::open_with(&nets.nics, Some(&ADDRESSES))?,
    };
    let (mut machine, booted) = boots::prepare(&making, boot.as_ref(), limits.limit)?;
    let kept = boot.filter(|_| !booted).and_then(|boot| boot.keeper(&machine, args.sandbox));
    let recording = args.repeat.prepare(&mut machine, &facts, args.sandbox)?;
    nets.capture(&machine)?;
    if args.stacks.given().is_some() {
        machine.use_programs(trees(args, packed.as_ref())?);
    }
    crate::run_cmd::prepare(&mut machine);
    crate::memory::prepare();
    machine::snapshot::prepare();
    let joins = match args.joinable || args.invites() {
        true => join::listen(args.joinable, args.sandbox)?,
        false => Joins::default(),
    };
    // The image cannot be read any more afterwards.
    let hint = modules.is_none().then(|| kernel.without_modules());
    args.sandbox.confine(&needs(args, packed.as_ref(), &joins))?;
    let terminal = Terminal::open_for(args.escape, args.streams()).context("can't use standard input")?;
    let session = Session::new(terminal, connections, args.streams(), limits, order);
    let mut session = session.since(start).with_console(args.console).with_parameters(&args.append).with_joins(joins);
    let mut keeping = Keeping::default();
    let (outcome, settled) = boots::run(&mut machine, &mut session, kept, &mut keeping, settle);
    let complete = nets.finish(&machine);
    let ran = Ran { outcome, settled, complete, recording, packed, directory, hint };
    let status = conclude(args, &machine, session, ran, ledger, reported);
    drop(keeping);
    // The process ends now, and its memory with it.
    std::mem::forget(machine);
    status.map(Ok)
}

/// Returns the trees of files that the guest gets, with their names in its file system.
fn trees(args: &ExecArgs, packed: Option<&Packed>) -> Result<Vec<NamedTree>> {
    let root: Box<dyn Tree> = match packed {
        Some(packed) => Box::new(packed.clone()),
        None => Box::new(HostTree::open(Path::new("/"), false).context("--root")?),
    };
    let mut trees = vec![("root".to_owned(), root)];
    for (number, Share { path, writable, .. }) in args.share.iter().enumerate() {
        let tree = HostTree::open(path, *writable).with_context(|| format!("--share {}", path.display()))?;
        trees.push((format!("share{number}"), Box::new(tree)));
    }
    Ok(trees)
}

/// Returns the resources of the host that the run and its end need.
fn needs(args: &ExecArgs, packed: Option<&Packed>, joins: &Joins) -> Needs {
    let mut needs = Needs::default();
    needs.uses.extend(joins.may_come().then_some(Use::Joins));
    match packed {
        Some(packed) => needs.readable.extend(packed.host_files()),
        None => needs.readable.push("/".into()),
    }
    for Share { path, writable, .. } in &args.share {
        let list = if *writable { &mut needs.writable } else { &mut needs.readable };
        list.push(path.clone());
    }
    needs
}

/// Formats a command as a line of text that a shell reads as the same words.
pub fn command_text(command: &[OsString]) -> String {
    command.iter().map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// Gives the guest its order.
fn give_order(
    args: &ExecArgs,
    order: &mut Records,
    environment: &[(OsString, OsString)],
    directory: &Path,
    user: &User,
) {
    for word in &args.command {
        order.add(b'a', word.as_bytes());
    }
    for (name, value) in environment {
        order.add(b'e', [name.as_bytes(), b"=", value.as_bytes()].concat());
    }
    order.add(b'c', directory.as_os_str().as_bytes());
    for (number, Share { path, writable, .. }) in args.share.iter().enumerate() {
        let mode: &[u8] = if *writable { b"rw" } else { b"ro" };
        order.add(b'b', [format!("share{number}").as_bytes(), path.as_os_str().as_bytes(), mode].join(&b'\n'));
    }
    order.add(b'u', user.text());
    if args.net.iter().any(|net| matches!(net, Net::Nic(nic) if matches!(nic.attachment, Attachment::User(_)))) {
        let Addresses { guest, mask, router, names } = ADDRESSES;
        order.add(b'n', format!("{guest} {mask} {router} {names}"));
    }
    if args.terminal() {
        order.add(b't', args.streams().to_string());
        order.add(b'w', size_text());
    }
    // With a person at the terminal, or with input from outside, the guest's clock starts at the current date.
    if args.terminal() || args.root || !args.share.is_empty() || !args.net.is_empty() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        order.add(b'd', now.as_secs().to_string());
    }
}

/// Determines the end of the run from the guest's messages and the state of the machine.
fn end(args: &ExecArgs, machine: &Machine, session: &Session, outcome: Outcome) -> End {
    let broken = session.broken || session.ended.is_some_and(|ended| ended.tainted & TAINTED_BY_FAULT != 0);
    if let Some(lost) = &session.lost {
        return End { lines: false, ..End::bad(ending::LOST_OUTPUT, crate::usage::FAILED, lost.to_string()) };
    }
    match (outcome, session.ended) {
        (_, Some(ended)) if matches!(outcome, Outcome::PowerOff) => {
            if broken && !args.oops_ok {
                let text = format!(
                    "the guest's kernel has found a fault of its own; the command ended with status {}",
                    ended.status
                );
                return End::bad("oops", OOPS, text);
            }
            if ended.killed_for_memory > 0 {
                let killed = match ended.killed_for_memory {
                    1 => "1 process was".to_owned(),
                    killed => format!("{killed} processes were"),
                };
                let text = format!(
                    "{killed} killed for want of memory (--memory); the command ended with status {}",
                    ended.status
                );
                let status = if ended.status == 0 { 0 } else { OUT_OF_MEMORY };
                return End::bad("out-of-memory", status, text);
            }
            let status = if args.ignore_failure { 0 } else { ended.status };
            End { reason: ENDED, status, text: None, lines: false }
        }
        (Outcome::PowerOff, None) => match &session.failed {
            Some(why) => End::bad("failed", crate::usage::FAILED, why.clone()),
            None => End::bad("lost", LOST, "the guest powered off before the command ended"),
        },
        _ if broken && !args.oops_ok && !session.timed_out && matches!(outcome, Outcome::Stopped) => {
            End::bad("oops", OOPS, "the guest's kernel has found a fault of its own, and the command did not end")
        }
        _ => {
            let symbols = machine.symbols(Vec::new());
            let (outcome, cause) = machine.verdict(outcome, &symbols);
            let (reason, text, status) = ending::explain(outcome, cause, session.timed_out);
            if reason == ending::REBOOT {
                return End::bad("lost", LOST, "the guest rebooted before the command ended");
            }
            End { lines: !matches!(reason, "interrupted"), ..End::bad(reason, status, text) }
        }
    }
}

/// A finished run.
struct Ran {
    outcome: Outcome,
    /// Outcome of the wait before the command, if there was one.
    settled: Option<Settled>,
    /// True if the captures are complete.
    complete: bool,
    recording: Option<Recording>,
    /// The files of the guest, without `--root`.
    packed: Option<Packed>,
    /// The directory of the command on this host.
    directory: PathBuf,
    /// Where modules were looked for, if there are none.
    hint: Option<String>,
}

/// Tells the user which packed files were changed on this host while the guest ran, so that it may have read parts of the old and of the new contents.
fn say_changed(changed: &[String]) {
    const MOST_NAMED: usize = 3;
    if changed.is_empty() {
        return;
    }
    let named = changed.iter().take(MOST_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let others = match changed.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        others => format!(" and {}", counted(others, "other", "others")),
    };
    say(&format!(
        "tollgate: changed on this host while the guest ran, so that the result may depend on the moment: {named}{others}"
    ));
}

/// Reports the end of the run, and writes its ledger.
fn conclude(
    args: &ExecArgs,
    machine: &Machine,
    session: Session,
    Ran { outcome, settled, complete, recording, packed, directory, hint }: Ran,
    ledger: Option<ending::LedgerFile>,
    reported: &mut bool,
) -> Result<ExitCode> {
    let settled = settled.map(|settled| match settled {
        Settled::After(ticks) => machine.duration(ticks).as_secs_f64(),
        Settled::Never => f64::INFINITY,
    });
    let end = end(args, machine, &session, outcome);
    let (times, ended, lines) = (session.times, session.ended, session.last_lines(LINES));
    // Process 1 reaches the host through a driver, and the files through others.
    let unmounted = end.text.as_deref().filter(|_| end.reason == "failed").and_then(image::unmounted);
    let hint = match unmounted {
        Some(module) => hint.map(|hint| format!("{module}.ko is needed, and {hint}")),
        None => hint.filter(|_| end.reason == "lost" && !session.is_ready()),
    };
    let (unknown, state, joined) = (session.unknown.clone(), session.facts.clone(), session.joins.count);
    drop(session);
    if let Some(text) = &end.text {
        say(&format!("tollgate: {text}, after {:.6} s of virtual time", machine.ended_at()));
        if end.lines && !args.console {
            lines.iter().for_each(|line| say(line));
        }
    }
    if let Some(hint) = hint {
        say(&format!("tollgate: {hint}"));
    }
    let has_failed = end.status != 0 && end.reason == ENDED;
    // All names that the guest has looked for are held against this host's, which a command that succeeds need not wait for.
    let changed: Vec<String> = packed.iter().flat_map(Packed::changed).map(|path| path.display().to_string()).collect();
    let missing = match packed {
        Some(packed) if has_failed || args.json => missing::on_host(packed, args, &directory),
        _ => Vec::new(),
    };
    if has_failed {
        missing::report(&missing);
    }
    say_changed(&changed);
    // The ledger is written even if the recording cannot be.
    let recorded = recording.map_or(Ok(()), |recording| recording.write(machine));
    if let Some(mut ledger) = ledger {
        let facts = settled.map(|seconds| (SETTLED.to_owned(), seconds.to_string()));
        ledger.facts.extend(facts);
        ledger.facts.extend(state.into_iter().map(|(name, value)| (format!("{STATE}{name}"), value)));
        if !unknown.is_empty() {
            ledger.facts.push((parameters::UNKNOWN.to_owned(), unknown.join(" ")));
        }
        if !changed.is_empty() {
            ledger.facts.push((CHANGED.to_owned(), changed.join("\n")));
        }
        if args.controlled {
            ledger.facts.push((END.to_owned(), end.reason.to_owned()));
        }
        if joined > 0 {
            let commands = if joined == 1 { "command" } else { "commands" };
            ledger.facts.push((join::JOINED.to_owned(), format!("{joined} {commands}")));
        }
        machine.is_whole().context("the kept boot")?;
        let ledger = ledger.write(machine, &machine.symbols(Vec::new()))?;
        if let (Some(_), Err(error)) = (ended, paid::regions(&ledger)) {
            say(&format!("tollgate: {error}"));
        }
    }
    if args.json {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        let report = serde_json::json!({
            "reason": end.reason,
            "status": end.status,
            "command_status": ended.map(|ended| ended.status),
            "unknown_parameters": unknown,
            "changed_files": changed,
            "missing_files": missing.iter().map(|missing| &missing.path).collect::<Vec<_>>(),
            "joined_commands": joined,
            "virtual_seconds": machine.ended_at(),
            "host_seconds": {
                "began": seconds(times.began),
                "wrote": seconds(times.wrote),
                "ended": seconds(times.ended),
            },
            // Earlier names of the same times of the host.
            "began_after": seconds(times.began),
            "wrote_after": seconds(times.wrote),
            "ended_after": seconds(times.ended),
            "settled_after": settled.filter(|seconds| seconds.is_finite()),
            "memory": crate::memory::report(machine.taken),
        });
        *reported = true;
        output::result(&report.to_string())?;
    }
    machine.check().map_err(|what| anyhow!("the hypervisor's tables are inconsistent: {what}"))?;
    recorded?;
    if !complete {
        bail!("the capture is incomplete");
    }
    Ok(ExitCode::from(end.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_a_mode_that_exists() {
        let directory = std::env::temp_dir().join(format!("tollgate-share-{}", std::process::id()));
        for name in ["plain", "odd:rx", "odd:rw"] {
            std::fs::create_dir_all(directory.join(name)).unwrap();
        }
        let share = |text: &str| {
            let share = format!("{}/{text}", directory.display()).parse::<Share>()?;
            Ok((share.path.file_name().unwrap().to_str().unwrap().to_owned(), share.writable))
        };
        let good = [
            ("plain", ("plain", false)),
            ("plain:ro", ("plain", false)),
            ("plain:rw", ("plain", true)),
            ("odd:rx", ("odd:rx", false)),
            ("odd:rx:rw", ("odd:rx", true)),
            ("odd:rw", ("odd:rw", false)),
            ("odd:rw:ro", ("odd:rw", false)),
        ];
        for (text, (name, writable)) in good {
            assert_eq!(share(text), Ok::<_, String>((name.to_owned(), writable)), "{text}");
        }
        for mode in ["rx", "RW", "r", "", "rw "] {
            let message = format!("the mode '{mode}' is unknown: there are ro (the default) and rw");
            assert_eq!(share(&format!("plain:{mode}")), Err(message));
        }
        // A directory that does not exist is found missing by the run.
        for (missing, name) in [("nothing", "nothing"), ("nothing:rw", "nothing"), ("nothing:rx", "nothing:rx")] {
            assert_eq!(share(missing), Ok((name.to_owned(), missing.ends_with("rw"))));
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
