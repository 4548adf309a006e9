//! Operations whose lanes have nothing to do with each other: one loop, compiled for each vector unit.
//!
//! Called by what is compiled of an instruction. Must not know memory.

use crate::isa::Isa;
use crate::machine::{Flow, Machine, Op, OpFn};
use crate::regs::{Cursor, Frame, Lane, STRIP};

/// One operation on a lane. Operands that it does not have are `u8` and ignored.
pub(crate) trait Pure {
    type A: Lane;
    type B: Lane;
    type C: Lane;
    type D: Lane;
    /// How many operands it has.
    const ARITY: usize;

    /// The operation on one lane; `imm` is [`Op::imm`].
    fn lane(a: Self::A, b: Self::B, c: Self::C, imm: u64) -> Self::D;
}

/// A function over a strip, for what no plain loop gives.
pub(crate) trait StripOp {
    type A: Lane;
    type D: Lane;

    fn strip(a: [Self::A; STRIP]) -> [Self::D; STRIP];
}

/// An operation for each vector unit, and how a compiler of segments names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PureOp {
    /// By [`Isa`].
    pub(crate) run: [OpFn; Isa::COUNT],
    /// Widths of destination and operands in bytes; 0 where there is none.
    pub(crate) widths: [u8; 4],
}

/// Declares the functions that run a trait's operations on each vector unit.
macro_rules! for_each_isa {
    ($body:ident, $trait:ident, $table:ident) => {
        mod $table {
            use super::*;

            /// # Safety
            /// None: any machine has it.
            unsafe fn sse2<P: $trait>(cx: &mut Machine<'_>, op: &Op) -> Flow {
                $body::<P>(cx, op)
            }

            /// # Safety
            /// The machine has AVX2 and FMA.
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            unsafe fn avx2<P: $trait>(cx: &mut Machine<'_>, op: &Op) -> Flow {
                $body::<P>(cx, op)
            }

            /// # Safety
            /// The machine has AVX-512 F, BW, DQ and VL.
            #[target_feature(
                enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt"
            )]
            unsafe fn avx512<P: $trait>(cx: &mut Machine<'_>, op: &Op) -> Flow {
                $body::<P>(cx, op)
            }

            pub(super) fn table<P: $trait>() -> [OpFn; Isa::COUNT] {
                [sse2::<P>, avx2::<P>, avx512::<P>]
            }
        }
    };
}
pub(crate) use for_each_isa;

for_each_isa!(run_pure, Pure, pure_table);

impl PureOp {
    /// The operation `P`.
    pub(crate) fn of<P: Pure>() -> Self {
        let width = |arity: usize, bytes: usize| if P::ARITY > arity { bytes as u8 } else { 0 };
        Self {
            run: pure_table::table::<P>(),
            widths: [
                size_of::<P::D>() as u8,
                width(0, size_of::<P::A>()),
                width(1, size_of::<P::B>()),
                width(2, size_of::<P::C>()),
            ],
        }
    }
}

/// Where a result goes: the destination, or scratch when lanes that do not run must keep theirs.
pub(crate) struct Target {
    pub(crate) frame: Frame,
    pub(crate) offset: u32,
    pub(crate) varying: bool,
    pub(crate) low: usize,
    pub(crate) high: usize,
    pub(crate) blend: bool,
}

