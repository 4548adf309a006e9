//! Machine code on general registers and on single numbers in vector registers, for every processor with AVX2.
//!
//! Called by `scalar`. Must not know what is computed, nor why.

use super::branch::Label;
use super::encode::Assembler;

/// General registers by their numbers: where addresses and results are made, the lane, what helps, and turns that are left.
pub(super) const RAX: u8 = 0;
pub(super) const RCX: u8 = 1;
pub(super) const RDX: u8 = 2;
pub(super) const RSI: u8 = 6;
pub(super) const RDI: u8 = 7;
pub(super) const R11: u8 = 11;
pub(super) const TURNS: u8 = 15;
pub(super) const R10: u8 = 10;
/// Those that the code keeps for its caller, an even number.
const KEPT: [u8; 6] = [3, 5, 12, 13, 14, 15];

/// Where that has the strip.
pub(super) const STRIP: u8 = 0;
/// Bytes of the code's own part of the stack: 8 more than a multiple of 16.
const OWN: u8 = FIRST_BOUND + 8 * (BOUNDS + SHORTEST) as u8;
/// Numbers of elements that a loop can keep there, of arrays (`elements`) and behind those of several arrays (`neighbours`), and where
/// the first is.
pub(super) const BOUNDS: usize = 8;
pub(super) const SHORTEST: usize = 2;
pub(super) const FIRST_BOUND: u8 = 40;

/// The last operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Register(u8),
    /// At a distance in the frame.
    Frame(i32),
    /// At a distance in the frame, and as many lanes further as `rcx` says, of 1 << `log` bytes.
    Lane(i32, u8),
    /// At a distance from what a register holds.
    At(u8, i32),
    /// In the code's own part of the stack.
    Own(u8),
    /// In scratch, whose address is in `r11`, and as many lanes further as `rcx` says.
    Scratch(i32, u8),
    /// In [`crate::reach::Reach`].
    Reach(usize),
    /// At a distance from what a register holds, and as many elements further, of 1 << `log` bytes, as another one says.
    Element {
        base: u8,
        index: u8,
        log: u8,
        distance: i32,
    },
}

/// An instruction between general registers and memory: its opcode, and what stands in place of a register.
pub(super) mod op {
    pub(crate) const ADD: &[u8] = &[0x03];
    pub(crate) const OR: &[u8] = &[0x0b];
    pub(crate) const AND: &[u8] = &[0x23];
    pub(crate) const SUB: &[u8] = &[0x2b];
    pub(crate) const XOR: &[u8] = &[0x33];
    pub(crate) const COMPARE: &[u8] = &[0x3b];
    pub(crate) const MULTIPLY: &[u8] = &[0x0f, 0xaf];
    pub(crate) const LOAD: &[u8] = &[0x8b];
    pub(crate) const LOAD_8: &[u8] = &[0x0f, 0xb6];
    pub(crate) const LOAD_16: &[u8] = &[0x0f, 0xb7];
    pub(crate) const LOAD_SIGNED_32: &[u8] = &[0x63];
    pub(crate) const STORE: &[u8] = &[0x89];
    pub(crate) const STORE_8: &[u8] = &[0x88];
    pub(crate) const TEST: &[u8] = &[0x85];
    pub(crate) const ADDRESS: &[u8] = &[0x8d];
    /// prefetcht0, prefetchw, both with 1 in place of a register
    pub(crate) const FETCH: &[u8] = &[0x0f, 0x18];
    pub(crate) const FETCH_TO_WRITE: &[u8] = &[0x0f, 0x0d];
    pub(crate) const FIRST_BIT: &[u8] = &[0x0f, 0xbc];
}

/// Conditions of jumps, `cmov` and `set`.
pub(super) mod when {
    use super::super::tag::Compared;

