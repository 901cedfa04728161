//! `tollgate run`: boots a kernel on a machine and shows its serial line.

use crate::save::{kernel_symbols, save};
use crate::size::parse_size;
use crate::terminal::{Terminal, print};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use ledger::profile::Profile;
use ledger::{Family, Header, Kind, Ledger, Ticks};
use machine::board::{MMIO_DEVICES, PORT_DEVICES};
use machine::{ClockSource, Config, Host, Machine, Outcome, Poll};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Exit status when the host stopped the guest because its time was up, as timeout(1) has it.
const TIMED_OUT: u8 = 124;
/// Exit status of a guest that can't go on: triple fault, or halted for good.
const GUEST_DIED: u8 = 125;
/// Exit status when the user stopped the guest: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

/// Boots a kernel and shows its serial line.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate run --kernel vmlinuz --initrd initramfs.cpio --append 'console=ttyS0'
  tollgate run --kernel vmlinuz --initrd initramfs.cpio --cpus 4 --cpu icx --ledger boot.ledger
  tollgate run --kernel vmlinuz --disk root.img --append 'console=ttyS0 root=/dev/vda rw'
  tollgate run --kernel access.flat --append '' --timeout 90

Keys on a terminal: Ctrl-A x ends the run, Ctrl-A h lists the others.

Exit status: 0 after power off or reset; (v << 1) | 1 after a write of v to the debug-exit port 0xf4; 124 when --timeout is
over; 125 when the guest died (triple fault, or halted with interrupts off); 130 when interrupted; 126 when the machine
could not be made; 2 when the command line is wrong.")]
pub struct RunArgs {
    /// Kernel: Linux bzImage or vmlinux, PVH ELF, or multiboot 1 image
    #[arg(long, value_name = "FILE")]
    kernel: PathBuf,
    /// Initial RAM disk, or the module of a multiboot image
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    /// Kernel command line
    #[arg(long, value_name = "STRING", default_value = "console=ttyS0", allow_hyphen_values = true)]
    append: String,
    /// Guest memory: bytes, or with K, M, G or T
    #[arg(long, short = 'm', value_name = "SIZE", default_value = "512M", value_parser = parse_size)]
    memory: u64,
    /// Number of virtual processors
    #[arg(long, value_name = "N", default_value_t = 1)]
    cpus: usize,
    /// Processor profile: a name of `tollgate cpu list`, or a TOML file
    #[arg(long, value_name = "PROFILE", default_value = "skx")]
    cpu: String,
    /// Saves the ledger of the run
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
    /// Ends the run after so many seconds of the host's time
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    timeout: Option<Duration>,
    /// Ends the run after so many seconds of virtual time: unlike --timeout, always at the same instruction
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    limit: Option<Duration>,
    /// What time is made of
    #[arg(long, value_enum, default_value_t = ClockArg::Virtual)]
    clock: ClockArg,
    /// Shows the machine and ends
    #[arg(long)]
    dry_run: bool,
    /// Prints the machine (with --dry-run) or how the run ended as JSON on standard error
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ClockArg {
    /// Cycles of the profiled processor: deterministic, and charged to the ledger
    Virtual,
    /// The host's clock: nothing is charged
    Host,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    match number.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds < 1e9 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("a number of seconds above 0, such as 90 or 2.5".into()),
    }
}

/// The user and the time limits.
struct Console {
    terminal: Terminal,
    deadline: Option<Instant>,
    limit: Option<Ticks>,
    timed_out: bool,
    listening: bool,
}

impl Host for Console {
    fn output(&mut self, bytes: &[u8]) {
        self.listening &= print(bytes);
    }

    fn poll(&mut self, now: Ticks) -> Poll {
        self.timed_out = self.deadline.is_some_and(|d| Instant::now() >= d) || self.limit.is_some_and(|l| now >= l);
        let stop = self.timed_out || self.terminal.stopped() || !self.listening;
        Poll { input: self.terminal.input(), stop }
    }

