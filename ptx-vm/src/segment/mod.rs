//! Straight-line runs of arithmetic as one operation, in machine code.
//!
//! Called by `emit`. Must not know PTX or memory: it sees tags, slots and vector units.
//!
//! Operation by operation, each result goes through memory: two or three loads, a store and a dispatch
//! for one multiplication. A *segment* is a run of arithmetic within a basic block, compiled to a loop
//! over strips that keeps everything in vector registers and reads and writes the register file only for
//! what comes from before and is needed after, at offsets that [`super::analysis::layout`] gave. Loads and stores are
//! among its operations: all addresses of a strip are compared with what [`super::reach`] says before the first byte is
//! touched, and a strip with one that is not inside is done lane by lane by the executor. Control stays outside, and so do atomics but
//! for sums into shared memory ([`sum`]).
//!
//! One strip does all of the segment before the next one begins. So lanes of a warp, which is two strips, see each other's
//! stores earlier or later than if they ran in step; a segment ends where that could be seen ([`Order`]).
//!
//! Where there is no code for a vector unit, or the system gives no executable memory, the operations run
//! one by one.

mod allocate;
mod ask;
mod branch;
mod careful;
mod decided;
mod elements;
mod encode;
mod fused;
mod general;
mod group;
mod homes;
mod indexed;
mod known;
mod lane_access;
mod lane_steps;
mod lives;
mod moves;
mod narrow;
mod native;
mod near;
mod neighbours;
mod plan;
mod question;
mod repeat;
mod root;
mod rows;
mod same_turns;
mod scalar;
mod search;
mod shared;
mod step;
mod straight;
mod sum;
mod tag;
mod transfer;
mod unguarded;
mod widen;

use super::ir::Reg;
use super::isa::{Isa, Target};
use super::machine::{Event, Flow, Machine, Op};
use super::mask::WORDS;
use super::reach::Reach;

pub use native::CodeBytes;
pub(crate) use native::Native;
pub(crate) use repeat::{Loop, LoopBlock, LoopEdge, LoopEnd, LoopRun};
pub(crate) use search::{NEEDED, Search, SearchBlock, compile as compile_search};
pub(crate) use step::{Compiled, Known, Order, RegisterSlot, Row, SegmentLanes, SegmentStep};
pub(crate) use tag::{Compared, Tag};

/// Fewer operations than this are not worth a segment.
pub(crate) const LEAST: usize = 2;

/// Whether there is code for this unit; with a mask, for lanes that run and others that do not.
pub(crate) fn possible(isa: Isa, masked: bool) -> bool {
    match isa {
        Isa::Avx512 => true,
        Isa::Avx2 => !masked,
        Isa::Sse2 => false,
    }
}

/// Whether segments for this unit can have the operation.
pub(crate) fn has(isa: Isa, tag: Tag) -> bool {
    isa == Isa::Avx512 || tag.is_early()
}

/// Compiles a segment. Its loads and stores are numbered from `first` on. `None` if it cannot
/// reach its slots.
pub(crate) fn compile(
    steps: &[SegmentStep],
    known: &Known<'_>,
    live_after: &dyn Fn(Reg) -> bool,
    target: Target,
    lanes: SegmentLanes,
    first: usize,
) -> Option<Compiled> {
    allocate::compile(steps, known, live_after, target, lanes, first)
}

/// The logarithm of how many turns of a lane alone are counted as one of a strip.
const LANE_TURNS: u8 = 2;

/// Compiles a loop, as [`compile`] does a segment: for strips, or for lanes that go through it alone. Tells the logarithm of how many
/// of the turns that it counts are one of a strip.
pub(crate) fn compile_loop(
    repeated: &Loop,
    known: &Known<'_>,
    target: Target,
    first: usize,
) -> Option<(Vec<u8>, u8)> {
    let Known {
        slot_of,
        constant_of,
        ..
    } = *known;
    if lives::is_worth_it(repeated)
        && let Some(code) = scalar::compile(repeated, slot_of, constant_of, target, first)
    {
        return Some((code, LANE_TURNS));
    }
    if target.isa != Isa::Avx512 || !repeated.inner.is_empty() {
        return None;
    }
    let code = repeat::compile(repeated, slot_of, constant_of, target, first)?;
    Some((code, 0))
}

/// The most turns of a strip in one run of a loop.
const MOST_TURNS: u32 = 1 << 14;

/// Makes turns of the loop whose code stands at `imm`, at most so many of a strip; it needs `d[2]` bytes of the frame. Returns how many
/// turns of strips were made, and [`Reach::left`] has the lanes that have not left it; `None` if there is an event.
///
/// # Safety
/// As for [`run`].
pub(crate) unsafe fn run_loop(cx: &mut Machine<'_>, op: &Op, turns: u32) -> Option<u32> {
    let turns = turns.clamp(1, MOST_TURNS);
    // SAFETY: the caller's: the operation is a loop's, whose code the program keeps.
    let went_well = unsafe { run_turns(cx, op, turns, Reach::begin_loop) };
    went_well.then(|| turns - cx.reach.turns())
}

