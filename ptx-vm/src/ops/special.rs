//! Constants, special registers and addresses: values that come from the grid.
//!
//! Chosen by `emit`, `lower::arith` and the operands' lowering. Must not know names of registers: those are
//! `special_register`'s.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::grid::RESERVED_SHARED;
use crate::limits::MAX_GROUP_LANES;
use crate::machine::{Flow, Machine, Op};
use crate::mask::WARP;
use crate::regs::{Frame, Lane, STRIP};
use crate::spaces::{GRID_BASE, WINDOW};

impl Machine<'_> {
    /// Sets every running lane of destination 0, or its one strip. `value` may be asked of lanes that do not run.
    #[inline(always)]
    pub(crate) fn fill(&mut self, op: &Op, value: impl Fn(usize) -> u64) {
        match op.width[0] {
            1 => self.fill_as(op, |lane| value(lane) as u8),
            2 => self.fill_as(op, |lane| value(lane) as u16),
            4 => self.fill_as(op, |lane| value(lane) as u32),
            _ => self.fill_as(op, value),
        }
    }

    #[inline(always)]
    fn fill_as<T: Lane>(&mut self, op: &Op, value: impl Fn(usize) -> T) {
        let target = self.target(op, 0);
        for strip in target.low..target.high {
            let first = if target.varying { strip * STRIP } else { 0 };
            let step = usize::from(target.varying);
            let values = std::array::from_fn(|lane| value(first + lane * step));
            target
                .frame
                .set_strip(target.offset as usize, strip, values);
        }
        if target.blend {
            self.blend::<T>(op.d[0]);
        }
    }

    /// Sets destination 0 to the thread's index along an axis of the block.
    fn fill_thread_index(&mut self, op: &Op, axis: usize) {
        let [x, y, _] = self.grid.block;
        let first = self.first_thread;
        let index = |thread: u32| match axis {
            0 => thread % x,
            1 => thread / x % y,
            _ => thread / (x * y),
        };
        if !x.is_multiple_of(STRIP as u32) {
            return self.fill(op, |lane| u64::from(index(first + lane as u32)));
        }
        // The lanes of a strip follow each other along x, and the next strip goes on or begins a row.
        let mut starts = [0; MAX_GROUP_LANES / STRIP];
        let mut at = [first % x, first / x % y, first / (x * y)];
        for start in &mut starts {
            *start = at[axis];
            at[0] += STRIP as u32;
            if at[0] == x {
                at = if at[1] + 1 == y {
                    [0, 0, at[2] + 1]
                } else {
                    [0, at[1] + 1, at[2]]
                };
            }
        }
        let step = u32::from(axis == 0);
        match op.width[0] {
            4 => self.fill_ramps(op, &starts, |start, lane| start + lane * step),
            2 => self.fill_ramps(op, &starts, |start, lane| (start + lane * step) as u16),
            _ => self.fill_ramps(op, &starts, |start, lane| u64::from(start + lane * step)),
        }
    }

    /// Sets destination 0 in each strip to what `value` makes of the strip's start and a lane of it.
    #[inline(always)]
    fn fill_ramps<T: Lane>(
        &mut self,
        op: &Op,
        starts: &[u32; MAX_GROUP_LANES / STRIP],
        value: impl Fn(u32, u32) -> T,
    ) {
        let target = self.target(op, 0);
        let strips = target.low..target.high;
        for (strip, &start) in strips.clone().zip(&starts[strips]) {
            let values = std::array::from_fn(|lane| value(start, lane as u32));
            target
                .frame
                .set_strip(target.offset as usize, strip, values);
        }
        if target.blend {
            self.blend::<T>(op.d[0]);
        }
    }

    /// Sets destination 0 to one value in all running lanes.
    pub(crate) fn splat<T: Lane>(&mut self, op: &Op, value: T) {
        let target = self.target(op, 0);
        let wide = is_x86_feature_detected!("avx512f");
        for strip in target.low..target.high {
            let offset = target.offset as usize;
            if wide {
                // SAFETY: the processor has the unit.
                unsafe { splat_at_once(target.frame, offset, strip, value) };
            } else {
                target.frame.set_strip(offset, strip, [value; STRIP]);
            }
        }
        if target.blend {
            self.blend::<T>(op.d[0]);
        }
    }

    /// [`Machine::splat`] by the destination's width.
    pub(crate) fn splat_wide(&mut self, op: &Op, value: u64) {
        match op.width[0] {
            1 => self.splat(op, value as u8),
            2 => self.splat(op, value as u16),
            4 => self.splat(op, value as u32),
            _ => self.splat(op, value),
        }
    }
}

/// Sets all lanes of a strip by vectors as wide as those that a segment reads it by: a processor hands on no more than was
/// stored at once.
///
/// # Safety
/// The processor has the unit.
#[target_feature(enable = "avx512f")]
unsafe fn splat_at_once<T: Lane>(frame: Frame, offset: usize, strip: usize, value: T) {
    frame.set_strip(offset, strip, [value; STRIP]);
}

