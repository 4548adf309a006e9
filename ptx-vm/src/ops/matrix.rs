//! Small matrices that a warp holds together: loads and stores of 8 × 8 ones, and products.
//!
//! Lane `l` belongs to group `l / 4` and is number `l % 4` in it. A register of 32 bits holds as many elements
//! beside each other in a row as fit: of the left matrix lanes of group `g` have rows `g` and `g + 8`, of the
//! right one, which is held by columns, column `g`; of the sums they have two neighbours of rows `g` and
//! `g + 8`.
//!
//! Chosen by `lower::matrix` and `lower::wmma`. Must not know `wmma`'s fragments: they come as registers of `mma`'s
//! form.

use ptx::ast::Type;

use super::warp::ALL;
use super::{dense, fp8, half};
use crate::access::Cell;
use crate::fault::FaultKind;
use crate::machine::{Flow, Machine, Op};
use crate::spaces::StateSpace;

/// Bytes of a row of an 8 × 8 matrix of 16-bit elements, and of 16 elements of bytes.
pub(super) const ROW: u64 = 16;
/// Lanes of a warp.
pub(super) const LANES: usize = 32;
/// Rows of the left matrix and of the sums.
const ROWS: usize = 16;
/// Columns of the right matrix and of the sums.
const COLUMNS: usize = 8;
/// The most columns of the left matrix: of bytes, and of bits.
const DEEPEST: usize = 32;
const DEEPEST_BITS: usize = 256;

/// Bits of `imm` of [`load`] and [`store`]: how many matrices, and whether they are turned.
pub(crate) const TURNED: u64 = 1 << 8;

/// Where the element of a turned or unturned matrix lies that a lane's register has as its lower or upper half:
/// row and column.
fn element(lane: usize, upper: usize, turned: bool) -> (usize, usize) {
    let (group, pair) = (lane / 4, lane % 4 * 2 + upper);
    if turned { (pair, group) } else { (group, pair) }
}

impl Machine<'_> {
    /// The host addresses of the rows that a warp's lanes give for `count` matrices: 8 lanes for each. What a
    /// lane gives that is not there has none.
    pub(super) fn rows(
        &mut self,
        op: &Op,
        (base, lanes): (usize, u32),
        count: usize,
        write: bool,
    ) -> Result<[Option<u64>; LANES], Flow> {
        let mut rows = [None; LANES];
        for lane in (0..8 * count).filter(|lane| lanes >> lane & 1 != 0) {
            let at = if op.varies(0) { base + lane } else { 0 };
            let address = self.frame.wide(op.s[0] as usize, at, 8);
            if address & (ROW - 1) != 0 {
                return Err(self.fault(FaultKind::MisalignedAddress, address, base + lane));
            }
            match self.host(address, StateSpace::Shared, ROW, write) {
                Ok(host) => rows[lane] = Some(host),
                Err(()) => return Err(self.fault(FaultKind::IllegalAddress, address, base + lane)),
            }
        }
        Ok(rows)
    }
}

/// `ldmatrix`: source: the address in shared memory, of 64 bits; as many destinations as matrices.
///
/// # Safety
/// None: any machine has it; so for all functions below.
pub(crate) unsafe fn load(cx: &mut Machine<'_>, op: &Op) -> Flow {
    if let Err(flow) = cx.members(op, Some(ALL)) {
        return flow;
    }
    let (count, turned) = ((op.imm & 0xff) as usize, op.imm & TURNED != 0);
    for (base, lanes) in cx.warps() {
        let rows = match cx.rows(op, (base, lanes), count, false) {
            Ok(rows) => rows,
            Err(flow) => return flow,
        };
        for matrix in 0..count {
            for lane in (0..LANES).filter(|lane| lanes >> lane & 1 != 0) {
                let mut value = 0;
                for upper in 0..2 {
                    let (row, column) = element(lane, upper, turned);
                    if let Some(host) = rows[8 * matrix + row] {
                        // SAFETY: `rows` tested all of the row.
                        let bits = unsafe { <u16 as Cell>::load(host + 2 * column as u64) };
                        value |= u64::from(bits) << (16 * upper);
                    }
                }
                cx.set_if(op, matrix, base + lane, 4, value);
            }
        }
    }
    Flow::Next
}

