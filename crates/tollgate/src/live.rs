//! `run --top`: what the guest spends its time on while it runs, as perf top and kvm_stat show it.
//!
//! Each picture is the difference between two ledgers of the same run. Making one does not change the run: its ledger is the same with
//! and without `--top`.

use crate::streams::Stream;
use crate::table::{
    Align::{Left, Right},
    cycles, figure, number, seconds, share, shortened, shown, table, title,
};
use crate::top_down;
use ledger::summary::By;
use ledger::symbols::Symbol;
use ledger::{Amount, Kind, Ledger, Ticks};
use machine::Machine;
use nix::time::{ClockId, clock_gettime};
use rustix::termios::tcgetwinsize;
use std::collections::{BTreeMap, VecDeque};
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Share of the host's time that pictures may take: a long run has a large ledger.
const EFFORT: u32 = 10;
/// Lines of the guest's serial line under a picture.
const SERIAL_LINES: usize = 4;
/// Longest line of the guest's serial line, in characters.
const SERIAL_WIDTH: usize = 200;
/// Lines of a picture that are neither rows of tables nor the guest's: titles, headings, and the lines in front of the tables.
const OTHER_LINES: usize = 15;
/// Rows of each table when the picture goes to a file or a pipe.
const ROWS: usize = 10;
/// Rows of the other tables from which the one of tasks is drawn.
const ROWS_WITH_TASKS: usize = 5;
/// Clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[J";
/// Switches a terminal to another screen, and back.
const SCREENS: [&str; 2] = ["\x1b[?1049h", "\x1b[?1049l"];

/// The charges of a run up to a moment.
#[derive(Clone)]
struct Seen {
    at: Instant,
    clock: Ticks,
    /// Instructions and ticks without halted time.
    all: Amount,
    functions: BTreeMap<String, Amount>,
    tasks: BTreeMap<String, Amount>,
    crossings: BTreeMap<Kind, Amount>,
}

impl Seen {
    fn of(ledger: &Ledger, at: Instant) -> Self {
        let selection = ledger.all();
        let functions = selection.busy(By::Symbol);
        let all = functions.values().fold(Amount::default(), |mut sum, amount| {
            sum.add(*amount);
            sum
        });
        let crossings = selection.kinds().into_iter().filter(|(kind, _)| kind.family.is_crossing()).collect();
        let clock = ledger.header.clocks.iter().copied().max().unwrap_or_default();
        Self { at, clock, all, functions, tasks: selection.busy(By::Comm), crossings }
    }
}

/// Returns what has been added to each line of a table since then, the largest time first, and equal ones by name.
fn since<K: Ord + Clone>(before: &BTreeMap<K, Amount>, now: &BTreeMap<K, Amount>) -> Vec<(K, Amount)> {
    let more = |(key, amount): (&K, &Amount)| {
        let old = before.get(key).copied().unwrap_or_default();
        let count = amount.count.saturating_sub(old.count);
        let ticks = amount.ticks.saturating_sub(old.ticks);
        (count != 0 || ticks != 0).then(|| (key.clone(), Amount { count, ticks }))
    };
    let mut lines: Vec<_> = now.iter().filter_map(more).collect();
    lines.sort_by(|(a, x), (b, y)| y.ticks.cmp(&x.ticks).then_with(|| a.cmp(b)));
    lines
}

/// Draws a picture of the time between two moments, with so many rows of each table.
fn picture(ledger: &Ledger, before: &Seen, now: &Seen, rows: usize) -> String {
    let header = &ledger.header;
    let instructions = now.all.count.saturating_sub(before.all.count);
    let ticks = now.all.ticks.saturating_sub(before.all.ticks);
    let host = now.at.saturating_duration_since(before.at).as_secs_f64().max(1e-9);
    let (clock, passed) = (seconds(now.clock, header.tsc_hz), seconds(now.clock - before.clock, header.tsc_hz));
    let model = header.metadata.get("model").map(|model| format!(", {model}")).unwrap_or_default();
    let mut out =
        format!("{}{model}: virtual time {clock:.4} s, +{passed:.4} s in {host:.1} s of the host\n", header.profile);
    out.push_str(&format!(
        "{} instructions, {} cycles a second; {} cycles for each instruction\n",
        number((instructions as f64 / host) as u64),
        number((seconds(ticks, 1) / host) as u64),
        figure(seconds(ticks, 1) / instructions.max(1) as f64),
    ));
    if let Some(line) = top_down::line(ledger) {
        out.push_str(&format!("since the beginning: {line}\n"));
    }
    let named = |name: &str, lines: Vec<(String, Amount)>, most: usize, out: &mut String| {
        let cells = lines.iter().take(most).map(|(name, amount)| {
            vec![share(amount.ticks, ticks), cycles(amount.ticks), number(amount.count), shortened(name)]
        });
        let cells: Vec<_> = cells.collect();
        title(out, name, cells.len(), lines.len());
        table(out, &[("share", Right), ("cycles", Right), ("instructions", Right), ("name", Left)], &cells);
    };
    named("Functions", since(&before.functions, &now.functions), rows, &mut out);
    let crossings = since(&before.crossings, &now.crossings);
    let cells = crossings.iter().take(rows).map(|(kind, amount)| {
        let rate = if passed > 0.0 { number((amount.count as f64 / passed) as u64) } else { "-".to_owned() };
        let each = figure(seconds(amount.ticks, 1) / amount.count.max(1) as f64);
        vec![share(amount.ticks, ticks), number(amount.count), rate, each, ledger.describe(*kind)]
    });
    let cells: Vec<_> = cells.collect();
    title(&mut out, "Crossings", cells.len(), crossings.len());
    let headings = [("share", Right), ("count", Right), ("per virtual second", Right), ("cycles each", Right)];
    table(&mut out, &headings.into_iter().chain([("kind", Left)]).collect::<Vec<_>>(), &cells);
    let tasks = since(&before.tasks, &now.tasks);
    if tasks.len() > 1 && rows >= ROWS_WITH_TASKS {
        named("Tasks", tasks, rows / 2, &mut out);
    }
    shown(&out).into_owned()
}

