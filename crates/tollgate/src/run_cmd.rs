//! `tollgate run`: boots a kernel on a machine and shows its serial line.

use crate::backend::Backend;
use crate::contain::Sandbox;
use crate::ending::{Ended, LedgerFile, conclude};
use crate::gdb;
use crate::identity;
use crate::limits;
use crate::live::{Live, Serial};
use crate::model;
use crate::moments::MomentArgs;
use crate::net::{self, Connections, Nets};
use crate::output::{self, Named, OutputFile, say};
use crate::platform::PlatformArgs;
use crate::restored;
use crate::size::{parse_cpus, parse_memory};
use crate::stack_args::StackArgs;
use crate::streams::{Lost, Stream};
use crate::table::emit;
use crate::terminal::{Escape, Terminal};
use crate::tier::TierArgs;
use crate::usage::WrongArguments;
use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use contain::{Needs, Use};
use cpu::Tier;
use ledger::Ticks;
use ledger::profile::{Clock, Profile};
use ledger::symbols::{self, Symbol};
use machine::board::Parts;
use machine::debugger::{History, Make};
use machine::devices::workload::LONGEST as LONGEST_WORKLOAD;
use machine::host::HostFrame;
use machine::kvm::Kvm;
use machine::loader::Module;
use machine::lockstep::Lockstep;
use machine::virtio::Disk;
use machine::{ClockSource, Config, Host, MEMORY_MAP, Machine, MachineError, Platform, Poll};
use network::options::Net;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Largest file with symbols, in bytes: larger than a kernel with full debugging information.
const LARGEST_SYMBOLS: u64 = 2 << 30;

/// Boots a kernel and shows its serial line.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate run --kernel vmlinuz --initrd initramfs.cpio --append 'console=ttyS0'
  tollgate run --kernel vmlinuz --initrd initramfs.cpio --cpus 4 --cpu icx --ledger boot.ledger
  tollgate run --kernel vmlinuz --disk root.img --append 'console=ttyS0 root=/dev/vda rw'
  tollgate run --kernel vmlinuz --initrd initramfs.cpio --ledger boot.ledger --sample 10us --call-graph
  tollgate run --kernel access.flat --append '' --timeout 90
  tollgate run --kernel vmlinuz --initrd initramfs.cpio --top
  tollgate run --kernel vmlinuz --initrd initramfs.cpio --platform hvm --mmu shadow --ledger shadow.ledger
  tollgate run --kernel switch.elf --cpu core2 --platform hvm --mmu shadow --mmu-pages 256 --irqchip user --paravirt on
  tollgate run --kernel vmlinuz --initrd initramfs.cpio --platform hvm --mmu tdp --cr0-wp unload
  tollgate run --kernel vmlinuz --initrd initramfs.cpio --cpus 2 --backend kvm
  tollgate run --kernel vmlinux --append 'console=ttyS0 nokaslr' --gdb 1234
  tollgate run --kernel vmlinuz --initrd initramfs.cpio --save-at 0.5 booted.snapshot
  tollgate run --kernel vmlinuz --initrd initramfs.cpio --save-at start_kernel early.snapshot
  tollgate run --restore booted.snapshot --ledger rest.ledger
  tollgate run --restore core2.snapshot --migrate zen3 --ledger moved.ledger
  tollgate run --kernel vmlinuz --initrd initramfs.cpio --append 'console=ttyS0 tollgate.run=-' --workload 'hackbench -g 1'
  tollgate run --kernel vmlinuz --initrd initramfs.cpio --net user,forward=tcp:2222:22 --net pcap:all.pcapng
  tollgate run --kernel vmlinuz --initrd initramfs.cpio --cpus 4 --net bridge,queues=4 --net bridge,queues=4
  tollgate run --kernel vmlinuz --initrd initramfs.cpio --net generator:size=64,rate=1.5M,flows=16,start=request --json

A run of several machines, each with its own options. Bridges of the same name connect their NICs. The run ends with the first machine:
  tollgate run --name client --kernel vmlinuz --initrd net.cpio --net bridge --and --name server --kernel vmlinuz --initrd net.cpio --net bridge

Keys on a terminal: Ctrl-A x ends the run, Ctrl-A h lists the others.

