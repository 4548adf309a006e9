//! What is known of a function before it is compiled: the order of its blocks, which registers are live
//! where, which values all lanes share, and where each register lies.
//!
//! Called by `lower` when a function is whole, and by `emit`. Knows what an instruction reads and writes, not what
//! it computes.

use super::ir::{Func, Inst, InstKind, Passed, Reg};
use super::limits::{BLOCKS, LIVE_AT_ONCE, LIVE_BITS, LIVE_IN_ALL, LIVE_STEPS, REGISTER_BYTES};

mod if_convert;
mod layout;
mod liveness;
mod local_memory;
mod order;
mod set;
mod sums;
mod threads;
mod turns;
mod uniformity;

pub(crate) use layout::{Layout, layout};
use liveness::liveness;
pub(crate) use liveness::{before, before_end, live_in, live_out};
pub(crate) use local_memory::{alignment, local_stride};
use order::Beyond;
pub(crate) use set::BitSet;
pub(crate) use uniformity::{Class, classes};

/// Makes a lowered function ready to be compiled for lane groups of up to `lanes` lanes: its blocks in order, no
/// register that nothing uses, and in the entry, arithmetic brought together. Returns the most 32-bit
/// registers that are live at once.
///
/// # Errors
/// What is beyond a limit, so that compiling it would take memory or time without bound.
pub(crate) fn prepare(func: &mut Func, entry: bool, lanes: usize) -> Result<u32, Beyond> {
    if func.blocks.len() > BLOCKS {
        return Err(("basic blocks of a function", BLOCKS as u64));
    }
    if_convert::convert(func);
    order::order(func)?;
    forget_old_values(func);
    drop_unused(func);
    if func.blocks.len() as u64 * func.regs.len() as u64 > LIVE_BITS {
        return Err(("basic blocks times registers of a function", LIVE_BITS));
    }
    let steps = (
        "steps to find what a function's registers are used for",
        LIVE_STEPS,
    );
    let mut live = liveness(func, LIVE_STEPS).ok_or(steps)?;
    let sizes = live.iter().map(BitSet::count);
    if sizes.clone().any(|size| size > LIVE_AT_ONCE) {
        return Err(("registers in use at once", LIVE_AT_ONCE as u64));
    }
    if sizes.map(|size| size as u64).sum::<u64>() > LIVE_IN_ALL {
        return Err((
            "registers in use between the blocks of a function",
            LIVE_IN_ALL,
        ));
    }
    let mut known = vec![Class::Varying; func.regs.len()];
    if entry {
        known = classes(func, &live);
        gather_segments(func, &known);
    }
    // What is made anew below is no register of a thread's.
    let pressure = layout::pressure(func, &live);
    if entry && turns::separate(func) {
        live = liveness(func, LIVE_STEPS).ok_or(steps)?;
        known = classes(func, &live);
    }
    if entry && sums::split(func, &known) {
        live = liveness(func, LIVE_STEPS).ok_or(steps)?;
        known = classes(func, &live);
    }
    if entry && threads::hoist(func, &known, &live) {
        live = liveness(func, LIVE_STEPS).ok_or(steps)?;
        known = classes(func, &live);
    }
    if !layout::fits(func, &live, &known, lanes) {
        return Err(("bytes of registers of a function", REGISTER_BYTES as u64));
    }
    Ok(pressure)
}

/// Atomics have no results that nobody reads.
fn forget_old_values(func: &mut Func) {
    let mut read = BitSet::new(func.regs.len());
    for passed in func.params.iter().chain(&func.returns) {
        if let Passed::Register(reg) = passed {
            read.insert(*reg);
        }
    }
    for block in &func.blocks {
        for inst in &block.insts {
            match inst.kind {
                // What its guard may leave in its result is no reader of it.
                InstKind::Atomic { .. } => {
                    let guard = inst.guard.iter().map(|(reg, _)| reg);
                    inst.s.iter().chain(guard).for_each(|&reg| {
                        read.insert(reg);
                    });
                }
                _ => inst.uses().for_each(|reg| {
                    read.insert(reg);
                }),
            }
        }
        for reg in block.end.uses() {
            read.insert(reg);
        }
    }
    for inst in func.blocks.iter_mut().flat_map(|block| &mut block.insts) {
        if matches!(inst.kind, InstKind::Atomic { .. }) && !inst.d.iter().any(|&reg| read.has(reg))
        {
            inst.d.clear();
        }
    }
}

