//! A lane group: up to [`crate::MAX_GROUP_LANES`] threads of a block, and the divergent paths that they are in.
//!
//! A block owns its groups and runs them. A path is a set of lanes at one place of the program. All live lanes of a lane group in one path is
//! the usual case. Where lanes disagree about a branch the path splits; the one at the lowest block
//! runs until it reaches or passes the others, and those that meet become one again. A path that has
//! taken many back-edges while others wait gives way, so that lanes that spin for other lanes of their
//! own warp are served (independent thread scheduling).
//!
//! Called by `Block::run`. Must not know what an operation does: the machine runs it, and an event comes back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use self::calls::Caller;
pub(crate) use self::following::Following;
use super::fault::FaultKind;
use super::grid::{ClusterPlace, Grid};
use super::machine::{Arrival, CLUSTER_BARRIER, Event, Machine};
use super::mask::Mask;
use super::program::{NOWHERE, Program};
use super::reach::Reach;
use super::regs::{Bytes, Frame};

mod barriers;
mod calls;
mod following;
mod spread;

/// Back-edges (weighed by [`super::ops::control::edge`]) until another path gets a time slice.
const TIME_SLICE: u32 = 1024;
/// The most boundaries that a lane group goes on in divergent code before it tries the convergent one again.
const MAX_BACKOFF: u32 = 1024;
/// What a call or a return costs of the budget, beside the function's own operations.
const CALL: i64 = 16;

/// What a path waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathState {
    Ready,
    /// The block's barrier.
    Barrier(Arrival),
    /// Lanes of its warps.
    Warp,
}

/// Lanes at one place.
#[derive(Clone, Debug)]
struct DivergentPath {
    pc: u32,
    mask: Mask,
    state: PathState,
    /// Time slices used: the path with the fewest runs.
    slices: u32,
    /// What is left of its time slice, as [`Machine::slice_left`].
    slice_left: u32,
    depth: u32,
    caller: Option<Arc<Caller>>,
    /// Where its registers start.
    base: usize,
    /// Where its local frame starts.
    local_base: u32,
    /// Does not wait for lanes of its warps.
    force: bool,
    /// Of how many warps together it waits for lanes: one, or a warpgroup's.
    waits_for: usize,
}

impl DivergentPath {
    /// All lanes, at the beginning.
    fn first(mask: Mask, pc: u32) -> Self {
        Self {
            pc,
            mask,
            state: PathState::Ready,
            slices: 0,
            slice_left: TIME_SLICE,
            depth: 0,
            caller: None,
            base: 0,
            local_base: 0,
            force: false,
            waits_for: 1,
        }
    }

    /// Makes it, once all lanes have exited outside of any call, the first path of another block.
    fn again(&mut self, mask: Mask, pc: u32) {
        // A whole path, made anew and copied, would wait for what was just written of it.
        if self.mask != mask {
            self.mask = mask;
        }
        self.pc = pc;
        self.state = PathState::Ready;
        self.slices = 0;
        self.slice_left = TIME_SLICE;
        self.force = false;
        self.waits_for = 1;
    }

    /// Whether the two can become one.
    fn meets(&self, other: &Self) -> bool {
        self.pc == other.pc && self.is_called_as(other)
    }

    /// Whether both run the same call of a function.
    fn is_called_as(&self, other: &Self) -> bool {
        self.base == other.base
            && self.depth == other.depth
            && (match (&self.caller, &other.caller) {
                (None, None) => true,
                (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
                _ => false,
            })
    }
}

/// How a lane group's run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// All lanes have exited.
    Done,
    /// All lanes wait at barriers.
    Barrier,
    /// The budget is spent.
    Budget,
    /// A path waits for something that only others can do.
    Later,
    Fault {
        kind: FaultKind,
        address: u64,
        thread: u32,
        line: u32,
    },
}

