//! A cell's value, from its ledger, from the output of its guest, or from the figures of its network sinks.

use crate::charges::Charges;
use crate::experiment::sink::{self, SinkError};
use crate::experiment::{Busy, Measure, Metric, TimeUnit};
use ledger::summary::Selection;
use ledger::{Family, Kind, Ledger, LedgerError, TICKS_PER_CYCLE, VerifyError};
use std::io::Read;
use std::path::Path;

/// More than any ledger has, in bytes.
const LARGEST_LEDGER: u64 = 256 << 20;
/// More than any cell prints.
const LARGEST_OUTPUT: u64 = 64 << 20;

/// Why a cell that has run has no value.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A file of the finished cell can't be read.
    #[error("{path} can't be read: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// Its ledger is not one.
    #[error("its ledger {0}")]
    Ledger(#[from] LedgerError),
    /// Its ledger contradicts itself.
    #[error("its ledger contradicts itself: {0}")]
    Wrong(#[from] VerifyError),
    /// The guest did not name the region.
    #[error("its ledger has no region '{name}'; it has: {known}")]
    Region {
        /// The region.
        name: String,
        /// Those it has.
        known: String,
    },
    /// The guest did not print the result.
    #[error("it printed no line 'result {0} NUMBER UNIT'")]
    Result(String),
    /// The guest did not print the count.
    #[error("it printed no line 'count {0} NUMBER'")]
    Counted(String),
    /// The guest's unit is another one.
    #[error("it printed '{name}' in {found}, which can't be shown in {unit}")]
    Unit {
        /// The result.
        name: String,
        /// The unit it has.
        found: String,
        /// The unit that is wanted.
        unit: String,
    },
    /// Nothing of that kind happened.
    #[error("nothing called '{0}' was charged")]
    Count(String),
    /// The sinks have no such figure.
    #[error(transparent)]
    Sink(#[from] SinkError),
}

fn bytes(path: &Path, largest: u64) -> Result<Vec<u8>, MeasureError> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(largest).read_to_end(&mut bytes));
    read.map_err(|error| MeasureError::Unreadable { path: path.display().to_string(), error })?;
    Ok(bytes)
}

/// The ledger of a finished cell.
pub fn read(path: &Path) -> Result<Ledger, MeasureError> {
    let ledger = Ledger::read(&bytes(path, LARGEST_LEDGER)?)?;
    ledger.verify()?;
    Ok(ledger)
}

/// The output of a finished cell.
pub fn output(path: &Path) -> Result<String, MeasureError> {
    Ok(String::from_utf8_lossy(&bytes(path, LARGEST_OUTPUT)?).into_owned())
}

/// The part of a ledger that is measured.
pub fn selection<'a>(ledger: &'a Ledger, region: Option<&str>) -> Result<Selection<'a>, MeasureError> {
    let Some(name) = region else { return Ok(ledger.all()) };
    ledger.region(name).ok_or_else(|| MeasureError::Region {
        name: name.to_owned(),
        known: match ledger.regions.len() {
            0 | 1 => "none".to_owned(),
            _ => ledger.regions[1..].iter().map(|region| region.name.as_str()).collect::<Vec<_>>().join(", "),
        },
    })
}

/// The time for which a region was open, in `unit`, on the clock of the processor that opened it. An older ledger does not contain that time: each of the
/// processors, which advance together, then has its share of the charges.
fn time(charges: &Charges, ledger: &Ledger, region: Option<&str>, unit: TimeUnit) -> f64 {
    let clocks = &ledger.header.clocks;
    let found = region.and_then(|name| ledger.regions.iter().find(|region| region.name == name));
    let ticks = match found.map(|region| region.elapsed) {
        Some(elapsed) if elapsed != 0 => elapsed as f64,
        _ => charges.total.ticks as f64 / clocks.len().max(1) as f64,
    };
    ticks / TICKS_PER_CYCLE as f64 / ledger.header.tsc_hz as f64 * unit.per_second()
}

/// A line without what a host of virtual machines puts before each line of the machine inside: `l2| `, `l2| l3| `.
fn of_innermost(mut line: &str) -> &str {
    while let Some((prefix, rest)) = line.split_once("| ")
        && prefix.strip_prefix('l').is_some_and(|level| level.parse::<u8>().is_ok())
    {
        line = rest;
    }
    line
}

/// The number and unit of the last line `result NAME NUMBER UNIT`.
fn result<'a>(output: &'a str, name: &str) -> Option<(f64, &'a str)> {
    output.lines().rev().find_map(|line| {
        let mut words = of_innermost(line).split_whitespace();
        let found = words.next() == Some("result") && words.next() == Some(name);
        let number = words.next().filter(|_| found)?.parse::<f64>().ok().filter(|number| number.is_finite())?;
        Some((number, words.next().unwrap_or_default()))
    })
}

