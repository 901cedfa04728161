//! The state of a recorder as plain data, for saved machines.

use super::{Amount, Coarseness, MOST_REGIONS, MOST_SPACES, Origin, OriginId, Recorder, Region, Shape, ShapeId};
use crate::branch::{Branch, Branches, Taken};
use crate::stack::{Interned, SavedStacks};
use crate::task::Tasks;
use crate::{Class, Kind, RegionId, TaskId};
use serde::{Deserialize, Serialize};

/// The contents of a recorder. Entries are sorted, so that equal records give equal bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Saved {
    origins: Vec<Origin>,
    shapes: Vec<Shape>,
    used: Vec<bool>,
    coarseness: Coarseness,
    dense: u64,
    tasks: Tasks,
    regions: Vec<Region>,
    blocks: Vec<(OriginId, u64, ShapeId, u64)>,
    events: Vec<(OriginId, u64, Kind, Amount)>,
    classes: Vec<((u64, OriginId, Class), Amount)>,
    areas: Vec<((OriginId, u64), Option<u32>)>,
    branches: Vec<(OriginId, Branch, Taken)>,
    stacks: SavedStacks,
}

/// The reason why a saved record is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record of charges is damaged: {0}")]
pub struct SavedError(&'static str);

/// Bound of the number of origins: the number of spaces times a few other distinctions.
const MOST_ORIGINS: usize = MOST_SPACES * 8;

/// Bound of saved counts and sums, so that the charges of the rest of a run do not overflow.
const MOST_CHARGED: u64 = 1 << 62;

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
        require(self.used.len() <= self.shapes.len(), "its shapes")?;
        require(Coarseness::from_index(self.coarseness.index().into()).is_some(), "its coarseness")?;
        let is_block = |shape: &ShapeId| self.used.get(shape.0 as usize) == Some(&true);
        require(self.blocks.iter().all(|(origin, _, shape, _)| is_origin(origin) && is_block(shape)), "a block")?;
        require(self.events.iter().all(|(origin, ..)| is_origin(origin)), "an event")?;
        let is_sum = |amount: &Amount| amount.count < MOST_CHARGED && amount.ticks < MOST_CHARGED;
        require(self.events.iter().all(|(.., amount)| is_sum(amount)), "an event's count or cost")?;
        require(self.regions.iter().all(|region| region.begun < MOST_CHARGED), "a region's count")?;
        require(self.stacks.lost < MOST_CHARGED, "the number of lost records")?;
        require(self.classes.iter().all(|((_, origin, _), _)| is_origin(origin)), "a class")?;
        require(self.areas.iter().all(|((origin, _), _)| is_origin(origin)), "an area")?;
        let is_branch = |taken: &Taken| taken.missed <= taken.count;
        let branches = self.branches.iter().all(|(origin, _, taken)| is_origin(origin) && is_branch(taken));
        require(branches, "a branch")
    }
}

impl Recorder {
    /// Returns the contents for saving.
    pub fn save(&self) -> Saved {
        let mut saved = Saved {
            origins: self.origins.clone(),
            shapes: self.shapes.clone(),
            used: self.used.clone(),
            coarseness: self.coarseness,
            dense: self.dense as u64,
            tasks: self.tasks.clone(),
            regions: self.regions.clone(),
            blocks: self.tables.blocks.iter().collect(),
            events: self.tables.events.iter().collect(),
            classes: self.tables.classes.iter().map(|(key, amount)| (*key, *amount)).collect(),
            areas: self.tables.areas.iter().map(|(key, count)| (*key, *count)).collect(),
            branches: self.branches.save(),
            stacks: self.stacks.save(),
        };
        saved.blocks.sort_unstable_by_key(|(origin, rip, shape, _)| (*origin, *rip, *shape));
        saved.events.sort_unstable_by_key(|(origin, rip, kind, _)| (*origin, *rip, *kind));
        saved.classes.sort_unstable();
        saved.areas.sort_unstable();
        saved
    }

