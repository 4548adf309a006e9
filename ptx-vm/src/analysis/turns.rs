//! Numbers that a loop takes further by what all lanes share: `index += pitch` in each turn.
//!
//! Such a number is a number of the thread and one that all lanes share while they run together, if it was so before the first turn. The
//! latter becomes a register of its own, which is what the turns change; a lane's number is made of both where it is read. Whoever makes code
//! for accesses by it need look at the thread's number once.
//!
//! Called by `sums`, which knows what is such a sum. Must not know what is accessed.

use std::collections::HashMap;

use super::uniformity::Class;
use crate::ir::{Block, Func, Inst, InstKind, Reg};
use crate::ops;
use crate::segment::{Compared, Tag};

/// A register that is written before a loop and changed in it, and nothing else is done to it but that it is read.
#[derive(Debug)]
pub(super) struct Turning {
    pub(super) reg: Reg,
    /// What writes it before the first turn.
    pub(super) first: Inst,
    /// Where it is written: blocks, and which of their instructions.
    pub(super) written: Vec<(usize, usize)>,
}

/// What writes a register.
#[derive(Debug, Default)]
struct Writers {
    first: Option<Inst>,
    /// Others that take it further.
    turns: bool,
    places: Vec<(usize, usize)>,
}

fn tag(inst: &Inst) -> Tag {
    match inst.kind {
        InstKind::Pure { tag, .. } => tag,
        _ => Tag::None,
    }
}

/// Whether an instruction takes a register further by what all lanes share.
fn goes_on(inst: &Inst, reg: Reg, classes: &[Class]) -> bool {
    let shared = |other: Reg| other != reg && classes[other as usize] < Class::Varying;
    match (tag(inst), inst.s.as_slice()) {
        (Tag::Add32, &[a, b]) => a == reg && shared(b) || b == reg && shared(a),
        (Tag::Sub32, &[a, b]) => a == reg && shared(b),
        _ => false,
    }
}

/// Whether an instruction that reads a register is one whose code gains from knowing that it is such a sum.
fn gains(inst: &Inst, reg: Reg) -> bool {
    match tag(inst) {
        Tag::MulWideS32 | Tag::MulWideU32 | Tag::WidenS32 | Tag::WidenU32 => true,
        Tag::Compare(Compared::S32 | Compared::U32, _) => true,
        _ => {
            let step = inst.step();
            let is_access =
                step.is_some_and(|step| matches!(step.tag, Tag::LoadShared | Tag::StoreShared));
            is_access && inst.s[0] == reg && !inst.s[1..].contains(&reg)
        }
    }
}

/// Such registers, of 32 bits, in order.
pub(super) fn find(blocks: &[Block], regs: &[u8], classes: &[Class]) -> Vec<Turning> {
    let mut found: HashMap<Reg, Writers> = HashMap::new();
    let mut others = vec![false; regs.len()];
    let insts = || {
        let blocks = blocks.iter().enumerate();
        blocks.flat_map(|(number, block)| {
            let insts = block.insts.iter().enumerate();
            insts.map(move |(at, inst)| ((number, at), inst))
        })
    };
    for (place, inst) in insts() {
        for &reg in &inst.d {
            let fits = inst.guard.is_none()
                && inst.d.len() == 1
                && matches!(inst.kind, InstKind::Pure { .. })
                && regs[reg as usize] == 4
                && classes[reg as usize] == Class::Varying;
            let writers = found.entry(reg).or_default();
            writers.places.push(place);
            if fits && goes_on(inst, reg, classes) {
                writers.turns = true;
            } else if fits && writers.first.is_none() && !inst.s.contains(&reg) {
                writers.first = Some(inst.clone());
            } else {
                others[reg as usize] = true;
            }
        }
    }
    for (_, inst) in insts() {
        for reg in inst.uses() {
            let own = inst.d.contains(&reg) && goes_on(inst, reg, classes);
            others[reg as usize] |= !own && !gains(inst, reg);
        }
    }
    for end in blocks.iter().map(|block| &block.end) {
        for reg in end.uses().into_iter().chain(end.defs()) {
            others[reg as usize] = true;
        }
    }
    let mut turning: Vec<Turning> = found
        .into_iter()
        .filter(|(reg, writers)| writers.turns && !others[*reg as usize])
        .filter_map(|(reg, writers)| {
            Some(Turning {
                reg,
                first: writers.first?,
                written: writers.places,
            })
        })
        .collect();
    turning.sort_by_key(|turning| turning.reg);
    turning
}

