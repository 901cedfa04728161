//! What is told apart when a guest executes more distinct code than a run can hold.
//!
//! A run has one [`Coarseness`]. It grows by a step whenever what was charged so far does not fit, and it never shrinks. Each
//! step maps the keys of the step before, so the outcome depends on what was charged and not on the order in which it
//! arrived: the last step is the first one at which everything fits. Both tiers hand over their counts in orders of their
//! own, and still give the same ledger.

use super::Origin;
use crate::Kind;

/// Bytes in a page, the first range that addresses fold into.
pub const PAGE: u64 = 4096;
/// Bytes in half of the address space.
pub const HALF: u64 = 1 << 63;

/// A range of addresses that are charged as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Range {
    /// Its first address.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
}

impl Range {
    /// The page that an address is in.
    pub fn page(rip: u64) -> Self {
        Self { start: rip & !(PAGE - 1), len: PAGE }
    }

    /// The half of the address space that an address is in.
    pub fn half(rip: u64) -> Self {
        Self { start: rip & HALF, len: HALF }
    }
}

/// What an address is kept as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grain {
    Exact,
    Page,
    Half,
}

struct Step {
    /// Code of ring 3: on Linux it has no symbols, and most of it.
    user: Grain,
    /// All other code.
    other: Grain,
    /// Whether the upper half of other rings, which all spaces share on Linux, is told apart by space.
    kernel_spaces: bool,
    /// Whether numbers that a guest chooses, such as MSRs and ports, are told apart.
    params: bool,
    /// Whether spaces are told apart at all.
    spaces: bool,
    what: &'static str,
}

const fn step(user: Grain, other: Grain, kept: [bool; 3], what: &'static str) -> Step {
    let [kernel_spaces, params, spaces] = kept;
    Step { user, other, kernel_spaces, params, spaces, what }
}

/// From the finest to the coarsest, which bounds the number of entries whatever the guest does.
const STEPS: [Step; 8] = [
    step(Grain::Exact, Grain::Exact, [true, true, true], ""),
    step(Grain::Page, Grain::Exact, [true, true, true], "user code by pages of 4 KiB"),
    step(Grain::Half, Grain::Exact, [true, true, true], "user code without addresses"),
    step(
        Grain::Half,
        Grain::Exact,
        [false, true, true],
        "user code without addresses, the kernel's without address spaces",
    ),
    step(Grain::Half, Grain::Page, [false, true, true], "user code without addresses, other code by pages of 4 KiB"),
    step(Grain::Half, Grain::Half, [false, true, true], "all code without addresses"),
    step(Grain::Half, Grain::Half, [false, false, true], "all code without addresses, and events without numbers"),
    step(
        Grain::Half,
        Grain::Half,
        [false, false, false],
        "all code without addresses and address spaces, and events without numbers",
    ),
];

/// How coarsely a run was recorded: 0 for exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Coarseness(u8);

impl Coarseness {
    /// The coarseness of that number.
    pub fn from_index(number: u64) -> Option<Self> {
        (number < STEPS.len() as u64).then_some(Self(number as u8))
    }

    /// Its number.
    pub fn index(self) -> u8 {
        self.0
    }

    /// The next coarser one; `None` after the last.
    pub fn next(self) -> Option<Self> {
        Self::from_index(u64::from(self.0) + 1)
    }

    /// What was not told apart; empty if everything was.
    pub fn describe(self) -> &'static str {
        self.step().what
    }

    fn step(self) -> &'static Step {
        &STEPS[usize::from(self.0)]
    }

    /// Who is charged for an address in place of `origin`.
    pub fn origin(self, origin: Origin, rip: u64) -> Origin {
        let Step { kernel_spaces, spaces, .. } = *self.step();
        let shared = origin.ring != 3 && rip & HALF != 0;
        if spaces && (kernel_spaces || !shared) { origin } else { Origin { space: 0, ..origin } }
    }

    /// The range that stands for an address of `origin`; `None` if the address is kept.
    pub fn range(self, origin: Origin, rip: u64) -> Option<Range> {
        let step = self.step();
        match if origin.ring == 3 { step.user } else { step.other } {
            Grain::Exact => None,
            Grain::Page => Some(Range::page(rip)),
            Grain::Half => Some(Range::half(rip)),
        }
    }

    /// The kind that is charged in place of `kind`.
    pub fn kind(self, kind: Kind) -> Kind {
        if self.step().params { kind } else { kind.without_number() }
    }
}
