use super::*;
use crate::Family;
use crate::recorder::names::IDLE_SHAPES;
use std::collections::BTreeMap;

fn origin(recorder: &mut Recorder, space: u64) -> OriginId {
    recorder.origin(Origin::new(0, 0, space))
}

#[test]
fn equal_origins_and_shapes_have_one_number() {
    let mut r = Recorder::default();
    let a = origin(&mut r, 1);
    assert_ne!(a, origin(&mut r, 2));
    assert_eq!(a, origin(&mut r, 1));
    let shape = r.shape(&vec![(Class::Alu, 3, 900)]);
    assert_eq!(shape, r.shape(&vec![(Class::Alu, 3, 900)]));
    assert_ne!(shape, r.shape(&vec![(Class::Alu, 4, 900)]));
}

#[test]
fn runs_add_up_beyond_32_bits() {
    let mut r = Recorder::default();
    let (o, s) = (origin(&mut r, 1), r.shape(&vec![(Class::Alu, 1, 300)]));
    for _ in 0..5 {
        r.add_block(o, 0xffff_ffff_8100_0000, s, u64::from(u32::MAX));
    }
    let all: Vec<_> = r.blocks().collect();
    assert_eq!(all, [(o, 0xffff_ffff_8100_0000, s, 5 * u64::from(u32::MAX))]);
}

#[test]
fn many_blocks_are_all_kept_apart() {
    let mut r = Recorder::default();
    let (o, p, s) = (origin(&mut r, 1), origin(&mut r, 2), r.shape(&vec![]));
    let n = 50_000;
    for round in 1..=2 {
        for i in 0..n {
            r.add_block(if i % 2 == 0 { o } else { p }, i * 7, s, round * (i + 1));
        }
    }
    let runs: BTreeMap<_, _> = r.blocks().map(|(origin, rip, _, runs)| ((origin, rip), runs)).collect();
    assert_eq!(runs.len() as u64, n);
    assert!(runs.iter().all(|((_, rip), runs)| *runs == (rip / 7 + 1) * 3));
}

#[test]
fn charges_go_to_the_region_and_task_of_their_origin() {
    let mut r = Recorder::default();
    let (region, again) = (r.region("work\n"), r.region(" work"));
    assert_eq!((region, again, r.known_region("work")), (RegionId(1), region, Some(region)));
    assert_eq!(r.known_region("play"), None);
    let task = r.task(Task::new(crate::TaskKind::Process, 1, 1, "sh"));
    let kind = Kind::new(Family::Iret, 0);
    for (region, task, count) in [(RegionId(0), TaskId(0), 1), (region, TaskId(0), 2), (region, task, 3)] {
        let id = r.origin(Origin { region, task, ..Origin::new(0, 3, 0x1000) });
        r.add(id, 1, kind, count, 10);
    }
    let counts: Vec<_> = r.events().map(|(_, _, _, amount)| amount.count).collect();
    assert_eq!(counts, [1, 2, 3]);
    r.region_begins(region);
    r.region_ends(region, 20);
    r.region_ends(region, u64::MAX);
    let names = r.names();
    let regions: Vec<_> =
        names.regions().iter().map(|region| (region.name.as_str(), region.begun, region.elapsed)).collect();
    assert_eq!(regions, [("", 0, 0), ("work", 1, u64::MAX)]);
}

#[test]
fn a_guest_cannot_make_endless_regions() {
    let r = Recorder::default();
    let regions: Vec<_> = (0..10_000).map(|i| r.region(&i.to_string())).collect();
    assert_eq!(r.names().regions().len(), MOST_REGIONS);
    assert_eq!((regions[9000], r.known_region("9000")), (regions[9999], Some(regions[9999])));
    assert_ne!(regions[1], regions[2]);
}

/// A recorder that has room for little.
fn small(most_recorded: usize, most_shapes: usize) -> Recorder {
    Recorder { most_recorded, most_shapes, dense_from: 150, ..Recorder::default() }
}

