//! VM exits in texts of other programs: events of `perf script`, `trace-cmd report` and ftrace, and the table of `perf kvm stat report`.

use crate::table::{counted, number};
use anyhow::{Result, bail};
use std::collections::BTreeMap;

/// The first bytes of files that other programs have to print first, and how.
const BINARY: [(&[u8], &str); 3] = [
    (b"PERFILE2", "a file of perf: perf script -i FILE | tollgate import -"),
    (b"2ELIFREP", "a file of perf of another machine: perf script -i FILE | tollgate import -"),
    (b"\x17\x08Dtracing", "a file of trace-cmd: trace-cmd report FILE | tollgate import -"),
];
/// Nanoseconds of a microsecond.
const MICROSECOND: f64 = 1000.0;
/// The longest time between an exit and an entry that is taken as one, in nanoseconds: a virtual CPU that stays away longer has no entry in the trace.
const LONGEST: u64 = 3_600_000_000_000;
/// The most characters of a line that a message shows.
const LONGEST_LINE: usize = 80;

/// The times from VM exits of one reason to the next entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exits {
    /// Number of exits.
    pub count: u64,
    /// Sum in nanoseconds.
    pub total: f64,
    /// The longest one.
    pub most: f64,
    /// The median, and what 99 % do not exceed; none if the text has no single exits.
    pub quantiles: Option<[f64; 2]>,
}

impl Exits {
    /// Adds the exits of another table, such as that of another guest.
    fn add(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.total += other.total;
        self.most = self.most.max(other.most);
    }
}

/// What a text has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Exits by their reason.
    pub exits: BTreeMap<String, Exits>,
    /// Exits without an entry behind them.
    pub open: u64,
    /// True if the times of all events are whole microseconds: perf script and trace-cmd report print no more digits by default.
    pub whole_microseconds: bool,
    /// Number of lines, without empty ones.
    pub lines: u64,
    /// Lines that are neither events, nor a row of the table, nor what the programs print around them.
    pub unknown: Option<Unknown>,
}

/// Lines that were not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Number of these lines, at least one.
    pub count: u64,
    /// Number of the first one in the text.
    pub line: u64,
    /// The first one, shortened.
    pub text: String,
}

impl Trace {
    /// Notes a line that was not understood.
    fn unknown(&mut self, number: u64, line: &str) {
        let first = || {
            let line = line.trim();
            let mut text: String = line.chars().take(LONGEST_LINE).collect();
            if text.len() < line.len() {
                text.push('…');
            }
            Unknown { count: 0, line: number, text: text.replace(|c: char| c.is_control() && c != '\t', "\u{fffd}") }
        };
        self.unknown.get_or_insert_with(first).count += 1;
    }

    /// Says which lines were not understood.
    pub fn remark(&self) -> Option<String> {
        let Unknown { count, line, text } = self.unknown.as_ref()?;
        let were = if *count == 1 { "was" } else { "were" };
        let lines = counted(usize::try_from(self.lines).unwrap_or(usize::MAX), "line", "lines");
        let count = number(*count);
        Some(format!("{count} of {lines} {were} not understood (first: line {line}: {text})"))
    }
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event<'a> {
    Exit(&'a str),
    Entry,
    /// Another event, which is no matter here.
    Other,
}

/// Reads a time in seconds, such as `1234.567890:`, as nanoseconds.
fn time(word: &str) -> Option<u64> {
    let (seconds, parts) = word.strip_suffix(':')?.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    if !digits(seconds) || !digits(parts) || parts.len() > 9 {
        return None;
    }
    let nanoseconds = parts.parse::<u64>().ok()? * 10_u64.pow(9 - parts.len() as u32);
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

/// Returns the thread of a line, which is the number in front of the processor: `123`, `100/123` of perf, or `name-123` of trace-cmd.
fn thread<'a>(words: &[&'a str]) -> &'a str {
    let place = words.iter().position(|word| word.starts_with('[') && word.ends_with(']'));
    let before = place.and_then(|place| words.get(place.checked_sub(1)?)).copied().unwrap_or_default();
    before.rsplit(['/', '-']).next().unwrap_or_default()
}

