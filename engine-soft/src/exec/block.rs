//! A running thread block.

use std::sync::Arc;

use super::launch::{Fault, Launch};

/// How a call of [`Block::run`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All threads have exited.
    Finished,
    /// The budget is used up, or all threads wait for something outside the block: run it again.
    Yielded,
    /// A thread did something wrong; the block is dead.
    Fault(Box<Fault>),
    /// The launch's cancel word was set; the block is dead.
    Cancelled,
}

/// A thread block under way: a value that any thread may run for a while.
#[derive(Debug)]
pub struct Block {
    launch: Arc<Launch>,
    index: [u32; 3],
    sm: u32,
}

impl Block {
    /// Block number `index` (x fastest, below [`Launch::blocks`]) of a grid; `sm` is what `%smid` reads.
    ///
    /// # Panics
    /// If `index` is out of range.
    #[must_use]
    pub fn new(launch: Arc<Launch>, index: u64, sm: u32) -> Self {
        assert!(index < launch.blocks());
        let [x, y, _] = launch.grid.map(u64::from);
        let index = [index % x, index / x % y, index / (x * y)].map(|n| n as u32);
        Self { launch, index, sm }
    }

    /// Runs for about `budget` operations over a gang (one takes some tens of nanoseconds).
    pub fn run(&mut self, budget: u64) -> Outcome {
        let _ = (budget, self.sm, self.index, &self.launch);
        Outcome::Cancelled
    }
}