    /// Creates a recorder that continues a saved record.
    pub fn restore(saved: Saved) -> Result<Self, SavedError> {
        saved.check()?;
        let mut recorder = Self::default();
        for shape in &saved.shapes {
            let number = recorder.shape(shape);
            require(number.0 as usize + 1 == recorder.shapes.len(), "a shape is there twice")?;
        }
        recorder.origin_ids = saved.origins.iter().copied().zip((0..).map(OriginId)).collect();
        require(recorder.origin_ids.len() == saved.origins.len(), "an origin is there twice")?;
        recorder.shapes_used = saved.used.iter().filter(|used| **used).count();
        recorder.dense = saved.dense as usize;
        for (origin, rip, shape, runs) in saved.blocks {
            recorder.tables.blocks.add(origin, rip, shape, runs);
        }
        for (origin, rip, kind, amount) in saved.events {
            recorder.tables.events.add(origin, rip, kind, amount);
        }
        recorder.tables.classes = saved.classes.into_iter().collect();
        recorder.tables.areas = saved.areas.into_iter().collect();
        let in_region = |origin: OriginId| saved.origins[origin.0 as usize].region != RegionId::default();
        recorder.branches =
            Branches::restore(saved.branches, in_region).ok_or(SavedError("a branch is there twice"))?;
        let stacks = Interned::restore(saved.stacks, saved.origins.len());
        recorder.stacks = stacks.ok_or(SavedError("its stacks"))?;
        let Saved { origins, used, coarseness, tasks, regions, .. } = saved;
        Ok(Self { origins, used, coarseness, tasks, regions, ..recorder })
    }

    /// Returns true if the task and the region have known numbers.
    pub fn knows(&self, task: TaskId, region: super::RegionId) -> bool {
        (task.0 as usize) < self.tasks.all().len() && usize::from(region.0) < self.regions.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Family, Task, TaskKind, Way};

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
        }
    }

    fn record(recorder: &Recorder) -> String {
        format!("{:?}", recorder.save())
    }

    #[test]
    fn a_recorder_goes_on_where_it_was_saved() {
        // With room for everything, and with too little, so that the recorder folds before and after.
        for room in [1 << 20, 500, 100] {
            let mut whole = Recorder::with_room(room);
            charge(&mut whole, 1);
            let mut restored = Recorder::restore(whole.save()).expect("is right");
            restored.most_recorded = room;
            assert_eq!(record(&whole), record(&restored));
            charge(&mut whole, 300);
            charge(&mut restored, 300);
            whole.finish();
            restored.finish();
            assert_eq!(record(&whole), record(&restored), "room {room}");
        }
    }

    #[test]
    fn a_damaged_record_is_refused() {
        let mut recorder = Recorder::default();
        charge(&mut recorder, 1);
        let right = recorder.save();
        let damage: [fn(&mut Saved); 13] = [
            |s| s.blocks[0].0 = OriginId(9999),
            |s| s.blocks[0].2 = ShapeId(9999),
            |s| s.origins[0].task = TaskId(9999),
            |s| s.origins.push(s.origins[0]),
            |s| s.shapes.push(s.shapes[0].clone()),
            |s| s.regions.clear(),
            |s| s.events[3].0 = OriginId(u32::MAX),
            |s| s.branches[2].0 = OriginId(u32::MAX),
            |s| s.branches[2].2.missed = u64::MAX,
            |s| s.events[3].3.count = u64::MAX,
            |s| s.events[3].3.ticks = MOST_CHARGED,
            |s| s.regions[0].begun = u64::MAX,
            |s| s.stacks.lost = u64::MAX,
        ];
        for damage in damage {
            let mut wrong = right.clone();
            damage(&mut wrong);
            assert!(Recorder::restore(wrong).is_err());
        }
        assert!(Recorder::restore(right).is_ok());
    }
}