/// The number of the last line `count NAME NUMBER`.
fn counted(output: &str, name: &str) -> Option<f64> {
    output.lines().rev().find_map(|line| {
        let number = of_innermost(line).strip_prefix("count ")?.strip_prefix(name)?.strip_prefix(' ')?;
        number.trim().parse::<u64>().ok().map(|number| number as f64)
    })
}

/// A number in another unit; cycles are those of the processor.
fn converted(number: f64, found: &str, unit: &str, tsc_hz: u64) -> Option<f64> {
    if found == unit {
        return Some(number);
    }
    let unit = TimeUnit::from_symbol(unit)?.per_second();
    match (found, TimeUnit::from_symbol(found)) {
        ("cycles", _) => Some(number / tsc_hz as f64 * unit),
        (_, Some(found)) => Some(number / found.per_second() * unit),
        _ => None,
    }
}

/// The number of charges of the kinds of a name.
fn count(charges: &Charges, name: &str) -> Option<u64> {
    let wanted = |kind: &str| match name.strip_suffix('*') {
        Some(start) => kind.starts_with(start),
        None => kind == name,
    };
    let found: Vec<u64> =
        charges.causes().filter(|cause| wanted(&charges.name(*cause))).map(|cause| charges.of(cause).count).collect();
    (!found.is_empty()).then(|| found.iter().sum())
}

