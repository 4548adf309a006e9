//! Branches, guards, barriers, calls: what moves a path through the program.
//!
//! Fields: `s[0]` and `s[1]` are positions, `d[0]` and `d[1]` the blocks that they start, `imm` holds what
//! a back-edge costs, 32 bits for each of the two (0 for a forward edge): see [`edge`].
//!
//! Chosen by `emit` and `lower::control`. Must not choose a path: it tells `lane_group` by a `Flow` what the lanes
//! came to.

use std::arch::x86_64 as arch;
use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::fault::FaultKind;
use crate::machine::{Arrival, Event, Flow, Machine, Op, Reduce, ReduceOp};
use crate::mask::{Mask, WORDS};
use crate::program::NOWHERE;
use crate::regs::{Cursor, STRIP};
use crate::segment;
use crate::spaces::{FUNCTION_BASE, FUNCTION_STEP};

/// What taking an edge costs that passes so many operations: of the budget (24 bits), and of the path's
/// time slice (8 bits).
pub(crate) fn edge(operations: u32, spins: bool) -> u32 {
    // A loop that waits for others is to give way soon, in the block and in the lane group.
    let (operations, slice) = if spins {
        (operations.saturating_mul(64), 64)
    } else {
        (operations, 1)
    };
    operations.clamp(1, 0xff_ffff) << 8 | slice
}

/// What going on to a later block costs after so many operations: of the budget alone.
pub(crate) fn forward(operations: u32) -> u32 {
    operations.min(0xff_ffff) << 8
}

/// Which of the running lanes a predicate holds in.
enum Held {
    None,
    All,
    Some(Mask),
}

impl Machine<'_> {
    /// The lanes of the running ones whose predicate in source `source` holds.
    pub(crate) fn holds(&self, op: &Op, source: usize, negated: bool) -> Mask {
        match self.held(op, source, negated) {
            Held::None => Mask::default(),
            Held::All => self.mask,
            Held::Some(mask) => mask,
        }
    }

    /// As [`Machine::holds`], where all or none are the usual ones: nobody has to look at a mask that was just written.
    #[inline(always)]
    fn held(&self, op: &Op, source: usize, negated: bool) -> Held {
        let slot = op.s[source] as usize;
        let flip = u8::from(negated);
        if !op.varies(source) {
            let holds = self.frame.lane::<u8>(slot, 0) ^ flip != 0;
            return if holds { Held::All } else { Held::None };
        }
        let (low, high) = (self.low, self.high);
        if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
            // Words of the mask, whose other lanes do not count; slots are whole cache lines.
            let words = low / 4..high.div_ceil(4);
            let values = self.frame.at(slot + 64 * words.start, 64 * words.len());
            // SAFETY: all of the words' lanes are inside of the frame, as `at` has tested; the units have just been found.
            return unsafe { held_of_words(values, words, &self.mask, negated) };
        }
        let mut mask = Mask::default();
        let mut values = Cursor::<u8>::new(self.frame, op.s[source], true, low, high);
        for strip in low..high {
            // SAFETY: the cursor is made for the strips `low..high`, and this reads one of them in each turn of that loop.
            mask.add_strip(strip, bits(unsafe { values.read() }));
        }
        let held = if negated {
            self.mask.and_not(mask)
        } else {
            self.mask.and(mask)
        };
        if held.is_empty() {
            Held::None
        } else if held == self.mask {
            Held::All
        } else {
            Held::Some(held)
        }
    }

    /// Pays for a back-edge; says whether the path may go on.
    fn pay(&mut self, cost: u32) -> bool {
        self.budget -= i64::from(cost >> 8);
        if self.diverged {
            self.slice_left = self.slice_left.saturating_sub(cost & 0xff);
        }
        self.budget > 0 && self.slice_left > 0 && !self.grid.cancel.load(Ordering::Relaxed)
    }

    /// Some of the running lanes join the path that waits where they go; the others go on.
    fn join(&mut self, lanes: Mask) {
        self.joined = self.joined.or(lanes);
        self.set_mask(self.mask.and_not(lanes));
    }

    /// Goes to a block of the convergent code.
    #[inline(always)]
    fn go_fast(&mut self, to: u32, cost: u32) -> Flow {
        if cost != 0 && !self.pay(cost) {
            return self.stop(Event::BackEdge(to));
        }
        Flow::Jump(to)
    }

    /// Goes to a block of the divergent code.
    #[inline(always)]
    fn go_slow(&mut self, to: u32, block: u32, cost: u32) -> Flow {
        if cost != 0 && !self.pay(cost) {
            return self.stop(Event::BackEdge(to));
        }
        if self.diverged {
            if block >= self.limit {
                return self.stop(Event::Boundary(block));
            }
        } else if self.reconvergence_delay == 0 {
            return self.stop(Event::Boundary(block));
        } else {
            self.reconvergence_delay -= 1;
        }
        Flow::Jump(to)
    }
}

