//! The layouts of an experiment: each has a mebibyte of memory more than the one before, which moves what the guest's kernel places in memory.

use super::Experiment;
use crate::size::parse_size;

/// The memory of `tollgate run` where a cell names none, in bytes.
const USUAL_MEMORY: u64 = 512 << 20;
/// Binary suffixes of sizes, the largest first.
const SUFFIXES: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// Returns a size of memory with so many mebibytes more, in the notation of `--memory`; `None` if it is no size.
pub(super) fn grown(memory: Option<&str>, mebibytes: u32) -> Option<String> {
    let bytes = match memory {
        None => USUAL_MEMORY,
        Some(text) => parse_size(text).ok()?,
    };
    let bytes = bytes.checked_add(u64::from(mebibytes) << 20)?;
    let whole = SUFFIXES.iter().find(|(_, shift)| bytes.trailing_zeros() >= *shift);
    Some(whole.map_or_else(|| bytes.to_string(), |(letter, shift)| format!("{}{letter}", bytes >> shift)))
}

impl Experiment {
    /// The experiment in so many layouts: the first is that of the experiment, and each further one has a mebibyte of memory more than the one before.
    pub fn in_layouts(&self, count: u32) -> Vec<Self> {
        (0..count).map(|grown| Self { grown, ..self.clone() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn memory_grows_in_the_notation_of_users() {
        let cases =
            [("512M", 3, "515M"), ("1G", 0, "1G"), ("1G", 1, "1025M"), ("65536K", 1, "65M"), ("2GiB", 2, "2050M")];
        for (memory, mebibytes, grown_memory) in cases {
            assert_eq!(grown(Some(memory), mebibytes).as_deref(), Some(grown_memory), "{memory}");
        }
        assert_eq!(grown(Some("1052672"), 1).as_deref(), Some("2052K"));
        assert_eq!((grown(None, 2).as_deref(), grown(Some("much"), 1)), (Some("514M"), None));
    }

    #[test]
    fn each_layout_has_more_memory_than_the_one_before() {
        let layouts = testing::experiment().in_layouts(3);
        let memory = |experiment: &Experiment| {
            let arguments = experiment.cells()[0].arguments();
            let at = arguments.iter().position(|word| word == "--memory");
            at.map(|at| arguments[at + 1].clone())
        };
        assert_eq!(layouts.iter().map(memory).collect::<Vec<_>>(), [None, Some("513M".into()), Some("514M".into())]);
    }
}
