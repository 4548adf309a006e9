//! Steps of a segment between lanes of 32 and of 64 bits, for AVX-512: 64-bit lanes take two vectors.
//!
//! Called by `allocate`. Must not know why an address is computed.

use super::allocate::{Allocator, Unit};
use super::encode::{self, Opcode, Rm, opcode};
use super::step::SegmentStep;
use super::transfer::UPPER_HALF;

impl Allocator<'_> {
    /// Lanes 0 to 7 of a vector of 32-bit lanes, or lanes 8 to 15, as 64-bit lanes in a register of their own.
    pub(super) fn widen(&mut self, from: Unit, part: u8, signed: bool) -> u8 {
        let narrow = self.load(from);
        let wide = self.free();
        let op = if signed { WIDEN_SIGNED } else { WIDEN };
        let mut lanes = narrow;
        if part == 1 {
            self.out
                .vector_imm(UPPER_HALF, narrow, 0, Rm::Register(wide), 0, Some(1));
            lanes = wide;
        }
        self.out.vector(op, wide, 0, Rm::Register(lanes), 0);
        wide
    }

    /// Part of the product of two 32-bit numbers.
    pub(super) fn multiply_wide(&mut self, step: &SegmentStep, part: u8, signed: bool) -> u8 {
        let a = self.widen((step.s[0], 0), part, false);
        let b = self.widen((step.s[1], 0), part, false);
        // It looks at the lower halves only.
        let op = if signed { MUL_WIDE_S32 } else { MUL_WIDE_U32 };
        self.out.vector(op, a, a, Rm::Register(b), 0);
        a
    }

    /// A shift of 64-bit lanes by counts of 32 bits.
    pub(super) fn shift_wide(&mut self, op: Opcode, step: &SegmentStep, part: u8) -> u8 {
        let from = self.load((step.s[0], part));
        let counts = self.widen((step.s[1], 0), part, false);
        self.out.vector(op, counts, from, Rm::Register(counts), 0);
        counts
    }

    /// The lower halves of 64-bit lanes.
    pub(super) fn narrow(&mut self, from: crate::ir::Reg) -> u8 {
        let [low, high] = [0, 1].map(|part| self.load((from, part)));
        let (all, upper) = (self.free(), self.free());
        self.out.vector(NARROW, low, 0, Rm::Register(all), 0);
        self.out.vector(NARROW, high, 0, Rm::Register(upper), 0);
        self.out.vector_imm(
            encode::INSERT_UPPER,
            all,
            all,
            Rm::Register(upper),
            0,
            Some(1),
        );
        all
    }
}

/// vpmovzxdq, vpmovsxdq
pub(super) const WIDEN: Opcode = opcode(2, 1, false, 0x35);
pub(super) const WIDEN_SIGNED: Opcode = opcode(2, 1, false, 0x25);
/// vpmovqd, whose destination is the last operand
const NARROW: Opcode = opcode(2, 2, false, 0x35);
/// vpmuldq, vpmuludq
const MUL_WIDE_S32: Opcode = opcode(2, 1, true, 0x28);
const MUL_WIDE_U32: Opcode = opcode(1, 1, true, 0xf4);
/// vpsllvq, vpsrlvq
pub(super) const SHL_64: Opcode = opcode(2, 1, true, 0x47);
pub(super) const SHR_U64: Opcode = opcode(2, 1, true, 0x45);
