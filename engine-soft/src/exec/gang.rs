//! A gang: up to [`super::GANG_LANES`] threads of a block, and the fragments that they are in.
//!
//! A fragment is a set of lanes at one place of the program. All live lanes of a gang in one fragment is
//! the usual case. Where lanes disagree about a branch the fragment splits; the one at the lowest block
//! runs until it reaches or passes the others, and those that meet become one again. A fragment that has
//! taken many back-edges while others wait gives way, so that lanes that spin for other lanes of their
//! own warp are served (independent thread scheduling).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use self::calls::Caller;
use super::launch::{FaultKind, Launch};
use super::machine::{Arrival, Event, Machine};
use super::mask::Mask;
use super::program::{Move, NOWHERE, Program};
use super::regs::{Bytes, Frame, Lane, STRIP};

mod barriers;
mod calls;

/// Back-edges (weighed by [`super::ops::control::edge`]) until another fragment gets its turn.
const TURN: u32 = 1024;
/// The most boundaries that a gang goes on in divergent code before it tries the convergent one again.
const MAX_PATIENCE: u32 = 1024;
/// What a call or a return costs of the budget, beside the function's own operations.
const CALL: i64 = 16;

/// What a fragment waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// The block's barrier.
    Barrier(Arrival),
    /// Lanes of its warps.
    Warp,
}

/// Lanes at one place.
#[derive(Clone, Debug)]
struct Fragment {
    pc: u32,
    mask: Mask,
    state: State,
    /// Turns taken: the lowest runs.
    turn: u32,
    /// What is left of its turn, as [`Machine::turn`].
    left: u32,
    depth: u32,
    caller: Option<Arc<Caller>>,
    /// Where its registers start.
    base: usize,
    /// Where its local frame starts.
    local_base: u32,
    /// Does not wait for lanes of its warps.
    force: bool,
}

impl Fragment {
    /// Whether the two can become one.
    fn meets(&self, other: &Self) -> bool {
        self.pc == other.pc
            && self.base == other.base
            && self.depth == other.depth
            && (match (&self.caller, &other.caller) {
                (None, None) => true,
                (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
                _ => false,
            })
    }
}

/// How a gang's run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// All lanes have exited.
    Done,
    /// All lanes wait at barriers.
    Barrier,
    /// The budget is spent.
    Budget,
    Fault {
        kind: FaultKind,
        address: u64,
        thread: u32,
        line: u32,
    },
}

/// What a gang has of its block.
pub(crate) struct Surroundings<'a> {
    pub(crate) launch: &'a Launch,
    pub(crate) program: &'a Program,
    pub(crate) shared: &'a Bytes,
    pub(crate) block_index: [u32; 3],
    pub(crate) sm: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Gang {
    registers: Bytes,
    scratch: Bytes,
    local: Bytes,
    first_thread: u32,
    live: Mask,
    fragments: Vec<Fragment>,
    /// Lanes that arrived at each barrier without waiting (`barrier.arrive`), and the count they gave.
    arrived: BTreeMap<u8, (Mask, u32)>,
    patience: u32,
    impatience: u32,
    started: bool,
}

impl Gang {
    /// The gang of threads `first..first + count` of a block, for slots of `lanes` lanes. `None` if there is
    /// no memory for it.
    pub(crate) fn new(program: &Program, first: u32, count: usize, lanes: usize) -> Option<Self> {
        let live = Mask::first(count);
        let fragment = Fragment {
            pc: 0,
            mask: live,
            state: State::Ready,
            turn: 0,
            left: TURN,
            depth: 0,
            caller: None,
            base: 0,
            local_base: 0,
            force: false,
        };
        Some(Self {
            registers: Bytes::new(program.functions[0].frame as usize)?,
            scratch: Bytes::new(Machine::SCRATCH_BYTES)?,
            local: Bytes::new(program.local_stride as usize * lanes)?,
            first_thread: first,
            live,
            fragments: vec![fragment],
            arrived: BTreeMap::new(),
            patience: 0,
            impatience: 1,
            started: false,
        })
    }

