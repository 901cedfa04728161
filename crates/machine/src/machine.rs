//! A whole machine: created from a configuration, run against a host, and inspected afterwards.

use crate::MAX_CPUS;
use crate::awaited::{Awaited, Awaiting, Place};
use crate::board::{Board, Parts};
use crate::console::{Console, PanicWatch};
use crate::device::Ending;
use crate::error::MachineError;
use crate::firmware::{self, Firmware, SmbiosProcessor};
use crate::host::{Host, HostFrame, Piece, Poll};
use crate::host_time::{HostClock, Pace};
use crate::hypervisor_memory::HypervisorMemory;
use crate::loader::{self, Entry, Module, Options};
use crate::memory::GuestRam;
use crate::moves::{self, Move};
use crate::platform::Platform;
use crate::replay::Replay;
use crate::stacks::Stacks;
use crate::vcpus::{Pause, Vcpus};
use crate::view::processor_ram;
use cpu::bus::lock;
use cpu::{Cpu, Model, Tier};
use hypervisor::Hypervisor;
use hypervisor::mmu::Mmu;
use ledger::profile::Profile;
use ledger::stack::Keeps;
use ledger::symbols::{ImageFunctions, Symbol};
use ledger::{Recorder, TICKS_PER_CYCLE, Ticks};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Name of the facts of [`Machine::description`] that are entries of the memory map for the guest.
pub const MEMORY_MAP: &str = "memory map";

/// Source of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockSource {
    /// Cycles of the profiled processor: deterministic, and on the ledger.
    Virtual,
    /// The host's clock: nothing is charged.
    Host,
}

/// Configuration of a machine.
pub struct Config {
    /// Bytes of RAM.
    pub memory: u64,
    /// Number of processors.
    pub cpus: usize,
    /// Profile of the processors.
    pub profile: Profile,
    /// The kernel image.
    pub kernel: Vec<u8>,
    /// File name of the kernel, for [`Machine::description`]. Neither the guest nor the ledger gets the name of a file
    /// on this host.
    pub kernel_name: String,
    /// Initial RAM disk or multiboot modules.
    pub modules: Vec<Module>,
    /// Kernel command line.
    pub cmdline: String,
    /// Devices in addition to those of every board.
    pub parts: Parts,
    /// Source of virtual time.
    pub clock: ClockSource,
    /// Platform that the guest runs on.
    pub platform: Platform,
    /// True if indirect branches are recorded by address and target.
    pub branches: bool,
    /// Recorded call stacks.
    pub stacks: Keeps,
    /// Execution engine of guest instructions; it affects nothing but the speed.
    pub tier: Tier,
}

/// Outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The guest powered off.
    PowerOff,
    /// The guest reset the machine; [`Machine::verdict`] gives the reason.
    Reset,
    /// The guest's kernel panicked.
    Panic,
    /// The guest wrote to the debug-exit port.
    DebugExit(u8),
    /// Triple fault on the processor with this index.
    TripleFault(usize),
    /// A VM exit with this reason on this processor that has no handler: an error of this program.
    UnhandledExit(usize, u32),
    /// The hypervisor can't continue the guest on this processor; [`Vcpus::failure`] gives the reason.
    Failed(usize),
    /// All processors wait and nothing can wake one; usually they are halted with interrupts disabled.
    Stuck,
    /// The host stopped the run.
    Stopped,
}

impl From<Ending> for Outcome {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::PowerOff => Self::PowerOff,
            Ending::Reset => Self::Reset,
            Ending::Panic => Self::Panic,
            Ending::DebugExit(status) => Self::DebugExit(status),
        }
    }
}

/// Converts a duration to ticks of a processor whose time-stamp counter has this frequency.
pub fn ticks(time: Duration, tsc_hz: u64) -> Ticks {
    (time.as_nanos() * u128::from(tsc_hz) * u128::from(TICKS_PER_CYCLE) / 1_000_000_000) as Ticks
}

/// Name of an image for a guest that asks for it (multiboot, PVH). The host's file names would make runs differ.
const KERNEL_NAME: &str = "kernel";

