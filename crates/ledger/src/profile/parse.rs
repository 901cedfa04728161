//! Reads a profile's TOML, key by key, so that whatever is wrong can be named.

use super::{
    AllowedSettings, CacheFigures, Clock, Confidence, Emulator, Fetch, Identity, MemoryFigures, Microcode, Options,
    Prices, Profile, ProfileError, Provenance, Sizes, Sourced, Vendor, Virtualization, Vmx, built_in,
};
use crate::caches::{Branches, DeviceWrites, LINE, Level, Walks};
use crate::{Class, Family, Kind, Operation, Sets, TICKS_PER_CYCLE, Ticks};
use std::collections::BTreeMap;
use strum::VariantArray;
use toml::{Table, Value};
use x86::vmx::reason;

/// The version of the file's layout.
const FORMAT: i64 = 1;
/// The most figures by parameter, and the most CPUID leaves.
const MOST_ENTRIES: usize = 4096;
/// The longest text.
const LONGEST_TEXT: usize = 2000;
/// The most cycles one thing may cost: a second or so, and far from overflow in any sum.
const MOST_CYCLES: f64 = 4e9;
/// The most cycles an instruction of a class may cost: a class's price has 32 bits.
const MOST_CLASS_CYCLES: f64 = 4e6;
/// The widest physical address the machine can have.
const MOST_PHYSICAL_BITS: u8 = 46;

const TLBS: [&str; 7] = ["dtlb_4k", "dtlb_2m", "dtlb_1g", "itlb_4k", "itlb_2m", "stlb", "stlb_1g"];

/// A table with the way to it.
struct At<'a> {
    file: &'a str,
    path: String,
    table: &'a Table,
}

impl<'a> At<'a> {
    fn key(&self, key: &str) -> String {
        let key: String = key.chars().take(64).collect();
        if self.path.is_empty() { key } else { format!("{}.{key}", self.path) }
    }

    fn error(&self, key: &str, reason: impl Into<String>) -> ProfileError {
        ProfileError::Value { file: self.file.to_owned(), key: self.key(key), reason: reason.into() }
    }

    fn get(&self, key: &str) -> Result<&'a Value, ProfileError> {
        self.table.get(key).ok_or_else(|| self.error(key, "is missing"))
    }

    fn table(&self, key: &str) -> Result<At<'a>, ProfileError> {
        match self.get(key)? {
            Value::Table(table) => Ok(At { file: self.file, path: self.key(key), table }),
            other => Err(self.error(key, format!("should be a table, is {}", a(other)))),
        }
    }

    fn text(&self, key: &str) -> Result<String, ProfileError> {
        match self.get(key)? {
            Value::String(text) if text.trim().is_empty() => Err(self.error(key, "is empty")),
            Value::String(text) if text.len() > LONGEST_TEXT => Err(self.error(key, "is too long")),
            Value::String(text) => Ok(text.split_whitespace().collect::<Vec<_>>().join(" ")),
            other => Err(self.error(key, format!("should be a string, is {}", a(other)))),
        }
    }

    fn integer(&self, key: &str, least: i64, most: i64) -> Result<i64, ProfileError> {
        match self.get(key)? {
            Value::Integer(n) if (least..=most).contains(n) => Ok(*n),
            Value::Integer(n) => Err(self.error(key, format!("{n} is not between {least} and {most}"))),
            other => Err(self.error(key, format!("should be an integer, is {}", a(other)))),
        }
    }

    fn boolean(&self, key: &str) -> Result<bool, ProfileError> {
        match self.get(key)? {
            Value::Boolean(b) => Ok(*b),
            other => Err(self.error(key, format!("should be a boolean, is {}", a(other)))),
        }
    }

    fn ticks(&self, key: &str, most_cycles: f64) -> Result<Ticks, ProfileError> {
        let cycles = match self.get(key)? {
            Value::Integer(n) => *n as f64,
            Value::Float(x) => *x,
            other => return Err(self.error(key, format!("should be a number, is {}", a(other)))),
        };
        if !(0.0..=most_cycles).contains(&cycles) {
            return Err(self.error(key, format!("{cycles} is not between 0 and {most_cycles}")));
        }
        let ticks = (cycles * TICKS_PER_CYCLE as f64).round();
        if (ticks - cycles * TICKS_PER_CYCLE as f64).abs() > 1e-6 * ticks.max(1.0) {
            return Err(self.error(key, format!("{cycles} is finer than a thousandth")));
        }
        Ok(ticks as Ticks)
    }

    fn from(&self) -> Result<Provenance, ProfileError> {
        let Ok(confidence) = self.text("confidence")?.parse() else {
            let all: Vec<&str> = Confidence::ALL.iter().map(|level| level.name()).collect();
            return Err(self.error("confidence", format!("should be one of {}", all.join(", "))));
        };
        Ok(Provenance { source: self.text("source")?, confidence })
    }

    /// Refuses keys that mean nothing: they are most likely misspelt.
    fn only(&self, known: &[&str]) -> Result<(), ProfileError> {
        match self.table.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => Err(self.error(key, "is not a key of a profile")),
            None => Ok(()),
        }
    }

    fn figure(&self, key: &str, most_cycles: f64, may_be_free: bool) -> Result<Sourced<Ticks>, ProfileError> {
        let at = self.table(key)?;
        at.only(&["cycles", "source", "confidence"])?;
        let value = at.ticks("cycles", most_cycles)?;
        if value == 0 && !may_be_free {
            return Err(at.error("cycles", "should be at least 0.001, or a guest could loop while no time passes"));
        }
        Ok(Sourced { value, from: at.from()? })
    }
}

