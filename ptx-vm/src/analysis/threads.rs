//! Arithmetic on numbers of the thread and what the grid shares: the same in all blocks, so it is done once for all of them.
//!
//! `threadIdx.x < 16` is asked at every step of a tree of sums, and its answer never changes. Such predicates and numbers become the
//! thread's own ([`Func::threads`]), as its index is; copies of the thread's numbers are not made.
//!
//! Called when the entry's blocks are in order and its values have classes. Must not know what is computed.

use std::collections::HashMap;

use super::set::BitSet;
use super::uniformity::{Class, note_of_block};
use crate::ir::{Func, Inst, InstKind, Reg};
use crate::segment::Tag;

/// The most registers that are made the thread's: each has a place of its own for all lanes.
const MOST: usize = 24;
/// The most that are looked at.
const FOUND: usize = 256;

/// Makes such registers the thread's, where something else reads them. Whether there are any.
pub(super) fn hoist(func: &mut Func, classes: &[Class], live: &[BitSet]) -> bool {
    let count = func.regs.len();
    let mut writes = vec![0_u32; count];
    if let Some(entry) = live.first() {
        // Read before they are written.
        entry.iter().for_each(|reg| writes[reg as usize] += 2);
    }
    let insts = || func.blocks.iter().flat_map(|block| &block.insts);
    for inst in insts() {
        inst.d.iter().for_each(|&reg| writes[reg as usize] += 1);
    }
    for reg in func.blocks.iter().flat_map(|block| block.end.defs()) {
        writes[reg as usize] += 2;
    }
    // What is the same in all blocks: of the grid, and of its threads.
    let mut of_block = BitSet::new(count);
    let mut of_thread: Vec<bool> = classes
        .iter()
        .map(|&class| class == Class::Thread)
        .collect();
    let mut copies: Vec<Option<Reg>> = vec![None; count];
    let mut found = Vec::new();
    for inst in insts() {
        note_of_block(inst, &mut of_block);
        let (InstKind::Pure { tag, .. }, &[reg]) = (&inst.kind, inst.d.as_slice()) else {
            continue;
        };
        let is_ready = |&reg: &Reg| {
            of_thread[reg as usize] || classes[reg as usize] == Class::Fixed && !of_block.has(reg)
        };
        let fits = classes[reg as usize] == Class::Varying
            && writes[reg as usize] == 1
            && inst.guard.is_none()
            && matches!(func.regs[reg as usize], 1 | 4)
            && inst.s.iter().all(is_ready);
        if !fits {
            continue;
        }
        of_thread[reg as usize] = true;
        match (tag, inst.s.as_slice()) {
            (Tag::Mov32 | Tag::MovNarrow, &[from])
                if func.regs[from as usize] == func.regs[reg as usize] =>
            {
                copies[reg as usize] = Some(copies[from as usize].unwrap_or(from));
            }
            _ if found.len() < FOUND => found.push(reg),
            _ => of_thread[reg as usize] = false,
        }
    }
    let copied = copies.iter().any(Option::is_some);
    if copied {
        let of = |reg: &mut Reg| *reg = copies[*reg as usize].unwrap_or(*reg);
        for block in &mut func.blocks {
            for inst in &mut block.insts {
                inst.s.iter_mut().for_each(of);
                if let Some((reg, _)) = &mut inst.guard {
                    of(reg);
                }
            }
            block
                .end
                .renumber(|reg| copies[reg as usize].unwrap_or(reg));
        }
        // Those that made them.
        let is_copy =
            |inst: &Inst| matches!(inst.d.as_slice(), &[reg] if copies[reg as usize].is_some());
        for block in &mut func.blocks {
            block.insts.retain(|inst| !is_copy(inst));
        }
    }
    let predicates = needed(func, &found);
    func.threads.extend(&predicates);
    copied || !predicates.is_empty()
}

/// Of these registers, ascending in the order in which they are made, predicates and what those are made of, as many as there is room for.
fn needed(func: &Func, found: &[Reg]) -> Vec<Reg> {
    let mut chosen = BitSet::new(func.regs.len());
    let mut count = 0;
    let insts = func.blocks.iter().flat_map(|block| &block.insts);
    let makers: HashMap<Reg, &Inst> = insts
        .filter_map(|inst| Some((*inst.d.first()?, inst)))
        .filter(|(reg, _)| found.contains(reg))
        .collect();
    for &predicate in found.iter().filter(|&&reg| func.regs[reg as usize] == 1) {
        let mut wanted = vec![predicate];
        let mut open = vec![predicate];
        while let Some(reg) = open.pop() {
            let sources = makers.get(&reg).map_or(&[][..], |inst| &inst.s);
            for &source in sources {
                if found.contains(&source) && !chosen.has(source) && !wanted.contains(&source) {
                    wanted.push(source);
                    open.push(source);
                }
            }
        }
        if count + wanted.len() <= MOST {
            count += wanted.len();
            wanted.into_iter().for_each(|reg| {
                chosen.insert(reg);
            });
        }
    }
    found
        .iter()
        .copied()
        .filter(|&reg| chosen.has(reg))
        .collect()
}
