//! A running thread block: its gangs, its shared memory, its barriers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::gang::{Gang, Pause, Surroundings};
use super::launch::{Fault, FaultKind, Launch, LaunchError};
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
    /// A thread did something wrong; the block is dead.
    Fault(Box<Fault>),
    /// The launch's cancel word was set; the block is dead.
    Cancelled,
}

/// What one gang may spend before the next one of its block has a turn.
const GANG_BUDGET: i64 = 1 << 16;

/// A thread block under way: a value that any thread may run for a while.
#[derive(Debug)]
pub struct Block {
    launch: Arc<Launch>,
    program: Arc<Program>,
    index: [u32; 3],
    sm: u32,
    shared: Bytes,
    gangs: Vec<Gang>,
    /// The gang that runs next.
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
        assert!(index < launch.blocks());
        let [x, y, _] = launch.grid.map(u64::from);
        let index = [index % x, index / x % y, index / (x * y)].map(|n| n as u32);
        let threads = launch.threads() as usize;
        let (program, lanes) = (Arc::clone(&launch.program), launch.lanes);
        let gangs: Option<Vec<Gang>> = (0..threads)
            .step_by(lanes)
            .map(|first| Gang::new(&program, first as u32, lanes.min(threads - first), lanes))
            .collect();
        let shared = Bytes::new(launch.shared() as usize);
        let (Some(gangs), Some(shared)) = (gangs, shared) else {
            return Err(LaunchError::OutOfResources);
        };
        let launch_sms = launch.sm_count.max(1);
        Ok(Self {
            launch,
            program,
            index,
            sm: sm % launch_sms,
            shared,
            gangs,
            next: 0,
        })
    }

    /// Runs for about `budget` operations over a gang (one takes some tens of nanoseconds).
    pub fn run(&mut self, budget: u64) -> Outcome {
        let mut budget = i64::try_from(budget).unwrap_or(i64::MAX);
        let launch = Arc::clone(&self.launch);
        let program = Arc::clone(&self.program);
        loop {
            let mut progress = false;
            for _ in 0..self.gangs.len() {
                if launch.cancel.load(Ordering::Relaxed) {
                    return Outcome::Cancelled;
                }
                let index = self.next;
                self.next = (index + 1) % self.gangs.len();
                let around = Surroundings {
                    launch: &launch,
                    program: &program,
                    shared: &self.shared,
                    block_index: self.index,
                    sm: self.sm,
                };
                let given = budget.clamp(1, GANG_BUDGET);
                let mut left = given;
                let pause = self.gangs[index].run(&around, &mut left);
                // Even straight-line code costs something.
                budget -= (given - left).max(1);
                match pause {
                    Pause::Done | Pause::Barrier => {}
                    Pause::Budget => progress = true,
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
        self.gangs.iter().all(|gang| gang.live().is_empty())
    }

    fn fault(&self, kind: FaultKind, address: u64, thread: u32, line: u32) -> Outcome {
        let [x, y, _] = self.launch.block;
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
            .gangs
            .iter()
            .fold(0, |bits, gang| bits | gang.barriers());
        let mut released = false;
        for id in (0..=CLUSTER_BARRIER).filter(|id| waiting >> id & 1 != 0) {
            let there: Vec<(Mask, u32)> =
                self.gangs.iter().map(|gang| gang.at_barrier(id)).collect();
            let wanted = there.iter().map(|(_, count)| *count).max().unwrap_or(0);
            let complete = if wanted == 0 {
                self.gangs
                    .iter()
                    .zip(&there)
                    .all(|(gang, (mask, _))| gang.live().and_not(*mask).is_empty())
            } else {
                let arrived: u32 = self
                    .gangs
                    .iter()
                    .zip(&there)
                    .map(|(gang, (mask, _))| arrived(gang, *mask))
                    .sum();
                arrived >= wanted
            };
            if complete {
                let sum = self
                    .gangs
                    .iter()
                    .map(|gang| gang.reduction(id))
                    .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
                for gang in &mut self.gangs {
                    gang.release(id, sum);
                }
                released = true;
            }
        }
        released
    }
}

/// Threads that count as arrived: barriers count whole warps, so lanes of a warp that have exited or never
/// were count once all others of it are there.
fn arrived(gang: &Gang, mask: Mask) -> u32 {
    (0..super::mask::WORDS * 2)
        .map(|warp| match mask.warp(warp) {
            0 => 0,
            here if here == gang.live().warp(warp) => 32,
            here => here.count_ones(),
        })
        .sum()
}
