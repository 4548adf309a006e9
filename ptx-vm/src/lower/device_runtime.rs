//! Calls of CUDA's device runtime: the arguments go to a place in the caller's local frame, in words of 8 bytes,
//! where the operation finds them.
//!
//! Called by `lower::control` for calls of functions that `crate::device_runtime` lists. Must not know what a
//! function does.

use super::body::{Body, Lowered};
use crate::device_runtime::{DIMENSIONS, Known, MOST_ARGUMENTS};
use crate::ir::{InstKind, Passed};
use crate::limits::FRAME_BYTES;
use crate::ops::device_runtime;

impl Body<'_> {
    /// Calls function `number` of those that are known.
    pub(super) fn call_runtime(
        &mut self,
        number: usize,
        known: &Known,
        args: &[Passed],
        results: &[Passed],
    ) -> Lowered {
        if args.len() != known.arguments.len() || results.len() > 1 {
            return Err(self.fail("arguments that do not fit the function"));
        }
        self.func.asks_runtime = true;
        // Only lanes that call may be asked to try again.
        let after = self.enter_guarded();
        let place = self.argument_place()?;
        let mut at = place;
        for (arg, &width) in args.iter().zip(known.arguments) {
            let words = match (width, *arg) {
                (DIMENSIONS, Passed::Local(place, 12)) => {
                    [0, 4, 8].map(|word| Some((Passed::Local(place + word, 4), 4)))
                }
                (DIMENSIONS, _) => {
                    return Err(self.fail("arguments that do not fit the function"));
                }
                (width, arg) => [Some((arg, width)), None, None],
            };
            for (passed, width) in words.into_iter().flatten() {
                let value = self.argument(passed, width)?;
                self.store_result(Passed::Local(at, width.into()), value, width)?;
                at += 8;
            }
        }
        let result = self.temp(known.result);
        let arguments = self.local(place.into());
        let kind = InstKind::System {
            run: device_runtime::call,
            imm: number as u64,
        };
        self.emit(kind, vec![result], vec![arguments]);
        if let Some(&passed) = results.first() {
            self.store_result(passed, result, known.result)?;
        }
        self.leave_guarded(after);
        Ok(())
    }

    /// Where the function's calls have their arguments: one place for all of them.
    fn argument_place(&mut self) -> Lowered<u32> {
        if let Some(place) = self.argument_place {
            return Ok(place);
        }
        let place = u64::from(self.func.local_bytes).next_multiple_of(8);
        let end = place + 8 * MOST_ARGUMENTS as u64;
        if end > FRAME_BYTES {
            return Err(self.fail("the function has no local memory left for a call's arguments"));
        }
        self.func.local_bytes = end as u32;
        self.argument_place = Some(place as u32);
        Ok(place as u32)
    }
}