fn entries(recorder: &Recorder) -> usize {
    recorder.blocks().count() + recorder.events().count() + recorder.classes().count()
}

/// Charges of code in the kernel and of two users, in two regions, with as many kinds and shapes.
fn charges() -> Vec<impl Fn(&mut Recorder)> {
    let mut charges = Vec::new();
    for i in 0..6000u64 {
        let plain = Origin::new((i % 2) as u8, if i % 3 == 0 { 3 } else { 0 }, 0x1000 * (i % 5));
        let base = if i % 3 == 1 { 0xffff_ffff_8100_0000 } else { 0x40_0000 };
        let rip = base + i * 37 % 100_000;
        charges.push(move |recorder: &mut Recorder| {
            let region = recorder.region(if i % 7 == 0 { "work" } else { "" });
            // Two of one name, in the same order always: a guest's are in the order in which it makes them.
            let tasks = [1, 2].map(|tid| recorder.task(Task::new(crate::TaskKind::Process, 1, tid, "t")));
            let id = recorder.origin(Origin { region, task: tasks[i as usize % 2], ..plain });
            match i % 4 {
                0 => recorder.add(id, rip, Kind::new(Family::Rdmsr, i as u32), 1, 10),
                1 => recorder.add(id, rip, Kind::new(Family::Syscall, 0), i, 100 * i),
                _ => {
                    let shape =
                        recorder.shape(&vec![(Class::Alu, 1 + i as u32 % 90, 300 + i % 7), (Class::Jump, 1, 1000)]);
                    recorder.add_block(id, rip, shape, 1 + i % 4);
                }
            }
        });
    }
    charges
}

/// Everything a recorder holds, by contents instead of numbers.
fn contents(recorder: &Recorder) -> Vec<String> {
    let origin = |id: OriginId| recorder.origin_of(id);
    let shape = |id: ShapeId| recorder.names().shapes()[id.0 as usize].clone();
    let blocks = recorder.blocks().map(|(o, rip, s, runs)| format!("{:?} {rip:#x} {:?} {runs}", origin(o), shape(s)));
    let events = recorder.events().map(|(o, rip, kind, sum)| format!("{:?} {rip:#x} {kind:?} {sum:?}", origin(o)));
    let classes = recorder.classes().map(|(o, rip, class, n)| format!("{:?} {rip:#x} {class:?} {n:?}", origin(o)));
    let mut all: Vec<String> = blocks.chain(events).chain(classes).collect();
    all.sort_unstable();
    all
}

/// Ticks of everything, and instructions.
fn sums(recorder: &Recorder) -> (u64, u64) {
    let mut sums = (recorder.events().map(|event| event.3.ticks).sum(), 0);
    for (_, _, shape, runs) in recorder.blocks() {
        for (_, count, ticks) in &recorder.names().shapes()[shape.0 as usize] {
            sums = (sums.0 + ticks * runs, sums.1 + u64::from(*count) * runs);
        }
    }
    recorder.classes().fold(sums, |sums, (.., amount)| (sums.0 + amount.ticks, sums.1 + amount.count))
}

#[test]
fn what_is_folded_depends_on_the_charges_and_not_on_their_order() {
    let charges = charges();
    let mut exact = Recorder::default();
    charges.iter().for_each(|charge| charge(&mut exact));
    exact.finish();
    assert_eq!(exact.coarseness(), Coarseness::default(), "settling folds nothing that fits");
    let mut seen = Vec::new();
    for (most, shapes) in [(5000, 64), (4000, 1000), (3000, 1000), (2000, 1000), (700, 1000), (300, 1000), (60, 1000)] {
        let mut forwards = small(most, shapes);
        charges.iter().for_each(|charge| charge(&mut forwards));
        let mut backwards = small(most, shapes);
        charges.iter().rev().for_each(|charge| charge(&mut backwards));
        let mut shuffled = small(most, shapes);
        (0..charges.len()).for_each(|i| charges[i * 7919 % charges.len()](&mut shuffled));
        [&mut forwards, &mut backwards, &mut shuffled].into_iter().for_each(Recorder::finish);
        assert!(entries(&forwards) <= most && forwards.shapes_used <= shapes, "{most}: {}", entries(&forwards));
        for other in [&backwards, &shuffled] {
            assert_eq!(forwards.coarseness(), other.coarseness(), "{most}");
            assert_eq!(contents(&forwards), contents(other), "{most}");
        }
        assert_eq!(sums(&forwards), sums(&exact), "{most}");
        seen.push(forwards.coarseness().index());
    }
    assert!(seen.is_sorted() && seen[0] > 0, "{seen:?}");
    assert!(seen.iter().collect::<std::collections::BTreeSet<_>>().len() > 3, "{seen:?}");
}

