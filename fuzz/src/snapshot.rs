//! Whole snapshot files: one of a small machine, changed as the bytes select and sealed again, so that its checksum is
//! right. A machine that accepts it must run, be saved and leave a ledger; without a change it must be saved again as
//! the same file.

use arbitrary::{Result, Unstructured};
use hypervisor::config::Switches;
use iced_x86::code_asm::*;
use ledger::profile::Clock;
use ledger::symbols::Symbols;
use ledger::{Profile, Ticks};
use machine::board::Parts;
use machine::console::Console;
use machine::snapshot::{Charges, SnapshotError};
use machine::{ClockSource, Config, Host, Machine, Platform, Poll};
use network::options::Net;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::sync::LazyLock;
use std::time::Duration;

/// Load address of the image, and address of its code, behind the header.
const LOAD: u32 = 0x10_0000;
const ENTRY: u32 = LOAD + 0x30;
/// Size of magic, version and hash.
const HEAD: usize = 8 + 4 + 32;
/// Number of slices that a machine runs before it is saved, and after it was restored.
const SLICES: u32 = 1;
/// The machines: their MMU, if they have a hypervisor, their number of processors, true if they have NICs and a channel, and
/// their model of time.
const MACHINES: [(Option<&str>, usize, bool, Clock); 8] = [
    (None, 1, false, Clock::Flat),
    (None, 2, false, Clock::Flat),
    (Some("shadow"), 1, false, Clock::Flat),
    (Some("tdp"), 1, false, Clock::Flat),
    (None, 1, true, Clock::Flat),
    (Some("legacy-tdp"), 2, false, Clock::Flat),
    (None, 2, false, Clock::Core),
    (Some("shadow"), 1, false, Clock::Core),
];

/// A piece of memory in a snapshot.
#[derive(Clone, Serialize, Deserialize)]
struct Chunk {
    start: u64,
    #[serde(with = "serde_bytes")]
    compressed: Vec<u8>,
}

/// The contents of a snapshot, with `state` and `charges` compressed.
#[derive(Clone, Serialize, Deserialize)]
struct Contents {
    command: Vec<String>,
    machine: Vec<(String, String)>,
    #[serde(with = "serde_bytes")]
    state: Vec<u8>,
    #[serde(with = "serde_bytes")]
    charges: Vec<u8>,
    memory: Vec<Chunk>,
}

/// A snapshot of each machine, and its contents with uncompressed `state` and `charges`.
static SAVED: LazyLock<Vec<(Vec<u8>, Contents)>> = LazyLock::new(|| {
    let saved = |which| {
        let mut machine = machine(which);
        run_on(&mut machine);
        let file = machine.snapshot(&[]).expect("nothing prevents it");
        let mut contents: Contents = postcard::from_bytes(&file[HEAD..]).expect("the layout is that of the program");
        for part in [&mut contents.state, &mut contents.charges] {
            *part = lz4_flex::block::decompress_size_prepended(part).expect("it was compressed");
        }
        (file, contents)
    };
    (0..MACHINES.len()).map(saved).collect()
});

struct Nobody;

impl Host for Nobody {
    fn output(&mut self, _: &[u8]) {}
    fn poll(&mut self, _: Ticks, _: bool) -> Poll {
        Poll::default()
    }
    fn idle(&mut self, _: Duration) {}
}

/// Returns the guest's code, which lets the timer run, counts in memory, requests CPUID and the time, and prints.
fn code() -> std::result::Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(32)?;
    let mut turn = a.create_label();
    a.mov(al, 0x34)?;
    a.out(0x43, al)?;
    a.out(0x40, al)?;
    a.out(0x40, al)?;
    a.set_label(&mut turn)?;
    a.inc(dword_ptr(0x10_1000))?;
    a.mov(dx, 0x3f8)?;
    a.mov(al, 0x41)?;
    a.out(dx, al)?;
    a.xor(eax, eax)?;
    a.cpuid()?;
    a.rdtsc()?;
    a.fld1()?;
    a.jmp(turn)?;
    a.assemble(u64::from(ENTRY))
}

/// Returns the parts of a machine, with those devices in addition that need nothing of the host.
fn parts(devices: bool) -> Parts {
    if !devices {
        return Parts::default();
    }
    let nic = |text: &str| match text.parse() {
        Ok(Net::Nic(nic)) => nic,
        _ => unreachable!("it is a NIC"),
    };
    Parts {
        paravirt: true,
        console: Console::Virtio,
        nics: ["generator:rate=1K,count=50", "generator:rate=1K,count=50,model=ixgbe", "sink"].map(nic).into(),
        channels: vec!["control".to_owned()],
        ..Parts::default()
    }
}