/// What a lane group has of its block.
pub(crate) struct BlockContext<'a> {
    pub(crate) grid: &'a Grid,
    pub(crate) program: &'a Program,
    pub(crate) cluster: &'a ClusterPlace<'a>,
    pub(crate) sm: u32,
    /// The lane group is all of the block.
    pub(crate) one_group: bool,
}

/// Lanes of one block that run together, with their registers, local memory and divergent paths.
#[derive(Debug)]
pub(crate) struct LaneGroup {
    registers: Bytes,
    scratch: Bytes,
    local: Bytes,
    /// See [`Machine::errors`].
    errors: Bytes,
    /// The block's index.
    block_index: [u32; 3],
    first_thread: u32,
    /// The lanes that a block begins with.
    all: Mask,
    live: Mask,
    paths: Vec<DivergentPath>,
    /// Lanes that arrived at each barrier without waiting (`barrier.arrive`), and the count they gave.
    arrived: BTreeMap<u8, (Mask, u32)>,
    /// Block boundaries until convergent code is tried again.
    reconvergence_delay: u32,
    /// The next such delay: doubles each time that lanes hold different values.
    reconvergence_backoff: u32,
    /// See [`Machine::reach`]; `None` before the first run.
    reach: Option<Reach>,
}

impl LaneGroup {
    /// The lane group of threads `first..first + count` of a block, for slots of `lanes` lanes. `None` if there is
    /// no memory for it.
    pub(crate) fn new(
        program: &Program,
        block_index: [u32; 3],
        first: u32,
        count: usize,
        lanes: usize,
    ) -> Option<Self> {
        let live = Mask::first(count);
        Some(Self {
            registers: Bytes::new(program.functions[0].frame as usize)?,
            scratch: Bytes::new(Machine::SCRATCH_BYTES)?,
            local: Bytes::new(program.local_stride as usize * lanes)?,
            errors: Bytes::new(if program.asks_runtime { 4 * lanes } else { 0 })?,
            block_index,
            first_thread: first,
            all: live,
            live,
            paths: vec![DivergentPath::first(live, program.prologue)],
            arrived: BTreeMap::new(),
            reconvergence_delay: 0,
            reconvergence_backoff: 1,
            reach: None,
        })
    }

    /// Makes it, after all its lanes have exited, the group of the same threads of another block.
    pub(crate) fn restart(&mut self, program: &Program, block_index: [u32; 3]) {
        self.block_index = block_index;
        self.live = self.all;
        self.paths.clear();
        self.paths
            .push(DivergentPath::first(self.live, program.block_prologue));
        self.arrived.clear();
        self.errors.clear();
        self.reconvergence_delay = 0;
        self.reconvergence_backoff = 1;
    }

    /// Lanes that have not exited.
    pub(crate) fn live(&self) -> Mask {
        self.live
    }

    /// The index of the block that it is of.
    pub(crate) fn block_index(&self) -> [u32; 3] {
        self.block_index
    }

    /// Runs until nothing can go on, the budget is spent, or the launch is cancelled. Where it is all of its block, it may go on
    /// with blocks that follow.
    pub(crate) fn run(
        &mut self,
        context: &BlockContext<'_>,
        following: &mut Following,
        budget: &mut i64,
    ) -> Pause {
        let program = context.program;
        loop {
            let Some(index) = self.choose(program) else {
                return if self.paths.is_empty() {
                    Pause::Done
                } else {
                    Pause::Barrier
                };
            };
            let index = self.merge(index);
            let pc = self.paths[index].pc;
            let (at, event) = self.step(context, following, budget, index, pc);
            *budget = budget.saturating_sub(cost(program, &event));
            if let Some(pause) = self.handle(program, index, at, event) {
                return pause;
            }
            if *budget <= 0 || context.grid.cancel.load(Ordering::Relaxed) {
                return Pause::Budget;
            }
        }
    }

