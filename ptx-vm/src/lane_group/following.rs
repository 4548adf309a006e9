//! Which blocks come after a lane group's own, where it is all of its block.
//!
//! Made by a cluster, taken from by the lane group. Must not know when there is no time left.

use crate::grid::Grid;

/// Blocks that a lane group goes on with when all of its threads have exited: those that follow its own.
#[derive(Debug)]
pub(crate) struct Following {
    /// The next one's place, and how many there are.
    pub(crate) next: Option<[u32; 3]>,
    pub(crate) left: u64,
    /// How many have been begun.
    pub(crate) begun: u64,
}

impl Following {
    /// No blocks.
    pub(crate) const NONE: Self = Self {
        next: None,
        left: 0,
        begun: 0,
    };

    /// Takes the next one out.
    pub(super) fn take(&mut self, grid: &Grid) -> Option<[u32; 3]> {
        let place = self.next.filter(|_| self.left > 0)?;
        self.next = grid.following(place);
        self.left -= 1;
        self.begun += 1;
        Some(place)
    }
}
