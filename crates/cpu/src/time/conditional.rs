//! The modelled predictor for the directions of conditional branches.
//!
//! It has the form of the predictors that processors have had since about 2010: a base, and tables of patterns that are
//! indexed and tagged by the branch and by histories of increasing length (TAGE: Seznec and Michaud, A case for (partially)
//! tagged geometric history length branch prediction, 2006). Branches that go one way almost always are kept apart, so
//! that they neither lengthen histories nor fill tables; most executed branches are such, and for them a correct
//! prediction changes nothing. Translated code therefore only compares a byte, and calls `translate::predict` for the
//! others, which does what [`Conditional::predicts`] does.
//!
//! The history is a path: it has the direction and a bit of the address of each branch that is not steady, so it also tells which way
//! was taken between them, where only steady branches are.
//!
//! The state is the same for every profile: the sizes are of the order of a current core's, and no manual publishes them.

use serde::{Deserialize, Serialize};
use std::mem::offset_of;

/// Log2 of the number of branches that the base tells apart.
const BASE_BITS: u32 = 14;
/// Log2 of the number of entries of a table of patterns.
const TABLE_BITS: u32 = 13;
/// Entries of a table of patterns.
pub(crate) const ENTRIES: usize = 1 << TABLE_BITS;
/// Number of tables of patterns.
pub(crate) const TABLES: usize = 5;
/// Number of bits of the path in the histories of the first tables: two for each branch. The table after them has the whole path, and the
/// last one also all directions.
pub(crate) const LENGTHS: [u8; TABLES - 2] = [8, 18, 36];
/// Factors by which histories become positions and tags: odd numbers whose bits have no pattern, for multiplicative hashing.
pub(crate) const FACTORS: [u64; TABLES] =
    [0xc2b2_ae3d_27d4_eb4f, 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93, 0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53];
/// Factors of the words of directions in the history of the last table. Their sum is odd, so that it tells apart directions that are the same in
/// both words. The oldest direction has no influence.
pub(crate) const WORDS: [u64; 2] = [0x9fb2_1c65_1e98_df25, 0xe703_7ed1_a0b4_28da];
/// Factor by which the address of a branch becomes its key.
const KEY: u64 = 0x9e37_79b9_7f4a_7c15;
/// Times for which a branch goes one way until it counts as one that always does.
pub(crate) const STEADY: i8 = 127;
/// The greatest count of a branch after it has gone the other way.
pub(crate) const BROKEN: i8 = 7;
/// Limits of [`Conditional::distrust`].
pub(crate) const DISTRUST: std::ops::RangeInclusive<i64> = -8..=7;

/// Shift of the tag within the bits of a hash that are not the position.
pub(crate) const TAG_SHIFT: u32 = 64 - TABLE_BITS - TAG_BITS;
/// Bits of a tag.
pub(crate) const TAG_BITS: u32 = 11;
/// Shift of a hash to the position.
pub(crate) const POSITION_SHIFT: u32 = 64 - TABLE_BITS;
/// The bit of a key that becomes part of the path.
pub(crate) const WAY: u32 = 40;
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
    /// Two bits for each of the last branches that are not steady: the direction of the last one is in bit 0, and a bit of its key in bit 1.
    path: u64,
    /// Directions of the last branches that are not steady, the last one in bit 0 of the first word.
    directions: [u64; 2],
    /// How much more often the alternative was right than entries that had just been made. Such entries predict if it is negative.
    distrust: i64,
    /// Tables of patterns.
    tables: [[u16; ENTRIES]; TABLES],
    /// For each branch: how often it has gone the same way, negative if it was not taken; halved when it goes the other
    /// way.
    base: [i8; 1 << BASE_BITS],
}

/// Form in saved states.
#[derive(Serialize, Deserialize)]
struct Saved {
    path: u64,
    directions: [u64; 2],
    distrust: i64,
    tables: Vec<u16>,
    base: Vec<i8>,
}

impl From<Conditional> for Saved {
    fn from(from: Conditional) -> Self {
        let Conditional { path, directions, distrust, tables, base } = from;
        Self { path, directions, distrust, tables: tables.concat(), base: base.to_vec() }
    }
}

impl TryFrom<Saved> for Conditional {
    type Error = &'static str;