/// The most registers that are looked at.
const MOST: usize = 64;

/// Compilers count turns in the register that had the thread's index: what is read of such a register where no turn can have changed it
/// becomes a register of its own, which is written once. Whether there is any.
pub(super) fn separate(func: &mut Func) -> bool {
    let mut written: HashMap<Reg, Vec<(usize, usize)>> = HashMap::new();
    let mut others = vec![false; func.regs.len()];
    for (number, block) in func.blocks.iter().enumerate() {
        for (at, inst) in block.insts.iter().enumerate() {
            for &reg in &inst.d {
                written.entry(reg).or_default().push((number, at));
                others[reg as usize] |= inst.guard.is_some() || inst.d.len() != 1;
            }
        }
        for reg in block.end.defs() {
            others[reg as usize] = true;
        }
    }
    let mut chosen: Vec<(Reg, (usize, usize), Vec<bool>)> = Vec::new();
    let mut regs: Vec<_> = written.into_iter().collect();
    regs.sort_unstable();
    for (reg, places) in regs {
        if others[reg as usize] || func.regs[reg as usize] != 4 || chosen.len() == MOST {
            continue;
        }
        let at = |&(block, at): &(usize, usize)| &func.blocks[block].insts[at];
        // One place where it is written by something else, and turns.
        let (turns, first): (Vec<_>, Vec<_>) = places.iter().partition(|place| {
            matches!(tag(at(place)), Tag::Add32 | Tag::Sub32) && at(place).s.contains(&reg)
        });
        let &[first] = first.as_slice() else {
            continue;
        };
        let fits = matches!(
            at(&first).kind,
            InstKind::Pure { .. } | InstKind::Special(_)
        ) && !at(&first).s.contains(&reg);
        if turns.is_empty() || !fits {
            continue;
        }
        // Blocks that are reached from a turn.
        let mut reached = vec![false; func.blocks.len()];
        let mut open: Vec<usize> = turns.iter().map(|&(block, _)| block).collect();
        while let Some(block) = open.pop() {
            for next in func.blocks[block].end.successors() {
                if !std::mem::replace(&mut reached[next as usize], true) {
                    open.push(next as usize);
                }
            }
        }
        turns.iter().for_each(|&(block, _)| reached[block] = true);
        // What another turn reads of the first place comes after it; so does what is replaced.
        let reads = |number: usize, block: &Block| {
            let insts = block.insts.iter().flat_map(Inst::uses);
            !reached[number] && insts.chain(block.end.uses()).any(|read| read == reg)
        };
        let mut blocks = func.blocks.iter().enumerate();
        if !reached[first.0] && blocks.any(|(number, block)| reads(number, block)) {
            chosen.push((reg, first, reached));
        }
    }
    let mut copies: Vec<((usize, usize), Inst)> = Vec::new();
    for (reg, (number, at), reached) in &chosen {
        func.regs.push(4);
        let own = func.regs.len() as Reg - 1;
        let like = &func.blocks[*number].insts[*at];
        let Some(copy) = made(Tag::Mov32, &[own], *reg, like) else {
            continue;
        };
        copies.push(((*number, *at), copy));
        func.blocks[*number].insts[*at].d = vec![own];
        let unreached = func
            .blocks
            .iter_mut()
            .zip(reached)
            .filter(|(_, reached)| !**reached);
        for (block, _) in unreached {
            for inst in &mut block.insts {
                inst.s
                    .iter_mut()
                    .filter(|read| **read == *reg)
                    .for_each(|read| *read = own);
            }
        }
    }
    // The last one first, so that the places of others stay.
    copies.sort_by_key(|(place, _)| *place);
    let changed = !copies.is_empty();
    for ((number, at), copy) in copies.into_iter().rev() {
        func.blocks[number].insts.insert(at + 1, copy);
    }
    changed
}

/// An instruction that makes a register of others.
pub(super) fn made(tag: Tag, s: &[Reg], d: Reg, like: &Inst) -> Option<Inst> {
    let simple = ops::integer::made(tag)?;
    let ops::simple::Body::Pure(pure, tag) = simple.body else {
        return None;
    };
    Some(Inst {
        kind: InstKind::Pure {
            run: pure.run,
            tag,
            imm: simple.imm,
        },
        d: vec![d],
        s: s.to_vec(),
        guard: None,
        kept: false,
        line: like.line,
    })
}