#[test]
fn code_of_the_kernel_stays_exact_longest() {
    let mut r = small(1000, 1000);
    r.dense_from = 1 << 20;
    let (kernel, user) = (origin(&mut r, 1), r.origin(Origin::new(0, 3, 1)));
    let shape = r.shape(&vec![(Class::Alu, 2, 600)]);
    for i in 0..900 {
        r.add_block(kernel, 0xffff_ffff_8100_0000 + i, shape, 1);
    }
    for i in 0..50_000 {
        r.add_block(user, 0x40_0000 + i, shape, 3);
    }
    r.finish();
    assert_eq!(r.coarseness().index(), 3);
    assert_eq!(r.blocks().count(), 900);
    let pages: BTreeMap<u64, u64> = r.classes().map(|(_, rip, _, sum)| (rip, sum.count)).collect();
    assert_eq!(pages.len(), 50_000usize.div_ceil(4096));
    assert_eq!(pages[&0x40_0000], 4096 * 6);
}

#[test]
fn no_guest_makes_a_recorder_grow_without_end() {
    let mut r = small(2000, 50);
    for i in 0..100_000u64 {
        let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let region = r.region(&format!("{}", i / 10_000));
        let task = r.task(Task::new(crate::TaskKind::Process, i as u32, i as u32, "t"));
        let id = r.origin(Origin { region, task, ..Origin::new(1, (i % 4) as u8, mixed & !0xfff) });
        r.add(id, mixed, Kind::new(Family::Wrmsr, i as u32), 1, 1);
        r.add(id, !mixed, Kind::new(Family::PortIn, mixed as u32), 1, 1);
        let shape = r.shape(&vec![(Class::Alu, i as u32, 300 * i)]);
        r.add_block(id, mixed, shape, 1);
        r.forget_shapes();
        assert!(i % 500 != 0 || entries(&r) <= 2000);
    }
    assert!(entries(&r) <= 2000, "{}", entries(&r));
    assert!(r.names().kept_shapes() <= IDLE_SHAPES + 51, "{}", r.names().kept_shapes());
    let (ticks, instructions) = sums(&r);
    let all: u64 = (0..100_000).sum();
    assert_eq!((ticks, instructions), (200_000 + 300 * all, all));
}

#[test]
fn shapes_that_no_block_has_are_forgotten() {
    let mut r = Recorder::default();
    let id = origin(&mut r, 1);
    for i in 0..IDLE_SHAPES as u32 + 10 {
        let shape = r.shape(&vec![(Class::Load, i, 500)]);
        if i % 10_000 == 0 {
            r.add_block(id, u64::from(i), shape, 5);
        }
    }
    let before = contents(&r);
    r.forget_shapes();
    assert_eq!(r.names().kept_shapes(), 7);
    assert_eq!(contents(&r), before);
    let again = r.shape(&vec![(Class::Load, 20_000, 500)]);
    assert_eq!(r.names().kept_shapes(), 7);
    r.add_block(id, 20_000, again, 1);
    assert_eq!(r.blocks().map(|block| block.3).max(), Some(6));
}

