//! `wmma`: matrices of 16 × 16 that a warp loads, multiplies and stores. How they are spread over the lanes is
//! the device's own affair; here they are as `mma` has them, the right one and the sums as two halves of 8
//! columns.

use ptx::ast::{Instruction, Operand, Space, Type};

use super::body::{Body, Lowered};
use super::memory::Target;
use crate::exec::ir::{Kind, Reg, Traits};
use crate::exec::ops::matrix::{self, Product};
use crate::exec::ops::memory;
use crate::exec::ops::special::Special;
use crate::exec::ops::table::{Words, parts};

/// Rows and columns.
const SIDE: u64 = 16;

/// What a fragment is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Left,
    Right,
    Sums,
}

/// A type of elements.
#[derive(Clone, Copy, Debug)]
struct Element {
    /// Bytes of one in memory.
    bytes: u8,
    /// How many are in a register.
    each: u64,
}

impl Element {
    fn named(word: &str) -> Option<Self> {
        let (bytes, each) = match word {
            "f16" | "bf16" => (2, 2),
            "tf32" | "f32" | "s32" => (4, 1),
            "s8" | "u8" => (1, 4),
            _ => return None,
        };
        Some(Self { bytes, each })
    }
}

/// Where the first element of a register lies, for the lane 0: its row and column. Lanes of group `g` have
/// `g` more rows (columns of the right matrix), number `t` of a group `t` times as many columns (rows) more
/// as a register of it holds.
fn start(role: Role, each: u64, depth: u64, register: u64) -> (u64, u64) {
    // How many registers of a lane lead through the depth of half of the right matrix.
    let steps = depth / (4 * each);
    match role {
        Role::Left => (8 * (register & 1), 4 * each * (register >> 1)),
        Role::Right => (4 * each * (register % steps), 8 * (register / steps)),
        // Of single sums two registers stand beside each other.
        Role::Sums if each == 1 => (
            8 * (register >> 1 & 1),
            (register & 1) + 8 * (register >> 2),
        ),
        Role::Sums => (8 * (register & 1), 8 * (register >> 1)),
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
                    "a" => Role::Left,
                    "b" => Role::Right,
                    _ => Role::Sums,
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
                    Role::Sums,
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
            ] => self.multiply_squares(at, shape, types),
            _ => Err(self.unbuilt()),
        }
    }

    /// A load or store of a fragment: each lane moves its elements one by one.
    fn fragment(
        &mut self,
        role: Role,
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
        let fits = match (shape, role) {
            ("m16n16k16", Role::Sums) => matches!(*element, "f16" | "f32" | "s32"),
            ("m16n16k16", _) => matches!(*element, "f16" | "bf16" | "s8" | "u8"),
            ("m16n16k8", Role::Sums) => *element == "f32",
            ("m16n16k8", _) => *element == "tf32",
            _ => false,
        };
        let turned = match layout {
            "row" => false,
            "col" => true,
            _ => return Err(self.unbuilt()),
        };
        if !fits {
            return Err(self.unbuilt());
        }
        let depth = if shape == "m16n16k8" { 8 } else { SIDE };
        let columns = if role == Role::Left { depth } else { SIDE };
        let rows = if role == Role::Right { depth } else { SIDE };
        let count = rows * columns / 32 / kind.each;
        // Halves of the matrices are there twice: compilers count with fragments of the first tensor cores.
        let twice = *element == "f16" && role != Role::Sums;
        let operands = self.elements(values, count as usize * if twice { 2 } else { 1 })?;
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
        let wide = self.constant(if role == Role::Sums { 2 } else { kind.each }, 4);
        let along = self.times(number, wide)?;
        for register in 0..count {
            let (row, column) = start(role, kind.each, depth, register);
            let mut parts_of = Vec::new();
            let stored = match stores {
                true => Some(self.read(&operands[register as usize], 4)?),
                false => None,
            };
            for index in 0..kind.each {
                let (row_start, column_start) = match role {
                    Role::Right => (row + index, column),
                    _ => (row, column + index),
                };
                let (row_start, column_start) =
                    (self.constant(row_start, 4), self.constant(column_start, 4));
                let (of_row, of_column) = match role {
                    Role::Right => (along, group),
                    _ => (group, along),
                };
                let row = self.apply32("add", Type::U32, vec![of_row, row_start])?;
                let column = self.apply32("add", Type::U32, vec![of_column, column_start])?;
                let (major, minor) = if turned { (column, row) } else { (row, column) };
                let line = self.times(major, stride)?;
                let place = self.apply32("add", Type::U32, vec![line, minor])?;
                let place = self.element_at(&target, place, kind.bytes)?;
                let imm = self.access(&target, 1)?;
                let width = kind.bytes.max(2);
                if let Some(value) = stored {
                    let value = self.part(value, kind, index)?;
                    let run = memory::store(kind.bytes, width, false);
                    let run = run.ok_or_else(|| self.unbuilt())?;
                    self.emit(Kind::Store { run, imm }, Vec::new(), vec![place, value]);
                } else {
                    let run = memory::load(kind.bytes, false, width, false);
                    let run = run.ok_or_else(|| self.unbuilt())?;
                    let traits = Traits {
                        private: target.is_generic(),
                        volatile: false,
                    };
                    let value = self.temp(width);
                    self.emit(Kind::Load { run, imm, traits }, vec![value], vec![place]);
                    parts_of.push(value);
                }
            }
            if !stores {
                let value = self.together(&parts_of);
                self.write32(&operands[register as usize], value)?;
                if twice {
                    self.write32(&operands[(register + count) as usize], value)?;
                }
            }
        }
        Ok(())
    }

    /// The address of an element, in registers as wide as the base's.
    fn element_at(&mut self, target: &Target, index: Reg, bytes: u8) -> Lowered<Reg> {
        let bytes = self.constant(bytes.into(), 4);
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
        if kind.each == 1 {
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

    /// Two products of 16 × 8.
    fn multiply_squares(
        &mut self,
        at: &'a Instruction<'a>,
        shape: &str,
        types: &[&str],
    ) -> Lowered {
        let [d, a, b, c] = self.operands(at)?;
        let (types, clamp) = match types.split_last() {
            Some((&"satfinite", rest)) => (rest, true),
            _ => (types, false),
        };
        let (to, left, right, from) = match *types {
            // Without types of the matrices they are halves.
            [to, from] => (to, "f16", "f16", from),
            [to, left, right, from] => (to, left, right, from),
            _ => return Err(self.unbuilt()),
        };
        let kinds = (matrix::Kind::named(left), matrix::Kind::named(right));
        let (Some(left), Some(right)) = kinds else {
            return Err(self.unbuilt());
        };
        let depth = match shape {
            "m16n16k16" => 16,
            "m16n16k8" => 8,
            _ => return Err(self.unbuilt()),
        };
        let narrow = to == "f16";
        let fits = to == from
            && left == right
            && matches!(
                (left.is_integer(), to),
                (true, "s32") | (false, "f32" | "f16")
            )
            && (depth == 8) == (left == matrix::Kind::Tf32)
            && (!narrow || left == matrix::Kind::F16)
            && clamp <= left.is_integer();
        if !fits {
            return Err(self.unbuilt());
        }
        let product = Product {
            left,
            right,
            depth,
            narrow,
            clamp,
        };
        let steps = depth / (4 * left.in_register());
        let sums = if narrow { 2 } else { 4 };
        let twice = if left == matrix::Kind::F16 { 2 } else { 1 };
        let left = self.elements(a, 2 * steps * twice)?;
        let right = self.elements(b, 2 * steps * twice)?;
        let (from, to) = (self.elements(c, 2 * sums)?, self.elements(d, 2 * sums)?);
        let rows = self.in_pairs(&left[..2 * steps])?;
        let mut sources = Vec::new();
        for half in 0..2 {
            let mut of_half = rows.clone();
            if steps == 1 {
                of_half.push(rows[0]);
            }
            of_half.extend(self.in_pairs(&right[half * steps..][..steps])?);
            of_half.extend(self.in_pairs(&from[half * sums..][..sums])?);
            sources.push(of_half);
        }
        let guard = self.guard();
        let mut results = Vec::new();
        for of_half in sources {
            let half: Vec<Reg> = (0..sums).map(|_| self.temp(4)).collect();
            self.set_guard(guard);
            self.exchange(matrix::multiply, product.pack(), half.clone(), of_half);
            results.extend(half);
        }
        self.set_guard(guard);
        for (element, result) in to.iter().zip(results) {
            self.write32(element, result)?;
        }
        Ok(())
    }
}
