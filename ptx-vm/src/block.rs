//! A running thread block: its lane groups, its shared memory, its barriers.
//!
//! Owns them while the block runs, on one thread at a time. Called by the engine, which gives it a budget of
//! operations. Must not know other blocks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::fault::{Fault, FaultKind};
use super::lane_group::{BlockContext, LaneGroup, Pause};
use super::launch::{Launch, LaunchError};
use super::machine::CLUSTER_BARRIER;
use super::mask::Mask;
use super::program::Program;
use super::regs::Bytes;

/// How a call of [`Block::run`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All threads have exited.
    Finished,
    /// The budget is used up, or all threads wait for something outside the block: run it again.
    Yielded,
    /// A thread waits for other grids: run it again once others have run.
    Waits,
    /// A thread did something wrong; the block is dead.
    Fault(Box<Fault>),
    /// The launch's cancel word was set; the block is dead.
    Cancelled,
}

/// What one lane group may spend before the next one of its block runs.
const GROUP_BUDGET: i64 = 1 << 16;

/// A thread block under way: a value that any thread may run for a while.
#[derive(Debug)]
pub struct Block {
    launch: Arc<Launch>,
    program: Arc<Program>,
    index: [u32; 3],
    sm: u32,
    shared: Bytes,
    groups: Vec<LaneGroup>,
    /// The lane group that runs next.
    next: usize,
}