fn a(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a string",
        Value::Integer(_) => "an integer",
        Value::Float(_) => "a float",
        Value::Boolean(_) => "a boolean",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "an array",
        Value::Table(_) => "a table",
    }
}

fn table_of(file: &str, text: &str) -> Result<Table, ProfileError> {
    text.parse::<Table>().map_err(|error| {
        let line =
            error.span().map_or(0, |span| text.as_bytes()[..span.start.min(text.len())].split(|b| *b == b'\n').count());
        ProfileError::Syntax { file: file.to_owned(), reason: format!("line {line}: {}", error.message()) }
    })
}

/// Adds to `table` what only `base` has, in tables within tables too. A figure is taken as a whole.
fn inherit(table: &mut Table, base: &Table) {
    for (key, value) in base {
        match (table.get_mut(key), value) {
            (Some(Value::Table(mine)), Value::Table(theirs)) if !theirs.contains_key("source") => inherit(mine, theirs),
            (Some(_), _) => {}
            (None, _) => {
                table.insert(key.clone(), value.clone());
            }
        }
    }
}

pub(super) fn profile(file: &str, text: &str) -> Result<Profile, ProfileError> {
    let mut table = table_of(file, text)?;
    if let Some(base) = table.remove("base") {
        let error = |reason: String| ProfileError::Value { file: file.to_owned(), key: "base".to_owned(), reason };
        let Value::String(name) = base else { return Err(error(format!("should be a string, is {}", a(&base)))) };
        // A file is no base.
        let text = built_in(&name).map_err(|unknown| match unknown {
            ProfileError::Unknown { name, known } => error(format!("'{name}' is none of {known}")),
            other => other,
        })?;
        let base = table_of(&name, text)?;
        if base.contains_key("base") {
            return Err(error(format!("{name} has a base itself")));
        }
        inherit(&mut table, &base);
    }
    read(&At { file, path: String::new(), table: &table })
}