Exit status after a power-off or a requested restart: the value that the guest wrote to the status port 0x1f0d (Tollgate's guest
image writes its workload's status), or 0. Otherwise:
  (v << 1) | 1  the guest wrote v to the debug-exit port 0xf4
  122  the machine was reset without a request to the kernel
  123  the kernel panicked
  124  --timeout or --limit expired
  125  the guest died (triple fault, or halted with interrupts off), or the hypervisor could not continue it
  126  the machine could not be created, standard output, the ledger or a snapshot could not be written, the guest did not ask
       for its --workload, the hypervisor's tables are inconsistent, or --check-translation found a difference
  130  interrupted
  141  the reader of standard output went away
  2    invalid command line
With --json, `reason` distinguishes them.")]
pub struct RunArgs {
    /// The given options that describe the machine, as words
    #[arg(skip)]
    pub(crate) line: Vec<String>,
    /// Kernel: Linux bzImage or vmlinux, PVH ELF, or multiboot 1 image
    #[arg(long, value_name = "FILE")]
    kernel: PathBuf,
    /// Initial RAM disk; for a multiboot or PVH image, its modules as `FILE ARGUMENTS,FILE ARGUMENTS` (`,,` is a literal comma)
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    /// Kernel command line
    #[arg(long, value_name = "STRING", default_value = "console=ttyS0", allow_hyphen_values = true)]
    append: String,
    /// Workload for a guest that asks for one after its boot, such as Tollgate's Linux guest with `tollgate.run=-`
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = parse_workload)]
    workload: Option<String>,
    /// Guest memory: bytes, or with K, M, G or T; from 1M to 1T, in steps of 4K
    #[arg(long, short = 'm', value_name = "SIZE", default_value = "512M", value_parser = parse_memory)]
    memory: u64,
    /// Number of virtual processors
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_cpus)]
    cpus: usize,
    /// Processor profile: a name of `tollgate cpu list`, or a TOML file, optionally followed by options, as in skx,pmu [default: skx]
    #[arg(long, value_name = "PROFILE")]
    cpu: Option<String>,
    /// Model of time: core (pipeline, caches, predictors) or flat (each instruction costs the price of its class; several times faster)
    /// [default: core if the profile has caches]
    #[arg(long, value_name = "MODEL", value_parser = model::parse)]
    model: Option<Clock>,
    /// Backend that executes the guest
    #[arg(long, value_enum, default_value_t = Backend::Software)]
    backend: Backend,
    /// Virtio disk from a raw image; the suffix `,ro` makes it read-only. May be repeated
    #[arg(long, value_name = "FILE[,ro]")]
    disk: Vec<String>,
    /// Network device and its connection: `user` (this host's network, through passt; `forward=tcp:HOST-PORT:GUEST-PORT`), `tap:NAME`,
    /// `bridge[:NAME]` (shared by all NICs with that name), `generator`, `sink`; then options such as `queues=4` or `model=ixgbe`.
    /// `pcap:FILE` captures all frames. May be repeated [default: none]
    #[arg(long, value_name = "KIND[:OPTION,...]")]
    net: Vec<Net>,
    /// Saves the ledger of the run
    #[arg(long, value_name = "FILE")]
    pub(crate) ledger: Option<PathBuf>,
    /// Name of this machine in a run of several [default: m1, m2 and so on]
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    name: Option<String>,
    /// Records each indirect branch in the ledger: its place, its targets, executions and mispredictions
    #[arg(long, requires = "ledger")]
    call_sites: bool,
    /// Adds symbols to the kernel's own: an ELF file (with `@ADDRESS`, offset by that address) or a System.map. May be repeated
    #[arg(long, value_name = "FILE[@ADDRESS]")]
    symbols: Vec<String>,
    /// Prefix for Tollgate's own keys on a terminal: `ctrl-` and a letter, or `none`
    #[arg(long, value_name = "KEY", default_value = Escape::DEFAULT)]
    pub(crate) escape: Escape,
    /// Ends the run after this many seconds of the host's time
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    timeout: Option<Duration>,
    /// Ends the run after this many seconds of virtual time, always at the same instruction
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    limit: Option<Duration>,
    /// Waits for a debugger (gdb's `target remote`) on a port of the loopback interface or on a UNIX socket, and gives it control of the guest. The
    /// ledger does not change
    #[arg(long, value_name = "PORT|unix:PATH", conflicts_with_all = ["save_at", "record"])]
    gdb: Option<gdb::Address>,
    /// Confines this process while the guest runs to the files and system calls that its machine needs
    #[arg(long, value_enum, default_value_t = Sandbox::On)]
    pub(crate) sandbox: Sandbox,
    /// Clock of the guest [default: virtual; with --backend kvm: host]
    #[arg(long, value_enum)]
    clock: Option<ClockArg>,
    /// Shows what the guest spends its time on while it runs, every second or every SECONDS of the host's time: functions, crossings, tasks. On a
    /// terminal a screen like perf's top, and the last lines of the guest's serial line; otherwise successive displays on
    /// standard error. The ledger does not change
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = parse_seconds, conflicts_with = "gdb")]
    top: Option<Duration>,
    /// Describes the machine without running it
    #[arg(long)]
    dry_run: bool,
    /// Prints the machine (with --dry-run) or the result of the run as JSON on standard error
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    stacks: StackArgs,
    #[command(flatten)]
    tier: TierArgs,
    #[command(flatten)]
    platform: PlatformArgs,
    #[command(flatten)]
    moments: MomentArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ClockArg {
    /// Cycles of the profiled processor: deterministic, and charged to the ledger
    Virtual,
    /// The host's clock: no charges
    Host,
}