    /// Lanes that have not exited.
    pub(crate) fn live(&self) -> Mask {
        self.live
    }

    /// Runs until nothing can go on, the budget is spent, or the launch is cancelled.
    pub(crate) fn run(&mut self, around: &Surroundings<'_>, budget: &mut i64) -> Pause {
        let program = around.program;
        if !self.started {
            self.started = true;
            let (at, event) = self.step(around, &mut i64::MAX.clone(), 0, program.prologue);
            if let Some(pause) = self.handle(program, 0, at, event) {
                return pause;
            }
            self.fragments[0].pc = program.blocks[program.functions[0].first as usize].fast;
        }
        loop {
            let Some(index) = self.choose(program) else {
                return if self.fragments.is_empty() {
                    Pause::Done
                } else {
                    Pause::Barrier
                };
            };
            let index = self.merge(index);
            let pc = self.fragments[index].pc;
            let (at, event) = self.step(around, budget, index, pc);
            *budget = budget.saturating_sub(cost(program, &event));
            if let Some(pause) = self.handle(program, index, at, event) {
                return pause;
            }
            if *budget <= 0 || around.launch.cancel.load(Ordering::Relaxed) {
                return Pause::Budget;
            }
        }
    }

    /// The fragment that runs next.
    fn choose(&mut self, program: &Program) -> Option<usize> {
        if let [only] = self.fragments.as_slice()
            && only.state == State::Ready
        {
            return Some(0);
        }
        let key = |fragment: &Fragment| {
            (
                fragment.turn,
                u32::MAX - fragment.depth,
                place(program, fragment.pc),
            )
        };
        let best = (0..self.fragments.len())
            .filter(|&index| self.fragments[index].state == State::Ready)
            .min_by_key(|&index| key(&self.fragments[index]));
        if best.is_some() {
            return best;
        }
        // Whoever waits for lanes of its warp waits for lanes that will not come: they have exited, wait at
        // a barrier, or wait for these.
        let waiting = (0..self.fragments.len())
            .filter(|&index| self.fragments[index].state == State::Warp)
            .min_by_key(|&index| key(&self.fragments[index]))?;
        let first = self.fragments[waiting].clone();
        for fragment in &mut self.fragments {
            if fragment.state == State::Warp && fragment.meets(&first) {
                fragment.state = State::Ready;
                fragment.force = true;
            }
        }
        Some(waiting)
    }

    /// Joins those that stand where fragment `index` stands; returns where it is now.
    fn merge(&mut self, index: usize) -> usize {
        if self.fragments.len() == 1 {
            return index;
        }
        let mut fragment = self.fragments.swap_remove(index);
        self.fragments.retain(|other| {
            // One that has been let go on without the others does so.
            let joins = match other.state {
                State::Ready => true,
                State::Warp => !fragment.force,
                State::Barrier(_) => false,
            } && fragment.meets(other);
            if joins {
                fragment.mask = fragment.mask.or(other.mask);
                fragment.turn = fragment.turn.max(other.turn);
                fragment.force |= other.force;
            }
            !joins
        });
        self.fragments.push(fragment);
        self.fragments.len() - 1
    }

