//! Runs of a loop that lanes go through alone which are there twice: quick, as long as all is inside of what is known, and careful, behind
//! the loop, where the executor is asked. Both leave the same registers in the same places.
//!
//! Called by `scalar`. Must not know what makes the quick one quick.

use super::homes::{Careful, Homes};
use super::scalar::Scalar;

impl Scalar<'_> {
    pub(super) fn state(&self) -> Homes {
        Homes {
            homes: self.homes.clone(),
            free: self.free.clone(),
            transfers: self.transfers,
        }
    }

    /// Goes on as if nothing had been made since.
    pub(super) fn restore(&mut self, state: Homes) {
        let Homes {
            homes,
            free,
            transfers,
        } = state;
        (self.homes, self.free, self.transfers) = (homes, free, transfers);
        self.flags = None;
    }

    /// The code behind the loop for a run whose elements may be missing. The flags are then as the run leaves them, which the branch
    /// behind it may ask.
    pub(super) fn make_careful(&mut self, careful: Careful) -> Option<()> {
        self.out.bind(careful.label);
        self.restore(careful.before);
        if let Some((on, negated)) = careful.guard {
            let holds = self.test(on, negated)?;
            self.out.jump_back_if(holds ^ 1, careful.back);
        }
        self.steps(careful.number, &careful.steps)?;
        if self.state() != careful.after {
            return None;
        }
        self.out.jump_back(careful.back);
        Some(())
    }
}