fn read(top: &At) -> Result<Profile, ProfileError> {
    top.only(&[
        "format",
        "name",
        "title",
        "notes",
        "synthetic",
        "frequency",
        "physical_address",
        "virtualization",
        "vmx",
        "arch_capabilities",
        "host",
        "clock",
        "core",
        "cache",
        "tlb",
        "predictor",
        "class",
        "event",
        "event_by_parameter",
        "operation",
        "emulated",
        "cpuid",
        "microcode",
    ])?;
    top.integer("format", FORMAT, FORMAT)?;
    let name = top.text("name")?;
    if name.len() > 32 || !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        return Err(top.error("name", "should be at most 32 lower-case letters, digits and hyphens"));
    }
    let synthetic = top.table.contains_key("synthetic") && top.boolean("synthetic")?;
    let (raw_cpuid, cpuid_from, vendor) = cpuid(&top.table("cpuid")?)?;
    let caches = match top.table.contains_key("cache") {
        true => Some(caches(&top.table("cache")?)?),
        false => None,
    };
    let clock = clock(top)?;
    if clock == Clock::Core && caches.is_none() {
        return Err(top.error("clock", "the model 'core' needs the table [cache]"));
    }
    let (tsc_hz, boost_hz) = frequencies(&top.table("frequency")?)?;
    let profile = Profile {
        identity: Identity { name: name.clone(), vendor },
        moved_to: None,
        name,
        title: top.text("title")?,
        synthetic,
        notes: top.text("notes")?,
        vendor,
        tsc_hz,
        boost_hz,
        physical_bits: sized(top, "physical_address", "bits", 32, i64::from(MOST_PHYSICAL_BITS))?.map(|n| n as u8),
        virtualization: virtualization(&top.table("virtualization")?)?,
        vmx: match top.table.contains_key("vmx") {
            true => Some(vmx(&top.table("vmx")?)?),
            false => None,
        },
        host_xcr0: match top.table.contains_key("host") {
            true => Some(sized(top, "host", "xcr0", 0, i64::MAX)?.map(|n| n as u64)),
            false => None,
        },
        arch_capabilities: match top.table.contains_key("arch_capabilities") {
            true => Some(sized(top, "arch_capabilities", "value", 0, i64::MAX)?.map(|n| n as u64)),
            false => None,
        },
        clock,
        names_clock: top.table.contains_key("clock"),
        core: match top.table.contains_key("core") {
            true => Some(core(&top.table("core")?)?),
            false => None,
        },
        sizes: sizes(top)?,
        caches,
        prices: prices(top, operations(&top.table("operation")?)?, has_event_price)?,
        emulator: emulator(&top.table("emulated")?)?,
        cpuid_from,
        raw_cpuid,
        microcode: match top.table.contains_key("microcode") {
            true => Some(microcode(&top.table("microcode")?)?),
            false => None,
        },
        options: Options::default(),
    };
    Ok(profile.with_updates(true))
}

fn microcode(at: &At) -> Result<Microcode, ProfileError> {
    at.only(&["revision", "unpatched_revision", "cpuid", "arch_capabilities", "source", "confidence"])?;
    let revision = |key| at.integer(key, 0, u32::MAX.into()).map(|number| number as u32);
    Ok(Microcode {
        revision: revision("revision")?,
        unpatched_revision: revision("unpatched_revision")?,
        cpuid: rows(at, "cpuid")?,
        arch_capabilities: at.integer("arch_capabilities", 0, i64::MAX)? as u64,
        from: at.from()?,
    })
}

impl<T> Sourced<T> {
    fn map<U>(self, f: impl FnOnce(T) -> U) -> Sourced<U> {
        Sourced { value: f(self.value), from: self.from }
    }
}

/// Returns the base frequency, and the highest one if the processor has a higher one.
fn frequencies(at: &At) -> Result<(Sourced<u64>, Option<Sourced<u64>>), ProfileError> {
    const MOST: i64 = 100_000_000_000;
    at.only(&["hz", "source", "confidence", "boost"])?;
    let base = at.integer("hz", 1_000_000, MOST)?;
    let boost = match at.table.contains_key("boost") {
        true => Some(sized(at, "boost", "hz", base, MOST)?.map(|n| n as u64)),
        false => None,
    };
    Ok((Sourced { value: base as u64, from: at.from()? }, boost))
}