/// The last lines that the guest has printed, which a picture shows.
#[derive(Default)]
pub struct Serial(Mutex<Lines>);

#[derive(Default)]
struct Lines {
    whole: VecDeque<String>,
    open: String,
}

impl Serial {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        // Whoever has panicked has left complete characters.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what the guest prints. Control characters are dropped, so that the guest does not control the user's terminal.
    pub fn put(&self, bytes: &[u8]) {
        let mut lines = self.lines();
        let Lines { whole, open } = &mut *lines;
        for c in String::from_utf8_lossy(bytes).chars() {
            match c {
                '\n' => {
                    whole.push_back(std::mem::take(open));
                    if whole.len() > SERIAL_LINES {
                        whole.pop_front();
                    }
                }
                c if c.is_control() => {}
                c if open.len() < SERIAL_WIDTH => open.push(c),
                _ => {}
            }
        }
    }

    /// Returns the last lines, with the one that is not complete.
    fn last(&self) -> Vec<String> {
        let lines = self.lines();
        let open = Some(&lines.open).filter(|open| !open.is_empty());
        let all: Vec<_> = lines.whole.iter().chain(open).cloned().collect();
        all[all.len().saturating_sub(SERIAL_LINES)..].to_vec()
    }
}

/// The user's terminal, with a screen of its own while the value lives.
struct Screen {
    rows: usize,
    columns: usize,
}

impl Screen {
    /// Takes standard error's terminal, if it is one.
    fn open() -> Option<Self> {
        if !std::io::stderr().is_terminal() {
            return None;
        }
        let size = tcgetwinsize(rustix::stdio::stderr()).ok();
        let or = |value: Option<u16>, otherwise| value.filter(|value| *value != 0).map_or(otherwise, usize::from);
        let screen = Self { rows: or(size.map(|s| s.ws_row), 24), columns: or(size.map(|s| s.ws_col), 80) };
        screen.put(SCREENS[0]);
        Some(screen)
    }

    /// Writes to the terminal. A terminal that has gone away does not end the run.
    fn put(&self, text: &str) {
        let _ = Stream::Errors.put(text.as_bytes());
    }

    fn show(&self, picture: &str, serial: &Serial) {
        let cut = |line: &str| line.chars().take(self.columns).collect::<String>() + "\r\n";
        let room = self.rows.saturating_sub(SERIAL_LINES + 1);
        let mut text = CLEAR.to_owned();
        text.extend(picture.lines().take(room).map(cut));
        text.extend(serial.last().iter().map(|line| cut(line)));
        self.put(text.trim_end());
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.put(SCREENS[1]);
    }
}

/// Pictures of a run.
pub struct Live {
    every: Duration,
    next: Instant,
    /// The beginning of the run, and the moment of the last picture.
    began: Seen,
    before: Seen,
    screen: Option<Screen>,
    serial: Arc<Serial>,
    model: &'static str,
    symbols: Vec<(String, Vec<Symbol>)>,
}

impl Live {
    /// Shows a picture of a machine after `every`, and another one each time that this has passed. A machine that goes on from a snapshot has
    /// charges already, which belong to no picture. `model` is the name of the run's model of time.
    pub fn new(
        every: Duration,
        model: &'static str,
        symbols: Vec<(String, Vec<Symbol>)>,
        machine: &mut Machine,
    ) -> Self {
        let (_, began) = look(machine, &symbols, model);
        Self {
            every,
            next: Instant::now() + every,
            before: began.clone(),
            began,
            screen: Screen::open(),
            serial: Arc::default(),
            model,
            symbols,
        }
    }

