//! Command line of the differential tester.

fn main() {
    let (forms, excluded) = difftest::forms::forms(64);
    println!("{} forms, {} excluded", forms.len(), excluded.values().map(Vec::len).sum::<usize>());
    let mut runner = difftest::runner::Runner::new(1, 64).unwrap();
    let n: u64 = std::env::args().nth(1).map_or(100, |a| a.parse().unwrap());
    let start = std::time::Instant::now();
    let mut shown = std::collections::BTreeMap::new();
    let t = runner.run(&forms, 0..n, |e| {
        if let difftest::runner::Event::Mismatch(m) = e {
            let c = shown.entry(m.code.clone()).or_insert(0);
            *c += 1;
            if *c == 1 {
                println!("{} | {} | {} | {:?}", m.repeat(), m.bytes, m.instruction, m.differences);
            }
        }
    });
    println!("{shown:?} {t:#?} {:?}", start.elapsed());
}