    /// The path that runs next.
    fn choose(&mut self, program: &Program) -> Option<usize> {
        if let [only] = self.paths.as_slice()
            && only.state == PathState::Ready
        {
            return Some(0);
        }
        let key = |path: &DivergentPath| {
            (
                path.slices,
                u32::MAX - path.depth,
                block_order(program, path.pc),
            )
        };
        let best = (0..self.paths.len())
            .filter(|&index| self.paths[index].state == PathState::Ready)
            .min_by_key(|&index| key(&self.paths[index]));
        if best.is_some() {
            return best;
        }
        // Whoever waits for lanes of its warp waits for lanes that will not come: they have exited, wait at
        // a barrier, or wait for these.
        let waiting = (0..self.paths.len())
            .filter(|&index| self.paths[index].state == PathState::Warp)
            .min_by_key(|&index| key(&self.paths[index]))?;
        let first = self.paths[waiting].clone();
        for path in &mut self.paths {
            if path.state == PathState::Warp && path.meets(&first) {
                path.state = PathState::Ready;
                path.force = true;
            }
        }
        Some(waiting)
    }

    /// Joins those that stand where path `index` stands; returns where it is now.
    fn merge(&mut self, index: usize) -> usize {
        if self.paths.len() == 1 {
            return index;
        }
        let mut path = self.paths.swap_remove(index);
        self.paths.retain(|other| {
            // One that has been let go on without the others does so.
            let joins = match other.state {
                PathState::Ready => true,
                PathState::Warp => !path.force,
                PathState::Barrier(_) => false,
            } && path.meets(other);
            if joins {
                path.mask = path.mask.or(other.mask);
                path.slices = path.slices.max(other.slices);
                path.force |= other.force;
            }
            !joins
        });
        self.paths.push(path);
        self.paths.len() - 1
    }

    /// Runs one path from `pc`; returns where it stopped, and why.
    fn step(
        &mut self,
        context: &BlockContext<'_>,
        following: &mut Following,
        budget: &mut i64,
        index: usize,
        pc: u32,
    ) -> (u32, Event) {
        if !self
            .reach
            .as_ref()
            .is_some_and(|reach| reach.holds(&context.grid.memory))
        {
            self.reach = None;
        }
        let reach = self.reach.get_or_insert_with(|| {
            Reach::new(
                &context.grid.readable,
                &context.grid.memory,
                &context.cluster.shared[context.cluster.rank as usize],
                context.grid.shared(),
            )
        });
        reach.block_index = self.block_index;
        let path = &self.paths[index];
        let first = self
            .paths
            .iter()
            .enumerate()
            .filter(|&(other, there)| {
                other != index
                    && !matches!(there.state, PathState::Barrier(_))
                    && there.depth == path.depth
            })
            .map(|(other, there)| (block_order(context.program, there.pc), other))
            .min();
        let limit = first.map_or(u32::MAX, |(block, _)| block);
        // A path that stands at the start of that block, and that this one becomes one with if it comes there.
        let meeting = first.filter(|&(block, other)| {
            let there = &self.paths[other];
            there.state == PathState::Ready
                && there.pc == context.program.blocks[block as usize].slow
                && there.is_called_as(path)
        });
        let mut machine = Machine {
            program: context.program,
            grid: context.grid,
            frame: Frame::new(&self.registers, path.base),
            scratch: Frame::new(&self.scratch, 0),
            shared: &context.cluster.shared[context.cluster.rank as usize],
            cluster: context.cluster,
            shared_bytes: u64::from(context.grid.shared()),
            local: &self.local,
            errors: Frame::new(&self.errors, 0),
            local_stride: context.program.local_stride,
            local_base: path.local_base,
            block_index: self.block_index,
            sm: context.sm,
            first_thread: self.first_thread,
            live: self.live,
            mask: path.mask,
            full: false,
            low: 0,
            high: 0,
            unguarded: path.mask,
            decided: false,
            limit,
            meeting: meeting.map_or(NOWHERE, |(block, _)| block),
            joined: Mask::default(),
            alone: context.one_group && self.paths.len() == 1 && self.arrived.is_empty(),
            diverged: self.paths.len() > 1,
            force: path.force,
            budget: *budget,
            slice_left: path.slice_left,
            reconvergence_delay: self.reconvergence_delay,
            reach,
            event: Event::None,
        };
        machine.set_mask(path.mask);
        let mut at = machine.run(pc);
        // All of the block is over: the machine is as good for the next one.
        let alone =
            machine.alone && self.paths[index].caller.is_none() && !context.program.asks_runtime;
        while alone
            && matches!(machine.event, Event::Exit)
            && machine.mask == machine.live
            && machine.budget > 0
            && !context.grid.cancel.load(Ordering::Relaxed)
            && let Some(block) = following.take(context.grid)
        {
            self.block_index = block;
            self.live = self.all;
            self.reconvergence_backoff = 1;
            self.paths[index].again(self.all, context.program.block_prologue);
            if context.grid.shared() > 0 {
                // SAFETY: the block was the only one that has it, and is over; its cluster runs on this thread.
                unsafe { machine.shared.zero() };
            }
            machine.begin(block, self.all, TIME_SLICE);
            at = machine.run(context.program.block_prologue);
        }
        *budget = machine.budget;
        self.reconvergence_delay = machine.reconvergence_delay;
        let (slice_left, joined, event) = (machine.slice_left, machine.joined, machine.event);
        let path = &mut self.paths[index];
        path.slice_left = slice_left;
        if let Some((_, other)) = meeting
            && !joined.is_empty()
        {
            path.mask = path.mask.and_not(joined);
            let (slices, force) = (path.slices, path.force);
            let there = &mut self.paths[other];
            there.mask = there.mask.or(joined);
            there.slices = there.slices.max(slices);
            there.force |= force;
        }
        (at, event)
    }