fn parse_workload(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("it is empty".into()),
        1..=LONGEST_WORKLOAD => Ok(text.to_owned()),
        _ => Err(format!("it has more than {LONGEST_WORKLOAD} bytes")),
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match (1..=32).contains(&text.len()) && text.chars().all(fits) {
        true => Ok(text.to_owned()),
        false => Err("1 to 32 letters, digits, `-`, `_` and `.`".into()),
    }
}

/// Parses the number of seconds of an option.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    match number.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds < 1e9 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("a number of seconds above 0, such as 90 or 2.5".into()),
    }
}

/// The user's terminal and the time limits.
pub(crate) struct Console {
    terminal: Terminal,
    connections: Connections,
    deadline: Option<Instant>,
    limit: Option<Ticks>,
    pub(crate) timed_out: bool,
    /// The reason why the guest's output no longer arrives.
    pub(crate) lost: Option<Lost>,
    /// The receiver of the guest's output in place of standard output.
    serial: Option<Arc<Serial>>,
}

impl Console {
    /// Writes the guest's output, until a write fails.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        if let Some(serial) = &self.serial {
            serial.put(bytes);
        } else if self.lost.is_none() {
            self.lost = Stream::Output.put(bytes).err();
        }
    }
}

impl Host for Console {
    fn output(&mut self, bytes: &[u8]) {
        self.put(bytes);
    }

    fn poll(&mut self, now: Ticks, wanted: bool) -> Poll {
        self.timed_out = self.deadline.is_some_and(|d| Instant::now() >= d) || self.limit.is_some_and(|l| now >= l);
        let stop = self.timed_out || self.terminal.stopped() || self.lost.is_some();
        // The user's input may contain Tollgate's own keys.
        let input = if wanted || self.terminal.interactive() { self.terminal.input() } else { Vec::new() };
        Poll { input, stop, ..Poll::default() }
    }

    fn frames(&mut self, room: &dyn Fn(u8) -> bool) -> Vec<HostFrame> {
        self.connections.frames(room)
    }

    fn send(&mut self, frames: Vec<HostFrame>) {
        self.connections.send(&frames);
    }

    fn attended(&self) -> bool {
        self.terminal.attended() || self.connections.any()
    }

    fn idle(&mut self, limit: Duration) {
        if self.connections.any() {
            self.connections.wait(limit);
        } else {
            self.terminal.wait(limit);
        }
    }
}

/// Opens a disk of `--disk`.
fn open_disk(argument: &str) -> Result<Disk> {
    let (path, read_only) = disk_path(argument);
    if let (false, Some((file, mode))) = (path.exists(), argument.rsplit_once(','))
        && !read_only
        && Path::new(file).exists()
    {
        bail!("--disk {argument}: the mode '{mode}' is unknown: there is ro, and without it the guest may write");
    }
    Ok(Disk::open(path, read_only)?)
}

/// Splits an argument of `--disk` into the file and a flag that is true for read-only disks.
fn disk_path(argument: &str) -> (&Path, bool) {
    match argument.strip_suffix(",ro") {
        Some(path) => (Path::new(path), true),
        None => (Path::new(argument), false),
    }
}

