//! Releases of Linux: this machine's, and the version in the name of any.

/// Returns the release of this machine's kernel, such as 6.1.0-56-cloud-amd64.
pub fn of_host() -> Option<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(release.trim().to_owned())
}

/// Returns the version of a release: its first two numbers.
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    numbers.next()?.ok().zip(numbers.next()?.ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_the_first_two_numbers_of_a_release() {
        assert_eq!(version("6.1.0-56-cloud-amd64"), Some((6, 1)));
        assert_eq!(version("7.3.4+deb13-cloud-amd64"), Some((7, 3)));
        assert_eq!(["linux", "6", "", "4000000000000.1"].map(version), [None; 4]);
        assert!(version(&of_host().unwrap()).is_some());
    }
}