/// Returns a profile with a model of time, and caches so small that most of a saved state is not empty lines.
fn profile(clock: Clock) -> Profile {
    let mut profile = Profile::named("skx").expect("it is built in").with_clock(clock).expect("it has caches");
    if let Some(caches) = &mut profile.caches {
        let (l1d, l1i, branches) = (&mut caches.l1d.value, &mut caches.l1i.value, &mut caches.branches.value.table);
        let l3 = caches.l3.iter_mut().map(|level| &mut level.value);
        let levels = [l1d, l1i, branches, &mut caches.l2.value].into_iter().chain(l3);
        for (level, lines) in levels.zip([16, 16, 16, 32, 64]) {
            (level.lines, level.ways) = (lines, 4);
        }
    }
    profile
}

fn machine(which: usize) -> Machine {
    let (mmu, cpus, devices, clock) = MACHINES[which];
    let profile = profile(clock);
    let platform = match mmu {
        None => Platform::Bare,
        Some(mmu) => {
            let mut switches = Switches::default();
            let switch = Switches::ALL.iter().find(|switch| switch.name == "mmu").expect("there is one");
            switches.set(switch, mmu).expect("it is one of its words");
            Platform::Hvm(switches.resolve(&profile).expect("the profile has what they need"))
        }
    };
    let code = code().expect("these instructions can be encoded");
    let (flags, end) = (1u32 << 16, ENTRY + code.len() as u32);
    let head = [0x1bad_b002, flags, 0u32.wrapping_sub(0x1bad_b002 + flags), LOAD, LOAD, end, end, ENTRY, 0, 0, 0, 0];
    let config = Config {
        memory: 4 << 20,
        cpus,
        profile,
        kernel: head.iter().flat_map(|word| word.to_le_bytes()).chain(code).collect(),
        kernel_name: String::new(),
        modules: Vec::new(),
        cmdline: String::new(),
        parts: parts(devices),
        clock: ClockSource::Virtual,
        branches: false,
        stacks: ledger::stack::Keeps::default(),
        platform,
        tier: cpu::Tier::Auto,
    };
    Machine::new(config).expect("it can be made")
}

/// Runs a machine for some slices.
fn run_on(machine: &mut Machine) {
    let mut slices = 0;
    machine.run_until(&mut Nobody, &mut |_| {
        slices += 1;
        slices > SLICES
    });
}

/// Restores a snapshot as changed by the bytes, or the bytes themselves.
pub fn run(data: &[u8]) {
    // An input that is too short ends this early.
    let _ = drive(&mut Unstructured::new(data));
}

fn drive(input: &mut Unstructured) -> Result<()> {
    let which = input.choose_index(MACHINES.len())?;
    let (original, contents) = &SAVED[which];
    let changes = input.int_in_range(0..=6u8)?;
    let mut contents = contents.clone();
    for _ in 0..changes {
        change(&mut contents, input)?;
    }
    let mut file = sealed(contents);
    let spoilt = input.ratio(1, 16u8)?;
    if spoilt {
        spoil(&mut file, input)?;
    }
    let mut copy = machine(which);
    let charges = input.choose(&[Charges::Now, Charges::Later])?;
    match copy.restore_with(&file, &[], *charges) {
        Ok(()) => {}
        Err(error) if changes == 0 && !spoilt => panic!("{error}"),
        Err(SnapshotError::HostClock) => panic!("no clock follows the host's"),
        Err(error) => {
            let _named = error.to_string();
            return Ok(());
        }
    }
    if changes == 0 {
        assert!(copy.snapshot(&[]).expect("nothing prevents it") == *original, "another snapshot");
    }
    run_on(&mut copy);
    copy.gather();
    if let Err(error) = copy.is_whole() {
        assert!(*charges == Charges::Later && (changes != 0 || spoilt), "{error}");
        return Ok(());
    }
    // An accepted state can be saved and inspected; its sums may be wrong.
    let _ = copy.snapshot(&[]);
    let _ = copy.check();
    let _ = copy.ledger(&Symbols::default()).to_bytes();
    Ok(())
}

