//! A running thread block: its lane groups and its barriers.
//!
//! Owns them while the block runs, on one thread at a time. Called by its cluster, which has its shared memory and
//! gives it a budget of operations. Must not know when other blocks run.

use std::sync::atomic::Ordering;

use super::fault::FaultKind;
use super::grid::ClusterPlace;
use super::lane_group::{BlockContext, Following, LaneGroup, Pause};
use super::launch::Launch;
use super::machine::CLUSTER_BARRIER;
use super::mask::Mask;

/// What one lane group may spend before the next one of its block runs.
const GROUP_BUDGET: i64 = 1 << 16;

/// How a call of [`Block::run`] ended.
#[derive(Debug)]
pub(crate) enum Stop {
    /// All threads have exited.
    Finished,
    /// The budget is used up.
    Budget,
    /// All threads wait at barriers: of the cluster, or one that nobody will complete.
    Barrier,
    /// A thread waits for other grids.
    Waits,
    Fault {
        kind: FaultKind,
        address: u64,
        thread: u32,
        line: u32,
    },
    /// The launch's cancel word was set.
    Cancelled,
}

/// A thread block under way.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) index: [u32; 3],
    groups: Vec<LaneGroup>,
    /// The lane group that runs next.
    next: usize,
}

impl Block {
    /// The block at this place of a grid. `None` if there is no memory for it.
    pub(crate) fn new(launch: &Launch, index: [u32; 3]) -> Option<Self> {
        let (threads, lanes) = (launch.threads() as usize, launch.lanes);
        let groups: Option<Vec<LaneGroup>> = (0..threads)
            .step_by(lanes)
            .map(|first| {
                let count = lanes.min(threads - first);
                LaneGroup::new(&launch.program, index, first as u32, count, lanes)
            })
            .collect();
        Some(Self {
            index,
            groups: groups?,
            next: 0,
        })
    }

    /// Makes a block that has finished the block at another place of the same grid, with the memory that it has: registers
    /// and local memory hold what it left there.
    ///
    /// # Panics
    /// If it has not finished.
    pub(crate) fn restart(&mut self, launch: &Launch, index: [u32; 3]) {
        assert!(self.finished());
        self.index = index;
        self.next = 0;
        for group in &mut self.groups {
            group.restart(&launch.program, index);
        }
    }

    /// Runs for about `budget` operations over a lane group, which are taken off it. A block of one lane group may become those that
    /// follow.
    pub(crate) fn run(
        &mut self,
        launch: &Launch,
        cluster: &ClusterPlace<'_>,
        sm: u32,
        following: &mut Following,
        budget: &mut i64,
    ) -> Stop {
        let context = BlockContext {
            grid: &launch.grid,
            program: &launch.program,
            cluster,
            sm,
            one_group: self.groups.len() == 1,
        };
        let mut none = Following::NONE;
        let following = if context.one_group {
            following
        } else {
            &mut none
        };
        loop {
            let (mut progress, mut waits) = (false, false);
            for _ in 0..self.groups.len() {
                if launch.grid.cancel.load(Ordering::Relaxed) {
                    return Stop::Cancelled;
                }
                let index = self.next;
                self.next = (index + 1) % self.groups.len();
                let given = (*budget).clamp(1, GROUP_BUDGET);
                let mut left = given;
                let pause = self.groups[index].run(&context, following, &mut left);
                self.index = self.groups[index].block_index();
                // Even straight-line code costs something.
                *budget -= (given - left).max(1);
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
                        return Stop::Fault {
                            kind,
                            address,
                            thread,
                            line,
                        };
                    }
                }
                progress |= self.release_barriers();
                if *budget <= 0 {
                    return if self.finished() {
                        Stop::Finished
                    } else {
                        Stop::Budget
                    };
                }
            }
            if self.finished() {
                return Stop::Finished;
            }
            if !progress {
                return if waits { Stop::Waits } else { Stop::Barrier };
            }
        }
    }

    /// Whether all its threads have exited.
    pub(crate) fn finished(&self) -> bool {
        self.groups.iter().all(|group| group.live().is_empty())
    }

    /// Whether all threads that have not exited have arrived at the cluster's barrier.
    pub(crate) fn has_arrived(&self) -> bool {
        self.groups.iter().all(|group| {
            let (there, _) = group.at_barrier(CLUSTER_BARRIER);
            group.live().and_not(there).is_empty()
        })
    }

    /// Whether threads wait at the cluster's barrier.
    pub(crate) fn waits_for_cluster(&self) -> bool {
        let waits = |group: &LaneGroup| group.barriers() >> CLUSTER_BARRIER & 1 != 0;
        self.groups.iter().any(waits)
    }

    /// Lets those go on that wait at the cluster's barrier.
    pub(crate) fn leave_cluster_barrier(&mut self) {
        for group in &mut self.groups {
            group.release(CLUSTER_BARRIER, (0, 0));
        }
    }

    /// Lets those go on that wait at a barrier which all have reached.
    fn release_barriers(&mut self) -> bool {
        let waiting = self
            .groups
            .iter()
            .fold(0, |bits, group| bits | group.barriers());
        let mut released = false;
        for id in (0..CLUSTER_BARRIER).filter(|id| waiting >> id & 1 != 0) {
            let wanted = self.groups.iter().map(|group| group.at_barrier(id).1);
            let complete = match wanted.max().unwrap_or(0) {
                0 => self.groups.iter().all(|group| {
                    let (there, _) = group.at_barrier(id);
                    group.live().and_not(there).is_empty()
                }),
                wanted => {
                    let there = |group: &LaneGroup| arrived(group, group.at_barrier(id).0);
                    self.groups.iter().map(there).sum::<u32>() >= wanted
                }
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
