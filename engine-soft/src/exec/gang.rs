//! A gang: up to [`super::GANG_LANES`] threads of a block, and the fragments that they are in.
//!
//! A fragment is a set of lanes at one place of the program. All live lanes of a gang in one fragment is
//! the usual case. Where lanes disagree about a branch the fragment splits; the one at the lowest block
//! runs until it reaches or passes the others, and those that meet become one again. A fragment that has
//! taken many back-edges while others wait gives way, so that lanes that spin for other lanes of their
//! own warp are served (independent thread scheduling).

use std::sync::Arc;

use super::launch::{FaultKind, Launch};
use super::machine::{Arrival, Event, Machine, ReduceOp};
use super::mask::{Mask, WORDS};
use super::program::{Move, NOWHERE, Program, Slot};
use super::regs::{Bytes, Frame, Lane, STRIP};

/// Back-edges (weighed by [`super::ops::control::edge`]) until another fragment gets its turn.
const TURN: u32 = 1024;
/// The most bytes of registers that a gang may have before its recursion is a stack overflow.
const MAX_REGISTER_BYTES: usize = 64 << 20;
/// The deepest chain of calls.
const MAX_DEPTH: u32 = 4096;
/// The most boundaries that a gang goes on in divergent code before it tries the convergent one again.
const MAX_PATIENCE: u32 = 1024;

/// Where lanes return to.
#[derive(Debug, PartialEq, Eq)]
struct Caller {
    /// Call site.
    site: u32,
    /// Block to go on with.
    next: u32,
    /// Number of the function that was called.
    callee: u32,
    base: usize,
    local_base: u32,
    above: Option<Arc<Caller>>,
}

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
    /// Lanes that arrived at each barrier without waiting (`barrier.arrive`).
    arrived: Vec<(u8, Mask, u32)>,
    patience: u32,
    impatience: u32,
    started: bool,
}

impl Gang {
    /// The gang of threads `first..first + count` of a block, for slots of `lanes` lanes.
    pub(crate) fn new(program: &Program, first: u32, count: usize, lanes: usize) -> Self {
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
        Self {
            registers: Bytes::new(program.functions[0].frame as usize),
            scratch: Bytes::new(Machine::SCRATCH_BYTES),
            local: Bytes::new(program.local_stride as usize * lanes),
            first_thread: first,
            live,
            fragments: vec![fragment],
            arrived: Vec::new(),
            patience: 0,
            impatience: 1,
            started: false,
        }
    }

    /// Lanes that have not exited.
    pub(crate) fn live(&self) -> Mask {
        self.live
    }