/// Returns the file in an argument of `--symbols`.
fn symbols_path(argument: &str) -> PathBuf {
    argument.rsplit_once('@').map_or(argument, |(path, _)| path).into()
}

/// Reads a file of `--symbols`: its name and its functions.
fn read_symbols(argument: &str) -> Result<(String, Vec<Symbol>)> {
    let (path, slide) = match argument.rsplit_once('@') {
        Some((path, address)) => {
            let digits = address.strip_prefix("0x").unwrap_or(address);
            let slide = u64::from_str_radix(digits, 16)
                .with_context(|| format!("--symbols {argument}: {address} is not a hexadecimal address"))?;
            (path, slide)
        }
        None => (argument, 0),
    };
    let bytes = crate::input::read(Path::new(path), LARGEST_SYMBOLS).context("--symbols")?;
    let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let functions = match bytes.starts_with(b"\x7fELF") {
        true => symbols::elf(&bytes, slide).map_err(|error| anyhow!("--symbols: {path} {error}"))?,
        false => symbols::system_map(&String::from_utf8_lossy(&bytes), slide),
    };
    if functions.is_empty() {
        bail!("--symbols: {path} is neither an ELF file nor a System.map with functions");
    }
    Ok((name, functions))
}

/// Reads the files of `--initrd`: one for Linux; for a kernel that takes modules any number, each with a command line.
fn read_modules(list: &Path, kernel: &[u8]) -> Result<Vec<Module>> {
    if !machine::loader::takes_modules(kernel) {
        let bytes = machine::loader::read_file(list)?;
        // A Linux kernel takes no arguments for it: a space is part of the file's name.
        let file = list.display().to_string();
        return Ok(vec![Module { bytes, cmdline: Module::NAME.to_owned(), file }]);
    }
    let read = |module: String| {
        let module = module.trim_start_matches(' ');
        let file = module.split(' ').next().unwrap_or_default();
        Ok(Module::new(machine::loader::read_file(Path::new(file))?, module))
    };
    let list = list.to_str().context("--initrd: the names of modules must be UTF-8")?;
    machine::loader::split_modules(list).into_iter().map(read).collect()
}

/// Describes the machine without running it.
fn describe(args: &RunArgs, machine: &Machine, nets: &Nets) -> Result<()> {
    let files = nets.paths().map(|(name, path)| (name, path.to_owned()));
    let disks = args.disk.iter().enumerate().map(|(number, disk)| (format!("disk {number}"), disk.clone()));
    let facts: Vec<_> = machine.description().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let symbols = args.symbols.iter().enumerate();
    let symbols = symbols.map(|(number, file)| (format!("symbols {number}"), file.clone()));
    let facts = facts.into_iter().chain(disks).chain(symbols).chain(files);
    if args.json {
        let (entries, facts): (Vec<_>, Vec<_>) = facts.partition(|(key, _)| key == MEMORY_MAP);
        let mut map: serde_json::Map<_, serde_json::Value> =
            facts.into_iter().map(|(key, value)| (key, value.into())).collect();
        map.insert(MEMORY_MAP.to_owned(), entries.into_iter().map(|(_, entry)| entry).collect());
        emit(&format!("{}\n", serde_json::to_string_pretty(&map)?))
    } else {
        emit(&facts.map(|(key, value)| format!("{key:<14} {value}\n")).collect::<String>())
    }
}

impl RunArgs {
    /// Returns true if the software backend runs the guest by the host's clock.
    fn host_clock(&self) -> bool {
        self.clock == Some(ClockArg::Host)
    }

    /// Returns the size of the machine, which the host's KVM executes if `kvm` is true.
    pub(crate) fn planned(&self, kvm: bool) -> limits::Planned {
        let charged = !kvm && !self.host_clock();
        limits::Planned { memory: self.memory, counted: if charged { self.cpus } else { 0 } }
    }

    /// Returns the machine's name; `number` is its position among several.
    pub(crate) fn called(&self, number: usize) -> String {
        self.name.clone().unwrap_or_else(|| format!("m{}", number + 1))
    }

