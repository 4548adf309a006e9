//! Products of matrices with scales, `mma` with `.block_scale`: each block of a row of the left matrix, and of a column of
//! the right one, has a factor. A block is multiplied as others are, and its sums are scaled.
//!
//! Called by `lower::matrix`. Must not know which lane has whose factor: `ops::scaled` does.

use ptx::ast::{Instruction, Operand, Type};

use super::body::{Body, Lowered};
use crate::ir::Reg;
use crate::ops::matrix::{ElementKind, Product};
use crate::ops::scaled::{self, Factors};
use crate::ops::sparse::Metadata;
use crate::ops::{logic, parts};
use crate::special_register::Special;

impl<'a> Body<'a> {
    /// `mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0` and its kin, and
    /// those of a sparse left matrix.
    pub(super) fn multiply_scaled(&mut self, at: &'a Instruction<'a>) -> Lowered {
        let (sparse, words) = match at.modifiers.as_slice() {
            ["sp::ordered_metadata", words @ ..] => (true, words),
            words => (false, words),
        };
        let [
            "sync",
            "aligned",
            shape,
            "row",
            "col",
            kind,
            "block_scale",
            rest @ ..,
        ] = words
        else {
            return Err(self.unbuilt());
        };
        let (count, rest) = match rest {
            ["scale_vec::1X", rest @ ..] => (Some(1), rest),
            ["scale_vec::2X", rest @ ..] => (Some(2), rest),
            ["scale_vec::4X", rest @ ..] => (Some(4), rest),
            rest => (None, rest),
        };
        let &["f32", left, right, "f32", factor] = rest else {
            return Err(self.unbuilt());
        };
        let unsigned = factor == "ue4m3";
        // Sparse ones are twice as deep.
        let shape = match (*shape, sparse) {
            ("m16n8k32", false) | ("m16n8k64", true) => "bytes",
            ("m16n8k64", false) | ("m16n8k128", true) => "halves of bytes",
            _ => return Err(self.unbuilt()),
        };
        let (kinds, count) = match (*kind, shape, count, factor) {
            ("kind::mxf8f6f4", "bytes", None | Some(1), "ue8m0") => {
                ((ElementKind::named(left), ElementKind::named(right)), 1)
            }
            ("kind::mxf4" | "kind::mxf4nvf4", "halves of bytes", Some(2), "ue8m0")
            | ("kind::mxf4nvf4", "halves of bytes", Some(4), "ue4m3")
                if (left, right) == ("e2m1", "e2m1") =>
            {
                let four_bits = Some(ElementKind::E2m1);
                ((four_bits, four_bits), count.unwrap_or(2))
            }
            _ => return Err(self.unbuilt()),
        };
        let (Some(left), Some(right)) = kinds else {
            return Err(self.unbuilt());
        };
        let is_small =
            |kind: ElementKind| !kind.is_integer() && matches!(kind.in_register(), 4 | 8);
        if !is_small(left) || !is_small(right) {
            return Err(self.unbuilt());
        }
        let pieces = if sparse { 2 } else { 1 };
        let (operands, metadata) = match at.operands.as_slice() {
            [d, a, b, c, e, Operand::Integer(selector), factors @ ..] if sparse => {
                let metadata = Metadata::checked(left, pieces, *selector);
                let metadata = metadata.ok_or_else(|| self.fail("no such sparsity selector"))?;
                ([d, a, b, c], Some((metadata, e, factors)))
            }
            [d, a, b, c, ..] if !sparse => ([d, a, b, c], None),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        let [d, a, b, c] = operands;
        let factors = metadata.map_or(&at.operands[4..], |(_, _, factors)| factors);
        let [factor_a, at_a, factor_b, at_b] = factors else {
            return Err(self.fail("a wrong number of operands"));
        };
        let places = [
            self.selector(at_a, 2, count)?,
            self.selector(at_b, 4, count)?,
        ];
        let lefts = self.registers(a, 4)?;
        let rights = self.registers(b, 2 * pieces)?;
        let mut sums = self.registers(c, 4)?;
        let factors = [self.read(factor_a, 4)?, self.read(factor_b, 4)?];
        let metadata = match metadata {
            Some((metadata, words, _)) => Some((metadata, self.read(words, 4)?)),
            None => None,
        };
        let after = self.enter_guarded();
        // Of each piece of the depth four registers of the left matrix, and two of the right one.
        let lefts: Vec<Vec<Reg>> = match metadata {
            None => vec![lefts],
            Some((metadata, words)) => (0..pieces)
                .map(|piece| {
                    let stored = [lefts[2 * piece], lefts[2 * piece + 1]];
                    self.expanded(metadata, piece, stored, words)
                })
                .collect(),
        };
        let rights: Vec<Vec<Reg>> = rights.chunks(2).map(<[Reg]>::to_vec).collect();
        let factors = self.compute(&parts::pack64(), factors.to_vec());
        let product = Product {
            left,
            right,
            depth: 8 * left.in_register(),
            narrow: [false; 2],
            clamp: false,
            differ: false,
        };
        let zero = self.constant(0, 4);
        for block in 0..count {
            // A block is a part of a piece, or all pieces.
            let partial = if count < pieces {
                self.piecewise(product, &lefts, &rights, &[zero; 4])
            } else {
                let each = count / pieces;
                let piece = block / each;
                let left = self.of_block(&lefts[piece], block % each, each)?;
                let right = std::slice::from_ref(&rights[piece]);
                self.piecewise(product, &[left], right, &[zero; 4])
            };
            let results: Vec<Reg> = (0..4).map(|_| self.temp(4)).collect();
            let mut sources: Vec<Reg> = partial
                .chunks(2)
                .chain(sums.chunks(2))
                .map(|pair| self.compute(&parts::pack64(), pair.to_vec()))
                .collect();
            sources.push(factors);
            let imm = Factors {
                lanes: places.map(|(lane, _)| lane),
                bytes: places.map(|(_, byte)| byte + block),
                unsigned,
            };
            self.exchange(scaled::add, imm.pack(), results.clone(), sources);
            sums = results;
        }
        for (element, sum) in self.elements(d, 4)?.iter().zip(sums) {
            self.write32(element, sum)?;
        }
        self.leave_guarded(after);
        Ok(())
    }

    /// Which lane of a quad has a factor, and its first byte: a vector of the byte's number and the lane's.
    fn selector(
        &self,
        operand: &Operand<'_>,
        lanes: usize,
        count: usize,
    ) -> Lowered<(usize, usize)> {
        let Operand::Vector(numbers) = operand else {
            return Err(self.fail("a selector that is no vector"));
        };
        let &[Operand::Integer(byte), Operand::Integer(lane)] = numbers.as_slice() else {
            return Err(self.fail("a selector that is no vector of two numbers"));
        };
        let fits = |number: i64, most: usize, step: usize| {
            usize::try_from(number)
                .ok()
                .filter(|&number| number < most && number.is_multiple_of(step))
        };
        let byte = fits(byte, 4, count);
        let lane = fits(lane, lanes, 1);
        // Of the left matrix a pair of lanes has those of two rows.
        match lane.zip(byte) {
            Some((lane, byte)) => Ok((lane * (4 / lanes), byte)),
            None => Err(self.fail("a selector that is out of range")),
        }
    }

    /// What belongs to a block of a piece of the depth, of `count` blocks, of registers of the left matrix; zeroes otherwise.
    fn of_block(&mut self, lefts: &[Reg], block: usize, count: usize) -> Lowered<Vec<Reg>> {
        let zero = self.constant(0, 4);
        let mut kept = lefts.to_vec();
        if count == 1 {
            return Ok(kept);
        }
        // Two registers for each half of the depth, of which a pair of a quad's lanes has each half.
        let half = block * 2 / count;
        for (index, register) in kept.iter_mut().enumerate() {
            if index / 2 != half {
                *register = zero;
            }
        }
        if count == 4 {
            let lane = self.special_of(Special::LaneId);
            let two = self.constant(2, 4);
            let upper = self.apply32("and", Type::B32, vec![lane, two])?;
            let wanted = self.constant(if block.is_multiple_of(2) { 0 } else { 2 }, 4);
            let is_there = self.plain_compare("eq", Type::U32, upper, wanted)?;
            let select = logic::select(4).ok_or_else(|| self.unbuilt())?;
            for register in &mut kept[2 * half..2 * half + 2] {
                *register = self.compute(&select, vec![*register, zero, is_there]);
            }
        }
        Ok(kept)
    }
}
