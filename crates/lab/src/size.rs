//! Sizes in the notation of users, as `tollgate run --memory` and experiments have them.

/// Parses a number of bytes with an optional suffix K, M, G or T (powers of 1024).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let help = "a size such as 512M or 4G";
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(help.into()),
    };
    let number: u64 = digits.parse().map_err(|_| help)?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too much; {help}"))
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in
            [("512M", 512 << 20), ("4g", 4 << 30), ("1048576", 1 << 20), ("2GiB", 2 << 30), ("64K", 65536)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "M", "12Q", "-5M", "99999999999T", "1.5G", "ö"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
