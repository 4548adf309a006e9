//! Lanes of a lane group that wait: at the block's barriers, and for lanes of their own warps.
//!
//! Owns who has arrived where. Called when a path stops, and by the block when others of its lane groups have come.
//! Must not know what an operation does.

use super::{LaneGroup, PathState};
use crate::machine::{Arrival, CLUSTER_BARRIER, ReduceOp};
use crate::mask::{Mask, WORDS};
use crate::regs::Frame;

impl LaneGroup {
    /// Lets a path wait for lanes of its warps: with those that wait at the same place, which may be
    /// what it waits for, so that the two try again together.
    pub(super) fn park(&mut self, index: usize) {
        let mut path = self.paths.swap_remove(index);
        path.state = PathState::Warp;
        self.paths.retain(|other| {
            let joins = other.state == PathState::Warp && path.meets(other);
            if joins {
                path.mask = path.mask.or(other.mask);
                path.slices = path.slices.min(other.slices);
                path.state = PathState::Ready;
            }
            !joins
        });
        self.paths.push(path);
    }

    /// Lanes that wait for others of their warp go on if none of those can come: with a path that
    /// spins, there is always somebody ready.
    pub(super) fn free_stuck_warps(&mut self) {
        let mut ready = Mask::default();
        for path in &self.paths {
            if path.state == PathState::Ready {
                ready = ready.or(path.mask);
            }
        }
        let mut freed = Vec::new();
        for path in &mut self.paths {
            if path.state != PathState::Warp {
                continue;
            }
            let mut stuck = Mask::default();
            for first in (0..WORDS * 2).step_by(path.waits_for) {
                let together = first..first + path.waits_for;
                if together.clone().all(|warp| ready.warp(warp) == 0) {
                    together.for_each(|warp| stuck.set_warp(warp, path.mask.warp(warp)));
                }
            }
            if !stuck.is_empty() {
                let mut free = path.clone();
                free.mask = stuck;
                free.state = PathState::Ready;
                free.force = true;
                path.mask = path.mask.and_not(stuck);
                freed.push(free);
            }
        }
        self.paths.retain(|path| !path.mask.is_empty());
        self.paths.append(&mut freed);
    }

    /// The lanes that wait at barrier `id` or passed it by `barrier.arrive`, and the count they gave.
    pub(crate) fn at_barrier(&self, id: u8) -> (Mask, u32) {
        let mut lanes = Mask::default();
        let mut count = 0;
        for path in &self.paths {
            if let PathState::Barrier(arrival) = path.state
                && arrival.id == id
            {
                lanes = lanes.or(path.mask);
                count = count.max(arrival.count);
            }
        }
        if let Some((mask, wanted)) = self.arrived.get(&id) {
            lanes = lanes.or(*mask);
            count = count.max(*wanted);
        }
        (lanes, count)
    }

    /// Whether lanes of a path have arrived at the cluster's barrier in a phase that is not over.
    pub(super) fn has_arrived(&self, path: usize) -> bool {
        let arrived = self.arrived.get(&CLUSTER_BARRIER);
        arrived.is_some_and(|(lanes, _)| !lanes.and(self.paths[path].mask).is_empty())
    }

    /// The barriers that somebody waits at, as bits.
    pub(crate) fn barriers(&self) -> u32 {
        self.paths.iter().fold(0, |bits, path| match path.state {
            PathState::Barrier(arrival) => bits | 1 << arrival.id,
            _ => bits,
        })
    }

    /// What the lanes at a barrier reduce: how many hold, and how many there are.
    pub(crate) fn reduction(&self, id: u8) -> (u32, u32) {
        let mut sum = (0, 0);
        for path in &self.paths {
            if let PathState::Barrier(Arrival {
                id: other,
                reduce: Some(reduce),
                ..
            }) = path.state
                && other == id
            {
                sum.0 += reduce.holds.and(path.mask).count();
                sum.1 += path.mask.count();
            }
        }
        sum
    }

    /// Lets the lanes at a barrier go on; `holds` of `all` lanes held what they reduce.
    pub(crate) fn release(&mut self, id: u8, (holds, all): (u32, u32)) {
        for path in &mut self.paths {
            let PathState::Barrier(arrival) = path.state else {
                continue;
            };
            if arrival.id != id {
                continue;
            }
            path.state = PathState::Ready;
            if let Some(reduce) = arrival.reduce {
                let value = match reduce.op {
                    ReduceOp::And => u32::from(holds == all),
                    ReduceOp::Or => u32::from(holds != 0),
                    ReduceOp::Popc => holds,
                };
                let frame = Frame::new(&self.registers, path.base);
                for lane in path.mask.lanes() {
                    frame.set_wide(
                        reduce.destination as usize,
                        lane,
                        reduce.width,
                        value.into(),
                    );
                }
            }
        }
        self.arrived.remove(&id);
        self.reconvergence_delay = 0;
    }
}