    /// Does what a stopped path asks for.
    fn handle(&mut self, program: &Program, index: usize, at: u32, event: Event) -> Option<Pause> {
        let convergent = at < program.divergent;
        let start = |block: u32| program.blocks[block as usize].slow;
        // A forced operation has run, whatever stopped the path after it.
        self.paths[index].force = false;
        match event {
            Event::None => {}
            Event::Boundary(block) => {
                let fast = self.converge(program, index, block);
                self.paths[index].pc = fast.unwrap_or_else(|| start(block));
            }
            Event::BackEdge(pc) => {
                self.paths[index].pc = pc;
                self.end_time_slice(index);
            }
            Event::Split { taken, to, other } => {
                if convergent {
                    self.diverge(program, index, &[to, other]);
                }
                let path = &mut self.paths[index];
                let mut second = path.clone();
                second.mask = path.mask.and_not(taken);
                second.pc = start(other);
                path.mask = taken;
                path.pc = start(to);
                self.paths.push(second);
            }
            Event::Scatter(groups) => {
                if convergent {
                    let blocks: Vec<u32> = groups.iter().map(|(_, block)| *block).collect();
                    self.diverge(program, index, &blocks);
                }
                let path = self.paths.swap_remove(index);
                for (mask, block) in groups {
                    self.paths.push(DivergentPath {
                        mask,
                        pc: start(block),
                        ..path.clone()
                    });
                    // A jump by a table may be a loop's back-edge.
                    self.end_time_slice(self.paths.len() - 1);
                }
            }
            Event::Barrier { arrival, next } => {
                let path = &mut self.paths[index];
                let code = &program.blocks[next as usize];
                path.pc = if convergent { code.fast } else { code.slow };
                if arrival.arrive_only {
                    let (lanes, count) = self.arrived.entry(arrival.id).or_default();
                    *lanes = lanes.or(path.mask);
                    *count = arrival.count.max(*count);
                } else if arrival.id != CLUSTER_BARRIER || self.has_arrived(index) {
                    self.paths[index].state = PathState::Barrier(arrival);
                }
            }
            Event::Warp { ready, warps } => {
                let path = &mut self.paths[index];
                path.pc = at;
                path.waits_for = warps;
                if ready.is_empty() {
                    self.park(index);
                } else {
                    let mut rest = path.clone();
                    rest.mask = path.mask.and_not(ready);
                    path.mask = ready;
                    path.force = true;
                    self.paths.push(rest);
                    self.park(self.paths.len() - 1);
                }
            }
            Event::Call { site, next } => {
                if convergent {
                    self.diverge(program, index, &[next]);
                }
                let callee = program.sites[site as usize].callee;
                return self.call(program, index, at, site, next, callee);
            }
            Event::CallEach { site, next, groups } => {
                if convergent {
                    self.diverge(program, index, &[next]);
                }
                let path = self.paths.swap_remove(index);
                for (mask, callee) in groups {
                    self.paths.push(DivergentPath {
                        mask,
                        ..path.clone()
                    });
                    let last = self.paths.len() - 1;
                    if let Some(pause) = self.call(program, last, at, site, next, callee) {
                        return Some(pause);
                    }
                }
            }
            Event::Later => {
                let path = &mut self.paths[index];
                path.pc = at;
                // What it waits for may be another path's to do.
                path.slices += 1;
                return Some(Pause::Later);
            }
            Event::Return => self.return_to_caller(program, index),
            Event::Exit => {
                let path = self.paths.swap_remove(index);
                self.live = self.live.and_not(path.mask);
                self.reconvergence_delay = 0;
                for other in &mut self.paths {
                    if other.state == PathState::Warp {
                        other.state = PathState::Ready;
                    }
                }
            }
            Event::Fault {
                kind,
                address,
                lane,
                line,
            } => {
                let thread = self.first_thread + lane as u32;
                let line = line.unwrap_or(program.lines[at as usize]);
                return Some(Pause::Fault {
                    kind,
                    address,
                    thread,
                    line,
                });
            }
        }
        None
    }

