//! Short branches as guards: what a block does that is passed by or not becomes guarded instructions of the block before
//! it, so that lanes that disagree stay together.
//!
//! Called first of all. Must not know what an instruction computes, but that it goes on with the next one.

use crate::ir::{Block, End, Func, Inst, InstKind, Passed, Reg};

/// The most instructions that are guarded instead of jumped over.
const MOST: usize = 24;
/// How many empty blocks are passed by at once.
const FURTHEST: usize = 64;
/// What a register occurs in: nothing yet, or more than one block.
const NOWHERE: u32 = u32::MAX;
const MANY: u32 = u32::MAX - 1;

/// Converts what is short enough, innermost branches first.
pub(super) fn convert(func: &mut Func) {
    skip_empty(func);
    let mut entrances = vec![0_u32; func.blocks.len()];
    let mut reached = vec![false; func.blocks.len()];
    let mut open = vec![0];
    while let Some(at) = open.pop() {
        if std::mem::replace(&mut reached[at as usize], true) {
            continue;
        }
        for next in func.blocks[at as usize].end.successors() {
            entrances[next as usize] += 1;
            open.push(next);
        }
    }
    let places = places(func);
    for at in (0..func.blocks.len()).rev() {
        let End::Branch {
            on,
            negated,
            then,
            other,
        } = func.blocks[at].end
        else {
            continue;
        };
        if !reached[at] {
            continue;
        }
        let jumps_to = |block: u32| match func.blocks[block as usize].end {
            End::Jump(next) => Some(next),
            _ => None,
        };
        let fits = |block: u32| {
            let body = &func.blocks[block as usize];
            block as usize != at && entrances[block as usize] == 1 && fits(body, on)
        };
        let (first, second) = (fits(then), fits(other));
        let (sides, next) = if then == other {
            continue;
        } else if first && jumps_to(then) == Some(other) {
            (vec![(then, negated)], other)
        } else if second && jumps_to(other) == Some(then) {
            (vec![(other, !negated)], then)
        } else if let (true, Some(next)) = (first && second, jumps_to(then))
            && jumps_to(other) == Some(next)
        {
            (vec![(then, negated), (other, !negated)], next)
        } else {
            continue;
        };
        for (side, negated) in sides {
            let insts = std::mem::take(&mut func.blocks[side as usize].insts);
            let guarded = |inst: Inst| guarded(inst, (on, negated), side, &places);
            func.blocks[at].insts.extend(insts.into_iter().map(guarded));
            // It is reached no more.
            func.blocks[side as usize].end = End::Exit;
        }
        func.blocks[at].end = End::Jump(next);
    }
}

/// Leads past blocks that do nothing but go on: compilers leave such beside a branch.
fn skip_empty(func: &mut Func) {
    let next = |block: &Block| match block.end {
        End::Jump(next) if block.insts.is_empty() => Some(next),
        _ => None,
    };
    let nexts: Vec<Option<u32>> = func.blocks.iter().map(next).collect();
    let through = |mut block: u32| {
        // Not through blocks that lead to each other for ever.
        for _ in 0..FURTHEST {
            let Some(next) = nexts[block as usize] else {
                return block;
            };
            block = next;
        }
        block
    };
    for block in &mut func.blocks {
        block.end.map(through);
    }
}

/// Whether a block may become guarded by `on`.
fn fits(block: &Block, on: Reg) -> bool {
    let allowed =
        |inst: &Inst| inst.guard.is_none() && inst.kind.goes_on() && !inst.d.contains(&on);
    block.insts.len() <= MOST && block.insts.iter().all(allowed)
}

/// The instruction under a guard. What is in no other block and was written in this one before it is read needs not be
/// kept for the lanes that the guard leaves out.
fn guarded(inst: Inst, guard: (Reg, bool), block: u32, places: &[(u32, bool)]) -> Inst {
    let local = |reg: &Reg| {
        let (place, read_first) = places[*reg as usize];
        place == block && !read_first
    };
    let kept = !inst.d.iter().all(local);
    Inst {
        guard: Some(guard),
        kept,
        ..inst
    }
}

/// The one block in which each register occurs, or [`MANY`], and whether the first that happens to it there is that it is
/// read.
fn places(func: &Func) -> Vec<(u32, bool)> {
    let mut places = vec![(NOWHERE, false); func.regs.len()];
    let mut touch = |reg: Reg, block: u32, reads: bool| {
        let place = &mut places[reg as usize];
        match place.0 {
            NOWHERE => *place = (block, reads),
            known if known == block => {}
            _ => place.0 = MANY,
        }
    };
    for passed in func.params.iter().chain(&func.returns) {
        if let Passed::Register(reg) = passed {
            touch(*reg, MANY, true);
        }
    }
    for (at, block) in func.blocks.iter().enumerate() {
        for inst in &block.insts {
            inst.uses().for_each(|reg| touch(reg, at as u32, true));
            inst.d.iter().for_each(|&reg| touch(reg, at as u32, false));
        }
        for reg in block.end.uses().into_iter().chain(block.end.defs()) {
            touch(reg, MANY, true);
        }
    }
    places
}

impl InstKind {
    /// Whether the next instruction always follows, unless a lane does something wrong.
    pub(crate) fn goes_on(&self) -> bool {
        matches!(
            self,
            Self::Pure { .. }
                | Self::Cold { .. }
                | Self::Const(_)
                | Self::Special(_)
                | Self::Global(..)
                | Self::LocalAddress { .. }
                | Self::Param { .. }
                | Self::Load { .. }
                | Self::Store { .. }
                | Self::Atomic { .. }
        )
    }
}
