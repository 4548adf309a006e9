//! Comparisons, and what they write: predicates, and all bits of a register.
//!
//! Called by `lower::arith`. Must not know how two values are compared: it picks from `ops::compare` and
//! `ops::half`.

use ptx::ast::{Instruction, Operand, Type};

use super::body::{Body, Lowered};
use crate::ir::Reg;
use crate::ops::half;
use crate::ops::simple::Words;
use crate::ops::{compare, logic, parts};

impl<'a> Body<'a> {
    /// The comparison that `setp` and `set` make, with its boolean operation: the predicate and, if there
    /// are two destinations, the one of the opposite comparison.
    pub(super) fn comparison(
        &mut self,
        flags: &[&str],
        ty: Type,
        a: &Operand<'_>,
        b: &Operand<'_>,
        c: Option<&Operand<'_>>,
        both: bool,
    ) -> Lowered<(Reg, Option<Reg>)> {
        let rest: Vec<&str> = flags
            .iter()
            .copied()
            .filter(|flag| *flag != "ftz")
            .collect();
        let (name, boolean) = match (rest.as_slice(), c.is_some()) {
            ([name], false) => (*name, None),
            ([name, boolean], true) if ["and", "or", "xor"].contains(boolean) => {
                (*name, Some(*boolean))
            }
            _ => return Err(self.unbuilt()),
        };
        let compare = compare::compare(name, ty).ok_or_else(|| self.unbuilt())?;
        let half = matches!(ty, Type::F16 | Type::Bf16);
        let mut sources = [
            self.read_typed(a, compare.widths[1], half, &[ty])?,
            self.read_typed(b, compare.widths[1], half, &[ty])?,
        ];
        if flags.contains(&"ftz") {
            let flushed = match ty {
                Type::F32 => parts::flushed(),
                Type::F16 => half::flushed(),
                _ => return Err(self.unbuilt()),
            };
            for source in &mut sources {
                *source = self.compute(&flushed, vec![*source]);
            }
        }
        let mut holds = self.compute(&compare, sources.to_vec());
        let mut opposite = None;
        if both {
            let not = self.predicate_op("not")?;
            opposite = Some(self.compute(&not, vec![holds]));
        }
        if let (Some(boolean), Some(c)) = (boolean, c) {
            let c = self.read(c, 1)?;
            let combine = self.predicate_op(boolean)?;
            holds = self.compute(&combine, vec![holds, c]);
            opposite = opposite.map(|other| self.compute(&combine, vec![other, c]));
        }
        Ok((holds, opposite))
    }

    /// The comparison of both halves of two pairs of 16-bit floats: predicates of the lower and the upper.
    pub(super) fn compare_pairs(
        &mut self,
        words: &Words<'_>,
        ty: Type,
        a: &Operand<'_>,
        b: &Operand<'_>,
        c: Option<&Operand<'_>>,
    ) -> Lowered<[Reg; 2]> {
        let (single, flush) = match ty {
            // A bfloat16's subnormal is none of the numbers that .ftz is for.
            Type::Bf16x2 if words.has("ftz") => return Err(self.unbuilt()),
            Type::Bf16x2 => (Type::Bf16, false),
            _ => (Type::F16, words.has("ftz")),
        };
        let rest: Vec<&str> = words
            .flags
            .iter()
            .copied()
            .filter(|flag| *flag != "ftz")
            .collect();
        let (name, boolean) = match (rest.as_slice(), c) {
            ([name], None) => (*name, None),
            ([name, boolean @ ("and" | "or" | "xor")], Some(c)) => (*name, Some((*boolean, c))),
            _ => return Err(self.unbuilt()),
        };
        let compare = compare::compare(name, single).ok_or_else(|| self.unbuilt())?;
        let (a, b) = (
            self.read_typed(a, 4, true, &[ty])?,
            self.read_typed(b, 4, true, &[ty])?,
        );
        let boolean = match boolean {
            Some((name, c)) => Some((self.predicate_op(name)?, self.read(c, 1)?)),
            None => None,
        };
        let mut results = [0; 2];
        for (upper, result) in [false, true].into_iter().zip(&mut results) {
            let one = half::half_of_pair(upper);
            let (mut a, mut b) = (self.compute(&one, vec![a]), self.compute(&one, vec![b]));
            if flush {
                let flushed = half::flushed();
                (a, b) = (
                    self.compute(&flushed, vec![a]),
                    self.compute(&flushed, vec![b]),
                );
            }
            *result = self.compute(&compare, vec![a, b]);
            if let Some((combine, c)) = &boolean {
                *result = self.compute(combine, vec![*result, *c]);
            }
        }
        Ok(results)
    }