/// The charges of a machine in the order of time, of one recorder or of several that take turns.
fn charge_in_turns(recorders: &mut [Recorder]) {
    for i in 0..6000u64 {
        let at = i as usize / 100 % recorders.len();
        let r = &mut recorders[at];
        let task = r.task(Task::new(crate::TaskKind::Process, 1 + i as u32 % 9, 1 + i as u32 % 9, "t"));
        let region = r.region(if i % 700 < 100 { "work" } else { "" });
        let id = r.origin(Origin { task, region, ..Origin::new(0, 3 * (i % 2) as u8, (i % 3) << 12) });
        let shape = r.shape(&vec![(Class::Alu, 1 + i as u32 % 90, 300 + i % 7)]);
        r.add_block(id, i % 2500 * 5, shape, 1 + i % 4);
        r.add(id, i % 1700 * 3, Kind::new(Family::Rdmsr, i as u32 % 50), 1, 10);
        r.add_branch(id, Branch { site: i % 300, way: crate::Way::Call, target: i % 7 }, i % 5 == 0);
        let stack = r.stack(&[i % 40, i % 3], true);
        r.add_crossing(id, stack, Kind::new(Family::Syscall, 0), Amount { count: 1, ticks: 5 });
        let stay = crate::Stay { ticks: i * i, enter: 1, mitigation: 2, leave: 3 };
        r.add_stay(id, crate::Entry::new(crate::Gate::Call, i as u32 % 5), stay, false);
        r.trace(Record { time: i, cpu: 0, origin: id, moment: crate::stack::Moment::Task, ticks: 1, stack });
        if i % 1500 == 1499 {
            gather(recorders);
        }
    }
    gather(recorders);
    recorders[0].finish();
}

fn gather(recorders: &mut [Recorder]) {
    let Some((first, others)) = recorders.split_first_mut() else { return };
    others.iter_mut().for_each(|other| first.take_from(other));
}

#[test]
fn recorders_of_a_machine_together_record_what_one_does() {
    // With room for everything; and with too little, so that the record folds on the way.
    for (most, shapes) in [(1 << 20, 1 << 20), (3000, 1 << 20), (1 << 20, 400), (500, 100)] {
        let keeps = Keeps { interval: 0, crossings: true, trace: true };
        let machine = |processors: usize| {
            let first = small(most, shapes).keeping(keeps);
            let mut all: Vec<Recorder> = (1..processors).map(|_| first.another()).collect();
            all.insert(0, first);
            charge_in_turns(&mut all);
            all
        };
        let (one, three) = (machine(1), machine(3));
        assert_eq!(one[0].coarseness(), three[0].coarseness(), "{most} {shapes}");
        assert_eq!(contents(&one[0]), contents(&three[0]), "{most} {shapes}");
        assert!(three[1..].iter().all(|other| entries(other) == 0 && other.branches.len() + other.stacks.len() == 0));
        if one[0].coarseness() != Coarseness::default() {
            // Branches and stacks keep the origins that were told apart when they were recorded.
            continue;
        }
        assert_eq!(one[0].branches.save(), three[0].branches.save());
        let stacks = |r: &Recorder| {
            let origins = r.names().origins().to_vec();
            r.stacks(|id| origins[id.0 as usize])
        };
        assert_eq!(stacks(&one[0]), stacks(&three[0]));
        let stays = |r: &Recorder| {
            let origins = r.names().origins().to_vec();
            r.entries(|id| origins[id.0 as usize])
        };
        assert_eq!(stays(&one[0]), stays(&three[0]));
        assert_eq!(stays(&one[0]).all.iter().map(|one| one.stays.count()).sum::<u64>(), 6000);
    }
}

#[test]
fn nothing_charged_leaves_nothing() {
    let mut r = Recorder::default();
    let (id, shape) = (origin(&mut r, 1), r.shape(&vec![(Class::Alu, 1, 300)]));
    r.add_block(id, 1, shape, 0);
    r.add(id, 1, Kind::new(Family::Iret, 0), 0, 0);
    assert_eq!(entries(&r), 0);
}

