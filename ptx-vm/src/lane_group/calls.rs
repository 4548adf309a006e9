//! Calls within a lane group: where a callee's frame lies, and what goes over to it and comes back.
//!
//! Called by the loop that steps a lane group. Must not know which function is called for what.

use std::sync::Arc;

use super::{LaneGroup, Pause};
use crate::fault::FaultKind;
use crate::limits::{CALL_DEPTH, REGISTER_BYTES};
use crate::mask::Mask;
use crate::program::{Program, Slot};
use crate::regs::Frame;

/// Where lanes return to.
#[derive(Debug)]
pub(super) struct Caller {
    /// Call site.
    site: u32,
    /// Block to go on with.
    next: u32,
    /// Number of the function that was called.
    callee: u32,
    base: usize,
    local_base: u32,
    above: Option<Arc<Self>>,
}

impl PartialEq for Caller {
    /// Level by level: chains may be long, and this thread's stack is not.
    fn eq(&self, other: &Self) -> bool {
        let (mut a, mut b) = (self, other);
        loop {
            let own = |caller: &Self| {
                let Self {
                    site,
                    next,
                    callee,
                    base,
                    local_base,
                    above: _,
                } = *caller;
                (site, next, callee, base, local_base)
            };
            if own(a) != own(b) {
                return false;
            }
            match (&a.above, &b.above) {
                (None, None) => return true,
                (Some(x), Some(y)) if Arc::ptr_eq(x, y) => return true,
                (Some(x), Some(y)) => (a, b) = (x.as_ref(), y.as_ref()),
                _ => return false,
            }
        }
    }
}

impl Drop for Caller {
    /// Level by level, as above.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(mut caller) = above.and_then(Arc::into_inner) {
            above = caller.above.take();
        }
    }
}

impl LaneGroup {
    /// Calls function `callee`.
    pub(super) fn call(
        &mut self,
        program: &Program,
        index: usize,
        at: u32,
        site: u32,
        next: u32,
        callee: u32,
    ) -> Option<Pause> {
        let call = &program.sites[site as usize];
        let caller = &program.functions[call.caller as usize];
        let function = &program.functions[callee as usize];
        let path = &self.paths[index];
        let natural = path.base + (caller.frame as usize).next_multiple_of(64);
        let base = self.frame_base(program, index, callee, natural);
        let local_base = path.local_base + caller.local;
        let end = base + function.frame as usize;
        let fits = local_base
            .checked_add(function.local)
            .is_some_and(|end| end <= program.local_stride);
        let fits = fits && end <= REGISTER_BYTES && path.depth < CALL_DEPTH;
        // What the system has not is a stack overflow as well.
        if !fits || self.registers.grow(end).is_none() {
            let lane = path.mask.lowest().unwrap_or(0) as u32;
            let (kind, line) = (FaultKind::StackOverflow, program.lines[at as usize]);
            return Some(Pause::Fault {
                kind,
                address: 0,
                thread: self.first_thread + lane,
                line,
            });
        }
        let (mask, from) = (path.mask, (path.base, path.local_base));
        for (arg, param) in call.args.iter().zip(&function.params) {
            self.pass(program, mask, from, *arg, (base, local_base), *param);
        }
        let path = &mut self.paths[index];
        let (base, local_base) = (
            std::mem::replace(&mut path.base, base),
            std::mem::replace(&mut path.local_base, local_base),
        );
        let above = path.caller.take();
        path.caller = Some(Arc::new(Caller {
            site,
            next,
            callee,
            base,
            local_base,
            above,
        }));
        path.depth += 1;
        path.pc = program.blocks[function.first as usize].slow;
        None
    }