    /// Returns the receiver of the guest's output, if standard output is a terminal and shows pictures.
    pub fn serial_line(&self) -> Option<Arc<Serial>> {
        (self.screen.is_some() && std::io::stdout().is_terminal()).then(|| Arc::clone(&self.serial))
    }

    /// Returns true if it is time for a picture.
    pub fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Shows a picture.
    pub fn show(&mut self, machine: &mut Machine) {
        let begin = processor_time();
        let (ledger, now) = look(machine, &self.symbols, self.model);
        match &self.screen {
            Some(screen) => {
                let rows = screen.rows.saturating_sub(OTHER_LINES + SERIAL_LINES) * 2 / 5;
                screen.show(&picture(&ledger, &self.before, &now, rows.max(2)), &self.serial);
            }
            None => crate::output::say(&format!("{}\n", picture(&ledger, &self.before, &now, ROWS).trim_end())),
        }
        self.before = now;
        self.next = Instant::now() + self.every.max(processor_time().saturating_sub(begin) * EFFORT);
    }

    /// Shows the whole run after its end, and what the guest has printed last, on the terminal's usual screen.
    pub fn finish(mut self, machine: &mut Machine) {
        let (ledger, now) = look(machine, &self.symbols, self.model);
        let has_serial = self.serial_line().is_some();
        drop(self.screen.take());
        let mut text = picture(&ledger, &self.began, &now, ROWS);
        if has_serial {
            text.push('\n');
            self.serial.last().iter().for_each(|line| text.extend([line, "\n"]));
        }
        crate::output::say(text.trim_end());
    }
}

/// Returns the ledger of a machine up to now, and its charges.
fn look(machine: &mut Machine, symbols: &[(String, Vec<Symbol>)], model: &str) -> (Ledger, Seen) {
    let at = Instant::now();
    machine.gather();
    let mut ledger = machine.ledger(&machine.symbols(symbols.to_vec()));
    ledger.header.metadata.insert("model".to_owned(), model.to_owned());
    let seen = Seen::of(&ledger, at);
    (ledger, seen)
}

/// Returns the processor time of this thread: what other programs take is not the effort of a picture.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::profile::Profile;
    use ledger::symbols::Symbols;
    use ledger::{AddressSpace, Family, Header, Origin, Recorder, TICKS_PER_CYCLE};

    const KERNEL: u64 = 0xffff_ffff_8100_0000;

    /// Returns a ledger after so many rounds, each of which charges two functions and a crossing.
    fn after(rounds: u64) -> Ledger {
        let profile = Profile::named("skx").unwrap();
        let mut recorder = Recorder::default();
        let origin = recorder.origin(Origin::default());
        let charges = [
            (KERNEL, Kind::new(Family::Instruction, 0), 100, 300),
            (KERNEL + 0x100, Kind::new(Family::Instruction, 0), 20, 80),
            (KERNEL + 0x100, Kind::new(Family::Cpuid, 0), 1, 120),
        ];
        for (rip, kind, count, cycles) in charges {
            recorder.add(origin, rip, kind, rounds * count, rounds * cycles * TICKS_PER_CYCLE);
        }
        let mut symbols = Symbols::default();
        let functions = [(0, "first"), (0x100, "second")];
        let functions = functions.map(|(offset, name)| Symbol::new(KERNEL + offset, 0x100, name));
        symbols.add("", AddressSpace::default(), functions.into());
        Ledger::new(Header::new(&profile, vec![rounds * 500 * TICKS_PER_CYCLE]), &recorder, &symbols)
    }

    #[test]
    fn a_picture_shows_what_was_added() {
        let begin = Instant::now();
        let [old, new] = [after(2), after(5)];
        let before = Seen::of(&old, begin);
        let now = Seen::of(&new, begin + Duration::from_secs(2));
        insta::assert_snapshot!(picture(&new, &before, &now, 10));
    }

    #[test]
    fn the_largest_come_first_and_what_has_not_changed_does_not_come() {
        let amount = |ticks| Amount { count: 1, ticks };
        let before = BTreeMap::from([("a", amount(5)), ("b", amount(1)), ("d", amount(1))]);
        let now = BTreeMap::from([("a", amount(6)), ("b", amount(1)), ("c", amount(7)), ("d", amount(2))]);
        let names: Vec<_> = since(&before, &now).into_iter().map(|(name, more)| (name, more.ticks)).collect();
        assert_eq!(names, [("c", 7), ("a", 1), ("d", 1)]);
    }

    #[test]
    fn the_guest_does_not_control_the_terminal() {
        let serial = Serial::default();
        serial.put(b"one\r\ntwo\n\x1b[2Jthree\nfour\nfive\nsi");
        serial.put(b"x");
        assert_eq!(serial.last(), ["[2Jthree", "four", "five", "six"]);
        serial.put(&[b'x'; 1000]);
        assert!(serial.last().iter().all(|line| line.len() <= SERIAL_WIDTH));
    }
}
