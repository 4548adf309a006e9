//! Products with a third number added, of integers and of floats.
//!
//! Called by `allocate` for its steps. Must not know where a value comes from.

use super::allocate::{Allocator, Unit};
use super::encode;

impl Allocator<'_> {
    /// d = a * b + c in integers
    pub(super) fn multiply_add(&mut self, a: Unit, b: Unit, c: Unit) -> u8 {
        let left = self.load(a);
        let right = self.operand(b);
        let product = self.free();
        self.out.vector(encode::MUL_32, product, left, right, 0);
        let addend = self.operand(c);
        self.out.vector(encode::ADD_32, product, product, addend, 0);
        product
    }

    /// d = a * b + c
    pub(super) fn fma(&mut self, wide: bool, a: Unit, b: Unit, c: Unit) -> u8 {
        // Whichever operand ends here gives its register; at most one of the others may be in memory.
        let in_memory = |me: &Self, unit: Unit| me.find(unit).is_none();
        if in_memory(self, a) && !in_memory(self, b) {
            return self.fma(wide, b, a, c);
        }
        let running = self.running(a.1);
        let ra = self.load(a);
        let rc = self.find(c);
        if let Some(rc) = rc {
            self.pinned.push(rc);
        }
        match rc {
            Some(rc) if self.dies(rc) && c != a && c != b => {
                let rb = self.operand(b);
                self.out
                    .vector(encode::fma(encode::FMA_231, wide), rc, ra, rb, running);
                rc
            }
            _ if self.dies(ra) && ra_free(a, b, c) => {
                if in_memory(self, b) {
                    let rc = self.load(c);
                    let rb = self.operand(b);
                    self.out
                        .vector(encode::fma(encode::FMA_132, wide), ra, rc, rb, running);
                } else {
                    let rb = self.load(b);
                    let rc = self.operand(c);
                    self.out
                        .vector(encode::fma(encode::FMA_213, wide), ra, rb, rc, running);
                }
                ra
            }
            _ => {
                let rb = self.load(b);
                let d = if self.dies(rb) && ra_free(b, a, c) {
                    rb
                } else {
                    let d = self.free();
                    self.out.copy(d, rb);
                    d
                };
                let rc = self.operand(c);
                self.out
                    .vector(encode::fma(encode::FMA_213, wide), d, ra, rc, running);
                d
            }
        }
    }
}

/// Whether `a`'s register may be overwritten: it is no other operand as well.
fn ra_free(a: Unit, b: Unit, c: Unit) -> bool {
    a != b && a != c
}
