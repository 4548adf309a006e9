//! A running cluster: thread blocks that reach each other's shared memory and wait for each other. A block of a grid
//! without clusters is one by itself, as PTX has it.
//!
//! Owns its blocks and their shared memory while they run, all of them on one thread at a time, so that they take
//! turns. Called by the engine, which gives it a budget of operations. Must not know other clusters.

use std::ops::Range;
use std::sync::Arc;

use super::block::{Block, Stop};
use super::fault::Fault;
use super::grid::ClusterPlace;
use super::lane_group::Following;
use super::launch::{Launch, LaunchError};
use super::reach::NEAR;
use super::regs::Bytes;

/// How a call of [`Cluster::run`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All threads have exited.
    Finished,
    /// The budget is used up, or all threads wait for something outside the cluster: run it again.
    Yielded,
    /// A thread waits for other grids: run it again once others have run.
    Waits,
    /// A thread did something wrong; the cluster is dead.
    Fault(Box<Fault>),
    /// The launch's cancel word was set; the cluster is dead.
    Cancelled,
}

/// What one block may spend before the next one of its cluster runs.
const BLOCK_BUDGET: i64 = 1 << 12;

/// A cluster of thread blocks under way: a value that any thread may run for a while.
#[derive(Debug)]
pub struct Cluster {
    launch: Arc<Launch>,
    /// Its number in the grid.
    index: u64,
    sm: u32,
    /// By rank.
    blocks: Vec<Block>,
    /// The shared memory of each.
    shared: Vec<Bytes>,
    /// The block that runs next.
    next: usize,
}

