//! `wmma`: matrices that a warp loads, multiplies and stores. How they are spread over the lanes is the device's own
//! affair; here they are as `mma` has them, in blocks of 8 rows and 8 columns.
//!
//! Called by `lower::arith`. Must not know how products are made: those are `lower::matrix`'s.

use ptx::ast::{Instruction, Operand, Space, Type};

use super::body::{Body, Lowered};
use super::matrix::{Shape, are_multiplied};
use super::memory::Target;
use crate::ir::{InstKind, Reg, Traits};
use crate::ops::matrix::{self, Product};
use crate::ops::memory;
use crate::ops::simple::Words;
use crate::ops::{logic, parts};
use crate::special_register::Special;

/// Registers of a fragment of halves, whatever its shape: compilers count with fragments of the first tensor cores,
/// which hold elements twice. Here the first ones are the matrix.
const OF_HALVES: usize = 8;

/// What a fragment is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatrixOperand {
    Left,
    Right,
    Sums,
}

/// A type of elements.
#[derive(Clone, Copy, Debug)]
struct Element {
    /// Bytes of what is moved at once.
    bytes: u8,
    /// Elements of that.
    moved: u64,
    /// How many are in a register.
    each: u64,
}

impl Element {
    fn named(word: &str) -> Option<Self> {
        let (bytes, moved, each) = match word {
            "f64" => (8, 1, 1),
            "tf32" | "f32" | "s32" => (4, 1, 1),
            "f16" | "bf16" => (2, 1, 2),
            "s8" | "u8" => (1, 1, 4),
            // Less than a byte: a whole register at once.
            "s4" | "u4" => (4, 8, 8),
            "b1" => (4, 32, 32),
            _ => return None,
        };
        Some(Self { bytes, moved, each })
    }
}

/// Whether there are fragments of matrices of such elements, of such a shape.
fn are_fragments(shape: &str, element: &str) -> bool {
    match shape {
        "m16n16k16" | "m32n8k16" | "m8n32k16" => matches!(element, "f16" | "bf16" | "s8" | "u8"),
        "m16n16k8" => element == "tf32",
        "m8n8k4" => element == "f64",
        "m8n8k32" => matches!(element, "s4" | "u4"),
        "m8n8k128" => element == "b1",
        _ => false,
    }
}

/// Whether there are fragments of sums of such elements, of such a shape.
fn are_sums(shape: &str, element: &str) -> bool {
    match shape {
        "m16n16k16" | "m32n8k16" | "m8n32k16" => matches!(element, "f16" | "f32" | "s32"),
        "m16n16k8" => element == "f32",
        "m8n8k4" => element == "f64",
        "m8n8k32" | "m8n8k128" => element == "s32",
        _ => false,
    }
}

/// Where the first element of a register lies, for the lane 0: its row and column. Lanes of group `g` have
/// `g` more rows (columns of the right matrix), number `t` of a group `t` times as many columns (rows) more
/// as a register of it holds.
fn start(role: MatrixOperand, each: u64, shape: Shape, register: u64) -> (u64, u64) {
    let rows = shape.rows as u64;
    // How many registers of a lane lead through the depth of a block of the right matrix.
    let steps = shape.depth as u64 / (4 * each);
    match role {
        MatrixOperand::Left => (8 * (register % rows), 4 * each * (register / rows)),
        MatrixOperand::Right => (4 * each * (register % steps), 8 * (register / steps)),
        // Of single sums two registers stand beside each other.
        MatrixOperand::Sums if each == 1 => (
            8 * (register / 2 % rows),
            register % 2 + 8 * (register / 2 / rows),
        ),
        MatrixOperand::Sums => (8 * (register % rows), 8 * (register / rows)),
    }
}

impl<'a> Body<'a> {
    pub(super) fn wmma(&mut self, at: &'a Instruction<'a>) -> Lowered {
        match at.modifiers.as_slice() {
            [
                "load",
                role @ ("a" | "b" | "c"),
                "sync",
                "aligned",
                layout,
                shape,
                rest @ ..,
            ] => {
                let role = match *role {
                    "a" => MatrixOperand::Left,
                    "b" => MatrixOperand::Right,
                    _ => MatrixOperand::Sums,
                };
                let [values, address, stride @ ..] = at.operands.as_slice() else {
                    return Err(self.fail("a wrong number of operands"));
                };
                self.fragment(
                    role,
                    (layout, shape),
                    rest,
                    (values, address, stride),
                    false,
                )
            }
            ["store", "d", "sync", "aligned", layout, shape, rest @ ..] => {
                let [address, values, stride @ ..] = at.operands.as_slice() else {
                    return Err(self.fail("a wrong number of operands"));
                };
                self.fragment(
                    MatrixOperand::Sums,
                    (layout, shape),
                    rest,
                    (values, address, stride),
                    true,
                )
            }
            [
                "mma",
                "sync",
                "aligned",
                "row" | "col",
                "row" | "col",
                shape,
                types @ ..,
            ] => self.multiply_fragments(at, shape, (types, None)),
            [
                "mma",
                bits @ ("xor" | "and"),
                "popc",
                "sync",
                "aligned",
                "row",
                "col",
                shape,
                types @ ..,
            ] => self.multiply_fragments(at, shape, (types, Some(*bits == "xor"))),
            _ => Err(self.unbuilt()),
        }
    }

