//! Which values all lanes of a lane group share.
//!
//! Called before registers are laid out: what all lanes share takes one strip. Must not know how many lanes there
//! are.

use super::set::BitSet;
use crate::ir::{Func, Inst, InstKind, Reg};
use crate::special_register::Special;

/// How a register's value may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// One value while the block runs, computed before everything else.
    Fixed,
    /// One value in all lanes while they run together.
    Uniform,
    /// A value per lane.
    Varying,
    /// A value per lane that is the same in all blocks of a grid, as a thread's index is, computed before everything else.
    Thread,
}

/// The class of every register of the entry.
pub(crate) fn classes(func: &Func, live: &[BitSet]) -> Vec<Class> {
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
    // A class only ever rises; what rises is looked at once more by its readers.
    let mut readers: Vec<Vec<(u32, u32)>> = vec![Vec::new(); func.regs.len()];
    let mut risen: Vec<Reg> = Vec::new();
    let raise = |classes: &mut [Class], risen: &mut Vec<Reg>, reg: Reg, class: Class| {
        if classes[reg as usize] < class {
            classes[reg as usize] = class;
            risen.push(reg);
        }
    };
    for (at, block) in func.blocks.iter().enumerate() {
        for (index, inst) in block.insts.iter().enumerate() {
            for &reg in &inst.d {
                raise(&mut classes, &mut risen, reg, result_class(&inst.kind));
            }
            for reg in inst.uses() {
                readers[reg as usize].push((at as u32, index as u32));
            }
        }
        for reg in block.end.defs() {
            raise(&mut classes, &mut risen, reg, Class::Varying);
        }
    }
    // Undefined and often defined ones begin above the lowest class.
    let high = (0..classes.len()).filter(|&reg| classes[reg] > Class::Fixed);
    risen.extend(high.map(|reg| reg as Reg));
    while let Some(reg) = risen.pop() {
        let class = classes[reg as usize];
        for &(block, index) in &readers[reg as usize] {
            for &result in &func.blocks[block as usize].insts[index as usize].d {
                raise(&mut classes, &mut risen, result, class);
            }
        }
    }
    // Whose readers vary as others do.
    for inst in func.blocks.iter().flat_map(|block| &block.insts) {
        if let (InstKind::Special(special), &[reg]) = (&inst.kind, inst.d.as_slice())
            && special.varies()
            && definitions[reg as usize] == 1
        {
            classes[reg as usize] = Class::Thread;
        }
    }
    for &reg in &func.threads {
        classes[reg as usize] = Class::Thread;
    }
    classes
}

/// Notes what an instruction writes that may be another number in each block: the block's own, and what is made of such.
pub(super) fn note_of_block(inst: &Inst, of_block: &mut BitSet) {
    let is_own = match inst.kind {
        InstKind::Special(special) => special.is_of_block(),
        _ => inst.uses().any(|reg| of_block.has(reg)),
    };
    if is_own {
        inst.d.iter().for_each(|&reg| {
            of_block.insert(reg);
        });
    }
}

/// The best class that a result of the instruction can have.
fn result_class(kind: &InstKind) -> Class {
    match kind {
        InstKind::Pure { .. }
        | InstKind::Cold { .. }
        | InstKind::Const(_)
        | InstKind::Global(..)
        | InstKind::LocalAddress { .. }
        | InstKind::Param { .. } => Class::Fixed,
        InstKind::Special(special) if Special::varies(*special) => Class::Varying,
        InstKind::Special(_) => Class::Fixed,
        InstKind::Clock { .. } => Class::Uniform,
        InstKind::Load { traits, .. } if traits.private => Class::Varying,
        InstKind::Load { .. } => Class::Uniform,
        InstKind::Store { .. } | InstKind::Fence | InstKind::Pause => Class::Fixed,
        InstKind::Atomic { .. }
        | InstKind::Warp { .. }
        | InstKind::System { .. }
        | InstKind::Texture { .. } => Class::Varying,
    }
}
