//! What a text may cost whoever parses it.
//!
//! A tree takes up to twenty times what its text does, and texts come from anybody: what is kept of a
//! text is paid for before it is kept, so that a text which asks for too much is refused half-way.
//!
//! Paid by the parser. The engine says whose memory it is, through the trait `Memory`; nothing here knows clients.

use std::fmt::Debug;

use crate::error::ErrorKind;

/// Bytes that are asked for at a time, so that asking costs nothing.
const STEP: u64 = 256 << 10;

/// Memory for what is parsed.
pub trait Memory: Debug {
    /// Takes bytes. Says whether there are as many; they are the caller's to give back, after the tree.
    fn take(&self, bytes: u64) -> bool;
}

/// As much as the system has.
#[derive(Clone, Copy, Debug)]
pub struct Unlimited;

impl Memory for Unlimited {
    fn take(&self, _: u64) -> bool {
        true
    }
}

/// What a text may cost.
#[derive(Clone, Copy, Debug)]
pub struct Budget<'a> {
    /// Instructions of all its functions.
    pub instructions: u64,
    /// The memory of its tree, and of what is needed to make that.
    pub memory: &'a dyn Memory,
}

impl Default for Budget<'_> {
    fn default() -> Self {
        Self {
            instructions: u64::MAX,
            memory: &Unlimited,
        }
    }
}

/// A budget that is being spent.
#[derive(Debug)]
pub(crate) struct Purse<'a> {
    budget: Budget<'a>,
    instructions: u64,
    /// Bytes that were taken and not spent yet.
    paid: u64,
}

impl<'a> Purse<'a> {
    pub(crate) const fn new(budget: Budget<'a>) -> Self {
        Self {
            budget,
            instructions: 0,
            paid: 0,
        }
    }

    /// Pays for bytes that are about to be kept.
    pub(crate) fn pay(&mut self, bytes: u64) -> Result<(), ErrorKind> {
        if bytes > self.paid {
            let more = (bytes - self.paid).max(STEP);
            if !self.budget.memory.take(more) {
                return Err(ErrorKind::NoMemory);
            }
            self.paid += more;
        }
        self.paid -= bytes;
        Ok(())
    }

    /// Pays for one instruction.
    pub(crate) fn pay_instruction(&mut self, bytes: u64) -> Result<(), ErrorKind> {
        if self.instructions >= self.budget.instructions {
            return Err(ErrorKind::Instructions(self.budget.instructions));
        }
        self.instructions += 1;
        self.pay(bytes)
    }
}

/// Bytes that so many of a kind take on the heap, with what the allocator adds.
pub(crate) fn heap<T>(count: usize) -> u64 {
    match size_of::<T>() * count {
        0 => 0,
        bytes => (bytes as u64 + 8).next_multiple_of(16).max(32),
    }
}
