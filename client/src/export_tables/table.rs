//! What a private table is in memory.
//!
//! An array of pointers: in most tables first the size in bytes of the real one, then functions.
//! Runtimes do not look at the size before they jump, so every array here is as long as any slot that
//! has been seen in use, twice over, and each slot that nobody has built holds a function that says so
//! in the log, once, and returns CUDA_ERROR_NOT_SUPPORTED.
//!
//! Owns the form, and which unserved slots were called. `mod` makes the tables of it, what serves slots contains
//! its panics by it. Must not know what any slot does.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::CUresult;

use super::name::Name;
use crate::log::log;

/// Slots that every table has in memory.
pub(super) const SLOTS: usize = 128;

/// Slots of a row: the array is made of rows only because macros count badly.
const ROW: usize = 16;

/// Rows of a table.
const ROWS: usize = SLOTS / ROW;

/// A private table.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Table([[Slot; ROW]; ROWS]);

/// What a slot holds: a function, the size, or null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Slot(*const c_void);

// SAFETY: nothing writes a slot after the compiler, and what one points to is code.
unsafe impl Sync for Slot {}

impl Table {
    /// A table of nothing but `rows`, which come from [`unserved_slots`].
    pub(super) const fn new(rows: [[Slot; ROW]; ROWS]) -> Self {
        Self(rows)
    }

    /// Puts the real table's size into its first slot: that of driver 580, whose version we report.
    pub(super) const fn of_slots(self, slots: usize) -> Self {
        assert!(slots <= SLOTS);
        self.slot(0, std::ptr::without_provenance(slots * size_of::<Slot>()))
    }

    /// Puts a function, or null, into a slot.
    pub(super) const fn slot(mut self, slot: usize, function: *const c_void) -> Self {
        self.0[slot / ROW][slot % ROW] = Slot(function);
        self
    }

    /// What a slot holds.
    pub(super) const fn get(&self, slot: usize) -> *const c_void {
        self.0[slot / ROW][slot % ROW].0
    }

    /// Where the table is.
    pub(super) const fn address(&self) -> *const c_void {
        std::ptr::from_ref(self).cast()
    }
}

/// All rows of a table, given its [`Name`], with nothing served.
macro_rules! unserved_slots {
    ($name:expr) => {
        unserved_slots!(@rows $name; 0 1 2 3 4 5 6 7)
    };
    (@rows $name:expr; $($row:literal)*) => {
        [$(unserved_slots!(@row $name; $row; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)),*]
    };
    (@row $name:expr; $row:literal; $($at:literal)*) => {
        [$($crate::export_tables::table::Slot::unserved::<{ $name as usize }, { $row * 16 + $at }>()),*]
    };
}
pub(super) use unserved_slots;

impl Slot {
    /// A slot that nobody has built.
    pub(super) const fn unserved<const TABLE: usize, const SLOT: usize>() -> Self {
        Self(unserved::<TABLE, SLOT> as *const c_void)
    }
}

/// What such a slot does. The caller passes arguments, which the C calling conventions of our
/// platforms leave to the caller to clean up.
extern "C" fn unserved<const TABLE: usize, const SLOT: usize>() -> CUresult {
    report(TABLE, SLOT);
    CUresult::ERROR_NOT_SUPPORTED
}

/// Which unserved slots have been called, a bit each.
static CALLED: [[AtomicU64; SLOTS / 64]; Name::ALL.len()] =
    [const { [const { AtomicU64::new(0) }; SLOTS / 64] }; Name::ALL.len()];

#[cold]
fn report(table: usize, slot: usize) {
    let bit = 1 << (slot % 64);
    if CALLED[table][slot / 64].fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        contain((), || {
            log!(
                "private table {:?}, slot {slot}, was called and is not served",
                Name::ALL[table]
            );
        });
    }
}

/// Runs what a slot does. Nothing unwinds into the program: a panic, which would be a mistake of
/// ours, gives `failed`.
pub(super) fn contain<T>(failed: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(failed)
}

/// The same for what gives a status.
pub(super) fn status(body: impl FnOnce() -> Result<(), CUresult>) -> CUresult {
    contain(CUresult::ERROR_UNKNOWN, || CUresult::of(body()))
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: Table = Table::new(unserved_slots!(Name::Hooks))
        .of_slots(7)
        .slot(3, std::ptr::null());

    #[test]
    fn every_slot_is_the_size_or_null_or_answers_not_supported() {
        assert_eq!(size_of::<Table>(), SLOTS * 8);
        assert_eq!(TABLE.get(0).addr(), 56);
        assert!(TABLE.get(3).is_null());
        for slot in (1..SLOTS).filter(|&slot| slot != 3) {
            let pointer = TABLE.get(slot);
            // SAFETY: the slot holds `unserved`, which takes nothing; arguments are the caller's to
            // clean up.
            let function: extern "C" fn(u64, u64, *const c_void) -> CUresult =
                unsafe { std::mem::transmute(pointer) };
            assert_eq!(
                function(1, 2, pointer),
                CUresult::ERROR_NOT_SUPPORTED,
                "{slot}"
            );
        }
        let noted: u32 = CALLED[Name::Hooks as usize]
            .iter()
            .map(|bits| bits.load(Ordering::Relaxed).count_ones())
            .sum();
        assert_eq!(
            noted as usize,
            SLOTS - 2,
            "each slot is known by its own number"
        );
    }

    #[test]
    fn a_panic_becomes_a_status() {
        assert_eq!(status(|| panic!("a mistake")), CUresult::ERROR_UNKNOWN);
    }
}
