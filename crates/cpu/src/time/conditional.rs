//! The modelled predictor for the directions of conditional branches.
//!
//! It has the form of the predictors that processors have had since about 2010: a base, and tables of patterns that are
//! indexed and tagged by the branch and by histories of increasing length (TAGE: Seznec and Michaud, A case for (partially)
//! tagged geometric history length branch prediction, 2006). Branches that go one way almost always are kept apart, so
//! that they neither lengthen histories nor fill tables; most executed branches are such, and for them a correct
//! prediction changes nothing. Translated code therefore only compares a byte, and calls `translate::predict` for the
//! others, which does what [`Conditional::predicts`] does.
//!
//! The state is the same for every profile: the sizes are of the order of a current core's, and no manual publishes them.

use serde::{Deserialize, Serialize};
use std::mem::offset_of;

/// Log2 of the number of branches that the base tells apart.
const BASE_BITS: u32 = 14;
/// Log2 of the number of entries of a table of patterns.
const TABLE_BITS: u32 = 12;
/// Entries of a table of patterns.
pub(crate) const ENTRIES: usize = 1 << TABLE_BITS;
/// Number of tables of patterns.
pub(crate) const TABLES: usize = 3;
/// Number of directions in the history of each table.
pub(crate) const LENGTHS: [u8; TABLES] = [5, 13, 34];
/// Factors by which histories become positions and tags: odd numbers whose bits have no pattern, for multiplicative hashing.
pub(crate) const FACTORS: [u64; TABLES] = [0xc2b2_ae3d_27d4_eb4f, 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];
/// Factor by which the address of a branch becomes its key.
const KEY: u64 = 0x9e37_79b9_7f4a_7c15;
/// Times for which a branch goes one way until it counts as one that always does.
pub(crate) const STEADY: i8 = 127;

/// Shift of the tag within the bits of a hash that are not the position.
pub(crate) const TAG_SHIFT: u32 = 64 - TABLE_BITS - TAG_BITS;
/// Bits of a tag.
pub(crate) const TAG_BITS: u32 = 11;
/// Shift of a hash to the position.
pub(crate) const POSITION_SHIFT: u32 = 64 - TABLE_BITS;
/// Shift of a key to the position in the base.
pub(crate) const BASE_SHIFT: u32 = 64 - BASE_BITS;

// An entry of a table: the tag, two bits that count how often the entry was better than a shorter history, and three that
// count directions.
/// Shift of the tag in an entry.
pub(crate) const ENTRY_TAG: u32 = 5;
/// Bits of an entry that count how useful it was.
pub(crate) const USEFUL: u16 = 0x18;
/// One step of that count.
pub(crate) const USEFUL_STEP: u16 = 8;
/// Bits of an entry that count directions.
const DIRECTION: u16 = 7;
/// The least count of directions that predicts a taken branch.
pub(crate) const TAKEN: u16 = 4;
/// The greatest count of directions that predicts a branch that is not taken.
pub(crate) const NOT_TAKEN: u16 = 3;

/// State of the predictor.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
#[serde(into = "Saved", try_from = "Saved")]
pub struct Conditional {
    /// Directions of the last branches that are not steady, the last one in bit 0.
    history: u64,
    /// Tables of patterns.
    tables: [[u16; ENTRIES]; TABLES],
    /// For each branch: how often it has gone the same way, negative if it was not taken; halved when it goes the other
    /// way.
    base: [i8; 1 << BASE_BITS],
}

/// Form in saved states.
#[derive(Serialize, Deserialize)]
struct Saved {
    history: u64,
    tables: Vec<u16>,
    base: Vec<i8>,
}

impl From<Conditional> for Saved {
    fn from(from: Conditional) -> Self {
        Self { history: from.history, tables: from.tables.concat(), base: from.base.to_vec() }
    }
}

impl TryFrom<Saved> for Conditional {
    type Error = &'static str;

    fn try_from(saved: Saved) -> Result<Self, Self::Error> {
        const ERROR: &str = "a branch predictor of another size";
        let mut new = Self { history: saved.history, ..Self::default() };
        if saved.tables.len() != TABLES * ENTRIES {
            return Err(ERROR);
        }
        for (table, saved) in new.tables.iter_mut().zip(saved.tables.chunks_exact(ENTRIES)) {
            table.copy_from_slice(saved);
        }
        new.base = saved.base.try_into().map_err(|_| ERROR)?;
        // A count of -128 cannot be reached.
        new.base.iter().all(|count| *count >= -STEADY).then_some(new).ok_or(ERROR)
    }
}

impl Default for Conditional {
    fn default() -> Self {
        Self { history: 0, tables: [[NOT_TAKEN; ENTRIES]; TABLES], base: [0; 1 << BASE_BITS] }
    }
}

/// Returns the key of a branch: even, because translated code keeps the direction in bit 0.
pub(crate) fn key(from: u64) -> u64 {
    from.wrapping_mul(KEY) & !1
}

/// Returns the base's count of a branch after it has gone the way of the count (`agrees` is not negative) or another.
fn count(agrees: i8) -> i8 {
    if agrees >= 0 { agrees.saturating_add(1) } else { -(-agrees >> 1) }
}

impl Conditional {
    /// Distance of the history from the begin.
    pub(crate) const HISTORY: usize = offset_of!(Self, history);
    /// Distance of the tables from the begin.
    pub(crate) const TABLES: usize = offset_of!(Self, tables);
    /// Distance of the base from the begin.
    pub(crate) const BASE: usize = offset_of!(Self, base);

    /// Returns the distance of a branch's count in the base from the begin.
    pub(crate) fn count_of(key: u64) -> usize {
        Self::BASE + (key >> BASE_SHIFT) as usize
    }