/// `movmatrix`: an 8 × 8 matrix of 16-bit elements, two of a row in each lane, turned.
///
/// # Safety
/// None.
pub(crate) unsafe fn turn(cx: &mut Machine<'_>, op: &Op) -> Flow {
    if let Err(flow) = cx.members(op, Some(ALL)) {
        return flow;
    }
    for (base, lanes) in cx.warps() {
        let is_there = |lane: &usize| lanes >> lane & 1 != 0;
        // Lanes that a partial warp does not have hold zeroes.
        let words: [u32; LANES] = std::array::from_fn(|lane| match is_there(&lane) {
            true => cx.operand(op, 0, base + lane),
            false => 0,
        });
        for lane in (0..LANES).filter(is_there) {
            let half = |upper: usize| {
                let (row, column) = element(lane, upper, true);
                words[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff
            };
            let value = half(0) | half(1) << 16;
            cx.set_if(op, 0, base + lane, 4, value.into());
        }
    }
    Flow::Next
}

/// `stmatrix`: sources: the address as for [`load`], and as many values as matrices.
///
/// # Safety
/// None.
pub(crate) unsafe fn store(cx: &mut Machine<'_>, op: &Op) -> Flow {
    if let Err(flow) = cx.members(op, Some(ALL)) {
        return flow;
    }
    let (count, turned) = ((op.imm & 0xff) as usize, op.imm & TURNED != 0);
    for (base, lanes) in cx.warps() {
        let rows = match cx.rows(op, (base, lanes), count, true) {
            Ok(rows) => rows,
            Err(flow) => return flow,
        };
        for matrix in 0..count {
            for lane in (0..LANES).filter(|lane| lanes >> lane & 1 != 0) {
                let value = cx.operand(op, 1 + matrix, base + lane);
                for upper in 0..2 {
                    let (row, column) = element(lane, upper, turned);
                    if let Some(host) = rows[8 * matrix + row] {
                        let bits = (value >> (16 * upper)) as u16;
                        // SAFETY: `rows` tested all of the row, for writing.
                        unsafe { <u16 as Cell>::store(host + 2 * column as u64, bits) };
                    }
                }
            }
        }
    }
    Flow::Next
}

/// What the elements of a product are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ElementKind {
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
    S8,
    U8,
    S4,
    U4,
    /// Single bits.
    B1,
    /// Six bits of a byte.
    E3m2,
    /// Six bits of a byte; of four bits in a byte the others are zeroes.
    E2m3,
    /// Four bits.
    E2m1,
}

const ELEMENT_KINDS: [ElementKind; 13] = [
    ElementKind::F16,
    ElementKind::Bf16,
    ElementKind::Tf32,
    ElementKind::E4m3,
    ElementKind::E5m2,
    ElementKind::S8,
    ElementKind::U8,
    ElementKind::S4,
    ElementKind::U4,
    ElementKind::B1,
    ElementKind::E3m2,
    ElementKind::E2m3,
    ElementKind::E2m1,
];

impl ElementKind {
    /// The kind that a word of `mma` names.
    pub(crate) fn named(word: &str) -> Option<Self> {
        Some(match word {
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "tf32" => Self::Tf32,
            "e4m3" => Self::E4m3,
            "e5m2" => Self::E5m2,
            "s8" => Self::S8,
            "u8" => Self::U8,
            "s4" => Self::S4,
            "u4" => Self::U4,
            "b1" => Self::B1,
            "e3m2" => Self::E3m2,
            // Where elements of several widths are multiplied, each has a byte.
            "e2m3" | "e2m1" => Self::E2m3,
            _ => return None,
        })
    }

    /// Elements in a register of 32 bits.
    pub(crate) fn in_register(self) -> usize {
        match self {
            Self::Tf32 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::E4m3 | Self::E5m2 | Self::E3m2 | Self::E2m3 | Self::S8 | Self::U8 => 4,
            Self::S4 | Self::U4 | Self::E2m1 => 8,
            Self::B1 => 32,
        }
    }

    pub(crate) fn is_integer(self) -> bool {
        matches!(self, Self::S8 | Self::U8 | Self::S4 | Self::U4 | Self::B1)
    }