fn sized(top: &At, key: &str, value: &str, least: i64, most: i64) -> Result<Sourced<i64>, ProfileError> {
    let at = top.table(key)?;
    at.only(&[value, "source", "confidence"])?;
    Ok(Sourced { value: at.integer(value, least, most)?, from: at.from()? })
}

fn virtualization(at: &At) -> Result<Sourced<Virtualization>, ProfileError> {
    at.only(&["features", "cr3_targets", "source", "confidence"])?;
    let mut value = Virtualization { cr3_targets: at.integer("cr3_targets", 0, 4)? as u8, ..Virtualization::default() };
    let known = value.features().map(|feature| feature.0).join(", ");
    let Value::Array(names) = at.get("features")? else { return Err(at.error("features", "should be an array")) };
    for name in names {
        match value.features().into_iter().find(|feature| name.as_str() == Some(feature.0)) {
            Some((_, there)) => *there = true,
            None => return Err(at.error("features", format!("should be of {known}"))),
        }
    }
    let needs = [
        ("ept_ad", value.ept_ad, "ept", value.ept),
        ("ept_1g", value.ept_1g, "ept", value.ept),
        ("ept_execute_only", value.ept_execute_only, "ept", value.ept),
        ("unrestricted_guest", value.unrestricted_guest, "ept", value.ept),
        ("invvpid", value.invvpid, "vpid", value.vpid),
    ];
    match needs.into_iter().find(|(_, has, _, there)| *has && !there) {
        Some((name, _, needed, _)) => Err(at.error("features", format!("{name} needs {needed}"))),
        None => Ok(Sourced { value, from: at.from()? }),
    }
}

/// Reads the contents of the VMX capability MSRs.
fn vmx(at: &At) -> Result<Vmx, ProfileError> {
    const WORD: i64 = u32::MAX as i64;
    at.only(&["revision", "pin", "primary", "secondary", "exit", "entry", "misc", "ept_vpid"])?;
    let controls = |key: &str| {
        let at = at.table(key)?;
        at.only(&["allowed_0", "true_allowed_0", "allowed_1", "source", "confidence"])?;
        let word = |key: &str| at.integer(key, 0, WORD).map(|n| n as u32);
        let allowed_0 = word("allowed_0")?;
        let true_allowed_0 = match at.table.contains_key("true_allowed_0") {
            true => Some(word("true_allowed_0")?),
            false => None,
        };
        let value = AllowedSettings { allowed_0, true_allowed_0, allowed_1: word("allowed_1")? };
        if (allowed_0 | true_allowed_0.unwrap_or(0)) & !value.allowed_1 != 0
            || true_allowed_0.unwrap_or(0) & !allowed_0 != 0
        {
            return Err(
                at.error("allowed_1", "should have every bit of allowed_0, and that every bit of true_allowed_0")
            );
        }
        Ok(Sourced { value, from: at.from()? })
    };
    Ok(Vmx {
        revision: sized(at, "revision", "value", 0, i64::from(i32::MAX))?.map(|n| n as u32),
        pin: controls("pin")?,
        primary: controls("primary")?,
        secondary: controls("secondary")?,
        exit: controls("exit")?,
        entry: controls("entry")?,
        misc: sized(at, "misc", "value", 0, WORD)?.map(|n| n as u64),
        ept_vpid: sized(at, "ept_vpid", "value", 0, i64::MAX)?.map(|n| n as u64),
    })
}

