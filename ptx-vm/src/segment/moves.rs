//! How the elements of a strip are moved that are one for all lanes, or a row, and what is looked at to find that out.
//!
//! Called by `transfer` and those beside it. Must not know which memory they are in.

use super::branch::{Label, When};
use super::encode::{self, Base, Rm};
use super::transfer::{
    BROADCAST_32, BROADCAST_64, BROADCAST_EAX, BROADCAST_RAX, FIRST_32, FIRST_64, LOWER, Transfer,
    UPPER,
};

impl Transfer {
    /// Puts what the first lane has that runs into rax and all lanes of `to`: of 32 bits in one vector, or of 64 in two.
    pub(super) fn first(&self, out: &mut encode::Assembler, lanes: &[u8], to: u8) {
        let wide = lanes.len() == 2;
        let (first, broadcast) = if wide {
            (FIRST_64, BROADCAST_64)
        } else {
            (FIRST_32, BROADCAST_32)
        };
        let mut from = lanes[0];
        if self.masked {
            // Those of the lower half, if there are any, replace those of the upper one.
            for (&lanes, mask) in lanes.iter().zip([LOWER, UPPER]).rev() {
                out.vector(first, lanes, 0, Rm::Register(to), mask);
            }
            from = to;
        }
        out.lowest_lane(wide, from);
        out.vector(broadcast, to, 0, Rm::Register(from), 0);
    }

    /// After that: what lane 0 has if the lanes are a row with steps of a power of two, in `rax` and all lanes of `to`.
    pub(super) fn row_start(&self, out: &mut encode::Assembler, wide: bool, to: u8, step: usize) {
        if self.masked {
            out.before_running(wide, step.trailing_zeros() as u8);
            let op = if wide { BROADCAST_RAX } else { BROADCAST_EAX };
            out.vector(op, to, 0, Rm::Register(Base::Rax as u8), 0);
        }
    }

    /// See the field.
    pub(super) fn spare(&self) -> [u8; 2] {
        self.spare
    }

    /// The elements at a place, each in all lanes of its vectors.
    pub(super) fn one_for_all(&self, out: &mut encode::Assembler, (base, distance): (Base, i32)) {
        if self.element < 4 {
            out.narrow_at_rax(self.element);
            out.vector(BROADCAST_EAX, self.elements[0], 0, Rm::Register(0), 0);
            return;
        }
        let op = if self.element == 4 {
            BROADCAST_32
        } else {
            BROADCAST_64
        };
        for (index, vectors) in self.elements.chunks(self.element / 4).enumerate() {
            let place = Rm::Memory(base, distance + (self.element * index) as i32);
            out.vector(op, vectors[0], 0, place, 0);
            for &other in &vectors[1..] {
                out.copy(other, vectors[0]);
            }
        }
    }

    /// One element a lane, all of which follow each other from a place on.
    pub(super) fn row(&self, out: &mut encode::Assembler, (base, distance): (Base, i32)) {
        if self.element < 4 {
            let (vector, width) = (self.elements[0], self.element as u8);
            if self.stores {
                out.store_narrow(vector, base, distance, width, LOWER);
            } else {
                out.load_narrow(vector, base, distance, width);
            }
            return;
        }
        let vectors = || self.elements.iter().zip([LOWER, UPPER]).zip([0, 64]);
        if !self.stores {
            for ((&vector, _), place) in vectors() {
                out.load(vector, base, distance + place);
            }
            return;
        }
        if !self.shared {
            for ((&vector, mask), place) in vectors() {
                out.store(vector, base, distance + place, self.element == 8, mask);
            }
            return;
        }
        // What is stored in shared memory is soon read again, and a store under a mask is not handed on to loads, also if the mask has
        // all lanes.
        let (mut some, mut done) = (Label::default(), Label::default());
        out.test_running();
        out.jump(When::NotBelow, &mut some);
        for ((&vector, _), place) in vectors() {
            out.store(vector, base, distance + place, false, 0);
        }
        out.jump(When::Always, &mut done);
        out.bind(some);
        for ((&vector, mask), place) in vectors() {
            out.store(vector, base, distance + place, self.element == 8, mask);
        }
        out.bind(done);
    }
}