    /// An element of a register. Every kind's values are exact in an `f64`.
    fn element(self, register: u32, index: usize) -> f64 {
        let byte = (register >> (8 * (index & 3))) as u8;
        let word = (register >> (16 * (index & 1))) as u16;
        match self {
            Self::F16 => half::to_f32(word, half::kind(Type::F16)).into(),
            Self::Bf16 => half::to_f32(word, half::kind(Type::Bf16)).into(),
            // What is beyond the 10 bits of the fraction does not count.
            Self::Tf32 => f32::from_bits(register & !0x1fff).into(),
            Self::E4m3 => fp8::decode(byte, false).into(),
            Self::E5m2 => fp8::decode(byte, true).into(),
            Self::E3m2 => fp8::decode_six(byte, 3).into(),
            Self::E2m3 => fp8::decode_six(byte, 2).into(),
            Self::E2m1 => fp8::decode_six((register >> (4 * index) << 2) as u8, 2).into(),
            Self::S8 => f64::from(byte as i8),
            Self::U8 => f64::from(byte),
            Self::S4 => f64::from(((register >> (4 * index) << 4) as i8) >> 4),
            Self::U4 => f64::from(register >> (4 * index) & 0xf),
            Self::B1 => f64::from(register >> index & 1),
        }
    }
}

/// A product's shape: 16 × 8 sums over `depth`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub(crate) left: ElementKind,
    pub(crate) right: ElementKind,
    pub(crate) depth: usize,
    /// Sums are halves, two in a register: those that come, and those that go.
    pub(crate) narrow: [bool; 2],
    /// Integer sums are clamped.
    pub(crate) clamp: bool,
    /// Bits count where they differ, not where both are set.
    pub(crate) differ: bool,
}

impl Product {
    pub(crate) fn pack(self) -> u64 {
        self.left as u64
            | (self.right as u64) << 8
            | (self.depth as u64) << 32
            | u64::from(self.narrow[0]) << 24
            | u64::from(self.clamp) << 25
            | u64::from(self.differ) << 26
            | u64::from(self.narrow[1]) << 27
    }

    fn unpack(imm: u64) -> Self {
        let kind = |shift: u32| ELEMENT_KINDS[(imm >> shift & 0xff) as usize % ELEMENT_KINDS.len()];
        Self {
            left: kind(0),
            right: kind(8),
            depth: (imm >> 32) as usize,
            narrow: [24, 27].map(|bit| imm >> bit & 1 != 0),
            clamp: imm >> 25 & 1 != 0,
            differ: imm >> 26 & 1 != 0,
        }
    }
}

/// `mma` of a 16 × k matrix, a k × 8 matrix and sums: sources, of two registers in 64 bits each: two of the
/// left one, one of the right one, and two of the sums, or one of narrow ones. As many destinations as
/// registers of sums that go.
///
/// # Safety
/// None.
pub(crate) unsafe fn multiply(cx: &mut Machine<'_>, op: &Op) -> Flow {
    if let Err(flow) = cx.members(op, Some(ALL)) {
        return flow;
    }
    let shape = Product::unpack(op.imm);
    for (base, lanes) in cx.warps() {
        if lanes == u32::MAX && dense::product(cx, op, shape, base) {
            continue;
        }
        if shape.depth > DEEPEST {
            product::<DEEPEST_BITS>(cx, op, shape, (base, lanes));
        } else {
            product::<DEEPEST>(cx, op, shape, (base, lanes));
        }
    }
    Flow::Next
}

