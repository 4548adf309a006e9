//! Matrices of a warp: `ldmatrix`, `stmatrix`, `mma`.

use ptx::ast::{Instruction, Operand, Space, Type};

use super::body::{Body, Lowered};
use crate::exec::ir::Reg;
use crate::exec::ops::matrix::{self, Product, TURNED};
use crate::exec::ops::table::{Words, parts};
use crate::exec::spaces::SHARED_BASE;

impl<'a> Body<'a> {
    /// `ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16`, `stmatrix` alike.
    pub(super) fn move_matrices(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let known = [
            "sync",
            "aligned",
            "m8n8",
            "x1",
            "x2",
            "x4",
            "trans",
            "shared",
            "shared::cta",
        ];
        if words.types != [Type::B16] || !words.only(&known) || !words.has("m8n8") {
            return Err(self.unbuilt());
        }
        let count = match (words.has("x4"), words.has("x2")) {
            (true, _) => 4,
            (_, true) => 2,
            _ => 1,
        };
        let imm = count as u64 | if words.has("trans") { TURNED } else { 0 };
        let stores = words.opcode == "stmatrix";
        let (address, values) = match at.operands.as_slice() {
            [address, values] if stores => (address, values),
            [values, address] if !stores => (address, values),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        let shared = words.has("shared") || words.has("shared::cta");
        let address = self.in_shared(address, shared)?;
        let values = self.elements(values, count)?;
        if stores {
            let mut sources = vec![address];
            for value in values {
                sources.push(self.read(value, 4)?);
            }
            self.exchange(matrix::store, imm, Vec::new(), sources);
        } else {
            let mut results = Vec::new();
            for value in values {
                results.push(self.dest(value, 4)?);
            }
            self.exchange(matrix::load, imm, results, vec![address]);
        }
        Ok(())
    }

    /// An address in shared memory, of 64 bits.
    fn in_shared(&mut self, operand: &Operand<'a>, named: bool) -> Lowered<Reg> {
        let target = self.target(named.then_some(Space::Shared), operand)?;
        let window = if target.is_generic() { SHARED_BASE } else { 0 };
        self.whole_address(&target, window.wrapping_neg())
    }

    /// `mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32` and its kin.
    pub(super) fn multiply(&mut self, at: &'a Instruction<'a>) -> Lowered {
        let [d, a, b, c] = self.operands(at)?;
        let mut depth = None;
        let mut types = Vec::new();
        let mut clamp = false;
        // In the order in which they stand: of the result, of both matrices, of the sums.
        for word in &at.modifiers {
            match *word {
                "sync" | "aligned" | "row" | "col" | "kind::f8f6f4" => {}
                "satfinite" => clamp = true,
                "m16n8k4" => depth = Some(4),
                "m16n8k8" => depth = Some(8),
                "m16n8k16" => depth = Some(16),
                "m16n8k32" => depth = Some(32),
                word => types.push(word),
            }
        }
        let (Some(depth), &[to, left, right, from]) = (depth, types.as_slice()) else {
            return Err(self.unbuilt());
        };
        let kinds = (matrix::Kind::named(left), matrix::Kind::named(right));
        let (Some(left), Some(right)) = kinds else {
            return Err(self.unbuilt());
        };
        let is_integer = left.is_integer();
        // Steps of 16 bytes of a row: one or two.
        let steps = depth / (4 * left.in_register());
        let fits = to == from
            && left.in_register() == right.in_register()
            && is_integer == right.is_integer()
            && matches!((is_integer, to), (true, "s32") | (false, "f32" | "f16"))
            && (left == right || left.in_register() == 4)
            && (1..=2).contains(&steps)
            && clamp <= is_integer;
        if !fits {
            return Err(self.unbuilt());
        }
        let narrow = to == "f16";
        let product = Product {
            left,
            right,
            depth,
            narrow,
            clamp,
        };
        let sums = if narrow { 2 } else { 4 };
        let mut sources = self.pairs(a, 2 * steps)?;
        if steps == 1 {
            // The second step's place.
            sources.push(sources[0]);
        }
        sources.extend(self.pairs(b, steps)?);
        sources.extend(self.pairs(c, sums)?);
        // Sums may be the very registers that are added to: results have places of their own.
        let results: Vec<Reg> = (0..sums).map(|_| self.temp(4)).collect();
        let guard = self.guard();
        self.exchange(matrix::multiply, product.pack(), results.clone(), sources);
        self.set_guard(guard);
        for (element, result) in self.elements(d, sums)?.iter().zip(results) {
            self.write32(element, result)?;
        }
        Ok(())
    }

    /// Registers of 32 bits, two each in 64 bits; the last one's upper half is 0 where they are odd.
    fn pairs(&mut self, operand: &Operand<'a>, count: usize) -> Lowered<Vec<Reg>> {
        let elements = self.elements(operand, count)?;
        self.in_pairs(elements)
    }

    /// See [`Body::pairs`].
    pub(super) fn in_pairs(&mut self, elements: &[Operand<'a>]) -> Lowered<Vec<Reg>> {
        let mut values = Vec::new();
        for element in elements {
            values.push(self.read(element, 4)?);
        }
        if !values.len().is_multiple_of(2) {
            values.push(self.constant(0, 4));
        }
        let pairs = values.chunks(2);
        Ok(pairs
            .map(|pair| self.compute(&parts::pack64(), pair.to_vec()))
            .collect())
    }
}
