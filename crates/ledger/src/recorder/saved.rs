//! The state of a recorder as plain data, for saved machines.

use super::earlier::Earlier;
use super::tables::Tables;
use super::{Amount, Coarseness, MOST_REGIONS, MOST_SPACES, Names, Origin, OriginId, Recorder, Region, Shape, ShapeId};
use crate::branch::{Branch, Branches, Taken};
use crate::stack::{SavedStacks, Stacked};
use crate::stays::{Recorded, SavedStays};
use crate::task::Tasks;
use crate::{Class, Kind, RegionId, TaskId};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};

/// The contents of a recorder, except charges. Entries are sorted, and what they refer to is numbered in the order of its contents, so
/// that equal records give equal bytes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Saved {
    origins: Vec<Origin>,
    shapes: Vec<Shape>,
    coarseness: Coarseness,
    dense: u64,
    tasks: Tasks,
    regions: Vec<Region>,
    /// Number of the charges.
    charges: u64,
    branches: Vec<(OriginId, Branch, Taken)>,
    stacks: SavedStacks,
    stays: SavedStays,
}

/// The charges of a recorder, in the same form: nearly all of its contents. A run goes on without them until its ledger is made, or until
/// it records as many others as there may be.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SavedCharges {
    blocks: Vec<(OriginId, u64, ShapeId, u64)>,
    events: Vec<(OriginId, u64, Kind, Amount)>,
    classes: Vec<((u64, OriginId, Class), Amount)>,
    areas: Vec<((OriginId, u64), Option<u32>)>,
}

