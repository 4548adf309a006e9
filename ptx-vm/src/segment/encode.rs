//! Machine code for x86-64's vector units, as little of it as segments need.
//!
//! Owns the bytes while they are put together. Called by the register allocator. Must not know lanes or registers
//! of PTX.

use crate::isa::Isa;

/// A general register that addresses are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// The frame: uniform slots.
    Rdi = 7,
    /// The strip of slots with 4 bytes a lane.
    R8 = 8,
    /// The strip of slots with 8 bytes a lane.
    R9 = 9,
    /// An address that was made.
    Rax = 0,
    /// What may be read: [`crate::reach::Reach`].
    R10 = 10,
    /// Scratch.
    R11 = 11,
    /// Addresses that several loads share: see [`super::group`].
    Rbx = 3,
    R13 = 13,
    R14 = 14,
    R15 = 15,
}

/// The last operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rm {
    Register(u8),
    Memory(Base, i32),
    /// At r11 + a general register, by its number, and a distance.
    Indexed(u8, i32),
    /// At rax + (r11 << log) and a distance: of single words only.
    Sum(u8, i32),
    /// One 32-bit number from memory in all lanes, or one of 64 bits where the instruction has such lanes; AVX-512 only,
    /// as what follows.
    Broadcast(Base, i32),
    /// One 32-bit constant in all lanes.
    Constant(u32),
    /// One 64-bit constant in all lanes.
    Constant64(u64),
    /// In each lane its number times the first, and the second added: in lanes of 32 bits, or of 64 (`true`).
    Row(bool, u8, u16),
}

impl Rm {
    /// What a constant operand has in memory.
    fn constant(self) -> Option<Vec<u8>> {
        let lane = |lane: u64, step: u8, first: u16| lane * u64::from(step) + u64::from(first);
        Some(match self {
            Self::Register(_)
            | Self::Memory(..)
            | Self::Indexed(..)
            | Self::Sum(..)
            | Self::Broadcast(..) => {
                return None;
            }
            Self::Constant(value) => value.to_le_bytes().to_vec(),
            Self::Constant64(value) => value.to_le_bytes().to_vec(),
            Self::Row(true, step, first) => (0..8)
                .flat_map(|at| lane(at, step, first).to_le_bytes())
                .collect(),
            Self::Row(false, step, first) => (0..16)
                .flat_map(|at| (lane(at, step, first) as u32).to_le_bytes())
                .collect(),
        })
    }
}

/// A vector instruction: opcode map (1: 0F, 2: 0F38, 3: 0F3A), mandatory prefix (1: 66, 2: F3, 3: F2), W,
/// opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opcode {
    pub(super) map: u8,
    pub(super) prefix: u8,
    pub(super) wide: bool,
    pub(super) byte: u8,
}

/// Code under way.
pub(super) struct Assembler {
    pub(super) code: Vec<u8>,
    pub(super) isa: Isa,
    /// Constants, and where their addresses are to be written.
    constants: Vec<(Vec<u8>, usize)>,
    /// General registers that the code has kept for its caller.
    pub(super) pushed: usize,
    /// It has kept those of rows too (`rows`).
    pub(super) keeps_rows: bool,
}

impl Assembler {
    pub(super) fn new(isa: Isa) -> Self {
        Self {
            code: Vec::new(),
            isa,
            constants: Vec::new(),
            pushed: 0,
            keeps_rows: false,
        }
    }

    /// Vector registers that there are.
    pub(super) fn registers(&self) -> usize {
        if self.isa == Isa::Avx512 { 32 } else { 16 }
    }

    /// Bytes of a vector.
    pub(super) fn bytes(&self) -> usize {
        if self.isa == Isa::Avx512 { 64 } else { 32 }
    }

    /// `op reg, second, rm`, under mask register `mask` (0: none), merging, or with zeros in other lanes ([`ZEROED`]).
    pub(super) fn vector(&mut self, op: Opcode, reg: u8, second: u8, rm: Rm, mask: u8) {
        self.vector_imm(op, reg, second, rm, mask, None);
    }