/// The lowest bit of each of 16 bytes. Lanes that run have 0 or 1 there; others may have anything, as a
/// function's frame holds what another one left.
#[inline(always)]
fn bits(values: [u8; STRIP]) -> u16 {
    let values = u128::from_le_bytes(values);
    // SAFETY: every x86-64 has SSE2.
    unsafe {
        let values = arch::_mm_set_epi64x((values >> 64) as i64, values as i64);
        // Each byte's lowest bit becomes its highest.
        arch::_mm_movemask_epi8(arch::_mm_slli_epi16::<7>(values)) as u16
    }
}

/// The same of the 64 lanes of each of some words, for the lanes that run.
///
/// # Safety
/// There are 64 bytes at `values` for each of the words, which nobody else writes, and the processor has the units.
#[target_feature(enable = "avx512bw,avx512vl")]
unsafe fn held_of_words(
    values: *const u8,
    words: Range<usize>,
    running: &Mask,
    negated: bool,
) -> Held {
    let lowest = arch::_mm512_set1_epi8(1);
    let flip = if negated { u64::MAX } else { 0 };
    let mut held = [0; WORDS];
    let (mut any, mut other) = (0, 0);
    for (index, word) in words.enumerate() {
        // Segments write 16 lanes at a time, and a processor hands on no more than was stored at once: what is read at once
        // from several stores waits for all stores before them, those to the program's own memory too.
        let strip = |strip: usize| {
            // SAFETY: the caller has as many bytes there as words have lanes.
            unsafe { arch::_mm_loadu_si128(values.add(64 * index + 16 * strip).cast()) }
        };
        let low =
            arch::_mm256_inserti128_si256::<1>(arch::_mm256_castsi128_si256(strip(0)), strip(1));
        let high =
            arch::_mm256_inserti128_si256::<1>(arch::_mm256_castsi128_si256(strip(2)), strip(3));
        let lanes = arch::_mm512_inserti64x4::<1>(arch::_mm512_castsi256_si512(low), high);
        let lanes = arch::_mm512_test_epi8_mask(lanes, lowest) ^ flip;
        held[word] = lanes & running.0[word];
        any |= held[word];
        other |= !lanes & running.0[word];
    }
    match (any, other) {
        (0, _) => Held::None,
        (_, 0) => Held::All,
        _ => Held::Some(Mask(held)),
    }
}

/// Jump in the convergent code.
///
/// # Safety
/// None: any machine has it; so for all functions below.
pub(crate) unsafe fn jump_fast(cx: &mut Machine<'_>, op: &Op) -> Flow {
    cx.go_fast(op.s[0], op.imm as u32)
}

/// Jump in the divergent code.
///
/// # Safety
/// None.
pub(crate) unsafe fn jump_slow(cx: &mut Machine<'_>, op: &Op) -> Flow {
    cx.go_slow(op.s[0], op.d[0], op.imm as u32)
}

