//! Where each register lies in its function's frame.
//!
//! Called once a function, when it is known which registers are live together. Must not know what an operation does
//! with them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::liveness::{before_end, live_out};
use super::set::BitSet;
use super::uniformity::Class;
use crate::ir::{Func, InstKind, Passed, Reg};
use crate::limits::REGISTER_BYTES;
use crate::regs::{ALIGN, STRIP};

/// From where to where a register is needed, in positions of the code's order.
#[derive(Clone, Copy, Debug)]
struct Interval {
    reg: Reg,
    start: u32,
    end: u32,
}

fn intervals(func: &Func, live: &[BitSet]) -> Vec<Interval> {
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
            let early = inst.d.len() > 1
                || !matches!(inst.kind, InstKind::Pure { .. } | InstKind::Cold { .. });
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
    /// Its uniform slot, if its class is [`Class::Fixed`] or [`Class::Uniform`].
    pub(crate) uniform: u32,
    /// Its slot of lanes, unless its class is [`Class::Fixed`].
    pub(crate) varying: u32,
}

/// The frame of a function: where every register lies, and its size.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) homes: Vec<Homes>,
    pub(crate) bytes: usize,
}

/// Gives every register its slots, for lane groups of `lanes`. Registers that are never needed at the same time
/// share them.
pub(crate) fn layout(func: &Func, live: &[BitSet], classes: &[Class], lanes: usize) -> Layout {
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
        bytes += size.next_multiple_of(ALIGN);
        at as u32
    };
    let intervals = intervals(func, live);
    for interval in &intervals {
        let reg = interval.reg as usize;
        if classes[reg] == Class::Fixed {
            homes[reg].uniform = take(usize::from(func.regs[reg]) * STRIP);
        }
        // No other register shares it, as it is written once for all blocks.
        if classes[reg] == Class::Thread {
            homes[reg].varying = take(usize::from(func.regs[reg]) * lanes);
        }
    }
    assign(
        &intervals,
        func,
        |reg| classes[reg] == Class::Uniform,
        |reg, width, free| {
            homes[reg].uniform = free.unwrap_or_else(|| take(width * STRIP));
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
    Layout { homes, bytes }
}

/// Whether the frame is within its limit, for lane groups of `lanes`.
pub(super) fn fits(func: &Func, live: &[BitSet], classes: &[Class], lanes: usize) -> bool {
    // As if no two registers shared a slot: enough for nearly all functions.
    let widths = func.regs.iter().map(|&width| usize::from(width));
    let most: usize = widths.map(|width| width * (lanes + STRIP)).sum();
    most <= REGISTER_BYTES / 2 || layout(func, live, classes, lanes).bytes <= REGISTER_BYTES
}

/// Linear scan over the chosen registers; `place` is told of a slot that is free again.
fn assign(
    intervals: &[Interval],
    func: &Func,
    chosen: impl Fn(usize) -> bool,
    mut place: impl FnMut(usize, usize, Option<u32>) -> u32,
) {
    // Those in use, the first to end on top.
    let mut active: BinaryHeap<Reverse<(u32, u8, u32)>> = BinaryHeap::new();
    // Free slots by the logarithm of their width.
    let mut free: [Vec<u32>; 4] = Default::default();
    let kind = |width: u8| width.trailing_zeros().min(3) as usize;
    for interval in intervals {
        let reg = interval.reg as usize;
        if !chosen(reg) {
            continue;
        }
        while let Some(&Reverse((end, width, slot))) = active.peek()
            && end < interval.start
        {
            active.pop();
            free[kind(width)].push(slot);
        }
        let width = func.regs[reg];
        let slot = place(reg, usize::from(width), free[kind(width)].pop());
        active.push(Reverse((interval.end, width, slot)));
    }
}

/// The most 32-bit registers of a thread that are live at once. What NVIDIA's assembler reads from constant
/// memory or makes anew where it is needed (constants, parameters, special registers) counts as none.
pub(super) fn pressure(func: &Func, live: &[BitSet]) -> u32 {
    let mut weights: Vec<u64> = func
        .regs
        .iter()
        .map(|&width| match width {
            8 => 2,
            1 => 0,
            _ => 1,
        })
        .collect();
    for inst in func.blocks.iter().flat_map(|block| &block.insts) {
        if let InstKind::Const(_)
        | InstKind::Special(_)
        | InstKind::Global(..)
        | InstKind::Param { .. } = inst.kind
        {
            for &reg in &inst.d {
                weights[reg as usize] = 0;
            }
        }
    }
    let weight = |set: &BitSet| set.iter().map(|reg| weights[reg as usize]).sum::<u64>();
    let mut most = 0;
    for (index, block) in func.blocks.iter().enumerate() {
        let mut set = live_out(func, live, index);
        before_end(&block.end, &mut set);
        let mut now = weight(&set);
        most = most.max(now);
        for inst in block.insts.iter().rev() {
            for &reg in &inst.d {
                if set.has(reg) {
                    set.remove(reg);
                    now -= weights[reg as usize];
                }
            }
            for reg in inst.uses() {
                if set.insert(reg) {
                    now += weights[reg as usize];
                }
            }
            most = most.max(now);
        }
    }
    u32::try_from(most).unwrap_or(0)
}
