//! The kernel whose version is nearest to that of this machine's kernel, for measurements on both.

use super::kernel::{self, Kernel};
use silicon::release;

/// Releases of Debian, oldest first. The backports of a release have kernels of later ones, and any of them runs on any system.
const CODENAMES: [&str; 4] = ["bullseye", "bookworm", "trixie", "forky"];

/// A kernel that is so many versions from this machine's is near, and no other one is fetched.
const NEAR: u32 = 2;

/// Number of versions with the same first number: 3.0 to 3.19, 4.0 to 4.20, and so on. Later ones had twenty each so far.
const VERSIONS: [(u32, u32); 2] = [(3, 20), (4, 21)];

/// A kernel of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Near {
    /// Name, as `--kernel` takes it.
    pub name: String,
    /// Release, such as `6.12.95+deb12-cloud-amd64`.
    pub release: String,
}

/// Returns the kernel of a package that is nearest to this machine's, or `None` if that kernel itself can be booted, or no version is known. Kernels of this
/// system's package sources are fetched until one is near, if `fetch` allows it.
pub fn nearest(fetch: bool) -> Option<Near> {
    if Kernel::of_host().is_some() {
        return None;
    }
    let own = position(&release::of_host()?)?;
    let mut known = kernel::present();
    let system = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    for name in if fetch { names(&system) } else { Vec::new() } {
        if choose(own, &known).is_some_and(|(distance, _)| distance <= NEAR) {
            break;
        }
        if known.iter().any(|kernel| kernel.name == name) {
            continue;
        }
        // Without a network, the kernels that are there have to do.
        let Ok(kernel) = Kernel::fetched(&name) else { break };
        known.extend(kernel.release().map(|release| Near { name, release }));
    }
    choose(own, &known).map(|(_, kernel)| kernel.clone())
}

/// Returns the kernels of a system's package sources, from its file `os-release`: the usual one first, newer ones behind it.
fn names(system: &str) -> Vec<String> {
    let codename = system.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let at = codename.and_then(|own| CODENAMES.iter().position(|name| *name == own.trim_matches('"')));
    let next = at.and_then(|at| CODENAMES.get(at + 1)).map(|name| format!("cloud@{name}-backports"));
    ["cloud", "backports"].map(str::to_owned).into_iter().chain(next).collect()
}

/// Returns the kernel that is nearest to a position, with its distance; of two, the newer one.
fn choose(own: u32, known: &[Near]) -> Option<(u32, &Near)> {
    let placed = known.iter().filter_map(|kernel| Some((position(&kernel.release)?, kernel)));
    let nearest = placed.min_by_key(|(at, _)| (at.abs_diff(own), u32::MAX - at));
    nearest.map(|(at, kernel)| (at.abs_diff(own), kernel))
}

/// Returns the position of a release in the sequence of Linux's versions since 3.0.
fn position(release: &str) -> Option<u32> {
    let (first, second) = release::version(release)?;
    let of = |number: u32| VERSIONS.iter().find(|(first, _)| *first == number).map_or(20, |(_, versions)| *versions);
    (first < 100).then(|| (3..first).map(of).sum::<u32>().saturating_add(second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_kernel_is_that_of_the_fewest_versions_between() {
        let near = |name: &str, release: &str| Near { name: name.into(), release: release.into() };
        let known = [near("cloud", "6.1.0-56-cloud-amd64"), near("backports", "6.12.95+deb12-cloud-amd64")];
        let name = |release: &str, known: &[Near]| {
            choose(position(release).unwrap(), known).map(|(distance, kernel)| (distance, kernel.name.clone()))
        };
        assert_eq!(name("6.1.0-40-amd64", &known), Some((0, "cloud".into())));
        assert_eq!(name("5.19.0", &known), Some((2, "cloud".into())));
        assert_eq!(name("6.18.44-fc", &known), Some((6, "backports".into())));
        let more = [&known[..], &[near("cloud@trixie-backports", "7.3.4+deb13-cloud-amd64")]].concat();
        assert_eq!(name("6.18.44-fc", &more), Some((5, "cloud@trixie-backports".into())));
        assert_eq!(name("4.20.1", &more), Some((22, "cloud".into())));
        assert_eq!(name("6.18", &[]), None);
        assert_eq!([position("linux"), position("6"), position(""), position("4000000000.1")], [None; 4]);
    }

    #[test]
    fn newer_kernels_are_those_of_the_backports() {
        let debian = "ID=debian\nVERSION_CODENAME=bookworm\n";
        assert_eq!(names(debian), ["cloud", "backports", "cloud@trixie-backports"]);
        assert_eq!(names("VERSION_CODENAME=\"noble\"\n"), ["cloud", "backports"]);
        assert_eq!(names(""), ["cloud", "backports"]);
    }
}
