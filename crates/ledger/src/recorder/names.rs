//! Origins, shapes, tasks, regions and the frames of stacks, which the recorders of a machine number together. A number means
//! the same to every recorder, so that counts can be moved from one recorder to another, and blocks that all processors share
//! have one shape.

use super::{FURTHER_REGIONS, LONGEST_REGION_NAME, MOST_REGIONS, MOST_SPACES, Region};
use crate::Ticks;
use crate::charge::{AddressSpace, Origin, OriginId, RegionId, Shape, ShapeId};
use crate::stack::Frames;
use crate::task::{Task, TaskId, Tasks};
use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::hash::BuildHasher;

/// Number of shapes beyond which unused ones are dropped.
pub(super) const IDLE_SHAPES: usize = 1 << 16;

/// The numbers of a run.
pub struct Names {
    pub(super) origins: Vec<Origin>,
    pub(super) origin_ids: FxHashMap<Origin, OriginId>,
    pub(super) shapes: Vec<Shape>,
    shape_ids: HashTable<u32>,
    /// Number of recorders with executions of each shape.
    users: Vec<u32>,
    /// Numbers of dropped shapes, which further shapes get.
    free: Vec<u32>,
    pub(super) tasks: Tasks,
    pub(super) regions: Vec<Region>,
    pub(super) frames: Frames,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            origins: Vec::new(),
            origin_ids: FxHashMap::default(),
            shapes: Vec::new(),
            shape_ids: HashTable::new(),
            users: Vec::new(),
            free: Vec::new(),
            tasks: Tasks::default(),
            regions: vec![Region::default()],
            frames: Frames::default(),
        }
    }
}

fn hash(shape: &Shape) -> u64 {
    FxBuildHasher.hash_one(shape)
}

impl Names {
    /// Returns the origins by number.
    pub fn origins(&self) -> &[Origin] {
        &self.origins
    }

    /// Returns true if an origin is user code.
    pub fn is_user(&self, origin: OriginId) -> bool {
        self.origins.get(origin.0 as usize).is_some_and(|origin| origin.ring != 0)
    }

    /// Returns the shapes by number.
    pub fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    /// Returns the regions by number; the first stands for all charges outside regions.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Returns the tasks by number; the first stands for no task.
    pub fn tasks(&self) -> &[Task] {
        self.tasks.all()
    }

    /// Returns the frames of stacks, and the files that some of them are in.
    pub fn frames(&self) -> &Frames {
        &self.frames
    }

    pub(super) fn origin(&mut self, origin: Origin) -> OriginId {
        if let Some(id) = self.origin_ids.get(&origin) {
            return *id;
        }
        if origin.address_space() != AddressSpace::default() && self.origins.len() >= MOST_SPACES {
            return self.origin(Origin { guest: 0, space: 0, ..origin });
        }
        let id = OriginId(self.origins.len() as u32);
        self.origins.push(origin);
        self.origin_ids.insert(origin, id);
        id
    }

    pub(super) fn shape(&mut self, shape: &Shape) -> ShapeId {
        let shapes = &self.shapes;
        if let Some(&id) = self.shape_ids.find(hash(shape), |&at| shapes[at as usize] == *shape) {
            return ShapeId(id);
        }
        let id = self.free.pop().unwrap_or(self.shapes.len() as u32);
        match self.shapes.get_mut(id as usize) {
            Some(free) => free.clone_from(shape),
            None => {
                self.shapes.push(shape.clone());
                self.users.push(0);
            }
        }
        let shapes = &self.shapes;
        self.shape_ids.insert_unique(hash(shape), id, |&at| hash(&shapes[at as usize]));
        ShapeId(id)
    }

    /// Returns the number of shapes that have not been dropped.
    #[cfg(test)]
    pub(super) fn kept_shapes(&self) -> usize {
        self.shape_ids.len()
    }

    /// Records that a recorder has executions of a shape from now on, or has none any more.
    pub(super) fn use_shape(&mut self, shape: ShapeId, used: bool) {
        let users = &mut self.users[shape.0 as usize];
        *users = if used { *users + 1 } else { users.saturating_sub(1) };
    }

    /// Drops the shapes that no recorder has executions of, if there are many. Their numbers become invalid.
    pub(super) fn forget_shapes(&mut self) {
        let used = self.users.iter().filter(|users| **users != 0).count();
        if self.shape_ids.len() <= used + IDLE_SHAPES {
            return;
        }
        let users = &self.users;
        self.shape_ids.retain(|&mut at| users[at as usize] != 0);
        self.free = (0..self.shapes.len() as u32).rev().filter(|&at| users[at as usize] == 0).collect();
        for &at in &self.free {
            self.shapes[at as usize] = Shape::new();
        }
    }

    pub(super) fn task(&mut self, task: Task) -> TaskId {
        self.tasks.number(task)
    }

    pub(super) fn region(&mut self, name: &str) -> RegionId {
        let mut name = region_name(name);
        if self.regions.len() >= MOST_REGIONS - 1 && self.regions.iter().all(|region| region.name != name) {
            name = FURTHER_REGIONS.to_owned();
        }
        let known = self.regions.iter().position(|region| region.name == name);
        let number = known.unwrap_or_else(|| {
            self.regions.push(Region { name, ..Region::default() });
            self.regions.len() - 1
        });
        RegionId(number as u16)
    }

    /// Returns the number of the region with a name, if there is one.
    pub fn known_region(&self, name: &str) -> Option<RegionId> {
        let name = region_name(name);
        let position = |name: &str| self.regions.iter().position(|region| region.name == name);
        position(&name).or_else(|| position(FURTHER_REGIONS)).map(|number| RegionId(number as u16))
    }

    pub(super) fn region_begins(&mut self, region: RegionId) {
        self.regions[usize::from(region.0)].begun += 1;
    }

    pub(super) fn region_ends(&mut self, region: RegionId, elapsed: Ticks) {
        let sum = &mut self.regions[usize::from(region.0)].elapsed;
        *sum = sum.saturating_add(elapsed);
    }
}

fn region_name(name: &str) -> String {
    name.trim().chars().filter(|c| !c.is_control()).take(LONGEST_REGION_NAME).collect()
}
