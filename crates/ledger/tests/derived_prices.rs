//! Prices whose source says how they are derived have the value that follows: one that was copied with another figure, or whose figure
//! was changed alone, is found.

use regex::Regex;
use std::collections::BTreeMap;
use std::path::Path;
use toml::{Table, Value};

/// A price: its profile and place, its cycles, and its source.
struct Price {
    profile: String,
    place: String,
    cycles: f64,
    source: String,
}

impl Price {
    fn name(&self) -> String {
        format!("{}: {}", self.profile, self.place)
    }
}

fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|number| number as f64))
}

fn add(prices: &mut Vec<Price>, profile: &str, place: &str, table: &Table) {
    for (key, value) in table {
        let Some(table) = value.as_table() else { continue };
        let place = format!("{place}.{key}");
        if let (Some(cycles), Some(source)) = (table.get("cycles").and_then(number), table.get("source")) {
            let source = source.as_str().unwrap_or_default().to_owned();
            prices.push(Price { profile: profile.into(), place: place.clone(), cycles, source });
        }
        add(prices, profile, &place, table);
    }
}

/// Returns the prices of all profiles in files, and the frequency of each profile.
fn prices() -> (Vec<Price>, BTreeMap<String, f64>) {
    let (mut prices, mut frequencies) = (Vec::new(), BTreeMap::new());
    let profiles = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles");
    for entry in std::fs::read_dir(profiles).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let table: Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        // A profile that is another one with changes has no frequency of its own.
        if let Some(hz) = table.get("frequency").and_then(|frequency| number(frequency.get("hz")?)) {
            frequencies.insert(name.clone(), hz);
            add(&mut prices, &name, "", &table);
        }
    }
    (prices, frequencies)
}

/// Checks the prices whose source matches a pattern against what follows from the numbers in it. Returns how many there are.
fn follow(prices: &[Price], pattern: &str, tolerance: f64, derive: impl Fn(&Price, &[f64]) -> f64) -> usize {
    let pattern = Regex::new(pattern).unwrap();
    let mut count = 0;
    for price in prices {
        let Some(found) = pattern.captures(&price.source) else { continue };
        let numbers: Vec<f64> = found.iter().skip(1).flatten().map(|part| part.as_str().parse().unwrap()).collect();
        let derived = derive(price, &numbers);
        let off = (price.cycles - derived).abs();
        assert!(off <= (derived * tolerance).max(0.006), "{} is {}, not {derived}", price.name(), price.cycles);
        count += 1;
    }
    count
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

#[test]
fn means_are_those_of_their_numbers() {
    let (prices, _) = prices();
    let check = |pattern| follow(&prices, pattern, 0.001, |_, numbers| mean(numbers));
    let half_way = r"half-way between latency ([\d.]+) .*?and (?:its )?reciprocal throughput (?:on \w+, )?([\d.]+)";
    assert!(check(half_way) > 90);
    assert!(check(r"half-way between XSAVEC, (\d+), and XRSTOR, (\d+)") > 1);
    assert!(check(r"^the mean of LFENCE ([\d.]+), SFENCE ([\d.]+) and MFENCE ([\d.]+)") > 8);
    assert!(follow(&prices, r"^half of PUSHFQ and POPFQ, ([\d.]+)", 0.001, |_, numbers| numbers[0] / 2.0) > 8);
}

#[test]
fn times_are_cycles_at_the_profile_s_frequency() {
    let (prices, frequencies) = prices();
    let cycles = |price: &Price, seconds: f64| seconds * frequencies[&price.profile];
    let micro = |price: &Price, numbers: &[f64]| cycles(price, numbers[0] / 1e6);
    let nano = |price: &Price, numbers: &[f64]| cycles(price, numbers[0] / 1e9);
    assert!(follow(&prices, r"(?:^|about |latency )([\d.]+) us\b", 0.01, micro) > 50);
    assert!(follow(&prices, r"about ([\d.]+) ns .*at this file's frequency", 0.03, nano) > 3);
}

#[test]
fn prices_of_another_profile_are_those_of_that_profile() {
    let (prices, _) = prices();
    let by_place: BTreeMap<_, _> =
        prices.iter().map(|price| ((price.profile.as_str(), price.place.as_str()), price.cycles)).collect();
    let pattern = Regex::new(r"^as (\w+)(?:, the same core)?: ").unwrap();
    let mut count = 0;
    for price in &prices {
        let Some(other) = pattern.captures(&price.source).and_then(|found| found.get(1)) else { continue };
        // What is a time or a clock's own is checked above.
        if let Some(cycles) = by_place.get(&(other.as_str(), price.place.as_str()))
            && !price.source.contains(" us")
            && !price.source.contains("frequency")
        {
            assert_eq!(price.cycles, *cycles, "{}, {}", price.name(), price.source);
            count += 1;
        }
    }
    assert!(count > 80, "{count}");
}

#[test]
fn prices_of_code_that_are_those_of_data_are() {
    let (prices, _) = prices();
    let by_place: BTreeMap<_, _> =
        prices.iter().map(|price| ((price.profile.as_str(), price.place.replace("_data", "_code")), price)).collect();
    let mut count = 0;
    for price in &prices {
        let same = price.source == "as for data" || price.source.starts_with("as for data: ");
        if let (true, Some(data)) = (same, by_place.get(&(price.profile.as_str(), price.place.clone())))
            && data.place != price.place
        {
            assert_eq!(price.cycles, data.cycles, "{}", price.name());
            count += 1;
        }
    }
    assert!(count > 100, "{count}");
}
