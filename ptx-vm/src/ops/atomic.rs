//! Atomic read-modify-write: `atom` and `red`.
//!
//! Chosen by `lower::memory`; `ops::mbarrier` and `ops::bulk` make theirs by it too. Knows addresses that were
//! tested, and no path.

use crate::access::{Cell, WHOLE, update_whole};
use crate::machine::{Flow, Machine, Op, OpFn};
use crate::regs::{Lane, STRIP};
use crate::spaces::{StateSpace, shared_address, unpack};
use ptx::ast::Type;

/// One atomic operation.
pub(crate) trait Atomic {
    type Value: Cell + Lane;

    /// The new value from the old one and the operands.
    fn apply(old: Self::Value, b: Self::Value, c: Self::Value) -> Self::Value;
}

/// For each running lane, ascending: source 1 (and 2) into the place at source 0; the old value to
/// destination 0 if `width[0]` is not 0.
///
/// # Safety
/// None: any machine has it.
pub(super) unsafe fn run<A: Atomic>(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let access = unpack(op.imm);
    let size = size_of::<A::Value>();
    let frame = cx.frame;
    let operand = |index: usize, lane: usize| {
        frame.lane::<A::Value>(
            op.s[index] as usize,
            if op.varies(index) { lane } else { 0 },
        )
    };
    let wanted = op.width[0] != 0;
    // Whoever else reaches shared memory runs on this thread.
    let own = access.place == StateSpace::Shared;
    if !wanted && let Some((host, _)) = cx.each_shared(op, access, size as u64) {
        for strip in cx.low..cx.high {
            let addresses = frame.strip::<u32>(op.s[0] as usize, strip);
            for (lane, address) in addresses.into_iter().enumerate() {
                let lane = strip * STRIP + lane;
                let (b, c) = (operand(1, lane), operand(2, lane));
                let host = host + u64::from(shared_address(address, access));
                // SAFETY: `each_shared` tested it for each lane.
                unsafe { A::Value::store(host, A::apply(A::Value::load(host), b, c)) };
            }
        }
        return Flow::Next;
    }
    let tested = match cx.addresses(op, access, size, true) {
        Ok(tested) => tested,
        Err(flow) => return flow,
    };
    for lane in cx.mask.lanes() {
        let (b, c) = (operand(1, lane), operand(2, lane));
        let host = cx.tested(tested, lane, size);
        // SAFETY: `addresses` tested it for this lane.
        let old = unsafe {
            if own {
                let old = A::Value::load(host);
                A::Value::store(host, A::apply(old, b, c));
                old
            } else {
                A::Value::update(host, |old| Some(A::apply(old, b, c)))
            }
        };
        if wanted {
            frame.set_lane(op.d[0] as usize, lane, old);
        }
    }
    Flow::Next
}

/// Sources 1 and 2, and 3 and 4, as 128 bits.
fn whole(cx: &Machine<'_>, op: &Op, first: usize, lane: usize) -> u128 {
    let half = |source: usize| {
        let lane = if op.varies(source) { lane } else { 0 };
        u128::from(cx.frame.wide(op.s[source] as usize, lane, 8))
    };
    half(first) | half(first + 1) << 64
}

