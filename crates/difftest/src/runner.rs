//! The run: executes cases of many forms and collects the differences.

use crate::case::{self, Case, Generator};
use crate::compare;
use crate::emulated::Emulated;
use crate::forms::Form;
use crate::layout::{ARENA, writable};
use crate::native::{HostTraits, Native, Unavailable};
use crate::state::{Difference, fields, show};
use crate::vendor;
use iced_x86::{Code, Formatter, GasFormatter};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A case whose outcomes differ.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mismatch {
    /// Family in the instruction table.
    pub family: String,
    /// The requested decoder code.
    pub code: String,
    /// Width of code.
    pub bits: u32,
    /// Seed of the run.
    pub seed: u64,
    /// Number of the case within seed and form.
    pub index: u64,
    /// The instruction in AT&T syntax.
    pub instruction: String,
    /// The instruction's bytes.
    pub bytes: String,
    /// Differences between the outcomes.
    pub differences: Vec<Difference>,
    /// State before the instruction: registers that it names, flags, control words.
    pub before: BTreeMap<String, String>,
}

impl Mismatch {
    /// Returns the arguments that repeat this case alone.
    pub fn repeat(&self) -> String {
        format!("difftest --mode {} --code {} --seed {} --index {}", self.bits, self.code, self.seed, self.index)
    }
}

/// Counts of one family.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Number of forms.
    pub forms: u64,
    /// Number of compared cases.
    pub cases: u64,
    /// Number of these cases that raised an exception natively.
    pub exceptions: u64,
    /// Number of cases for which no harmless instruction was found.
    pub skipped: u64,
    /// Number of cases whose outcomes differ.
    pub mismatches: u64,
}

impl Tally {
    /// Adds the counts of another tally.
    pub fn add(&mut self, other: &Tally) {
        self.forms += other.forms;
        self.cases += other.cases;
        self.exceptions += other.exceptions;
        self.skipped += other.skipped;
        self.mismatches += other.mismatches;
    }
}

/// Both sides and a generator.
pub struct Runner {
    seed: u64,
    bits: u32,
    generator: Generator,
    native: Native,
    emulated: Emulated,
    host: HostTraits,
    pristine: Box<[u8; crate::layout::ARENA_LEN]>,
}

impl Runner {
    /// Creates a runner for code of this width (64 or 32 bits).
    pub fn new(seed: u64, bits: u32) -> Result<Self, Unavailable> {
        let pristine = case::arena();
        let native = Native::new(&pristine)?;
        let emulated = Emulated::new(&pristine, bits == 64);
        let generator = Generator::new(seed, bits);
        Ok(Self { seed, bits, generator, native, emulated, host: HostTraits::new(), pristine })
    }

    /// Runs one case. Returns `None` if there is no such case or no difference.
    pub fn case(&mut self, form: &Form, index: u64, tally: &mut Tally) -> Option<Mismatch> {
        let Some(case) = self.generator.case(form.code, index) else {
            tally.skipped += 1;
            return None;
        };
        tally.cases += 1;
        for range in writable() {
            let address = ARENA + range.start as u64;
            self.native.poke(address, &self.pristine[range.clone()]);
            self.emulated.poke(address, &self.pristine[range]);
        }
        for poke in &case.pokes {
            self.native.poke(poke.address, &poke.bytes);
            self.emulated.poke(poke.address, &poke.bytes);
        }
        let emulated = self.emulated.execute(&case.bytes, &case.state);
        let native = self.native.execute(&case.bytes, &case.state, self.bits == 64);
        tally.exceptions += u64::from(native.exception.is_some());
        if self.host.amd && vendor::incomparable(&case, &native, &emulated) {
            return None;
        }
        let mut differences = compare::outcomes(&case, &native, &emulated, self.host);
        let compared = if compare::stores_in_parts(&case, &native) { [0..0, 0..0] } else { writable() };
        for range in compared {
            let (a, b) = (self.native.memory(range.clone()), self.emulated.memory(range.clone()));
            differences.extend(compare::memory(a, b, range.start));
        }
        if differences.is_empty() {
            return None;
        }
        tally.mismatches += 1;
        Some(self.describe(form, index, &case, differences))
    }

    fn describe(&self, form: &Form, index: u64, case: &Case, differences: Vec<Difference>) -> Mismatch {
        let mut instruction = String::new();
        GasFormatter::new().format(&case.instruction, &mut instruction);
        let mut before: BTreeMap<_, _> = fields(&case.state)
            .into_iter()
            .filter(|(name, ..)| name != "rip")
            .map(|(name, value, size)| (name, show(value, size)))
            .collect();
        for poke in &case.pokes {
            let hex = hex(&poke.bytes);
            before.insert(format!("memory {:#x}", poke.address), hex);
        }
        Mismatch {
            family: form.family.to_string(),
            code: format!("{:?}", form.code),
            bits: self.bits,
            seed: self.seed,
            index,
            instruction,
            bytes: hex(&case.bytes),
            differences,
            before,
        }
    }

    /// Runs the cases of these numbers of every form. `report` receives each mismatch and the progress.
    pub fn run(
        &mut self,
        forms: &[Form],
        indices: impl Iterator<Item = u64> + Clone,
        mut report: impl FnMut(Report),
    ) -> BTreeMap<String, Tally> {
        let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
        for form in forms {
            let tally = tallies.entry(form.family.to_string()).or_default();
            tally.forms += 1;
            let before = tally.cases;
            report(Report::Begins(form.code));
            for index in indices.clone() {
                if let Some(mismatch) = self.case(form, index, tally) {
                    report(Report::Mismatch(Box::new(mismatch)));
                }
            }
            report(Report::Done(tally.cases - before));
        }
        tallies
    }
}

/// A report of [`Runner::run`].
pub enum Report {
    /// A form's cases begin.
    Begins(Code),
    /// A mismatch was found.
    Mismatch(Box<Mismatch>),
    /// This many cases of a form are done.
    Done(u64),
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
}