/// Returns the file with its checksum.
fn sealed(mut contents: Contents) -> Vec<u8> {
    for part in [&mut contents.state, &mut contents.charges] {
        *part = lz4_flex::block::compress_prepend_size(part);
    }
    let content = postcard::to_allocvec(&contents).expect("it can be written to memory");
    let mut file = SAVED[0].0[..12].to_vec();
    file.extend_from_slice(&Sha256::digest(&content));
    file.extend(content);
    file
}

/// Changes bytes of a file, or replaces it.
fn spoil(file: &mut Vec<u8>, input: &mut Unstructured) -> Result<()> {
    match input.int_in_range(0..=3u8)? {
        0 => *file = input.arbitrary()?,
        1 => file.truncate(usize::from(input.arbitrary::<u16>()?)),
        2 => file[usize::from(input.arbitrary::<u8>()?)] = input.arbitrary()?,
        // The contents are arbitrary, with a correct checksum.
        _ => {
            let content: Vec<u8> = input.arbitrary()?;
            file.truncate(12);
            file.extend_from_slice(&Sha256::digest(&content));
            file.extend(content);
        }
    }
    Ok(())
}

/// Changes part of a snapshot's contents.
fn change(contents: &mut Contents, input: &mut Unstructured) -> Result<()> {
    match input.int_in_range(0..=12u8)? {
        0 => contents.machine.clear(),
        1 => contents.machine.push(input.arbitrary()?),
        2 => drop(contents.memory.pop()),
        3 => {
            let which = input.choose_index(contents.memory.len().max(1))?;
            if let Some(chunk) = contents.memory.get(which).cloned() {
                contents.memory.push(chunk);
            }
        }
        4 => {
            let which = input.choose_index(contents.memory.len().max(1))?;
            if let Some(chunk) = contents.memory.get_mut(which) {
                match input.arbitrary()? {
                    true => chunk.start = input.arbitrary()?,
                    false => chunk.compressed = input.arbitrary()?,
                }
            }
        }
        // The memory changes as a guest could change it: it holds other code.
        5 => {
            let which = input.choose_index(contents.memory.len().max(1))?;
            if let Some(chunk) = contents.memory.get_mut(which)
                && let Ok(mut bytes) = lz4_flex::block::decompress_size_prepended(&chunk.compressed)
                && !bytes.is_empty()
            {
                for _ in 0..input.int_in_range(1..=8u8)? {
                    let at = (input.arbitrary::<u32>()? as usize) % bytes.len();
                    bytes[at] = input.arbitrary()?;
                }
                chunk.compressed = lz4_flex::block::compress_prepend_size(&bytes);
            }
        }
        number => {
            let bytes = if input.ratio(1, 4u8)? { &mut contents.charges } else { &mut contents.state };
            change_bytes(number, bytes, input)?;
        }
    }
    Ok(())
}

/// Changes an encoded part of a snapshot, in the way of this number.
fn change_bytes(number: u8, bytes: &mut Vec<u8>, input: &mut Unstructured) -> Result<()> {
    match number {
        6 => bytes.truncate(usize::from(input.arbitrary::<u16>()?)),
        7 => {
            let at = usize::from(input.arbitrary::<u16>()?).min(bytes.len());
            let inserted: Vec<u8> = input.arbitrary()?;
            bytes.splice(at..at, inserted);
        }
        _ if bytes.is_empty() => {}
        // Another number, in the encoding that all numbers of more than a byte have.
        8 => {
            let at = (input.arbitrary::<u32>()? as usize) % bytes.len();
            let rest = &bytes[at..];
            let len = 1 + rest.iter().take_while(|byte| **byte & 0x80 != 0).count().min(9);
            let value = input.arbitrary::<u64>()? >> input.int_in_range(0..=63u8)?;
            let number = postcard::to_allocvec(&value).expect("it can be written to memory");
            bytes.splice(at..(at + len).min(bytes.len()), number);
        }
        _ => {
            let at = (input.arbitrary::<u32>()? as usize) % bytes.len();
            bytes[at] = input.arbitrary()?;
        }
    }
    Ok(())
}

/// Returns no change, and one of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for which in 0..MACHINES.len() as u8 {
        seeds.push(vec![which, 0, 1]);
        for kind in 0..13u8 {
            for at in [0u8, 3, 17, 40, 90, 200] {
                seeds.push(vec![which, 1, kind, at, at / 16, 0, 0, 0x81, 1, 2, 3, 4, 1]);
            }
        }
    }
    seeds
}
