//! The line of a table that a charge belongs to, and the line's name.

use super::By;
use crate::coarse::{HALF, Range};
use crate::entry::SavedSymbol;
use crate::ledger::Ledger;
use crate::{Context, Origin, Task, TaskKind};
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use x86::page::PAGE;

/// Name of the line outside all regions.
pub(super) const OUTSIDE: &str = "(outside)";

/// Returns a name that the guest chose. The report's own lines have names in brackets; a guest's name that resembles one is shown in quotation
/// marks.
pub(super) fn given(name: &str) -> Cow<'_, str> {
    let own = name.starts_with(['[', '(', '"']) || name.ends_with([']', ')']);
    if own { Cow::Owned(format!("{name:?}")) } else { Cow::Borrowed(name) }
}

/// Returns the name of a function, with its image.
pub(super) fn symbol_name(symbol: &SavedSymbol) -> String {
    let name = given(&symbol.name);
    match (symbol.module.as_str(), symbol.space.guest) {
        ("", 0) => name.into_owned(),
        // Code without a function is called by its file already.
        (module, 0) if name.strip_prefix(module).is_some_and(|rest| rest.starts_with('+')) => name.into_owned(),
        ("", _) => format!("{name} [guest]"),
        (module, 0) => format!("{name} [{module}]"),
        (module, _) => format!("{name} [guest {module}]"),
    }
}

/// The subject of a line by task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who<'a> {
    /// A task.
    Task(&'a Task),
    /// No task is known.
    Nobody,
    /// Work that interrupts any task.
    Context(Context),
}

/// A line by numbers, whose meaning depends on [`By`]. Only lines that are shown get names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line(u64, u64);

/// A function, or its substitute where no symbol is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Function {
    /// The symbol with this number.
    Symbol(u32),
    /// The folded addresses of the image that has this symbol.
    Image(u32),
    /// Code without symbols; the flag is true for a guest of a hypervisor that runs on the machine.
    Unknown(Code, bool),
}

/// The kind of code without a symbol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Code {
    /// Code of ring 3.
    User,
    /// Other code in the lower half of the address space.
    Low,
    /// Other code in the upper half.
    Kernel,
}

impl Code {
    const ALL: [Code; 3] = [Code::User, Code::Low, Code::Kernel];
}

impl Function {
    fn pack(self) -> u64 {
        match self {
            Function::Symbol(number) => u64::from(number),
            Function::Image(number) => 1 << 32 | u64::from(number),
            Function::Unknown(code, guest) => 2 << 32 | (code as u64) << 1 | u64::from(guest),
        }
    }

    fn unpack(packed: u64) -> Self {
        match packed >> 32 {
            0 => Function::Symbol(packed as u32),
            1 => Function::Image(packed as u32),
            _ => Function::Unknown(Code::ALL[(packed as u32 >> 1) as usize], packed & 1 != 0),
        }
    }
}

/// Flag in the second number of a line by address: the address stands for a range. The bits above hold a code of the range's length.
const FOLDED: u64 = 1 << 48;

/// The lines of a table of a ledger.
pub struct Lines<'a> {
    ledger: &'a Ledger,
    by: By,
    guest: bool,
    /// True if the hypervisor is guest software. Code outside its guests is then the machine's own.
    inside: bool,
    /// For each symbol or task, the first one with the same name.
    alike: Vec<u32>,
}

impl<'a> Lines<'a> {
    /// Prepares the lines of a table.
    pub fn new(ledger: &'a Ledger, by: By) -> Self {
        let mut alike = Vec::new();
        if matches!(by, By::Symbol | By::Address) {
            let mut known: FxHashMap<(&str, &str, bool, u64), u32> = FxHashMap::default();
            alike.extend(ledger.symbols.iter().zip(0u32..).map(|(symbol, number)| {
                let guest = symbol.space.guest != 0;
                let key = match by {
                    By::Address => (symbol.name.as_str(), "", guest, symbol.start),
                    _ => (symbol.name.as_str(), symbol.module.as_str(), guest, 0),
                };
                *known.entry(key).or_insert(number)
            }));
        }
        if by == By::Comm {
            let mut known: FxHashMap<&str, u32> = FxHashMap::default();
            let tasks = ledger.tasks.iter().zip(0u32..);
            alike.extend(tasks.map(|(task, number)| *known.entry(task.comm.as_str()).or_insert(number)));
        }
        let inside = ledger.origins.iter().any(|origin| origin.guest != 0);
        Self { ledger, by, guest: ledger.has_guest(), inside, alike }
    }