    pub(super) fn setp(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let &[ty] = words.types else {
            return Err(self.unbuilt());
        };
        let (d, a, b, c) = match at.operands.as_slice() {
            [d, a, b] => (d, a, b, None),
            [d, a, b, c] => (d, a, b, Some(c)),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        let (p, q) = match d {
            Operand::Pair(p, q) => (&**p, Some(&**q)),
            p => (p, None),
        };
        if matches!(ty, Type::F16x2 | Type::Bf16x2) {
            let [low, high] = self.compare_pairs(words, ty, a, b, c)?;
            self.set_predicate(p, low)?;
            return q.map_or(Ok(()), |q| self.set_predicate(q, high));
        }
        let (holds, opposite) = self.comparison(words.flags, ty, a, b, c, q.is_some())?;
        self.set_predicate(p, holds)?;
        if let (Some(q), Some(opposite)) = (q, opposite) {
            self.set_predicate(q, opposite)?;
        }
        Ok(())
    }

    /// Copies a predicate to the register that an operand names.
    pub(super) fn set_predicate(&mut self, operand: &Operand<'_>, value: Reg) -> Lowered {
        if matches!(operand, Operand::Sink) {
            return Ok(());
        }
        let dest = self.dest(operand, 1)?;
        if self.redirect(value, dest) {
            return Ok(());
        }
        let copy = self.predicate_op("mov")?;
        self.simple(&copy, dest, vec![value]);
        Ok(())
    }

    /// What `set` gives in 16 bits for a predicate: 1.0 or all ones, or 0.
    fn set_half(&mut self, to: Type, holds: Reg) -> Lowered<Reg> {
        let one = match to {
            Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2 => half::one(to),
            _ => 0xffff,
        };
        let (one, zero) = (self.constant(one, 2), self.constant(0, 2));
        let select = logic::select(2).ok_or_else(|| self.unbuilt())?;
        Ok(self.compute(&select, vec![one, zero, holds]))
    }

    pub(super) fn set(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let &[to, from] = words.types else {
            return Err(self.unbuilt());
        };
        let (d, a, b, c) = match at.operands.as_slice() {
            [d, a, b] => (d, a, b, None),
            [d, a, b, c] => (d, a, b, Some(c)),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        if matches!(from, Type::F16x2 | Type::Bf16x2) {
            let [low, high] = self.compare_pairs(words, from, a, b, c)?;
            let parts = [self.set_half(to, low)?, self.set_half(to, high)?];
            let dest = self.dest(d, 4)?;
            self.simple(&parts::pack32(), dest, parts.to_vec());
            return self.finish(d, dest, false);
        }
        if to.size() == 2 {
            let (holds, _) = self.comparison(words.flags, from, a, b, c, false)?;
            let value = self.set_half(to, holds)?;
            let dest = self.dest(d, 2)?;
            let copy = logic::mov(2).ok_or_else(|| self.unbuilt())?;
            self.simple(&copy, dest, vec![value]);
            return self.finish(d, dest, false);
        }
        let widen = match to {
            Type::F32 => parts::widened(true, false),
            Type::U32 | Type::S32 | Type::B32 => parts::widened(false, false),
            Type::U64 | Type::S64 | Type::B64 => parts::widened(false, true),
            _ => return Err(self.unbuilt()),
        };
        let (holds, _) = self.comparison(words.flags, from, a, b, c, false)?;
        let dest = self.dest(d, widen.widths[0])?;
        self.simple(&widen, dest, vec![holds]);
        self.finish(d, dest, false)
    }
}