/// For each running lane: a function of 16 bytes at the place at source 0, whose old value goes to destinations 0 and 1.
fn run_whole(
    cx: &mut Machine<'_>,
    op: &Op,
    f: impl Fn(&Machine<'_>, usize, u128) -> Option<u128>,
) -> Flow {
    let access = unpack(op.imm);
    let tested = match cx.addresses(op, access, WHOLE, true) {
        Ok(tested) => tested,
        Err(flow) => return flow,
    };
    for lane in cx.mask.lanes() {
        let host = cx.tested(tested, lane, WHOLE);
        // SAFETY: `addresses` tested it for this lane, its alignment too; who chose the operation has looked whether the
        // processor can do it.
        let old = unsafe { update_whole(host, |old| f(cx, lane, old)) };
        cx.set_if(op, 0, lane, 8, old as u64);
        cx.set_if(op, 1, lane, 8, (old >> 64) as u64);
    }
    Flow::Next
}

/// `atom.exch.b128`: sources: the address, and two of 64 bits.
///
/// # Safety
/// The processor has `cmpxchg16b`.
pub(crate) unsafe fn exchange_whole(cx: &mut Machine<'_>, op: &Op) -> Flow {
    run_whole(cx, op, |cx, lane, _| Some(whole(cx, op, 1, lane)))
}

/// `atom.cas.b128`: sources: the address, two of 64 bits that are compared with, and two that replace.
///
/// # Safety
/// The processor has `cmpxchg16b`.
pub(crate) unsafe fn compare_whole(cx: &mut Machine<'_>, op: &Op) -> Flow {
    run_whole(cx, op, |cx, lane, old| {
        (old == whole(cx, op, 1, lane)).then(|| whole(cx, op, 3, lane))
    })
}

macro_rules! atomic {
    ($t:ty; |$old:ident, $b:ident, $c:ident| $e:expr) => {{
        struct Operation;
        impl Atomic for Operation {
            type Value = $t;

            #[inline(always)]
            fn apply($old: $t, $b: $t, $c: $t) -> $t {
                $e
            }
        }
        AtomicOperation {
            run: run::<Operation>,
            bulk: super::bulk::reduce::<Operation>,
            combine: super::bulk::combine::<Operation>,
            operands: 1,
        }
    }};
}

/// Floats that stand in integers.
macro_rules! float_add {
    ($bits:ident, $float:ident) => {
        atomic!($bits; |old, b, _c| ($float::from_bits(old) + $float::from_bits(b)).to_bits())
    };
}

/// The sum of `f32` in global memory, where subnormal operands and results are zeroes.
pub(crate) fn add_flushed() -> OpFn {
    atomic!(u32; |old, b, _c| {
        let flush = |bits: u32| super::float::flush(f32::from_bits(bits));
        super::float::flush(flush(old) + flush(b)).to_bits()
    })
    .run
}

/// An atomic operation.
pub(crate) struct AtomicOperation {
    /// On a place of each lane.
    pub(crate) run: OpFn,
    /// On many places, with as many elements elsewhere in memory.
    pub(crate) bulk: OpFn,
    /// On so many bytes at one host address, with those at another.
    pub(crate) combine: unsafe fn(u64, u64, u64),
    /// How many operands it takes after the address.
    pub(crate) operands: usize,
}

/// The operation of an atomic instruction.
pub(crate) fn find(name: &str, ty: Type) -> Option<AtomicOperation> {
    // Bits that are not counted with may be of any type of their size; those of 128 are not built.
    let (four, wide) = (ty.size() == 4, ty.size() == 8);
    Some(match (name, ty) {
        ("add", Type::U32 | Type::S32) => atomic!(u32; |old, b, _c| old.wrapping_add(b)),
        ("add", Type::U64 | Type::S64) => atomic!(u64; |old, b, _c| old.wrapping_add(b)),
        ("add", Type::F32) => float_add!(u32, f32),
        ("add", Type::F64) => float_add!(u64, f64),
        ("add", Type::F16) => atomic!(u16; |old, b, _c| half(old, b, Type::F16, |a, b| a + b)),
        ("add", Type::Bf16) => atomic!(u16; |old, b, _c| half(old, b, Type::Bf16, |a, b| a + b)),
        ("add", Type::F16x2) => atomic!(u32; |old, b, _c| pair(old, b, Type::F16, |a, b| a + b)),
        ("add", Type::Bf16x2) => atomic!(u32; |old, b, _c| pair(old, b, Type::Bf16, |a, b| a + b)),
        ("min", Type::F16) => atomic!(u16; |old, b, _c| half(old, b, Type::F16, f64::min)),
        ("min", Type::Bf16) => atomic!(u16; |old, b, _c| half(old, b, Type::Bf16, f64::min)),
        ("min", Type::F16x2) => atomic!(u32; |old, b, _c| pair(old, b, Type::F16, f64::min)),
        ("min", Type::Bf16x2) => atomic!(u32; |old, b, _c| pair(old, b, Type::Bf16, f64::min)),
        ("max", Type::F16) => atomic!(u16; |old, b, _c| half(old, b, Type::F16, f64::max)),
        ("max", Type::Bf16) => atomic!(u16; |old, b, _c| half(old, b, Type::Bf16, f64::max)),
        ("max", Type::F16x2) => atomic!(u32; |old, b, _c| pair(old, b, Type::F16, f64::max)),
        ("max", Type::Bf16x2) => atomic!(u32; |old, b, _c| pair(old, b, Type::Bf16, f64::max)),
        ("and", _) if wide => atomic!(u64; |old, b, _c| old & b),
        ("and", _) if four => atomic!(u32; |old, b, _c| old & b),
        ("or", _) if wide => atomic!(u64; |old, b, _c| old | b),
        ("or", _) if four => atomic!(u32; |old, b, _c| old | b),
        ("xor", _) if wide => atomic!(u64; |old, b, _c| old ^ b),
        ("xor", _) if four => atomic!(u32; |old, b, _c| old ^ b),
        ("exch", _) if wide => atomic!(u64; |_old, b, _c| b),
        ("exch", _) if four => atomic!(u32; |_old, b, _c| b),
        ("cas", Type::B16) => atomic!(u16; |old, b, c| if old == b { c } else { old }).of_two(),
        ("cas", _) if wide => atomic!(u64; |old, b, c| if old == b { c } else { old }).of_two(),
        ("cas", _) if four => atomic!(u32; |old, b, c| if old == b { c } else { old }).of_two(),
        ("inc", Type::U32) => atomic!(u32; |old, b, _c| if old >= b { 0 } else { old + 1 }),
        ("dec", Type::U32) => {
            atomic!(u32; |old, b, _c| if old == 0 || old > b { b } else { old - 1 })
        }
        ("min", Type::U32) => atomic!(u32; |old, b, _c| old.min(b)),
        ("max", Type::U32) => atomic!(u32; |old, b, _c| old.max(b)),
        ("min", Type::U64) => atomic!(u64; |old, b, _c| old.min(b)),
        ("max", Type::U64) => atomic!(u64; |old, b, _c| old.max(b)),
        ("min", Type::S32) => atomic!(u32; |old, b, _c| (old as i32).min(b as i32) as u32),
        ("max", Type::S32) => atomic!(u32; |old, b, _c| (old as i32).max(b as i32) as u32),
        ("min", Type::S64) => atomic!(u64; |old, b, _c| (old as i64).min(b as i64) as u64),
        ("max", Type::S64) => atomic!(u64; |old, b, _c| (old as i64).max(b as i64) as u64),
        _ => return None,
    })
}

impl AtomicOperation {
    fn of_two(self) -> Self {
        Self {
            operands: 2,
            ..self
        }
    }
}

fn half(a: u16, b: u16, ty: Type, f: fn(f64, f64) -> f64) -> u16 {
    let imm = super::half::kind(ty);
    let value = |bits: u16| f64::from(super::half::to_f32(bits, imm));
    let result = f(value(a), value(b));
    if result.is_nan() {
        0x7fff
    } else {
        super::half::from_f64(result, imm)
    }
}

fn pair(a: u32, b: u32, ty: Type, f: fn(f64, f64) -> f64) -> u32 {
    let low = half(a as u16, b as u16, ty, f);
    let high = half((a >> 16) as u16, (b >> 16) as u16, ty, f);
    u32::from(high) << 16 | u32::from(low)
}