/// Reads the name of the model of time. It may be missing.
fn clock(top: &At) -> Result<Clock, ProfileError> {
    if !top.table.contains_key("clock") {
        return Ok(Clock::default());
    }
    top.text("clock")?.parse().map_err(|_| {
        let known: Vec<&str> = Clock::VARIANTS.iter().map(Into::into).collect();
        top.error("clock", format!("should be one of {}", known.join(", ")))
    })
}

fn sizes(top: &At) -> Result<Sizes, ProfileError> {
    let tlb = top.table("tlb")?;
    tlb.only(&TLBS)?;
    let mut sizes = Vec::with_capacity(TLBS.len());
    for name in TLBS {
        let at = tlb.table(name)?;
        at.only(&["entries", "ways", "source", "confidence"])?;
        let entries = at.integer("entries", 0, 16384)? as u16;
        let ways = at.integer("ways", 0, i64::from(entries))? as u16;
        if entries != 0 && (ways == 0 || !entries.is_multiple_of(ways)) {
            return Err(at.error("ways", format!("{ways} does not divide {entries} entries")));
        }
        sizes.push((name, Sourced { value: Sets { entries, ways }, from: at.from()? }));
    }
    let predictor = top.table("predictor")?;
    predictor.only(&["target_cache", "return_stack"])?;
    Ok(Sizes {
        tlb: sizes.try_into().map_err(|_| top.error("tlb", "is incomplete"))?,
        target_cache: sized(&predictor, "target_cache", "entries", 1, 32768)?.map(|n| n as u16),
        return_stack: sized(&predictor, "return_stack", "entries", 1, 1024)?.map(|n| n as u16),
    })
}

/// Reads the name of the core.
fn core(at: &At) -> Result<Sourced<String>, ProfileError> {
    at.only(&["table", "source", "confidence"])?;
    Ok(Sourced { value: at.text("table")?, from: at.from()? })
}

/// The largest cache, in bytes.
const LARGEST_CACHE: i64 = 1 << 30;
/// The most cycles that a line takes.
const MOST_LATENCY: f64 = 1e5;

/// The most lines of code whose branches the front end knows.
const MOST_KNOWN_LINES: i64 = 1 << 20;

/// The most entries of a paging-structure cache.
const MOST_STRUCTURES: i64 = 1024;

/// Reads the number of ways of so many lines.
fn sets(at: &At, lines: i64) -> Result<Level, ProfileError> {
    let ways = at.integer("ways", 1, lines.min(128))?;
    if lines % ways != 0 {
        return Err(at.error("ways", format!("{ways} ways do not divide {lines} lines")));
    }
    Ok(Level { lines: lines as u32, ways: ways as u16, latency: 0, transfer: 0, same_set: 0 })
}

/// Reads the ticks for each of many lines that go to the same set of the first level. Without the key, lines of a set do not wait for each other.
fn same_set(at: &At, latency: Ticks) -> Result<Ticks, ProfileError> {
    if !at.table.contains_key("same_set") {
        return Ok(0);
    }
    let ticks = at.ticks("same_set", MOST_LATENCY)?;
    if ticks > latency {
        return Err(at.error("same_set", "should not be more than the latency"));
    }
    Ok(ticks)
}

/// The keys of the table of caches.
const CACHES: [&str; 13] = [
    "l1d",
    "l1i",
    "l2",
    "l3",
    "memory",
    "window",
    "fill_buffers",
    "fetch",
    "branches",
    "walks",
    "cores",
    "devices",
    "splits",
];