    /// Returns the options that write files, with these files.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = Named<'_>> {
        let ledger = self.ledger.iter().map(|file| ("--ledger", &**file));
        self.moments.outputs().chain(ledger).chain(net::captured(&self.net))
    }

    /// Returns the options for network devices.
    pub(crate) fn nets(&self) -> &[Net] {
        &self.net
    }

    /// Returns the options that name files which are read, with these files.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = (&'static str, PathBuf)> {
        let initrd = self.initrd.iter().flat_map(|list| module_files(list)).map(|file| ("--initrd", file));
        let cpu = self.cpu.iter().filter_map(|cpu| Profile::file_in(cpu)).map(|file| ("--cpu", file.to_path_buf()));
        let disks = self.disk.iter().map(|disk| ("--disk", disk_path(disk).0.to_path_buf()));
        let symbols = self.symbols.iter().map(|text| ("--symbols", symbols_path(text)));
        let replayed = net::replayed(&self.net).map(|(option, file)| (option, file.to_path_buf()));
        let kernel = std::iter::once(("--kernel", self.kernel.clone()));
        kernel.chain(initrd).chain(cpu).chain(disks).chain(symbols).chain(self.moments.inputs()).chain(replayed)
    }

    /// Returns an option that only a run with one machine supports, if one is given.
    pub(crate) fn needs_to_be_alone(&self) -> Option<&'static str> {
        let table = [
            (self.backend != Backend::Software, "--backend"),
            (self.host_clock(), "--clock host"),
            (self.gdb.is_some(), "--gdb"),
            (self.top.is_some(), "--top"),
            (self.tier.checks(), "--check-translation"),
            (self.moments.identifies(), "--save-at, --restore, --record or --replay"),
            (self.dry_run, "--dry-run"),
        ];
        table.into_iter().find(|(given, _)| *given).map(|(_, option)| option)
    }

    /// Returns the reason why the host's processor can't execute the guest, if an option rules it out.
    fn needs_software(&self) -> Option<&'static str> {
        let table = [
            (self.model.is_some(), "--model needs instructions that Tollgate executes"),
            (self.cpu.is_some(), "--cpu names a modelled processor, but the guest gets the host's"),
            (
                self.clock == Some(ClockArg::Virtual),
                "--clock virtual needs instructions that are counted, which KVM's are not",
            ),
            (
                !self.tier.is_default(),
                "--tier and --check-translation apply only to instructions that Tollgate executes",
            ),
            (
                self.stacks.given().is_some(),
                "--sample, --call-graph and --trace need instructions that this program executes, which KVM's are not",
            ),
            (!self.platform.is_bare(), "--platform applies only to code that Tollgate executes"),
            (self.top.is_some(), "--top shows what instructions are charged, which KVM's are not"),
            (self.gdb.is_some(), "--gdb needs a run that can be repeated"),
            (self.moments.identifies(), "--save-at, --restore, --record and --replay need a run that can be repeated"),
        ];
        table.into_iter().find(|(given, _)| *given).map(|(_, why)| why)
    }
}

/// Returns the error for a machine that can't be created.
pub(crate) fn refused(error: MachineError, kernel: &Path) -> anyhow::Error {
    match error {
        MachineError::Load(error) => anyhow!(error).context(format!("can't boot {}", kernel.display())),
        // Not an error of the kernel image.
        error => anyhow!(error),
    }
}

/// Allocates memory for translated code. Without it the machine runs, but slowly.
pub(crate) fn prepare(machine: &mut Machine) {
    if !machine.prepare() {
        say(
            "tollgate: the host refuses memory for translated code: the interpreter executes the guest, which is slower",
        );
        limits::hints(rustix::io::Errno::NOMEM.raw_os_error()).iter().for_each(|hint| say(hint));
    }
}

/// The parts of a machine, as the options describe it.
pub(crate) struct Setup<'a> {
    args: &'a RunArgs,
    pub(crate) profile: Profile,
    platform: Platform,
    pub(crate) symbol_files: Vec<(String, Vec<Symbol>)>,
    pub(crate) nets: Nets,
    clock: ClockSource,
    /// The machine's number in a run of several.
    member: Option<u8>,
}

