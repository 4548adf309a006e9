//! What is known of a number of threads for all blocks: whether those of each strip follow each other, by steps of 1 or of an
//! element's bytes, and which are the least and the greatest.
//!
//! Put by `emit` after what makes such numbers; read by segments (`segment::rows`) at the distances that stand here. Must not
//! know what they are for.

use crate::machine::{Flow, Machine, Op};
use crate::regs::STRIP;

/// Bytes of what is known.
pub(crate) const BYTES: usize = 64;
/// Where in it the least number stands and the greatest one, signed, in 64 bits; of whole strips where lanes follow each other.
pub(crate) const LEAST: i32 = 0;
pub(crate) const MOST: i32 = 8;
/// Where it stands, in 32 bits, whether lanes follow each other.
pub(crate) const ROWS: i32 = 16;

/// Where it stands, in 32 bits, whether lanes neither follow each other nor have all the same in each strip; and all bits that any number has.
pub(crate) const APART: i32 = 20;
pub(crate) const BITS: i32 = 24;

/// Looks at the numbers in `s[0]` of the running lanes, which are all from the first one on; what is known goes to `d[0]`. Lanes follow
/// each other if each has `imm` more than the one before; the least number and the greatest are right if they do not, too.
///
/// # Safety
/// None: any machine has it.
pub(crate) unsafe fn rows(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let step = op.imm as i64;
    let (mut least, mut most, mut follow) = (i64::MAX, i64::MIN, true);
    let (mut alike, mut bits) = (true, 0);
    for strip in cx.low..cx.high {
        let numbers = cx.frame.strip::<i32>(op.s[0] as usize, strip);
        let lanes = cx.mask.strip(strip);
        let first = i64::from(numbers[0]);
        let running = || (0..STRIP).filter(|lane| lanes >> lane & 1 != 0);
        let follows = running().all(|lane| i64::from(numbers[lane]) == first + lane as i64 * step);
        alike &= running().all(|lane| numbers[lane] == numbers[0]);
        bits |= running().fold(0, |bits, lane| bits | numbers[lane]);
        let last = first + (STRIP as i64 - 1) * step;
        if follows && lanes & 1 != 0 && i32::try_from(last).is_ok() {
            // Of the whole strip: all of it is moved at once.
            (least, most) = (least.min(first), most.max(last));
        } else {
            follow = false;
            for number in running().map(|lane| i64::from(numbers[lane])) {
                (least, most) = (least.min(number), most.max(number));
            }
        }
    }
    let to = op.d[0] as usize;
    cx.frame.set_lane(to + LEAST as usize, 0, least);
    cx.frame.set_lane(to + MOST as usize, 0, most);
    cx.frame.set_lane(to + ROWS as usize, 0, u32::from(follow));
    cx.frame
        .set_lane(to + APART as usize, 0, u32::from(!follow && !alike));
    cx.frame.set_lane(to + BITS as usize, 0, bits);
    Flow::Next
}