    fn try_from(saved: Saved) -> Result<Self, Self::Error> {
        const ERROR: &str = "a branch predictor of another size";
        let Saved { path, directions, distrust, .. } = saved;
        let mut new = Self { path, directions, distrust, ..Self::default() };
        if saved.tables.len() != TABLES * ENTRIES || !DISTRUST.contains(&distrust) {
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
        let tables = [[NOT_TAKEN; ENTRIES]; TABLES];
        Self { path: 0, directions: [0; 2], distrust: 0, tables, base: [0; 1 << BASE_BITS] }
    }
}

/// Returns the key of a branch: even, because translated code keeps the direction in bit 0.
pub(crate) fn key(from: u64) -> u64 {
    from.wrapping_mul(KEY) & !1
}

/// Returns the base's count of a branch after it has gone the way of the count (`agrees` is not negative) or another.
fn count(agrees: i8) -> i8 {
    if agrees >= 0 { agrees.saturating_add(1) } else { -(-agrees >> 1).min(BROKEN) }
}

impl Conditional {
    /// Distance of the path from the begin.
    pub(crate) const PATH: usize = offset_of!(Self, path);
    /// Distance of the directions from the begin.
    pub(crate) const DIRECTIONS: usize = offset_of!(Self, directions);
    /// Distance of [`Conditional::distrust`] from the begin.
    pub(crate) const DISTRUST: usize = offset_of!(Self, distrust);
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
        let history = match LENGTHS.get(table) {
            Some(length) => self.path & ((1 << length) - 1),
            None if table < TABLES - 1 => self.path,
            None => {
                let words = self.directions.into_iter().zip(WORDS);
                words.fold(self.path, |sum, (word, factor)| sum.wrapping_add(word.wrapping_mul(factor)))
            }
        };
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
        let [last, before] = self.directions;
        self.directions = [last << 1 | u64::from(taken), before << 1 | last >> 63];
        self.path = self.path << 2 | (key >> WAY & 1) << 1 | u64::from(taken);
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
            // An entry that has just been made knows less than the shorter history in some programs, and more in others.
            if matches!(*entry & (USEFUL | DIRECTION), NOT_TAKEN | TAKEN) {
                if self.distrust >= 0 {
                    result = alternative;
                }
                if prediction != alternative {
                    let step = if alternative == taken { 1 } else { -1 };
                    self.distrust = (self.distrust + step).clamp(*DISTRUST.start(), *DISTRUST.end());
                }
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

    /// Makes entries for a branch that was not predicted in the tables from `first`, if the entries there are not useful; useful ones become
    /// less so.
    fn allocate(&mut self, first: usize, key: u64, taken: bool) {
        for table in first..TABLES {
            let (position, tag) = self.place(table, key);
            let entry = &mut self.tables[table][position];
            if *entry & USEFUL == 0 {
                *entry = tag << ENTRY_TAG | if taken { TAKEN } else { NOT_TAKEN };
            } else {
                *entry -= USEFUL_STEP;
            }
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
    fn a_long_sequence_is_learnt_by_heart() {
        let mut random = testkit::Random::new(3);
        let directions: Vec<bool> = (0..16_384).map(|_| random.below(2) == 0).collect();
        let all = 40 * directions.len();
        let missed = missed(&mut Conditional::default(), all, directions.len(), |n| directions[n % directions.len()]);
        assert!(missed < 100, "{missed} of {}", directions.len());
    }

    #[test]
    fn what_was_seen_once_is_predicted_the_second_time() {
        let mut random = testkit::Random::new(4);
        let mut predictor = Conditional::default();
        let mut again = 0;
        for _ in 0..50 {
            let directions: Vec<bool> = (0..256).map(|_| random.below(2) == 0).collect();
            missed(&mut predictor, 256, 256, |n| directions[n]);
            again += missed(&mut predictor, 256, 256, |n| directions[n]);
        }
        assert!(again < 50 * 256 / 8, "{again}");
    }

    #[test]
    fn the_end_of_a_loop_is_predicted() {
        for turns in [8, 32, 64, 96] {
            let taken = |n: usize| n % turns != turns - 1;
            assert_eq!(missed(&mut Conditional::default(), 2000 * turns, 100 * turns, taken), 0, "{turns}");
        }
    }

    #[test]
    fn a_branch_that_goes_as_another_one_long_before_is_predicted() {
        for between in [0, 8, 28, 60] {
            let mut predictor = Conditional::default();
            let mut random = testkit::Random::new(5);
            let mut missed = 0;
            for n in 0..4000usize {
                let taken = random.below(2) == 0;
                predictor.predicts(key(0x1000), taken);
                for filler in 0..between {
                    predictor.predicts(key(0x2000 + 16 * filler), (n as u64 + filler) & 1 == 0);
                }
                missed += usize::from(!predictor.predicts(key(0x3000), taken) && n >= 3000);
            }
            assert!(missed < 20, "{missed} of 1000 with {between} between them");
        }
    }

    #[test]
    fn a_branch_depends_on_the_way_to_it() {
        // Two branches that go the same way, and whose keys differ in the bit that the path has.
        let ways = [0x1000, 0x1030].map(key);
        assert_ne!(ways[0] >> WAY & 1, ways[1] >> WAY & 1);
        let mut predictor = Conditional::default();
        let mut random = testkit::Random::new(6);
        let mut missed = 0;
        for n in 0..4000 {
            let way = random.below(2);
            predictor.predicts(ways[way as usize], n % 3 == 0);
            missed += usize::from(!predictor.predicts(key(0x2000), way == 0) && n >= 3000);
        }
        assert!(missed < 20, "{missed} of 1000");
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
            Saved { distrust: 8, ..saved() },
            Saved { distrust: -9, ..saved() },
            Saved { base: vec![-128; 1 << BASE_BITS], ..saved() },
        ];
        assert!(wrong.into_iter().all(|saved| Conditional::try_from(saved).is_err()));
    }
}
