//! A core: its forms and the figures of its pipeline.

mod data;
pub mod forms;
pub mod parameters;

pub use forms::{FormId, Forms, NO_FORM, Values};
pub use parameters::Parameters;

use std::sync::OnceLock;

/// Most bounds of a core: sets of ports, and the units that are not ports.
pub const BOUNDS: usize = 48;

/// Bound of issue slots.
pub(crate) const ISSUE: usize = 0;
/// Bound of the front end's way around a taken branch.
pub(crate) const FETCH: usize = 1;
/// Bound of the integer divider.
pub(crate) const DIVIDER: usize = 2;
/// Bound of the divider of vectors.
pub(crate) const VECTOR_DIVIDER: usize = 3;
/// Bound of all that proceeds one after the other: locked instructions, microcode.
pub(crate) const SERIAL: usize = 4;
/// Bound of stores that the cache takes.
pub(crate) const COMMIT: usize = 5;
/// First bound that is a set of ports.
const FIRST_PORTS: usize = 6;

/// A failure to read a core's data.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// No core has this name.
    #[error("there is no core `{name}`; the cores are {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The names of all cores.
        known: String,
    },
    /// A line of the table of forms is wrong.
    #[error("{file}, line {line}: {what}")]
    Form {
        /// File.
        file: String,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// The file of parameters is wrong.
    #[error("{file}: {source}")]
    Parameters {
        /// File.
        file: String,
        /// What is wrong.
        source: toml::de::Error,
    },
    /// The file of parameters is wrong.
    #[error("{file}: {what}")]
    Parameter {
        /// File.
        file: String,
        /// What is wrong.
        what: String,
    },
}

/// What a set of ports must do for one instruction: the bound's number and ticks.
pub type Load = (u8, u32);

/// A core.
#[derive(Debug)]
pub struct CoreTable {
    /// Name, as in the names of its files.
    pub name: String,
    /// Figures of the pipeline.
    pub parameters: Parameters,
    /// Forms of instructions.
    pub forms: Forms,
    /// Loads of the bounds by form.
    loads: Vec<Vec<Load>>,
    /// Loads of a memory read and of a memory write, by width: general, up to 128 bits, 256 bits, 512 bits.
    memory: [[Vec<Load>; 4]; 2],
    /// The sets of ports that are bounds, from [`FIRST_PORTS`].
    sets: Vec<u32>,
    /// Uops of a branch that is fused with a comparison.
    branch: Vec<Load>,
}

