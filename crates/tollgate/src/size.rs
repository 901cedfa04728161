//! Sizes in the notation of users.

use lab::size::parse_size;
use machine::MAX_CPUS;
use machine::memory::check_size;

/// Parses the size of a guest's memory.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    let size = parse_size(text)?;
    check_size(size).map_err(|error| error.to_string())?;
    Ok(size)
}

/// Parses the number of a guest's processors.
pub fn parse_cpus(text: &str) -> Result<usize, String> {
    let wrong = || format!("a number from 1 to {MAX_CPUS} is expected");
    text.parse().ok().filter(|count| (1..=MAX_CPUS).contains(count)).ok_or_else(wrong)
}

/// Formats a number of bytes with the largest suitable unit.
pub fn size_text(bytes: u64) -> String {
    let units = [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')];
    match units.into_iter().find(|(shift, _)| bytes >> shift != 0) {
        Some((shift, unit)) => format!("{:.1}{unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::{parse_cpus, parse_memory, size_text};

    #[test]
    fn a_guest_has_memory_and_processors() {
        assert_eq!((parse_memory("1M"), parse_cpus("255")), (Ok(1 << 20), Ok(255)));
        for wrong in ["5", "0", "1025K1", "1048577", "1025G", "x"] {
            assert!(parse_memory(wrong).is_err(), "{wrong}");
        }
        for wrong in ["0", "256", "-1", "", "two"] {
            assert_eq!(parse_cpus(wrong), Err("a number from 1 to 255 is expected".to_owned()), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_unit_that_fits() {
        for (bytes, text) in
            [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0K"), (1536 << 10, "1.5M"), (1 << 40, "1.0T")]
        {
            assert_eq!(size_text(bytes), text);
        }
    }
}