    /// A load or store of a fragment: each lane moves its elements one by one.
    fn fragment(
        &mut self,
        role: MatrixOperand,
        (layout, shape): (&str, &str),
        rest: &[&'a str],
        (values, address, stride): (&Operand<'a>, &Operand<'a>, &[Operand<'a>]),
        stores: bool,
    ) -> Lowered {
        let (space, element) = match rest {
            [element] => (None, element),
            ["global", element] => (Some(Space::Global), element),
            ["shared" | "shared::cta", element] => (Some(Space::Shared), element),
            _ => return Err(self.unbuilt()),
        };
        let kind = Element::named(element).ok_or_else(|| self.unbuilt())?;
        let is_known = match role {
            MatrixOperand::Sums => are_sums(shape, element),
            _ => are_fragments(shape, element),
        };
        let turned = match layout {
            "row" => false,
            "col" => true,
            _ => return Err(self.unbuilt()),
        };
        let shape = Shape::named(shape).filter(|_| is_known);
        let shape = shape.ok_or_else(|| self.unbuilt())?;
        // What is less than a byte lies along the depth.
        if kind.moved > 1 && turned != (role == MatrixOperand::Right) {
            return Err(self.unbuilt());
        }
        let depth = shape.depth as u64;
        let (rows, columns) = match role {
            MatrixOperand::Left => (8 * shape.rows as u64, depth),
            MatrixOperand::Right => (depth, 8 * shape.columns as u64),
            MatrixOperand::Sums => (8 * shape.rows as u64, 8 * shape.columns as u64),
        };
        let count = rows * columns / 32 / kind.each;
        let of_halves = *element == "f16" && role != MatrixOperand::Sums;
        let given = if of_halves { OF_HALVES } else { count as usize };
        let operands = self.elements(values, given)?;
        let stride = match stride {
            [] => self.constant(if turned { rows } else { columns }, 4),
            [stride] => self.read(stride, 4)?,
            _ => return Err(self.fail("a wrong number of operands")),
        };
        let target = self.target(space, address)?;
        let lane = self.special_of(Special::LaneId);
        let (two, three) = (self.constant(2, 4), self.constant(3, 4));
        let group = self.apply32("shr", Type::U32, vec![lane, two])?;
        let number = self.apply32("and", Type::B32, vec![lane, three])?;
        // How far the number of a lane in its group leads.
        let wide = self.constant(
            if role == MatrixOperand::Sums {
                2
            } else {
                kind.each
            },
            4,
        );
        let along = self.times(number, wide)?;
        for register in 0..count {
            let (row, column) = start(role, kind.each, shape, register);
            let mut parts_of = Vec::new();
            let stored = match stores {
                true => Some(self.read(&operands[register as usize], kind.bytes.max(4))?),
                false => None,
            };
            for index in 0..kind.each / kind.moved {
                let (row_start, column_start) = match role {
                    MatrixOperand::Right => (row + index, column),
                    _ => (row, column + index),
                };
                let (row_start, column_start) =
                    (self.constant(row_start, 4), self.constant(column_start, 4));
                let (of_row, of_column) = match role {
                    MatrixOperand::Right => (along, group),
                    _ => (group, along),
                };
                let row = self.apply32("add", Type::U32, vec![of_row, row_start])?;
                let column = self.apply32("add", Type::U32, vec![of_column, column_start])?;
                let (major, minor) = if turned { (column, row) } else { (row, column) };
                let line = self.times(major, stride)?;
                let place = self.apply32("add", Type::U32, vec![line, minor])?;
                let place = self.element_at(&target, place, kind)?;
                let imm = self.access(&target, 1)?;
                let width = kind.bytes.max(2);
                if let Some(value) = stored {
                    let value = self.part(value, kind, index)?;
                    let run = memory::store(kind.bytes, width, false);
                    let run = run.ok_or_else(|| self.unbuilt())?;
                    let loose = if kind.bytes == width { width } else { 0 };
                    self.emit(
                        InstKind::Store { run, imm, loose },
                        Vec::new(),
                        vec![place, value],
                    );
                } else {
                    let run = memory::load(kind.bytes, false, width, false);
                    let run = run.ok_or_else(|| self.unbuilt())?;
                    let traits = Traits {
                        private: target.is_generic(),
                        loose: if kind.bytes == width { width } else { 0 },
                        ..Traits::default()
                    };
                    let value = self.temp(width);
                    self.emit(
                        InstKind::Load { run, imm, traits },
                        vec![value],
                        vec![place],
                    );
                    parts_of.push(value);
                }
            }
            if stores {
                continue;
            }
            let value = self.together(&parts_of);
            for operand in operands
                .iter()
                .skip(register as usize)
                .step_by(count as usize)
            {
                let width = kind.bytes.max(4);
                let dest = self.dest(operand, width)?;
                let copy = logic::mov(width).ok_or_else(|| self.unbuilt())?;
                self.simple(&copy, dest, vec![value]);
                self.finish(operand, dest, false)?;
            }
        }
        Ok(())
    }

    /// The address of an element, in registers as wide as the base's.
    fn element_at(&mut self, target: &Target, index: Reg, kind: Element) -> Lowered<Reg> {
        let bits = 8 * u64::from(kind.bytes) / kind.moved;
        let (index, bytes) = match bits {
            8.. => (index, bits / 8),
            _ => {
                let shift = self.constant((8 / bits).ilog2().into(), 4);
                (self.apply32("shr", Type::U32, vec![index, shift])?, 1)
            }
        };
        let bytes = self.constant(bytes, 4);
        if self.func.regs[target.base as usize] == 4 {
            let distance = self.times(index, bytes)?;
            return self.apply32("add", Type::U32, vec![target.base, distance]);
        }
        let words = Words {
            opcode: "mul",
            flags: &["wide"],
            types: &[Type::U32],
        };
        let distance = self.apply(&words, vec![index, bytes])?;
        Ok(self.compute(&parts::offset64(false), vec![target.base, distance]))
    }

    fn times(&mut self, a: Reg, b: Reg) -> Lowered<Reg> {
        let words = Words {
            opcode: "mul",
            flags: &["lo"],
            types: &[Type::U32],
        };
        self.apply(&words, vec![a, b])
    }

    /// An element of a register, as it is stored.
    fn part(&mut self, value: Reg, kind: Element, index: u64) -> Lowered<Reg> {
        if kind.each == kind.moved {
            return Ok(value);
        }
        let halves = self.halves(value, 4)?;
        Ok(halves[(index & 1) as usize])
    }

    /// A register of its elements, each in one of 16 bits or more.
    fn together(&mut self, values: &[Reg]) -> Reg {
        match *values {
            [low, high] => self.compute(&parts::pack32(), vec![low, high]),
            [a, b, c, d] => {
                let low = self.compute(&parts::pack16(), vec![a, b]);
                let high = self.compute(&parts::pack16(), vec![c, d]);
                self.compute(&parts::pack32(), vec![low, high])
            }
            _ => values[0],
        }
    }

    /// `wmma.mma`.
    fn multiply_fragments(
        &mut self,
        at: &'a Instruction<'a>,
        shape: &str,
        (types, differ): (&[&str], Option<bool>),
    ) -> Lowered {
        let (types, clamp) = match types.split_last() {
            Some((&"satfinite", rest)) => (rest, true),
            // How sums of doubles are rounded, if it is said.
            Some((&"rn", rest)) => (rest, false),
            _ => (types, false),
        };
        let (to, left, right, from) = match *types {
            // Without types of the matrices they are halves.
            [to, from] => (to, "f16", "f16", from),
            [to, left, right, from] => (to, left, right, from),
            _ => return Err(self.unbuilt()),
        };
        let shape_fits = are_fragments(shape, left);
        let shape = Shape::named(shape).filter(|_| shape_fits && left == right);
        let shape = shape.ok_or_else(|| self.unbuilt())?;
        if left == "f64" {
            if to != left || from != left || clamp || differ.is_some() {
                return Err(self.unbuilt());
            }
            return self.products_of_doubles(at, shape);
        }
        let kind = matrix::ElementKind::named(left).ok_or_else(|| self.unbuilt())?;
        let product = Product {
            left: kind,
            right: kind,
            depth: shape.depth,
            narrow: [from == "f16", to == "f16"],
            clamp,
            differ: differ == Some(true),
        };
        if !are_multiplied(product, to)
            || !are_multiplied(product, from)
            || (kind == matrix::ElementKind::B1) != differ.is_some()
        {
            return Err(self.unbuilt());
        }
        let [_, a, b, _] = self.operands(at)?;
        let steps = shape.steps(kind);
        let left = self.held(a, kind == matrix::ElementKind::F16, shape.rows * steps)?;
        let right = self.held(b, kind == matrix::ElementKind::F16, shape.columns * steps)?;
        self.products(at, shape, product, (&left, &right))
    }

    /// The registers of a fragment of a matrix.
    fn held(&mut self, operand: &Operand<'a>, halves: bool, count: usize) -> Lowered<Vec<Reg>> {
        let mut registers = self.registers(operand, if halves { OF_HALVES } else { count })?;
        registers.truncate(count);
        Ok(registers)
    }
}