/// Reads a line with an event: its thread, its time, and the event. The name of the event is behind the time; a sample has its period between them.
fn event(line: &str) -> Option<(&str, u64, Event<'_>)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let name = |word: &&str| word.strip_suffix(':').map(|name| name.rsplit(':').next().unwrap_or(name).to_owned());
    let is_ours = |word: &&str| matches!(name(word).as_deref(), Some("kvm_exit" | "kvm_entry"));
    let timed = |place: usize| time(words.get(place.checked_sub(1)?)?);
    let Some(place) = words.iter().position(is_ours) else {
        let at = words.iter().position(|word| time(word).is_some())?;
        let is_event = words[at + 1..].iter().take(2).any(|word| name(word).is_some());
        return is_event.then_some(("", 0, Event::Other));
    };
    let when = timed(place)?;
    let event = match words[place].contains("kvm_exit") {
        false => Event::Entry,
        true => {
            let reason = words[place..].iter().position(|word| *word == "reason")?;
            Event::Exit(words.get(place + reason + 1)?)
        }
    };
    Some((thread(&words[..place]), when, event))
}

/// Returns true for lines that the programs print around events and tables: comments, headings, sums, frames of call stacks, and what was lost.
fn is_around(line: &str) -> bool {
    const BEGINNINGS: [&str; 8] =
        ["#", "cpus=", "version = ", "Analyze events for ", "Total Samples:", "Lost events:", "CPU:", "[ perf "];
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_heading = words.contains(&"Samples") && words.contains(&"Samples%");
    let is_empty_buffer = matches!(words[..], ["CPU", _, "is", "empty"]);
    let is_frame = line.starts_with([' ', '\t'])
        && words.len() > 1
        && words[0].len() >= 4
        && words[0].bytes().all(|c| c.is_ascii_hexdigit())
        && words.last().is_some_and(|last| last.starts_with('(') && last.ends_with(')'));
    let is_arrow = words.first() == Some(&"=>");
    is_heading
        || is_empty_buffer
        || is_frame
        || is_arrow
        || BEGINNINGS.iter().any(|begin| line.trim_start().starts_with(begin))
}

/// Reads a time with its unit, such as `1.12us`, as nanoseconds.
fn duration(word: &str) -> Option<f64> {
    let units = [("ns", 1.0), ("us", MICROSECOND), ("ms", 1e6), ("s", 1e9)];
    let (number, unit) = units.iter().find_map(|(name, unit)| Some((word.strip_suffix(name)?, unit)))?;
    let value = number.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0)?;
    Some(value * unit)
}

/// Reads a row of `perf kvm stat report`: the reason, the number of exits, two percentages, the shortest, the longest and the mean time.
fn row(line: &str) -> Option<(&str, Exits)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [reason, count, samples, times, least, most, mean, ..] = words[..] else { return None };
    let is_share = |word: &str| {
        word.strip_suffix('%')
            .and_then(|part| part.parse::<f64>().ok())
            .is_some_and(|part| (0.0..=100.0).contains(&part))
    };
    if !is_share(samples) || !is_share(times) {
        return None;
    }
    let count = count.parse::<u64>().ok()?;
    let (least, most, mean) = (duration(least)?, duration(most)?, duration(mean)?);
    if least > mean || mean > most {
        return None;
    }
    Some((reason, Exits { count, total: mean * count as f64, most, quantiles: None }))
}

/// Returns the value that a part of sorted values does not exceed.
fn quantile(sorted: &[u64], part: f64) -> f64 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1] as f64
}