    /// Returns the line of a charge to (origin, address, region).
    pub fn of(&self, (origin, rip, region): (u32, u64, u32)) -> Line {
        let who = &self.ledger.origins[origin as usize];
        match self.by {
            By::Symbol | By::Address => {
                let folded = self.ledger.folded.range(region, origin, rip);
                let function = self.function(origin, rip, folded);
                match (self.by, folded) {
                    (By::Symbol, _) => Line(function.pack(), 0),
                    (_, None) => Line(rip, function.pack()),
                    (_, Some(range)) => {
                        let long = u64::from(range.len == PAGE) + 2 * u64::from(range.len == HALF);
                        Line(range.start, FOLDED * (1 + long) + function.pack())
                    }
                }
            }
            By::Space => Line(who.space, who.guest),
            By::Ring => Line(u64::from(who.level), u64::from(who.ring)),
            By::Level => Line(u64::from(who.level), 0),
            By::Region => Line(u64::from(region), 0),
            By::Task => Line(place(who), if who.context == Context::Task { who.task.0.into() } else { 0 }),
            By::Comm => {
                let own = who.context == Context::Task;
                Line(place(who), if own { self.alike[who.task.0 as usize].into() } else { 0 })
            }
        }
    }

    fn function(&self, origin: u32, rip: u64, folded: Option<Range>) -> Function {
        let who = &self.ledger.origins[origin as usize];
        match self.ledger.symbol_at(who.address_space(), rip) {
            Some(at) => {
                let (symbol, number) = (&self.ledger.symbols[at], self.alike[at]);
                let inside = |range: Range| range.start >= symbol.start && range.len <= symbol.size;
                if folded.is_none_or(inside) { Function::Symbol(number) } else { Function::Image(number) }
            }
            None => {
                let code = match who.ring {
                    3 => Code::User,
                    _ if rip & HALF == 0 => Code::Low,
                    _ => Code::Kernel,
                };
                Function::Unknown(code, who.guest != 0)
            }
        }
    }

    fn function_name(&self, function: Function) -> String {
        match function {
            Function::Symbol(number) => symbol_name(&self.ledger.symbols[number as usize]),
            Function::Image(number) => {
                let symbol = &self.ledger.symbols[number as usize];
                let guest = if symbol.space.guest != 0 { "guest " } else { "" };
                let image = if symbol.module.is_empty() { "kernel" } else { &symbol.module };
                format!("[{guest}{image}, folded]")
            }
            Function::Unknown(code, guest) => {
                let guest = if guest { "guest " } else { "" };
                match code {
                    Code::User => format!("[{guest}user code]"),
                    Code::Low => format!("[{guest}kernel, low addresses]"),
                    Code::Kernel => format!("[{guest}kernel, no symbol]"),
                }
            }
        }
    }

