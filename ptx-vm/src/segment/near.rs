//! Loads from shared memory whose lanes are near each other without being a row: partners of a butterfly, every second element.
//!
//! Where all of a strip's words are among the 32 that begin with the first lane's, two vectors have them, and one permutation brings each
//! lane its own.
//!
//! Called by `transfer`. Must not know where else lanes may be.

use super::branch::{Label, When};
use super::encode::{self, Assembler, Base, Opcode, Rm, opcode};
use super::transfer::{BROADCAST_EAX, LOWER, TEST_32, Transfer};
use crate::reach::{NEAR, Reach};

impl Transfer {
    /// Whether such lanes are looked for.
    pub(super) fn near(&self) -> bool {
        self.rows() && !self.stores() && self.element == 4 && self.size() == 4
    }

    /// A load of words whose addresses are in `t`; all running lanes' are inside, and aligned. Jumps to `done` if they are near.
    pub(super) fn load_near(&self, out: &mut Assembler, t: u8, done: &mut Label) {
        let (to, [first, _]) = (self.elements[0], self.spare());
        let mut far = Label::default();
        // Lane 0 need not run, and then has anything: the others are near it all the same, or not. Distances are numbers of 32 bits, so the
        // word that they count from must be inside as well.
        out.lowest_lane(false, t);
        out.compare_eax(Reach::limit(4));
        out.jump(When::NotBelow, &mut far);
        out.vector(BROADCAST_EAX, first, 0, Rm::Register(0), 0);
        out.vector(encode::SUB_32, to, t, Rm::Register(first), 0);
        // Beyond the words, or between two of them.
        let outside = !(NEAR as u32 - 4);
        out.vector(TEST_32, 3, to, Rm::Constant(outside), LOWER);
        out.test_mask();
        out.jump(When::NotZero, &mut far);
        out.rax_plus(Reach::SHARED);
        out.vector_imm(SHIFT_RIGHT_IMM, 2, to, Rm::Register(to), 0, Some(2));
        // Words that no lane asks for are read as well: behind shared memory are as many bytes as that takes (`Cluster`).
        out.load(first, Base::Rax, 0);
        let upper = Rm::Memory(Base::Rax, NEAR as i32 / 2);
        out.vector(PERMUTE_TWO, to, first, upper, 0);
        out.jump(When::Always, done);
        out.bind(far);
    }
}

/// vpsrld by an immediate (/2): the destination is the second operand
const SHIFT_RIGHT_IMM: Opcode = opcode(1, 1, false, 0x72);
/// vpermi2d: by the indices in the first operand, of the other two
const PERMUTE_TWO: Opcode = opcode(2, 1, false, 0x76);
