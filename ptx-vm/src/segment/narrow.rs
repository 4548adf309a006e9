//! Predicates, and values of 8 and 16 bits, in segments for AVX-512: in vectors they are lanes of 32 bits with zeros before
//! them, in slots they are as narrow as anywhere.
//!
//! Called by `allocate`. Must not know what a predicate guards.

use super::allocate::Allocator;
use super::encode::{Assembler, Base, Opcode, Rm, ZEROED, opcode};
use super::step::SegmentStep;
use super::tag::Compared;

impl Assembler {
    /// r11 = where a slot of lanes of one or two bytes has this strip, less the slot's offset
    pub(super) fn narrow_strip(&mut self, width: u8) {
        let shift = if width == 1 { 4 } else { 5 };
        self.code.extend_from_slice(&[0x49, 0x89, 0xf3]); // mov r11, rsi
        self.code.extend_from_slice(&[0x49, 0xc1, 0xe3, shift]); // shl r11, shift
        self.code.extend_from_slice(&[0x49, 0x01, 0xfb]); // add r11, rdi
    }

    /// Loads 16 lanes of one or two bytes.
    pub(super) fn load_narrow(&mut self, to: u8, base: Base, offset: i32, width: u8) {
        let op = if width == 1 { EXTEND_8 } else { EXTEND_16 };
        self.vector(op, to, 0, Rm::Memory(base, offset), 0);
    }

    /// Loads those lanes of a slot that are not in the mask; k5 is lost.
    pub(super) fn load_others(&mut self, to: u8, base: Base, offset: i32, width: u8, mask: u8) {
        self.code
            .extend_from_slice(&[0xc5, 0xf8, 0x44, 0xe8 | mask]); // knotw k5, mask
        let op = match width {
            1 => EXTEND_8,
            2 => EXTEND_16,
            4 => LOAD_32,
            _ => LOAD_64,
        };
        self.vector(op, to, 0, Rm::Memory(base, offset), 5);
    }

    /// Stores 16 lanes of one or two bytes; under a mask only those of it.
    pub(super) fn store_narrow(&mut self, from: u8, base: Base, offset: i32, width: u8, mask: u8) {
        let op = if width == 1 { TRUNCATE_8 } else { TRUNCATE_16 };
        self.vector(op, from, 0, Rm::Memory(base, offset), mask);
    }
}

impl Assembler {
    /// `eax` = the element of one or two bytes at `[rax]`
    pub(super) fn narrow_at_rax(&mut self, element: usize) {
        self.code
            .extend_from_slice(&[0x0f, 0xb6 | u8::from(element == 2), 0x00]); // movzx eax, [rax]
    }

    /// r11d = the element of one or two bytes at [r11 + distance], or at [rax + r11 + distance]
    pub(super) fn narrow_to_r11(&mut self, element: usize, from: Rm) {
        let byte = 0xb6 | u8::from(element == 2);
        match from {
            Rm::Sum(_, distance) => {
                self.code.extend_from_slice(&[0x46, 0x0f, byte, 0x9c, 0x18]);
                self.code.extend_from_slice(&distance.to_le_bytes());
            }
            Rm::Memory(Base::R11, distance) => {
                self.code.extend_from_slice(&[0x45, 0x0f, byte, 0x9b]);
                self.code.extend_from_slice(&distance.to_le_bytes());
            }
            _ => {}
        }
    }
}

impl Allocator<'_> {
    /// Whether the comparison holds: 1 or 0.
    pub(super) fn compare(&mut self, step: &SegmentStep, compared: Compared, predicate: u8) -> u8 {
        let (op, parts) = match compared {
            Compared::F32 => (COMPARE_F32, 1),
            Compared::F64 => (COMPARE_F64, 2),
            Compared::S32 => (COMPARE_S32, 1),
            Compared::S64 => (COMPARE_S64, 2),
            Compared::U32 => (COMPARE_U32, 1),
            Compared::U64 => (COMPARE_U64, 2),
        };
        for part in 0..parts {
            let [a, b] = [0, 1].map(|source| self.load((step.s[source], part)));
            let imm = Some(predicate);
            self.out
                .vector_imm(op, 3 + part, a, Rm::Register(b), 0, imm);
        }
        if parts == 2 {
            // kunpckbw k3, k4, k3
            self.out.code.extend_from_slice(&[0xc5, 0xdd, 0x4b, 0xdb]);
        }
        let d = self.free();
        // 1 in the lanes of the mask: how far 1 is from 0.
        let mask = ZEROED | 3;
        self.out.vector(DISTANCE_32, d, 0, Rm::Constant(1), mask);
        d
    }

    /// Part of the first or the second source, as the third one says.
    pub(super) fn select(&mut self, step: &SegmentStep, part: u8, wide: bool) -> u8 {
        let [a, b] = [0, 1].map(|source| self.load((step.s[source], part)));
        let chosen = self.load((step.s[2], 0));
        self.out.vector(TEST_32, 3, chosen, Rm::Register(chosen), 0);
        if part == 1 {
            // kshiftrw k3, k3, 8
            self.out
                .code
                .extend_from_slice(&[0xc4, 0xe3, 0xf9, 0x30, 0xdb, 8]);
        }
        let d = self.free();
        let op = if wide { BLEND_64 } else { BLEND_32 };
        self.out.vector(op, d, b, Rm::Register(a), 3);
        d
    }
}

/// vmovups, vmovupd
const LOAD_32: Opcode = opcode(1, 0, false, 0x10);
const LOAD_64: Opcode = opcode(1, 1, true, 0x10);
/// vpmovzxbd, vpmovzxwd
const EXTEND_8: Opcode = opcode(2, 1, false, 0x31);
const EXTEND_16: Opcode = opcode(2, 1, false, 0x33);
/// vpmovdb, vpmovdw, whose destination is the last operand
const TRUNCATE_8: Opcode = opcode(2, 2, false, 0x31);
const TRUNCATE_16: Opcode = opcode(2, 2, false, 0x33);
/// vcmpps, vcmppd, vpcmpd, vpcmpq, vpcmpud, vpcmpuq, to a mask
const COMPARE_F32: Opcode = opcode(1, 0, false, 0xc2);
const COMPARE_F64: Opcode = opcode(1, 1, true, 0xc2);
const COMPARE_S32: Opcode = opcode(3, 1, false, 0x1f);
const COMPARE_S64: Opcode = opcode(3, 1, true, 0x1f);
const COMPARE_U32: Opcode = opcode(3, 1, false, 0x1e);
const COMPARE_U64: Opcode = opcode(3, 1, true, 0x1e);
/// vpabsd
const DISTANCE_32: Opcode = opcode(2, 1, false, 0x1e);
/// vptestmd, to a mask
const TEST_32: Opcode = opcode(2, 1, false, 0x27);
/// vpblendmd, vpblendmq: the last operand under the mask, else the second
const BLEND_32: Opcode = opcode(2, 1, false, 0x64);
const BLEND_64: Opcode = opcode(2, 1, true, 0x64);