impl CoreTable {
    /// Names of the cores, sorted.
    pub fn names() -> impl Iterator<Item = &'static str> {
        data::CORES.iter().map(|core| core.0)
    }

    /// Returns a core by its name. It is parsed at the first call.
    pub fn named(name: &str) -> Result<&'static Self, CoreError> {
        static PARSED: [OnceLock<CoreTable>; data::CORES.len()] = [const { OnceLock::new() }; data::CORES.len()];
        let known = || Self::names().collect::<Vec<_>>().join(", ");
        let at = data::CORES.iter().position(|core| core.0 == name);
        let at = at.ok_or_else(|| CoreError::Unknown { name: name.chars().take(80).collect(), known: known() })?;
        if let Some(core) = PARSED[at].get() {
            return Ok(core);
        }
        let (name, parameters, forms) = data::CORES[at];
        let core = Self::parse(name, parameters, forms)?;
        Ok(PARSED[at].get_or_init(|| core))
    }

    /// Returns the two files of a core that is built in: its parameters and its forms.
    pub fn files(name: &str) -> Option<(&'static str, &'static str)> {
        data::CORES.iter().find(|core| core.0 == name).map(|core| (core.1, core.2))
    }

    /// Parses the two files of a core.
    pub fn parse(name: &str, parameters: &str, forms: &str) -> Result<Self, CoreError> {
        let file = format!("profiles/cores/{name}.toml");
        let parameters: Parameters =
            toml::from_str(parameters).map_err(|source| CoreError::Parameters { file: file.clone(), source })?;
        let wrong = |what: String| CoreError::Parameter { file: file.clone(), what };
        parameters.check().map_err(&wrong)?;
        let forms = Forms::parse(&format!("profiles/cores/{name}.forms"), forms, |names| parameters.ports(names))?;
        let group = |names: &str| parameters.ports(names).ok_or_else(|| wrong(format!("`{names}` is no set of ports")));
        let memory = &parameters.memory;
        let mut accesses: Vec<Vec<u32>> = Vec::new();
        for names in memory.load_ports.iter().chain(&memory.store_ports) {
            accesses.push(names.split('+').filter(|names| !names.is_empty()).map(group).collect::<Result<_, _>>()?);
        }
        let branch = group(&parameters.front.branch_ports)?;
        let mut masks: Vec<u32> = forms.all().iter().flat_map(|form| form.uops.iter().map(|uops| uops.ports)).collect();
        masks.extend(accesses.iter().flatten().copied());
        masks.push(branch);
        let sets = bounds(&masks);
        if FIRST_PORTS + sets.len() > BOUNDS {
            return Err(wrong(format!("{} sets of ports are more than there may be", sets.len())));
        }
        let load = |uops: &[(u32, u32)]| load(&sets, uops);
        let loads = forms
            .all()
            .iter()
            .map(|form| load(&form.uops.iter().map(|uops| (uops.ports, u32::from(uops.count))).collect::<Vec<_>>()))
            .collect();
        let mut by_access =
            accesses.iter().map(|ports| load(&ports.iter().map(|ports| (*ports, 1)).collect::<Vec<_>>()));
        let memory = std::array::from_fn(|_| std::array::from_fn(|_| by_access.next().unwrap_or_default()));
        let branch = load(&[(branch, 1)]);
        Ok(Self { name: name.into(), parameters, forms, loads, memory, sets, branch })
    }

    /// Returns the loads of a form's uops.
    pub(crate) fn loads(&self, form: FormId) -> &[Load] {
        self.loads.get(usize::from(form)).map_or(&[], |loads| loads)
    }

    /// Returns the loads of a read or a write of memory, by width.
    pub(crate) fn memory(&self, write: bool, width: usize) -> &[Load] {
        &self.memory[usize::from(write)][width]
    }

    /// Returns the loads of a branch that is fused with a comparison.
    pub(crate) fn branch(&self) -> &[Load] {
        &self.branch
    }

    /// Returns the name of a bound, for reports.
    pub fn bound(&self, bound: usize) -> String {
        match bound {
            ISSUE => "issue width".into(),
            FETCH => "taken branches".into(),
            DIVIDER => "divider".into(),
            VECTOR_DIVIDER => "vector divider".into(),
            SERIAL => "serial execution".into(),
            COMMIT => "stores".into(),
            _ => self.parameters.names(self.sets.get(bound - FIRST_PORTS).copied().unwrap_or(0)),
        }
    }

    /// Number of bounds.
    pub(crate) fn bounds(&self) -> usize {
        FIRST_PORTS + self.sets.len()
    }
}

/// Returns the sets of ports whose loads bound the time: those of single uops, and unions of two that overlap.
fn bounds(masks: &[u32]) -> Vec<u32> {
    let mut counted: Vec<(usize, u32)> = Vec::new();
    for mask in masks {
        match counted.iter_mut().find(|entry| entry.1 == *mask) {
            Some(entry) => entry.0 += 1,
            None => counted.push((1, *mask)),
        }
    }
    counted.sort_by_key(|&(count, mask)| (std::cmp::Reverse(count), mask));
    let mut sets: Vec<u32> = counted.iter().map(|entry| entry.1).collect();
    for (n, a) in counted.iter().enumerate() {
        for b in &counted[..n] {
            let union = a.1 | b.1;
            // A set that few forms use, or one wider than all that executes an instruction's work, is seldom a bottleneck.
            if a.1 & b.1 != 0 && !sets.contains(&union) && sets.len() + FIRST_PORTS < BOUNDS {
                sets.push(union);
            }
        }
    }
    sets
}

/// Returns the loads of uops on the bounds: a set of ports must execute each uop that no other port can.
fn load(sets: &[u32], uops: &[(u32, u32)]) -> Vec<Load> {
    let mut loads = Vec::new();
    for (n, set) in sets.iter().enumerate() {
        let count: u32 = uops.iter().filter(|uop| uop.0 & !set == 0).map(|uop| uop.1).sum();
        if count > 0 {
            loads.push(((FIRST_PORTS + n) as u8, (count * 1000).div_ceil(set.count_ones())));
        }
    }
    loads
}
