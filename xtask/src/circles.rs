//! Circles of files: each of them names something of the next one, and the last one something of the first.

use crate::arrows::Arrows;
use crate::source::Module;
use std::collections::{BTreeMap, BTreeSet};

/// Files of one circle, as indices of their first modules.
pub type Circle = Vec<usize>;

/// Returns the strongly connected components of more than one file, the largest first.
pub fn find(modules: &[Module], arrows: &Arrows) -> Vec<Circle> {
    // A file with inline modules is one node.
    let first: Vec<usize> = modules
        .iter()
        .map(|module| modules.iter().position(|other| other.file == module.file).expect("it is among them"))
        .collect();
    let mut forwards: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let mut backwards = forwards.clone();
    for (from, to) in arrows {
        forwards.entry(first[*from]).or_default().insert(first[*to]);
        backwards.entry(first[*to]).or_default().insert(first[*from]);
    }
    // Kosaraju's two walks: what is finished last starts the walks against the arrows.
    let (mut seen, mut finished) = (BTreeSet::new(), Vec::new());
    for node in first.iter().copied().collect::<BTreeSet<_>>() {
        walk(node, &forwards, &mut seen, &mut finished);
    }
    let mut seen = BTreeSet::new();
    let mut circles: Vec<Circle> = Vec::new();
    for node in finished.into_iter().rev() {
        let mut circle = Vec::new();
        walk(node, &backwards, &mut seen, &mut circle);
        if circle.len() > 1 {
            circle.sort_unstable();
            circles.push(circle);
        }
    }
    circles.sort_by_key(|circle| (std::cmp::Reverse(circle.len()), circle[0]));
    circles
}

/// Adds the nodes that can be reached from `start` and were not seen before, each after those that it leads to.
fn walk(start: usize, arrows: &BTreeMap<usize, BTreeSet<usize>>, seen: &mut BTreeSet<usize>, done: &mut Vec<usize>) {
    let mut open = vec![(start, false)];
    while let Some((node, left)) = open.pop() {
        if left {
            done.push(node);
        } else if seen.insert(node) {
            open.push((node, true));
            open.extend(arrows.get(&node).into_iter().flatten().map(|next| (*next, false)));
        }
    }
}