/// Reads a text.
pub fn read(bytes: &[u8]) -> Result<Trace> {
    if let Some((_, what)) = BINARY.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        bail!("it is {what}");
    }
    let text = String::from_utf8_lossy(bytes);
    if text.trim().is_empty() {
        bail!("it is empty; perf kvm stat report writes its table to standard error (2>&1)");
    }
    let mut times: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let mut waiting: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    let mut trace = Trace::default();
    let (mut entered, mut in_nanoseconds) = (false, false);
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        trace.lines += 1;
        match event(line) {
            Some((_, _, Event::Other)) => {}
            Some((thread, when, Event::Exit(reason))) => {
                trace.open += u64::from(waiting.insert(thread, (when, reason)).is_some());
            }
            Some((thread, when, Event::Entry)) => {
                entered = true;
                in_nanoseconds |= !when.is_multiple_of(1000);
                let Some((since, reason)) = waiting.remove(thread) else { continue };
                match when.checked_sub(since).filter(|time| *time <= LONGEST) {
                    Some(time) => times.entry(reason).or_default().push(time),
                    None => trace.open += 1,
                }
            }
            None => match row(line) {
                Some((reason, exits)) => trace.exits.entry(reason.to_owned()).or_default().add(&exits),
                None if is_around(line) => {}
                None => trace.unknown(number, line),
            },
        }
    }
    trace.open += waiting.len() as u64;
    let but = trace.remark().map_or_else(String::new, |remark| format!("; {remark}"));
    if trace.open > 0 && !entered {
        bail!(
            "it has events kvm_exit and none kvm_entry: record both, for instance with perf record -e 'kvm:kvm_exit,kvm:kvm_entry'{but}"
        );
    }
    trace.whole_microseconds = entered && !in_nanoseconds;
    for (reason, mut all) in times {
        all.sort_unstable();
        let exits = Exits {
            count: all.len() as u64,
            total: all.iter().map(|time| *time as f64).sum(),
            most: *all.last().unwrap_or(&0) as f64,
            quantiles: Some([quantile(&all, 0.5), quantile(&all, 0.99)]),
        };
        trace.exits.insert(reason.to_owned(), exits);
    }
    if trace.exits.is_empty() {
        bail!(
            "it has no VM exits: a text of perf script, trace-cmd report or ftrace with events kvm_exit and kvm_entry is expected, or the table of perf kvm stat report{but}"
        );
    }
    Ok(trace)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERF: &str = "\
 qemu-system-x86  8822/8830  [002]  100.000001:            kvm:kvm_exit: vcpu 0 reason EPT_VIOLATION rip 0xffffffff81000000 info1 0x0000000000000181 info2 0x0 intr_info 0x0 error_code 0x0
 qemu-system-x86  8822/8831  [003]  100.000002:            kvm:kvm_exit: vcpu 1 reason HLT rip 0xffffffff81000000 info1 0x0
 qemu-system-x86  8822/8830  [002]  100.000004:           kvm:kvm_entry: vcpu 0, rip 0xffffffff81000000
 CPU 0/KVM        8822/8830  [002]  100.000010:            kvm:kvm_exit: vcpu 0 reason EPT_VIOLATION rip 0x1
 CPU 0/KVM        8822/8830  [002]  100.000010:   kvm:kvm_page_fault: vcpu 0 rip 0x1 address 0x0
 CPU 0/KVM        8822/8830  [002]  100.000011500: kvm:kvm_entry: vcpu 0, rip 0x1
 qemu-system-x86  8822/8831  [003]  100.500002:           kvm:kvm_entry: vcpu 1, rip 0x2
 qemu-system-x86  8822/8831  [003]  100.600000:            kvm:kvm_exit: vcpu 1 reason MSR_WRITE rip 0x3
