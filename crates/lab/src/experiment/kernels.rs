//! The columns of an experiment over kernels of the user: each kernel takes the place of those that the experiment names, in every column.

use super::{Experiment, Factor, Guest, GuestName, Image, Line, Settings, Skip};
use std::collections::BTreeMap;

/// Names of the kernels of packages, which the command that makes a guest may end with.
const FLAVOURS: &[&str] = &["cloud", "amd64", "backports", "backports-amd64"];
/// The command that makes the Linux guest of `make guests`.
const OF_MAKE: &str = "guests/linux/build";

/// A kernel of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its name in tables.
    pub name: String,
    /// Its guests, by the commands that make guests ([`Guest::builder`]).
    pub guests: BTreeMap<Vec<String>, Image>,
}

impl Guest {
    /// The command that makes a Linux guest, without the name of a kernel: the guests of two kernels have the same one. `None` for a bare-metal guest.
    pub fn builder(&self) -> Option<Vec<String>> {
        let Image::Linux { .. } = &self.image else { return None };
        let last = self.made_by.split("&&").last().unwrap_or_default().trim();
        let words: Vec<String> = last.split_whitespace().map(str::to_owned).collect();
        match words.first() {
            Some(first) if first.starts_with("guests/") => {
                Some(words.into_iter().filter(|word| !FLAVOURS.contains(&word.as_str())).collect())
            }
            _ => Some(vec![OF_MAKE.to_owned()]),
        }
    }
}

impl Experiment {
    /// The commands that make the guests of its cells, each once. Empty if all are bare-metal guests.
    pub fn builders(&self) -> Vec<Vec<String>> {
        let mut all: Vec<Vec<String>> = self.cells().iter().filter_map(|cell| cell.guest().builder()).collect();
        all.sort();
        all.dedup();
        all
    }

    /// The experiment with its columns once for each of these kernels, in place of its own ones. Columns that differ in the kernel alone become one. Cells of bare-metal
    /// guests are left out, and so are published figures, which are of other kernels.
    pub fn over(&self, kernels: &[Kernel]) -> Self {
        let builder = |settings: &Settings| {
            let name = settings.guest.as_deref().or(self.defaults.guest.as_deref());
            name.and_then(|name| self.guests.get(name)).and_then(Guest::builder)
        };
        let same = |a: &Line, b: &Line| {
            let apart = |settings: &Settings| Settings { guest: None, ..settings.clone() };
            apart(&a.settings) == apart(&b.settings) && builder(&a.settings) == builder(&b.settings)
        };
        // The first of the columns that become one.
        let kept: Vec<usize> = (0..self.columns.len())
            .filter(|&at| !(0..at).any(|before| same(&self.columns[before], &self.columns[at])))
            .collect();
        let mut over = self.clone();
        over.columns = Vec::new();
        // With a single kernel, the columns are compared as the experiment says; with several, the kernels are.
        let place = |at: usize| kept.iter().position(|&first| same(&self.columns[first], &self.columns[at]));
        over.factors = self
            .factors
            .iter()
            .filter_map(|factor| match *factor {
                Factor::Rows(..) => Some(*factor),
                Factor::Columns(from, to) if kernels.len() == 1 => place(from)
                    .zip(place(to))
                    .filter(|(from, to)| from != to)
                    .map(|(from, to)| Factor::Columns(from, to)),
                Factor::Columns(..) => None,
            })
            .collect();
        over.skips = Vec::new();
        over.relative_to = None;
        over.source = None;
        over.rows.iter_mut().for_each(|row| row.published.clear());
        for (number, kernel) in kernels.iter().enumerate() {
            for (name, guest) in &self.guests {
                let image = guest.builder().and_then(|builder| kernel.guests.get(&builder));
                if let Some(image) = image {
                    over.guests.insert(of_kernel(name, number), Guest { image: image.clone(), ..guest.clone() });
                }
            }
            for (place, &at) in kept.iter().enumerate() {
                let Line { id, title, settings } = &self.columns[at];
                let line = Line {
                    id: format!("kernel{}-{id}", number + 1),
                    title: if kept.len() == 1 { kernel.name.clone() } else { format!("{}, {title}", kernel.name) },
                    settings: Settings { kernel: Some(number), ..settings.clone() },
                };
                if number > 0 {
                    over.factors.push(Factor::Columns((number - 1) * kept.len() + place, number * kept.len() + place));
                }
                let column = over.columns.len();
                over.columns.push(line);
                for row in 0..self.rows.len() {
                    let cell = super::Cell::new(self, row, at);
                    let reason = match self.skipped(row, at) {
                        Some(reason) => reason.to_owned(),
                        None if cell.guest().builder().is_none() => "no Linux is run here".to_owned(),
                        None => continue,
                    };
                    over.skips.push(Skip { row, column, reason });
                }
            }
        }
        over
    }
}

/// The name of a guest with a kernel of the user. A guest of the file has no such name, because `@` is no part of one that its cells can use.
pub(super) fn of_kernel(guest: &str, kernel: usize) -> GuestName {
    format!("{guest}@{kernel}")
}