impl Machine<'_> {
    /// Where the strips of destination 0 are to be written. `blend` afterwards if it says so.
    #[inline(always)]
    pub(crate) fn target(&self, op: &Op, destination: usize) -> Target {
        let offset = op.d[destination];
        if !op.writes_varying(destination) {
            Target {
                frame: self.frame,
                offset,
                varying: false,
                low: 0,
                high: 1,
                blend: false,
            }
        } else if self.full {
            let (low, high) = (self.low, self.high);
            Target {
                frame: self.frame,
                offset,
                varying: true,
                low,
                high,
                blend: false,
            }
        } else {
            let (low, high) = (self.low, self.high);
            Target {
                frame: self.scratch,
                offset: 0,
                varying: true,
                low,
                high,
                blend: true,
            }
        }
    }

    /// Takes the results of the running lanes from scratch.
    #[inline(always)]
    pub(crate) fn blend<T: Lane>(&mut self, offset: u32) {
        for strip in self.low..self.high {
            let lanes = self.mask.strip(strip);
            let new = self.scratch.strip::<T>(0, strip);
            let mut old = self.frame.strip::<T>(offset as usize, strip);
            for lane in 0..STRIP {
                old[lane] = if lanes >> lane & 1 != 0 {
                    new[lane]
                } else {
                    old[lane]
                };
            }
            self.frame.set_strip(offset as usize, strip, old);
        }
    }
}

#[inline(always)]
fn run_pure<P: Pure>(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let target = cx.target(op, 0);
    let (low, high) = (target.low, target.high);
    let mut a = Cursor::<P::A>::new(cx.frame, op.s[0], op.varies(0), low, high);
    let mut b = Cursor::<P::B>::new(cx.frame, op.s[1], op.varies(1), low, high);
    let mut c = Cursor::<P::C>::new(cx.frame, op.s[2], op.varies(2), low, high);
    let mut d = Cursor::<P::D>::new(target.frame, target.offset, target.varying, low, high);
    for _ in low..high {
        // SAFETY: each cursor is made for the strips `low..high`, and this reads one of them in each turn of that loop.
        let (a, b, c) = unsafe { (a.read(), b.read(), c.read()) };
        let mut result = [P::D::default(); STRIP];
        for lane in 0..STRIP {
            result[lane] = P::lane(a[lane], b[lane], c[lane], op.imm);
        }
        // SAFETY: the cursor is made for the strips `low..high`, and this writes one of them in each turn of that loop.
        unsafe { d.write(result) };
    }
    if target.blend {
        cx.blend::<P::D>(op.d[0]);
    }
    Flow::Next
}

for_each_isa!(run_strips, StripOp, strip_table);

/// The operation `P` on whole strips.
pub(crate) fn strips<P: StripOp>() -> [OpFn; Isa::COUNT] {
    strip_table::table::<P>()
}

#[inline(always)]
fn run_strips<P: StripOp>(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let target = cx.target(op, 0);
    let (low, high) = (target.low, target.high);
    let mut a = Cursor::<P::A>::new(cx.frame, op.s[0], op.varies(0), low, high);
    let mut d = Cursor::<P::D>::new(target.frame, target.offset, target.varying, low, high);
    for _ in low..high {
        // SAFETY: each cursor is made for the strips `low..high`, and this reads one of them in each turn of that loop.
        unsafe {
            let a = a.read();
            d.write(P::strip(a));
        }
    }
    if target.blend {
        cx.blend::<P::D>(op.d[0]);
    }
    Flow::Next
}

/// Runs [`Op::cold`] lane by lane over the running lanes.
///
/// # Safety
/// None: any machine has it.
pub(crate) unsafe fn run_cold(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let Some(f) = op.cold else { return Flow::Next };
    let frame = cx.frame;
    // Widths of the three sources as powers of two, two bits each.
    let source = |index: usize, lane: usize| {
        let width = 1u8 << (op.width[1] >> (2 * index) & 3);
        frame.wide(
            op.s[index] as usize,
            if op.varies(index) { lane } else { 0 },
            width,
        )
    };
    let value = |lane: usize| f(source(0, lane), source(1, lane), source(2, lane), op.imm);
    let offset = op.d[0] as usize;
    if op.writes_varying(0) {
        for lane in cx.mask.lanes() {
            frame.set_wide(offset, lane, op.width[0], value(lane));
        }
    } else {
        let value = value(0);
        for lane in 0..STRIP {
            frame.set_wide(offset, lane, op.width[0], value);
        }
    }
    Flow::Next
}