impl<'a> Setup<'a> {
    /// Reads the files of the options except images. `member` is the machine's number in a run of several.
    pub(crate) fn new(args: &'a RunArgs, kvm: Option<&Kvm>, member: Option<u8>) -> Result<Self> {
        let host_clock = args.host_clock() || kvm.is_some();
        // With the host's clock nothing has a price.
        let model = args.model.or(host_clock.then_some(Clock::Flat));
        let profile = model::profile(args.cpu.as_deref().unwrap_or("skx"), model)?;
        let profile = match args.moments.destination() {
            Some(name) => model::profile(name, model)?.for_guest_of(&profile),
            None => profile,
        };
        let profile = match kvm {
            Some(kvm) => kvm.profile(profile),
            None => {
                cpu::host_supported()?;
                if host_clock && profile.options.pmu {
                    bail!(WrongArguments::new(
                        "--cpu NAME,pmu needs --clock virtual: with the host's clock nothing is counted"
                    ));
                }
                // The host's clock does not show what mitigations cost on the processor.
                if host_clock && args.cpu.is_none() { profile.invulnerable() } else { profile }
            }
        };
        Ok(Self {
            platform: args.platform.resolve(&profile)?,
            profile,
            symbol_files: args.symbols.iter().map(|s| read_symbols(s)).collect::<Result<Vec<_>>>()?,
            nets: Nets::new(&args.net)?,
            clock: if host_clock { ClockSource::Host } else { ClockSource::Virtual },
            args,
            member,
        })
    }

    /// Returns the tier that executes the guest.
    pub(crate) fn tier(&self) -> Result<Tier> {
        Ok(self.args.tier.resolve()?.0)
    }

    /// Returns true if the result is printed as JSON.
    pub(crate) fn json(&self) -> bool {
        self.args.json
    }

    /// Returns the configuration, with the images.
    pub(crate) fn config(&self, tier: Tier) -> Result<Config> {
        let args = self.args;
        let disks = args.disk.iter().map(|d| open_disk(d)).collect::<Result<Vec<_>>>()?;
        let kernel = machine::loader::read_kernel(&args.kernel)?;
        Ok(Config {
            memory: args.memory,
            cpus: args.cpus,
            profile: self.profile.clone(),
            kernel_name: args.kernel.display().to_string(),
            modules: args.initrd.as_deref().map_or(Ok(Vec::new()), |list| read_modules(list, &kernel))?,
            kernel,
            cmdline: args.append.clone(),
            parts: Parts {
                disks,
                overlay: args.moments.saves(),
                workload: args.workload.clone().unwrap_or_default(),
                nics: self.nets.nics.clone(),
                member: self.member,
                seed: self.member.unwrap_or(0).into(),
                ..Parts::default()
            },
            clock: self.clock,
            platform: self.platform.clone(),
            branches: args.call_sites,
            stacks: args.stacks.keeps(self.profile.tsc_hz.value),
            tier,
        })
    }

    /// Creates the machine, with the functions of `--symbols`.
    pub(crate) fn boot(&self, config: Config) -> Result<Machine> {
        let command = restored::absolute(&self.args.line, &config.kernel);
        let mut machine = Machine::new(config).map_err(|error| refused(error, &self.args.kernel))?;
        machine.command = command;
        let functions: Vec<&Symbol> = self.symbol_files.iter().flat_map(|(_, all)| all).collect();
        machine.use_functions(&functions);
        Ok(machine)
    }

    /// Returns the facts that identify the images in a ledger or a snapshot. A disk's contents may change in the run.
    pub(crate) fn facts(&self, config: &Config) -> Result<Vec<(String, String)>> {
        let args = self.args;
        match args.ledger.is_some() || args.moments.identifies() {
            true => identity::facts(config, args.disk.iter().map(|disk| disk_path(disk).0), self.nets.files()),
            false => Ok(Vec::new()),
        }
    }

    /// Opens the host's networks. A replayed run receives its recorded frames in their place.
    pub(crate) fn connections(&self) -> Result<Connections> {
        match self.args.moments.replays() {
            true => Ok(Connections::default()),
            false => Connections::open(&self.nets.nics),
        }
    }

