//! What is known of a function's blocks and values once its registers have their places.
//!
//! Called by `emit`. Must not know which operations there are.

use crate::analysis::{BitSet, Class, Layout};
use crate::ir::{Func, Passed};
use crate::program::{Move, Slot};

/// What is before each block, in the order of blocks: operations, and instructions that may wait for others.
pub(super) fn passed(func: &Func) -> Vec<(usize, usize)> {
    let mut sums = vec![(0, 0)];
    let (mut operations, mut waits) = (0, 0);
    for block in &func.blocks {
        operations += block.insts.len() + 1;
        waits += block.insts.iter().filter(|inst| inst.waits()).count();
        sums.push((operations, waits));
    }
    sums
}

/// Sorted, so that they can be searched.
pub(super) fn moves(func: &Func, live: &BitSet, classes: &[Class], layout: &Layout) -> Vec<Move> {
    let mut moves: Vec<Move> = live
        .iter()
        .filter(|&reg| classes[reg as usize] == Class::Uniform)
        .map(|reg| {
            let homes = layout.homes[reg as usize];
            Move {
                uniform: homes.uniform,
                varying: homes.varying,
                width: func.regs[reg as usize],
            }
        })
        .collect();
    moves.sort_unstable_by_key(Move::key);
    moves
}

/// Where a passed value lies.
pub(super) fn slot(
    func: &Func,
    classes: &[Class],
    layout: &Layout,
    convergent: bool,
    passed: &Passed,
) -> Slot {
    match *passed {
        Passed::Local(offset, size) => Slot::Local { offset, size },
        Passed::Register(reg) => {
            let homes = layout.homes[reg as usize];
            let varying = match classes[reg as usize] {
                Class::Fixed => false,
                Class::Uniform => !convergent,
                Class::Varying | Class::Thread => true,
            };
            let offset = if varying {
                homes.varying
            } else {
                homes.uniform
            };
            Slot::Register {
                offset,
                width: func.regs[reg as usize],
                varying,
            }
        }
    }
}
