//! Registers that loops take further (`analysis::turns`) as sums: the number that all lanes share is what turns change.
//!
//! Called by `sums` for each of its instructions. Must not know what reads such sums.

use super::{DEPTH, Place, Sum, Sums};
use crate::analysis::turns::{self, Turning};
use crate::analysis::uniformity::Class;
use crate::ir::{Inst, Reg};
use crate::segment::Tag;

impl Sums<'_> {
    /// A register that a loop changes becomes one of what all lanes share, if the number before the first turn is a sum.
    pub(super) fn turn(&mut self, turning: Turning) {
        self.makers.insert(turning.reg, turning.first.clone());
        let first = self.find(turning.reg, DEPTH);
        self.makers.remove(&turning.reg);
        if let Some(Sum {
            thread: Some(thread),
            block,
        }) = first
        {
            let block = block.unwrap_or_else(|| self.number(0, &turning.first));
            let turned = self.register(4, Class::Uniform);
            let sum = Sum {
                thread: Some(thread),
                block: Some(turned),
            };
            self.turned.insert(turned, block);
            self.turning.insert(turning.reg, (turning, sum));
        }
    }

    /// Whether a number changes in a loop.
    pub(super) fn turns(&self, number: Reg) -> bool {
        self.turned.contains_key(&number)
    }

    /// What a register is the sum of that a loop changes, if it has not changed since another one was made of it.
    pub(super) fn turning(&self, reg: Reg, since: Option<Reg>) -> Option<Sum> {
        let (turning, sum) = self.turning.get(&reg)?;
        let (block, now) = self.here;
        let is_so = since.is_none_or(|made| {
            let then = self.places.get(&made);
            then.is_some_and(|&(there, then)| {
                let between =
                    |&(at, written): &Place| at == block && written > then && written < now;
                there == block && then < now && !turning.written.iter().any(between)
            })
        });
        is_so.then_some(*sum)
    }

    /// Has an instruction read and write what stands for registers that loops change.
    pub(super) fn rewrite_turning(&mut self, inst: &mut Inst) {
        if let &[reg] = inst.d.as_slice()
            && let Some((_, sum)) = self.turning.get(&reg)
            && let Some(turned) = sum.block
        {
            if inst.s.contains(&reg) {
                inst.s
                    .iter_mut()
                    .filter(|it| **it == reg)
                    .for_each(|it| *it = turned);
            } else {
                let first = self.turned.get(&turned).copied();
                let copy = first.and_then(|first| turns::made(Tag::Mov32, &[first], turned, inst));
                if let Some(copy) = copy {
                    *inst = copy;
                }
            }
            inst.d = vec![turned];
        }
        for at in 0..inst.s.len() {
            let Some(Sum {
                thread: Some(thread),
                block: Some(turned),
            }) = self.turning.get(&inst.s[at]).map(|(_, sum)| *sum)
            else {
                continue;
            };
            let sum = self.register(4, Class::Varying);
            if let Some(mut add) = turns::made(Tag::Add32, &[thread, turned], sum, inst) {
                add.guard = inst.guard;
                self.fresh.push(add);
                inst.s[at] = sum;
            }
        }
    }
}