#[cfg(test)]
mod tests {
    use super::super::{Cell, parse};
    use super::*;

    const TWO_KERNELS: &str = r#"
title = "Sample"
[source]
text = "Somebody, once"
reference = "<1@example.org>"
[defaults]
profile = "skx"
platform = "bare"
[guest.old]
kernel = "cache/kernel-amd64/vmlinuz"
initrd = "out/net-amd64.cpio"
made-by = "guests/linux/net/build amd64"
[guest.new]
kernel = "cache/kernel-backports/vmlinuz"
initrd = "out/net-backports.cpio"
made-by = "guests/linux/net/build backports-amd64"
[[column]]
id = "none"
title = "none"
set = { guest = "old", append = "mitigations=off" }
[[column]]
id = "auto"
title = "default"
set = { guest = "old", append = "mitigations=auto" }
[[column]]
id = "new-none"
title = "new, none"
set = { guest = "new", append = "mitigations=off" }
[[row]]
id = "r"
title = "R"
metric = { region = "work", unit = "us" }
published = { none = 1.5 }
[[row]]
id = "s"
title = "S"
metric = { region = "work", unit = "us" }
[[skip]]
row = "s"
column = "auto"
reason = "too long"
"#;

    fn kernel(name: &str, builder: &str) -> Kernel {
        let image = Image::Linux { kernel: format!("/{name}/bzImage"), initrd: Some(format!("/{name}/cpio")) };
        let builder = builder.split_whitespace().map(str::to_owned).collect();
        Kernel { name: name.to_owned(), guests: [(builder, image)].into() }
    }

    #[test]
    fn each_column_is_run_with_each_kernel() {
        let experiment = parse::experiment("x.toml", "x", None, TWO_KERNELS).unwrap();
        assert_eq!(experiment.builders(), [["guests/linux/net/build"]]);
        let over =
            experiment.over(&[kernel("mine", "guests/linux/net/build"), kernel("theirs", "guests/linux/net/build")]);
        let titles: Vec<&str> = over.columns.iter().map(|column| column.title.as_str()).collect();
        assert_eq!(titles, ["mine, none", "mine, default", "theirs, none", "theirs, default"]);
        assert_eq!(over.factors, [Factor::Columns(0, 2), Factor::Columns(1, 3)]);
        let cells: Vec<String> = over.cells().iter().map(Cell::id).collect();
        let six = [
            "r/kernel1-none",
            "r/kernel1-auto",
            "r/kernel2-none",
            "r/kernel2-auto",
            "s/kernel1-none",
            "s/kernel2-none",
        ];
        assert_eq!(cells, six, "the cell that is left out is left out for both");
        assert_eq!(over.cells()[2].files(), ["/theirs/bzImage", "/theirs/cpio"]);
        assert!(over.cells()[3].command_line().contains("mitigations=auto"));
        assert!(over.cells().iter().all(|cell| cell.published().is_none()));
    }

    #[test]
    fn a_single_kernel_keeps_the_factors_of_the_columns() {
        let factors = "[[factor]]\nfrom = \"auto\"\nto = \"none\"\n[[factor]]\nfrom = \"none\"\nto = \"new-none\"\n";
        let experiment = parse::experiment("x.toml", "x", None, &(TWO_KERNELS.to_owned() + factors)).unwrap();
        let kernels = ["mine", "theirs"].map(|name| kernel(name, "guests/linux/net/build"));
        assert_eq!(experiment.over(&kernels[..1]).factors, [Factor::Columns(1, 0)]);
        assert_eq!(experiment.over(&kernels).factors, [Factor::Columns(0, 2), Factor::Columns(1, 3)]);
    }

    #[test]
    fn guests_of_one_kind_have_one_command() {
        for name in super::super::names() {
            let experiment = Experiment::named(name).unwrap();
            for builder in experiment.builders() {
                assert!(builder[0].starts_with("guests/linux/"), "{name}: {builder:?}");
                assert!(!builder.iter().any(|word| FLAVOURS.contains(&word.as_str())), "{name}: {builder:?}");
            }
        }
        assert_eq!(Experiment::named("pv-cr3").unwrap().builders(), Vec::<Vec<String>>::new());
        assert_eq!(Experiment::named("linux-workloads").unwrap().builders(), [[OF_MAKE]]);
    }

    #[test]
    fn bare_metal_guests_are_left_out() {
        let text = TWO_KERNELS
            .replace("[[row]]\nid = \"s\"", "[guest.bare]\nimage = \"x.elf\"\nmade-by = \"make\"\n[[row]]\nid = \"s\"")
            .replace("guest = \"old\", append = \"mitigations=auto\"", "guest = \"bare\"");
        let experiment = parse::experiment("x.toml", "x", None, &text).unwrap();
        let over = experiment.over(&[kernel("mine", "guests/linux/net/build")]);
        assert_eq!(over.cells().iter().map(Cell::id).collect::<Vec<_>>(), ["r/kernel1-none", "s/kernel1-none"]);
        assert_eq!(over.skipped(0, 1), Some("no Linux is run here"));
    }
}
