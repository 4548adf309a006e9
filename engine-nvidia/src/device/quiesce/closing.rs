//! What goes from one who closes the gate to the next: a pause that still lasts, contexts that are held back, budgets; and
//! the contexts to which the gate is open meanwhile.
//!
//! Called by the gate, in its turn. Must not know what is loaded or retired.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::device::quiesce::load_budget::LoadBudget;
use crate::device::quiesce::running::Running;

/// A time in which nothing runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pause {
    pub(super) since: Instant,
    /// Something gave way to it.
    pub(super) disturbs: bool,
}

/// What came of closing the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drained {
    NothingRan,
    /// What ran gave way.
    GaveWay,
    /// It was opened again, since who would load has made others wait for too long lately.
    OverBudget,
}

impl Drained {
    pub(super) fn of(disturbs: bool) -> Self {
        match disturbs {
            true => Self::GaveWay,
            false => Self::NothingRan,
        }
    }
}

/// What who closes the gate has of those before.
#[derive(Debug, Default)]
pub(super) struct ClosingState {
    /// The gate is still closed, and nothing runs.
    pub(super) closed: Option<Pause>,
    /// Those that are held.
    held: Vec<Arc<Running>>,
    pub(super) budget: LoadBudget,
}

impl ClosingState {
    pub(super) fn hold_back(&mut self, more: Vec<Arc<Running>>) {
        for running in &more {
            running.held.store(true, Ordering::SeqCst);
        }
        self.held.extend(more);
    }

    pub(super) fn is_held_back(&self, other: &Arc<Running>) -> bool {
        self.held.iter().any(|held| Arc::ptr_eq(held, other))
    }

    pub(super) fn release_held(&mut self) {
        for running in self.held.drain(..) {
            running.held.store(false, Ordering::SeqCst);
        }
    }

    pub(super) fn held_have_operations(&self) -> bool {
        self.held.iter().any(|running| running.has_operations())
    }

    /// Those of them that have operations.
    pub(super) fn held_running(&self) -> Vec<Arc<Running>> {
        let held = self.held.iter().filter(|running| running.has_operations());
        held.cloned().collect()
    }

    /// For how long what the held contexts have running is known to take, at most.
    pub(super) fn held_expected_remaining(&self) -> Duration {
        let running = self.held.iter().filter(|running| running.has_operations());
        let longest = running.map(|running| running.expected_remaining());
        longest.max().unwrap_or_default()
    }
}

/// Contexts to which the gate is open until this is dropped.
pub(super) struct Exempt(pub(super) Vec<Arc<Running>>);

impl Exempt {
    pub(super) fn set(&self, exempt: bool) {
        for running in &self.0 {
            running.exempt.store(exempt, Ordering::SeqCst);
        }
    }

    pub(super) fn contains(&self, other: &Arc<Running>) -> bool {
        self.0.iter().any(|running| Arc::ptr_eq(running, other))
    }

    /// Those of them that have operations.
    pub(super) fn running(&self) -> impl Iterator<Item = Arc<Running>> {
        let running = self.0.iter().filter(|running| running.has_operations());
        running.cloned()
    }

    pub(super) fn have_operations(&self) -> bool {
        self.0.iter().any(|running| running.has_operations())
    }
}

impl Drop for Exempt {
    fn drop(&mut self) {
        self.set(false);
    }
}