    /// The same with an immediate byte.
    pub(super) fn vector_imm(
        &mut self,
        op: Opcode,
        reg: u8,
        second: u8,
        rm: Rm,
        mask: u8,
        imm: Option<u8>,
    ) {
        let (rm_low, rm_mid) = match rm {
            Rm::Register(register) => (register >> 3 & 1, register >> 4 & 1),
            Rm::Memory(base, _) | Rm::Broadcast(base, _) => ((base as u8) >> 3 & 1, 0),
            Rm::Indexed(index, _) => (1, index >> 3 & 1),
            Rm::Sum(..) | Rm::Constant(_) | Rm::Constant64(_) | Rm::Row(..) => (0, 0),
        };
        let bit = |value: u8, at: u8| (value & 1) << at;
        if self.isa == Isa::Avx512 {
            let broadcast = u8::from(matches!(
                rm,
                Rm::Constant(_) | Rm::Constant64(_) | Rm::Broadcast(..)
            ));
            self.code.push(0x62);
            self.code.push(
                bit(!(reg >> 3), 7)
                    | bit(!rm_mid, 6)
                    | bit(!rm_low, 5)
                    | bit(!(reg >> 4), 4)
                    | op.map,
            );
            self.code
                .push(u8::from(op.wide) << 7 | (!second & 15) << 3 | 4 | op.prefix);
            self.code
                .push(0x40 | broadcast << 4 | bit(!(second >> 4), 3) | mask);
        } else {
            self.code.push(0xc4);
            self.code
                .push(bit(!(reg >> 3), 7) | bit(!rm_mid, 6) | bit(!rm_low, 5) | op.map);
            self.code
                .push(u8::from(op.wide) << 7 | (!second & 15) << 3 | 4 | op.prefix);
        }
        self.code.push(op.byte);
        let field = (reg & 7) << 3;
        match rm {
            Rm::Register(register) => self.code.push(0xc0 | field | register & 7),
            Rm::Memory(base, offset) | Rm::Broadcast(base, offset) => {
                self.code.push(0x80 | field | (base as u8) & 7);
                self.code.extend_from_slice(&offset.to_le_bytes());
            }
            Rm::Indexed(index, distance) => {
                let sum = (index & 7) << 3 | Base::R11 as u8 & 7;
                self.code.extend_from_slice(&[0x84 | field, sum]);
                self.code.extend_from_slice(&distance.to_le_bytes());
            }
            Rm::Sum(..) | Rm::Constant(_) | Rm::Constant64(_) | Rm::Row(..) => {
                self.code.push(field | 5);
                // The distance counts from the instruction's end; an immediate stands before that.
                let end = self.code.len() + 4 + usize::from(imm.is_some());
                self.constants
                    .extend(rm.constant().map(|bytes| (bytes, self.code.len())));
                self.code.extend_from_slice(&(end as i32).to_le_bytes());
            }
        }
        self.code.extend(imm);
    }

    /// Loads or stores a whole vector at any place; a store under a mask only the lanes of it, of 4 or (`wide`) 8 bytes.
    pub(super) fn transfer_at(&mut self, stores: bool, reg: u8, place: Rm, wide: bool, mask: u8) {
        let op = match (stores, wide && mask != 0) {
            (false, _) => MOVE_LOAD,
            (true, false) => MOVE_STORE,
            (true, true) => MOVE_STORE_WIDE,
        };
        self.vector(op, reg, 0, place, mask);
    }

    /// Loads or stores a whole vector.
    pub(super) fn load(&mut self, reg: u8, base: Base, offset: i32) {
        self.vector(MOVE_LOAD, reg, 0, Rm::Memory(base, offset), 0);
    }

    /// Stores a vector; under a mask only the lanes of it, of 4 or (`wide`) 8 bytes.
    pub(super) fn store(&mut self, reg: u8, base: Base, offset: i32, wide: bool, mask: u8) {
        let op = if wide && mask != 0 {
            MOVE_STORE_WIDE
        } else {
            MOVE_STORE
        };
        self.vector(op, reg, 0, Rm::Memory(base, offset), mask);
    }

    pub(super) fn copy(&mut self, to: u8, from: u8) {
        if to != from {
            self.vector(MOVE_LOAD, to, 0, Rm::Register(from), 0);
        }
    }