/// Reads the caches and the way to memory.
fn caches(top: &At) -> Result<CacheFigures, ProfileError> {
    top.only(&CACHES)?;
    let level = |key: &str, transfer: bool| {
        let at = top.table(key)?;
        let own: &[&str] = if transfer { &["transfer", "same_set"] } else { &["set_loads"] };
        at.only(&[&["bytes", "ways", "latency", "source", "confidence"], own].concat())?;
        let lines = at.integer("bytes", LINE as i64, LARGEST_CACHE)? / LINE as i64;
        let transfer = if transfer { at.ticks("transfer", MOST_LATENCY)? } else { 0 };
        let latency = at.ticks("latency", MOST_LATENCY)?;
        let value = Level { latency, transfer, same_set: same_set(&at, latency)?, ..sets(&at, lines)? };
        Ok(Sourced { value, from: at.from()? })
    };
    let code = top.table("l1i")?;
    code.only(&["bytes", "ways", "source", "confidence"])?;
    let code_lines = code.integer("bytes", LINE as i64, LARGEST_CACHE)? / LINE as i64;
    let fetch = top.table("fetch")?;
    fetch.only(&["transfer", "ahead", "scattered", "sequential", "source", "confidence"])?;
    let branches = top.table("branches")?;
    branches.only(&["lines", "ways", "far", "cycles", "source", "confidence"])?;
    let known_lines = branches.integer("lines", 1, MOST_KNOWN_LINES)?;
    let walks = top.table("walks")?;
    walks.only(&["pde", "pdpte", "pml4e", "nested", "walkers", "source", "confidence"])?;
    let structures = |key: &str, least| Ok(walks.integer(key, least, MOST_STRUCTURES)? as u16);
    let devices = top.table("devices")?;
    devices.only(&["writes", "source", "confidence"])?;
    let writes = devices.text("writes")?.parse().map_err(|_| {
        let known: Vec<&str> = DeviceWrites::VARIANTS.iter().map(Into::into).collect();
        devices.error("writes", format!("should be one of {}", known.join(", ")))
    })?;
    if writes == DeviceWrites::L3 && !top.table.contains_key("l3") {
        return Err(devices.error("writes", "should be memory: there is no third level"));
    }
    let splits = top.table("splits")?;
    splits.only(&["line", "page", "source", "confidence"])?;
    let memory = top.table("memory")?;
    memory.only(&["latency", "transfer", "stream", "same_set", "source", "confidence"])?;
    let l1d = top.table("l1d")?;
    let set_loads = match l1d.table.contains_key("set_loads") {
        true => l1d.integer("set_loads", 1, 1024)? as u16,
        false => 0,
    };
    let figures = CacheFigures {
        l1d: level("l1d", false)?,
        set_loads,
        l1i: Sourced { value: sets(&code, code_lines)?, from: code.from()? },
        fetch: Sourced {
            value: Fetch {
                transfer: fetch.ticks("transfer", MOST_LATENCY)?,
                ahead: fetch.ticks("ahead", MOST_LATENCY)?,
                scattered: fetch.integer("scattered", 1, 1024)? as u16,
                sequential: fetch.integer("sequential", 1, 1024)? as u16,
            },
            from: fetch.from()?,
        },
        branches: Sourced {
            value: Branches {
                table: Level { latency: branches.ticks("cycles", MOST_LATENCY)?, ..sets(&branches, known_lines)? },
                far: branches.integer("far", 1, 2)? as u16,
            },
            from: branches.from()?,
        },
        l2: level("l2", true)?,
        l3: match top.table.contains_key("l3") {
            true => Some(level("l3", true)?),
            false => None,
        },
        memory: Sourced {
            value: MemoryFigures {
                latency: memory.ticks("latency", MOST_LATENCY)?,
                transfer: memory.ticks("transfer", MOST_LATENCY)?,
                stream: memory.ticks("stream", MOST_LATENCY)?,
                same_set: same_set(&memory, memory.ticks("latency", MOST_LATENCY)?)?,
            },
            from: memory.from()?,
        },
        between_cores: top.figure("cores", MOST_LATENCY, true)?,
        devices: Sourced { value: writes, from: devices.from()? },
        splits: Sourced {
            value: [splits.ticks("line", MOST_LATENCY)?, splits.ticks("page", MOST_LATENCY)?],
            from: splits.from()?,
        },
        window: top.figure("window", MOST_LATENCY, true)?,
        fill_buffers: sized(top, "fill_buffers", "entries", 1, 1024)?.map(|n| n as u16),
        walks: Sourced {
            value: Walks {
                pde: structures("pde", 0)?,
                pdpte: structures("pdpte", 0)?,
                pml4e: structures("pml4e", 0)?,
                nested: structures("nested", 0)?,
                walkers: structures("walkers", 1)?,
            },
            from: walks.from()?,
        },
    };
    let l3 = figures.l3.as_ref().map(|level| level.value.latency);
    let latencies =
        [Some(figures.l1d.value.latency), Some(figures.l2.value.latency), l3, Some(figures.memory.value.latency)];
    if !latencies.into_iter().flatten().is_sorted() {
        return Err(top.error("memory", "a level farther from the core should not have a lower latency"));
    }
    Ok(figures)
}