impl Cluster {
    /// Cluster number `index` (x fastest, below [`Launch::clusters`]) of a grid; `sm` becomes what `%smid` reads,
    /// modulo [`LaunchSpec::sm_count`](super::LaunchSpec::sm_count).
    ///
    /// # Errors
    /// [`LaunchError::OutOfResources`] if there is no memory for it.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn new(launch: Arc<Launch>, index: u64, sm: u32) -> Result<Self, LaunchError> {
        let blocks: Option<Vec<Block>> = places(&launch, index)
            .map(|place| Block::new(&launch, place))
            .collect();
        let bytes = launch.grid.shared() as usize;
        let ranks = 0..launch.cluster_blocks();
        // A segment reads more than is asked for: a word that begins with a byte, or 32 words that begin with one.
        let beyond = NEAR - size_of::<u32>();
        let shared: Option<Vec<Bytes>> = ranks.map(|_| Bytes::new(bytes + beyond)).collect();
        let (Some(blocks), Some(shared)) = (blocks, shared) else {
            return Err(LaunchError::OutOfResources);
        };
        let sm = sm % launch.grid.sm_count.max(1);
        Ok(Self {
            launch,
            index,
            sm,
            blocks,
            shared,
            next: 0,
        })
    }

    /// Makes a cluster that has finished cluster number `index` of the same grid, with the memory that it has: registers
    /// and local memory hold what it left there, shared memory zeros.
    ///
    /// # Panics
    /// If `index` is out of range, or the cluster has not finished.
    pub fn restart(&mut self, index: u64, sm: u32) {
        let launch = &self.launch;
        if let [block] = self.blocks.as_mut_slice()
            && index == self.index + 1
            && let Some(place) = launch.grid.following(block.index)
        {
            block.restart(launch, place);
        } else {
            for (block, place) in self.blocks.iter_mut().zip(places(launch, index)) {
                block.restart(launch, place);
            }
        }
        if launch.grid.shared() > 0 {
            self.shared.iter_mut().for_each(Bytes::clear);
        }
        self.index = index;
        self.sm = sm % launch.grid.sm_count.max(1);
        self.next = 0;
    }

    /// Runs for about `budget` operations over a lane group (one takes some tens of nanoseconds).
    pub fn run(&mut self, budget: u64) -> Outcome {
        let mut none = Following::NONE;
        self.run_within(budget, &mut none)
    }

    /// As [`Cluster::run`]; having finished, it may go on as the next clusters of `fresh`, at most so many, if it stands right before
    /// them: as [`Cluster::restart`] would make it. It takes those out that it has begun; what the outcome says is of the last one.
    pub fn run_on(&mut self, budget: u64, fresh: &mut Range<u64>, most: u64) -> Outcome {
        let mut following = Following::NONE;
        if let [block] = self.blocks.as_slice()
            && fresh.start == self.index + 1
        {
            following.next = self.launch.grid.following(block.index);
            following.left = most.min(fresh.end.saturating_sub(fresh.start));
        }
        let outcome = self.run_within(budget, &mut following);
        self.index += following.begun;
        fresh.start += following.begun;
        outcome
    }

    fn run_within(&mut self, budget: u64, following: &mut Following) -> Outcome {
        let mut budget = i64::try_from(budget).unwrap_or(i64::MAX);
        // A block alone need not give way to others of its cluster.
        let most = if self.blocks.len() == 1 {
            i64::MAX
        } else {
            BLOCK_BUDGET
        };
        loop {
            let (mut progress, mut waits) = (false, false);
            for _ in 0..self.blocks.len() {
                let rank = self.next;
                self.next = (rank + 1) % self.blocks.len();
                if self.blocks[rank].finished() {
                    continue;
                }
                let place = ClusterPlace {
                    rank: rank as u32,
                    shared: &self.shared,
                };
                let given = budget.min(most);
                let mut left = given;
                let stop =
                    self.blocks[rank].run(&self.launch, &place, self.sm, following, &mut left);
                budget = budget.saturating_sub(given - left);
                match stop {
                    Stop::Finished | Stop::Budget => progress = true,
                    Stop::Barrier => {}
                    Stop::Waits => waits = true,
                    Stop::Fault {
                        kind,
                        address,
                        thread,
                        line,
                    } => {
                        let [x, y, _] = self.launch.grid.block;
                        return Outcome::Fault(Box::new(Fault {
                            kind,
                            address,
                            block: self.blocks[rank].index,
                            thread: [thread % x, thread / x % y, thread / (x * y)],
                            line,
                            kernel: self.launch.kernel.name.clone(),
                        }));
                    }
                    Stop::Cancelled => return Outcome::Cancelled,
                }
                progress |= self.release_barrier();
                if budget <= 0 {
                    break;
                }
            }
            if self.blocks.iter().all(Block::finished) {
                return Outcome::Finished;
            }
            if waits && !progress {
                return Outcome::Waits;
            }
            // Without progress, threads wait at a barrier that nobody will complete: the kernel hangs, as it does
            // on a GPU, until it is cancelled.
            if budget <= 0 || !progress {
                return Outcome::Yielded;
            }
        }
    }

    /// Ends the phase of the cluster's barrier if all threads have arrived. Says whether it did.
    fn release_barrier(&mut self) -> bool {
        let waits = self.blocks.iter().any(Block::waits_for_cluster);
        let complete = waits && self.blocks.iter().all(Block::has_arrived);
        if complete {
            self.blocks
                .iter_mut()
                .for_each(Block::leave_cluster_barrier);
        }
        complete
    }
}

/// Where the blocks of cluster number `index` stand in its grid, by rank.
///
/// # Panics
/// If it is out of range.
fn places(launch: &Launch, index: u64) -> impl Iterator<Item = [u32; 3]> {
    assert!(index < launch.clusters());
    let place = |index: u64, sides: [u32; 3]| {
        let [x, y, _] = sides.map(u64::from);
        [index % x, index / x % y, index / (x * y)].map(|n| n as u32)
    };
    let sides = launch.grid.cluster;
    let cluster = place(index, launch.grid.clusters());
    (0..u64::from(launch.cluster_blocks())).map(move |rank| {
        let within = place(rank, sides);
        std::array::from_fn(|axis| cluster[axis] * sides[axis] + within[axis])
    })
}
