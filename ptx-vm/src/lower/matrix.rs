//! Matrices of a warp: `ldmatrix`, `stmatrix`, `mma`.
//!
//! Called by `lower::arith`, and by `lower::wmma` for the products. Must not know which lane holds which element:
//! `ops::matrix` does.

use ptx::ast::{Instruction, Operand, Space, Type};

use super::body::{Body, Lowered};
use crate::ir::Reg;
use crate::machine::OpFn;
use crate::ops::byte_matrix::{self, Form, Packing};
use crate::ops::matrix::{self, ElementKind, Product, Quads, TURNED};
use crate::ops::simple::Words;
use crate::ops::{logic, parts};
use crate::spaces::SHARED_BASE;

/// The shape of a product of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Rows of the left matrix and of the sums, in eights.
    pub(super) rows: usize,
    /// Columns of the right matrix and of the sums, in eights.
    pub(super) columns: usize,
    /// Columns of the left matrix, rows of the right one.
    pub(super) depth: usize,
}

impl Shape {
    /// The shape that a word such as `m16n8k32` names.
    pub(super) fn named(word: &str) -> Option<Self> {
        let (rows, rest) = word.strip_prefix('m')?.split_once('n')?;
        let (columns, depth) = rest.split_once('k')?;
        let number = |text: &str| text.parse::<usize>().ok().filter(|&number| number <= 256);
        let eights = |text: &str| number(text).filter(|number| number % 8 == 0);
        Some(Self {
            rows: eights(rows)? / 8,
            columns: eights(columns)? / 8,
            depth: number(depth)?,
        })
    }

    /// How many registers lead through the depth.
    pub(super) fn steps(self, kind: ElementKind) -> usize {
        self.depth / (4 * kind.in_register())
    }
}

/// Whether there are products of such matrices, with sums of the type that is named.
pub(super) fn are_multiplied(product: Product, sums: &str) -> bool {
    let Product {
        left, right, clamp, ..
    } = product;
    let alike =
        left == right || left.in_register() == right.in_register() && left.in_register() != 2;
    let sums_fit = match left {
        ElementKind::F16 | ElementKind::E4m3 | ElementKind::E5m2 => matches!(sums, "f32" | "f16"),
        ElementKind::Bf16
        | ElementKind::Tf32
        | ElementKind::E3m2
        | ElementKind::E2m3
        | ElementKind::E2m1 => sums == "f32",
        _ => sums == "s32",
    };
    alike
        && left.is_integer() == right.is_integer()
        && sums_fit
        && clamp <= (left.is_integer() && left != ElementKind::B1)
}

impl<'a> Body<'a> {
    /// `ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16`, `stmatrix` alike.
    pub(super) fn move_matrices(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        if words.types != [Type::B16] {
            return self.move_byte_matrices(at, words);
        }
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
        if !words.only(&known) || !words.has("m8n8") {
            return Err(self.unbuilt());
        }
        let count = match (words.has("x4"), words.has("x2")) {
            (true, _) => 4,
            (_, true) => 2,
            _ => 1,
        };
        let imm = count as u64 | if words.has("trans") { TURNED } else { 0 };
        let run: OpFn = if words.opcode == "stmatrix" {
            matrix::store
        } else {
            matrix::load
        };
        let shared = words.has("shared") || words.has("shared::cta");
        self.exchange_matrices(at, shared, count, (run, imm))
    }