/// Branch in the convergent code, on predicate `s[2]`; `width[1]` negates it.
///
/// # Safety
/// None.
pub(crate) unsafe fn branch_fast(cx: &mut Machine<'_>, op: &Op) -> Flow {
    match cx.held(op, 2, op.width[1] != 0) {
        Held::None => cx.go_fast(op.s[1], (op.imm >> 32) as u32),
        Held::All => cx.go_fast(op.s[0], op.imm as u32),
        Held::Some(taken) => cx.stop(Event::Split {
            taken,
            to: op.d[0],
            other: op.d[1],
        }),
    }
}

/// As [`branch_fast`], right behind a segment that may have decided the predicate, by its number in `s[3]`, for the whole block.
///
/// # Safety
/// None.
pub(crate) unsafe fn branch_decided(cx: &mut Machine<'_>, op: &Op) -> Flow {
    if !cx.decided {
        // SAFETY: any machine has it.
        return unsafe { branch_fast(cx, op) };
    }
    if cx.reach.decides(op.s[3]) ^ (op.width[1] != 0) {
        cx.go_fast(op.s[0], op.imm as u32)
    } else {
        cx.go_fast(op.s[1], (op.imm >> 32) as u32)
    }
}

/// Branch in the divergent code.
///
/// # Safety
/// None.
pub(crate) unsafe fn branch_slow(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let taken = match cx.held(op, 2, op.width[1] != 0) {
        Held::None => return cx.go_slow(op.s[1], op.d[1], (op.imm >> 32) as u32),
        Held::All => return cx.go_slow(op.s[0], op.d[0], op.imm as u32),
        Held::Some(taken) => taken,
    };
    if op.d[0] == cx.meeting {
        cx.join(taken);
        cx.go_slow(op.s[1], op.d[1], (op.imm >> 32) as u32)
    } else if op.d[1] == cx.meeting {
        cx.join(cx.mask.and_not(taken));
        cx.go_slow(op.s[0], op.d[0], op.imm as u32)
    } else {
        cx.stop(Event::Split {
            taken,
            to: op.d[0],
            other: op.d[1],
        })
    }
}

/// The loop whose header stands at `s[0]`, as machine code: lanes leave it for `s[1]`, which costs `s[2]`; a turn of all strips costs
/// `d[3]`. The code counts so many turns for one of a strip as `width[0]` is the logarithm of.
///
/// # Safety
/// As for [`segment::run_loop`].
pub(crate) unsafe fn repeat(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let strips = (cx.high - cx.low).max(1) as i64;
    let mut turns = cx.budget / i64::from(op.d[3].max(1));
    if cx.diverged {
        turns = turns.min(cx.slice_left.into());
    }
    let counted = strips << op.width[0];
    let turns = turns.saturating_mul(counted).clamp(1, i64::from(u32::MAX));
    // SAFETY: by the caller's promise a loop's code for this machine stands at `imm`.
    let Some(made) = (unsafe { segment::run_loop(cx, op, turns as u32) }) else {
        return Flow::Stop;
    };
    let left = cx.reach.left(0, cx.low, cx.high);
    let rounds = made.div_ceil(counted as u32);
    cx.budget -= i64::from(rounds) * i64::from(op.d[3]);
    if cx.diverged {
        cx.slice_left = cx.slice_left.saturating_sub(rounds);
    }
    if left.is_empty() {
        cx.go_slow(op.s[1], op.d[1], op.s[2])
    } else if left == cx.mask {
        cx.stop(Event::BackEdge(op.s[0]))
    } else {
        cx.stop(Event::Split {
            taken: left,
            to: op.d[0],
            other: op.d[1],
        })
    }
}

/// The fewest turns of lanes that are made of several loops, whatever the budget: some sixteen for each lane of a group. Lanes that have
/// to stop in the midst of it go on apart, which costs them more.
const LEAST_TURNS: i64 = 1 << 12;