    /// Returns the position and tag of a branch in a table.
    fn place(&self, table: usize, key: u64) -> (usize, u16) {
        let history = self.history & ((1 << LENGTHS[table]) - 1);
        let hash = history.wrapping_mul(FACTORS[table]).wrapping_add(key);
        ((hash >> POSITION_SHIFT) as usize, (hash >> TAG_SHIFT & ((1 << TAG_BITS) - 1)) as u16)
    }

    /// Records the direction of the branch with a key. Returns true if it was predicted.
    pub(crate) fn predicts(&mut self, key: u64, taken: bool) -> bool {
        let way = |count: i8| if taken { count } else { -count };
        let base = &mut self.base[(key >> BASE_SHIFT) as usize];
        if way(*base) == STEADY {
            return true;
        }
        let before = std::mem::replace(base, way(count(way(*base))));
        let predicted = way(before) != -STEADY && self.pattern(key, before > 0, taken);
        self.history = self.history << 1 | u64::from(taken);
        predicted
    }

    /// Predicts a branch by the tables, and lets them learn its direction. `base` is the prediction without them.
    fn pattern(&mut self, key: u64, base: bool, taken: bool) -> bool {
        // The longest history with an entry for this branch provides the prediction, the one before it the alternative.
        let (mut provider, mut prediction, mut alternative) = (None, base, base);
        for table in 0..TABLES {
            let (position, tag) = self.place(table, key);
            let entry = self.tables[table][position];
            if entry >> ENTRY_TAG == tag {
                alternative = prediction;
                prediction = entry & DIRECTION >= TAKEN;
                provider = Some((table, position));
            }
        }
        let mut result = prediction;
        if let Some((table, position)) = provider {
            let entry = &mut self.tables[table][position];
            // An entry that has just been made knows less than the shorter history.
            if matches!(*entry & (USEFUL | DIRECTION), NOT_TAKEN | TAKEN) {
                result = alternative;
            }
            match (taken, *entry & DIRECTION) {
                (true, DIRECTION) | (false, 0) => {}
                (true, _) => *entry += 1,
                (false, _) => *entry -= 1,
            }
            if prediction != alternative {
                match (prediction == taken, *entry & USEFUL) {
                    (true, USEFUL) | (false, 0) => {}
                    (true, _) => *entry += USEFUL_STEP,
                    (false, _) => *entry -= USEFUL_STEP,
                }
            }
        }
        if result != taken {
            self.allocate(provider.map_or(0, |(table, _)| table + 1), key, taken);
        }
        result == taken
    }

    /// Makes an entry for a branch that was not predicted in the first of the tables from `first` whose entry there is not
    /// useful; useful ones become less so.
    fn allocate(&mut self, first: usize, key: u64, taken: bool) {
        for table in first..TABLES {
            let (position, tag) = self.place(table, key);
            let entry = &mut self.tables[table][position];
            if *entry & USEFUL == 0 {
                *entry = tag << ENTRY_TAG | if taken { TAKEN } else { NOT_TAKEN };
                return;
            }
            *entry -= USEFUL_STEP;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the mispredictions among the last `of` of `all` executions of a branch with these directions.
    fn missed(predictor: &mut Conditional, all: usize, of: usize, taken: impl Fn(usize) -> bool) -> usize {
        let missed = |n: &usize| !predictor.predicts(key(0x40_1000), taken(*n));
        (0..all).filter(missed).filter(|n| *n >= all - of).count()
    }

    #[test]
    fn what_always_goes_one_way_is_predicted_and_changes_nothing() {
        for direction in [false, true] {
            let mut predictor = Conditional::default();
            assert_eq!(missed(&mut predictor, 200, 190, |_| direction), 0);
            let before = predictor.clone();
            assert!(predictor.predicts(key(0x40_1000), direction) && predictor == before);
        }
    }

    #[test]
    fn patterns_are_learnt() {
        for period in [2, 3, 5, 8, 13, 21] {
            let taken = |n: usize| n.is_multiple_of(period);
            assert_eq!(missed(&mut Conditional::default(), 8000, 1000, taken), 0, "one in {period}");
        }
        // A fixed sequence of 64 random directions.
        let taken = |n: usize| 0x9d3c_52e1_7b04_a6f9u64 >> (n % 64) & 1 != 0;
        assert_eq!(missed(&mut Conditional::default(), 20_000, 1000, taken), 0);
    }

    #[test]
    fn what_has_no_pattern_is_missed_half_of_the_time() {
        let mut random = testkit::Random::new(1);
        let directions: Vec<bool> = (0..40_000).map(|_| random.below(2) == 0).collect();
        let missed = missed(&mut Conditional::default(), directions.len(), 20_000, |n| directions[n]);
        assert!((9_000..11_500).contains(&missed), "{missed} of 20000");
    }

    #[test]
    fn a_branch_learns_from_another() {
        let mut predictor = Conditional::default();
        let mut random = testkit::Random::new(2);
        let mut missed = 0;
        for n in 0..20_000 {
            let taken = random.below(2) == 0;
            predictor.predicts(key(0x1000), taken);
            missed += usize::from(!predictor.predicts(key(0x2000), !taken) && n >= 19_000);
        }
        assert!(missed < 20, "{missed} of 1000");
    }

    #[test]
    fn a_saved_state_of_another_size_is_refused() {
        let saved = || Saved::from(Conditional::default());
        assert!(Conditional::try_from(saved()).is_ok_and(|state| state == Conditional::default()));
        let wrong = [
            Saved { tables: vec![0; 7], ..saved() },
            Saved { base: vec![0; 7], ..saved() },
            Saved { base: vec![-128; 1 << BASE_BITS], ..saved() },
        ];
        assert!(wrong.into_iter().all(|saved| Conditional::try_from(saved).is_err()));
    }
}
