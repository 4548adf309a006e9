//! Loops of the divergent code that become one operation: innermost ones of arithmetic, loads and stores, whose lanes leave one by
//! one for the same place.
//!
//! A strip makes all its turns before the next one begins, so lanes of a warp do not see each other's stores turn by turn. In
//! divergent code lanes are in no step with each other anyway, and one that waits for another's store reads it as volatile or
//! atomically, which no segment can have; only where lanes may hand each other values in shared memory, the loop stays as it is.
//!
//! Called by `emit` for each block. Must not know how a loop is compiled.

use std::collections::HashSet;

use super::{Body, Emitter, blank};
use crate::analysis::{self, Class};
use crate::ir::{BlockId, End, Reg};
use crate::isa::{Isa, Target};
use crate::ops::control;
use crate::reach::{LOOP_BLOCKS, PLACES};
use crate::segment::{self, Known, Loop, LoopBlock, LoopEdge, LoopEnd, LoopRun, SegmentStep, Tag};
use crate::spaces::{StateSpace, unpack};

/// The most steps of a loop: its code is there twice.
const MOST: usize = 256;

/// The blocks of a loop, ascending, and where its lanes go.
pub(super) struct Shape {
    pub(super) blocks: Vec<BlockId>,
    pub(super) exit: BlockId,
    /// The headers of the loops in it, if it is several.
    inner: Vec<BlockId>,
}

/// The block that lanes come to, past those that do nothing.
fn through(body: &Body<'_>, mut block: BlockId) -> BlockId {
    let blocks = &body.func.blocks;
    while let (true, End::Jump(next)) = (
        blocks[block as usize].insts.is_empty(),
        &blocks[block as usize].end,
    ) && *next > block
    {
        block = *next;
    }
    block
}

impl Shape {
    /// The loop whose header a block is, if it is an innermost one with one place to go to.
    pub(super) fn of(body: &Body<'_>, header: BlockId) -> Option<Self> {
        let blocks = &body.func.blocks;
        let end = |block: BlockId| &blocks[block as usize].end;
        let last = (header..blocks.len() as BlockId)
            .rfind(|&block| end(block).successors().contains(&header))?;
        let mut found = vec![header];
        let mut exit = None;
        for block in header..=last {
            if !found.contains(&block) {
                continue;
            }
            if !matches!(end(block), End::Jump(_) | End::Branch { .. }) {
                return None;
            }
            for next in end(block).successors() {
                if next == header {
                    continue;
                }
                if next > last || next < header {
                    let next = through(body, next);
                    if *exit.get_or_insert(next) != next {
                        return None;
                    }
                } else if next <= block {
                    return None;
                } else if !found.contains(&next) {
                    found.push(next);
                }
            }
        }
        found.sort_unstable();
        let varies = |&block: &BlockId| match end(block) {
            End::Branch { on, .. } => body.classes[*on as usize] >= Class::Varying,
            _ => false,
        };
        // Others keep their lanes together.
        let fits = found.len() <= LOOP_BLOCKS && found.iter().any(varies);
        fits.then_some(Self {
            blocks: found,
            exit: exit?,
            inner: Vec::new(),
        })
    }

    /// Two loops, one after the other, and what is before and between them, if a block is where lanes part that leave the first one out
    /// and all of them go on to one place. A compiler makes such ones of a loop of which it takes four turns at a time.
    fn of_several(body: &Body<'_>, first: BlockId) -> Option<Self> {
        let blocks = &body.func.blocks;
        let end = |block: BlockId| &blocks[block as usize].end;
        let varies = |block: BlockId| match end(block) {
            End::Branch { on, .. } => body.classes[*on as usize] >= Class::Varying,
            _ => false,
        };
        if !varies(first) {
            return None;
        }
        let (shape, end_of_first) = Self::of_region(body, first, PLACES - 1)?;
        let last = *shape.blocks.last()?;
        let passes = end(first).successors().into_iter();
        let passes = passes.filter(|next| (end_of_first + 1..=last).contains(next));
        (passes.count() == 1).then_some(shape)
    }

    /// What lies beside a branch whose other side lanes go to in any case, in the end: a loop, or two, and what is before and between
    /// them. With whether lanes come there on which the branch's predicate does not hold.
    fn beside(body: &Body<'_>, branch: BlockId) -> Option<(Self, bool)> {
        let End::Branch {
            on, then, other, ..
        } = &body.func.blocks[branch as usize].end
        else {
            return None;
        };
        if body.classes[*on as usize] < Class::Varying {
            return None;
        }
        [(*then, *other, false), (*other, *then, true)]
            .into_iter()
            .find_map(|(inside, past, if_not)| {
                let count = 1..PLACES;
                let shape = count.rev().find_map(|count| {
                    let (shape, _) = Self::of_region(body, inside, count)?;
                    (inside > branch && shape.exit == through(body, past)).then_some(shape)
                })?;
                Some((shape, if_not))
            })
    }