/// Runs the search ([`Search`]) whose code stands at `imm`, of at most so many turns of a strip; it needs `d[2]` bytes of the frame. Tells
/// whether it was done, or is to be done as any other loop from its beginning, and how many turns of strips were made.
///
/// # Safety
/// As for [`run`].
pub(crate) unsafe fn run_search(cx: &mut Machine<'_>, op: &Op, turns: u32) -> (bool, u32) {
    let turns = turns.clamp(1, MOST_TURNS);
    // SAFETY: the caller's: the operation is a search's, whose code the program keeps.
    let done = unsafe { run_turns(cx, op, turns, Reach::begin_search) };
    (done, turns - cx.reach.turns())
}

/// Calls code that counts turns of strips, of which it may make so many; `begin` makes what it counts and knows ready. Whether it returned 0.
///
/// # Safety
/// As for [`run`].
unsafe fn run_turns(cx: &mut Machine<'_>, op: &Op, turns: u32, begin: fn(&mut Reach, u32)) -> bool {
    let frame = cx.frame.at(0, op.d[2] as usize);
    // SAFETY: the caller's: it is such a function, and the program keeps it mapped.
    let code: Code = unsafe { std::mem::transmute::<usize, Code>(op.imm as usize) };
    let (low, high, mask) = (cx.low, cx.high, cx.mask);
    begin(cx.reach, turns);
    let reach = cx.ready_reach();
    // SAFETY: the code touches the slots that the layout gave, all inside of the bytes just checked, for strips of this lane
    // group; it reads the mask, keeps what it counts in `reach`, and reads memory as far as that says.
    unsafe { code(frame, low, high, mask.0.as_ptr(), reach) == 0 }
}

/// What the code of a segment is called as: the frame, the first strip, the one after the last, the lanes that run, 16
/// bits for each strip, and what it may read. It returns 0 if all went well, [`decided::DECIDED_ALL`] if it also knows what its predicates
/// are in the whole block, else there is an event.
type Code = unsafe extern "sysv64" fn(*mut u8, usize, usize, *const u64, *mut Reach) -> u32;

/// As [`run`], for the first strip alone, whichever of its lanes run: of a segment without stores whose registers are the same in all
/// lanes.
///
/// # Safety
/// As for [`run`].
pub(crate) unsafe fn run_once(cx: &mut Machine<'_>, op: &Op) -> Flow {
    static ALL: [u64; WORDS] = [u64::MAX; WORDS];
    let frame = cx.frame.at(0, op.d[0] as usize);
    // SAFETY: the caller's: it is such a function, and the program keeps it mapped.
    let code: Code = unsafe { std::mem::transmute::<usize, Code>(op.imm as usize) };
    let reach = cx.ready_reach();
    // SAFETY: the code touches the slots that the layout gave, all inside of the bytes just checked, and each has a strip; it reads
    // memory as far as `reach` says.
    if unsafe { code(frame, 0, 1, ALL.as_ptr(), reach) } == 0 {
        return Flow::Next;
    }
    // What is wrong is so of all lanes.
    let first = cx.mask.lowest().unwrap_or(0);
    if let Event::Fault { lane, .. } = &mut cx.event {
        *lane = first;
    }
    Flow::Stop
}

/// Runs the segment whose code stands at `imm`; it needs `d[0]` bytes of the frame.
///
/// # Safety
/// `imm` is an address in one of the program's [`Native`]s, where a segment for this machine's vector
/// unit begins.
pub(crate) unsafe fn run(cx: &mut Machine<'_>, op: &Op) -> Flow {
    // SAFETY: the caller vouches that a segment for this machine's vector unit begins at the address in `imm`.
    match unsafe { called(cx, op) } {
        0 => Flow::Next,
        _ => Flow::Stop,
    }
}

/// As [`run`], of a segment that may decide what its predicates are in the whole block: [`Machine::decided`] says whether it did.
///
/// # Safety
/// As for [`run`].
pub(crate) unsafe fn run_deciding(cx: &mut Machine<'_>, op: &Op) -> Flow {
    // SAFETY: the caller vouches that a segment for this machine's vector unit begins at the address in `imm`.
    let code = unsafe { called(cx, op) };
    cx.decided = code == u32::from(decided::DECIDED_ALL);
    if code == 0 || cx.decided {
        Flow::Next
    } else {
        Flow::Stop
    }
}

/// What a segment's code returns.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn called(cx: &mut Machine<'_>, op: &Op) -> u32 {
    let frame = cx.frame.at(0, op.d[0] as usize);
    // SAFETY: the caller's: it is such a function, and the program keeps it mapped.
    let code: Code = unsafe { std::mem::transmute::<usize, Code>(op.imm as usize) };
    let (low, high, mask) = (cx.low, cx.high, cx.mask);
    let reach = cx.ready_reach();
    // SAFETY: the code touches the slots that the layout gave, all inside of the bytes just checked, for
    // strips of this lane group; it reads the mask, keeps addresses in `reach`, and reads memory as far as that says.
    unsafe { code(frame, low, high, mask.0.as_ptr(), reach) }
}
