//! What is known of a function before it is compiled: the order of its blocks, which registers are live
//! where, which values all lanes share, and where each register lies.

use super::ir::{Block, BlockId, End, Func, Inst, Kind, Passed, Reg};
use super::ops::special::Special;

/// A set of registers or blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Set(Vec<u64>);

impl Set {
    pub(crate) fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    pub(crate) fn insert(&mut self, index: u32) -> bool {
        let word = &mut self.0[index as usize / 64];
        let new = *word >> (index % 64) & 1 == 0;
        *word |= 1 << (index % 64);
        new
    }

    pub(crate) fn remove(&mut self, index: u32) {
        self.0[index as usize / 64] &= !(1 << (index % 64));
    }

    pub(crate) fn has(&self, index: u32) -> bool {
        self.0[index as usize / 64] >> (index % 64) & 1 != 0
    }

    fn add(&mut self, other: &Self) {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a |= b;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().enumerate().flat_map(|(index, &word)| {
            (0..64)
                .filter(move |bit| word >> bit & 1 != 0)
                .map(move |bit| index as u32 * 64 + bit)
        })
    }
}

/// Puts the blocks into an order in which a join comes after what it joins and a loop's blocks stand
/// together, and drops those that are never reached. Lanes that wait for others at the lowest block then
/// meet them as soon as possible. Returns, for each block, whether it is in a loop that waits for others.
pub(crate) fn order(func: &mut Func) {
    let successors: Vec<Vec<BlockId>> = func
        .blocks
        .iter()
        .map(|block| block.end.successors())
        .collect();
    let mut order = reverse_postorder(&successors);
    let loops = natural_loops(&successors, &order);
    for (header, body) in &loops {
        // Blocks that are not of the loop but stand between its blocks move behind it.
        let Some(first) = order.iter().position(|block| block == header) else {
            continue;
        };
        let last = order
            .iter()
            .rposition(|&block| body.has(block))
            .unwrap_or(first);
        let (inside, outside): (Vec<_>, Vec<_>) = order[first..=last]
            .iter()
            .partition(|&&block| body.has(block));
        order.splice(first..=last, inside.into_iter().chain(outside));
    }
    let mut place = vec![u32::MAX; successors.len()];
    for (index, &block) in order.iter().enumerate() {
        place[block as usize] = index as u32;
    }
    let mut old: Vec<Option<Block>> = std::mem::take(&mut func.blocks)
        .into_iter()
        .map(Some)
        .collect();
    func.blocks = order
        .iter()
        .filter_map(|&block| old[block as usize].take())
        .collect();
    for block in &mut func.blocks {
        block.end.map(|target| place[target as usize]);
    }
}

fn reverse_postorder(successors: &[Vec<BlockId>]) -> Vec<BlockId> {
    let mut seen = Set::new(successors.len());
    let mut post = Vec::new();
    seen.insert(0);
    // Successors are visited from the last in the source to the first, so that the order is close to it.
    let sorted = |block: BlockId| {
        let mut next = successors[block as usize].clone();
        next.sort_unstable();
        next
    };
    let mut stack = vec![(0, sorted(0))];
    while let Some((block, next)) = stack.last_mut() {
        if let Some(successor) = next.pop() {
            if seen.insert(successor) {
                stack.push((successor, sorted(successor)));
            }
        } else {
            post.push(*block);
            stack.pop();
        }
    }
    post.reverse();
    post
}

/// Loops by their headers: a loop of a header is all of its back-edges' loops together.
fn natural_loops(successors: &[Vec<BlockId>], order: &[BlockId]) -> Vec<(BlockId, Set)> {
    let count = successors.len();
    let mut place = vec![usize::MAX; count];
    for (index, &block) in order.iter().enumerate() {
        place[block as usize] = index;
    }
    let mut predecessors = vec![Vec::new(); count];
    for &block in order {
        for &next in &successors[block as usize] {
            predecessors[next as usize].push(block);
        }
    }
    let dominators = dominators(&predecessors, order, &place);
    let dominates = |above: BlockId, mut below: BlockId| loop {
        if above == below {
            return true;
        }
        let up = dominators[below as usize];
        if up == below {
            return false;
        }
        below = up;
    };
    let mut loops: Vec<(BlockId, Set)> = Vec::new();
    for &block in order {
        for &header in &successors[block as usize] {
            if !dominates(header, block) {
                continue;
            }
            let index = loops
                .iter()
                .position(|(other, _)| *other == header)
                .unwrap_or_else(|| {
                    let mut body = Set::new(count);
                    body.insert(header);
                    loops.push((header, body));
                    loops.len() - 1
                });
            let body = &mut loops[index].1;
            let mut stack = vec![block];
            while let Some(inside) = stack.pop() {
                if body.insert(inside) {
                    stack.extend(&predecessors[inside as usize]);
                }
            }
        }
    }
    loops
}

