//! The modelled predictor for indirect branches and returns: a target cache and a return stack, sized by the profile.

use ledger::Geometry;

/// Predictor state of one processor.
pub struct Predictor {
    targets: Vec<(u64, u64)>,
    stack: Vec<u64>,
    top: usize,
}

impl Predictor {
    /// An empty predictor of the given sizes.
    pub fn new(size: &Geometry) -> Self {
        Self {
            targets: vec![(0, 0); usize::from(size.target_cache.max(1)).next_power_of_two()],
            stack: vec![0; usize::from(size.return_stack.max(1))],
            top: 0,
        }
    }

    /// Notes a call; a full stack overwrites its oldest entry.
    #[inline]
    pub fn call(&mut self, return_address: u64) {
        self.top = if self.top + 1 >= self.stack.len() { 0 } else { self.top + 1 };
        self.stack[self.top] = return_address;
    }

    /// Whether a return to `target` was predicted.
    #[inline]
    pub fn ret(&mut self, target: u64) -> bool {
        let hit = self.stack[self.top] == target;
        self.top = if self.top == 0 { self.stack.len() - 1 } else { self.top - 1 };
        hit
    }

    /// Whether the indirect branch at `from` was predicted to go to `target`; from now on it is.
    #[inline]
    pub fn indirect(&mut self, from: u64, target: u64) -> bool {
        let mask = self.targets.len() - 1;
        let slot = &mut self.targets[(from ^ (from >> 13)) as usize & mask];
        let hit = *slot == (from, target);
        *slot = (from, target);
        hit
    }

    /// Forgets all targets (IBPB).
    pub fn barrier(&mut self) {
        self.targets.fill((0, 0));
    }
}
