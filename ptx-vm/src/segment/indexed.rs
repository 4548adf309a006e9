//! Accesses of global memory at a base that all lanes share and an index of 32 bits times a constant, as compilers write
//! elements of arrays: `mul.wide`, or `cvt` for bytes, `add`, and the load or store.
//!
//! The indices are looked at instead of the addresses: one vector instead of two. The addresses are made only where lanes have
//! neither one element, nor a row, nor elements that are all inside of what may be reached.
//!
//! Called by `allocate` and `transfer`. Must not know spaces.

use super::allocate::Allocator;
use super::branch::{Label, When};
use super::encode::{self, Assembler, Base, Opcode, Rm, opcode};
use super::plan::Indexed;
use super::transfer::{self, Transfer, UPPER_HALF};
use super::widen::{WIDEN, WIDEN_SIGNED};

impl Indexed {
    /// rax = where the element of the index in eax lies.
    pub(super) fn place(&self, out: &mut Assembler, base: i32, offset: i32) {
        if self.signed {
            out.sign_extend_eax();
        }
        out.shift_rax(self.log);
        out.rax_plus_frame(base);
        out.advance(offset);
    }
}

impl Allocator<'_> {
    /// A load or a store of elements by their indices, in a vector. Two vectors that nothing needs are for the addresses.
    pub(super) fn elements(
        &mut self,
        transfer: &Transfer,
        indexed: Indexed,
        (lanes, addresses): (u8, [u8; 2]),
        offset: i32,
        (first, limit): (usize, usize),
        asked: &mut Label,
    ) {
        let base = self.uniform_offset(indexed.base);
        let out = &mut self.out;
        let [u, v] = transfer.spare();
        let (mut done, mut differ, mut apart, mut slow) = (
            Label::default(),
            Label::default(),
            Label::default(),
            Label::default(),
        );
        let size = transfer.size();
        let low = (size - 1) as u8;
        let inside = |out: &mut Assembler, slow: &mut Label| {
            indexed.place(out, base, offset);
            out.compare_distance(first, limit);
            out.jump(When::NotBelow, slow);
            out.test_al(low);
            out.jump(When::NotZero, slow);
        };
        if !transfer.apart() {
            transfer.first(out, &[lanes], u);
        }
        if !transfer.stores() && !transfer.apart() {
            out.differ(false, 3, lanes, u, 1);
            out.test_mask();
            out.jump(When::NotZero, &mut differ);
            inside(out, &mut slow);
            transfer.one_for_all(out, (Base::Rax, 0));
            out.jump(When::Always, &mut done);
            out.bind(differ);
        }
        if transfer.rows() && size == 1 << indexed.log {
            transfer.row_start(out, false, u, 1);
            out.vector(encode::ADD_32, u, u, Rm::Row(false, 1, 0), 0);
            out.differ(false, 3, lanes, u, 1);
            out.test_mask();
            out.jump(When::NotZero, &mut apart);
            // Indices that go over the end of their numbers are no row of elements.
            out.last_of_row();
            let wraps = if indexed.signed {
                When::Overflow
            } else {
                When::Below
            };
            out.jump(wraps, &mut slow);
            inside(out, &mut slow);
            transfer.row(out, (Base::Rax, 0));
            out.jump(When::Always, &mut done);
            out.bind(apart);
        }
        if transfer.by_index(indexed.log) {
            // All indices are compared with how many elements may be reached from the base on.
            out.clear_rax();
            out.rax_plus_frame(base);
            out.advance(offset);
            out.compare_distance(first, limit);
            out.jump(When::NotBelow, &mut slow);
            out.test_al(low);
            out.jump(When::NotZero, &mut slow);
            out.last_index(limit, indexed.log);
            out.jump(When::Above, &mut slow);
            out.vector(
                transfer::BROADCAST_EAX,
                u,
                0,
                Rm::Register(Base::R11 as u8),
                0,
            );
            out.vector_imm(COMPARE_32, 3, lanes, Rm::Register(u), 1, Some(ABOVE));
            out.test_mask();
            out.jump(When::NotZero, &mut slow);
            transfer.move_apart(out, lanes, indexed.log);
            out.jump(When::Always, &mut done);
        }
        out.bind(slow);
        let widen = if indexed.signed { WIDEN_SIGNED } else { WIDEN };
        out.vector(widen, addresses[0], 0, Rm::Register(lanes), 0);
        out.vector_imm(UPPER_HALF, lanes, 0, Rm::Register(v), 0, Some(1));
        out.vector(widen, addresses[1], 0, Rm::Register(v), 0);
        for register in addresses {
            let from = Rm::Register(register);
            out.vector_imm(SHIFT_LEFT_64, 6, register, from, 0, Some(indexed.log));
            let from = Rm::Broadcast(Base::Rdi, base);
            out.vector(encode::ADD_64, register, register, from, 0);
        }
        self.global(transfer, addresses, offset, (first, limit), asked);
        self.out.bind(done);
    }
}

impl Assembler {
    /// rax = eax with its sign before it
    fn sign_extend_eax(&mut self) {
        self.code.extend_from_slice(&[0x48, 0x98]);
    }

    /// rax = rax << count
    fn shift_rax(&mut self, count: u8) {
        self.code.extend_from_slice(&[0x48, 0xc1, 0xe0, count]);
    }

    /// rax = rax + what stands at a distance in the frame
    fn rax_plus_frame(&mut self, distance: i32) {
        self.code.extend_from_slice(&[0x48, 0x03, 0x87]);
        self.code.extend_from_slice(&distance.to_le_bytes());
    }

    /// The sum of eax and 15, for its carry and its overflow.
    pub(super) fn last_of_row(&mut self) {
        self.code.extend_from_slice(&[0x41, 0x89, 0xc3]); // mov r11d, eax
        self.code.extend_from_slice(&[0x41, 0x83, 0xc3, 15]); // add r11d, 15
    }

    /// r11 = the last index that may be used, where r11 is how far from the beginning the first one lies, which is less than
    /// the limit; compares it with what a gather can say.
    fn last_index(&mut self, limit: usize, log: u8) {
        self.code.extend_from_slice(&[0x49, 0xf7, 0xd3]); // not r11
        self.reach([0x4d, 0x03, 0x9a], limit); // add r11, [r10 + limit]
        self.code.extend_from_slice(&[0x49, 0xc1, 0xeb, log]); // shr r11, log
        self.code.extend_from_slice(&[0x49, 0x81, 0xfb]); // cmp r11, the greatest
        self.code.extend_from_slice(&i32::MAX.to_le_bytes());
    }
}

/// A comparison's predicate: not less, nor equal.
const ABOVE: u8 = 6;
/// vpcmpud
const COMPARE_32: Opcode = opcode(3, 1, false, 0x1e);
/// vpsllq by an immediate (/6): the destination is the second operand
const SHIFT_LEFT_64: Opcode = opcode(1, 1, true, 0x73);
