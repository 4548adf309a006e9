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
use crate::reach::LOOP_BLOCKS;
use crate::segment::{
    self, Known, Loop, LoopBlock, LoopEdge, LoopEnd, LoopRun, RegisterSlot, SegmentStep, Tag,
};
use crate::spaces::{StateSpace, unpack};

/// The most steps of a loop: its code is there twice.
const MOST: usize = 256;

/// The blocks of a loop, ascending, and where its lanes go.
struct Shape {
    blocks: Vec<BlockId>,
    exit: BlockId,
}

impl Shape {
    /// The loop whose header a block is, if it is an innermost one with one place to go to.
    fn of(body: &Body<'_>, header: BlockId) -> Option<Self> {
        let blocks = &body.func.blocks;
        let end = |block: BlockId| &blocks[block as usize].end;
        let last = (header..blocks.len() as BlockId)
            .rfind(|&block| end(block).successors().contains(&header))?;
        // Past blocks that do nothing.
        let through = |mut block: BlockId| {
            while let (true, End::Jump(next)) =
                (blocks[block as usize].insts.is_empty(), end(block))
                && *next > block
            {
                block = *next;
            }
            block
        };
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
                    let next = through(next);
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
        })
    }

    /// Where an edge leads.
    fn edge(&self, to: BlockId) -> LoopEdge {
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
        let Some(shape) = Shape::of(body, index as BlockId) else {
            return;
        };
        let blocks = shape.blocks.iter();
        let blocks: Option<Vec<LoopBlock>> = blocks
            .map(|&block| self.loop_block(body, &shape, block))
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
        let slot_of = |reg| {
            let (offset, varying) = body.home(reg);
            RegisterSlot {
                offset,
                varying,
                width: body.width(reg),
            }
        };
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
        let repeated = Loop {
            blocks,
            read,
            needed,
        };
        let code = segment::compile_loop(&repeated, &known, target, first);
        let Some((code, turns)) = code else {
            return;
        };
        self.transfers += transfers;
        let insts = |block: &BlockId| body.func.blocks[*block as usize].insts.len() + 1;
        let mut op = blank(control::repeat);
        for (which, to) in [(0, shape.blocks[0]), (1, shape.exit)] {
            op.d[which] = body.first + to;
            let fixup = (self.program.ops.len(), which, op.d[which], false);
            self.fixups.push(fixup);
        }
        op.d[2] = body.layout.bytes as u32;
        op.d[3] = shape.blocks.iter().map(insts).sum::<usize>() as u32;
        op.width[0] = turns;
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