    fn idle(&mut self, limit: Duration) {
        self.terminal.wait(limit);
    }
}

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    if args.ledger.is_some() && matches!(args.clock, ClockArg::Host) {
        bail!("--ledger needs --clock virtual: with the host's clock nothing is charged");
    }
    let profile = Profile::find(&args.cpu)?;
    let tsc_hz = profile.tsc_hz.value;
    let kernel = machine::loader::read_file(&args.kernel)?;
    // What the ledger is made with when the run is over.
    let kept = args.ledger.as_ref().map(|path| (path, profile.clone(), kernel.clone()));
    let initrd = args.initrd.as_deref().map(machine::loader::read_file).transpose()?;
    let name = |path: &PathBuf| path.display().to_string();
    let config = Config {
        memory: args.memory,
        cpus: args.cpus,
        profile,
        kernel,
        kernel_name: name(&args.kernel),
        initrd,
        initrd_name: args.initrd.as_ref().map(name).unwrap_or_default(),
        cmdline: args.append.clone(),
        parts: machine::board::Parts::default(),
        clock: match args.clock {
            ClockArg::Virtual => ClockSource::Virtual,
            ClockArg::Host => ClockSource::Host,
        },
    };
    let mut machine = Machine::new(config).with_context(|| format!("can't boot {}", args.kernel.display()))?;
    let mut console = Console {
        terminal: Terminal::open().context("can't use standard input")?,
        deadline: args.timeout.map(|t| Instant::now() + t),
        limit: args.limit.map(|l| (l.as_nanos() * u128::from(tsc_hz) / 1_000_000) as Ticks),
        timed_out: false,
        listening: true,
    };
    let outcome = machine.run(&mut console);
    let timed_out = console.timed_out;
    drop(console);
    if let Some((path, profile, kernel)) = kept {
        save(&ledger(args, &machine, &profile, &kernel), path)?;
    }
    Ok(match outcome {
        Outcome::PowerOff | Outcome::Reset => ExitCode::SUCCESS,
        Outcome::DebugExit(status) => ExitCode::from(status),
        Outcome::TripleFault(_) | Outcome::Stuck => {
            for vcpu in &machine.vcpus.all {
                eprintln!("{:?} rip {:#x} {:?}", vcpu.activity, vcpu.cpu.rip, outcome);
            }
            ExitCode::from(GUEST_DIED)
        }
        Outcome::Stopped if timed_out => ExitCode::from(TIMED_OUT),
        Outcome::Stopped => ExitCode::from(INTERRUPTED),
    })
}

/// What the run was charged, with symbols of its kernel.
fn ledger(args: &RunArgs, machine: &Machine, profile: &Profile, kernel: &[u8]) -> Ledger {
    let cpus = &machine.vcpus.all;
    let mut header = Header::new(profile, cpus.iter().map(|vcpu| vcpu.cpu.clock).collect());
    let file = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut note = |key: &str, value: String| header.metadata.insert(key.to_owned(), value);
    note("tollgate", env!("CARGO_PKG_VERSION").to_owned());
    note("kernel", file(&args.kernel));
    note("command line", args.append.clone());
    note("memory", format!("{} MiB", args.memory >> 20));
    if let Some(initrd) = &args.initrd {
        note("initrd", file(initrd));
    }
    let recorder = machine.recorder.borrow();
    for (_, _, _, kind, _) in recorder.events() {
        if let Some(name) = device_name(kind) {
            header.names.insert(kind, name.to_owned());
        }
    }
    let lstar = cpus.first().map_or(0, |vcpu| vcpu.cpu.msr.lstar);
    Ledger::new(header, &recorder, &kernel_symbols(kernel, lstar))
}

/// The device that an access is charged to.
fn device_name(kind: Kind) -> Option<&'static str> {
    match kind.family {
        Family::PortIn | Family::PortOut => {
            let port = u16::try_from(kind.param).ok()?;
            PORT_DEVICES.iter().find(|(ports, _)| ports.contains(&port)).map(|(_, name)| *name)
        }
        Family::MmioRead | Family::MmioWrite => MMIO_DEVICES.get(kind.param as usize).copied(),
        _ => None,
    }
}