    pub(crate) const BELOW: u8 = 2;
    pub(crate) const NOT_BELOW: u8 = 3;
    pub(crate) const ZERO: u8 = 4;
    pub(crate) const NOT_ZERO: u8 = 5;
    pub(crate) const NOT_ABOVE: u8 = 6;
    pub(crate) const ABOVE: u8 = 7;
    pub(crate) const LESS: u8 = 12;
    pub(crate) const NOT_LESS: u8 = 13;
    pub(crate) const NOT_GREATER: u8 = 14;
    pub(crate) const GREATER: u8 = 15;

    /// On which condition a comparison of whole numbers holds, by the processor's number of its predicate.
    pub(crate) fn holds(compared: Compared, predicate: u8) -> Option<u8> {
        let signed = matches!(compared, Compared::S32 | Compared::S64);
        let condition = match (predicate, signed) {
            (0, _) => ZERO,
            (4, _) => NOT_ZERO,
            (1, true) => LESS,
            (2, true) => NOT_GREATER,
            (5, true) => NOT_LESS,
            (6, true) => GREATER,
            (1, false) => BELOW,
            (2, false) => NOT_ABOVE,
            (5, false) => NOT_BELOW,
            (6, false) => ABOVE,
            _ => return None,
        };
        compared.is_whole().then_some(condition)
    }
}

impl Place {
    /// The highest bits of its registers: of an index, and of a base.
    fn high(self) -> u8 {
        match self {
            Self::Register(register) | Self::At(register, _) => register >> 3,
            Self::Element { base, index, .. } => index >> 3 << 1 | base >> 3,
            Self::Scratch(..) | Self::Reach(_) => 1,
            Self::Frame(_) | Self::Lane(..) | Self::Own(_) => 0,
        }
    }
}

impl Assembler {
    /// The last operand, beside a register's number.
    fn place(&mut self, reg: u8, place: Place) {
        let field = (reg & 7) << 3;
        let (form, distance) = match place {
            Place::Register(register) => {
                self.code.push(0xc0 | field | register & 7);
                return;
            }
            Place::Own(distance) => {
                self.code.extend_from_slice(&[0x44 | field, 0x24, distance]);
                return;
            }
            Place::Frame(distance) => (vec![0x80 | field | RDI], distance),
            // What would be `rsp` takes a byte more.
            Place::At(base, distance) if base & 7 == 4 => (vec![0x84 | field, 0x24], distance),
            Place::At(base, distance) => (vec![0x80 | field | base & 7], distance),
            Place::Reach(distance) => (vec![0x80 | field | R10 & 7], distance as i32),
            Place::Lane(distance, log) => (vec![0x84 | field, log << 6 | RCX << 3 | RDI], distance),
            Place::Element {
                base,
                index,
                log,
                distance,
            } => (
                vec![0x84 | field, log << 6 | (index & 7) << 3 | base & 7],
                distance,
            ),
            Place::Scratch(distance, log) => {
                (vec![0x84 | field, log << 6 | RCX << 3 | R11 & 7], distance)
            }
        };
        self.code.extend_from_slice(&form);
        self.code.extend_from_slice(&distance.to_le_bytes());
    }

    /// An instruction on 64 bits, or on 32 or fewer.
    pub(super) fn general(&mut self, wide: bool, op: &[u8], reg: u8, place: Place) {
        let wide = u8::from(wide) << 3;
        self.code.push(0x40 | wide | (reg >> 3) << 2 | place.high());
        self.code.extend_from_slice(op);
        self.place(reg, place);
    }

    /// The same on 16 bits.
    pub(super) fn general_16(&mut self, op: &[u8], reg: u8, place: Place) {
        self.code.push(0x66);
        self.general(false, op, reg, place);
    }

    /// An instruction with a constant: 0 adds, 1 is or, 4 and, 5 subtracts, 6 is exclusive or, 7 compares.
    pub(super) fn general_constant(&mut self, wide: bool, which: u8, to: u8, constant: i32) {
        self.general(wide, &[0x81], which, Place::Register(to));
        self.code.extend_from_slice(&constant.to_le_bytes());
    }

    /// A shift by a constant: 4 to the left, 5 to the right, 7 to the right with its sign.
    pub(super) fn shift(&mut self, wide: bool, which: u8, to: u8, count: u8) {
        self.general(wide, &[0xc1], which, Place::Register(to));
        self.code.push(count);
    }