/// Several loops, one after the other, as machine code, and what is before and between them, which begins at `s[0]`: lanes leave it for
/// `s[1]`, which costs `s[2]`, or have to stop at its beginning or at the headers of its loops, blocks `s[3]` and `s[4]`. Otherwise as
/// [`repeat`]. `width[1]` is 1 in the convergent code.
///
/// # Safety
/// As for [`segment::run_loop`].
pub(crate) unsafe fn repeat_several(cx: &mut Machine<'_>, op: &Op) -> Flow {
    // SAFETY: by the caller's promise the code of such loops for this machine stands at `imm`.
    match unsafe { run_several(cx, op) } {
        None => Flow::Stop,
        Some(groups) if !groups.is_empty() => cx.stop(Event::Scatter(groups)),
        Some(_) if op.width[1] == 0 => cx.go_slow(op.s[1], op.d[1], op.s[2]),
        Some(_) => cx.go_fast(op.s[1], op.s[2]),
    }
}

/// The same in the convergent code before a branch that leads there, for those lanes on which predicate `s[2]` holds, if it parts them;
/// `width[1]` negates it. All others go where they leave it for.
///
/// # Safety
/// As for [`segment::run_loop`].
pub(crate) unsafe fn repeat_beside(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let inside = match cx.held(op, 2, op.width[1] != 0) {
        Held::None => return cx.go_fast(op.s[1], 0),
        Held::All => return Flow::Next,
        Held::Some(inside) => inside,
    };
    let all = cx.mask;
    cx.set_mask(inside);
    // SAFETY: by the caller's promise the code of such loops for this machine stands at `imm`.
    let groups = unsafe { run_several(cx, op) };
    if groups.is_some() {
        cx.set_mask(all);
    }
    match groups {
        None => Flow::Stop,
        Some(groups) if groups.is_empty() => cx.go_fast(op.s[1], 0),
        Some(mut groups) => {
            let others = all.and_not(inside);
            match groups.iter_mut().find(|(_, block)| *block == op.d[1]) {
                Some((gone, _)) => *gone = gone.or(others),
                None => groups.push((others, op.d[1])),
            }
            cx.stop(Event::Scatter(groups))
        }
    }
}

/// Runs such loops for the lanes that run. Returns where they are if not all have left them; `None` if there is an event.
///
/// # Safety
/// As for [`segment::run_loop`].
unsafe fn run_several(cx: &mut Machine<'_>, op: &Op) -> Option<Vec<(Mask, u32)>> {
    let strips = (cx.high - cx.low).max(1) as i64;
    let counted = strips << op.width[0];
    let rounds = cx.budget / i64::from(op.d[3].max(1));
    let turns = rounds
        .saturating_mul(counted)
        .clamp(LEAST_TURNS, i64::from(u32::MAX));
    // SAFETY: by the caller's promise the code of such loops for this machine stands at `imm`.
    let made = unsafe { segment::run_loop(cx, op, turns as u32) }?;
    let rounds = made.div_ceil(counted as u32);
    cx.budget -= i64::from(rounds) * i64::from(op.d[3]);
    let mut groups: Vec<(Mask, u32)> = Vec::new();
    if !cx.reach.some_left() {
        return Some(groups);
    }
    let (low, high, mut gone) = (cx.low, cx.high, cx.mask);
    for (place, block) in [op.d[0], op.s[3], op.s[4]].into_iter().enumerate() {
        let left = cx.reach.left(place, low, high);
        if !left.is_empty() {
            gone = gone.and_not(left);
            groups.push((left, block));
        }
    }
    if !groups.is_empty() && !gone.is_empty() {
        groups.push((gone, op.d[1]));
    }
    Some(groups)
}