    /// Runs one fragment from `pc`; returns where it stopped, and why.
    fn step(
        &mut self,
        around: &Surroundings<'_>,
        budget: &mut i64,
        index: usize,
        pc: u32,
    ) -> (u32, Event) {
        let fragment = &self.fragments[index];
        let limit = self
            .fragments
            .iter()
            .enumerate()
            .filter(|&(other, there)| {
                other != index
                    && !matches!(there.state, State::Barrier(_))
                    && there.depth == fragment.depth
            })
            .map(|(_, there)| place(around.program, there.pc))
            .min()
            .unwrap_or(u32::MAX);
        let mut machine = Machine {
            program: around.program,
            launch: around.launch,
            frame: Frame::new(&self.registers, fragment.base),
            scratch: Frame::new(&self.scratch, 0),
            shared: around.shared,
            shared_bytes: u64::from(around.launch.shared()),
            local: &self.local,
            local_stride: around.program.local_stride,
            local_base: fragment.local_base,
            block_index: around.block_index,
            sm: around.sm,
            first_thread: self.first_thread,
            live: self.live,
            mask: fragment.mask,
            full: false,
            whole: false,
            low: 0,
            high: 0,
            unguarded: fragment.mask,
            limit,
            company: self.fragments.len() > 1,
            force: fragment.force,
            budget: *budget,
            turn: fragment.left,
            patience: self.patience,
            event: Event::None,
        };
        machine.set_mask(fragment.mask);
        let at = machine.run(pc);
        *budget = machine.budget;
        self.patience = machine.patience;
        let (turn, event) = (machine.turn, machine.event);
        self.fragments[index].left = turn;
        (at, event)
    }