fn classes(at: &At) -> Result<Vec<Sourced<Ticks>>, ProfileError> {
    at.only(&Class::ALL.map(Class::name))?;
    // A class may be free only if an event pays for its instructions.
    let figure = |class: Class| at.figure(class.name(), MOST_CLASS_CYCLES, class == Class::System);
    Class::ALL.into_iter().map(figure).collect()
}

/// Returns true for families with a price in the tables of events. Others have those of classes, operations or caches.
fn has_event_price(family: Family) -> bool {
    !matches!(family, Family::Instruction | Family::Operation | Family::UnknownBranch | Family::Split)
        && !family.is_cache_miss()
}

/// The tables of prices in `at`, with those of operations, for the families that are `charged`.
fn prices(
    at: &At,
    operations: BTreeMap<Kind, Sourced<Ticks>>,
    charged: fn(Family) -> bool,
) -> Result<Prices, ProfileError> {
    Ok(Prices {
        classes: classes(&at.table("class")?)?,
        families: families(&at.table("event")?, charged)?,
        kinds: kinds(&at.table("event_by_parameter")?, operations, charged)?,
    })
}

fn families(at: &At, charged: fn(Family) -> bool) -> Result<Vec<Option<Sourced<Ticks>>>, ProfileError> {
    let names = Family::ALL.into_iter().filter(|family| charged(*family)).map(Family::name);
    at.only(&names.collect::<Vec<_>>())?;
    let figure = |family: Family| match charged(family) {
        true => at.figure(family.name(), MOST_CYCLES, !family.transfers_control()).map(Some),
        false => Ok(None),
    };
    Family::ALL.into_iter().map(figure).collect()
}

fn emulator(at: &At) -> Result<Emulator, ProfileError> {
    at.only(&["title", "keeps_global", "keeps_large", "class", "event", "event_by_parameter", "tlb", "predictor"])?;
    // An emulated processor has no hypervisor of its own.
    let charged = |family: Family| has_event_price(family) && !family.is_hypervisor();
    let keeps = |key: &str| {
        let at = at.table(key)?;
        at.only(&["value", "source", "confidence"])?;
        Ok(Sourced { value: at.boolean("value")?, from: at.from()? })
    };
    Ok(Emulator {
        title: at.text("title")?,
        prices: prices(at, BTreeMap::new(), charged)?,
        sizes: sizes(at)?,
        keeps_global: keeps("keeps_global")?,
        keeps_large: keeps("keeps_large")?,
    })
}

/// Every operation has a price. None may be free: a hypervisor could work without end for a guest while no time passes.
fn operations(at: &At) -> Result<BTreeMap<Kind, Sourced<Ticks>>, ProfileError> {
    at.only(&Operation::ALL.map(Operation::name))?;
    let figure =
        |operation: Operation| Ok((Kind::operation(operation), at.figure(operation.name(), MOST_CYCLES, false)?));
    Operation::ALL.into_iter().map(figure).collect()
}