/// Branch by a table: index in `s[2]`, table number in the lower half of `imm`, cost in the upper one.
///
/// # Safety
/// None.
pub(crate) unsafe fn table(cx: &mut Machine<'_>, op: &Op) -> Flow {
    // It stops here in any case, and whoever stops looks at the budget.
    let _ = cx.pay((op.imm >> 32) as u32);
    let targets = &cx.program.tables[op.imm as u32 as usize];
    let mut groups: Vec<(Mask, u32)> = Vec::new();
    for lane in cx.mask.lanes() {
        let index = cx
            .frame
            .lane::<u32>(op.s[2] as usize, if op.varies(2) { lane } else { 0 });
        let block = targets[(index as usize).min(targets.len() - 1)];
        match groups.iter_mut().find(|(_, to)| *to == block) {
            Some((mask, _)) => *mask = mask.or(Mask::lane(lane)),
            None => groups.push((Mask::lane(lane), block)),
        }
    }
    cx.stop(Event::Scatter(groups))
}

/// Runs the next operations, up to position `s[0]`, for the lanes whose predicate `s[2]` holds only. If `imm` is 1, there stands a guard for
/// the others.
///
/// # Safety
/// None.
pub(crate) unsafe fn guard(cx: &mut Machine<'_>, op: &Op) -> Flow {
    match cx.held(op, 2, op.width[1] != 0) {
        Held::None if op.imm == 1 => {
            cx.unguarded = cx.mask;
            return Flow::Jump(op.s[0] + 1);
        }
        Held::None => return Flow::Jump(op.s[0]),
        Held::All => cx.unguarded = cx.mask,
        Held::Some(mask) => {
            cx.unguarded = cx.mask;
            cx.set_mask(mask);
        }
    }
    Flow::Next
}

/// As [`guard`], right behind a segment that may have decided the predicate, by its number in `s[3]`, for the whole block.
///
/// # Safety
/// None.
pub(crate) unsafe fn guard_decided(cx: &mut Machine<'_>, op: &Op) -> Flow {
    if !cx.decided {
        // SAFETY: any machine has it.
        return unsafe { guard(cx, op) };
    }
    cx.unguarded = cx.mask;
    if cx.reach.decides(op.s[3]) ^ (op.width[1] != 0) {
        Flow::Next
    } else {
        Flow::Jump(op.s[0] + u32::from(op.imm == 1))
    }
}

/// Ends what [`guard`] began.
///
/// # Safety
/// None.
pub(crate) unsafe fn unguard(cx: &mut Machine<'_>, _: &Op) -> Flow {
    if cx.mask != cx.unguarded {
        cx.set_mask(cx.unguarded);
    }
    Flow::Next
}

/// Waits at a barrier, or goes on at `s[0]` if all are there. `width[0]`: its number, or 255 for that in `s[2]`; `s[3]`: thread count if
/// `width[1]` bit 0 is set; bit 1: does not wait; bits 2 and 3: reduction of `s[4]`; `d[1]`:
/// where the reduction goes.
///
/// # Safety
/// None.
pub(crate) unsafe fn barrier(cx: &mut Machine<'_>, op: &Op) -> Flow {
    // The usual one, of all threads of a block that is one lane group: it is complete.
    if cx.alone && cx.full && op.width[1] == 0 && op.width[0] < 16 {
        return Flow::Jump(op.s[0]);
    }
    let lane = cx.mask.lowest().unwrap_or(0);
    let read = |source: usize| {
        cx.frame.lane::<u32>(
            op.s[source] as usize,
            if op.varies(source) { lane } else { 0 },
        )
    };
    let id = if op.width[0] == 255 {
        read(2)
    } else {
        u32::from(op.width[0])
    };
    let flags = op.width[1];
    let count = if flags & 1 != 0 { read(3) } else { 0 };
    let is_fixed = op.width[0] != 255;
    if id >= 16 && !is_fixed || flags & 1 != 0 && (count == 0 || count % 32 != 0) {
        return cx.fault(FaultKind::IllegalInstruction, u64::from(id), lane);
    }
    let kind = match flags >> 2 & 3 {
        1 => Some(ReduceOp::And),
        2 => Some(ReduceOp::Or),
        3 => Some(ReduceOp::Popc),
        _ => None,
    };
    let reduce = kind.map(|kind| Reduce {
        op: kind,
        holds: cx.holds(op, 4, false),
        destination: op.d[1],
        width: if kind == ReduceOp::Popc { 4 } else { 1 },
    });
    let arrival = Arrival {
        id: id as u8,
        count,
        arrive_only: flags & 2 != 0,
        reduce,
    };
    cx.stop(Event::Barrier {
        arrival,
        next: op.d[0],
    })
}