/// Name of the workload in the description of a run.
pub(crate) const WORKLOAD: &str = "workload";

/// A machine.
pub struct Machine {
    /// The processors.
    pub vcpus: Vcpus,
    /// Reports of a kernel panic on the machine's consoles.
    pub(crate) watch: PanicWatch,
    /// Time of the next check for a reported panic, and the interval to the one after it.
    pub(crate) look: (Ticks, Ticks),
    pace: Pace,
    pub(crate) replay: Replay,
    /// The devices, which the processors share.
    pub(crate) board: Arc<Mutex<Board>>,
    /// Guest memory.
    pub ram: GuestRam,
    pub(crate) clock: ClockSource,
    host_clock: HostClock,
    /// Memory used by blocks and their translations, set at the end of the run.
    pub taken: cpu::cache::Taken,
    pub(crate) profile: Profile,
    /// Platform that the guest runs on.
    pub platform: Platform,
    /// Report of KVM, if the machine ran on KVM.
    pub on_kvm: Option<crate::kvm::Report>,
    /// Options of the command line that describe the machine, for its snapshots.
    pub command: Vec<String>,
    /// Moves of the guest to other processors.
    pub(crate) moves: Vec<Move>,
    /// Description of the run, for its ledger.
    pub(crate) description: Vec<(&'static str, String)>,
    /// Names of files on this host, on which no ledger may depend.
    names: Vec<(&'static str, String)>,
    /// The image, which may contain symbols.
    pub(crate) image: Vec<u8>,
    /// Guest functions for which the machine waits.
    pub(crate) awaited: Option<Awaited>,
}

/// Returns the processor model of a profile on a platform. Without charges every instruction takes one cycle and events
/// take none, because time comes from the host; TLBs are then as large as is useful.
fn model(profile: &Profile, clock: ClockSource, platform: &Platform) -> Model {
    let (costs, geometry, cpuid) = match platform {
        Platform::Emulated => (profile.emulated_costs(), profile.emulated_geometry(), profile.emulated_cpuid()),
        Platform::Bare | Platform::Hvm(_) => (profile.costs(), profile.geometry(), profile.cpuid()),
    };
    match clock {
        ClockSource::Virtual => Model::of(profile, costs, geometry, &cpuid),
        ClockSource::Host => {
            let geometry = geometry.enlarged();
            Model { recorded: false, ..Model::of(profile, ledger::Costs::free(), geometry, &cpuid) }
        }
    }
}

impl Machine {
    /// Creates a machine and loads its image.
    pub fn new(config: Config) -> Result<Self, MachineError> {
        Self::create(config, true)
    }

    /// Creates a machine for a snapshot, which must be restored before the machine runs. Its memory is empty: the image is needed only for
    /// symbols.
    pub fn for_snapshot(config: Config) -> Result<Self, MachineError> {
        Self::create(config, false)
    }

    fn create(config: Config, loads: bool) -> Result<Self, MachineError> {
        if config.cpus == 0 || config.cpus > MAX_CPUS {
            return Err(MachineError::Cpus(config.cpus));
        }
        let mut config = config;
        let tables = Self::tables(&mut config)?;
        let ram = GuestRam::new(config.memory)?;
        let entry = match loads {
            true => Some(Self::load(&config, &ram)?),
            false => None,
        };
        let model = model(&config.profile, config.clock, &config.platform);
        let model = Arc::new(Model { branches: config.branches, ..model });
        let recorder = Recorder::default().keeping(config.stacks);
        let stacks = Stacks::new(config.stacks);
        let paravirt = matches!(&config.platform, Platform::Hvm(switches) if switches.paravirt);
        let workload = config.parts.workload.clone();
        let random = config.parts.random;
        let nics = config.parts.nics.iter().map(|nic| nic.text.clone()).collect::<Vec<_>>();
        let parts = Parts { paravirt, console: Console::of_command_line(&config.cmdline), ..config.parts };
        let board = Board::new(&ram, config.cpus, &config.profile, parts)?;
        let board = Arc::new(Mutex::new(board));
        let processor_ram = processor_ram(&ram, tables.as_ref());
        let cpus = (0..config.cpus).map(|index| {
            let mut cpu = Cpu::new(index, model.clone(), processor_ram.clone(), board.clone(), recorder.another());
            cpu.wiring.processors = config.cpus as u32;
            cpu.micro.random ^= random;
            if let Some(stacks) = &stacks {
                stacks.attach(&mut cpu);
            }
            cpu
        });
        let hypervisor = match &config.platform {
            Platform::Hvm(switches) => Some(Hypervisor::new(switches.clone(), &processor_ram, &config.profile)?),
            Platform::Bare | Platform::Emulated => None,
        };
        let mut vcpus = Vcpus::new(cpus.collect(), board.clone(), hypervisor, ram.clone());
        vcpus.cache.code.tier = config.tier;
        vcpus.stacks = stacks;
        if let Some(entry) = &entry {
            vcpus.enter(entry);
        }
        // The loader wrote through the devices' view of memory; no code has been decoded yet.
        drop(ram.take_written());
        let mut description = vec![
            ("command line", config.cmdline),
            ("memory", format!("{} MiB", config.memory >> 20)),
            ("tollgate", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        description.extend(config.platform.describe());
        if !workload.is_empty() {
            description.push((WORKLOAD, workload));
        }
        if !nics.is_empty() {
            description.push(("network", nics.join(" ")));
        }
        if random != 0 {
            description.push(("random seed", random.to_string()));
        }
        let files = loader::join_modules(config.modules.iter().map(|module| module.file.as_str()));
        let names = vec![("kernel", config.kernel_name), ("initrd", files)];
        Ok(Self {
            vcpus,
            watch: PanicWatch::default(),
            look: (0, 1),
            pace: Pace::default(),
            replay: Replay::default(),
            board,
            ram,
            clock: config.clock,
            host_clock: HostClock::default(),
            taken: cpu::cache::Taken::default(),
            profile: config.profile,
            platform: config.platform,
            on_kvm: None,
            command: Vec::new(),
            moves: Vec::new(),
            description,
            names,
            image: config.kernel,
            awaited: None,
        })
    }

    /// Drops the image if it has no symbols. Only a debugger, and functions for which the machine is yet to wait, look at such an image.
    pub fn forget_image(&mut self) {
        if !self.image.starts_with(b"\x7fELF") {
            self.image = Vec::new();
        }
    }

    /// Loads the image, and the tables that firmware would leave in memory.
    fn load(config: &Config, ram: &GuestRam) -> Result<Entry, MachineError> {
        let firmware = Self::firmware(config, ram)?;
        let options = Options {
            name: KERNEL_NAME,
            cmdline: &config.cmdline,
            modules: &config.modules,
            rsdp: Some(firmware.rsdp),
            low_memory: &firmware.low_memory,
        };
        Ok(loader::load(ram, &config.kernel, &options)?)
    }

    /// Writes the tables that firmware would leave in memory.
    fn firmware(config: &Config, ram: &GuestRam) -> Result<Firmware, MachineError> {
        let profile = &config.profile;
        let cpuid = match config.platform {
            Platform::Emulated => profile.emulated_cpuid(),
            Platform::Bare | Platform::Hvm(_) => profile.cpuid(),
        };
        let firmware = firmware::FirmwareConfig {
            apic_ids: (0..config.cpus as u32).collect(),
            io_apic_id: Board::IO_APIC_ID,
            processor: SmbiosProcessor::of(&cpuid, profile.tsc_hz.value),
            virtual_machine: matches!(config.platform, Platform::Hvm(_)),
            second_of_day: (config.parts.rtc_start % 86_400) as u32,
        };
        Ok(firmware::install(ram, &firmware)?)
    }

    /// Allocates the pages for a hypervisor's tables. A machine that could use more pages than there can be gets a
    /// limit.
    fn tables(config: &mut Config) -> Result<Option<HypervisorMemory>, MachineError> {
        let Platform::Hvm(switches) = &mut config.platform else { return Ok(None) };
        let needed = |switches: &_| Mmu::pool_pages(switches, config.memory >> 12, config.cpus as u32);
        let mut pages = needed(switches);
        if pages > HypervisorMemory::MOST_PAGES {
            if let Some(pages) = switches.mmu_pages {
                return Err(MachineError::TablePages(pages));
            }
            // One page for each processor, and one shared page, are not part of the limit.
            switches.mmu_pages = Some(HypervisorMemory::MOST_PAGES - MAX_CPUS as u32 - 1);
            pages = needed(switches);
        }
        Ok(Some(HypervisorMemory::new(pages)?))
    }

    /// Allocates the memory for translated code, which the run would otherwise do on first use. Afterwards no memory
    /// becomes executable. Returns false if the host refuses the memory: the interpreter then executes everything.
    pub fn prepare(&mut self) -> bool {
        self.vcpus.cache.code.prepare()
    }

    /// Runs until the guest ends the machine, or the host stops it.
    pub fn run(&mut self, host: &mut dyn Host) -> Outcome {
        loop {
            if let Some(outcome) = self.run_until(host, &mut |_| false) {
                return outcome;
            }
        }
    }

    /// Runs as [`Self::run`] does, or until `stop` returns true between two slices: there is no outcome then, and the
    /// machine can be run again.
    pub fn run_until(&mut self, host: &mut dyn Host, stop: &mut dyn FnMut(&Self) -> bool) -> Option<Outcome> {
        self.start();
        let outcome = loop {
            if stop(self) {
                return None;
            }
            let pause = self.slice();
            if let Some(outcome) = self.outside(pause, host) {
                break outcome;
            }
        };
        self.end(host);
        Some(outcome)
    }

    /// Begins or continues the run.
    pub(crate) fn start(&mut self) {
        self.vcpus.all[0].cpu.wiring.recorder.begin();
        self.host_clock.start(Instant::now());
    }

    /// Pauses the machine, and with it a clock that follows the host's.
    pub(crate) fn stand_still(&mut self) {
        self.host_clock.stop(Instant::now());
    }

    /// Runs the processors until the machine must interact with the outside.
    pub(crate) fn slice(&mut self) -> Pause {
        // A turn that a debugger has interrupted keeps its end.
        if self.clock == ClockSource::Host && !self.vcpus.is_held() {
            self.follow_host();
        }
        if let Some(awaited) = &mut self.awaited {
            awaited.look(&mut self.vcpus);
        }
        loop {
            match (self.vcpus.run(), &mut self.awaited) {
                (Pause::Debug(index), Some(awaited)) => awaited.reached(&mut self.vcpus, index, &self.ram),
                (pause, _) => return pause,
            }
        }
    }

    /// Ends the run.
    pub(crate) fn end(&mut self, host: &mut dyn Host) {
        self.console(host);
        self.finish();
    }

    /// Prepares the machine for inspection after the run.
    pub(crate) fn finish(&mut self) {
        self.vcpus.finish();
        self.vcpus.gather();
        if let Some(first) = self.vcpus.all.first_mut() {
            self.taken = self.vcpus.cache.taken();
            // The remaining steps allocate memory of their own.
            self.vcpus.cache.release(&first.cpu.wiring.ram, &mut first.cpu.wiring.recorder);
            first.cpu.wiring.recorder.finish();
        }
    }

    /// Brings [`Self::recorder`] up to date while the machine stands between two slices. The run goes on as it would without this.
    pub fn gather(&mut self) {
        self.vcpus.gather();
        self.vcpus.all[0].cpu.wiring.recorder.complete();
    }

    /// Returns the devices, on which no processor can act while the result lives.
    pub fn board(&self) -> MutexGuard<'_, Board> {
        lock(&self.board)
    }

    /// Returns the record of the machine's charges: everything up to the last call of [`Vcpus::gather`].
    pub fn recorder(&self) -> &Recorder {
        &self.vcpus.all[0].cpu.wiring.recorder
    }

    /// Interacts with the outside when the processors pause. Returns the outcome if the run ends.
    pub(crate) fn outside(&mut self, pause: Pause, host: &mut dyn Host) -> Option<Outcome> {
        self.console(host);
        let wanted = self.board().console_room();
        let listens = self.replay.listens();
        let mut poll = host.poll(self.vcpus.now(), wanted && listens);
        poll.frames = self.network(host, listens);
        poll.pieces = self.channels(host, listens);
        let poll = self.replay.turn(pause == Pause::Idle(Ticks::MAX), poll);
        self.feed(&poll);
        if !matches!(pause, Pause::Idle(_)) {
            self.pace.worked();
        }
        match pause {
            Pause::Ended(ending) => return Some(ending.into()),
            Pause::TripleFault(cpu) => return Some(Outcome::TripleFault(cpu)),
            Pause::UnhandledExit(cpu, reason) => return Some(Outcome::UnhandledExit(cpu, reason)),
            Pause::Failed(cpu) => return Some(Outcome::Failed(cpu)),
            Pause::Stuck => return Some(Outcome::Stuck),
            _ if poll.stop => return Some(Outcome::Stopped),
            _ if self.has_panicked() => return Some(Outcome::Panic),
            Pause::Slice | Pause::Debug(_) => {}
            Pause::Idle(event) => return self.idle(host, event, poll.is_quiet()),
        }
        None
    }

    /// Sends frames to the host's network and returns those received; does neither while the machine repeats a part of
    /// its run.
    fn network(&mut self, host: &mut dyn Host, listens: bool) -> Vec<HostFrame> {
        let mut board = self.board();
        if !board.network().reaches_host() {
            return Vec::new();
        }
        let frames = board.network_output();
        if !listens {
            return Vec::new();
        }
        if !frames.is_empty() {
            host.send(frames);
        }
        host.frames(&|nic| board.network().has_room(nic.into()))
    }

    /// Writes channel output to the host and returns input for channels; does neither while the machine repeats a part
    /// of its own run. A machine that replays a recording has output, and gets its input from there.
    fn channels(&mut self, host: &mut dyn Host, listens: bool) -> Vec<Piece> {
        let mut board = self.board();
        if !board.has_channels() {
            return Vec::new();
        }
        let written = board.channel_output();
        if !self.replay.repeats() {
            written.iter().for_each(|(channel, bytes)| host.channel_output(*channel, bytes));
        }
        if !listens {
            return Vec::new();
        }
        host.pieces(&|channel| board.channel_room(channel))
    }

    /// Delivers new input, and waiting input that the guest accepts now.
    pub(crate) fn feed(&mut self, poll: &Poll) {
        self.board().console_input(&poll.input);
        if !poll.frames.is_empty() {
            self.board().network_input(&poll.frames);
        }
        if !poll.pieces.is_empty() {
            self.board().channel_input(&poll.pieces);
        }
        self.vcpus.device_has_written();
    }

    /// Returns true if the console reports the end of a kernel panic and the kernel's state confirms it. A program that
    /// prints the same lines costs an occasional check.
    fn has_panicked(&mut self) -> bool {
        let now = self.vcpus.now();
        if !self.watch.ended || now < self.look.0 {
            return false;
        }
        self.look.1 = self.look.1.saturating_mul(2).max(self.vcpus.slice);
        self.look.0 = now.saturating_add(self.look.1);
        self.panics()
    }

    fn console(&mut self, host: &mut dyn Host) {
        let bytes = self.board().console_output();
        if !bytes.is_empty() {
            self.watch.saw(&bytes);
            host.output(&bytes);
        }
    }

    /// Handles the time until `event`, before which no processor runs. A machine with a clock of its own skips to
    /// `event` at once, unless only input can wake it or input may still come. `quiet` is true if there was no input
    /// now.
    fn idle(&mut self, host: &mut dyn Host, event: Ticks, quiet: bool) -> Option<Outcome> {
        const LONGEST: Duration = Duration::from_millis(10);
        // Input that the guest has not taken yet has already arrived: the machine does not wait for a user.
        let attended = host.attended() && self.replay.listens();
        let expects = attended || self.replay.has_more();
        let waits = quiet && attended && self.board().console_waiting() == 0;
        if event == Ticks::MAX {
            if quiet && !expects {
                return Some(Outcome::Stuck);
            }
            host.idle(LONGEST);
        } else if self.clock == ClockSource::Host {
            let ahead = event.saturating_sub(self.host_ticks());
            host.idle(LONGEST.min(self.duration(ahead)));
        } else if waits {
            let now = self.duration(self.vcpus.now());
            if let Some(ahead) = self.pace.ahead(Instant::now(), now) {
                host.idle(LONGEST.min(ahead));
            }
        } else {
            self.pace.worked();
        }
        None
    }

    /// Converts ticks to a time.
    pub fn duration(&self, ticks: Ticks) -> Duration {
        let ns = u128::from(ticks) * 1_000_000_000 / self.ticks_per_second();
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    fn ticks_per_second(&self) -> u128 {
        u128::from(self.profile.tsc_hz.value) * u128::from(TICKS_PER_CYCLE)
    }

    /// Returns the host time of the run, in ticks.
    fn host_ticks(&self) -> Ticks {
        ticks(self.host_clock.elapsed(Instant::now()), self.profile.tsc_hz.value)
    }

    /// Advances clocks that lag behind the host's clock.
    fn follow_host(&mut self) {
        let now = self.host_ticks();
        for vcpu in &mut self.vcpus.all {
            vcpu.cpu.micro.clock = vcpu.cpu.micro.clock.max(now);
        }
        self.board().advance(now);
    }

    /// Returns the facts of a run's ledger that do not depend on its end.
    pub(crate) fn provenance(&self) -> Vec<(&'static str, String)> {
        let mut facts = self.description.clone();
        facts.extend(moves::describe(&self.moves).map(|moves| (moves::FACT, moves)));
        facts
    }

    /// Describes the machine as names and values. Only [`MEMORY_MAP`] may occur more than once.
    pub fn description(&self) -> Vec<(&'static str, String)> {
        let mut facts = self.names.clone();
        facts.extend(self.provenance());
        facts.insert(0, ("processors", format!("{} x {}", self.vcpus.all.len(), self.profile.title)));
        facts.push(("entry", format!("{:#x}", self.vcpus.all[0].cpu.arch.rip)));
        facts.extend(
            self.ram
                .e820()
                .into_iter()
                .map(|e| (MEMORY_MAP, format!("{:#014x}-{:#014x} {:?}", e.start, e.start + e.len - 1, e.kind))),
        );
        facts
    }

    /// Returns the virtual time in ticks.
    pub fn now(&self) -> Ticks {
        self.vcpus.now()
    }

    /// Returns the virtual time in seconds.
    pub fn seconds(&self) -> f64 {
        self.vcpus.now() as f64 / self.ticks_per_second() as f64
    }

    /// Returns the virtual time at the end of the run in seconds: that of the processor that is ahead, which the ledger has.
    pub fn ended_at(&self) -> f64 {
        let ticks = if self.on_kvm.is_some() { self.vcpus.now() } else { self.vcpus.ahead() };
        ticks as f64 / self.ticks_per_second() as f64
    }

    /// Waits for the execution of places in functions; [`Machine::has_executed`] reports on them by index. Functions
    /// are looked up in the machine's image, in the symbols of `files`, and in the tables of a running Linux kernel.
    pub fn await_functions(&mut self, places: Vec<Place>, files: &[Symbol]) {
        if places.is_empty() {
            return;
        }
        let awaited = Awaited::new(places, ImageFunctions::of(&self.image), files);
        awaited.place(&mut self.vcpus);
        self.awaited = Some(awaited);
    }

    /// Returns the status of an awaited place.
    pub fn has_executed(&self, number: usize) -> Awaiting {
        self.awaited.as_ref().map_or(Awaiting::Unknown, |awaited| awaited.status(number))
    }
}
