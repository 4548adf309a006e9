//! Machine code around vectors: addresses in general registers, comparisons, jumps, calls.
//!
//! Called by `transfer`. Must not know what is compared, nor why.

use super::encode::{Assembler, Base, Opcode, Rm, opcode};

/// Where jumps lead that are made before their target is.
#[derive(Debug, Default)]
pub(super) struct Label {
    /// Where the distances stand.
    jumps: Vec<usize>,
}

impl Label {
    /// A jump whose distance stands there leads to it.
    pub(super) fn is_from(&mut self, at: usize) {
        self.jumps.push(at);
    }

    /// What jumps to another one jumps to it.
    pub(super) fn add(&mut self, mut other: Self) {
        self.jumps.append(&mut other.jumps);
    }
}

/// When to jump.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    Always,
    /// Above, of unsigned numbers.
    Above,
    /// Below, of unsigned numbers; a carry.
    Below,
    /// Not below, of unsigned numbers.
    NotBelow,
    NotZero,
    /// Over the end of signed numbers.
    Overflow,
    Zero,
}

impl Assembler {
    /// Jumps to what [`Assembler::bind`] says.
    pub(super) fn jump(&mut self, when: When, to: &mut Label) {
        match when {
            When::Always => self.code.push(0xe9),
            When::Above => self.code.extend_from_slice(&[0x0f, 0x87]),
            When::Below => self.code.extend_from_slice(&[0x0f, 0x82]),
            When::Overflow => self.code.extend_from_slice(&[0x0f, 0x80]),
            When::NotBelow => self.code.extend_from_slice(&[0x0f, 0x83]),
            When::NotZero => self.code.extend_from_slice(&[0x0f, 0x85]),
            When::Zero => self.code.extend_from_slice(&[0x0f, 0x84]),
        }
        to.jumps.push(self.code.len());
        self.code.extend_from_slice(&[0; 4]);
    }

