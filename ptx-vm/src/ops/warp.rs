//! Exchanges among the 32 lanes of a warp: shuffles, votes, matches, reductions.
//!
//! An instruction with a member mask wants all live lanes of that mask at once. A path may hold only
//! some of them: those warps that are complete go on, the others wait ([`Event::Warp`]).
//!
//! Chosen by `lower::control`; `lane_group::barriers` finishes what had to wait. Must not know why lanes are
//! missing.

use crate::machine::{Event, Flow, Machine, Op};
use crate::mask::{Mask, WORDS};
use crate::ops::float::{max, max_nan, min, min_nan};
use ptx::ast::Type;

/// Warps of a lane group.
const WARPS: usize = WORDS * 2;
/// Warps of a warpgroup.
const WARPGROUP: usize = 4;
/// No source, for [`Machine::members`]: all live lanes of a warp are members.
pub(crate) const ALL: usize = usize::MAX;
/// Bit of `imm`: source 3 (or the last) is a member mask.
pub(crate) const SYNC: u64 = 1 << 32;
/// Bit of `imm` of [`reduce`]: a NaN among the values is the result.
pub(crate) const NAN: u64 = 1 << 8;
/// Bit of `imm` of [`reduce`]: without their signs.
pub(crate) const ABS: u64 = 1 << 9;

impl Machine<'_> {
    pub(super) fn operand(&self, op: &Op, source: usize, lane: usize) -> u32 {
        self.frame.lane::<u32>(
            op.s[source] as usize,
            if op.varies(source) { lane } else { 0 },
        )
    }

    /// The lanes that may do an instruction whose member mask is in `source`, or all of them without
    /// one. `Err` if some have to wait.
    pub(super) fn members(&mut self, op: &Op, source: Option<usize>) -> Result<(), Flow> {
        let force = std::mem::take(&mut self.force);
        let (Some(source), false) = (source, force) else {
            return Ok(());
        };
        let mut ready = Mask::default();
        for warp in 0..WARPS {
            let here = self.mask.warp(warp);
            if here == 0 {
                continue;
            }
            let live = self.live.warp(warp);
            if here == live {
                ready.set_warp(warp, here);
                continue;
            }
            let mut lanes = 0;
            for lane in 0..32 {
                if here >> lane & 1 != 0 {
                    let wanted = match source {
                        ALL => live,
                        source => self.operand(op, source, warp * 32 + lane) & live,
                    };
                    if wanted & !here == 0 {
                        lanes |= 1 << lane;
                    }
                }
            }
            ready.set_warp(warp, lanes);
        }
        if ready == self.mask {
            Ok(())
        } else {
            Err(self.stop(Event::Warp { ready, warps: 1 }))
        }
    }

    /// Lets those warpgroups go on that are here with all lanes that have not exited. `Err` if some have to wait.
    pub(super) fn warpgroups(&mut self) -> Result<(), Flow> {
        if std::mem::take(&mut self.force) {
            return Ok(());
        }
        let mut ready = Mask::default();
        for first in (0..WARPS).step_by(WARPGROUP) {
            let group = first..first + WARPGROUP;
            if group
                .clone()
                .all(|warp| self.mask.warp(warp) == self.live.warp(warp))
            {
                group.for_each(|warp| ready.set_warp(warp, self.mask.warp(warp)));
            }
        }
        if ready == self.mask {
            Ok(())
        } else {
            Err(self.stop(Event::Warp {
                ready,
                warps: WARPGROUP,
            }))
        }
    }

    /// The first lane of each warp that has running ones, with those.
    pub(super) fn warps(&self) -> impl Iterator<Item = (usize, u32)> + use<> {
        let mask = self.mask;
        (0..WARPS).filter_map(move |warp| {
            let lanes = mask.warp(warp);
            (lanes != 0).then_some((warp * 32, lanes))
        })
    }

    /// Calls `f` for each warp that has running lanes, with those.
    fn each_warp(&mut self, mut f: impl FnMut(&mut Self, usize, u32)) {
        for warp in 0..WARPS {
            let lanes = self.mask.warp(warp);
            if lanes != 0 {
                f(self, warp, lanes);
            }
        }
    }

    pub(super) fn set_if(
        &mut self,
        op: &Op,
        destination: usize,
        lane: usize,
        width: u8,
        value: u64,
    ) {
        // A slot at offset 0 is nobody's: the sink.
        let slot = op.d[destination] as usize;
        if slot != 0 {
            self.frame.set_wide(slot, lane, width, value);
        }
    }
}

