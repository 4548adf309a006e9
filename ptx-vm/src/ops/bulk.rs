//! Bulk copies (`cp.async.bulk`), which a GPU makes meanwhile. Here they are made at once, as they may be, and then the
//! barrier is told of the bytes.
//!
//! Chosen by `lower::bulk`; `ops::tensor` reaches memory and tells barriers by it. Must not know PTX's words, nor who else waits at the barrier.

use super::atomic::Atomic;
use super::mbarrier;
use crate::access;
use crate::fault::FaultKind;
use crate::machine::{Flow, Machine, Op};
use crate::spaces::{SHARED_BASE, SHARED_SPAN, StateSpace};

/// What addresses and sizes of plain bulk copies are multiples of, and what tensors are swizzled by.
pub(super) const UNIT: u64 = 16;

impl Machine<'_> {
    /// The host address of bytes for one lane, aligned as said.
    pub(super) fn reach(
        &mut self,
        lane: usize,
        (address, place): (u64, StateSpace),
        bytes: u64,
        (align, write): (u64, bool),
    ) -> Result<u64, Flow> {
        if address & (align - 1) != 0 {
            return Err(self.fault(FaultKind::MisalignedAddress, address, lane));
        }
        self.host(address, place, bytes, write)
            .map_err(|()| self.fault(FaultKind::IllegalAddress, address, lane))
    }

    /// Both ends of a plain copy: where to and from, as generic addresses, and bytes.
    fn ends(
        &mut self,
        lane: usize,
        (to, from, bytes): (u64, u64, u64),
    ) -> Result<(u64, u64), Flow> {
        if !bytes.is_multiple_of(UNIT) {
            return Err(self.fault(FaultKind::IllegalInstruction, to, lane));
        }
        let from = self.reach(lane, (from, StateSpace::Generic), bytes, (UNIT, false))?;
        let to = self.reach(lane, (to, StateSpace::Generic), bytes, (UNIT, true))?;
        Ok((to, from))
    }

    /// Tells the barrier at a generic address, if it is one, that bytes have come.
    pub(super) fn tell(
        &mut self,
        lane: usize,
        barrier: (u64, StateSpace),
        bytes: u64,
    ) -> Result<(), Flow> {
        let host = self.reach(lane, barrier, 8, (8, true))?;
        // SAFETY: `reach` tested the 8 bytes, for writing, and their alignment.
        unsafe { mbarrier::bytes_came(host, bytes) };
        Ok(())
    }
}

/// The places of shared memory that a multicast has for one, in the blocks whose ranks are in a mask; the one itself
/// without a mask.
pub(super) fn multicast(place: u64, mask: u64) -> impl Iterator<Item = u64> {
    let alone = (mask == 0).then_some(place);
    let ranks = (0..u64::from(u16::BITS)).filter(move |rank| mask >> rank & 1 != 0);
    alone
        .into_iter()
        .chain(ranks.map(move |rank| (rank + 1) * SHARED_SPAN + place % SHARED_SPAN))
}

/// For each lane: sources 0 to 2 are where to and from and bytes, source 3 is 0 or the generic address of the
/// barrier that is told, and source 4, if `imm` is not 0, the ranks of the blocks that get it.
fn each(cx: &mut Machine<'_>, op: &Op, mut copy: impl FnMut(u64, u64, u64)) -> Result<(), Flow> {
    for lane in cx.mask.lanes() {
        let [to, from, barrier] = [0, 1, 3].map(|source| cx.argument(op, source, lane, 8));
        let bytes = cx.argument(op, 2, lane, 4);
        if op.imm == 0 {
            let (to, from) = cx.ends(lane, (to, from, bytes))?;
            copy(to, from, bytes);
            if barrier != 0 {
                cx.tell(lane, (barrier, StateSpace::Generic), bytes)?;
            }
            continue;
        }
        let mask = cx.argument(op, 4, lane, 4) & 0xffff;
        if mask == 0 {
            return Err(cx.fault(FaultKind::IllegalInstruction, to, lane));
        }
        let shared = |address: u64| address.wrapping_sub(SHARED_BASE);
        for (to, barrier) in multicast(shared(to), mask).zip(multicast(shared(barrier), mask)) {
            let (to, from) = cx.ends(lane, (SHARED_BASE + to, from, bytes))?;
            copy(to, from, bytes);
            cx.tell(lane, (barrier, StateSpace::Shared), bytes)?;
        }
    }
    Ok(())
}