/// The figures by parameter, besides those in `kinds`.
fn kinds(
    at: &At,
    mut kinds: BTreeMap<Kind, Sourced<Ticks>>,
    charged: fn(Family) -> bool,
) -> Result<BTreeMap<Kind, Sourced<Ticks>>, ProfileError> {
    for family_name in at.table.keys() {
        let family = match Family::from_name(family_name) {
            Some(family) if charged(family) => family,
            _ => return Err(at.error(family_name, "is not a family of events")),
        };
        let figures = at.table(family_name)?;
        for key in figures.table.keys() {
            let kind = kind(family, key).ok_or_else(|| figures.error(key, "is not a parameter of the family"))?;
            if kinds.insert(kind, figures.figure(key, MOST_CYCLES, !family.transfers_control())?).is_some() {
                return Err(figures.error(key, "is given twice"));
            }
            if kinds.len() > MOST_ENTRIES {
                return Err(figures.error(key, "is one too many"));
            }
        }
    }
    Ok(kinds)
}

/// A parameter as profiles write it: decimal or with 0x; for CPUID also `0xd:7`, sub-leaf 7 of leaf 0xD; for exits the reason's name.
fn kind(family: Family, text: &str) -> Option<Kind> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    match (family, text.split_once(':')) {
        (Family::Cpuid, Some((leaf, subleaf))) => {
            let (leaf, subleaf) = (number(leaf)?, number(subleaf)?);
            (leaf == 0xd && subleaf < Kind::CPUID_SUBLEAVES).then(|| Kind::cpuid(leaf, subleaf))
        }
        (Family::VmExit | Family::VmxInstruction, None) => Some(Kind::new(family, reason::number(text)?)),
        (Family::Cpuid, None) => Some(Kind::cpuid(number(text)?, 0)),
        (_, Some(_)) => None,
        (_, None) => Some(Kind::new(family, number(text)?)),
    }
}

type Cpuid = (Vec<[u32; 6]>, Provenance, Vendor);

fn cpuid(at: &At) -> Result<Cpuid, ProfileError> {
    at.only(&["source", "confidence", "leaves"])?;
    let raw = rows(at, "leaves")?;
    let vendor = match raw.first() {
        Some([0, 0, _, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]) => Vendor::Intel,
        Some([0, 0, _, 0x6874_7541, 0x444d_4163, 0x6974_6e65]) => Vendor::Amd,
        _ => return Err(at.error("leaves", "leaf 0 should name GenuineIntel or AuthenticAMD")),
    };
    Ok((raw, at.from()?, vendor))
}

/// Returns rows of CPUID, sorted by leaf and sub-leaf.
fn rows(at: &At, key: &str) -> Result<Vec<[u32; 6]>, ProfileError> {
    let Value::Array(leaves) = at.get(key)? else { return Err(at.error(key, "should be an array")) };
    if leaves.len() > MOST_ENTRIES {
        return Err(at.error(key, "are too many"));
    }
    let mut raw = Vec::with_capacity(leaves.len());
    for (i, leaf) in leaves.iter().enumerate() {
        let numbers: Option<Vec<u32>> = leaf
            .as_array()
            .filter(|array| array.len() == 6)
            .and_then(|array| array.iter().map(|v| v.as_integer().and_then(|n| u32::try_from(n).ok())).collect());
        let Some(Ok(entry)) = numbers.map(<[u32; 6]>::try_from) else {
            let reason = "should be [leaf, sub-leaf, EAX, EBX, ECX, EDX], each of 32 bits";
            return Err(at.error(&format!("{key}[{i}]"), reason));
        };
        raw.push(entry);
    }
    raw.sort_unstable();
    if let Some(twice) = raw.windows(2).find(|pair| pair[0][..2] == pair[1][..2]) {
        return Err(at.error(key, format!("leaf {:#x} sub-leaf {:#x} is there twice", twice[0][0], twice[0][1])));
    }
    Ok(raw)
}