#[test]
fn dense_code_folds_and_sparse_code_stays_exact() {
    let program = 0x10_0000u64;
    let charge = |r: &mut Recorder, backwards: bool| {
        let id = origin(r, 1);
        let shape = r.shape(&vec![(Class::Alu, 2, 600)]);
        for i in 0..20_000u64 {
            let i = if backwards { 19_999 - i } else { i };
            r.add_block(id, 0x400_0000 + 3 * i, shape, 1);
            r.add_block(id, program + i % 140, shape, 1);
            r.add(id, 0x400_0000 + 3 * i, Kind::new(Family::Iret, 0), 1, 7);
        }
        r.finish();
    };
    let mut r = small(1000, 1000);
    charge(&mut r, false);
    assert_eq!(r.coarseness().index(), 2);
    let exact: Vec<u64> = r.blocks().map(|block| block.1).collect();
    assert_eq!(exact.len(), 140);
    assert!(exact.iter().all(|rip| *rip < program + 140));
    assert_eq!(r.classes().count(), 60_000usize.div_ceil(4096));
    assert_eq!(r.range(OriginId(0), 0x400_1000), Some(Range { start: 0x400_1000, len: 4096 }));
    assert_eq!(r.range(OriginId(0), program), None);
    assert_eq!(sums(&r), (140_000 + 40_000 * 600, 80_000));
    let mut other = small(1000, 1000);
    charge(&mut other, true);
    assert_eq!(contents(&r), contents(&other));
}

#[test]
fn an_area_that_was_dense_still_counts_for_what_it_was() {
    // Six areas of 150 and one of 250 are 1150: too much. Had the large one come first, it would have been folded before.
    let charge = |r: &mut Recorder, areas: &[u64]| {
        let id = origin(r, 1);
        let shape = r.shape(&vec![(Class::Alu, 1, 300)]);
        for &area in areas {
            for i in 0..if area == 9 { 250 } else { 150 } {
                r.add_block(id, area * AREA + 16 * i, shape, 1);
            }
        }
        r.finish();
    };
    // The six areas, one page, and 150 for what the large one was: 1051.
    for (most, coarseness, blocks) in [(1000, 6, 0), (1050, 6, 0), (1051, 2, 900), (1150, 0, 1150)] {
        let [mut a, mut b] = [small(most, 1000), small(most, 1000)];
        charge(&mut a, &[9, 1, 2, 3, 4, 5, 6]);
        charge(&mut b, &[1, 2, 3, 4, 5, 6, 9]);
        assert_eq!((a.coarseness().index(), a.blocks().count()), (coarseness, blocks), "{most}");
        assert_eq!(a.coarseness(), b.coarseness());
        assert_eq!(contents(&a), contents(&b));
    }
}

#[test]
fn a_recorder_is_a_map_of_sums() {
    let mut r = Recorder::default();
    let mut events: BTreeMap<(Origin, u64, Kind), (u64, u64)> = BTreeMap::new();
    let mut blocks: BTreeMap<(Origin, u64, Shape), u64> = BTreeMap::new();
    let mut random = 88_172_645_463_325_252u64;
    for i in 0..200_000u64 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let pick = |shift: u32, of: u64| random >> shift & (of - 1);
        let region = r.region(if i / 1000 % 2 == 0 { "work" } else { "" });
        let plain = Origin::new(pick(0, 2) as u8, pick(1, 4) as u8, pick(3, 4) << 12);
        let origin = Origin { region, task: TaskId(i as u32 / 50_000), ..plain };
        let rip = pick(5, 64) | pick(11, 2) << 32 | pick(12, 2) << 63;
        let id = r.origin(origin);
        if i % 2 == 0 {
            let family = if pick(13, 2) == 0 { Family::Rdmsr } else { Family::PortOut };
            let kind = Kind::new(family, pick(14, 2) as u32 | (pick(15, 2) as u32) << 31);
            r.add(id, rip, kind, pick(20, 16), pick(30, 1 << 20));
            let sum = events.entry((origin, rip, kind)).or_default();
            *sum = (sum.0 + pick(20, 16), sum.1 + pick(30, 1 << 20));
        } else {
            let shape = vec![(Class::Alu, pick(13, 2) as u32, pick(17, 3)), (Class::Load, 1, 500)];
            let runs = 1 + (pick(20, 1 << 33));
            let id_of_shape = r.shape(&shape);
            r.add_block(id, rip, id_of_shape, runs);
            *blocks.entry((origin, rip, shape)).or_default() += runs;
        }
    }
    let origin = |id: OriginId| r.origin_of(id);
    let found = r.events().map(|(id, rip, kind, sum)| ((origin(id), rip, kind), (sum.count, sum.ticks)));
    events.retain(|_, sum| *sum != (0, 0));
    assert_eq!(found.collect::<BTreeMap<_, _>>(), events);
    assert_eq!(r.events().count(), events.len());
    let shape = |id: ShapeId| r.names().shapes()[id.0 as usize].clone();
    let found = r.blocks().map(|(id, rip, of, runs)| ((origin(id), rip, shape(of)), runs));
    assert_eq!(found.collect::<BTreeMap<_, _>>(), blocks);
    assert_eq!(r.blocks().count(), blocks.len());
}