/// Lanes of a set, ascending.
fn each(lanes: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |lane| lanes >> lane & 1 != 0)
}

/// `shfl`: value, lane or delta, clamp and segment mask, member mask; mode in `imm`. Destinations: value,
/// and a predicate that says whether the source lane was in range.
///
/// # Safety
/// None: any machine has it; so for all functions below.
pub(crate) unsafe fn shuffle(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let sync = (op.imm & SYNC != 0).then_some(3);
    if let Err(flow) = cx.members(op, sync) {
        return flow;
    }
    let mode = op.imm & 3;
    cx.each_warp(|cx, warp, lanes| {
        let base = warp * 32;
        let mut values = [0u32; 32];
        for lane in each(lanes) {
            values[lane] = cx.operand(op, 0, base + lane);
        }
        for lane in each(lanes) {
            let b = cx.operand(op, 1, base + lane);
            let c = cx.operand(op, 2, base + lane);
            let (id, segment, clamp) = (lane as i64, c >> 8 & 0x1f, c & 0x1f);
            let b = i64::from(b & 0x1f);
            let top = i64::from(lane as u32 & segment | clamp & !segment);
            let bottom = i64::from(lane as u32 & segment);
            let (from, inside) = match mode {
                0 => (id - b, id - b >= top),
                1 => (id + b, id + b <= top),
                2 => (id ^ b, id ^ b <= top),
                _ => {
                    let from = bottom | b & i64::from(!segment & 0x1f);
                    (from, from <= top)
                }
            };
            let source = if inside { (from & 31) as usize } else { lane };
            let members = match sync {
                Some(mask) => lanes & cx.operand(op, mask, base + lane),
                None => lanes,
            };
            // PTX leaves the value of a lane that does not take part undefined. An H200 gives 0, which
            // reductions over partial warps rely on.
            let value = if source == lane || members >> source & 1 != 0 {
                values[source]
            } else {
                0
            };
            cx.set_if(op, 0, base + lane, 4, value.into());
            cx.set_if(op, 1, base + lane, 1, inside.into());
        }
    });
    Flow::Next
}

/// `vote`: predicate, member mask; mode in `imm`.
///
/// # Safety
/// None.
pub(crate) unsafe fn vote(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let sync = (op.imm & SYNC != 0).then_some(1);
    if let Err(flow) = cx.members(op, sync) {
        return flow;
    }
    let holds = cx.holds(op, 0, false);
    let mode = op.imm & 3;
    cx.each_warp(|cx, warp, lanes| {
        let here = holds.warp(warp);
        for lane in each(lanes) {
            let members = match sync {
                Some(source) => lanes & cx.operand(op, source, warp * 32 + lane),
                None => lanes,
            };
            let yes = here & members;
            let (value, width) = match mode {
                0 => (u32::from(yes == members), 1),
                1 => (u32::from(yes != 0), 1),
                2 => (u32::from(yes == 0 || yes == members), 1),
                _ => (yes, 4),
            };
            cx.set_if(op, 0, warp * 32 + lane, width, value.into());
        }
    });
    Flow::Next
}

/// `match`: value, member mask. `imm`: bit 0: `.all`, with a predicate as destination 1; bit 1: 64 bits.
///
/// # Safety
/// None.
pub(crate) unsafe fn find_equal(cx: &mut Machine<'_>, op: &Op) -> Flow {
    if let Err(flow) = cx.members(op, Some(1)) {
        return flow;
    }
    let (all, width) = (op.imm & 1 != 0, if op.imm & 2 != 0 { 8 } else { 4 });
    cx.each_warp(|cx, warp, lanes| {
        let base = warp * 32;
        let value = |cx: &Machine<'_>, lane: usize| {
            cx.frame.wide(
                op.s[0] as usize,
                if op.varies(0) { base + lane } else { 0 },
                width,
            )
        };
        let values: [u64; 32] = std::array::from_fn(|lane| {
            if lanes >> lane & 1 != 0 {
                value(cx, lane)
            } else {
                0
            }
        });
        for lane in each(lanes) {
            let members = lanes & cx.operand(op, 1, base + lane);
            let equal = each(members)
                .filter(|&other| values[other] == values[lane])
                .fold(0u32, |bits, other| bits | 1 << other);
            let result = if !all || equal == members { equal } else { 0 };
            cx.set_if(op, 0, base + lane, 4, result.into());
            if all {
                cx.set_if(op, 1, base + lane, 1, u64::from(equal == members));
            }
        }
    });
    Flow::Next
}