fn product<const DEEPEST: usize>(
    cx: &mut Machine<'_>,
    op: &Op,
    shape: Product,
    (base, lanes): (usize, u32),
) {
    let Product {
        left,
        right,
        depth,
        narrow: [narrow, narrows],
        clamp,
        differ,
    } = shape;
    let each = left.in_register();
    let wide = |cx: &Machine<'_>, source: usize, lane: usize| {
        let at = if op.varies(source) { base + lane } else { 0 };
        cx.frame.wide(op.s[source] as usize, at, 8)
    };
    let register = |word: u64, index: usize| (word >> (32 * (index & 1))) as u32;
    // Lanes that a partial warp does not have hold zeroes.
    let mut a = [[0.0; DEEPEST]; ROWS];
    let mut b = [[0.0; DEEPEST]; COLUMNS];
    let steps = depth / (4 * each);
    for lane in (0..LANES).filter(|lane| lanes >> lane & 1 != 0) {
        let (group, number) = (lane / 4, lane % 4);
        for step in 0..steps {
            let start = (4 * step + number) * each;
            let (rows, column) = (wide(cx, step, lane), wide(cx, 2, lane));
            for index in 0..each {
                a[group][start + index] = left.element(register(rows, 0), index);
                a[group + 8][start + index] = left.element(register(rows, 1), index);
                b[group][start + index] = right.element(register(column, step), index);
            }
        }
    }
    for lane in (0..LANES).filter(|lane| lanes >> lane & 1 != 0) {
        let (group, number) = (lane / 4, lane % 4);
        let mut narrowed = 0;
        for upper in 0..2 {
            let sums = if narrow {
                wide(cx, 3, lane)
            } else {
                wide(cx, 3 + upper, lane)
            };
            for index in 0..2 {
                let (row, column) = (group + 8 * upper, 2 * number + index);
                let of_row = a[row][..depth].iter().zip(&b[column]);
                let value: f64 = if differ {
                    of_row.map(|(x, y)| (x - y).abs()).sum()
                } else {
                    of_row.map(|(x, y)| x * y).sum()
                };
                let at = 2 * upper + index;
                let before = if narrow {
                    half::to_f32((register(sums, upper) >> (16 * index)) as u16, 0)
                } else {
                    f32::from_bits(register(sums, index))
                };
                let sum = f64::from(before) + value;
                if narrows {
                    let bits = if sum.is_nan() {
                        0x7fff
                    } else {
                        half::from_f64(sum, 0)
                    };
                    narrowed |= u64::from(bits) << (32 * upper + 16 * index);
                } else if left.is_integer() {
                    let sum = i64::from(register(sums, index) as i32) + value as i64;
                    let sum = if clamp {
                        sum.clamp(i32::MIN.into(), i32::MAX.into())
                    } else {
                        sum
                    };
                    cx.set_if(op, at, base + lane, 4, sum as u64 & 0xffff_ffff);
                } else {
                    cx.set_if(op, at, base + lane, 4, (sum as f32).to_bits().into());
                }
            }
        }
        if narrows {
            cx.set_if(op, 0, base + lane, 4, narrowed & 0xffff_ffff);
            cx.set_if(op, 1, base + lane, 4, narrowed >> 32);
        }
    }
}

/// Which of the products of quads of lanes an operation makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quads {
    /// Columns 0 to 3 of the sums, or 4 to 7.
    pub(crate) half: usize,
    /// The left matrix is held by columns; the right one by rows.
    pub(crate) turned: [bool; 2],
    /// Sums are halves: those that come, and those that go.
    pub(crate) narrow: [bool; 2],
}

impl Quads {
    pub(crate) fn pack(self) -> u64 {
        let flags = self.turned.into_iter().chain(self.narrow).enumerate();
        flags.fold(self.half as u64, |imm, (at, flag)| {
            imm | u64::from(flag) << (at + 1)
        })
    }

    fn unpack(imm: u64) -> Self {
        let flag = |at: u32| imm >> at & 1 != 0;
        Self {
            half: (imm & 1) as usize,
            turned: [flag(1), flag(2)],
            narrow: [flag(3), flag(4)],
        }
    }

    /// Row and column, of the half's four, of a lane's sum: of halves, or of floats.
    fn place(narrow: bool, lane: usize, index: usize) -> (usize, usize) {
        let (number, lower) = (lane % 4, 4 * (lane / 16));
        if narrow {
            (number + lower, index)
        } else {
            (
                (number & 1) + (index & 2) + lower,
                (number & 2) + (index & 1),
            )
        }
    }
}

