//! Processor profiles: any text is a profile or an error, and every property of a profile's processor can be queried.

use ::ledger::profile::{Clock, Profile};
use ::ledger::{Class, Family, Kind};

/// Parses the text, and uses the result.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let profile = match Profile::parse("fuzz.toml", text) {
        Ok(profile) => profile,
        Err(error) => {
            let message = error.to_string();
            assert!(message.starts_with("profile fuzz.toml"), "{message}");
            assert!(!message.chars().any(|c| c.is_control() && c != '\n'), "{message:?}");
            return;
        }
    };
    let (costs, geometry) = (profile.costs(), profile.geometry());
    profile.emulated_costs();
    for family in Family::ALL {
        costs.of(Kind::new(family, 0));
        profile.figure(Kind::new(family, 0));
    }
    assert_eq!(profile.prices.classes.len(), Class::COUNT);
    profile.cpuid();
    // Tables of the modelled structures are made at these sizes.
    cpu::tlb::Tlb::new(&geometry);
    cpu::time::predictor::Predictor::new(&geometry);
    cpu::tlb::Tlb::new(&profile.emulated_geometry());
    // Caches are made only if they are small: any larger ones take the same way.
    if let Ok(profile) = profile.with_clock(Clock::Core)
        && let Some(caches) = profile.geometry().caches
        && [Some(caches.l1d), Some(caches.code.l1i), Some(caches.l2), caches.l3]
            .iter()
            .flatten()
            .all(|level| level.lines < 1 << 20)
    {
        let memory = cpu::time::memory::Memory::new(&caches, 0);
        assert!(memory.fits(&caches, 0, 0, 1));
        cpu::time::memory::Memory::most(&caches);
        cpu::time::timing(&profile);
    }
}

/// Returns a small file, and pieces of one with all keys.
pub fn seeds() -> Vec<Vec<u8>> {
    let whole = include_str!("../../profiles/skx.toml");
    let half = whole.len() / 2;
    let mut seeds = vec![
        include_bytes!("../../profiles/max.toml").to_vec(),
        b"name = \"x\"\nsynthetic = true\n[sizes]\n".to_vec(),
        whole.as_bytes().to_vec(),
        include_bytes!("../../profiles/zen3.toml").to_vec(),
        include_bytes!("../../profiles/hsw.toml").to_vec(),
    ];
    seeds.push(whole.bytes().take(half).collect());
    seeds
}
