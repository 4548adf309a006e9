//! Lanes of a gang that wait: at the block's barriers, and for lanes of their own warps.

use super::{Gang, State};
use crate::exec::machine::{Arrival, ReduceOp};
use crate::exec::mask::{Mask, WORDS};
use crate::exec::regs::Frame;

impl Gang {
    /// Lets a fragment wait for lanes of its warps: with those that wait at the same place, which may be
    /// what it waits for, so that the two try again together.
    pub(super) fn park(&mut self, index: usize) {
        let mut fragment = self.fragments.swap_remove(index);
        fragment.state = State::Warp;
        self.fragments.retain(|other| {
            let joins = other.state == State::Warp && fragment.meets(other);
            if joins {
                fragment.mask = fragment.mask.or(other.mask);
                fragment.turn = fragment.turn.min(other.turn);
                fragment.state = State::Ready;
            }
            !joins
        });
        self.fragments.push(fragment);
    }

    /// Lanes that wait for others of their warp go on if none of those can come: with a fragment that
    /// spins, there is always somebody ready.
    pub(super) fn free_stuck_warps(&mut self) {
        let mut ready = Mask::default();
        for fragment in &self.fragments {
            if fragment.state == State::Ready {
                ready = ready.or(fragment.mask);
            }
        }
        let mut freed = Vec::new();
        for fragment in &mut self.fragments {
            if fragment.state != State::Warp {
                continue;
            }
            let mut stuck = Mask::default();
            for warp in 0..WORDS * 2 {
                if ready.warp(warp) == 0 {
                    stuck.set_warp(warp, fragment.mask.warp(warp));
                }
            }
            if !stuck.is_empty() {
                let mut free = fragment.clone();
                free.mask = stuck;
                free.state = State::Ready;
                free.force = true;
                fragment.mask = fragment.mask.and_not(stuck);
                freed.push(free);
            }
        }
        self.fragments.retain(|fragment| !fragment.mask.is_empty());
        self.fragments.append(&mut freed);
    }

    /// The lanes that wait at barrier `id` or passed it by `barrier.arrive`, and the count they gave.
    pub(crate) fn at_barrier(&self, id: u8) -> (Mask, u32) {
        let mut lanes = Mask::default();
        let mut count = 0;
        for fragment in &self.fragments {
            if let State::Barrier(arrival) = fragment.state
                && arrival.id == id
            {
                lanes = lanes.or(fragment.mask);
                count = count.max(arrival.count);
            }
        }
        if let Some((mask, wanted)) = self.arrived.get(&id) {
            lanes = lanes.or(*mask);
            count = count.max(*wanted);
        }
        (lanes, count)
    }

    /// The barriers that somebody waits at, as bits.
    pub(crate) fn barriers(&self) -> u32 {
        self.fragments
            .iter()
            .fold(0, |bits, fragment| match fragment.state {
                State::Barrier(arrival) => bits | 1 << arrival.id,
                _ => bits,
            })
    }

    /// What the lanes at a barrier reduce: how many hold, and how many there are.
    pub(crate) fn reduction(&self, id: u8) -> (u32, u32) {
        let mut sum = (0, 0);
        for fragment in &self.fragments {
            if let State::Barrier(Arrival {
                id: other,
                reduce: Some(reduce),
                ..
            }) = fragment.state
                && other == id
            {
                sum.0 += reduce.holds.and(fragment.mask).count();
                sum.1 += fragment.mask.count();
            }
        }
        sum
    }

    /// Lets the lanes at a barrier go on; `holds` of `all` lanes held what they reduce.
    pub(crate) fn release(&mut self, id: u8, (holds, all): (u32, u32)) {
        for fragment in &mut self.fragments {
            let State::Barrier(arrival) = fragment.state else {
                continue;
            };
            if arrival.id != id {
                continue;
            }
            fragment.state = State::Ready;
            if let Some(reduce) = arrival.reduce {
                let value = match reduce.op {
                    ReduceOp::And => u32::from(holds == all),
                    ReduceOp::Or => u32::from(holds != 0),
                    ReduceOp::Popc => holds,
                };
                let frame = Frame::new(&self.registers, fragment.base);
                for lane in fragment.mask.lanes() {
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
        self.patience = 0;
    }
}
