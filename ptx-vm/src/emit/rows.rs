//! Indices, addresses of shared memory and other numbers that are the sum of a number of the thread and one of the block
//! (`analysis::sums`), and where it stands what is known of the thread's.
//!
//! Called by `emit`. Must not know who makes such sums, nor what their rows are good for.

use std::collections::HashMap;

use super::blank;
use crate::analysis::{Class, Layout};
use crate::ir::{Func, Inst, InstKind, Reg};
use crate::machine::Op;
use crate::ops::rows;
use crate::segment::{Compared, Row, Tag};

/// Elements that a loop goes on in a turn so that what comes is fetched ahead.
const FAR: u32 = 512;
/// The most numbers of threads of which something is known.
const MOST: usize = 8;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// By register and step; whether the block's number changes while the block runs, so that lanes share it as long as they run together.
    of: HashMap<(Reg, u8), (Row, bool)>,
    /// Where the numbers of threads lie, what is known of them, and the step.
    facts: Vec<(u32, u32, u8)>,
}

impl Rows {
    /// Finds such indices of elements, addresses of shared memory and numbers that are compared, and takes places at the end of the
    /// frame.
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
                    let shared = is_number(block, Class::Fixed)
                        || is_number(block, Class::Uniform) && stays(func, sum, block);
                    if is_number(thread, Class::Thread) && shared {
                        sums.insert(sum, (thread, Some(block)));
                    }
                }
            }
        }
        let steps = far_steps(func, classes);
        let mut found = Self::default();
        let mut places: HashMap<(Reg, u8), u32> = HashMap::new();
        for (index, step) in insts().flat_map(wanted) {
            let known = sums.get(&index).copied();
            let own = is_number(index, Class::Thread).then_some((index, None));
            let Some((thread, block)) = known.or(own) else {
                continue;
            };
            if places.len() == MOST && !places.contains_key(&(thread, step)) {
                continue;
            }
            let numbers = layout.homes[thread as usize].varying;
            let facts = *places.entry((thread, step)).or_insert_with(|| {
                let at = layout.bytes as u32;
                layout.bytes += rows::BYTES;
                found.facts.push((numbers, at, step));
                at
            });
            let row = Row {
                thread: numbers,
                facts,
                block: block.map(|block| layout.homes[block as usize].uniform),
                ahead: block
                    .and_then(|block| steps.get(&block))
                    .map(|&step| layout.homes[step as usize].uniform),
            };
            let changes = block.is_some_and(|block| class(block) == Class::Uniform);
            found.of.insert((index, step), (row, changes));
        }
        found
    }

    /// Of what an index is the sum, or an address of elements of so many bytes, in code where lanes run together or in any.
    pub(super) fn of(&self, index: Reg, step: u8, together: bool) -> Option<Row> {
        let (row, changes) = self.of.get(&(index, step)).copied()?;
        (together || !changes).then_some(row)
    }

    /// The operations that look at the numbers of threads.
    pub(super) fn facts(&self) -> impl Iterator<Item = Op> {
        self.facts.iter().map(|&(numbers, facts, step)| {
            let mut op = blank(rows::rows);
            op.s[0] = numbers;
            op.d[0] = facts;
            op.imm = step.into();
            op.varying = 1;
            op
        })
    }
}

/// What loops add to numbers that lanes share in each turn, by these numbers: where it is not known to be a short step.
fn far_steps(func: &Func, classes: &[Class]) -> HashMap<Reg, Reg> {
    let insts = || func.blocks.iter().flat_map(|block| &block.insts);
    let is_shared =
        |reg: Reg| classes[reg as usize] < Class::Varying && func.regs[reg as usize] == 4;
    let mut steps = HashMap::new();
    for inst in insts() {
        let InstKind::Pure {
            tag: Tag::Add32, ..
        } = inst.kind
        else {
            continue;
        };
        if let (&[a, b], &[sum]) = (inst.s.as_slice(), inst.d.as_slice())
            && let Some(step) = [(a, b), (b, a)]
                .into_iter()
                .find_map(|(a, b)| (a == sum).then_some(b))
            && is_shared(sum)
            && is_shared(step)
        {
            steps.insert(sum, step);
        }
    }
    for inst in insts() {
        // What follows soon the processor fetches by itself.
        if let (InstKind::Const(step), &[reg]) = (&inst.kind, inst.d.as_slice())
            && (*step as i32).unsigned_abs() < FAR
        {
            steps.retain(|_, step| *step != reg);
        }
    }
    steps
}

/// Whether what a sum was made of is still so wherever the sum is read: behind it in the block that makes it, and before the number is
/// written again.
fn stays(func: &Func, sum: Reg, number: Reg) -> bool {
    let mut reads = 0;
    for block in &func.blocks {
        let makes = |inst: &Inst| inst.d.contains(&sum);
        let Some(made) = block.insts.iter().position(makes) else {
            continue;
        };
        let writes = |inst: &Inst| inst.d.contains(&number);
        let same = block.insts[made + 1..]
            .iter()
            .take_while(|inst| !writes(inst));
        reads += same.flat_map(Inst::uses).filter(|&reg| reg == sum).count();
    }
    let insts = func.blocks.iter().flat_map(|block| &block.insts);
    let ends = func.blocks.iter().flat_map(|block| block.end.uses());
    let all = insts.flat_map(Inst::uses).chain(ends);
    all.filter(|&reg| reg == sum).count() == reads
}

/// The registers of an instruction of which segments want to know whether they are such sums, and by which step lanes would follow each
/// other.
fn wanted(inst: &Inst) -> Vec<(Reg, u8)> {
    let Some(step) = inst.step() else {
        return Vec::new();
    };
    match step.tag {
        Tag::MulWideS32 | Tag::MulWideU32 | Tag::WidenS32 | Tag::WidenU32 => {
            step.s.iter().map(|&reg| (reg, 1)).collect()
        }
        Tag::Compare(Compared::S32 | Compared::U32, _) => {
            step.s.iter().map(|&reg| (reg, 1)).collect()
        }
        Tag::LoadShared | Tag::StoreShared => vec![(step.s[0], step.access.1)],
        _ => Vec::new(),
    }
}
