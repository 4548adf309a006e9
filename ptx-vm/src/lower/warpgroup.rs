//! `wgmma`: products of matrices of four warps, whose operands lie in shared memory. Each warp makes its 16 rows when it
//! comes to the instruction; to wait for a product is to wait for all four warps.
//!
//! Called by `lower::arith`. Must not know how a matrix lies in shared memory: `ops::warpgroup` does.

use ptx::ast::{Instruction, Operand, Type};

use super::body::{Body, Lowered};
use super::matrix::{Shape, are_multiplied};
use super::sparse::Metadata;
use crate::ir::Reg;
use crate::ops::logic;
use crate::ops::matrix::{ElementKind, Product};
use crate::ops::warpgroup::{self, TURNED};

/// Bytes of the depth of one product.
const DEPTH_BYTES: usize = 32;

/// What an instruction's last operands say.
struct Modes {
    /// The left matrix or the right one is to be negated.
    negated: bool,
    turned: [bool; 2],
}

impl<'a> Body<'a> {
    pub(super) fn warpgroup(&mut self, at: &'a Instruction<'a>) -> Lowered {
        match at.modifiers.as_slice() {
            ["fence" | "commit_group", "sync", "aligned"] => {
                let [] = self.operands(at)?;
                self.fence();
                Ok(())
            }
            ["wait_group", "sync", "aligned"] => {
                let [Operand::Integer(0..)] = self.operands(at)? else {
                    return Err(self.unbuilt());
                };
                self.exchange(warpgroup::meet, 0, Vec::new(), Vec::new());
                self.fence();
                Ok(())
            }
            ["mma_async", words @ ..] => self.warpgroup_product(at, words),
            _ => Err(self.unbuilt()),
        }
    }