impl Block {
    /// Block number `index` (x fastest, below [`Launch::blocks`]) of a grid; `sm` becomes what `%smid` reads, modulo
    /// [`LaunchSpec::sm_count`](super::LaunchSpec::sm_count).
    ///
    /// # Errors
    /// [`LaunchError::OutOfResources`] if there is no memory for it.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn new(launch: Arc<Launch>, index: u64, sm: u32) -> Result<Self, LaunchError> {
        let index = position(&launch, index);
        let threads = launch.threads() as usize;
        let (program, lanes) = (Arc::clone(&launch.program), launch.lanes);
        let groups: Option<Vec<LaneGroup>> = (0..threads)
            .step_by(lanes)
            .map(|first| LaneGroup::new(&program, first as u32, lanes.min(threads - first), lanes))
            .collect();
        let shared = Bytes::new(launch.grid.shared() as usize);
        let (Some(groups), Some(shared)) = (groups, shared) else {
            return Err(LaunchError::OutOfResources);
        };
        let launch_sms = launch.grid.sm_count.max(1);
        Ok(Self {
            launch,
            program,
            index,
            sm: sm % launch_sms,
            shared,
            groups,
            next: 0,
        })
    }

    /// Makes a block that has finished block number `index` of the same grid, with the memory that it has: registers
    /// and local memory hold what it left there, shared memory zeros.
    ///
    /// # Panics
    /// If `index` is out of range, or the block has not finished.
    pub fn restart(&mut self, index: u64, sm: u32) {
        assert!(self.finished());
        self.index = position(&self.launch, index);
        self.sm = sm % self.launch.grid.sm_count.max(1);
        self.next = 0;
        self.shared.clear();
        let threads = self.launch.threads() as usize;
        let firsts = (0..threads).step_by(self.launch.lanes);
        for (group, first) in self.groups.iter_mut().zip(firsts) {
            group.restart(self.launch.lanes.min(threads - first));
        }
    }

    /// Runs for about `budget` operations over a lane group (one takes some tens of nanoseconds).
    pub fn run(&mut self, budget: u64) -> Outcome {
        let mut budget = i64::try_from(budget).unwrap_or(i64::MAX);
        let launch = Arc::clone(&self.launch);
        let program = Arc::clone(&self.program);
        loop {
            let (mut progress, mut waits) = (false, false);
            for _ in 0..self.groups.len() {
                if launch.grid.cancel.load(Ordering::Relaxed) {
                    return Outcome::Cancelled;
                }
                let index = self.next;
                self.next = (index + 1) % self.groups.len();
                let context = BlockContext {
                    grid: &launch.grid,
                    program: &program,
                    shared: &self.shared,
                    block_index: self.index,
                    sm: self.sm,
                };
                let given = budget.clamp(1, GROUP_BUDGET);
                let mut left = given;
                let pause = self.groups[index].run(&context, &mut left);
                // Even straight-line code costs something.
                budget -= (given - left).max(1);
                match pause {
                    Pause::Done | Pause::Barrier => {}
                    Pause::Budget => progress = true,
                    Pause::Later => waits = true,
                    Pause::Fault {
                        kind,
                        address,
                        thread,
                        line,
                    } => {
                        return self.fault(kind, address, thread, line);
                    }
                }
                progress |= self.release_barriers();
                if budget <= 0 {
                    return if self.finished() {
                        Outcome::Finished
                    } else {
                        Outcome::Yielded
                    };
                }
            }
            if self.finished() {
                return Outcome::Finished;
            }
            if waits && !progress {
                return Outcome::Waits;
            }
            if !progress {
                // A barrier that nobody will complete: the kernel hangs, as it does on a GPU, until it is
                // cancelled.
                return Outcome::Yielded;
            }
        }
    }

    /// Its position in the grid.
    #[must_use]
    pub fn index(&self) -> [u32; 3] {
        self.index
    }

    /// The launch that it is of.
    #[must_use]
    pub fn launch(&self) -> &Arc<Launch> {
        &self.launch
    }

    fn finished(&self) -> bool {
        self.groups.iter().all(|group| group.live().is_empty())
    }

    fn fault(&self, kind: FaultKind, address: u64, thread: u32, line: u32) -> Outcome {
        let [x, y, _] = self.launch.grid.block;
        Outcome::Fault(Box::new(Fault {
            kind,
            address,
            block: self.index,
            thread: [thread % x, thread / x % y, thread / (x * y)],
            line,
            kernel: self.launch.kernel.name.clone(),
        }))
    }

    /// Lets those go on that wait at a barrier which all have reached.
    fn release_barriers(&mut self) -> bool {
        let waiting = self
            .groups
            .iter()
            .fold(0, |bits, group| bits | group.barriers());
        let mut released = false;
        for id in (0..=CLUSTER_BARRIER).filter(|id| waiting >> id & 1 != 0) {
            let there: Vec<(Mask, u32)> = self
                .groups
                .iter()
                .map(|group| group.at_barrier(id))
                .collect();
            let wanted = there.iter().map(|(_, count)| *count).max().unwrap_or(0);
            let complete = if wanted == 0 {
                self.groups
                    .iter()
                    .zip(&there)
                    .all(|(group, (mask, _))| group.live().and_not(*mask).is_empty())
            } else {
                let arrived: u32 = self
                    .groups
                    .iter()
                    .zip(&there)
                    .map(|(group, (mask, _))| arrived(group, *mask))
                    .sum();
                arrived >= wanted
            };
            if complete {
                let sum = self
                    .groups
                    .iter()
                    .map(|group| group.reduction(id))
                    .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
                for group in &mut self.groups {
                    group.release(id, sum);
                }
                released = true;
            }
        }
        released
    }
}

/// Where block number `index` stands in its grid.
///
/// # Panics
/// If it is out of range.
fn position(launch: &Launch, index: u64) -> [u32; 3] {
    assert!(index < launch.blocks());
    let [x, y, _] = launch.grid.size.map(u64::from);
    [index % x, index / x % y, index / (x * y)].map(|n| n as u32)
}

/// Threads that count as arrived: barriers count whole warps, so lanes of a warp that have exited or never
/// were count once all others of it are there.
fn arrived(group: &LaneGroup, mask: Mask) -> u32 {
    (0..super::mask::WORDS * 2)
        .map(|warp| match mask.warp(warp) {
            0 => 0,
            here if here == group.live().warp(warp) => 32,
            here => here.count_ones(),
        })
        .sum()
}
