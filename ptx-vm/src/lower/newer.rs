//! Forms of arithmetic that came with sm_100: pairs of `f32`, sums of an `f32` and a 16-bit float, and
//! minimum and maximum of three. All of them are what older instructions do in several steps.
//!
//! Called by `lower::arith`. Adds no operation of its own, so that `ops` need not know that sm_100 has one
//! instruction for them.

use ptx::ast::{Instruction, Operand, Type};

use super::body::{Body, Lowered};
use crate::ir::Reg;
use crate::ops::convert;
use crate::ops::simple::{Simple, Words};
use crate::ops::{cold, half, logic, parts, table};

impl<'a> Body<'a> {
    /// The operation of `words` on one type, on registers.
    pub(super) fn apply(&mut self, words: &Words<'_>, sources: Vec<Reg>) -> Lowered<Reg> {
        let simple = table::find(words).ok_or_else(|| self.unbuilt())?;
        Ok(self.compute(&simple, sources))
    }

    /// An operation without modifiers on 32-bit numbers.
    pub(super) fn apply32(&mut self, opcode: &str, ty: Type, sources: Vec<Reg>) -> Lowered<Reg> {
        let words = Words {
            opcode,
            flags: &[],
            types: &[ty],
        };
        self.apply(&words, sources)
    }

    /// `add.f32x2` and its kin: each half by itself.
    pub(super) fn float_pairs(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let count = match words.opcode {
            "add" | "sub" | "mul" => 2,
            "fma" => 3,
            _ => return Err(self.unbuilt()),
        };
        let flags: Vec<&str> = words
            .flags
            .iter()
            .copied()
            .filter(|word| *word != "f32x2")
            .collect();
        if !flags
            .iter()
            .all(|flag| ["rn", "rz", "rm", "rp", "ftz"].contains(flag))
        {
            return Err(self.unbuilt());
        }
        let Some((d, sources)) = at
            .operands
            .split_first()
            .filter(|(_, rest)| rest.len() == count)
        else {
            return Err(self.fail("a wrong number of operands"));
        };
        let mut halves = [Vec::new(), Vec::new()];
        for source in sources {
            let (low, high) = match source {
                Operand::Vector(elements) => match elements.as_slice() {
                    [low, high] => (self.read(low, 4)?, self.read(high, 4)?),
                    _ => return Err(self.fail("a vector of a wrong length")),
                },
                source => {
                    let whole = self.read(source, 8)?;
                    let parts = self.halves(whole, 8)?;
                    (parts[0], parts[1])
                }
            };
            halves[0].push(low);
            halves[1].push(high);
        }
        let words = Words {
            opcode: words.opcode,
            flags: &flags,
            types: &[Type::F32],
        };
        let [low, high] = halves;
        let low = self.float32(&words, low)?;
        let high = self.float32(&words, high)?;
        match d {
            Operand::Vector(elements) => {
                let [a, b] = elements.as_slice() else {
                    return Err(self.fail("a vector of a wrong length"));
                };
                for (element, value) in [(a, low), (b, high)] {
                    let dest = self.dest(element, 4)?;
                    let copy = logic::mov(4).ok_or_else(|| self.unbuilt())?;
                    self.simple(&copy, dest, vec![value]);
                }
            }
            d => {
                let dest = self.dest(d, 8)?;
                self.simple(&parts::pack64(), dest, vec![low, high]);
            }
        }
        Ok(())
    }

    /// An operation on `f32`, with flushing and clamping as its words say.
    fn float32(&mut self, words: &Words<'_>, mut sources: Vec<Reg>) -> Lowered<Reg> {
        // Directed roundings do not flush by themselves.
        let flush = words.has("ftz") && cold::Rounding::of(words).is_some();
        if flush {
            for source in &mut sources {
                *source = self.compute(&parts::flushed(), vec![*source]);
            }
        }
        let mut value = self.apply(words, sources)?;
        if flush {
            value = self.compute(&parts::flushed(), vec![value]);
        }
        if words.has("sat") {
            value = self.compute(&parts::saturated(false), vec![value]);
        }
        Ok(value)
    }

    /// `add.f32.f16`, `sub.f32.bf16`, `fma.f32.f16`: the operands before the last are 16-bit floats, which
    /// an `f32` holds exactly.
    pub(super) fn mixed_floats(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let &[Type::F32, narrow] = words.types else {
            return Err(self.unbuilt());
        };
        if !words.only(&["rn", "rz", "rm", "rp", "sat"]) {
            return Err(self.unbuilt());
        }
        let (count, Some((d, sources))) = (
            if words.opcode == "fma" { 3 } else { 2 },
            at.operands.split_first(),
        ) else {
            return Err(self.fail("a wrong number of operands"));
        };
        let Some((last, narrows)) = sources.split_last().filter(|_| sources.len() == count) else {
            return Err(self.fail("a wrong number of operands"));
        };
        let widen = Words {
            opcode: "cvt",
            flags: &[],
            types: &[Type::F32, narrow],
        };
        let chain = convert::find(&widen).ok_or_else(|| self.unbuilt())?;
        let mut values = Vec::new();
        for source in narrows {
            let mut value = self.read_typed(source, 2, true, &[narrow])?;
            for step in &chain {
                value = self.compute(step, vec![value]);
            }
            values.push(value);
        }
        values.push(self.read(last, 4)?);
        let words = Words {
            types: &[Type::F32],
            ..*words
        };
        let value = self.float32(&words, values)?;
        self.write32(d, value)
    }

    /// `fma.oob`: that of 16-bit floats, but 0 where a factor is beyond a tensor.
    pub(super) fn fma_oob(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let &[ty @ (Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2)] = words.types else {
            return Err(self.unbuilt());
        };
        if !words.only(&["rn", "oob", "relu"]) {
            return Err(self.unbuilt());
        }
        let [d, sources @ ..] = self.operands::<4>(at)?;
        let width = ty.size() as u8;
        let mut values = Vec::new();
        for source in sources {
            values.push(self.read_typed(source, width, true, &[ty])?);
        }
        let (a, b) = (values[0], values[1]);
        let value = self.apply(words, values)?;
        let dest = self.dest(d, width)?;
        self.simple(&half::without_oob(ty), dest, vec![value, a, b]);
        self.finish(d, dest, false)
    }

    /// `min` and `max` of three: the first two, then the third.
    pub(super) fn of_three(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let [d, sources @ ..] = self.operands::<4>(at)?;
        if words.types != [Type::F32] || !words.only(&["ftz", "NaN", "abs"]) {
            return Err(self.unbuilt());
        }
        let mut values = Vec::new();
        for source in sources {
            let mut value = self.read(source, 4)?;
            if words.has("ftz") {
                value = self.compute(&parts::flushed(), vec![value]);
            }
            if words.has("abs") {
                value = self.apply32("abs", Type::F32, vec![value])?;
            }
            values.push(value);
        }
        let flags: &[&str] = if words.has("NaN") { &["NaN"] } else { &[] };
        let words = Words { flags, ..*words };
        let first = self.apply(&words, vec![values[0], values[1]])?;
        let value = self.apply(&words, vec![first, values[2]])?;
        self.write32(d, value)
    }

    /// Writes a 32-bit value to what an operand names.
    pub(super) fn write32(&mut self, d: &Operand<'a>, value: Reg) -> Lowered {
        let dest = self.dest(d, 4)?;
        let copy: Simple = logic::mov(4).ok_or_else(|| self.unbuilt())?;
        self.simple(&copy, dest, vec![value]);
        self.finish(d, dest, false)
    }
}