/// The value of a cell.
pub fn value(metric: &Metric, ledger: &Ledger, charges: &Charges, output: Option<&str>) -> Result<f64, MeasureError> {
    let raw = match &metric.measure {
        Measure::Region(unit) => time(charges, ledger, metric.region.as_deref(), *unit),
        Measure::Result { name, unit } => {
            let (number, found) =
                result(output.unwrap_or_default(), name).ok_or_else(|| MeasureError::Result(name.clone()))?;
            converted(number, found, unit, ledger.header.tsc_hz).ok_or_else(|| MeasureError::Unit {
                name: name.clone(),
                found: found.to_owned(),
                unit: unit.clone(),
            })?
        }
        Measure::Counted { name, .. } => {
            counted(output.unwrap_or_default(), name).ok_or_else(|| MeasureError::Counted(name.clone()))?
        }
        // That something never happened is a result too, but a name that no kind ever has is a mistake: a hypervisor's kinds
        // are absent where there is no hypervisor.
        Measure::Count { kind, .. } => match count(charges, kind) {
            Some(count) => count as f64,
            None if kind.starts_with("VM exit") || kind.starts_with("hypervisor: ") => 0.0,
            None => return Err(MeasureError::Count(kind.clone())),
        },
        Measure::Busy(unit) => {
            let waited = charges.of(Some(Kind::new(Family::Halt, 0))).ticks;
            let busy = charges.total.ticks.saturating_sub(waited) as f64;
            match unit {
                Busy::Part => busy / charges.total.ticks.max(1) as f64 * 100.0,
                Busy::Cycles => busy / TICKS_PER_CYCLE as f64,
            }
        }
        Measure::Sink { figure, unit } => sink::value(output.unwrap_or_default(), *figure, unit)?,
    };
    Ok(raw / metric.per * metric.times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charges::Tally;
    use crate::testing;

    #[test]
    fn results_are_read_from_what_a_guest_prints() {
        let output = "boot\nresult switch 1.5 us\nresult other 7 cycles\r\nresult switch 2.5 us\nresult bad x us\n";
        assert_eq!(result(output, "switch"), Some((2.5, "us")));
        assert_eq!(result(output, "other"), Some((7.0, "cycles")));
        assert_eq!([result(output, "bad"), result(output, "swit")], [None, None]);
        let inside = "l2| l3| result far 3 ns\r\nl2| result near 4 ns\nx2| result other 5 ns\n";
        assert_eq!(result(inside, "far"), Some((3.0, "ns")));
        assert_eq!(result(inside, "near"), Some((4.0, "ns")));
        assert_eq!(result(inside, "other"), None);
        let output = "count work switches 12\ncount work switches 34\r\nl2| count far steps 5\ncount work switches x\n";
        assert_eq!(counted(output, "work switches"), Some(34.0));
        assert_eq!([counted(output, "far steps"), counted(output, "work")], [Some(5.0), None]);
    }

    #[test]
    fn times_are_converted() {
        assert_eq!(converted(1500.0, "us", "ms", 1), Some(1.5));
        assert_eq!(converted(2e9, "cycles", "s", 1_000_000_000), Some(2.0));
        assert_eq!(converted(2e9, "cycles", "ms", 1_000_000_000), Some(2000.0));
        assert_eq!(converted(3.0, "messages", "messages", 1), Some(3.0));
        assert_eq!(converted(3.0, "messages", "s", 1), None);
        assert_eq!(converted(3.0, "s", "messages", 1), None);
    }

    fn metric(measure: Measure) -> Metric {
        Metric { measure, region: Some("work".to_owned()), per: 4.0, times: 10.0 }
    }

    #[test]
    fn a_value_is_divided_and_scaled() {
        let ledger = testing::ledger(40);
        let charges = Charges::new(&ledger, selection(&ledger, Some("work")).unwrap());
        let of = |measure, output| value(&metric(measure), &ledger, &charges, output);
        let count = |kind: &str| of(Measure::Count { kind: kind.to_owned(), unit: "times".to_owned() }, None);
        assert_eq!(count("MOV CR3").unwrap(), 40.0 / 4.0 * 10.0);
        assert_eq!(count("MOV CR*").unwrap(), 40.0 / 4.0 * 10.0);
        assert_eq!(count("VM exit HLT").unwrap(), 0.0);
        assert_eq!(count("hypervisor: nothing of the kind").unwrap(), 0.0);
        assert_eq!(count("MOV CR9").unwrap_err().to_string(), "nothing called 'MOV CR9' was charged");
        let printed = |unit: &str| Measure::Result { name: "switch".to_owned(), unit: unit.to_owned() };
        let output = Some("result switch 2 us\n");
        assert_eq!(of(printed("ns"), output).unwrap(), 2000.0 / 4.0 * 10.0);
        let lost = Measure::Sink { figure: sink::Figure::Lost, unit: "frames".to_owned() };
        let report = r#"{"network":[{"name":"net0","generator":{"stream":0,"sent":9,"came_back":7}}]}"#;
        assert_eq!(of(lost.clone(), Some(report)).unwrap(), 2.0 / 4.0 * 10.0);
        let error = of(lost, output).unwrap_err().to_string();
        assert_eq!(error, "it printed no line of JSON with figures of network devices");
        let error = of(printed("messages"), output).unwrap_err().to_string();
        assert_eq!(error, "it printed 'switch' in us, which can't be shown in messages");
        let error = of(printed("ns"), Some("boot\n")).unwrap_err().to_string();
        assert_eq!(error, "it printed no line 'result switch NUMBER UNIT'");
    }

    #[test]
    fn a_processor_that_waits_is_not_busy() {
        let ledger = testing::ledger(40);
        let mut charges = Charges { total: Tally { count: 0, ticks: 1_000 }, ..Charges::default() };
        let of = |unit: Busy, per: f64, charges: &Charges| {
            let metric = Metric { per, times: 1.0, ..metric(Measure::Busy(unit)) };
            value(&metric, &ledger, charges, None).unwrap()
        };
        let busy = |charges: &Charges| of(Busy::Part, 1.0, charges);
        assert_eq!(busy(&charges), 100.0);
        charges.kinds.insert(Kind::new(Family::Halt, 0), (None, Tally { count: 3, ticks: 980 }));
        assert_eq!(busy(&charges), 2.0);
        let cycles = of(Busy::Cycles, 4.0, &charges);
        assert_eq!(cycles, 20.0 / TICKS_PER_CYCLE as f64 / 4.0);
        assert_eq!(busy(&Charges::default()), 0.0);
    }

    #[test]
    fn a_region_takes_as_long_as_it_was_open() {
        let mut ledger = testing::ledger(0);
        ledger.header.clocks = vec![0, 0, 0, 0];
        let second = ledger.header.tsc_hz * TICKS_PER_CYCLE;
        let charges = Charges { total: Tally { count: 0, ticks: second }, ..Charges::default() };
        ledger.regions[1].elapsed = second / 2;
        assert_eq!(time(&charges, &ledger, Some("work"), TimeUnit::Milliseconds), 500.0);
        // Without that time, and for the whole run, processors share the time.
        assert_eq!(time(&charges, &ledger, None, TimeUnit::Milliseconds), 250.0);
        ledger.regions[1].elapsed = 0;
        assert_eq!(time(&charges, &ledger, Some("work"), TimeUnit::Milliseconds), 250.0);
    }

    #[test]
    fn a_ledger_without_regions_says_that_it_has_none() {
        let mut ledger = testing::ledger(1);
        ledger.regions.truncate(1);
        let error = selection(&ledger, Some("play")).err().unwrap().to_string();
        assert_eq!(error, "its ledger has no region 'play'; it has: none");
    }

    #[test]
    fn output_is_text_whatever_it_is() {
        let path = std::env::temp_dir().join(format!("tollgate-output-{}", std::process::id()));
        std::fs::write(&path, b"result a 1 us\n\xff").unwrap();
        assert_eq!(output(&path).unwrap(), "result a 1 us\n\u{fffd}");
        std::fs::remove_file(&path).unwrap();
        assert!(output(&path).unwrap_err().to_string().contains("can't be read: No such file"));
    }
}
