//! Loops that lanes leave as soon as each has found something, as machine code.
//!
//! Chosen by `emit`. Must not know how such a loop is compiled.

use crate::machine::{Flow, Machine, Op};
use crate::segment;

/// The fewest turns of a strip that such code may make, whatever the budget: some sixteen for each strip of a group. A loop that is given
/// up is begun anew.
const LEAST_TURNS: i64 = 1 << 8;

/// A search before the operations that do the same, at whose header all lanes are: lanes leave it for `s[1]`, in the divergent code if
/// `width[0]` says so. A turn of all strips costs `d[3]`. What block `d[1]` needs in each lane, and is not in one of the slots `s[2]` and
/// `s[3]` already, is spread over them.
///
/// # Safety
/// As for [`segment::run_search`].
pub(crate) unsafe fn search(cx: &mut Machine<'_>, op: &Op) -> Flow {
    if cx.reach.passes_over() {
        return Flow::Next;
    }
    let strips = (cx.high - cx.low).max(1) as i64;
    let rounds = cx.budget / i64::from(op.d[3].max(1));
    let turns = rounds.saturating_mul(strips);
    let turns = turns.clamp(LEAST_TURNS, i64::from(u32::MAX));
    // SAFETY: by the caller's promise the code of such a loop for this machine stands at `imm`.
    let (done, made) = unsafe { segment::run_search(cx, op, turns as u32) };
    cx.budget -= i64::from(made.div_ceil(strips as u32)) * i64::from(op.d[3]);
    cx.reach.searched(done);
    if !done {
        return Flow::Next;
    }
    if op.width[0] != 0 {
        let (low, high) = cx.live.strips();
        for one in &cx.program.blocks[op.d[1] as usize].moves {
            if one.varying != op.s[2] && one.varying != op.s[3] {
                one.spread(cx.frame, low, high);
            }
        }
        cx.reconvergence_delay = 0;
    }
    Flow::Jump(op.s[1])
}