    fn warpgroup_product(&mut self, at: &'a Instruction<'a>, words: &[&str]) -> Lowered {
        let (sparse, words) = match words {
            ["sp", words @ ..] => (true, words),
            words => (false, words),
        };
        let ["sync", "aligned", shape, words @ ..] = words else {
            return Err(self.unbuilt());
        };
        let (clamp, words) = match words {
            ["satfinite", words @ ..] => (true, words),
            words => (false, words),
        };
        let (sums, left, right) = match words {
            [sums, "b1", "b1", "and", "popc"] => (*sums, "b1", "b1"),
            [sums, left, right] if *left != "b1" => (*sums, *left, *right),
            _ => return Err(self.unbuilt()),
        };
        let shape = Shape::named(shape).ok_or_else(|| self.unbuilt())?;
        let kinds = (ElementKind::named(left), ElementKind::named(right));
        let (Some(left), Some(right)) = kinds else {
            return Err(self.unbuilt());
        };
        let pieces = if sparse { 2 } else { 1 };
        let product = Product {
            left,
            right,
            depth: shape.depth / pieces,
            narrow: [sums == "f16"; 2],
            clamp,
            differ: false,
        };
        let fits = shape.rows == 8
            && (1..=32).contains(&shape.columns)
            && product.depth == 8 * left.in_register()
            && product.depth * pieces == shape.depth
            && !matches!(left, ElementKind::S4 | ElementKind::U4)
            && !(sparse && left == ElementKind::B1);
        if !fits || !are_multiplied(product, sums) {
            return Err(self.unbuilt());
        }
        let [d, a, b, rest @ ..] = at.operands.as_slice() else {
            return Err(self.fail("a wrong number of operands"));
        };
        let (metadata, rest) = match rest {
            [words, Operand::Integer(selector), rest @ ..] if sparse => {
                let metadata = Metadata::checked(left, 2, *selector);
                let metadata = metadata.ok_or_else(|| self.fail("no such sparsity selector"))?;
                (Some((metadata, self.read(words, 4)?)), rest)
            }
            rest if !sparse => (None, rest),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        let [scale, rest @ ..] = rest else {
            return Err(self.fail("a wrong number of operands"));
        };
        let modes = self.modes(left, matches!(a, Operand::Vector(_)), rest)?;
        let scale = self.read(scale, 1)?;
        let after = self.enter_guarded();
        let mut lefts = match a {
            Operand::Vector(_) => self.registers(a, 4)?,
            a => {
                let descriptor = self.read(a, 8)?;
                let imm = if modes.turned[0] { TURNED } else { 0 };
                let registers: Vec<Reg> = (0..4).map(|_| self.temp(4)).collect();
                let run = warpgroup::load_left;
                self.exchange(run, imm, registers.clone(), vec![descriptor]);
                registers
            }
        };
        if modes.negated {
            for register in &mut lefts {
                *register = self.negated(*register, left)?;
            }
        }
        // By pieces of the depth: four registers of the left matrix for each.
        let lefts = match metadata {
            None => vec![lefts],
            Some((metadata, words)) => (0..2)
                .map(|piece| {
                    let stored = [lefts[2 * piece], lefts[2 * piece + 1]];
                    self.expanded(metadata, piece, stored, words)
                })
                .collect(),
        };
        let descriptor = self.read(b, 8)?;
        let each = if product.narrow[0] { 2 } else { 4 };
        let before = self.registers(d, each * shape.columns)?;
        let zero = self.constant(0, 4);
        let select = logic::select(4).ok_or_else(|| self.unbuilt())?;
        let before: Vec<Reg> = before
            .into_iter()
            .map(|sum| self.compute(&select, vec![sum, zero, scale]))
            .collect();
        let mut done = Vec::new();
        for (column, sums) in before.chunks(each).enumerate() {
            let mut rights = Vec::new();
            for piece in 0..pieces {
                let registers = vec![self.temp(4), self.temp(4)];
                let start = (piece * DEPTH_BYTES) as u64;
                let mut imm = (8 * column as u64) | (start << 16);
                imm |= if modes.turned[1] { TURNED } else { 0 };
                let run = warpgroup::load_right;
                self.exchange(run, imm, registers.clone(), vec![descriptor]);
                rights.push(registers);
            }
            done.extend(self.piecewise(product, &lefts, &rights, sums));
        }
        for (element, result) in self.elements(d, each * shape.columns)?.iter().zip(done) {
            self.write32(element, result)?;
        }
        self.leave_guarded(after);
        Ok(())
    }

    /// What the operands after `scale-d` say: of floats, whether a matrix is negated, and of those of 16 bits also how
    /// it lies in shared memory.
    fn modes(
        &self,
        kind: ElementKind,
        in_registers: bool,
        operands: &[Operand<'_>],
    ) -> Lowered<Modes> {
        let mut numbers = Vec::new();
        for operand in operands {
            let Operand::Integer(number) = operand else {
                return Err(self.fail("an operand that is no number"));
            };
            numbers.push(*number);
        }
        let is_half = matches!(kind, ElementKind::F16 | ElementKind::Bf16);
        let (signs, turned) = match numbers.as_slice() {
            [] if kind.is_integer() => ([1, 1], [0, 0]),
            &[a, b] if !kind.is_integer() && !is_half => ([a, b], [0, 0]),
            &[a, b, turned] if is_half && in_registers => ([a, b], [0, turned]),
            &[a, b, left, right] if is_half && !in_registers => ([a, b], [left, right]),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        let known = |number: i64, values: [i64; 2]| values.contains(&number);
        if !signs.iter().all(|&sign| known(sign, [1, -1]))
            || !turned.iter().all(|&number| known(number, [0, 1]))
        {
            return Err(self.fail("a number that is out of range"));
        }
        Ok(Modes {
            negated: signs[0] != signs[1],
            turned: turned.map(|number| number == 1),
        })
    }

    /// A register of floats with all signs changed.
    fn negated(&mut self, register: Reg, kind: ElementKind) -> Lowered<Reg> {
        let signs = match kind.in_register() {
            1 => 0x8000_0000,
            2 => 0x8000_8000,
            _ => 0x8080_8080,
        };
        let signs = self.constant(signs, 4);
        self.apply32("xor", Type::B32, vec![register, signs])
    }
}