    /// `ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8`, `ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64`,
    /// `stmatrix.sync.aligned.m16n8.x4.trans.shared.b8` and their kin.
    fn move_byte_matrices(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let ["sync", "aligned", shape, count, rest @ ..] = at.modifiers.as_slice() else {
            return Err(self.unbuilt());
        };
        let (turned, rest) = match rest {
            ["trans", rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let (shared, rest) = match rest {
            ["shared" | "shared::cta", rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let count = match *count {
            "x1" => 1,
            "x2" => 2,
            "x4" => 4,
            _ => return Err(self.unbuilt()),
        };
        let packing = Packing::named(rest).ok_or_else(|| self.unbuilt())?;
        let form = Form {
            count,
            turned,
            packing,
        };
        let plain = packing == Packing::Bytes;
        match (words.opcode, *shape, turned, count) {
            ("stmatrix", "m16n8", true, _) if plain => {
                let run: OpFn = byte_matrix::store;
                self.exchange_matrices(at, shared, count, (run, count as u64))
            }
            ("ldmatrix", "m16n16", true, 1 | 2) => {
                let run: OpFn = byte_matrix::load;
                let registers = count * form.registers();
                self.exchange_matrices(at, shared, registers, (run, form.pack()))
            }
            ("ldmatrix", "m8n16", false, _) if !plain => {
                let run: OpFn = byte_matrix::load;
                self.exchange_matrices(at, shared, count, (run, form.pack()))
            }
            _ => Err(self.unbuilt()),
        }
    }

    /// A load or a store of matrices in shared memory, of so many registers.
    fn exchange_matrices(
        &mut self,
        at: &'a Instruction<'a>,
        shared: bool,
        registers: usize,
        (run, imm): (OpFn, u64),
    ) -> Lowered {
        let stores = at.opcode == "stmatrix";
        let (address, values) = match at.operands.as_slice() {
            [address, values] if stores => (address, values),
            [values, address] if !stores => (address, values),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        let address = self.in_shared(address, shared)?;
        let values = self.elements(values, registers)?;
        if stores {
            let mut sources = vec![address];
            for value in values {
                sources.push(self.read(value, 4)?);
            }
            self.exchange(run, imm, Vec::new(), sources);
        } else {
            let mut results = Vec::new();
            for value in values {
                results.push(self.dest(value, 4)?);
            }
            self.exchange(run, imm, results, vec![address]);
        }
        Ok(())
    }

    /// `movmatrix.sync.aligned.m8n8.trans.b16`.
    pub(super) fn turn_matrix(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        if words.types != [Type::B16] || words.flags != ["sync", "aligned", "m8n8", "trans"] {
            return Err(self.unbuilt());
        }
        let [d, source] = self.operands(at)?;
        let (source, value) = (self.read(source, 4)?, self.temp(4));
        self.exchange(matrix::turn, 0, vec![value], vec![source]);
        self.write32(d, value)
    }

    /// An address in shared memory, of 64 bits.
    fn in_shared(&mut self, operand: &Operand<'a>, named: bool) -> Lowered<Reg> {
        let target = self.target(named.then_some(Space::Shared), operand)?;
        let window = if target.is_generic() { SHARED_BASE } else { 0 };
        self.whole_address(&target, window.wrapping_neg())
    }

    /// `mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32` and its kin.
    pub(super) fn multiply(&mut self, at: &'a Instruction<'a>) -> Lowered {
        if at.modifiers.contains(&"block_scale") {
            return self.multiply_scaled(at);
        }
        let mut shape = None;
        let (mut types, mut layouts) = (Vec::new(), Vec::new());
        let (mut clamp, mut bits, mut sparse) = (false, None, false);
        // In the order in which they stand: of the result, of both matrices, of the sums.
        for word in &at.modifiers {
            match *word {
                "sync" | "aligned" | "kind::f8f6f4" | "popc" => {}
                "sp" | "sp::ordered_metadata" => sparse = true,
                "row" | "col" => layouts.push(*word),
                "satfinite" => clamp = true,
                "xor" | "and" => bits = Some(*word == "xor"),
                word if word.starts_with('m') => shape = Shape::named(word),
                word => types.push(word),
            }
        }
        let (Some(shape), &[to, left, right, from]) = (shape, types.as_slice()) else {
            return Err(self.unbuilt());
        };
        if (shape.rows, shape.columns, shape.depth, left, right, sparse)
            == (1, 1, 4, "f16", "f16", false)
        {
            let are_sums = matches!((to, from), ("f32", "f32" | "f16") | ("f16", "f16"));
            let &[a, b] = layouts.as_slice() else {
                return Err(self.unbuilt());
            };
            if !are_sums || clamp || bits.is_some() {
                return Err(self.unbuilt());
            }
            let quads = Quads {
                half: 0,
                turned: [a == "col", b == "row"],
                narrow: [from == "f16", to == "f16"],
            };
            return self.products_of_quads(at, quads);
        }
        if layouts != ["row", "col"] {
            return Err(self.unbuilt());
        }
        if sparse {
            return match bits {
                None => self.multiply_sparse(at, shape, &types, clamp),
                Some(_) => Err(self.unbuilt()),
            };
        }
        if to == "f64" {
            let fits = types.iter().all(|ty| *ty == "f64")
                && shape.columns == 1
                && matches!((shape.rows, shape.depth), (1 | 2, 4) | (2, 8 | 16));
            if !fits || clamp || bits.is_some() {
                return Err(self.unbuilt());
            }
            return self.products_of_doubles(at, shape);
        }
        let kinds = (ElementKind::named(left), ElementKind::named(right));
        let (Some(left), Some(right)) = kinds else {
            return Err(self.unbuilt());
        };
        let steps = shape.steps(left);
        // Eight rows are of integers alone.
        let fits = to == from
            && shape.columns == 1
            && (shape.rows == 2 && (1..=2).contains(&steps)
                || shape.rows == 1 && left.is_integer() && steps == 1)
            && steps * 4 * left.in_register() == shape.depth;
        let product = Product {
            left,
            right,
            depth: shape.depth,
            narrow: [to == "f16"; 2],
            clamp,
            differ: bits == Some(true),
        };
        if !fits || !are_multiplied(product, to) || (left == ElementKind::B1) != bits.is_some() {
            return Err(self.unbuilt());
        }
        let [_, a, b, _] = self.operands(at)?;
        let left = self.registers(a, shape.rows * steps)?;
        let right = self.registers(b, steps)?;
        self.products(at, shape, product, (&left, &right))
    }

    /// Products of all blocks of 16 rows, or 8, and 8 columns: what lanes hold of both matrices, in the order
    /// of `mma`. The instruction's first operand and its last are the sums'.
    pub(super) fn products(
        &mut self,
        at: &'a Instruction<'a>,
        shape: Shape,
        product: Product,
        (left, right): (&[Reg], &[Reg]),
    ) -> Lowered {
        let [d, _, _, c] = self.operands(at)?;
        let (rows, steps) = (shape.rows, shape.steps(product.left));
        // Registers of the sums of 8 rows and columns, as they come and as they go.
        let [each, each_done] = product.narrow.map(|narrow| if narrow { 1 } else { 2 });
        let count = rows * shape.columns;
        let from = self.registers(c, count * each)?;
        let to = self.elements(d, count * each_done)?;
        let zero = self.constant(0, 4);
        let of = |registers: &[Reg], index: usize, is_there: bool| {
            let register = is_there.then(|| registers.get(index).copied());
            register.flatten().unwrap_or(zero)
        };
        let guard = self.guard();
        let mut done = Vec::new();
        for column in 0..shape.columns {
            for row in (0..rows).step_by(2) {
                // Of eight rows the other eight are zeroes.
                let both = row + 1 < rows;
                let mut words = Vec::new();
                for step in 0..2 {
                    // The second step's place is always read.
                    let first = step.min(steps - 1) * rows + row;
                    words.push([of(left, first, true), of(left, first + 1, both)]);
                }
                let first = column * steps;
                words.push([of(right, first, true), of(right, first + 1, steps > 1)]);
                let first = (column * rows + row) * each;
                let sums: Vec<Reg> = (0..2 * each)
                    .map(|sum| of(&from, first + sum, both || sum < each))
                    .collect();
                words.extend(sums.chunks(2).map(|pair| [pair[0], pair[1]]));
                let sources = words
                    .into_iter()
                    .map(|pair| self.compute(&parts::pack64(), pair.to_vec()))
                    .collect();
                // Sums may be the very registers that are added to: results have places of their own.
                let results: Vec<Reg> = (0..2 * each_done).map(|_| self.temp(4)).collect();
                self.set_guard(guard);
                let run = matrix::multiply;
                self.exchange(run, product.pack(), results.clone(), sources);
                let first = (column * rows + row) * each_done;
                let wanted = if both { 2 * each_done } else { each_done };
                done.extend((first..).zip(results).take(wanted));
            }
        }
        self.set_guard(guard);
        for (index, result) in done {
            self.write32(&to[index], result)?;
        }
        Ok(())
    }

    /// Four products of 8 × 4 and 4 × 8 halves, each of a quad of lanes and the quad 16 lanes further; by halves of
    /// the sums' columns.
    fn products_of_quads(&mut self, at: &'a Instruction<'a>, quads: Quads) -> Lowered {
        let [d, a, b, c] = self.operands(at)?;
        let [each, each_done] = quads.narrow.map(|narrow| if narrow { 2 } else { 4 });
        let (left, right) = (self.registers(a, 2)?, self.registers(b, 2)?);
        let from = self.registers(c, 2 * each)?;
        let to = self.elements(d, 2 * each_done)?;
        let guard = self.guard();
        let mut done = Vec::new();
        for half in 0..2 {
            let sums = from[half * each..(half + 1) * each].chunks(2);
            let sources = [left.as_slice(), &right]
                .into_iter()
                .chain(sums)
                .map(|pair| self.compute(&parts::pack64(), pair.to_vec()))
                .collect();
            let results: Vec<Reg> = (0..each_done).map(|_| self.temp(4)).collect();
            self.set_guard(guard);
            let imm = Quads { half, ..quads }.pack();
            self.exchange(matrix::multiply_quads, imm, results.clone(), sources);
            done.extend(results);
        }
        self.set_guard(guard);
        for (element, result) in to.iter().zip(done) {
            self.write32(element, result)?;
        }
        Ok(())
    }

    /// The same of doubles.
    pub(super) fn products_of_doubles(&mut self, at: &'a Instruction<'a>, shape: Shape) -> Lowered {
        let [d, a, b, c] = self.operands(at)?;
        let Shape {
            rows,
            columns,
            depth,
        } = shape;
        let steps = depth / 4;
        let mut of = |operand: &'a Operand<'a>, count: usize| -> Lowered<Vec<Reg>> {
            let elements = self.elements(operand, count)?;
            elements
                .iter()
                .map(|element| self.read(element, 8))
                .collect()
        };
        let (left, right) = (of(a, rows * steps)?, of(b, columns * steps)?);
        let mut sums = of(c, 2 * rows * columns)?;
        let guard = self.guard();
        for column in 0..columns {
            for row in 0..rows {
                let first = 2 * (column * rows + row);
                for step in 0..steps {
                    let sources = vec![
                        left[step * rows + row],
                        right[column * steps + step],
                        sums[first],
                        sums[first + 1],
                    ];
                    let results = vec![self.temp(8), self.temp(8)];
                    self.set_guard(guard);
                    self.exchange(matrix::multiply_doubles, 0, results.clone(), sources);
                    sums[first..first + 2].copy_from_slice(&results);
                }
            }
        }
        self.set_guard(guard);
        let copy = logic::mov(8).ok_or_else(|| self.unbuilt())?;
        for (element, result) in self.elements(d, sums.len())?.iter().zip(sums) {
            let dest = self.dest(element, 8)?;
            self.simple(&copy, dest, vec![result]);
        }
        Ok(())
    }

    /// The registers of 32 bits of a vector.
    pub(super) fn registers(&mut self, operand: &Operand<'a>, count: usize) -> Lowered<Vec<Reg>> {
        let elements = self.elements(operand, count)?;
        elements
            .iter()
            .map(|element| self.read(element, 4))
            .collect()
    }
}