/// `cp.async.bulk`: sources: where to and where from, as generic addresses, bytes (32 bits), the barrier's generic
/// address or 0, and, if `imm` is not 0, the ranks of the blocks that get it (32 bits).
///
/// # Safety
/// None: any machine has it; so for all functions below.
pub(crate) unsafe fn copy(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let copied = each(cx, op, |to, from, bytes| {
        // SAFETY: `ends` tested both ranges.
        unsafe { access::copy(to, from, bytes as usize) };
    });
    copied.err().unwrap_or(Flow::Next)
}

/// `cp.async.bulk` with `.cp_mask`, from shared memory: sources as for [`copy`] without a barrier, and as the fifth which
/// bytes of each 16 are copied (32 bits).
///
/// # Safety
/// None.
pub(crate) unsafe fn copy_masked(cx: &mut Machine<'_>, op: &Op) -> Flow {
    for lane in cx.mask.lanes() {
        let [to, from] = [0, 1].map(|source| cx.argument(op, source, lane, 8));
        let [bytes, mask] = [2, 4].map(|source| cx.argument(op, source, lane, 4));
        let (to, from) = match cx.ends(lane, (to, from, bytes)) {
            Ok(ends) => ends,
            Err(flow) => return flow,
        };
        for at in (0..bytes).filter(|at| mask >> (at % UNIT) & 1 != 0) {
            // SAFETY: `ends` tested both ranges, of which this is a byte.
            unsafe { access::copy(to + at, from + at, 1) };
        }
    }
    Flow::Next
}

/// `clusterlaunchcontrol.try_cancel`: no cluster waits for others to end here, so that none is there to be taken over. The
/// answer, zeroes, says that. Sources: where it goes and the barrier, as generic addresses, and, if `imm` is not 0, the ranks
/// of the blocks that get it (32 bits).
///
/// # Safety
/// None.
pub(crate) unsafe fn cancel_none(cx: &mut Machine<'_>, op: &Op) -> Flow {
    for lane in cx.mask.lanes() {
        if let Err(flow) = cancel_for(cx, op, lane) {
            return flow;
        }
    }
    Flow::Next
}

fn cancel_for(cx: &mut Machine<'_>, op: &Op, lane: usize) -> Result<(), Flow> {
    let answer = [0; UNIT as usize];
    let [to, barrier] = [0, 1].map(|source| cx.argument(op, source, lane, 8));
    let ranks = match op.imm {
        0 => 0,
        _ => cx.argument(op, 2, lane, 4) & 0xffff,
    };
    let shared = |address: u64| address.wrapping_sub(SHARED_BASE);
    for (to, barrier) in multicast(shared(to), ranks).zip(multicast(shared(barrier), ranks)) {
        let host = cx.reach(lane, (to, StateSpace::Shared), UNIT, (UNIT, true))?;
        // SAFETY: `reach` tested the bytes, for writing; the answer is ours.
        unsafe { access::copy_out(host, answer.as_ptr(), answer.len()) };
        cx.tell(lane, (barrier, StateSpace::Shared), UNIT)?;
    }
    Ok(())
}

/// `cp.reduce.async.bulk`: sources as for [`copy`]; each element is atomic by itself.
///
/// # Safety
/// None.
pub(crate) unsafe fn reduce<A: Atomic>(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let reduced = each(cx, op, |to, from, bytes| {
        // SAFETY: `ends` tested both ranges, which are aligned to more than an element.
        unsafe { combine::<A>(to, from, bytes) };
    });
    reduced.err().unwrap_or(Flow::Next)
}

/// Combines what is at `to` with what is at `from`, element by element; `bytes` are whole elements.
///
/// # Safety
/// The contract of [`crate::access`] for the bytes at both, for writing at `to`; both are aligned to an element.
pub(crate) unsafe fn combine<A: Atomic>(to: u64, from: u64, bytes: u64) {
    use access::Cell;
    for at in (0..bytes).step_by(size_of::<A::Value>()) {
        // SAFETY: the caller keeps the contract for both.
        unsafe {
            let value = A::Value::load(from + at);
            A::Value::update(to + at, |old| Some(A::apply(old, value, value)));
        }
    }
}