    /// A register's bits turned round.
    pub(super) fn complement(&mut self, to: u8) {
        self.general(false, &[0xf7], 2, Place::Register(to));
    }

    /// A constant, with zeros before 32 bits.
    pub(super) fn set_constant(&mut self, to: u8, constant: u64) {
        match u32::try_from(constant) {
            Ok(constant) => {
                self.code
                    .extend_from_slice(&[0x40 | to >> 3, 0xb8 | to & 7]);
                self.code.extend_from_slice(&constant.to_le_bytes());
            }
            Err(_) => {
                self.code
                    .extend_from_slice(&[0x48 | to >> 3, 0xb8 | to & 7]);
                self.code.extend_from_slice(&constant.to_le_bytes());
            }
        }
    }

    /// 1 if the condition holds, else 0.
    pub(super) fn set_if(&mut self, condition: u8, to: u8) {
        let op = [0x0f, 0x90 | condition];
        self.general(false, &op, 0, Place::Register(to));
        self.general(false, op::LOAD_8, to, Place::Register(to));
    }

    /// What stands in a place, if the condition holds.
    pub(super) fn move_if(&mut self, wide: bool, condition: u8, to: u8, place: Place) {
        self.general(wide, &[0x0f, 0x40 | condition], to, place);
    }

    /// Looks at bits of a register's lowest byte.
    pub(super) fn test_low(&mut self, register: u8, bits: u8) {
        self.general(false, &[0xf6], 0, Place::Register(register));
        self.code.push(bits);
    }

    /// An instruction with three operands on single numbers.
    pub(super) fn single(&mut self, op: Single, reg: u8, second: u8, place: Place) {
        let bit = |value: u8, at: u8| (!value & 1) << at;
        self.code.extend_from_slice(&[
            0xc4,
            bit(reg >> 3, 7) | bit(place.high() >> 1, 6) | bit(place.high(), 5) | op.map,
            u8::from(op.wide) << 7 | (!second & 15) << 3 | op.prefix,
            op.byte,
        ]);
        self.place(reg, place);
    }

    /// Counts a lane from eax, the lanes that are still to come: ecx is its number in the strip.
    pub(super) fn next_lane(&mut self) {
        self.code.push(0xf3);
        self.general(false, op::FIRST_BIT, RCX, Place::Register(RAX));
        self.general(false, op::ADDRESS, R11, Place::At(RAX, -1));
        self.general(false, op::AND, R11, Place::Register(RAX));
    }

    /// eax = the bit of a lane's place in its strip
    pub(super) fn lane_bit(&mut self) {
        self.set_constant(RAX, 1);
        // rcx modulo 16 is what counts: shl eax, cl, and the upper half to the lower one.
        self.general(false, &[0xd3], 4, Place::Register(RAX));
        self.general(false, op::LOAD, R11, Place::Register(RAX));
        self.shift(false, 5, R11, 16);
        self.general(false, op::OR, RAX, Place::Register(R11));
        self.general(false, op::LOAD_16, RAX, Place::Register(RAX));
    }

    /// Keeps what the caller needs, and makes a part of the stack of the code's own; the stack is aligned for calls then.
    pub(super) fn enter(&mut self) {
        for register in KEPT {
            self.code
                .extend_from_slice(&[0x40 | register >> 3, 0x50 | register & 7]);
        }
        self.code.extend_from_slice(&[0x48, 0x83, 0xec, OWN]); // sub rsp, OWN
    }

    /// Gives it back and returns what is in eax.
    pub(super) fn leave(&mut self) {
        self.code.extend_from_slice(&[0x48, 0x83, 0xc4, OWN]); // add rsp, OWN
        for &register in KEPT.iter().rev() {
            self.code
                .extend_from_slice(&[0x40 | register >> 3, 0x58 | register & 7]);
        }
        self.code.push(0xc3);
    }

