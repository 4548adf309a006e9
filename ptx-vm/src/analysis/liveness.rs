//! Which registers are live where: at the starts of blocks, and stepwise back from their ends.
//!
//! Called by the other analyses and by `emit`. Must not know lanes: a register is live for all of them or none.

use super::set::BitSet;
use crate::ir::{End, Func, Inst, Passed};

/// Registers live at the start of each block.
pub(crate) fn live_in(func: &Func) -> Vec<BitSet> {
    // There are always as many steps left.
    liveness(func, u64::MAX).unwrap_or_default()
}

/// Registers live at the start of each block; `None` if more than `most` words have to be looked at.
pub(super) fn liveness(func: &Func, most: u64) -> Option<Vec<BitSet>> {
    let count = func.blocks.len();
    let mut live: Vec<BitSet> = vec![BitSet::new(func.regs.len()); count];
    let mut predecessors = vec![Vec::new(); count];
    for (index, block) in func.blocks.iter().enumerate() {
        for next in block.end.successors() {
            predecessors[next as usize].push(index);
        }
    }
    let words = func.regs.len() as u64 / 64 + 1;
    let mut left = most;
    // Blocks whose successors have changed.
    let mut stale = vec![true; count];
    let mut changed = true;
    while changed {
        changed = false;
        for index in (0..count).rev() {
            if !std::mem::take(&mut stale[index]) {
                continue;
            }
            let mut now = live_out(func, &live, index);
            let block = &func.blocks[index];
            let sets = block.end.successors().len() as u64 + 2;
            left = left.checked_sub(sets * words + block.insts.len() as u64)?;
            before_end(&block.end, &mut now);
            for inst in block.insts.iter().rev() {
                before(inst, &mut now);
            }
            if live[index] != now {
                live[index] = now;
                changed = true;
                for &before in &predecessors[index] {
                    stale[before] = true;
                }
            }
        }
    }
    Some(live)
}

/// Steps a set of live registers back over an instruction.
pub(crate) fn before(inst: &Inst, live: &mut BitSet) {
    for &reg in &inst.d {
        live.remove(reg);
    }
    for reg in inst.uses() {
        live.insert(reg);
    }
}

/// Steps a set of live registers back over a block's end.
pub(crate) fn before_end(end: &End, live: &mut BitSet) {
    for reg in end.defs() {
        live.remove(reg);
    }
    for reg in end.uses() {
        live.insert(reg);
    }
}

/// Registers live at the end of a block, before what its end itself writes.
pub(crate) fn live_out(func: &Func, live_in: &[BitSet], block: usize) -> BitSet {
    let mut set = BitSet::new(func.regs.len());
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