/// Immediate dominators (Cooper, Harvey, Kennedy).
fn dominators(predecessors: &[Vec<BlockId>], order: &[BlockId], place: &[usize]) -> Vec<BlockId> {
    let mut above = vec![BlockId::MAX; predecessors.len()];
    above[0] = 0;
    let mut changed = true;
    while changed {
        changed = false;
        for &block in &order[1..] {
            let mut new = BlockId::MAX;
            for &before in &predecessors[block as usize] {
                if above[before as usize] == BlockId::MAX {
                    continue;
                }
                if new == BlockId::MAX {
                    new = before;
                    continue;
                }
                let (mut a, mut b) = (before, new);
                while a != b {
                    while place[a as usize] > place[b as usize] {
                        a = above[a as usize];
                    }
                    while place[b as usize] > place[a as usize] {
                        b = above[b as usize];
                    }
                }
                new = a;
            }
            if above[block as usize] != new {
                above[block as usize] = new;
                changed = true;
            }
        }
    }
    above
}

impl Inst {
    /// Registers read, the guard and what a guarded write may leave among them.
    pub(crate) fn uses(&self) -> impl Iterator<Item = Reg> + '_ {
        let kept = if self.guard.is_some() {
            self.d.as_slice()
        } else {
            &[]
        };
        self.s
            .iter()
            .copied()
            .chain(self.guard.map(|(reg, _)| reg))
            .chain(kept.iter().copied())
    }
}

/// Registers live at the start of each block.
pub(crate) fn live_in(func: &Func) -> Vec<Set> {
    let mut live: Vec<Set> = vec![Set::new(func.regs.len()); func.blocks.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for index in (0..func.blocks.len()).rev() {
            let mut now = live_out(func, &live, index);
            let block = &func.blocks[index];
            before_end(&block.end, &mut now);
            for inst in block.insts.iter().rev() {
                before(inst, &mut now);
            }
            if live[index] != now {
                live[index] = now;
                changed = true;
            }
        }
    }
    live
}

/// Steps a set of live registers back over an instruction.
pub(crate) fn before(inst: &Inst, live: &mut Set) {
    for &reg in &inst.d {
        live.remove(reg);
    }
    for reg in inst.uses() {
        live.insert(reg);
    }
}

/// Steps a set of live registers back over a block's end.
pub(crate) fn before_end(end: &End, live: &mut Set) {
    for reg in end.defs() {
        live.remove(reg);
    }
    for reg in end.uses() {
        live.insert(reg);
    }
}

/// Registers live at the end of a block, before what its end itself writes.
pub(crate) fn live_out(func: &Func, live_in: &[Set], block: usize) -> Set {
    let mut set = Set::new(func.regs.len());
    let end = &func.blocks[block].end;
    for next in end.successors() {
        set.add(&live_in[next as usize]);
    }
    if matches!(end, End::Return) {
        for passed in &func.returns {
            if let Passed::Register(reg) = passed {
                set.insert(*reg);
            }
        }
    }
    set
}

/// How a register's value may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// One value while the block runs, computed before everything else.
    Fixed,
    /// One value in all lanes while they run together.
    Uniform,
    /// A value per lane.
    Varying,
}