    /// A product with a constant of 32 bits, which is written where this says.
    pub(super) fn multiply(&mut self, to: u8, from: u8) -> usize {
        self.general(true, &[0x69], to, Place::Register(from));
        self.code.extend_from_slice(&[0; 4]);
        self.code.len() - 4
    }

    /// The address of what a label says.
    pub(super) fn address(&mut self, to: u8, of: &mut Label) {
        self.code
            .extend_from_slice(&[0x48 | (to >> 3) << 2, 0x8d, (to & 7) << 3 | 5]); // lea to, [rip + ...]
        of.is_from(self.code.len());
        self.code.extend_from_slice(&[0; 4]);
    }

    /// rcx = the lane's number, which was that in the strip; r11 is lost.
    pub(super) fn lane_of_strip(&mut self) {
        self.general(true, op::LOAD, R11, Place::Own(STRIP));
        self.shift(true, 4, R11, 4);
        self.general(true, op::ADD, RCX, Place::Register(R11));
    }

    /// Keeps a register on the stack.
    pub(super) fn push(&mut self, register: u8) {
        self.code
            .extend_from_slice(&[0x40 | register >> 3, 0x50 | register & 7]);
    }

    /// Takes it back.
    pub(super) fn pop(&mut self, register: u8) {
        self.code
            .extend_from_slice(&[0x40 | register >> 3, 0x58 | register & 7]);
    }

    /// Jumps back to a place that is there, if the condition holds.
    pub(super) fn jump_back_if(&mut self, condition: u8, to: usize) {
        let distance = to as i64 - (self.code.len() as i64 + 6);
        self.code.extend_from_slice(&[0x0f, 0x80 | condition]);
        self.code
            .extend_from_slice(&(distance as i32).to_le_bytes());
    }

    /// Jumps if the condition holds.
    pub(super) fn jump_if(&mut self, condition: u8, to: &mut Label) {
        self.code.extend_from_slice(&[0x0f, 0x80 | condition]);
        to.is_from(self.code.len());
        self.code.extend_from_slice(&[0; 4]);
    }
}

/// An instruction on single numbers: opcode map, mandatory prefix and W as those of vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Single {
    map: u8,
    prefix: u8,
    wide: bool,
    byte: u8,
}

const fn single(map: u8, prefix: u8, wide: bool, byte: u8) -> Single {
    Single {
        map,
        prefix,
        wide,
        byte,
    }
}

impl Single {
    /// vmovss or vmovsd from memory, and to it
    pub(super) const LOAD: [Self; 2] = [single(1, 2, false, 0x10), single(1, 3, false, 0x10)];
    pub(super) const STORE: [Self; 2] = [single(1, 2, false, 0x11), single(1, 3, false, 0x11)];
    /// vmovaps
    pub(super) const COPY: Self = single(1, 0, false, 0x28);
    /// vmovups of 16 bytes
    pub(super) const LOAD_ALL: Self = single(1, 0, false, 0x10);
    pub(super) const STORE_ALL: Self = single(1, 0, false, 0x11);
    /// vmovd from a vector register
    pub(super) const TO_GENERAL: Self = single(1, 1, false, 0x7e);
    /// vcvtsi2ss from 32 bits and from 64
    pub(super) const FROM_S32: Self = single(1, 2, false, 0x2a);
    pub(super) const FROM_S64: Self = single(1, 2, true, 0x2a);
    /// Fused multiply-add: `reg = reg * place + second`, `reg = second * reg + place`, `reg = second * place + reg`.
    pub(super) const FMA_132: [Self; 2] = [single(2, 1, false, 0x99), single(2, 1, true, 0x99)];
    pub(super) const FMA_213: [Self; 2] = [single(2, 1, false, 0xa9), single(2, 1, true, 0xa9)];
    pub(super) const FMA_231: [Self; 2] = [single(2, 1, false, 0xb9), single(2, 1, true, 0xb9)];

    /// Arithmetic by its opcode, of single and double precision.
    pub(super) const fn arithmetic(byte: u8, double: bool) -> Self {
        single(1, if double { 3 } else { 2 }, false, byte)
    }
}