    /// Returns the name of a line.
    pub fn name(&self, Line(first, second): Line) -> String {
        match self.by {
            By::Symbol => self.function_name(Function::unpack(first)),
            By::Address if second < FOLDED => match Function::unpack(second) {
                Function::Symbol(number) => {
                    let symbol = &self.ledger.symbols[number as usize];
                    format!("{first:#x} {}+{:#x}", symbol.name, first - symbol.start)
                }
                _ => format!("{first:#x}"),
            },
            By::Address => {
                let name = self.function_name(Function::unpack(second % FOLDED));
                match second / FOLDED {
                    1 => format!("{first:#x} {name}, folded"),
                    2 => format!("{first:#x} page of {name}"),
                    _ => format!("all of {name}"),
                }
            }
            By::Space => {
                let root = if first == 0 { "no paging".to_owned() } else { format!("{first:#x}") };
                if second == 0 { root } else { format!("{root} of the guest at {second:#x}") }
            }
            By::Ring if !self.guest => format!("ring {second}"),
            By::Ring if first == 0 && self.inside => format!("host, ring {second}"),
            By::Ring if first == 0 => format!("hypervisor, for ring {second}"),
            By::Ring => format!("{}, ring {second}", level_name(first)),
            By::Level if first == 0 && !self.guest => "the machine itself".to_owned(),
            By::Level if first == 0 && self.inside => "host".to_owned(),
            By::Level => level_name(first),
            By::Region => match self.ledger.regions[first as usize].name.as_str() {
                "" => OUTSIDE.to_owned(),
                name => given(name).into_owned(),
            },
            By::Task | By::Comm => match self.who(Line(first, second)) {
                (Who::Nobody, inside) => no_task(inside).to_owned(),
                (Who::Context(context), inside) => context_name(context, inside).unwrap_or_default().to_owned(),
                (Who::Task(task), false) => self.task_name(task),
                (Who::Task(task), true) => format!("{}{INSIDE}", self.task_name(task)),
            },
        }
    }

    /// Returns the subject of a line by task or by name; by name, the first task with that name. The flag is true in a guest of a hypervisor that runs on
    /// the machine.
    pub fn who(&self, Line(first, second): Line) -> (Who<'a>, bool) {
        let context = Context::ALL.get((first & !PLACE_INSIDE) as usize).copied().unwrap_or_default();
        let who = match second as usize {
            _ if context != Context::Task => Who::Context(context),
            0 => Who::Nobody,
            number => Who::Task(&self.ledger.tasks[number]),
        };
        (who, first & PLACE_INSIDE != 0)
    }

    fn task_name(&self, task: &Task) -> String {
        let Task { kind, pid, tid, comm } = task;
        let comm = given(comm);
        match (self.by, kind) {
            (By::Comm, _) => comm.into_owned(),
            // All tasks of the name, or one with an unknown number.
            (_, TaskKind::Process) if *tid == 0 => comm.into_owned(),
            (_, TaskKind::KernelThread) if *tid == 0 => format!("{comm} [kernel thread]"),
            (_, TaskKind::Idle) => format!("{comm} [idle]"),
            (_, TaskKind::KernelThread) => format!("{comm} ({tid}) [kernel thread]"),
            (_, TaskKind::Process) if pid == tid => format!("{comm} ({pid})"),
            (_, TaskKind::Process) => format!("{comm} ({pid}, thread {tid})"),
        }
    }
}

/// What follows the name of a task of a guest of a hypervisor that runs on the machine.
pub(super) const INSIDE: &str = " [guest]";
/// Flag in the first number of a line by task: the task is one of such a guest.
const PLACE_INSIDE: u64 = 1 << 8;

/// Returns the first number of a line by task.
fn place(who: &Origin) -> u64 {
    who.context as u64 | if who.is_inside() { PLACE_INSIDE } else { 0 }
}

/// Returns the name of the line without a known task. `inside` is true for a guest of a hypervisor that runs on the machine.
pub(super) fn no_task(inside: bool) -> &'static str {
    if inside { "[guest, no task]" } else { "[no task]" }
}

/// Returns the name of an interrupt context, likewise.
pub(super) fn context_name(context: Context, inside: bool) -> Option<&'static str> {
    match (context, inside) {
        (Context::Task, _) => None,
        (Context::SoftInterrupt, false) => Some("[soft interrupts]"),
        (Context::Interrupt, false) => Some("[interrupts]"),
        (Context::SoftInterrupt, true) => Some("[guest soft interrupts]"),
        (Context::Interrupt, true) => Some("[guest interrupts]"),
    }
}

/// Returns the name of a level in a ledger with a guest.
fn level_name(level: u64) -> String {
    match level {
        0 => "hypervisor".to_owned(),
        1 => "guest".to_owned(),
        2 => "nested guest".to_owned(),
        _ => format!("level {level}"),
    }
}