    /// So many loops, one after the other, and what is before and between them from a block on, if all lanes go on to one place; with
    /// where the first one ends.
    fn of_region(body: &Body<'_>, first: BlockId, count: usize) -> Option<(Self, BlockId)> {
        let blocks = &body.func.blocks;
        let end = |block: BlockId| &blocks[block as usize].end;
        let most = blocks.len().min(first as usize + LOOP_BLOCKS) as BlockId;
        // Of each loop the header and the block that leads back to it.
        let mut loops: Vec<(BlockId, BlockId)> = Vec::new();
        for block in first..most {
            let back = end(block).successors();
            for header in back.into_iter().filter(|&next| next <= block) {
                if header <= loops.last().map_or(first, |&(_, last)| last) {
                    return None;
                }
                loops.push((header, block));
            }
            if loops.len() == count {
                break;
            }
        }
        let (&(_, end_of_first), &(_, last)) = (loops.first()?, loops.last()?);
        if loops.len() != count {
            return None;
        }
        let (mut found, mut exit) = (vec![first], None);
        for block in first..=last {
            if !found.contains(&block) {
                continue;
            }
            if !matches!(end(block), End::Jump(_) | End::Branch { .. }) {
                return None;
            }
            for next in end(block).successors() {
                if next > last {
                    let next = through(body, next);
                    if *exit.get_or_insert(next) != next {
                        return None;
                    }
                } else if !found.contains(&next) {
                    found.push(next);
                }
            }
        }
        found.sort_unstable();
        let inner: Vec<BlockId> = loops.into_iter().map(|(header, _)| header).collect();
        let all = inner.iter().all(|header| found.contains(header));
        let shape = Self {
            blocks: found,
            exit: exit?,
            inner,
        };
        all.then_some((shape, end_of_first))
    }

    /// How many instructions a turn has at most, ends of blocks among them.
    pub(super) fn instructions(&self, body: &Body<'_>) -> u32 {
        let blocks = self.blocks.iter();
        let of_each = blocks.map(|&block| body.func.blocks[block as usize].insts.len() + 1);
        of_each.sum::<usize>() as u32
    }

    /// Where an edge leads.
    pub(super) fn edge(&self, to: BlockId) -> LoopEdge {
        if to == self.blocks[0] {
            return Some(self.blocks.len());
        }
        self.blocks.iter().position(|&block| block == to)
    }
}

impl Emitter {
    /// Adds the loop of which block `index` is the header, if it can be one operation.
    pub(super) fn repeat(&mut self, body: &Body<'_>, index: usize) {
        let Target { isa, jit, .. } = self.target;
        if !jit || isa == Isa::Sse2 {
            return;
        }
        if let Some(shape) = Shape::of(body, index as BlockId) {
            self.whole(body, &shape, index, None);
        }
    }

    /// Adds the loops that lie beside the branch of block `index`, if what lanes do there can be one operation: for the case that the
    /// branch parts them, in the convergent code. They stay there.
    pub(super) fn repeat_beside(&mut self, body: &Body<'_>, index: usize) {
        let Target { isa, jit, .. } = self.target;
        if !jit || isa == Isa::Sse2 || !body.convergent {
            return;
        }
        if let Some((shape, if_not)) = Shape::beside(body, index as BlockId) {
            self.whole(body, &shape, index, Some(if_not));
        }
    }

    /// Adds the loops before which block `index` stands, if all of it can be one operation. They are so in the convergent code as well:
    /// lanes that part there would do each loop by itself.
    pub(super) fn repeat_several(&mut self, body: &Body<'_>, index: usize) {
        let Target { isa, jit, .. } = self.target;
        if !jit || isa == Isa::Sse2 {
            return;
        }
        if let Some(shape) = Shape::of_several(body, index as BlockId) {
            self.whole(body, &shape, index, None);
        }
    }