    /// Puts what may be reached where the code finds it.
    pub(super) fn set_reach(&mut self) {
        self.code.extend_from_slice(&[0x4d, 0x89, 0xc2]); // mov r10, r8
    }

    /// After that: sets the strips' addresses, opens the loop over `rsi..rdx`; with a mask, loads it into k1 (and its
    /// upper half into k2). Returns where the loop begins.
    pub(super) fn open(&mut self, masked: bool) -> usize {
        // AVX2 takes half a strip at a time.
        let halves = if self.isa == Isa::Avx512 { 0 } else { 1 };
        if halves == 1 {
            self.code.extend_from_slice(&[0x48, 0x01, 0xf6]); // add rsi, rsi
            self.code.extend_from_slice(&[0x48, 0x01, 0xd2]); // add rdx, rdx
        }
        for (register, shift) in [(0xc0u8, 6 - halves), (0xc1, 7 - halves)] {
            self.code
                .extend_from_slice(&[0x49, 0x89, 0xf0 | register & 7]); // mov r8/r9, rsi
            self.code
                .extend_from_slice(&[0x49, 0xc1, 0xe0 | register & 7, shift]); // shl r8/r9, shift
            self.code
                .extend_from_slice(&[0x49, 0x01, 0xf8 | register & 7]); // add r8/r9, rdi
        }
        let top = self.code.len();
        if masked {
            self.load_mask();
        }
        top
    }

    /// Loads the mask of the strip's running lanes.
    pub(super) fn load_mask(&mut self) {
        self.code.extend_from_slice(&[0xc5, 0xf8, 0x90, 0x0c, 0x71]); // kmovw k1, [rcx + 2*rsi]
        self.upper_running();
    }

    /// k2 = the upper half of k1
    pub(super) fn upper_running(&mut self) {
        self.code
            .extend_from_slice(&[0xc4, 0xe3, 0xf9, 0x30, 0xd1, 8]); // kshiftrw k2, k1, 8
    }

    /// Closes the loop and returns 0.
    pub(super) fn close(&mut self, top: usize) {
        let step = self.bytes() as i32;
        for (register, step) in [(0u8, step), (1, 2 * step)] {
            self.code.extend_from_slice(&[0x49, 0x81, 0xc0 | register]); // add r8/r9, step
            self.code.extend_from_slice(&step.to_le_bytes());
        }
        self.code.extend_from_slice(&[0x48, 0xff, 0xc6]); // inc rsi
        self.code.extend_from_slice(&[0x48, 0x39, 0xd6]); // cmp rsi, rdx
        let distance = top as i64 - (self.code.len() as i64 + 6);
        self.code.extend_from_slice(&[0x0f, 0x82]); // jb top
        self.code
            .extend_from_slice(&(distance as i32).to_le_bytes());
        self.code.extend_from_slice(&[0x31, 0xc0]); // xor eax, eax
        self.code.extend_from_slice(&[0xc5, 0xf8, 0x77]); // vzeroupper
        self.pop_bases();
        self.code.push(0xc3); // ret
    }

