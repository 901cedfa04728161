//! Measurements that other work on the core has disturbed.

use crate::result::Row;

/// Says with how many of all measurements of a kind other work shared the core.
pub(crate) fn note(beside: usize, all: usize, what: &str) -> String {
    let then = if too_few(all - beside, all) { "their figures are too high" } else { "they count for nothing" };
    format!("Other work shared the core with {beside} of {all} {what} all the time: {then}.")
}

/// Returns true if so few of all measurements were taken on an idle core that the others have to count.
fn too_few(alone: usize, all: usize) -> bool {
    alone * 10 < all
}

/// Has the rows of a family count although other work shared the core, if there are too few others.
pub(crate) fn count_shared(rows: &mut [Row]) {
    let alone = rows.iter().filter(|row| !row.shared).count();
    if too_few(alone, rows.len()) {
        rows.iter_mut().for_each(|row| row.shared = false);
    }
}