    /// Adds a loop, or several, as one operation, if it can be one: for those lanes alone that a branch at the end of block `index` leads
    /// there, if that is told, and whether they are those on which its predicate does not hold.
    fn whole(&mut self, body: &Body<'_>, shape: &Shape, index: usize, beside: Option<bool>) {
        let is_several = !shape.inner.is_empty();
        let blocks = shape.blocks.iter();
        let blocks: Option<Vec<LoopBlock>> = blocks
            .map(|&block| self.loop_block(body, shape, block))
            .collect();
        let Some(blocks) = blocks else {
            return;
        };
        let steps: Vec<&SegmentStep> = steps_of(&blocks).collect();
        let transfers = steps.iter().filter(|step| step.access.1 != 0).count();
        // Arithmetic alone is faster strip after strip, turn by turn: none waits for what it has just computed.
        if transfers == 0 || steps.len() > MOST || hands_over(&steps) {
            return;
        }
        // In the convergent code lanes may be in step with each other, and see what others store.
        if is_several && beside.is_none() && steps.iter().any(|step| changes_memory(step)) {
            return;
        }
        let slot_of = |reg| body.register_slot(reg);
        let known = Known {
            slot_of: &slot_of,
            constant_of: &|reg| body.constants.get(&reg).copied(),
            row_of: &|_, _| None,
        };
        let (target, first) = (self.target, self.transfers);
        let written: HashSet<Reg> = steps_of(&blocks)
            .flat_map(|step| step.d.iter().copied())
            .collect();
        let live = |block: BlockId| {
            let is_live = |reg: &Reg| body.live[block as usize].has(*reg);
            written.iter().copied().filter(is_live).collect()
        };
        let (read, needed) = (live(shape.blocks[0]), live(shape.exit));
        let inner = shape.inner.iter();
        let inner = inner.filter_map(|&header| Some((shape.edge(header)?, live(header))));
        let inner = inner.collect();
        let repeated = Loop {
            blocks,
            read,
            needed,
            inner,
        };
        let code = segment::compile_loop(&repeated, &known, target, first);
        let Some((code, turns)) = code else {
            return;
        };
        self.transfers += transfers;
        let mut op = blank(if is_several {
            control::repeat_several
        } else {
            control::repeat
        });
        for (which, to) in [(0, shape.blocks[0]), (1, shape.exit)] {
            op.d[which] = body.first + to;
            let fixup = (self.program.ops.len(), which, op.d[which], body.convergent);
            self.fixups.push(fixup);
        }
        for (source, header) in op.s[3..].iter_mut().zip(&shape.inner) {
            *source = body.first + header;
        }
        op.d[2] = body.layout.bytes as u32;
        op.d[3] = shape.instructions(body);
        op.width = [turns, u8::from(body.convergent)];
        let end = &body.func.blocks[index].end;
        if let (Some(if_not), End::Branch { on, negated, .. }) = (beside, end) {
            let (offset, varying) = body.home(*on);
            op.run = control::repeat_beside;
            op.s[2] = offset;
            op.varying = u16::from(varying) << 2;
            op.width[1] = u8::from(*negated != if_not);
            self.line = body.func.blocks[index].line;
            self.machine_code(op, &code);
            return;
        }
        op.s[2] = shape
            .blocks
            .last()
            .map_or(0, |&last| self.cost(body, last, shape.exit));
        self.line = body.func.blocks[index].line;
        self.machine_code(op, &code);
    }

    /// A block of a loop, if all of it can be steps.
    fn loop_block(&self, body: &Body<'_>, shape: &Shape, id: BlockId) -> Option<LoopBlock> {
        let block = &body.func.blocks[id as usize];
        let insts = body.own(block);
        // Where vectors have no such steps, lanes alone have.
        let mut runs = self.runs(body, id as usize, &insts, 1, Isa::Avx512);
        runs.reverse();
        let done: usize = runs.iter().map(|run| run.range.len()).sum();
        if done != insts.len() {
            return None;
        }
        let mut runs: Vec<LoopRun> = runs
            .into_iter()
            .map(|run| LoopRun {
                steps: self.steps(body, &run, &insts, Isa::Avx512),
                guard: insts[run.range.start].guard,
                live: run.live,
            })
            .collect();
        let end = match block.end {
            End::Jump(next) => LoopEnd::Jump(shape.edge(next)),
            End::Branch {
                on,
                negated,
                then,
                other,
            } => {
                // The branch reads it where the last run leaves it.
                if let Some(run) = runs.last_mut()
                    && run.guard.is_none()
                    && !analysis::live_out(body.func, body.live, id as usize).has(on)
                {
                    run.live.remove(&on);
                }
                LoopEnd::Branch {
                    on,
                    negated,
                    then: shape.edge(then),
                    other: shape.edge(other),
                }
            }
            _ => return None,
        };
        Some(LoopBlock { runs, end })
    }
}

/// The steps of a loop's blocks.
fn steps_of(blocks: &[LoopBlock]) -> impl Iterator<Item = &SegmentStep> {
    let runs = blocks.iter().flat_map(|block| &block.runs);
    runs.flat_map(|run| &run.steps)
}

pub(super) fn changes_memory(step: &SegmentStep) -> bool {
    matches!(
        step.tag,
        Tag::StoreGlobal | Tag::StoreShared | Tag::SumShared
    )
}

/// Whether lanes may load from shared memory what others store there, or see what others have added to it.
fn hands_over(steps: &[&SegmentStep]) -> bool {
    let touches = |tags: [Tag; 2]| {
        steps.iter().any(|step| {
            let place = unpack(step.access.0).place;
            step.tag == tags[0] || step.tag == tags[1] && place == StateSpace::Generic
        })
    };
    let sums = steps.iter().any(|step| step.tag == Tag::SumShared);
    let loads = touches([Tag::LoadShared, Tag::LoadGlobal]);
    let stores = touches([Tag::StoreShared, Tag::StoreGlobal]);
    loads && stores || sums && (loads || stores)
}
