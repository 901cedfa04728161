//! Repeated string instructions take what was measured.

use uarch::{CoreTable, Repeat, string};

fn cycles(core: &str, repeat: Repeat, length: u64, destination: u64, source: Option<u64>) -> f64 {
    string(CoreTable::named(core).unwrap(), repeat, length, destination, source) as f64 / 1000.0
}

#[test]
fn zen_3_takes_what_was_measured_on_it() {
    let near = |got: f64, measured: f64| assert!((got / measured - 1.0).abs() < 0.15, "{got} for {measured}");
    let (to, from) = (0x10000, Some(0x20800));
    for (length, measured) in [(1, 23.6), (96, 23.7), (256, 39.0), (1024, 62.0), (4096, 158.0), (8192, 294.0)] {
        near(cycles("zen3", Repeat::Movs, length, to, from), measured);
    }
    for (length, measured) in [(8, 27.0), (64, 34.0), (512, 67.0), (4096, 179.0)] {
        near(cycles("zen3", Repeat::MovsWide, length, to, from), measured);
    }
    for (length, measured) in [(32, 59.3), (96, 121.1), (128, 67.0), (4096, 191.2)] {
        near(cycles("zen3", Repeat::Stos, length, to, None), measured);
    }
    for (length, measured) in [(64, 35.5), (512, 90.0), (4096, 192.1)] {
        near(cycles("zen3", Repeat::StosWide, length, to, None), measured);
    }
    near(cycles("zen3", Repeat::Movs, 4096, to + 1, from), 226.0);
    // The destination follows the source closely in the page.
    near(cycles("zen3", Repeat::Movs, 1024, 0x10001, Some(0x20000)), 1277.0);
}

#[test]
fn any_length_has_a_time() {
    for core in CoreTable::names() {
        for repeat in [Repeat::Movs, Repeat::MovsWide, Repeat::Stos, Repeat::StosWide] {
            assert!(cycles(core, repeat, 0, 0, None) > 0.0);
            assert!(cycles(core, repeat, u64::MAX, 1, Some(7)) > 1e9);
            let times: Vec<f64> = (8..200).map(|n| cycles(core, repeat, n * 64, 0, Some(0))).collect();
            assert!(times.is_sorted(), "{core} {repeat:?}");
        }
    }
}