/// `redux`: value, member mask; operation in `imm`.
///
/// # Safety
/// None.
pub(crate) unsafe fn reduce(cx: &mut Machine<'_>, op: &Op) -> Flow {
    if let Err(flow) = cx.members(op, Some(1)) {
        return flow;
    }
    let floats = |a: u32, b: u32| {
        let (a, b) = (f32::from_bits(a), f32::from_bits(b));
        let value = match (op.imm & 0xf, op.imm & NAN != 0) {
            (8, false) => min(a, b),
            (8, true) => min_nan(a, b),
            (_, false) => max(a, b),
            (_, true) => max_nan(a, b),
        };
        value.to_bits()
    };
    let amount = if op.imm & ABS != 0 {
        0x7fff_ffff
    } else {
        u32::MAX
    };
    let combine = |a: u32, b: u32| match op.imm & 0xf {
        8 | 9 => floats(a, b),
        0 => a.wrapping_add(b),
        1 => a.min(b),
        2 => a.max(b),
        3 => (a as i32).min(b as i32) as u32,
        4 => (a as i32).max(b as i32) as u32,
        5 => a & b,
        6 => a | b,
        _ => a ^ b,
    };
    cx.each_warp(|cx, warp, lanes| {
        let base = warp * 32;
        let values: [u32; 32] = std::array::from_fn(|lane| {
            if lanes >> lane & 1 != 0 {
                cx.operand(op, 0, base + lane)
            } else {
                0
            }
        });
        for lane in each(lanes) {
            let members = lanes & cx.operand(op, 1, base + lane);
            let result = each(members)
                .map(|other| values[other] & amount)
                .reduce(combine)
                .unwrap_or(0);
            cx.set_if(op, 0, base + lane, 4, result.into());
        }
    });
    Flow::Next
}

/// `bar.warp.sync`: member mask.
///
/// # Safety
/// None.
pub(crate) unsafe fn sync(cx: &mut Machine<'_>, op: &Op) -> Flow {
    match cx.members(op, Some(0)) {
        Ok(()) => Flow::Next,
        Err(flow) => flow,
    }
}

/// `activemask`
///
/// # Safety
/// None.
pub(crate) unsafe fn active(cx: &mut Machine<'_>, op: &Op) -> Flow {
    cx.each_warp(|cx, warp, lanes| {
        for lane in each(lanes) {
            cx.set_if(op, 0, warp * 32 + lane, 4, lanes.into());
        }
    });
    Flow::Next
}

/// `elect`: member mask; destinations: the lowest lane, and a predicate that is true in it.
///
/// # Safety
/// None.
pub(crate) unsafe fn elect(cx: &mut Machine<'_>, op: &Op) -> Flow {
    if let Err(flow) = cx.members(op, Some(0)) {
        return flow;
    }
    cx.each_warp(|cx, warp, lanes| {
        for lane in each(lanes) {
            let members = lanes & cx.operand(op, 0, warp * 32 + lane);
            let leader = members.trailing_zeros().min(31);
            cx.set_if(op, 0, warp * 32 + lane, 4, leader.into());
            cx.set_if(
                op,
                1,
                warp * 32 + lane,
                1,
                u64::from(leader as usize == lane),
            );
        }
    });
    Flow::Next
}

/// The mode of `shfl` that a word names.
pub(crate) fn shuffle_mode(word: &str) -> Option<u64> {
    ["up", "down", "bfly", "idx"]
        .iter()
        .position(|mode| *mode == word)
        .map(|mode| mode as u64)
}

/// The mode of `vote` that a word names.
pub(crate) fn vote_mode(word: &str) -> Option<u64> {
    ["all", "any", "uni", "ballot"]
        .iter()
        .position(|mode| *mode == word)
        .map(|mode| mode as u64)
}

/// The operation of `redux`.
pub(crate) fn reduction(word: &str, ty: Type) -> Option<u64> {
    Some(match (word, ty) {
        ("min", Type::F32) => 8,
        ("max", Type::F32) => 9,
        (_, Type::F32) => return None,
        ("add", _) => 0,
        ("min", Type::U32) => 1,
        ("max", Type::U32) => 2,
        ("min", Type::S32) => 3,
        ("max", Type::S32) => 4,
        ("and", _) => 5,
        ("or", _) => 6,
        ("xor", _) => 7,
        _ => return None,
    })
}
