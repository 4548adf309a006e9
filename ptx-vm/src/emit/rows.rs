//! Indices that are the sum of a number of the thread and one of the block (`analysis::sums`), and where it stands what is known of
//! the thread's.
//!
//! Called by `emit`. Must not know who makes such sums, nor what their rows are good for.

use std::collections::HashMap;

use super::blank;
use crate::analysis::{Class, Layout};
use crate::ir::{Func, InstKind, Reg};
use crate::machine::Op;
use crate::ops::rows;
use crate::segment::{Row, Tag};

/// The most numbers of threads of which something is known.
const MOST: usize = 8;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rows {
    of: HashMap<Reg, Row>,
    /// Where the numbers of threads lie, and what is known of them.
    facts: Vec<(u32, u32)>,
}

impl Rows {
    /// Finds such indices of elements, and takes places at the end of the frame.
    pub(super) fn find(func: &Func, classes: &[Class], layout: &mut Layout) -> Self {
        let insts = || func.blocks.iter().flat_map(|block| &block.insts);
        let mut writes = vec![0_u32; func.regs.len()];
        for inst in insts() {
            inst.d.iter().for_each(|&reg| writes[reg as usize] += 1);
        }
        let class = |reg: Reg| classes[reg as usize];
        let is_number =
            |reg: Reg, wanted: Class| class(reg) == wanted && func.regs[reg as usize] == 4;
        let mut sums = HashMap::new();
        for inst in insts() {
            let InstKind::Pure { tag, .. } = inst.kind else {
                continue;
            };
            if let (Tag::Add32, &[a, b], &[sum]) = (tag, inst.s.as_slice(), inst.d.as_slice())
                && writes[sum as usize] == 1
            {
                for (thread, block) in [(a, b), (b, a)] {
                    if is_number(thread, Class::Thread) && is_number(block, Class::Fixed) {
                        sums.insert(sum, (thread, Some(block)));
                    }
                }
            }
        }
        let mut found = Self::default();
        let mut places: HashMap<Reg, u32> = HashMap::new();
        for inst in insts() {
            let InstKind::Pure { tag, .. } = inst.kind else {
                continue;
            };
            let widens = matches!(
                tag,
                Tag::MulWideS32 | Tag::MulWideU32 | Tag::WidenS32 | Tag::WidenU32
            );
            for &index in inst.s.iter().filter(|_| widens) {
                let known = sums.get(&index).copied();
                let own = is_number(index, Class::Thread).then_some((index, None));
                let Some((thread, block)) = known.or(own) else {
                    continue;
                };
                if places.len() == MOST && !places.contains_key(&thread) {
                    continue;
                }
                let numbers = layout.homes[thread as usize].varying;
                let facts = *places.entry(thread).or_insert_with(|| {
                    let at = layout.bytes as u32;
                    layout.bytes += rows::BYTES;
                    found.facts.push((numbers, at));
                    at
                });
                let row = Row {
                    thread: numbers,
                    facts,
                    block: block.map(|block| layout.homes[block as usize].uniform),
                };
                found.of.insert(index, row);
            }
        }
        found
    }

    /// Of what an index is the sum.
    pub(super) fn of(&self, index: Reg) -> Option<Row> {
        self.of.get(&index).copied()
    }

    /// The operations that look at the numbers of threads.
    pub(super) fn facts(&self) -> impl Iterator<Item = Op> {
        self.facts.iter().map(|&(numbers, facts)| {
            let mut op = blank(rows::rows);
            op.s[0] = numbers;
            op.d[0] = facts;
            op.varying = 1;
            op
        })
    }
}