#[test]
fn executions_beyond_32_bits_are_folded_and_kept_when_shapes_are_dropped() {
    let runs = 5 * u64::from(u32::MAX);
    let mut r = small(2, 1000);
    let user = r.origin(Origin::new(0, 3, 1));
    let shape = r.shape(&vec![(Class::Alu, 3, 900), (Class::Load, 1, 500)]);
    for rip in 0..3 {
        r.add_block(user, 0x40_0000 + rip, shape, runs);
    }
    let classes: BTreeMap<_, _> = r.classes().map(|(_, rip, class, n)| ((rip, class), n)).collect();
    assert_eq!(classes[&(0x40_0000, Class::Alu)], Amount { count: 9 * runs, ticks: 2700 * runs });
    assert_eq!(classes[&(0x40_0000, Class::Load)], Amount { count: 3 * runs, ticks: 1500 * runs });
    let mut r = Recorder::default();
    let id = origin(&mut r, 1);
    for i in 0..IDLE_SHAPES as u32 + 2 {
        r.shape(&vec![(Class::Load, i, 500)]);
    }
    let last = ShapeId(IDLE_SHAPES as u32 + 1);
    r.add_block(id, 7, last, runs);
    r.forget_shapes();
    assert_eq!(r.names().kept_shapes(), 1);
    assert_eq!(r.blocks().collect::<Vec<_>>(), [(id, 7, last, runs)]);
    assert_eq!(r.names().shapes()[last.0 as usize], [(Class::Load, IDLE_SHAPES as u32 + 1, 500)]);
    assert_eq!(r.shape(&vec![(Class::Nop, 1, 1)]), ShapeId(0), "further shapes have the numbers of dropped ones");
}

#[test]
fn spaces_beyond_the_limit_are_charged_as_one() {
    let mut r = Recorder::default();
    let before: Vec<OriginId> = (1..=MOST_SPACES as u64).map(|space| origin(&mut r, space << 12)).collect();
    assert_eq!(before.len(), MOST_SPACES);
    assert_eq!(r.names().origins().len(), MOST_SPACES);
    let [a, b] = [1, 2].map(|more| origin(&mut r, (MOST_SPACES as u64 + more) << 12));
    assert_eq!(a, b);
    assert_eq!(r.origin_of(a), Origin::new(0, 0, 0));
    assert_eq!(origin(&mut r, 0), a);
    assert_eq!(origin(&mut r, 1 << 12), before[0], "those that are known stay");
}

