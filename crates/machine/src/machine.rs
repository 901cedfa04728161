//! A whole machine: made from a configuration, run against a host, asked about afterwards.

use crate::MAX_CPUS;
use crate::awaited::Awaited;
use crate::board::{Board, Parts};
use crate::console::{Console, PanicWatch};
use crate::device::Ending;
use crate::error::MachineError;
use crate::firmware::{self, Firmware, SmbiosProcessor};
use crate::host::{Host, HostFrame, Piece, Poll};
use crate::host_time::{HostClock, Pace};
use crate::hypervisor_memory::HypervisorMemory;
use crate::loader::{self, Module, Options};
use crate::memory::GuestRam;
use crate::platform::Platform;
use crate::replay::Replay;
use crate::stacks::Stacks;
use crate::vcpus::{Pause, Vcpus};
use crate::view::processor_ram;
use cpu::{Cpu, Model, Tier};
use hypervisor::Hypervisor;
use hypervisor::mmu::Mmu;
use ledger::profile::Profile;
use ledger::stack::Keeps;
use ledger::{Recorder, TICKS_PER_CYCLE, Ticks};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// What time is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockSource {
    /// Cycles of the profiled processor: deterministic, and on the ledger.
    Virtual,
    /// The host's clock: nothing is charged.
    Host,
}