/// The class of every register of the entry.
pub(crate) fn classes(func: &Func) -> Vec<Class> {
    let mut definitions = vec![0u32; func.regs.len()];
    for block in &func.blocks {
        for inst in &block.insts {
            for &reg in &inst.d {
                definitions[reg as usize] += 1 + u32::from(inst.guard.is_some());
            }
        }
        for reg in block.end.defs() {
            definitions[reg as usize] += 2;
        }
    }
    // A register that is read before it is ever written is undefined; it may be anything but must stand
    // somewhere, and one definition is not before all uses.
    let live = live_in(func);
    if let Some(entry) = live.first() {
        for reg in entry.iter() {
            definitions[reg as usize] += 2;
        }
    }
    let mut classes: Vec<Class> = definitions
        .iter()
        .map(|&count| {
            if count == 1 {
                Class::Fixed
            } else {
                Class::Uniform
            }
        })
        .collect();
    let mut changed = true;
    while changed {
        changed = false;
        for block in &func.blocks {
            for inst in &block.insts {
                let class = inst.uses().map(|reg| classes[reg as usize]).max();
                let class = result_class(&inst.kind).max(class.unwrap_or(Class::Fixed));
                for &reg in &inst.d {
                    if classes[reg as usize] < class {
                        classes[reg as usize] = class;
                        changed = true;
                    }
                }
            }
            for reg in block.end.defs() {
                if classes[reg as usize] < Class::Varying {
                    classes[reg as usize] = Class::Varying;
                    changed = true;
                }
            }
        }
    }
    classes
}

/// Brings arithmetic on lanes together: what is computed once for all lanes moves up past it, as far as
/// nothing depends on the order.
pub(crate) fn gather_segments(func: &mut Func, classes: &[Class]) {
    for block in &mut func.blocks {
        let mut out: Vec<Inst> = Vec::with_capacity(block.insts.len());
        let mut run: Vec<Inst> = Vec::new();
        let mut touched = Set::new(func.regs.len());
        for inst in block.insts.drain(..) {
            let class = |reg: &Reg| classes[*reg as usize];
            if inst
                .step()
                .is_some_and(|step| class(&step.d) == Class::Varying)
            {
                for reg in inst.uses().chain(inst.d.iter().copied()) {
                    touched.insert(reg);
                }
                run.push(inst);
                continue;
            }
            let moves = matches!(
                inst.kind,
                Kind::Pure { .. } | Kind::Cold { .. } | Kind::Load { .. } | Kind::Param { .. }
            ) && !matches!(inst.kind, Kind::Load { traits, .. } if traits.volatile)
                && inst
                    .d
                    .iter()
                    .all(|reg| class(reg) != Class::Varying && !touched.has(*reg))
                && !inst.uses().any(|reg| class(&reg) == Class::Varying);
            if !moves {
                out.append(&mut run);
                touched = Set::new(func.regs.len());
            }
            out.push(inst);
        }
        out.append(&mut run);
        block.insts = out;
    }
}

/// The best class that a result of the instruction can have.
fn result_class(kind: &Kind) -> Class {
    match kind {
        Kind::Pure { .. }
        | Kind::Cold { .. }
        | Kind::Const(_)
        | Kind::Global(..)
        | Kind::LocalAddress { .. }
        | Kind::Param { .. } => Class::Fixed,
        Kind::Special(special) if Special::varies(*special) => Class::Varying,
        Kind::Special(_) => Class::Fixed,
        Kind::Clock { .. } => Class::Uniform,
        Kind::Load { traits, .. } if traits.private => Class::Varying,
        Kind::Load { .. } => Class::Uniform,
        Kind::Store { .. } | Kind::Fence | Kind::Pause => Class::Fixed,
        Kind::Atomic { .. } | Kind::Warp { .. } | Kind::System { .. } | Kind::Texture { .. } => {
            Class::Varying
        }
    }
}

/// From where to where a register is needed, in positions of the code's order.
#[derive(Clone, Copy, Debug)]
struct Interval {
    reg: Reg,
    start: u32,
    end: u32,
}

