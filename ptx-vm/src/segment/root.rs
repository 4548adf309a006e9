//! Signs, larger and smaller numbers, and reciprocal roots, which take a segment several instructions, for both vector units.
//!
//! Called by `allocate` for its steps. Must not know where a value comes from.

use super::allocate::{Allocator, Unit};
use super::encode::{self, Opcode, Rm};
use crate::isa::Isa;
use crate::ops::float::Float;

impl Allocator<'_> {
    /// The larger of two numbers, or the smaller; a NaN is neither. AVX-512 only.
    pub(super) fn extreme(&mut self, a: Unit, b: Unit, larger: bool) -> u8 {
        const UNORDERED: u8 = 3;
        let [a, b] = [a, b].map(|unit| self.load(unit));
        let d = self.free();
        // By magnitude and sign, so that +0 is above -0.
        let which = Some(0b0100 | u8::from(larger));
        self.out
            .vector_imm(RANGE_F32, d, a, Rm::Register(b), 0, which);
        // Where one is a NaN, the other one; where both are, the one that PTX says.
        for (number, other) in [(a, b), (b, a)] {
            let same = Rm::Register(number);
            self.out
                .vector_imm(COMPARE_F32, 3, number, same, 0, Some(UNORDERED));
            self.out.vector(encode::BLEND, d, 0, Rm::Register(other), 3);
        }
        self.out
            .vector_imm(COMPARE_F32, 3, a, Rm::Register(a), 3, Some(UNORDERED));
        let nan = Rm::Constant(<f32 as Float>::NAN.to_bits());
        self.out.vector(BLEND_32, d, d, nan, 3);
        d
    }

    pub(super) fn negate(&mut self, a: Unit) -> u8 {
        let from = self.load(a);
        let d = self.result(&[from]);
        if self.out.isa == Isa::Avx512 {
            self.out
                .vector(encode::XOR_32, d, from, Rm::Constant(0x8000_0000), 0);
            return d;
        }
        // All ones, shifted to the sign.
        let sign = self.free();
        self.out.vector(ONES, sign, sign, Rm::Register(sign), 0);
        self.out
            .vector_imm(SHIFT_LEFT_IMM, 6, sign, Rm::Register(sign), 0, Some(31));
        self.out
            .vector(encode::XOR_32, d, from, Rm::Register(sign), 0);
        self.registers[sign as usize] = None;
        d
    }

    pub(super) fn rsqrt(&mut self, a: Unit, flush: bool) -> u8 {
        let mut x = self.load(a);
        if self.out.isa != Isa::Avx512 {
            return self.rsqrt_by_division(x, flush);
        }
        if flush {
            let own = self.result(&[x]);
            self.out.copy(own, x);
            x = own;
            self.registers[x as usize] = None;
            self.out
                .vector_imm(encode::CLASS_F32, 3, 0, Rm::Register(x), 0, Some(0x20));
            self.out
                .vector(encode::AND_MASKED, x, x, Rm::Constant(0x8000_0000), 3);
        }
        let running = self.running(a.1);
        let (estimate, error) = (self.free(), self.free());
        let (one, half) = (Rm::Constant(0x3f80_0000), Rm::Constant(0x3f00_0000));
        self.out
            .vector(encode::RSQRT14, estimate, 0, Rm::Register(x), running);
        self.out
            .vector(encode::MUL_F32, error, x, Rm::Register(estimate), running);
        self.out
            .vector(encode::FNMA_213_F32, error, estimate, one, running);
        let halved = self.free();
        self.out
            .vector(encode::MUL_F32, halved, estimate, half, running);
        self.out.vector(
            encode::fma(encode::FMA_213, false),
            error,
            halved,
            Rm::Register(estimate),
            running,
        );
        // Of 0 and infinity the estimate is exact, and the step would make NaNs of it.
        self.out.vector_imm(
            encode::CLASS_F32,
            3,
            0,
            Rm::Register(estimate),
            0,
            Some(0b1001_1110),
        );
        self.out
            .vector(encode::BLEND, error, 0, Rm::Register(estimate), 3);
        for temporary in [estimate, halved] {
            self.registers[temporary as usize] = None;
        }
        error
    }

    /// 1 / sqrt(x), for AVX2, whose estimate has 12 bits only.
    fn rsqrt_by_division(&mut self, x: u8, flush: bool) -> u8 {
        let (root, one) = (self.free(), self.free());
        let mut from = x;
        if flush {
            // Subnormal: the exponent's bits are 0. Keep the sign of those only.
            self.out.vector(ONES, one, one, Rm::Register(one), 0);
            self.out
                .vector_imm(SHIFT_LEFT_IMM, 6, one, Rm::Register(one), 0, Some(24));
            self.out
                .vector_imm(SHIFT_LEFT_IMM, 2, one, Rm::Register(one), 0, Some(1));
            // `one` is 0x7f800000 now.
            self.out
                .vector(encode::AND_32, root, x, Rm::Register(one), 0);
            self.out.vector(XOR_SELF, one, one, Rm::Register(one), 0);
            self.out.vector(EQUAL_32, one, one, Rm::Register(root), 0);
            // All ones where x is subnormal or 0; shift the sign bit away from what is cleared.
            self.out
                .vector_imm(SHIFT_LEFT_IMM, 2, one, Rm::Register(one), 0, Some(1));
            self.out.vector(AND_NOT, root, one, Rm::Register(x), 0);
            from = root;
        }
        self.out
            .vector(encode::SQRT_F32, root, 0, Rm::Register(from), 0);
        self.out.vector(ONES, one, one, Rm::Register(one), 0);
        self.out
            .vector_imm(SHIFT_LEFT_IMM, 6, one, Rm::Register(one), 0, Some(25));
        self.out
            .vector_imm(SHIFT_LEFT_IMM, 2, one, Rm::Register(one), 0, Some(2));
        // `one` is 1.0 now.
        self.out
            .vector(encode::DIV_F32, root, one, Rm::Register(root), 0);
        self.registers[one as usize] = None;
        root
    }
}

/// vrangeps, vcmpps to a mask
const RANGE_F32: Opcode = encode::opcode(3, 1, false, 0x50);
const COMPARE_F32: Opcode = encode::opcode(1, 0, false, 0xc2);
/// vpblendmd: the last operand under the mask, else the second
const BLEND_32: Opcode = encode::opcode(2, 1, false, 0x64);
/// vpcmpeqd
const EQUAL_32: Opcode = Opcode {
    map: 1,
    prefix: 1,
    wide: false,
    byte: 0x76,
};
const ONES: Opcode = EQUAL_32;
/// vpxor
const XOR_SELF: Opcode = encode::XOR_32;
/// vpandn: `reg = !second & rm`
const AND_NOT: Opcode = Opcode {
    map: 1,
    prefix: 1,
    wide: false,
    byte: 0xdf,
};
/// vpslld (/6) and vpsrld (/2) by an immediate: the destination is the second operand
pub(super) const SHIFT_LEFT_IMM: Opcode = Opcode {
    map: 1,
    prefix: 1,
    wide: false,
    byte: 0x72,
};
