//! Loops of the convergent code that lanes leave as soon as each has found something: `while (i < n && text[at + i] == word[i]) ++i`.
//!
//! Done block by block, the first lane that leaves takes all of them into the divergent code, where each has a counter of its own. As one
//! operation the loop is done before they part.
//!
//! Called by `emit` for each block. Must not know how such a loop is compiled.

use std::collections::HashSet;

use super::loops::{Shape, changes_memory};
use super::{Body, Emitter, blank};
use crate::analysis::Class;
use crate::ir::{BlockId, End, Reg};
use crate::isa::{Isa, Target};
use crate::ops::search;
use crate::segment::{self, Known, Search, SearchBlock};

/// No slot of lanes.
const NONE: u32 = u32::MAX;

impl Emitter {
    /// Adds the loop of which block `index` is the header, before what does it block by block, if it is such a search.
    pub(super) fn search(&mut self, body: &Body<'_>, index: usize) {
        let Target { isa, jit, .. } = self.target;
        if !jit || isa != Isa::Avx512 || body.index != 0 {
            return;
        }
        let Some(shape) = Shape::of(body, index as BlockId) else {
            return;
        };
        let Some(search) = search_of(body, &shape) else {
            return;
        };
        let slot_of = |reg| body.register_slot(reg);
        let known = Known {
            slot_of: &slot_of,
            constant_of: &|reg| body.constants.get(&reg).copied(),
            row_of: &|_, _| None,
        };
        // The operations behind it find out what may be reached by the numbers of their loads, which are the next ones.
        let Some(code) = segment::compile_search(&search, &known, self.target, self.transfers)
        else {
            return;
        };
        let mut op = blank(search::search);
        let exit = body.first + shape.exit;
        let parts = !search.needed.is_empty();
        self.fixups.push((self.program.ops.len(), 1, exit, !parts));
        op.d[1] = exit;
        op.d[2] = body.layout.bytes as u32;
        op.d[3] = shape.instructions(body);
        for (at, place) in op.s[2..2 + segment::NEEDED].iter_mut().enumerate() {
            *place = search.needed.get(at).map_or(NONE, |(_, offset)| *offset);
        }
        op.width[0] = u8::from(parts);
        self.line = body.func.blocks[index].line;
        self.machine_code(op, &code);
    }
}

/// A loop as a search, if it is one: it loads, and what it has loaded decides which lanes go on.
fn search_of(body: &Body<'_>, shape: &Shape) -> Option<Search> {
    let header = shape.blocks[0];
    let mut blocks = Vec::new();
    // What each lane has found in memory.
    let mut found: HashSet<Reg> = HashSet::new();
    let mut decides = false;
    for (number, &id) in shape.blocks.iter().enumerate() {
        let block = &body.func.blocks[id as usize];
        let insts = body.own(block).into_iter();
        let steps: Option<Vec<_>> = insts
            .map(|inst| inst.step().filter(|_| inst.guard.is_none()))
            .collect();
        let steps = steps.filter(|steps| !steps.iter().any(changes_memory))?;
        for step in &steps {
            let loads = step.access.1 != 0;
            if loads || step.s.iter().any(|reg| found.contains(reg)) {
                found.extend(step.d.iter().filter(|&&reg| body.home(reg).1));
            }
        }
        let next = Some(number + 1);
        let stays = match block.end {
            End::Jump(to) if shape.edge(to) == next => None,
            End::Branch {
                on,
                negated,
                then,
                other,
            } => {
                decides |= found.contains(&on);
                match (shape.edge(then), shape.edge(other)) {
                    (then, None) if then == next => Some((on, !negated)),
                    (None, other) if other == next => Some((on, negated)),
                    _ => return None,
                }
            }
            _ => return None,
        };
        blocks.push(SearchBlock { steps, stays });
    }
    let written: HashSet<Reg> = blocks
        .iter()
        .flat_map(|block| &block.steps)
        .flat_map(|step| step.d.iter().copied())
        .collect();
    let live = |reg: &Reg| body.live[shape.exit as usize].has(*reg);
    let mut needed: Vec<Reg> = written.iter().copied().filter(live).collect();
    needed.sort_unstable();
    let fits = |&reg: &Reg| body.classes[reg as usize] == Class::Uniform && body.width(reg) == 4;
    if !decides || needed.len() > segment::NEEDED || !needed.iter().all(fits) {
        return None;
    }
    let read = written.iter().copied();
    let read = read.filter(|&reg| body.live[header as usize].has(reg));
    Some(Search {
        read: read.collect(),
        needed: needed
            .into_iter()
            .map(|reg| (reg, body.layout.homes[reg as usize].varying))
            .collect(),
        blocks,
    })
}