    /// Returns the console: the user's terminal, the time limits, and the host's networks.
    pub(crate) fn console(&self, terminal: Terminal, connections: Connections) -> Console {
        let args = self.args;
        Console {
            terminal,
            deadline: args.timeout.map(|t| Instant::now() + t),
            limit: args.limit.map(|limit| machine::machine::ticks(limit, self.profile.tsc_hz.value)),
            timed_out: false,
            lost: None,
            serial: None,
            connections,
        }
    }
}

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let kvm = args.backend.open(args.needs_software(), args.ledger.is_some())?;
    if args.ledger.is_some() && args.host_clock() && kvm.is_none() {
        bail!(WrongArguments::new("--ledger needs --clock virtual: with the host's clock nothing is charged"));
    }
    if args.model.is_some() && args.host_clock() {
        bail!(WrongArguments::new("--model needs --clock virtual: with the host's clock nothing has a price"));
    }
    if args.top.is_some() && args.host_clock() {
        bail!(WrongArguments::new("--top needs --clock virtual: with the host's clock nothing is charged"));
    }
    let (tier, check_translation) = args.tier.resolve()?;
    if args.moments.identifies() && args.host_clock() {
        bail!(WrongArguments::new(
            "--save-at, --restore, --record and --replay need --clock virtual: by the host's clock no two runs are the same"
        ));
    }
    if check_translation {
        check_needs(args)?;
    }
    output::distinct(args.outputs(), args.inputs())?;
    net::check(&[(None, args.nets())])?;
    // Two machines are compared.
    let machines = if check_translation { 2 } else { 1 };
    limits::allow_machines(&vec![args.planned(kvm.is_some()); machines])?;
    cpu::mapping::map_large_vectors();
    let setup = Setup::new(args, kvm.as_ref(), None)?;
    let Setup { symbol_files, nets, .. } = &setup;
    let tsc_hz = setup.profile.tsc_hz.value;
    let make = |tier| setup.boot(setup.config(tier)?);
    if args.dry_run {
        describe(args, &make(tier)?, nets)?;
        return Ok(ExitCode::SUCCESS);
    }
    // A confined process starts its threads, one of which is the terminal's, and takes over the terminal.
    let console = |connections| -> Result<Console> {
        let terminal = Terminal::open(args.escape).context("can't use standard input")?;
        Ok(setup.console(terminal, connections))
    };
    crate::memory::prepare();
    machine::snapshot::prepare();
    if check_translation {
        let both = || Ok(Lockstep::new(make(Tier::Interpreter)?, make(tier)?));
        let machines = both()?;
        let connections = setup.connections()?;
        args.sandbox.confine(&again(args))?;
        return check(args, machines, both, console(connections)?, symbol_files.clone());
    }
    let config = setup.config(tier)?;
    let facts = setup.facts(&config)?;
    let mut machine = setup.boot(config)?;
    let images = facts.clone();
    let awaited: Vec<Symbol> =
        symbol_files.iter().flat_map(|(_, all)| all).filter(|s| args.moments.names(s)).cloned().collect();
    nets.capture(&machine)?;
    let mut moments = args.moments.prepare(&mut machine, facts.clone(), tsc_hz, &awaited, args.sandbox)?;
    // Report an unwritable ledger before the run, not after it.
    let ledger = match &args.ledger {
        Some(path) => Some(LedgerFile { file: OutputFile::create_for(args.sandbox, path, "ledger")?, facts }),
        None => None,
    };
    let sockets = args.gdb.as_ref().map(|address| gdb::Sockets::listen(address, args.sandbox)).transpose()?;
    let connections = setup.connections()?;
    if sockets.is_none() {
        machine.forget_image();
    }
    prepare(&mut machine);
    args.sandbox.confine(&match (&kvm, &sockets) {
        (Some(_), _) => Needs { uses: vec![Use::Kvm], ..Needs::default() },
        (None, Some(_)) => again(args),
        (None, None) => Needs::default(),
    })?;
    // From here on a signal ends the run, not the program, so that nothing is left behind.
    let mut console = console(connections)?;
    let outcome = match (kvm, sockets) {
        (Some(kvm), _) => machine.run_on(kvm, &mut console, ledger.is_some())?,
        (None, None) => {
            let model = setup.profile.clock.name();
            let live = args.top.map(|every| Live::new(every, model, symbol_files.clone(), &mut machine));
            console.serial = live.as_ref().and_then(Live::serial_line);
            moments.run(&mut machine, &mut console, live)
        }
        (None, Some(mut sockets)) => {
            say(&format!("tollgate: the guest waits for a debugger at {sockets}"));
            let again = Make {
                machine: Box::new(|| make(tier).ok()),
                begin: Box::new(|machine| {
                    args.moments.prepare(machine, images.clone(), tsc_hz, &awaited, args.sandbox).is_ok()
                }),
            };
            machine.run_debugged(&mut console, &mut sockets, History::new(repeats(args).then_some(again)))?
        }
    };
    let (timed_out, lost) = (console.timed_out, console.lost.take());
    drop(console);
    let mut all_came = moments.finish(&machine);
    all_came &= nets.finish(&machine);
    if args.workload.is_some() && !machine.board().workload_asked() {
        say(
            "tollgate: --workload: the guest has not asked for it (the project's Linux guest asks with tollgate.run=-)",
        );
        all_came = false;
    }
    let status = conclude(
        args.json,
        &machine,
        Ended { outcome, timed_out, lost, checked: false, machine: None, with_others: false },
        setup.symbol_files,
        ledger,
    )?;
    Ok(if all_came { status } else { ExitCode::from(126) })
}

