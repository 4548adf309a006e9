//! Products of sparse matrices, `mma.sp`: the left matrix has half of its elements, and metadata says where they stand.
//! It is spread out, and multiplied as others are.
//!
//! Called by `lower::matrix` and `lower::warpgroup`. Must not know which lane has whose metadata: `ops::sparse` does.

use ptx::ast::{Instruction, Operand};

use super::body::{Body, Lowered};
use super::matrix::{Shape, are_multiplied};
use crate::ir::Reg;
use crate::ops::matrix::{self, ElementKind, Product};
use crate::ops::parts;
pub(super) use crate::ops::sparse::Metadata;

impl<'a> Body<'a> {
    /// `mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32` and its kin; `types` are those of the result, of both
    /// matrices and of the sums.
    pub(super) fn multiply_sparse(
        &mut self,
        at: &'a Instruction<'a>,
        shape: Shape,
        types: &[&str],
        clamp: bool,
    ) -> Lowered {
        let &[to, left, right, from] = types else {
            return Err(self.unbuilt());
        };
        let kinds = (ElementKind::named(left), ElementKind::named(right));
        let (Some(left), Some(right)) = kinds else {
            return Err(self.unbuilt());
        };
        // A piece is two steps of the depth, of which one is stored.
        let depth = 8 * left.in_register();
        let pieces = shape.depth / depth;
        let product = Product {
            left,
            right,
            depth,
            narrow: [to == "f16"; 2],
            clamp,
            differ: false,
        };
        let fits = to == from
            && (shape.rows, shape.columns) == (2, 1)
            && pieces * depth == shape.depth
            && left != ElementKind::B1
            // Of floats of 8 bits there is one shape.
            && match left {
                ElementKind::E4m3 | ElementKind::E5m2 => pieces == 2,
                _ => (1..=2).contains(&pieces),
            };
        if !fits || !are_multiplied(product, to) {
            return Err(self.unbuilt());
        }
        let [d, a, b, c, e, Operand::Integer(selector)] = self.operands(at)? else {
            return Err(self.fail("a sparsity selector that is no number"));
        };
        let metadata = Metadata::checked(left, pieces, *selector);
        let metadata = metadata.ok_or_else(|| self.fail("no such sparsity selector"))?;
        let stored = self.registers(a, 2 * pieces)?;
        let right = self.registers(b, 2 * pieces)?;
        let sums = self.registers(c, if product.narrow[0] { 2 } else { 4 })?;
        let words = self.read(e, 4)?;
        let after = self.enter_guarded();
        let lefts: Vec<Vec<Reg>> = (0..pieces)
            .map(|piece| {
                let stored = [stored[2 * piece], stored[2 * piece + 1]];
                self.expanded(metadata, piece, stored, words)
            })
            .collect();
        let rights: Vec<Vec<Reg>> = right.chunks(2).map(<[Reg]>::to_vec).collect();
        let done = self.piecewise(product, &lefts, &rights, &sums);
        for (element, result) in self.elements(d, done.len())?.iter().zip(done) {
            self.write32(element, result)?;
        }
        self.leave_guarded(after);
        Ok(())
    }

    /// The four registers of a piece of the left matrix of which two are stored.
    pub(super) fn expanded(
        &mut self,
        metadata: Metadata,
        piece: usize,
        stored: [Reg; 2],
        words: Reg,
    ) -> Vec<Reg> {
        let stored = self.compute(&parts::pack64(), stored.to_vec());
        let registers: Vec<Reg> = (0..4).map(|_| self.temp(4)).collect();
        let run = crate::ops::sparse::expand;
        let imm = metadata.pack(piece);
        self.exchange(run, imm, registers.clone(), vec![stored, words]);
        registers
    }

    /// The sums of 16 rows and 8 columns after all pieces of the depth, of each of which there are four registers of the
    /// left matrix and two of the right one.
    pub(super) fn piecewise(
        &mut self,
        product: Product,
        lefts: &[Vec<Reg>],
        rights: &[Vec<Reg>],
        sums: &[Reg],
    ) -> Vec<Reg> {
        let mut sums = sums.to_vec();
        let last = lefts.len() - 1;
        for (piece, (left, right)) in lefts.iter().zip(rights).enumerate() {
            let [comes, goes] = product.narrow;
            // Between the pieces sums are not rounded to halves.
            let narrow = [comes && piece == 0, goes && piece == last];
            let sources = left
                .chunks(2)
                .chain([right.as_slice()])
                .chain(sums.chunks(2))
                .map(|pair| self.compute(&parts::pack64(), pair.to_vec()))
                .collect();
            let count = if narrow[1] { 2 } else { 4 };
            let results: Vec<Reg> = (0..count).map(|_| self.temp(4)).collect();
            let imm = Product { narrow, ..product }.pack();
            self.exchange(matrix::multiply, imm, results.clone(), sources);
            sums = results;
        }
        sums
    }
}