    /// Runs until nothing can go on, or the budget is spent.
    pub(crate) fn run(&mut self, around: &Surroundings<'_>, budget: &mut i64) -> Pause {
        let program = around.program;
        if !self.started {
            self.started = true;
            self.step(around, &mut i64::MAX.clone(), 0, program.prologue);
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
            if let Some(pause) = self.handle(program, index, at, event) {
                return pause;
            }
            if *budget <= 0 {
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
            shared_bytes: u64::from(around.launch.kernel.shared_bytes)
                + u64::from(around.launch.dynamic_shared),
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
                // A turn outlasts the budget: fragments that changed places with it would all have their
                // calls' frames at once.
                let company = self.fragments.len() > 1;
                let fragment = &mut self.fragments[index];
                fragment.pc = pc;
                if fragment.left == 0 {
                    fragment.left = TURN;
                    if company {
                        fragment.turn += 1;
                        self.free_stuck_warps();
                    }
                }
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
                }
            }
            Event::Barrier { arrival, next } => {
                let fragment = &mut self.fragments[index];
                let code = &program.blocks[next as usize];
                fragment.pc = if convergent { code.fast } else { code.slow };
                if arrival.arrive_only {
                    self.arrived
                        .push((arrival.id, fragment.mask, arrival.count));
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

    /// Lets a fragment wait for lanes of its warps: with those that wait at the same place, which may be
    /// what it waits for, so that the two try again together.
    fn park(&mut self, index: usize) {
        let mut fragment = self.fragments.swap_remove(index);
        fragment.state = State::Warp;
        self.fragments.retain(|other| {
            let joins = other.state == State::Warp && fragment.meets(other);
            if joins {
                fragment.mask = fragment.mask.or(other.mask);
                fragment.turn = fragment.turn.min(other.turn);
                fragment.state = State::Ready;
            }
            !joins
        });
        self.fragments.push(fragment);
    }

    /// Spreads the uniform values that `blocks` want over the lanes.
    fn diverge(&mut self, program: &Program, index: usize, blocks: &[u32]) {
        let frame = Frame::new(&self.registers, self.fragments[index].base);
        let (low, high) = self.live.strips();
        for (at, &block) in blocks.iter().enumerate() {
            for one in &program.blocks[block as usize].moves {
                if at > 0
                    && blocks[..at]
                        .iter()
                        .any(|&before| has_move(program, before, one))
                {
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

    /// Lanes that wait for others of their warp go on if none of those can come: with a fragment that
    /// spins, there is always somebody ready.
    fn free_stuck_warps(&mut self) {
        let mut ready = Mask::default();
        for fragment in &self.fragments {
            if fragment.state == State::Ready {
                ready = ready.or(fragment.mask);
            }
        }
        let mut freed = Vec::new();
        for fragment in &mut self.fragments {
            if fragment.state != State::Warp {
                continue;
            }
            let mut stuck = Mask::default();
            for warp in 0..WORDS * 2 {
                if ready.warp(warp) == 0 {
                    stuck.set_warp(warp, fragment.mask.warp(warp));
                }
            }
            if !stuck.is_empty() {
                let mut free = fragment.clone();
                free.mask = stuck;
                free.state = State::Ready;
                free.force = true;
                fragment.mask = fragment.mask.and_not(stuck);
                freed.push(free);
            }
        }
        self.fragments.retain(|fragment| !fragment.mask.is_empty());
        self.fragments.append(&mut freed);
    }

    /// Calls function `callee`.
    fn call(
        &mut self,
        program: &Program,
        index: usize,
        at: u32,
        site: u32,
        next: u32,
        callee: u32,
    ) -> Option<Pause> {
        let call = &program.sites[site as usize];
        let caller = &program.functions[call.caller as usize];
        let function = &program.functions[callee as usize];
        let fragment = &self.fragments[index];
        let natural = fragment.base + (caller.frame as usize).next_multiple_of(64);
        let base = self.frame_base(program, index, callee, natural);
        let local_base = fragment.local_base + caller.local;
        let end = base + function.frame as usize;
        let fits = local_base
            .checked_add(function.local)
            .is_some_and(|end| end <= program.local_stride);
        if !fits || end > MAX_REGISTER_BYTES || fragment.depth >= MAX_DEPTH {
            let lane = fragment.mask.lowest().unwrap_or(0) as u32;
            let (kind, line) = (FaultKind::StackOverflow, program.lines[at as usize]);
            return Some(Pause::Fault {
                kind,
                address: 0,
                thread: self.first_thread + lane,
                line,
            });
        }
        self.registers.grow(end);
        let (mask, from) = (fragment.mask, (fragment.base, fragment.local_base));
        for (arg, param) in call.args.iter().zip(&function.params) {
            self.pass(program, mask, from, *arg, (base, local_base), *param);
        }
        let fragment = &mut self.fragments[index];
        let (base, local_base) = (
            std::mem::replace(&mut fragment.base, base),
            std::mem::replace(&mut fragment.local_base, local_base),
        );
        let above = fragment.caller.take();
        fragment.caller = Some(Arc::new(Caller {
            site,
            next,
            callee,
            base,
            local_base,
            above,
        }));
        fragment.depth += 1;
        fragment.pc = program.blocks[function.first as usize].slow;
        None
    }

    /// Where the frame of `callee` may lie that fragment `index` calls: behind the caller's, unless
    /// another fragment has the frame of something else there, whose lanes would lie elsewhere in the same
    /// bytes; then above everybody's.
    fn frame_base(&self, program: &Program, index: usize, callee: u32, natural: usize) -> usize {
        let bytes = |function: u32| program.functions[function as usize].frame as usize;
        let end = natural + bytes(callee);
        let mut top = natural;
        let mut taken = false;
        for (other, fragment) in self.fragments.iter().enumerate() {
            let mut frame = (fragment.base, fragment.caller.as_deref());
            let function = |caller: Option<&Caller>| caller.map_or(0, |caller| caller.callee);
            let highest = frame.0 + bytes(function(frame.1)).next_multiple_of(64);
            top = top.max(highest);
            if other == index {
                continue;
            }
            // Frames get lower on the way down.
            loop {
                let (base, caller) = frame;
                let function = function(caller);
                if base + bytes(function) <= natural {
                    break;
                }
                taken |= base < end && (base, function) != (natural, callee);
                let Some(caller) = caller else { break };
                frame = (caller.base, caller.above.as_deref());
            }
        }
        if taken { top } else { natural }
    }

    /// Returns from a function.
    fn give_back(&mut self, program: &Program, index: usize) {
        let fragment = &mut self.fragments[index];
        let Some(caller) = fragment.caller.take() else {
            return;
        };
        let from = (fragment.base, fragment.local_base);
        fragment.base = caller.base;
        fragment.local_base = caller.local_base;
        fragment.caller = caller.above.clone();
        fragment.depth -= 1;
        fragment.pc = program.blocks[caller.next as usize].slow;
        let mask = fragment.mask;
        let results = &program.sites[caller.site as usize].results;
        let returns = &program.functions[caller.callee as usize].returns;
        for (result, value) in results.iter().zip(returns) {
            self.pass(
                program,
                mask,
                from,
                *value,
                (caller.base, caller.local_base),
                *result,
            );
        }
    }

    /// Copies a value from one frame to another for the lanes of `mask`. Frames are a base in the
    /// registers and one in local memory.
    fn pass(
        &mut self,
        program: &Program,
        mask: Mask,
        (from_base, from_local): (usize, u32),
        from: Slot,
        (to_base, to_local): (usize, u32),
        to: Slot,
    ) {
        let stride = program.local_stride as usize;
        let locals = Frame::new(&self.local, 0);
        let (source, target) = (
            Frame::new(&self.registers, from_base),
            Frame::new(&self.registers, to_base),
        );
        for lane in mask.lanes() {
            let at = |base: u32, offset: u32| lane * stride + (base + offset) as usize;
            match (from, to) {
                (
                    Slot::Local { offset: a, size },
                    Slot::Local {
                        offset: b,
                        size: room,
                    },
                ) => {
                    for byte in 0..size.min(room) {
                        let value: u8 = locals.lane(at(from_local, a + byte), 0);
                        locals.set_lane(at(to_local, b + byte), 0, value);
                    }
                }
                (
                    Slot::Register {
                        offset: a,
                        width,
                        varying,
                    },
                    Slot::Register { offset: b, .. },
                ) => {
                    let value = source.wide(a as usize, if varying { lane } else { 0 }, width);
                    target.set_wide(b as usize, lane, width, value);
                }
                (
                    Slot::Register {
                        offset: a,
                        width,
                        varying,
                    },
                    Slot::Local { offset: b, size },
                ) => {
                    let value = source.wide(a as usize, if varying { lane } else { 0 }, width);
                    for (index, byte) in value
                        .to_le_bytes()
                        .into_iter()
                        .take(size as usize)
                        .enumerate()
                    {
                        locals.set_lane(at(to_local, b + index as u32), 0, byte);
                    }
                }
                (
                    Slot::Local { offset: a, size },
                    Slot::Register {
                        offset: b, width, ..
                    },
                ) => {
                    let mut bytes = [0; 8];
                    for (index, byte) in bytes.iter_mut().take(size as usize).enumerate() {
                        *byte = locals.lane(at(from_local, a + index as u32), 0);
                    }
                    target.set_wide(b as usize, lane, width, u64::from_le_bytes(bytes));
                }
            }
        }
    }

    /// The lanes that wait at barrier `id` or passed it by `barrier.arrive`, and the count they gave.
    pub(crate) fn at_barrier(&self, id: u8) -> (Mask, u32) {
        let mut lanes = Mask::default();
        let mut count = 0;
        for fragment in &self.fragments {
            if let State::Barrier(arrival) = fragment.state
                && arrival.id == id
            {
                lanes = lanes.or(fragment.mask);
                count = count.max(arrival.count);
            }
        }
        for (other, mask, wanted) in &self.arrived {
            if *other == id {
                lanes = lanes.or(*mask);
                count = count.max(*wanted);
            }
        }
        (lanes, count)
    }

    /// The barriers that somebody waits at, as bits.
    pub(crate) fn barriers(&self) -> u16 {
        self.fragments
            .iter()
            .fold(0, |bits, fragment| match fragment.state {
                State::Barrier(arrival) => bits | 1 << arrival.id,
                _ => bits,
            })
    }

    /// What the lanes at a barrier reduce: how many hold, and how many there are.
    pub(crate) fn reduction(&self, id: u8) -> (u32, u32) {
        let mut sum = (0, 0);
        for fragment in &self.fragments {
            if let State::Barrier(Arrival {
                id: other,
                reduce: Some(reduce),
                ..
            }) = fragment.state
                && other == id
            {
                sum.0 += reduce.holds.and(fragment.mask).count();
                sum.1 += fragment.mask.count();
            }
        }
        sum
    }

    /// Lets the lanes at a barrier go on; `holds` of `all` lanes held what they reduce.
    pub(crate) fn release(&mut self, id: u8, (holds, all): (u32, u32)) {
        for fragment in &mut self.fragments {
            let State::Barrier(arrival) = fragment.state else {
                continue;
            };
            if arrival.id != id {
                continue;
            }
            fragment.state = State::Ready;
            if let Some(reduce) = arrival.reduce {
                let value = match reduce.op {
                    ReduceOp::And => u32::from(holds == all),
                    ReduceOp::Or => u32::from(holds != 0),
                    ReduceOp::Popc => holds,
                };
                let frame = Frame::new(&self.registers, fragment.base);
                for lane in fragment.mask.lanes() {
                    frame.set_wide(
                        reduce.destination as usize,
                        lane,
                        reduce.width,
                        value.into(),
                    );
                }
            }
        }
        self.arrived.retain(|(other, ..)| *other != id);
        self.patience = 0;
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
    program.blocks[block as usize]
        .moves
        .iter()
        .any(|other| other.varying == one.varying && other.uniform == one.uniform)
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