    /// A label is here.
    pub(super) fn bind(&mut self, label: Label) {
        for at in label.jumps {
            let distance = self.code.len() as i32 - (at as i32 + 4);
            self.code[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        }
    }

    /// Jumps back to a place that is there.
    pub(super) fn jump_back(&mut self, to: usize) {
        let distance = to as i32 - (self.code.len() as i32 + 5);
        self.code.push(0xe9);
        self.code.extend_from_slice(&distance.to_le_bytes());
    }

    /// rax = the lowest 4 bytes of a vector, or 8
    pub(super) fn lowest_lane(&mut self, wide: bool, from: u8) {
        let bit = |value: u8, at: u8| (!value & 1) << at;
        self.code.extend_from_slice(&[
            0x62,
            bit(from >> 3, 7) | 0x60 | bit(from >> 4, 4) | 1,
            u8::from(wide) << 7 | 0x7d,
            0x08,
            0x7e,
            0xc0 | (from & 7) << 3,
        ]);
    }

    /// rax = rax + distance
    pub(super) fn advance(&mut self, distance: i32) {
        if distance != 0 {
            self.code.extend_from_slice(&[0x48, 0x8d, 0x80]); // lea rax, [rax + distance]
            self.code.extend_from_slice(&distance.to_le_bytes());
        }
    }

    /// An instruction between a general register and [r10 + place].
    pub(super) fn reach(&mut self, bytes: [u8; 3], place: usize) {
        self.code.extend_from_slice(&bytes);
        self.code.extend_from_slice(&(place as i32).to_le_bytes());
    }

    /// rax = [r10 + place]
    pub(super) fn rax_from(&mut self, place: usize) {
        self.reach([0x49, 0x8b, 0x82], place);
    }

    /// rax = rax + [r10 + place]
    pub(super) fn rax_plus(&mut self, place: usize) {
        self.reach([0x49, 0x03, 0x82], place);
    }

    /// r11 = [r10 + place]
    pub(super) fn r11_from(&mut self, place: usize) {
        self.reach([0x4d, 0x8b, 0x9a], place);
    }

    /// Compares eax with [r10 + place].
    pub(super) fn compare_eax(&mut self, place: usize) {
        self.reach([0x41, 0x3b, 0x82], place);
    }

    /// Compares rax - [r10 + first] with [r10 + limit], in r11.
    pub(super) fn compare_distance(&mut self, first: usize, limit: usize) {
        self.code.extend_from_slice(&[0x49, 0x89, 0xc3]); // mov r11, rax
        self.reach([0x4d, 0x2b, 0x9a], first); // sub r11, [r10 + first]
        self.reach([0x4d, 0x3b, 0x9a], limit); // cmp r11, [r10 + limit]
    }

    /// rax = 0
    pub(super) fn clear_rax(&mut self) {
        self.code.extend_from_slice(&[0x31, 0xc0]);
    }

    /// Looks at bits of al.
    pub(super) fn test_al(&mut self, bits: u8) {
        self.code.extend_from_slice(&[0xa8, bits]);
    }

    /// Looks at k3 and k4 together: all 16 bits, or 8.
    pub(super) fn test_masks(&mut self, eight: bool) {
        self.code
            .extend_from_slice(&[0xc5, 0xf8 | u8::from(eight), 0x98, 0xdc]);
    }

    /// Looks at k3 by itself, at all 16 bits.
    pub(super) fn test_mask(&mut self) {
        self.code.extend_from_slice(&[0xc5, 0xf8, 0x98, 0xdb]);
    }

    /// Looks at k1, at all 16 bits: below if all are set, zero if none is.
    pub(super) fn test_running(&mut self) {
        self.code.extend_from_slice(&[0xc5, 0xf8, 0x98, 0xc9]);
    }

    /// Takes from rax, or from eax, as many steps as lanes stand before the first one that runs.
    pub(super) fn before_running(&mut self, wide: bool, log: u8) {
        self.code.extend_from_slice(&[0xc5, 0x78, 0x93, 0xd9]); // kmovw r11d, k1
        self.code.extend_from_slice(&[0xf3, 0x45, 0x0f, 0xbc, 0xdb]); // tzcnt r11d, r11d
        self.code.extend_from_slice(&[0x49, 0xc1, 0xe3, log]); // shl r11, log
        let prefix = if wide { 0x4c } else { 0x44 };
        self.code.extend_from_slice(&[prefix, 0x29, 0xd8]); // sub rax, r11
    }

    /// r11 = what is kept in [r10 + place], 8 bytes or 4.
    pub(super) fn kept_address(&mut self, wide: bool, place: usize) {
        let prefix = if wide { 0x4d } else { 0x45 };
        self.reach([prefix, 0x8b, 0x9a], place); // mov r11, [r10 + place]
    }

    /// Loads 16 words, or elements of one or two bytes with zeros before them, from places that `place` makes ready one after
    /// the other; `part` is lost.
    pub(super) fn collect(
        &mut self,
        to: u8,
        part: u8,
        element: usize,
        place: impl Fn(&mut Self, u8) -> Rm,
    ) {
        for quarter in 0..4 {
            let into = if quarter == 0 { to } else { part };
            for lane in 0..4 {
                let mut from = place(self, 4 * quarter + lane);
                if element < 4 {
                    self.narrow_to_r11(element, from);
                    from = Rm::Register(Base::R11 as u8);
                }
                if lane == 0 {
                    self.short(MOVE_WORD, into, 0, from, None);
                } else {
                    self.short(INSERT_WORD, into, into, from, Some(lane));
                }
            }
            if quarter > 0 {
                self.vector_imm(INSERT_QUARTER, to, to, Rm::Register(part), 0, Some(quarter));
            }
        }
    }

    /// An instruction on the lowest 16 bytes of vectors, with its last operand in memory or a general register.
    fn short(&mut self, op: Opcode, reg: u8, second: u8, from: Rm, imm: Option<u8>) {
        let bit = |value: u8, at: u8| (!value & 1) << at;
        let (base, index, distance) = match from {
            Rm::Memory(base, distance) => (base as u8, None, distance),
            // A general register.
            Rm::Register(base) => (base, None, 0),
            // [rax + (r11 << log)]
            Rm::Sum(log, distance) => (Base::Rax as u8, Some((Base::R11 as u8, log)), distance),
            _ => return,
        };
        let index_bit = index.map_or(0x40, |(index, _)| bit(index >> 3, 6));
        self.code.extend_from_slice(&[
            0x62,
            bit(reg >> 3, 7) | index_bit | bit(base >> 3, 5) | bit(reg >> 4, 4) | op.map,
            (!second & 15) << 3 | 4 | op.prefix,
            bit(second >> 4, 3),
            op.byte,
        ]);
        if let Rm::Register(_) = from {
            self.code.push(0xc0 | (reg & 7) << 3 | base & 7);
            self.code.extend(imm);
            return;
        }
        let field = 0x80 | (reg & 7) << 3;
        match index {
            None => self.code.push(field | base & 7),
            Some((index, log)) => {
                let sum = log << 6 | (index & 7) << 3 | base & 7;
                self.code.extend_from_slice(&[field | 4, sum]);
            }
        }
        self.code.extend_from_slice(&distance.to_le_bytes());
        self.code.extend(imm);
    }

    /// k3 = k1, or k2
    pub(super) fn copy_mask(&mut self, from: u8) {
        self.code
            .extend_from_slice(&[0xc5, 0xf8, 0x90, 0xd8 | from]);
    }

    /// Gathers from [rax + (lanes of index << log) + distance], or scatters to it, under k3, which is zeros then.
    pub(super) fn indexed(
        &mut self,
        op: Opcode,
        vector: u8,
        (index, log): (u8, u8),
        distance: i32,
    ) {
        let bit = |value: u8, at: u8| (!value & 1) << at;
        self.code.extend_from_slice(&[
            0x62,
            bit(vector >> 3, 7) | bit(index >> 3, 6) | 0x20 | bit(vector >> 4, 4) | op.map,
            u8::from(op.wide) << 7 | 0x7c | op.prefix,
            0x40 | bit(index >> 4, 3) | 3,
            op.byte,
            0x84 | (vector & 7) << 3,
            log << 6 | (index & 7) << 3 | Base::Rax as u8,
        ]);
        self.code.extend_from_slice(&distance.to_le_bytes());
    }

    /// [r10 + place] = k1
    pub(super) fn keep_running(&mut self, place: usize) {
        self.code.extend_from_slice(&[0xc4, 0xc1]);
        self.reach([0x78, 0x91, 0x8a], place);
    }

    /// k1 = [r10 + place], and k2 its upper half
    pub(super) fn running_again(&mut self, place: usize) {
        self.code.extend_from_slice(&[0xc4, 0xc1]);
        self.reach([0x78, 0x90, 0x8a], place);
        self.upper_running();
    }

    /// Calls [r10 + helper] with [r10 + machine], two constants and the strip between them; vectors and masks are lost.
    pub(super) fn ask(&mut self, helper: usize, machine: usize, [second, fourth]: [u64; 2]) {
        // push rdi, rsi, rdx, rcx, r8, r9, r10: with the return address, the stack is aligned again.
        self.code
            .extend_from_slice(&[0x57, 0x56, 0x52, 0x51, 0x41, 0x50, 0x41, 0x51, 0x41, 0x52]);
        self.code.extend_from_slice(&[0xc5, 0xf8, 0x77]); // vzeroupper
        self.reach([0x49, 0x8b, 0xba], machine); // mov rdi, [r10 + machine]
        self.code.extend_from_slice(&[0x48, 0x89, 0xf2]); // mov rdx, rsi
        self.code.extend_from_slice(&[0x48, 0xbe]); // mov rsi, second
        self.code.extend_from_slice(&second.to_le_bytes());
        self.code.extend_from_slice(&[0x48, 0xb9]); // mov rcx, fourth
        self.code.extend_from_slice(&fourth.to_le_bytes());
        self.reach([0x41, 0xff, 0x92], helper); // call [r10 + helper]
        self.code
            .extend_from_slice(&[0x41, 0x5a, 0x41, 0x59, 0x41, 0x58, 0x59, 0x5a, 0x5e, 0x5f]);
        self.code.extend_from_slice(&[0x85, 0xc0]); // test eax, eax
    }

    /// Returns 1.
    pub(super) fn fail(&mut self) {
        self.code
            .extend_from_slice(&[0xc5, 0xf8, 0x77, 0xb8, 1, 0, 0, 0]);
        self.pop_bases();
        self.code.push(0xc3);
    }
}

/// vmovd, vpinsrd, vinserti32x4
const MOVE_WORD: Opcode = opcode(1, 1, false, 0x6e);
const INSERT_WORD: Opcode = opcode(3, 1, false, 0x22);
const INSERT_QUARTER: Opcode = opcode(3, 1, false, 0x38);
