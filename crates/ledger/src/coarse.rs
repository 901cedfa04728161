//! The distinctions that remain when a guest executes more distinct code than a run can hold.
//!
//! A run has one [`Coarseness`], which grows by a step whenever the charges so far do not fit, and never shrinks. Each step
//! maps the keys of the step before, so the outcome depends on the charges and not on the order in which they
//! arrive: the last step is the first one at which everything fits. The two tiers deliver their counts in different
//! orders, and still produce the same ledger.
//!
//! The same holds for dense areas. An area is dense if more than [`DENSE`] entries were charged in it, whenever that was
//! noticed. Once an area folds, its earlier entries still count as if they were present, so that the required room
//! never shrinks while a guest runs.

use crate::Kind;
use crate::charge::Origin;
use serde::{Deserialize, Serialize};
use x86::page::PAGE;

/// Size in bytes of an area, the unit in which dense code is detected.
pub const AREA: u64 = 1 << 20;
/// Number of blocks and events beyond which an area is dense: twice that of compiled code that is executed completely.
pub const DENSE: usize = 1 << 15;
/// Half of the address space, in bytes.
pub const HALF: u64 = 1 << 63;

/// A range of addresses that is charged as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Range {
    /// Returns the page of an address.
    pub fn page(rip: u64) -> Self {
        Self { start: rip & !(PAGE - 1), len: PAGE }
    }

    /// Returns the half of the address space that an address is in.
    pub fn half(rip: u64) -> Self {
        Self { start: rip & HALF, len: HALF }
    }
}

/// The unit in which an address is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grain {
    Exact,
    Page,
    Half,
}

struct Step {
    /// True if tasks of one name are distinguished.
    numbers: bool,
    /// True if areas of [`AREA`] bytes with much code are kept by pages; areas with less code are not affected.
    dense: bool,
    /// Code of ring 3, which on Linux is most of the code and has no symbols.
    user: Grain,
    /// All other code.
    other: Grain,
    /// True if the upper half in other rings, which all spaces share on Linux, is distinguished by space.
    kernel_spaces: bool,
    /// True if numbers that a guest chooses, such as MSRs and ports, are distinguished.
    params: bool,
    /// True if spaces and tasks are distinguished at all.
    spaces: bool,
    what: &'static str,
}

const fn step(dense: bool, [user, other]: [Grain; 2], kept: [bool; 3], what: &'static str) -> Step {
    let [kernel_spaces, params, spaces] = kept;
    Step { numbers: false, dense, user, other, kernel_spaces, params, spaces, what }
}

const EXACT: Grain = Grain::Exact;

/// The steps from the finest to the coarsest, which bounds the number of entries for any guest.
const STEPS: [Step; 10] = [
    Step { numbers: true, ..step(false, [EXACT, EXACT], [true, true, true], "") },
    step(false, [EXACT, EXACT], [true, true, true], "tasks by name"),
    step(true, [EXACT, EXACT], [true, true, true], "tasks by name, areas with much code by pages of 4 KiB"),
    step(
        true,
        [Grain::Page, EXACT],
        [true, true, true],
        "tasks by name, user code and areas with much code by pages of 4 KiB",
    ),
    step(
        true,
        [Grain::Half, EXACT],
        [true, true, true],
        "tasks by name, user code without addresses, areas with much code by pages of 4 KiB",
    ),
    step(
        true,
        [Grain::Half, EXACT],
        [false, true, true],
        "tasks by name, user code without addresses, the kernel's without address spaces, areas with much code by pages of 4 KiB",
    ),
    step(
        false,
        [Grain::Half, Grain::Page],
        [false, true, true],
        "tasks by name, user code without addresses, other code by pages of 4 KiB",
    ),
    step(false, [Grain::Half, Grain::Half], [false, true, true], "tasks by name, all code without addresses"),
    step(
        false,
        [Grain::Half, Grain::Half],
        [false, false, true],
        "tasks by name, all code without addresses, and events without numbers",
    ),
    step(
        false,
        [Grain::Half, Grain::Half],
        [false, false, false],
        "all code without addresses, address spaces and tasks, and events without numbers",
    ),
];

/// The coarseness of a record; 0 is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Coarseness(u8);

impl Coarseness {
    /// Returns the coarseness with an index.
    pub fn from_index(number: u64) -> Option<Self> {
        (number < STEPS.len() as u64).then_some(Self(number as u8))
    }

    /// Returns the index.
    pub fn index(self) -> u8 {
        self.0
    }

    /// Returns the next coarser one, or `None` after the last.
    pub fn next(self) -> Option<Self> {
        Self::from_index(u64::from(self.0) + 1)
    }

    /// Describes the missing distinctions; empty if there are none.
    pub fn describe(self) -> &'static str {
        self.step().what
    }

    fn step(self) -> &'static Step {
        &STEPS[usize::from(self.0)]
    }

    /// Returns true if tasks of one name are distinguished.
    pub(super) fn tells_tasks(self) -> bool {
        self.step().numbers
    }

    /// Returns true if dense areas are kept by pages.
    pub(super) fn folds_dense(self) -> bool {
        self.step().dense
    }

    /// Returns true if no address is folded into a range.
    pub(super) fn keeps_addresses(self) -> bool {
        let Step { dense, user, other, .. } = *self.step();
        !dense && user == EXACT && other == EXACT
    }

    /// Returns true if some blocks are kept exactly, with their shapes.
    pub(super) fn keeps_shapes(self) -> bool {
        self.step().other == EXACT
    }

    /// Returns the origin that is charged in place of `origin` for an address.
    pub fn origin(self, origin: Origin, rip: u64) -> Origin {
        let Step { kernel_spaces, spaces, .. } = *self.step();
        let shared = origin.ring != 3 && rip & HALF != 0;
        match (spaces, kernel_spaces || !shared) {
            (true, true) => origin,
            (true, false) => Origin { space: 0, ..origin },
            (false, _) => origin.without_place(),
        }
    }

    /// Returns the range that an address of `origin` is folded into; `None` if the address is kept unless its area is dense.
    pub fn range(self, origin: Origin, rip: u64) -> Option<Range> {
        let step = self.step();
        match if origin.ring == 3 { step.user } else { step.other } {
            EXACT => None,
            Grain::Page => Some(Range::page(rip)),
            Grain::Half => Some(Range::half(rip)),
        }
    }

    /// Returns the kind that is charged in place of `kind`.
    pub fn kind(self, kind: Kind) -> Kind {
        if self.step().params { kind } else { kind.without_number() }
    }
}