/// Renumbers the registers so that there are only those which something names: a source declares as many
/// as it likes.
fn drop_unused(func: &mut Func) {
    const UNUSED: Reg = Reg::MAX;
    let mut new = vec![UNUSED; func.regs.len()];
    let mut name = |reg: Reg| new[reg as usize] = 0;
    for passed in func.params.iter().chain(&func.returns) {
        if let Passed::Register(reg) = passed {
            name(*reg);
        }
    }
    for block in &func.blocks {
        for inst in &block.insts {
            inst.uses().for_each(&mut name);
            inst.d.iter().copied().for_each(&mut name);
        }
        block.end.uses().into_iter().for_each(&mut name);
        block.end.defs().into_iter().for_each(&mut name);
    }
    let mut regs = Vec::new();
    for (old, new) in new.iter_mut().enumerate() {
        if *new != UNUSED {
            *new = regs.len() as Reg;
            regs.push(func.regs[old]);
        }
    }
    func.regs = regs;
    let new = |reg: Reg| new[reg as usize];
    for passed in func.params.iter_mut().chain(&mut func.returns) {
        passed.renumber(new);
    }
    for block in &mut func.blocks {
        for inst in &mut block.insts {
            for reg in inst.d.iter_mut().chain(&mut inst.s) {
                *reg = new(*reg);
            }
            if let Some((reg, _)) = &mut inst.guard {
                *reg = new(*reg);
            }
        }
        block.end.renumber(new);
    }
}

/// Brings arithmetic on lanes together: what is computed once for all lanes moves up past it, as far as
/// nothing depends on the order.
fn gather_segments(func: &mut Func, classes: &[Class]) {
    // What a run that is not over yet reads or writes.
    let mut touched = BitSet::new(func.regs.len());
    for block in &mut func.blocks {
        let mut out: Vec<Inst> = Vec::with_capacity(block.insts.len());
        let mut run: Vec<Inst> = Vec::new();
        for inst in block.insts.drain(..) {
            let class = |reg: &Reg| classes[*reg as usize];
            if inst.guard.is_none()
                && inst
                    .step()
                    .is_some_and(|step| step.d.iter().all(|reg| class(reg) == Class::Varying))
            {
                for reg in inst.uses().chain(inst.d.iter().copied()) {
                    touched.insert(reg);
                }
                run.push(inst);
                continue;
            }
            // What a store has written may be what is loaded.
            let stored = run
                .iter()
                .any(|done| matches!(done.kind, InstKind::Store { .. } | InstKind::Atomic { .. }));
            let moves = matches!(
                inst.kind,
                InstKind::Pure { .. }
                    | InstKind::Cold { .. }
                    | InstKind::Load { .. }
                    | InstKind::Param { .. }
            ) && !matches!(inst.kind, InstKind::Load { traits, .. } if traits.volatile || stored)
                && inst
                    .d
                    .iter()
                    .all(|reg| class(reg) < Class::Varying && !touched.has(*reg))
                && !inst.uses().any(|reg| class(&reg) >= Class::Varying);
            if !moves {
                for done in &run {
                    for reg in done.uses().chain(done.d.iter().copied()) {
                        touched.remove(reg);
                    }
                }
                out.append(&mut run);
            }
            out.push(inst);
        }
        for done in &run {
            for reg in done.uses().chain(done.d.iter().copied()) {
                touched.remove(reg);
            }
        }
        out.append(&mut run);
        block.insts = out;
    }
}