    /// Does what a stopped fragment asks for.
    fn handle(&mut self, program: &Program, index: usize, at: u32, event: Event) -> Option<Pause> {
        let convergent = at < program.divergent;
        let start = |block: u32| program.blocks[block as usize].slow;
        // A forced operation has run, whatever stopped the fragment after it.
        self.fragments[index].force = false;
        match event {
            Event::None => {}
            Event::Boundary(block) => {
                let fast = self.converge(program, index, block);
                self.fragments[index].pc = fast.unwrap_or_else(|| start(block));
            }
            Event::BackEdge(pc) => {
                self.fragments[index].pc = pc;
                self.end_turn(index);
            }
            Event::Split { taken, to, other } => {
                if convergent {
                    self.diverge(program, index, &[to, other]);
                }
                let fragment = &mut self.fragments[index];
                let mut second = fragment.clone();
                second.mask = fragment.mask.and_not(taken);
                second.pc = start(other);
                fragment.mask = taken;
                fragment.pc = start(to);
                self.fragments.push(second);
            }
            Event::Scatter(groups) => {
                if convergent {
                    let blocks: Vec<u32> = groups.iter().map(|(_, block)| *block).collect();
                    self.diverge(program, index, &blocks);
                }
                let fragment = self.fragments.swap_remove(index);
                for (mask, block) in groups {
                    self.fragments.push(Fragment {
                        mask,
                        pc: start(block),
                        ..fragment.clone()
                    });
                    // A jump by a table may be a loop's back-edge.
                    self.end_turn(self.fragments.len() - 1);
                }
            }
            Event::Barrier { arrival, next } => {
                let fragment = &mut self.fragments[index];
                let code = &program.blocks[next as usize];
                fragment.pc = if convergent { code.fast } else { code.slow };
                if arrival.arrive_only {
                    let (lanes, count) = self.arrived.entry(arrival.id).or_default();
                    *lanes = lanes.or(fragment.mask);
                    *count = arrival.count.max(*count);
                } else {
                    fragment.state = State::Barrier(arrival);
                }
            }
            Event::Warp { ready } => {
                let fragment = &mut self.fragments[index];
                fragment.pc = at;
                if ready.is_empty() {
                    self.park(index);
                } else {
                    let mut rest = fragment.clone();
                    rest.mask = fragment.mask.and_not(ready);
                    fragment.mask = ready;
                    fragment.force = true;
                    self.fragments.push(rest);
                    self.park(self.fragments.len() - 1);
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
                let fragment = self.fragments.swap_remove(index);
                for (mask, callee) in groups {
                    self.fragments.push(Fragment {
                        mask,
                        ..fragment.clone()
                    });
                    let last = self.fragments.len() - 1;
                    if let Some(pause) = self.call(program, last, at, site, next, callee) {
                        return Some(pause);
                    }
                }
            }
            Event::Return => self.give_back(program, index),
            Event::Exit => {
                let fragment = self.fragments.swap_remove(index);
                self.live = self.live.and_not(fragment.mask);
                self.patience = 0;
                for other in &mut self.fragments {
                    if other.state == State::Warp {
                        other.state = State::Ready;
                    }
                }
            }
            Event::Fault {
                kind,
                address,
                lane,
            } => {
                let thread = self.first_thread + lane as u32;
                let line = program.lines[at as usize];
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

    /// Gives the next fragment its turn if this one's is over.
    fn end_turn(&mut self, index: usize) {
        // A turn outlasts the budget: fragments that changed places with it would all have their calls'
        // frames at once.
        let company = self.fragments.len() > 1;
        let fragment = &mut self.fragments[index];
        if fragment.left == 0 {
            fragment.left = TURN;
            if company {
                fragment.turn += 1;
                self.free_stuck_warps();
            }
        }
    }

    /// Spreads the uniform values that `blocks` want over the lanes.
    fn diverge(&mut self, program: &Program, index: usize, blocks: &[u32]) {
        let frame = Frame::new(&self.registers, self.fragments[index].base);
        let (low, high) = self.live.strips();
        for (at, &block) in blocks.iter().enumerate() {
            for one in &program.blocks[block as usize].moves {
                // Twice does no harm, and with many blocks it costs more to find out.
                if at == 1 && has_move(program, blocks[0], one) {
                    continue;
                }
                match one.width {
                    1 => spread::<u8>(frame, one, low, high),
                    2 => spread::<u16>(frame, one, low, high),
                    4 => spread::<u32>(frame, one, low, high),
                    _ => spread::<u64>(frame, one, low, high),
                }
            }
        }
        self.patience = 0;
    }

    /// Tries to go on in the convergent code at `block`: all live lanes are here, and those registers that
    /// are uniform there hold one value in all of them. Returns the position if so.
    fn converge(&mut self, program: &Program, index: usize, block: u32) -> Option<u32> {
        let code = &program.blocks[block as usize];
        if self.fragments.len() != 1 || code.fast == NOWHERE {
            return None;
        }
        let frame = Frame::new(&self.registers, self.fragments[index].base);
        let live = self.live;
        let equal = code.moves.iter().all(|one| match one.width {
            1 => gather::<u8>(frame, one, live),
            2 => gather::<u16>(frame, one, live),
            4 => gather::<u32>(frame, one, live),
            _ => gather::<u64>(frame, one, live),
        });
        if equal {
            self.impatience = 1;
            return Some(code.fast);
        }
        self.patience = self.impatience;
        self.impatience = (self.impatience * 2).min(MAX_PATIENCE);
        None
    }
}

/// What an event costs of the budget: whatever a fragment does over and over has its price, so that none
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
fn place(program: &Program, pc: u32) -> u32 {
    // Positions in the order of operations compare as their blocks do; limits are given in blocks.
    program
        .blocks
        .partition_point(|block| block.slow <= pc)
        .saturating_sub(1) as u32
}

fn has_move(program: &Program, block: u32, one: &Move) -> bool {
    let moves = &program.blocks[block as usize].moves;
    moves.binary_search_by_key(&one.key(), Move::key).is_ok()
}

fn spread<T: Lane>(frame: Frame, one: &Move, low: usize, high: usize) {
    let value = frame.strip::<T>(one.uniform as usize, 0);
    for strip in low..high {
        frame.set_strip(one.varying as usize, strip, value);
    }
}

/// Whether all lanes of `live` hold one value; if so, it is the uniform one.
fn gather<T: Lane + PartialEq>(frame: Frame, one: &Move, live: Mask) -> bool {
    let Some(lead) = live.lowest() else {
        return false;
    };
    let value: T = frame.lane(one.varying as usize, lead);
    let (low, high) = live.strips();
    for strip in low..high {
        let lanes = live.strip(strip);
        let values = frame.strip::<T>(one.varying as usize, strip);
        let differ = (0..STRIP).fold(0u16, |bits, lane| {
            bits | u16::from(values[lane] != value) << lane
        });
        if differ & lanes != 0 {
            return false;
        }
    }
    frame.set_strip(one.uniform as usize, 0, [value; STRIP]);
    true
}