/// Returns the needs of a run that creates further machines from the same files.
fn again(args: &RunArgs) -> Needs {
    let mut needs = Needs { uses: vec![Use::NewMachines], ..Needs::default() };
    needs.uses.extend(args.gdb.as_ref().map(|_| Use::Debugger));
    needs.readable.push(args.kernel.clone());
    needs.readable.extend(args.initrd.iter().flat_map(|list| module_files(list)));
    needs.readable.extend(args.moments.files().cloned());
    for disk in &args.disk {
        let (path, read_only) = disk_path(disk);
        let list = if read_only { &mut needs.readable } else { &mut needs.writable };
        list.push(path.to_path_buf());
    }
    needs
}

/// Returns the files that `--initrd` may name: a single file, or the first words of a list.
fn module_files(list: &Path) -> Vec<PathBuf> {
    let mut files = vec![list.to_path_buf()];
    let modules = list.to_str().map(machine::loader::split_modules).unwrap_or_default();
    let first = |module: String| module.trim_start_matches(' ').split(' ').next().map(PathBuf::from);
    files.extend(modules.into_iter().filter_map(first));
    files
}

/// Returns true if the run is repeatable: it has a clock of its own, and changes no disk.
fn repeats(args: &RunArgs) -> bool {
    let kept = args.moments.saves() || args.disk.iter().all(|disk| disk.ends_with(",ro"));
    !args.host_clock() && kept
}

/// Checks for options that a run with two machines does not support.
fn check_needs(args: &RunArgs) -> Result<()> {
    if args.host_clock() {
        bail!(WrongArguments::new("--check-translation needs --clock virtual: with the host's clock, runs differ"));
    }
    if args.top.is_some() {
        bail!(WrongArguments::new("--check-translation runs two machines at once: leave out --top"));
    }
    if args.gdb.is_some() {
        bail!(WrongArguments::new("--check-translation runs two machines and supports no debugger: leave out --gdb"));
    }
    if args.moments.identifies() {
        bail!(WrongArguments::new(
            "--check-translation compares two machines from their beginning: leave out --save-at, --restore, --record and --replay"
        ));
    }
    if args.ledger.is_some() {
        bail!(WrongArguments::new(
            "--check-translation writes no ledger, but compares those of both tiers: leave out --ledger"
        ));
    }
    if args.net.iter().any(|net| matches!(net, Net::Capture(_))) {
        bail!(WrongArguments::new("--check-translation runs two machines: leave out --net pcap"));
    }
    if let Some(disk) = args.disk.iter().find(|disk| !disk.ends_with(",ro")) {
        let text = "--check-translation runs two machines, which can't both write to a disk";
        bail!(WrongArguments::new(format!("{text}: use --disk {disk},ro")));
    }
    Ok(())
}

/// Runs the guest in both tiers at once, and reports the first difference.
fn check(
    args: &RunArgs,
    mut machines: Lockstep,
    both: impl Fn() -> Result<Lockstep>,
    mut console: Console,
    symbol_files: Vec<(String, Vec<Symbol>)>,
) -> Result<ExitCode> {
    let run = machines.run(&mut console);
    let (timed_out, lost) = (console.timed_out, console.lost.take());
    drop(console);
    match run {
        Ok(outcome) => conclude(
            args.json,
            machines.translated(),
            Ended { outcome, timed_out, lost, checked: true, machine: None, with_others: false },
            symbol_files,
            None,
        ),
        Err(found) => {
            let found = both()?.narrow(found);
            if args.json {
                let report = serde_json::json!({
                    "ended": "the tiers differ",
                    "status": crate::usage::FAILED,
                    "virtual_seconds": machines.seconds(),
                    "tiers_agree": false,
                    "difference": found.text,
                });
                output::result(&report.to_string())?;
            }
            bail!("the translation is wrong in part {}:\n{}", found.stretch, found.text)
        }
    }
}