fn intervals(func: &Func, live: &[Set]) -> Vec<Interval> {
    let mut spans: Vec<Option<(u32, u32)>> = vec![None; func.regs.len()];
    let mut touch = |reg: Reg, at: u32| {
        let span = spans[reg as usize].get_or_insert((at, at));
        span.0 = span.0.min(at);
        span.1 = span.1.max(at);
    };
    let mut at = 0;
    for passed in &func.params {
        if let Passed::Register(reg) = passed {
            touch(*reg, 0);
        }
    }
    for (index, block) in func.blocks.iter().enumerate() {
        for reg in live[index].iter() {
            touch(reg, at);
        }
        for inst in &block.insts {
            at += 2;
            for reg in inst.uses() {
                touch(reg, at);
            }
            // Several results: none of them may lie where another operand is still to be read.
            let early =
                inst.d.len() > 1 || !matches!(inst.kind, Kind::Pure { .. } | Kind::Cold { .. });
            for &reg in &inst.d {
                touch(reg, at + 1 - u32::from(early));
                touch(reg, at + 1);
            }
        }
        at += 2;
        for reg in block.end.uses() {
            touch(reg, at);
        }
        for reg in block.end.defs() {
            touch(reg, at);
        }
        at += 1;
        for reg in live_out(func, live, index).iter() {
            touch(reg, at);
        }
        at += 1;
    }
    let mut intervals: Vec<Interval> = spans
        .iter()
        .enumerate()
        .filter_map(|(reg, span)| {
            span.map(|(start, end)| Interval {
                reg: reg as Reg,
                start,
                end,
            })
        })
        .collect();
    intervals.sort_by_key(|interval| interval.start);
    intervals
}

/// Where a register lies in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Homes {
    /// Its uniform slot, if its class is not [`Class::Varying`].
    pub(crate) uniform: u32,
    /// Its slot of lanes, unless its class is [`Class::Fixed`].
    pub(crate) varying: u32,
}

/// The frame of a function: where every register lies, and its size.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) homes: Vec<Homes>,
    pub(crate) bytes: u32,
}

/// Gives every register its slots, for gangs of `lanes`. Registers that are never needed at the same time
/// share them.
pub(crate) fn layout(func: &Func, live: &[Set], classes: &[Class], lanes: usize) -> Layout {
    let mut homes = vec![
        Homes {
            uniform: 0,
            varying: 0
        };
        func.regs.len()
    ];
    // Byte 0 on is read as the operand of those that have none.
    let mut bytes = 128;
    let mut take = |size: usize| {
        let at = bytes;
        bytes += size.next_multiple_of(super::regs::ALIGN);
        at as u32
    };
    let intervals = intervals(func, live);
    for interval in &intervals {
        let reg = interval.reg as usize;
        if classes[reg] == Class::Fixed {
            homes[reg].uniform = take(usize::from(func.regs[reg]) * super::regs::STRIP);
        }
    }
    assign(
        &intervals,
        func,
        |reg| classes[reg] == Class::Uniform,
        |reg, width, free| {
            homes[reg].uniform = free.unwrap_or_else(|| take(width * super::regs::STRIP));
            homes[reg].uniform
        },
    );
    // Varying registers first, so that the convergent code's own stand close together.
    for class in [Class::Varying, Class::Uniform] {
        assign(
            &intervals,
            func,
            |reg| classes[reg] == class,
            |reg, width, free| {
                homes[reg].varying = free.unwrap_or_else(|| take(width * lanes));
                homes[reg].varying
            },
        );
    }
    Layout {
        homes,
        bytes: bytes as u32,
    }
}

/// Linear scan over the chosen registers; `place` is told of a slot that is free again.
fn assign(
    intervals: &[Interval],
    func: &Func,
    chosen: impl Fn(usize) -> bool,
    mut place: impl FnMut(usize, usize, Option<u32>) -> u32,
) {
    let mut active: Vec<(u32, u8, u32)> = Vec::new();
    let mut free: Vec<(u8, u32)> = Vec::new();
    for interval in intervals {
        let reg = interval.reg as usize;
        if !chosen(reg) {
            continue;
        }
        active.retain(|&(end, width, slot)| {
            let over = end < interval.start;
            if over {
                free.push((width, slot));
            }
            !over
        });
        let width = func.regs[reg];
        let reuse = free.iter().rposition(|(other, _)| *other == width);
        let slot = place(
            reg,
            usize::from(width),
            reuse.map(|index| free.swap_remove(index).1),
        );
        active.push((interval.end, width, slot));
    }
}

/// The most 32-bit registers of a thread that are live at once.
pub(crate) fn pressure(func: &Func) -> u32 {
    let intervals = intervals(func, &live_in(func));
    let mut changes: Vec<(u32, i64)> = Vec::new();
    for interval in intervals {
        let weight = match func.regs[interval.reg as usize] {
            8 => 2,
            1 => 0,
            _ => 1,
        };
        changes.push((interval.start, weight));
        changes.push((interval.end + 1, -weight));
    }
    changes.sort_unstable();
    let mut now = 0;
    let mut most = 0;
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    u32::try_from(most).unwrap_or(0)
}