";

    #[test]
    fn events_of_a_thread_belong_together() {
        let trace = read(PERF.as_bytes()).unwrap();
        let fault = &trace.exits["EPT_VIOLATION"];
        assert_eq!(
            (fault.count, fault.total, fault.most, fault.quantiles),
            (2, 4500.0, 3000.0, Some([1500.0, 3000.0]))
        );
        assert_eq!(trace.exits["HLT"].total, 500_000_000.0);
        assert_eq!((trace.exits.len(), trace.open, trace.lines, &trace.unknown), (2, 1, 8, &None));
        assert!(!trace.whole_microseconds);
        assert!(read(PERF.replace("011500", "011").as_bytes()).unwrap().whole_microseconds);
    }

    #[test]
    fn texts_of_trace_cmd_and_ftrace_are_read_too() {
        let text = "\
cpus=4
       CPU 0/KVM-8830  [002] 12345.678901: kvm_exit:             reason IO_INSTRUCTION rip 0xffff info 3f80040 0
       CPU 0/KVM-8830  [002] 12345.678905: kvm_entry:            vcpu 0, rip 0xffff
           <...>-8830    [002] d.... 12345.700000: kvm_exit: vcpu 0 reason npf rip 0x1 info1 0x2
           <...>-8830    [002] d.... 12345.700002: kvm_entry: vcpu 0, rip 0x1
# a comment: kvm_exit: reason
";
        let trace = read(text.as_bytes()).unwrap();
        assert_eq!((trace.exits["IO_INSTRUCTION"].total, trace.exits["npf"].total, trace.open), (4000.0, 2000.0, 0));
        assert_eq!(trace.unknown, None);
    }

    #[test]
    fn the_table_of_perf_kvm_stat_is_read() {
        let text = "
Analyze events for all VMs, all VCPUs:

             VM-EXIT    Samples  Samples%     Time%    Min Time    Max Time         Avg time

       EPT_VIOLATION        118    60.51%     1.40%      0.50us     12.00us      2.00us ( +-   8.10% )
                 HLT         70    35.90%    98.60%      1.00us   9000.00us   1000.50us ( +-  10.00% )

Total Samples:195, Total events handled time:70035.00us.
";
        let trace = read(text.as_bytes()).unwrap();
        let fault = &trace.exits["EPT_VIOLATION"];
        assert_eq!((fault.count, fault.total, fault.most, fault.quantiles), (118, 236_000.0, 12_000.0, None));
        assert_eq!((trace.exits.len(), trace.exits["HLT"].most, &trace.unknown), (2, 9_000_000.0, &None));
        let two = read(text.repeat(2).as_bytes()).unwrap();
        assert_eq!((two.exits["HLT"].count, two.exits["HLT"].most), (140, 9_000_000.0), "two tables are added");
    }

    #[test]
    fn lines_that_are_not_understood_are_counted_and_the_first_is_shown() {
        let said = |text: &str| read(text.as_bytes()).unwrap().remark().unwrap();
        let damaged = PERF.replacen("reason EPT_VIOLATION", "", 1).replace("100.500002:", "100.5000x2:");
        let found = said(&damaged);
        assert!(
            found.starts_with("2 of 8 lines were not understood (first: line 1: qemu-system-x86  8822/8830  [002]"),
            "{found}"
        );
        assert!(found.ends_with("…)"), "{found}");
        let rows = "\
       EPT_VIOLATION        118    60.51%     1.40%      0.50us     12.00us      2.00us ( +-   8.10% )
                 HLT         7x    35.90%    98.60%      1.00us   9000.00us   1000.50us ( +-  10.00% )
               CPUID         70    35.90%    98.60%      1.00us      2.00us      9.00us ( +-  10.00% )
                 MSR         70    35.90%
";
        assert!(said(rows).starts_with("3 of 4 lines were not understood (first: line 2: HLT"), "{}", said(rows));
        let one = said(&format!("{PERF}what\u{1b}[2J is this?\n"));
        assert_eq!(one, "1 of 9 lines was not understood (first: line 9: what\u{fffd}[2J is this?)");
        let none = read(b"\nkvm_exit: what\nHLT 1 2\n").unwrap_err().to_string();
        assert!(
            none.contains("no VM exits")
                && none.ends_with("; 2 of 2 lines were not understood (first: line 2: kvm_exit: what)"),
            "{none}"
        );
    }

    #[test]
    fn what_the_programs_print_around_events_is_understood() {
        let around = "\
# ========
[ perf record: Woken up 1 times to write data ]
CPU 3 is empty
cpus=4
CPU:2 [LOST 12 EVENTS]
 x 1 [000] 1.5:  10101 cycles:P:
\tffffffff810a1b2c vmx_vcpu_run+0x1c ([kernel.kallsyms])
 x-1 [000] d..3. 1.500001: sched_switch: prev_comm=x prev_pid=1
 => kvm_arch_vcpu_ioctl_run
";
        assert_eq!(read(format!("{PERF}{around}").as_bytes()).unwrap().unknown, None);
    }

    #[test]
    fn what_is_not_read_says_what_to_do() {
        let error = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
        assert!(error(b"PERFILE2\x68").contains("perf script -i FILE | tollgate import -"));
        assert!(error(b"\x17\x08Dtracing6").contains("trace-cmd report FILE"));
        assert!(error(b"hello\n").contains("no VM exits"));
        assert!(error(b"\n").contains("standard error (2>&1)"));
        assert!(error(b" x 1 [0] 1.5: kvm:kvm_exit: reason HLT rip 0\n").contains("none kvm_entry"));
        // Nonsense in a line is no event, and no reason to fail.
        let odd = "kvm_exit:\n[0] kvm_exit: reason\n 9 [0] 99999999999999999999.0: kvm_entry: x\n 9 [0] 1.0000000000: kvm_exit: reason A\n";
        assert!(error(odd.as_bytes()).contains("no VM exits"));
        let back = " x 1 [0] 2.0: kvm_exit: reason HLT\n x 1 [0] 1.0: kvm_entry: v\n x 1 [0] 3.0: kvm_exit: reason HLT\n x 1 [0] 3.1: kvm_entry: v\n";
        assert_eq!((read(back.as_bytes()).unwrap().open, read(back.as_bytes()).unwrap().exits["HLT"].count), (1, 1));
    }
}
