//! Reply slots: which one a waiting call has, and what stands in it.
//!
//! Both ends use it: the client hands slots out and reads them, the server writes them. Must not know what was asked.

#![allow(
    clippy::disallowed_types,
    reason = "models are of the ring, without sessions"
)]

use super::layout::{REPLY_DATA, REPLY_SLOTS, SessionMapping};
use crate::sync::Ordering;
use cuda_abi::CUresult;
use protocol::operations::Request;
use protocol::wire::{Fields, MAX_FIELD_SLOTS};
use std::sync::{Condvar, Mutex, PoisonError};

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<F> {
    /// What came of it. The fields are zero and the data empty unless it succeeded.
    pub status: CUresult,
    /// The fields.
    pub fields: F,
    /// The bytes behind the fields.
    pub data: Vec<u8>,
}

/// What a call was answered that succeeded, as it travels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The slots of its fields.
    pub slots: Vec<u64>,
    /// The bytes behind the fields.
    pub data: Vec<u8>,
}

/// Hands the slots out, one to a waiting call, and a serial number with each.
#[derive(Debug)]
pub(super) struct ReplySlots {
    state: Mutex<FreeSlots>,
    freed: Condvar,
}

#[derive(Debug)]
struct FreeSlots {
    free: u64,
    serial: u64,
}

const _: () = assert!(REPLY_SLOTS == u64::BITS as usize);

/// A slot in hand.
pub(super) struct ReplySlot<'a> {
    slots: &'a ReplySlots,
    pub(super) number: u32,
    pub(super) serial: u64,
}

impl ReplySlots {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(FreeSlots {
                free: u64::MAX,
                serial: 0,
            }),
            freed: Condvar::new(),
        }
    }

    /// Takes a slot; waits while all are in other hands, which end when the session does.
    pub(super) fn acquire(&self) -> ReplySlot<'_> {
        // Nothing in the critical sections can panic.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.free == 0 {
            state = self
                .freed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let number = state.free.trailing_zeros();
        state.free &= !(1 << number);
        state.serial += 1;
        ReplySlot {
            slots: self,
            number,
            serial: state.serial,
        }
    }
}

impl Drop for ReplySlot<'_> {
    fn drop(&mut self) {
        let mut state = self
            .slots
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        state.free |= 1 << self.number;
        drop(state);
        self.slots.freed.notify_one();
    }
}

/// Writes a reply; all but the serial number, which says that it is complete.
///
/// The caller made sure that the slot is one and that slots and data fit.
pub(super) fn write(
    mapping: &SessionMapping,
    slot: usize,
    serial: u64,
    status: CUresult,
    slots: &[u64],
    data: &[u8],
) {
    let (head, data_at) = mapping.reply(slot);
    head[1].store(
        u64::from(status.0) | (slots.len() as u64) << 32,
        Ordering::Relaxed,
    );
    head[2].store(data.len() as u64, Ordering::Relaxed);
    for (word, value) in head[3..].iter().zip(slots) {
        word.store(*value, Ordering::Relaxed);
    }
    mapping.status.copy_in(data_at, data);
    // [reply]
    head[0].store(serial, Ordering::Release);
}

/// Whether the reply to this serial number stands in the slot.
#[inline]
pub(super) fn is_there(mapping: &SessionMapping, slot: usize, serial: u64) -> bool {
    // [reply]
    mapping.reply(slot).0[0].load(Ordering::Acquire) == serial
}

/// Reads a reply that is there. `None` when its fields cannot be.
pub(super) fn read<R: Request>(mapping: &SessionMapping, slot: usize) -> Option<Reply<R::Reply>> {
    let (status, Answer { slots, data }) = answer(mapping, slot);
    let fields = R::Reply::read(&slots).ok()?;
    Some(Reply {
        status,
        fields,
        data,
    })
}

/// The status and the answer that stand in a slot.
pub(super) fn answer(mapping: &SessionMapping, slot: usize) -> (CUresult, Answer) {
    let (head, data_at) = mapping.reply(slot);
    let second = head[1].load(Ordering::Relaxed);
    let count = ((second >> 32) as usize).min(MAX_FIELD_SLOTS);
    let bytes = (head[2].load(Ordering::Relaxed) as usize).min(REPLY_DATA);
    let slots = head[3..3 + count].iter();
    let slots = slots.map(|word| word.load(Ordering::Relaxed)).collect();
    let mut data = vec![0; bytes];
    mapping.status.copy_out(data_at, &mut data);
    (CUresult(second as u32), Answer { slots, data })
}