#[test]
fn steps_become_coarser() {
    let of = |number| Coarseness::from_index(number);
    assert_eq!(of(10), None);
    let all: Vec<Coarseness> = (0..10).filter_map(of).collect();
    assert_eq!(all.len(), 10);
    assert!(all.windows(2).all(|two| two[0].next() == Some(two[1]) && two[0] < two[1]));
    assert_eq!(all[9].next(), None);
    assert_eq!(all[0].describe(), "");
    assert!(all[1..].iter().all(|step| !step.describe().is_empty()));
    let user = Origin::new(1, 3, 5);
    let kernel = Origin::new(1, 0, 5);
    let high = 0xffff_ffff_8123_4567u64;
    let page = Some(Range { start: high & !4095, len: 4096 });
    let half = Some(Range { start: 1 << 63, len: 1 << 63 });
    let ranges = |who| all.iter().map(|step| step.range(who, high)).collect::<Vec<_>>();
    assert_eq!(ranges(user), [None, None, None, page, half, half, half, half, half, half]);
    assert_eq!(ranges(kernel), [None, None, None, None, None, None, page, half, half, half]);
    assert_eq!(all[9].range(user, 5), Some(Range { start: 0, len: 1 << 63 }));
    let spaces = |who, rip| all.iter().map(|step| step.origin(who, rip).space).collect::<Vec<_>>();
    assert_eq!(spaces(user, high), [5, 5, 5, 5, 5, 5, 5, 5, 5, 0]);
    assert_eq!(spaces(kernel, 5), [5, 5, 5, 5, 5, 5, 5, 5, 5, 0]);
    assert_eq!(spaces(kernel, high), [5, 5, 5, 5, 5, 0, 0, 0, 0, 0]);
    assert_eq!(all[9].origin(user, high), Origin::new(1, 3, 0));
    let kind = Kind::new(Family::Wrmsr, 7);
    let params = all.iter().map(|step| step.kind(kind).is_without_number()).collect::<Vec<_>>();
    assert_eq!(params, [false, false, false, false, false, false, false, false, true, true]);
    assert_eq!(all[9].kind(Kind::new(Family::VmExit, 7)), Kind::new(Family::VmExit, 7));
    assert_eq!(all.iter().filter(|step| step.folds_dense()).count(), 4);
}

#[test]
fn what_is_charged_often_does_not_make_an_area_dense() {
    let mut r = small(1000, 1000);
    let id = origin(&mut r, 1);
    let shape = r.shape(&vec![(Class::Alu, 1, 300)]);
    for i in 0..2000 {
        r.add_block(id, 9 * AREA + i, shape, 1);
    }
    assert_eq!(r.coarseness().index(), 2);
    for _ in 0..1000 {
        r.add_block(id, AREA, shape, 1);
        r.add(id, 2 * AREA, Kind::new(Family::Iret, 0), 1, 1);
        r.add(id, 9 * AREA + 5, Kind::new(Family::Iret, 0), 1, 1);
    }
    r.finish();
    assert_eq!(r.range(id, AREA), None);
    assert_eq!(r.range(id, 2 * AREA), None);
    assert_eq!(r.range(id, 9 * AREA), Some(Range { start: 9 * AREA, len: 4096 }));
    assert_eq!(r.dense, 1);
}

#[test]
fn short_tasks_by_the_thousand_are_charged_by_name_and_addresses_stay() {
    let mut r = small(1000, 1000);
    let shape = r.shape(&vec![(Class::Alu, 1, 300)]);
    for number in 1..=500 {
        let task =
            r.task(Task::new(crate::TaskKind::Process, number, number, if number % 2 == 0 { "sh" } else { "cc" }));
        let id = r.origin(Origin { task, ..Origin::new(0, 3, 0x1000) });
        (0..10).for_each(|i| r.add_block(id, 0x40_0000 + i, shape, 1));
    }
    r.finish();
    assert_eq!(r.coarseness().index(), 1);
    let names = r.names();
    let comm = |id: OriginId| names.tasks()[names.origins()[id.0 as usize].task.0 as usize].comm.clone();
    let mut blocks: Vec<_> = r.blocks().map(|(id, rip, _, runs)| (comm(id), rip, runs)).collect();
    blocks.sort_unstable();
    let expected: Vec<_> =
        ["cc", "sh"].into_iter().flat_map(|comm| (0..10).map(move |i| (comm.to_owned(), 0x40_0000 + i, 250))).collect();
    assert_eq!(blocks, expected);
}