/// Calls site `imm`, going on at block `d[0]`.
///
/// # Safety
/// None.
pub(crate) unsafe fn call(cx: &mut Machine<'_>, op: &Op) -> Flow {
    cx.stop(Event::Call {
        site: op.imm as u32,
        next: op.d[0],
    })
}

/// Calls the functions whose addresses stand in `s[2]`.
///
/// # Safety
/// None.
pub(crate) unsafe fn call_indirect(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let mut groups: Vec<(Mask, u32)> = Vec::new();
    for lane in cx.mask.lanes() {
        let address = cx
            .frame
            .lane::<u64>(op.s[2] as usize, if op.varies(2) { lane } else { 0 });
        let offset = address.wrapping_sub(FUNCTION_BASE);
        let function = usize::try_from(offset / FUNCTION_STEP)
            .ok()
            .filter(|_| offset.is_multiple_of(FUNCTION_STEP))
            .and_then(|index| cx.program.by_address.get(index).copied())
            .filter(|&function| function != NOWHERE);
        let Some(function) = function else {
            return cx.fault(FaultKind::InvalidPc, address, lane);
        };
        match groups.iter_mut().find(|(_, to)| *to == function) {
            Some((mask, _)) => *mask = mask.or(Mask::lane(lane)),
            None => groups.push((Mask::lane(lane), function)),
        }
    }
    cx.stop(Event::CallEach {
        site: op.imm as u32,
        next: op.d[0],
        groups,
    })
}

/// Returns.
///
/// # Safety
/// None.
pub(crate) unsafe fn ret(cx: &mut Machine<'_>, _: &Op) -> Flow {
    cx.stop(Event::Return)
}

/// Ends the lanes.
///
/// # Safety
/// None.
pub(crate) unsafe fn exit(cx: &mut Machine<'_>, _: &Op) -> Flow {
    // Not as one of many events: blocks are short.
    cx.event = Event::Exit;
    Flow::Stop
}

/// Ends the prologue.
///
/// # Safety
/// None.
pub(crate) unsafe fn done(cx: &mut Machine<'_>, _: &Op) -> Flow {
    cx.stop(Event::None)
}

/// `trap`, or `brkpt` if imm is not 0.
///
/// # Safety
/// None.
pub(crate) unsafe fn trap(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let kind = if op.imm == 0 {
        FaultKind::Trap
    } else {
        FaultKind::IllegalInstruction
    };
    let lane = cx.mask.lowest().unwrap_or(0);
    cx.fault(kind, 0, lane)
}

/// A fence: what was written before is seen by all before what comes after.
///
/// # Safety
/// None.
pub(crate) unsafe fn fence(_: &mut Machine<'_>, _: &Op) -> Flow {
    std::sync::atomic::fence(Ordering::SeqCst);
    Flow::Next
}

/// `nanosleep`: spends the budget, so that others run. Goes on when a back-edge notices.
///
/// # Safety
/// None.
pub(crate) unsafe fn pause(cx: &mut Machine<'_>, _: &Op) -> Flow {
    cx.budget -= 1 << 14;
    if cx.diverged {
        cx.slice_left = 0;
    }
    Flow::Next
}