/// d = imm
///
/// # Safety
/// None: any machine has it; so for all functions below.
pub(crate) unsafe fn constant(cx: &mut Machine<'_>, op: &Op) -> Flow {
    cx.splat_wide(op, op.imm);
    Flow::Next
}

/// d = address of global number `s[4]` + imm
///
/// # Safety
/// None.
pub(crate) unsafe fn global_address(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let base = cx.grid.globals.get(op.s[4] as usize).copied().unwrap_or(0);
    cx.splat_wide(op, base.wrapping_add(op.imm));
    Flow::Next
}

/// d = local frame + imm
///
/// # Safety
/// None.
pub(crate) unsafe fn local_address(cx: &mut Machine<'_>, op: &Op) -> Flow {
    cx.splat_wide(op, u64::from(cx.local_base).wrapping_add(op.imm));
    Flow::Next
}

/// d = clock; nanoseconds of the wall clock if imm is not 0, else ticks of 1 ns since the first use
///
/// # Safety
/// None.
pub(crate) unsafe fn clock(cx: &mut Machine<'_>, op: &Op) -> Flow {
    static START: OnceLock<Instant> = OnceLock::new();
    let now = if op.imm == 0 {
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    } else {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64)
    };
    // Two reads by one thread differ, as programs that divide by the difference expect.
    cx.splat_wide(op, now);
    Flow::Next
}

/// d = whether the address in source 0 is that of one of the module's constants
///
/// # Safety
/// None.
pub(crate) unsafe fn in_constants(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let (frame, constants) = (cx.frame, &cx.grid.constants);
    let inside = |address: u64| {
        // Variables do not overlap.
        let after = constants.partition_point(|&(base, _)| base <= address);
        let before = after.checked_sub(1).and_then(|index| constants.get(index));
        before.is_some_and(|&(base, bytes)| address - base < bytes)
    };
    cx.fill(op, |lane| {
        let lane = if op.varies(0) { lane } else { 0 };
        u64::from(inside(frame.lane::<u64>(op.s[0] as usize, lane)))
    });
    Flow::Next
}

/// d = special register
///
/// # Safety
/// None.
pub(crate) unsafe fn read_special(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let axis = (op.imm >> 8 & 3) as usize;
    let grid = cx.grid;
    let first = cx.first_thread;
    let lane_id = |lane: usize| lane as u32 % WARP;
    let same = |value: u32| u64::from(value);
    match op.imm & 0xff {
        0 => cx.fill_thread_index(op, axis),
        1 => cx.splat_wide(op, same(grid.block[axis])),
        2 => cx.splat_wide(op, same(cx.block_index[axis])),
        3 => cx.splat_wide(op, same(grid.size[axis])),
        4 => cx.fill(op, |lane| same(lane_id(lane))),
        5 => cx.fill(op, |lane| same((first + lane as u32) / WARP)),
        6 => cx.splat_wide(op, same(grid.threads().div_ceil(WARP))),
        7 => cx.splat_wide(op, same(cx.sm)),
        8 => cx.splat_wide(op, same(grid.sm_count)),
        9 => cx.splat_wide(op, grid.id),
        10 => cx.fill(op, |lane| same(1 << lane_id(lane))),
        11 => cx.fill(op, |lane| same(u32::MAX >> (31 - lane_id(lane)))),
        12 => cx.fill(op, |lane| same((1 << lane_id(lane)) - 1)),
        13 => cx.fill(op, |lane| same(u32::MAX << lane_id(lane))),
        14 => cx.fill(op, |lane| {
            same((u32::MAX << lane_id(lane)) & !(1 << lane_id(lane)))
        }),
        15 => cx.splat_wide(op, same(grid.dynamic_shared)),
        16 => cx.splat_wide(op, same(grid.dynamic_shared + grid.static_shared)),
        17 => cx.splat_wide(op, same(WARP)),
        18 => cx.splat_wide(op, same(cx.block_index[axis] / grid.cluster[axis])),
        19 => cx.splat_wide(op, same(grid.clusters()[axis])),
        20 if grid.cooperative => cx.splat_wide(op, GRID_BASE >> 32),
        21 if grid.cooperative => cx.splat_wide(op, GRID_BASE & 0xffff_ffff),
        20 | 21 => cx.splat_wide(op, 0),
        22 => cx.splat_wide(op, same(grid.reserved_shared())),
        23 | 24 => cx.splat_wide(op, same(grid.reserved_shared() + RESERVED_SHARED)),
        25 => cx.splat_wide(op, same(cx.block_index[axis] % grid.cluster[axis])),
        26 => cx.splat_wide(op, same(grid.cluster[axis])),
        27 => cx.splat_wide(op, same(cx.cluster.rank)),
        28 => cx.splat_wide(op, same(grid.cluster_blocks())),
        30 => cx.splat_wide(op, grid.graph),
        _ => cx.splat_wide(op, u64::from(grid.has_clusters)),
    }
    debug_assert!(u64::from(cx.local_stride) <= WINDOW);
    Flow::Next
}