    /// Begins the path's next time slice if this one is used up, so that others come first.
    fn end_time_slice(&mut self, index: usize) {
        // A time slice outlasts the budget: paths that changed places with it would all have their calls'
        // frames at once.
        let diverged = self.paths.len() > 1;
        let path = &mut self.paths[index];
        if path.slice_left == 0 {
            path.slice_left = TIME_SLICE;
            if diverged {
                path.slices += 1;
                self.free_stuck_warps();
            }
        }
    }
}

/// What an event costs of the budget: whatever a path does over and over has its price, so that none
/// keeps a thread for ever. Back-edges have paid theirs.
fn cost(program: &Program, event: &Event) -> i64 {
    let call = |callee: u32| CALL + i64::from(program.functions[callee as usize].cost);
    let moves = |block: u32| program.blocks[block as usize].moves.len() as i64;
    match event {
        Event::Boundary(block) => 1 + moves(*block) / 64,
        Event::Split { to, other, .. } => 1 + (moves(*to) + moves(*other)) / 16,
        Event::Scatter(groups) => {
            let all: i64 = groups.iter().map(|(_, block)| moves(*block)).sum();
            1 + all / 16
        }
        Event::Call { site, .. } => call(program.sites[*site as usize].callee),
        Event::CallEach { groups, .. } => groups.iter().map(|(_, callee)| call(*callee)).sum(),
        Event::Return => CALL,
        _ => 1,
    }
}

/// Where a position stands in the order of blocks: the divergent code's positions are in that order.
fn block_order(program: &Program, pc: u32) -> u32 {
    // Positions in the order of operations compare as their blocks do; limits are given in blocks.
    program
        .blocks
        .partition_point(|block| block.slow <= pc)
        .saturating_sub(1) as u32
}