/// What a machine is made from.
pub struct Config {
    /// Bytes of RAM.
    pub memory: u64,
    /// Number of processors.
    pub cpus: usize,
    /// What the processors are.
    pub profile: Profile,
    /// The kernel image.
    pub kernel: Vec<u8>,
    /// Its name, for [`Machine::description`]: the guest and the ledger are not told what a file is called here.
    pub kernel_name: String,
    /// Initial RAM disk or multiboot modules.
    pub modules: Vec<Module>,
    /// Kernel command line.
    pub cmdline: String,
    /// Devices beyond those every board has.
    pub parts: Parts,
    /// What time is made of.
    pub clock: ClockSource,
    /// What the guest runs on.
    pub platform: Platform,
    /// Indirect branches are recorded by place and target.
    pub branches: bool,
    /// Which call stacks are recorded.
    pub stacks: Keeps,
    /// What executes the guest's instructions; it changes nothing but the time that takes.
    pub tier: Tier,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The guest powered off.
    PowerOff,
    /// The guest reset the machine; [`Machine::verdict`] says why.
    Reset,
    /// The guest's kernel panicked.
    Panic,
    /// The guest wrote to the debug-exit port.
    DebugExit(u8),
    /// Triple fault on this processor.
    TripleFault(usize),
    /// A VM exit with this reason on this processor, which nobody handles: an error of this program.
    UnhandledExit(usize, u32),
    /// The hypervisor cannot go on with the guest on this processor; [`Vcpus::failure`] says why.
    Failed(usize),
    /// All processors wait, and nothing is left to wake one: most often they are halted with interrupts off.
    Stuck,
    /// The host stopped it.
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

/// A time in ticks of a processor whose time-stamp counter has this frequency.
pub fn ticks(time: Duration, tsc_hz: u64) -> Ticks {
    (time.as_nanos() * u128::from(tsc_hz) * u128::from(TICKS_PER_CYCLE) / 1_000_000_000) as Ticks
}

/// What an image is called where a guest asks for it (multiboot, PVH). The host's names of files would make runs differ.
const KERNEL_NAME: &str = "kernel";

/// What a workload is called where a run is described.
pub(crate) const WORKLOAD: &str = "workload";

/// A machine.
pub struct Machine {
    /// The processors.
    pub vcpus: Vcpus,
    /// What its consoles have shown of its kernel's end.
    pub(crate) watch: PanicWatch,
    /// When a panic that they show is looked for next, and how long after that.
    pub(crate) look: (Ticks, Ticks),
    pace: Pace,
    pub(crate) replay: Replay,
    /// The devices.
    pub board: Rc<RefCell<Board>>,
    /// What was charged.
    pub recorder: Rc<RefCell<Recorder>>,
    /// Guest memory.
    pub ram: GuestRam,
    pub(crate) clock: ClockSource,
    host_clock: HostClock,
    /// What blocks and their translations took when the run ended.
    pub taken: cpu::cache::Taken,
    pub(crate) profile: Profile,
    /// What the guest runs on.
    pub platform: Platform,
    /// What KVM has said of the run, if it was on KVM.
    pub on_kvm: Option<crate::kvm::Report>,
    /// What describes the run, for its ledger.
    pub(crate) description: Vec<(&'static str, String)>,
    /// What files are called on this host, which no ledger may depend on.
    names: Vec<(&'static str, String)>,
    /// The image, which may have symbols.
    pub(crate) image: Vec<u8>,
    /// Functions of the guest that are waited for.
    pub(crate) awaited: Option<Awaited>,
}

/// The processor's model of a profile on a platform. Without charges every instruction takes one cycle and events take none: time then
/// comes from the host, and TLBs are as large as helps.
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
    /// Makes a machine and loads its image.
    pub fn new(config: Config) -> Result<Self, MachineError> {
        if config.cpus == 0 || config.cpus > MAX_CPUS {
            return Err(MachineError::Cpus(config.cpus));
        }
        let mut config = config;
        let tables = Self::tables(&mut config)?;
        let ram = GuestRam::new(config.memory)?;
        let firmware = Self::firmware(&config, &ram)?;
        let options = Options {
            name: KERNEL_NAME,
            cmdline: &config.cmdline,
            modules: &config.modules,
            rsdp: Some(firmware.rsdp),
            low_memory: &firmware.low_memory,
        };
        let entry = loader::load(&ram, &config.kernel, &options)?;
        let model = model(&config.profile, config.clock, &config.platform);
        let model = Arc::new(Model { branches: config.branches, ..model });
        let recorder = Rc::new(RefCell::new(Recorder::default().keeping(config.stacks)));
        let stacks = Stacks::new(config.stacks, recorder.clone());
        let paravirt = matches!(&config.platform, Platform::Hvm(switches) if switches.paravirt);
        let workload = config.parts.workload.clone();
        let nics = config.parts.nics.iter().map(|nic| nic.text.clone()).collect::<Vec<_>>();
        let parts = Parts { paravirt, console: Console::of_command_line(&config.cmdline), ..config.parts };
        let board = Board::new(&ram, config.cpus, &config.profile, parts)?;
        let board = Rc::new(RefCell::new(board));
        let processor_ram = processor_ram(&ram, tables.as_ref());
        let cpus = (0..config.cpus).map(|index| {
            let mut cpu = Cpu::new(index, model.clone(), processor_ram.clone(), board.clone(), recorder.clone());
            cpu.wiring.processors = config.cpus as u32;
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
        vcpus.cache.tier = config.tier;
        vcpus.stacks = stacks;
        vcpus.enter(&entry);
        // Loading went through the devices' view of memory; no code is decoded yet.
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
        let files = loader::join_modules(config.modules.iter().map(|module| module.file.as_str()));
        let names = vec![("kernel", config.kernel_name), ("initrd", files)];
        Ok(Self {
            vcpus,
            watch: PanicWatch::default(),
            look: (0, 1),
            pace: Pace::default(),
            replay: Replay::default(),
            board,
            recorder,
            ram,
            clock: config.clock,
            host_clock: HostClock::default(),
            taken: cpu::cache::Taken::default(),
            profile: config.profile,
            platform: config.platform,
            on_kvm: None,
            description,
            names,
            image: config.kernel,
            awaited: None,
        })
    }

    /// Writes what firmware would leave behind.
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

    /// The pages for a hypervisor's tables. A machine that could do with more than there can be has a limit.
    fn tables(config: &mut Config) -> Result<Option<HypervisorMemory>, MachineError> {
        let Platform::Hvm(switches) = &mut config.platform else { return Ok(None) };
        let needed = |switches: &_| Mmu::pool_pages(switches, config.memory >> 12, config.cpus as u32);
        let mut pages = needed(switches);
        if pages > HypervisorMemory::MOST_PAGES {
            if let Some(pages) = switches.mmu_pages {
                return Err(MachineError::TablePages(pages));
            }
            // One page for each processor, and one for all, are beside the limit.
            switches.mmu_pages = Some(HypervisorMemory::MOST_PAGES - MAX_CPUS as u32 - 1);
            pages = needed(switches);
        }
        Ok(Some(HypervisorMemory::new(pages)?))
    }

    /// Runs until the guest ends the machine, or the host stops it.
    pub fn run(&mut self, host: &mut dyn Host) -> Outcome {
        loop {
            if let Some(outcome) = self.run_until(host, &mut |_| false) {
                return outcome;
            }
        }
    }

    /// Likewise, or until `stop` says so between two slices: then there is no outcome yet, and the machine can be run again.
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

    /// The run begins, or goes on.
    pub(crate) fn start(&mut self) {
        self.host_clock.start();
    }

    /// The machine stands still: a clock that follows the host's does too.
    pub(crate) fn stand_still(&mut self) {
        self.host_clock.stop();
    }

    /// Runs the processors until something is to be done outside.
    pub(crate) fn slice(&mut self) -> Pause {
        // A turn that a debugger has interrupted ends when it was to end.
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

    /// The run is over.
    pub(crate) fn end(&mut self, host: &mut dyn Host) {
        self.console(host);
        self.finish();
    }

    /// Prepares for questions about a run that is over.
    pub(crate) fn finish(&mut self) {
        self.vcpus.finish();
        if let Some(first) = self.vcpus.all.first() {
            self.taken = self.vcpus.cache.taken();
            // What is left to do needs memory of its own.
            self.vcpus.cache.release(&first.cpu.wiring.ram, &mut self.recorder.borrow_mut());
            self.recorder.borrow_mut().finish();
        }
    }

    /// What is to be done outside when the processors pause. The outcome, if that is all.
    pub(crate) fn outside(&mut self, pause: Pause, host: &mut dyn Host) -> Option<Outcome> {
        self.console(host);
        let wanted = self.board.borrow().console_room();
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

    /// Sends frames to the host's network, and says what has come from there; neither if all of it has happened before.
    fn network(&mut self, host: &mut dyn Host, listens: bool) -> Vec<HostFrame> {
        let mut board = self.board.borrow_mut();
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

    /// Gives the host what was written to channels, and says what has come for them; neither if all of it has happened before.
    fn channels(&mut self, host: &mut dyn Host, listens: bool) -> Vec<Piece> {
        let mut board = self.board.borrow_mut();
        if !board.has_channels() {
            return Vec::new();
        }
        let written = board.channel_output();
        if !listens {
            return Vec::new();
        }
        written.iter().for_each(|(channel, bytes)| host.channel_output(*channel, bytes));
        host.pieces(&|channel| board.channel_room(channel))
    }

    /// Gives the guest input, and what has waited until it takes some.
    pub(crate) fn feed(&mut self, poll: &Poll) {
        self.board.borrow_mut().console_input(&poll.input);
        if !poll.frames.is_empty() {
            self.board.borrow_mut().network_input(&poll.frames);
        }
        if !poll.pieces.is_empty() {
            self.board.borrow_mut().channel_input(&poll.pieces);
        }
        self.vcpus.device_has_written();
    }

    /// Whether the kernel says that it has panicked and does nothing more, and is found to have. A program that prints what a
    /// kernel would costs a look now and then.
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
        let bytes = self.board.borrow_mut().console_output();
        if !bytes.is_empty() {
            self.watch.saw(&bytes);
            host.output(&bytes);
        }
    }

    /// Nobody runs before `event`: with a clock of its own the machine goes there at once, unless only input can wake it or
    /// input may still come. `quiet`: there was none now.
    fn idle(&mut self, host: &mut dyn Host, event: Ticks, quiet: bool) -> Option<Outcome> {
        const LONGEST: Duration = Duration::from_millis(10);
        // What the guest has not taken yet is there already: it does not wait for a user.
        let attended = host.attended() && self.replay.listens();
        let expects = attended || self.replay.has_more();
        let waits = quiet && attended && self.board.borrow().console_waiting() == 0;
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
            if let Some(ahead) = self.pace.ahead(now) {
                host.idle(LONGEST.min(ahead));
            }
        } else {
            self.pace.worked();
        }
        None
    }

    fn duration(&self, ticks: Ticks) -> Duration {
        let ns = u128::from(ticks) * 1_000_000_000 / self.ticks_per_second();
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    fn ticks_per_second(&self) -> u128 {
        u128::from(self.profile.tsc_hz.value) * u128::from(TICKS_PER_CYCLE)
    }

    /// The host's time that the run has taken, in ticks.
    fn host_ticks(&self) -> Ticks {
        ticks(self.host_clock.elapsed(), self.profile.tsc_hz.value)
    }

    /// Moves clocks that lag behind the host's on to it.
    fn follow_host(&mut self) {
        let now = self.host_ticks();
        for vcpu in &mut self.vcpus.all {
            vcpu.cpu.micro.clock = vcpu.cpu.micro.clock.max(now);
        }
        self.board.borrow_mut().advance(now);
    }

    /// What the machine is, as names and values.
    pub fn description(&self) -> Vec<(&'static str, String)> {
        let mut facts = self.names.clone();
        facts.extend(self.description.iter().cloned());
        facts.insert(0, ("processors", format!("{} x {}", self.vcpus.all.len(), self.profile.title)));
        facts.push(("entry", format!("{:#x}", self.vcpus.all[0].cpu.arch.rip)));
        facts.extend(
            self.ram
                .e820()
                .into_iter()
                .map(|e| ("memory map", format!("{:#014x}-{:#014x} {:?}", e.start, e.start + e.len - 1, e.kind))),
        );
        facts
    }

    /// Virtual time in seconds.
    pub fn seconds(&self) -> f64 {
        self.vcpus.now() as f64 / self.ticks_per_second() as f64
    }
}