    /// Where the frame of `callee` may lie that path `index` calls: behind the caller's, unless
    /// another path has the frame of something else there, whose lanes would lie elsewhere in the same
    /// bytes; then above everybody's.
    fn frame_base(&self, program: &Program, index: usize, callee: u32, natural: usize) -> usize {
        let bytes = |function: u32| program.functions[function as usize].frame as usize;
        let end = natural + bytes(callee);
        let mut top = natural;
        let mut taken = false;
        for (other, path) in self.paths.iter().enumerate() {
            let mut frame = (path.base, path.caller.as_deref());
            let function = |caller: Option<&Caller>| caller.map_or(0, |caller| caller.callee);
            let highest = frame.0 + bytes(function(frame.1)).next_multiple_of(64);
            top = top.max(highest);
            if other == index {
                continue;
            }
            // Frames get lower on the way down.
            loop {
                let (base, caller) = frame;
                let function = function(caller);
                if base + bytes(function) <= natural {
                    break;
                }
                taken |= base < end && (base, function) != (natural, callee);
                let Some(caller) = caller else { break };
                frame = (caller.base, caller.above.as_deref());
            }
        }
        if taken { top } else { natural }
    }

    /// Returns from a function.
    pub(super) fn return_to_caller(&mut self, program: &Program, index: usize) {
        let path = &mut self.paths[index];
        let Some(caller) = path.caller.take() else {
            return;
        };
        let from = (path.base, path.local_base);
        path.base = caller.base;
        path.local_base = caller.local_base;
        path.caller = caller.above.clone();
        path.depth -= 1;
        path.pc = program.blocks[caller.next as usize].slow;
        let mask = path.mask;
        let results = &program.sites[caller.site as usize].results;
        let returns = &program.functions[caller.callee as usize].returns;
        for (result, value) in results.iter().zip(returns) {
            self.pass(
                program,
                mask,
                from,
                *value,
                (caller.base, caller.local_base),
                *result,
            );
        }
    }

    /// Copies a value from one frame to another for the lanes of `mask`. Frames are a base in the
    /// registers and one in local memory.
    fn pass(
        &mut self,
        program: &Program,
        mask: Mask,
        (from_base, from_local): (usize, u32),
        from: Slot,
        (to_base, to_local): (usize, u32),
        to: Slot,
    ) {
        let stride = program.local_stride as usize;
        let locals = Frame::new(&self.local, 0);
        let (source, target) = (
            Frame::new(&self.registers, from_base),
            Frame::new(&self.registers, to_base),
        );
        for lane in mask.lanes() {
            let at = |base: u32, offset: u32| lane * stride + (base + offset) as usize;
            match (from, to) {
                (
                    Slot::Local { offset: a, size },
                    Slot::Local {
                        offset: b,
                        size: room,
                    },
                ) => {
                    for byte in 0..size.min(room) {
                        let value: u8 = locals.lane(at(from_local, a + byte), 0);
                        locals.set_lane(at(to_local, b + byte), 0, value);
                    }
                }
                (
                    Slot::Register {
                        offset: a,
                        width,
                        varying,
                    },
                    Slot::Register {
                        offset: b,
                        width: room,
                        ..
                    },
                ) => {
                    // The caller's idea of the width may be another one, through a pointer: what is written is
                    // the callee's register.
                    let value = source.wide(a as usize, if varying { lane } else { 0 }, width);
                    target.set_wide(b as usize, lane, room, value);
                }
                (
                    Slot::Register {
                        offset: a,
                        width,
                        varying,
                    },
                    Slot::Local { offset: b, size },
                ) => {
                    let value = source.wide(a as usize, if varying { lane } else { 0 }, width);
                    for (index, byte) in value
                        .to_le_bytes()
                        .into_iter()
                        .take(size as usize)
                        .enumerate()
                    {
                        locals.set_lane(at(to_local, b + index as u32), 0, byte);
                    }
                }
                (
                    Slot::Local { offset: a, size },
                    Slot::Register {
                        offset: b, width, ..
                    },
                ) => {
                    let mut bytes = [0; 8];
                    for (index, byte) in bytes.iter_mut().take(size as usize).enumerate() {
                        *byte = locals.lane(at(from_local, a + index as u32), 0);
                    }
                    target.set_wide(b as usize, lane, width, u64::from_le_bytes(bytes));
                }
            }
        }
    }
}