/// The reason why a saved record is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record of charges is damaged: {0}")]
pub struct SavedError(&'static str);

/// Bound of the number of origins: the number of spaces times a few other distinctions.
const MOST_ORIGINS: usize = MOST_SPACES * 8;

/// Bound of saved counts and sums, so that the charges of the rest of a run do not overflow.
const MOST_CHARGED: u64 = 1 << 62;

impl SavedError {
    pub(super) fn new(what: &'static str) -> Self {
        Self(what)
    }
}

fn require(holds: bool, otherwise: &'static str) -> Result<(), SavedError> {
    if holds { Ok(()) } else { Err(SavedError(otherwise)) }
}

impl Saved {
    /// Checks that all references are valid.
    fn check(&self) -> Result<(), SavedError> {
        let is_origin = |origin: &OriginId| (origin.0 as usize) < self.origins.len();
        let is_region = |origin: &Origin| usize::from(origin.region.0) < self.regions.len();
        let is_task = |origin: &Origin| (origin.task.0 as usize) < self.tasks.all().len();
        require(self.tasks.fits(), "its tasks")?;
        require((1..=MOST_REGIONS).contains(&self.regions.len()), "its regions")?;
        require(self.origins.len() <= MOST_ORIGINS, "its origins are too many")?;
        require(self.origins.iter().all(|origin| is_region(origin) && is_task(origin)), "an origin")?;
        require(Coarseness::from_index(self.coarseness.index().into()).is_some(), "its coarseness")?;
        require(self.regions.iter().all(|region| region.begun < MOST_CHARGED), "a region's count")?;
        require(self.stacks.lost < MOST_CHARGED, "the number of lost records")?;
        require(self.stays.fits(self.origins.len(), MOST_CHARGED), "a stay in the kernel")?;
        let is_branch = |taken: &Taken| taken.missed <= taken.count;
        let branches = self.branches.iter().all(|(origin, _, taken)| is_origin(origin) && is_branch(taken));
        require(branches, "a branch")
    }
}

impl SavedCharges {
    fn len(&self) -> usize {
        self.blocks.len() + self.events.len() + self.classes.len()
    }

    /// Checks that all references are valid, where there are so many origins and shapes, and that there are so many charges.
    fn check(&self, origins: usize, shapes: usize, charges: u64) -> Result<(), SavedError> {
        let is_origin = |origin: &OriginId| (origin.0 as usize) < origins;
        let is_shape = |shape: &ShapeId| (shape.0 as usize) < shapes;
        require(self.len() as u64 == charges, "the number of its charges")?;
        require(self.blocks.iter().all(|(origin, _, shape, _)| is_origin(origin) && is_shape(shape)), "a block")?;
        require(self.events.iter().all(|(origin, ..)| is_origin(origin)), "an event")?;
        let is_sum = |amount: &Amount| amount.count < MOST_CHARGED && amount.ticks < MOST_CHARGED;
        require(self.events.iter().all(|(.., amount)| is_sum(amount)), "an event's count or cost")?;
        require(self.classes.iter().all(|((_, origin, _), _)| is_origin(origin)), "a class")?;
        require(self.areas.iter().all(|((origin, _), _)| is_origin(origin)), "an area")
    }

    /// Returns the charges as a recorder has them.
    fn tables(self) -> Tables {
        let mut tables = Tables::default();
        for of_origin in self.blocks.chunk_by(|a, b| a.0 == b.0) {
            let blocks = of_origin.iter().map(|&(_, rip, shape, runs)| (rip, shape, runs));
            tables.blocks.add(of_origin[0].0, blocks, |_| ());
        }
        tables.events.reserve(self.events.len());
        for (origin, rip, kind, amount) in self.events {
            tables.events.add(origin, rip, kind, amount);
        }
        tables.classes = self.classes.into_iter().collect();
        tables.areas = self.areas.into_iter().collect();
        tables
    }
}

/// Returns the used ones of these items in their own order, and the new position of each.
fn in_order<T: Ord + Clone>(items: &[T], used: impl Iterator<Item = u32>) -> (Vec<T>, Vec<u32>) {
    let mut used: Vec<u32> = used.collect();
    used.sort_unstable();
    used.dedup();
    used.sort_unstable_by_key(|&at| &items[at as usize]);
    let mut moved = vec![0; items.len()];
    used.iter().zip(0u32..).for_each(|(&at, to)| moved[at as usize] = to);
    (used.into_iter().map(|at| items[at as usize].clone()).collect(), moved)
}

impl Recorder {
    /// Returns the contents for saving: those of this recorder, which must have taken what the machine's others have recorded.
    pub fn save(&mut self) -> (Saved, SavedCharges) {
        self.complete();
        let names = &*self.names();
        let mut blocks: Vec<_> = self.tables.blocks.iter().collect();
        let mut events: Vec<_> = self.tables.events.iter().collect();
        let mut classes: Vec<_> = self.tables.classes.iter().map(|(key, amount)| (*key, *amount)).collect();
        let mut areas: Vec<_> = self.tables.areas.iter().map(|(key, count)| (*key, *count)).collect();
        let mut branches = self.branches.save();
        let mut stacks = self.stacks.save(&names.frames);
        let mut stays = self.stays.save();
        let used = blocks.iter().map(|block| block.0).chain(events.iter().map(|event| event.0));
        let used = used.chain(classes.iter().map(|class| class.0.1)).chain(areas.iter().map(|area| area.0.0));
        let used = used.chain(branches.iter().map(|branch| branch.0)).chain(stacks.origins()).chain(stays.origins());
        // Branches and stacks without room belong to the first origin.
        let first = (0..names.origins.len().min(1) as u32).map(OriginId);
        let (origins, origin_at) = in_order(&names.origins, used.chain(first).map(|origin| origin.0));
        let (shapes, shape_at) = in_order(&names.shapes, blocks.iter().map(|block| block.2.0));
        let moved = |origin: &mut OriginId| origin.0 = origin_at[origin.0 as usize];
        blocks.iter_mut().for_each(|(origin, _, shape, _)| {
            moved(origin);
            shape.0 = shape_at[shape.0 as usize];
        });
        events.iter_mut().for_each(|event| moved(&mut event.0));
        classes.iter_mut().for_each(|class| moved(&mut class.0.1));
        areas.iter_mut().for_each(|area| moved(&mut area.0.0));
        branches.iter_mut().for_each(|branch| moved(&mut branch.0));
        stacks.renumber(moved);
        stays.renumber(moved);
        blocks.sort_unstable_by_key(|(origin, rip, shape, _)| (*origin, *rip, *shape));
        events.sort_unstable_by_key(|(origin, rip, kind, _)| (*origin, *rip, *kind));
        classes.sort_unstable();
        areas.sort_unstable();
        branches.sort_unstable();
        let (tasks, regions) = (names.tasks.clone(), names.regions.clone());
        let (coarseness, dense) = (self.coarseness, self.dense as u64);
        let charged = SavedCharges { blocks, events, classes, areas };
        let charges = charged.len() as u64;
        (Saved { origins, shapes, coarseness, dense, tasks, regions, charges, branches, stacks, stays }, charged)
    }

    /// Creates a recorder that continues a saved record.
    pub fn restore(saved: Saved, charges: SavedCharges) -> Result<Self, SavedError> {
        let (origins, shapes, count) = (saved.origins.len(), saved.shapes.len(), saved.charges);
        let mut recorder = Self::restore_without_charges(saved)?;
        charges.check(origins, shapes, count)?;
        recorder.tables = charges.tables();
        Ok(recorder)
    }

    /// Does the same with charges that `decode` returns. A thread calls it while the run goes on ([`Self::begin`]), or whoever needs the
    /// charges first. Damage of the charges is found then ([`Self::is_whole`]).
    pub fn restore_with_later(
        saved: Saved,
        decode: impl FnOnce() -> Option<SavedCharges> + Send + 'static,
    ) -> Result<Self, SavedError> {
        let (origins, shapes, count) = (saved.origins.len(), saved.shapes.len(), saved.charges);
        let mut recorder = Self::restore_without_charges(saved)?;
        recorder.earlier = Some(Earlier::new(count as usize, move || {
            let charges = decode().ok_or(SavedError("its charges"))?;
            charges.check(origins, shapes, count)?;
            Ok(charges.tables())
        }));
        // At another coarseness, charges depend on earlier ones.
        if recorder.coarseness != Coarseness::default() {
            recorder.complete();
        }
        recorder.is_whole().map(|()| recorder)
    }

    /// Does the same without charges, for a run whose charges nobody reads.
    pub fn restore_without_charges(saved: Saved) -> Result<Self, SavedError> {
        saved.check()?;
        let mut names = Names::default();
        for (shape, number) in saved.shapes.iter().zip(0..) {
            require(names.shape(shape) == ShapeId(number), "a shape is there twice")?;
        }
        names.origin_ids = saved.origins.iter().copied().zip((0..).map(OriginId)).collect();
        require(names.origin_ids.len() == saved.origins.len(), "an origin is there twice")?;
        let (frames, stacks) = Stacked::restore(saved.stacks, saved.origins.len()).ok_or(SavedError("its stacks"))?;
        let in_region = |origin: OriginId| saved.origins[origin.0 as usize].region != RegionId::default();
        let branches = Branches::restore(saved.branches, in_region).ok_or(SavedError("a branch is there twice"))?;
        let Saved { origins, shapes, tasks, regions, coarseness, .. } = saved;
        (names.origins, names.tasks, names.regions, names.frames) = (origins, tasks, regions, frames);
        let names = Arc::new(Mutex::new(names));
        let mut recorder =
            Self { names, coarseness, branches, stacks, stays: Recorded::restore(saved.stays), ..Self::default() };
        recorder.dense = saved.dense as usize;
        // There are no shapes but those of the blocks.
        if coarseness.keeps_shapes() {
            (0..shapes.len() as u32).for_each(|shape| recorder.use_shape(ShapeId(shape)));
        }
        Ok(recorder)
    }

    /// Returns true if the task and the region have known numbers.
    pub fn knows(&self, task: TaskId, region: super::RegionId) -> bool {
        let names = self.names();
        (task.0 as usize) < names.tasks.all().len() && usize::from(region.0) < names.regions.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Entry, Family, Gate, Stay, Task, TaskKind, Way};

    fn charge(recorder: &mut Recorder, from: u64) {
        for i in from..from + 400 {
            let task = recorder.task(Task::new(TaskKind::Process, i as u32 % 7, 0, "t"));
            let region = recorder.region(if i % 3 == 0 { "a" } else { "b" });
            let origin = recorder.origin(Origin { task, region, ..Origin::new(0, 3, (i % 5) << 12) });
            let shape = recorder.shape(&vec![(Class::Alu, i as u32 % 4 + 1, u64::from(i as u32 % 3))]);
            recorder.add_block(origin, i << 8, shape, i);
            let branch = Branch { site: i << 4, way: Way::Call, target: i % 11 };
            recorder.add_branch(origin, branch, i % 2 == 0);
            recorder.add(origin, i << 4, Kind::new(Family::Exception, i as u32 % 3), 1, i);
            let stay = Stay { ticks: i * 1000, enter: i, mitigation: 0, leave: 7 };
            recorder.add_stay(origin, Entry::new(Gate::Exception, i as u32 % 3), stay, i % 4 == 0);
        }
    }

    fn record(recorder: &mut Recorder) -> String {
        format!("{:?}", recorder.save())
    }

    fn later(saved: (Saved, SavedCharges)) -> Result<Recorder, SavedError> {
        Recorder::restore_with_later(saved.0, || Some(saved.1))
    }

    #[test]
    fn a_recorder_goes_on_where_it_was_saved() {
        // With room for everything, and with too little, so that the recorder folds before and after.
        for room in [1 << 20, 2000, 1000, 500, 100] {
            let mut whole = Recorder::with_room(room);
            charge(&mut whole, 1);
            let (saved, charges) = whole.save();
            let restored = Recorder::restore(saved.clone(), charges.clone()).expect("is right");
            let waiting = later((saved.clone(), charges.clone())).expect("is right");
            let mut begun = later((saved, charges)).expect("is right");
            begun.begin();
            let before = record(&mut whole);
            charge(&mut whole, 300);
            let after = record(&mut whole);
            whole.finish();
            let end = record(&mut whole);
            for (mut restored, looks) in [(restored, true), (waiting, false), (begun, false)] {
                restored.most_recorded = room;
                if looks {
                    assert_eq!(before, record(&mut restored), "room {room}");
                }
                charge(&mut restored, 300);
                if looks {
                    assert_eq!(after, record(&mut restored), "room {room}");
                }
                restored.finish();
                assert_eq!(end, record(&mut restored), "room {room}");
                assert_eq!(restored.is_whole(), Ok(()));
            }
        }
    }

    #[test]
    fn a_damaged_record_is_refused() {
        let mut recorder = Recorder::default();
        charge(&mut recorder, 1);
        let (right, charges) = recorder.save();
        let damage: [fn(&mut Saved); 9] = [
            |s| s.origins[0].task = TaskId(9999),
            |s| s.origins.push(s.origins[0]),
            |s| s.shapes.push(s.shapes[0].clone()),
            |s| s.regions.clear(),
            |s| s.branches[2].0 = OriginId(u32::MAX),
            |s| s.branches[2].2.missed = u64::MAX,
            |s| s.regions[0].begun = u64::MAX,
            |s| s.stacks.lost = u64::MAX,
            |s| s.charges += 1,
        ];
        for damage in damage {
            let mut wrong = right.clone();
            damage(&mut wrong);
            assert!(Recorder::restore(wrong, charges.clone()).is_err());
        }
        let damage: [fn(&mut SavedCharges); 6] = [
            |s| s.blocks[0].0 = OriginId(9999),
            |s| s.blocks[0].2 = ShapeId(9999),
            |s| s.events[3].0 = OriginId(u32::MAX),
            |s| s.events[3].3.count = u64::MAX,
            |s| s.events[3].3.ticks = MOST_CHARGED,
            |s| s.blocks.truncate(1),
        ];
        for damage in damage {
            let mut wrong = charges.clone();
            damage(&mut wrong);
            assert!(Recorder::restore(right.clone(), wrong.clone()).is_err());
            let mut recorder = later((right.clone(), wrong)).expect("is damaged where nobody has looked");
            recorder.begin();
            charge(&mut recorder, 1);
            recorder.finish();
            assert!(recorder.is_whole().is_err());
        }
        let mut nothing = Recorder::restore_with_later(right.clone(), || None).unwrap();
        nothing.finish();
        assert!(nothing.is_whole().is_err());
        assert!(Recorder::restore(right, charges).is_ok());
    }

    #[test]
    fn a_record_goes_on_without_its_charges() {
        let mut recorder = Recorder::default();
        charge(&mut recorder, 1);
        let mut without = Recorder::restore_without_charges(recorder.save().0).unwrap();
        assert_eq!(without.events().count() + without.blocks().count(), 0);
        charge(&mut without, 300);
        without.finish();
        assert_ne!(without.events().count(), 0);
    }
}