    /// Appends the constants; the code is whole.
    pub(super) fn finish(mut self) -> Vec<u8> {
        while !self.code.len().is_multiple_of(8) {
            self.code.push(0xcc);
        }
        let mut pool: Vec<(Vec<u8>, usize)> = Vec::new();
        for (value, at) in std::mem::take(&mut self.constants) {
            let place = match pool.iter().find(|(other, _)| *other == value) {
                Some((_, place)) => *place,
                None => {
                    let place = self.code.len();
                    self.code.extend_from_slice(&value);
                    pool.push((value, place));
                    place
                }
            };
            let mut end = [0; 4];
            end.copy_from_slice(&self.code[at..at + 4]);
            let distance = place as i32 - i32::from_le_bytes(end);
            self.code[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        }
        while !self.code.len().is_multiple_of(64) {
            self.code.push(0xcc);
        }
        self.code
    }
}

/// Beside a mask register: lanes that are not of it become zeros.
pub(super) const ZEROED: u8 = 0x80;

pub(super) const fn opcode(map: u8, prefix: u8, wide: bool, byte: u8) -> Opcode {
    Opcode {
        map,
        prefix,
        wide,
        byte,
    }
}

/// vmovups
const MOVE_LOAD: Opcode = opcode(1, 0, false, 0x10);
const MOVE_STORE: Opcode = opcode(1, 0, false, 0x11);
/// vmovupd, whose mask is of 8-byte lanes
const MOVE_STORE_WIDE: Opcode = opcode(1, 1, true, 0x11);
/// vmovaps with a mask
pub(super) const BLEND: Opcode = opcode(1, 0, false, 0x28);

pub(super) const ADD_F32: Opcode = opcode(1, 0, false, 0x58);
pub(super) const MUL_F32: Opcode = opcode(1, 0, false, 0x59);
pub(super) const SUB_F32: Opcode = opcode(1, 0, false, 0x5c);
pub(super) const DIV_F32: Opcode = opcode(1, 0, false, 0x5e);
pub(super) const SQRT_F32: Opcode = opcode(1, 0, false, 0x51);
pub(super) const ADD_F64: Opcode = opcode(1, 1, true, 0x58);
pub(super) const MUL_F64: Opcode = opcode(1, 1, true, 0x59);
pub(super) const SUB_F64: Opcode = opcode(1, 1, true, 0x5c);
pub(super) const DIV_F64: Opcode = opcode(1, 1, true, 0x5e);
pub(super) const SQRT_F64: Opcode = opcode(1, 1, true, 0x51);
pub(super) const ADD_32: Opcode = opcode(1, 1, false, 0xfe);
pub(super) const ADD_64: Opcode = opcode(1, 1, true, 0xd4);
pub(super) const SUB_64: Opcode = opcode(1, 1, true, 0xfb);
pub(super) const MIN_S32: Opcode = opcode(2, 1, false, 0x39);
pub(super) const MIN_U32: Opcode = opcode(2, 1, false, 0x3b);
pub(super) const MAX_S32: Opcode = opcode(2, 1, false, 0x3d);
pub(super) const MAX_U32: Opcode = opcode(2, 1, false, 0x3f);
/// vcvtdq2ps, vcvtudq2ps
pub(super) const CVT_S32_F32: Opcode = opcode(1, 0, false, 0x5b);
pub(super) const CVT_U32_F32: Opcode = opcode(1, 3, false, 0x7a);
/// vpternlogd
pub(super) const LOP3: Opcode = opcode(3, 1, false, 0x25);
/// vinserti64x4
pub(super) const INSERT_UPPER: Opcode = opcode(3, 1, true, 0x3a);
pub(super) const SUB_32: Opcode = opcode(1, 1, false, 0xfa);
pub(super) const MUL_32: Opcode = opcode(2, 1, false, 0x40);
pub(super) const AND_32: Opcode = opcode(1, 1, false, 0xdb);
pub(super) const OR_32: Opcode = opcode(1, 1, false, 0xeb);
pub(super) const XOR_32: Opcode = opcode(1, 1, false, 0xef);
/// Shifts by a count for each lane; counts of 32 and more give 0 or the sign, as PTX wants.
pub(super) const SHL_32: Opcode = opcode(2, 1, false, 0x47);
pub(super) const SHR_U32: Opcode = opcode(2, 1, false, 0x45);
pub(super) const SHR_S32: Opcode = opcode(2, 1, false, 0x46);
/// The three orders of operands of a fused multiply-add: `reg = reg * rm + second`, `reg = second * reg +
/// rm`, `reg = second * rm + reg`.
pub(super) const FMA_132: u8 = 0x98;
pub(super) const FMA_213: u8 = 0xa8;
pub(super) const FMA_231: u8 = 0xb8;
/// vfnmadd213ps: `reg = -(second * reg) + rm`
pub(super) const FNMA_213_F32: Opcode = opcode(2, 1, false, 0xac);
/// vrsqrt14ps
pub(super) const RSQRT14: Opcode = opcode(2, 1, false, 0x4e);
/// vfpclassps, to a mask register
pub(super) const CLASS_F32: Opcode = opcode(3, 1, false, 0x66);
/// vandps under a mask is AVX-512 DQ's; vpandd does the same.
pub(super) const AND_MASKED: Opcode = AND_32;

pub(super) fn fma(form: u8, wide: bool) -> Opcode {
    opcode(2, 1, wide, form)
}
