//! What tells two pieces of work apart as far as their lengths go.
//!
//! Made by what is submitted; a key for who learns how long work takes. Must not know what the work is.

/// What a piece of work is, as a number: the same for work that should take as long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkSignature(u64);

impl WorkSignature {
    /// With something more in it.
    pub(crate) fn and(self, more: u64) -> Self {
        // The hash of Firefox: one rotation, one multiplication.
        Self((self.0.rotate_left(5) ^ more).wrapping_mul(0x517c_c1b7_2722_0a95))
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// With more work behind it.
    pub(crate) fn then(self, more: Self) -> Self {
        self.and(more.0)
    }
}