/// `mma.m8n8k4` of halves: sources, of 64 bits each: a lane's four elements of the left matrix, and of the right one;
/// its four sums, two words of floats or one of halves. As many destinations as registers of sums that go.
///
/// # Safety
/// None.
pub(crate) unsafe fn multiply_quads(cx: &mut Machine<'_>, op: &Op) -> Flow {
    if let Err(flow) = cx.members(op, Some(ALL)) {
        return flow;
    }
    let quads = Quads::unpack(op.imm);
    let of_half = |word: u64, index: usize| -> f64 {
        half::to_f32((word >> (16 * index)) as u16, half::kind(Type::F16)).into()
    };
    for (base, lanes) in cx.warps() {
        let wide = |cx: &Machine<'_>, source: usize, lane: usize| {
            let at = if op.varies(source) { base + lane } else { 0 };
            cx.frame.wide(op.s[source] as usize, at, 8)
        };
        for quad in 0..4 {
            let both = (4 * quad..4 * quad + 4).chain(4 * quad + 16..4 * quad + 20);
            let there = both.filter(|lane| lanes >> lane & 1 != 0);
            // Lanes that a partial warp does not have hold zeroes.
            let (mut a, mut b) = ([[0.0; 4]; 8], [[0.0; 8]; 4]);
            let mut sums = [[0.0; 4]; 8];
            for lane in there.clone() {
                let (number, further) = (lane % 4, 4 * (lane / 16));
                let (left, right) = (wide(cx, 0, lane), wide(cx, 1, lane));
                for index in 0..4 {
                    let (row, column) = match quads.turned[0] {
                        true => (index + further, number),
                        false => (number + further, index),
                    };
                    a[row][column] = of_half(left, index);
                    let (row, column) = match quads.turned[1] {
                        true => (number, index + further),
                        false => (index, number + further),
                    };
                    b[row][column] = of_half(right, index);
                    let (row, column) = Quads::place(quads.narrow[0], lane, index);
                    sums[row][column] = if quads.narrow[0] {
                        of_half(wide(cx, 2, lane), index)
                    } else {
                        let word = wide(cx, 2 + index / 2, lane);
                        f32::from_bits((word >> (32 * (index & 1))) as u32).into()
                    };
                }
            }
            for lane in there {
                let mut narrowed = 0;
                for index in 0..4 {
                    let (row, column) = Quads::place(quads.narrow[1], lane, index);
                    let of_column = b.iter().map(|row| row[4 * quads.half + column]);
                    let products = a[row].iter().zip(of_column);
                    let value: f64 = products.map(|(x, y)| x * y).sum();
                    let sum = sums[row][column] + value;
                    if quads.narrow[1] {
                        let bits = if sum.is_nan() {
                            0x7fff
                        } else {
                            half::from_f64(sum, 0)
                        };
                        narrowed |= u64::from(bits) << (16 * index);
                    } else {
                        cx.set_if(op, index, base + lane, 4, (sum as f32).to_bits().into());
                    }
                }
                if quads.narrow[1] {
                    cx.set_if(op, 0, base + lane, 4, narrowed & 0xffff_ffff);
                    cx.set_if(op, 1, base + lane, 4, narrowed >> 32);
                }
            }
        }
    }
    Flow::Next
}

/// Columns of the left matrix of one product of doubles.
const DOUBLES: usize = 4;

/// `mma` of an 8 × 4 matrix, a 4 × 8 matrix and sums of doubles: sources: a lane's elements of both, and its two
/// sums; two destinations.
///
/// # Safety
/// None.
pub(crate) unsafe fn multiply_doubles(cx: &mut Machine<'_>, op: &Op) -> Flow {
    if let Err(flow) = cx.members(op, Some(ALL)) {
        return flow;
    }
    for (base, lanes) in cx.warps() {
        let value = |cx: &Machine<'_>, source: usize, lane: usize| {
            let at = if op.varies(source) { base + lane } else { 0 };
            f64::from_bits(cx.frame.wide(op.s[source] as usize, at, 8))
        };
        // Lanes that a partial warp does not have hold zeroes.
        let mut matrices = [[[0.0; DOUBLES]; COLUMNS]; 2];
        let mut sums = [[0.0; 2]; LANES];
        for lane in (0..LANES).filter(|lane| lanes >> lane & 1 != 0) {
            for (source, matrix) in matrices.iter_mut().enumerate() {
                matrix[lane / 4][lane % 4] = value(cx, source, lane);
            }
            sums[lane] = [value(cx, 2, lane), value(cx, 3, lane)];
        }
        let [rows, columns] = &matrices;
        for lane in (0..LANES).filter(|lane| lanes >> lane & 1 != 0) {
            for (index, sum) in sums[lane].into_iter().enumerate() {
                let (row, column) = (lane / 4, 2 * (lane % 4) + index);
                let pairs = rows[row].iter().zip(&columns[column]);
                let sum = pairs.fold(sum, |sum, (x, y)| x.mul_add(*y, sum));
                cx.set_if(op, index, base + lane, 8, sum.to_bits());
            }
        }
    }
    Flow::Next
}
