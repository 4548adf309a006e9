//! Actions that wait until all work taken before them is complete, first in, first out: frees, unloads, ends of contexts.
//!
//! Called by the stream scheduler. Must not know what the actions are, nor how streams are ordered.

use std::collections::VecDeque;

use crate::stream_scheduler::completion::CompletionTracker;
use crate::stream_scheduler::constraint::{Dependency, all_met, wake_when_met};

#[derive(Debug)]
struct Batch<A> {
    dependencies: Vec<Dependency>,
    /// And what each costs in memory.
    actions: VecDeque<(A, usize)>,
}

/// The deferred actions of one client.
#[derive(Debug)]
pub(super) struct DeferredActions<A> {
    batches: VecDeque<Batch<A>>,
    /// Whether a record was taken since the last batch was begun, which it then does not wait for.
    admitted_since: bool,
    bytes: usize,
}

impl<A> Default for DeferredActions<A> {
    fn default() -> Self {
        Self {
            batches: VecDeque::new(),
            admitted_since: true,
            bytes: 0,
        }
    }
}

impl<A> DeferredActions<A> {
    /// What they take of memory.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Notes that a record was taken: the next action waits for more than the last one.
    pub(super) const fn record_admitted(&mut self) {
        self.admitted_since = true;
    }

    /// Puts an action into the last batch, if that waits for everything taken so far. Else gives it back.
    pub(super) fn join_last(&mut self, action: A) -> Option<A> {
        if self.admitted_since || self.batches.is_empty() {
            return Some(action);
        }
        self.push_behind_last(action, 0);
        None
    }

    /// Begins a batch with an action that waits for these dependencies. Gives it back if there are none, and
    /// no batch before it.
    pub(super) fn push(
        &mut self,
        action: A,
        dependencies: Vec<Dependency>,
        progress: &CompletionTracker,
    ) -> Option<A> {
        if dependencies.is_empty() && self.batches.is_empty() {
            return Some(action);
        }
        self.admitted_since = false;
        wake_when_met(&dependencies, progress);
        self.bytes += batch_bytes::<A>(&dependencies);
        self.batches.push_back(Batch {
            dependencies,
            actions: VecDeque::new(),
        });
        self.push_behind_last(action, 0);
        None
    }

    /// Puts an action behind all others. There must be some. `bytes` are what it takes beside itself.
    pub(super) fn push_behind_last(&mut self, action: A, bytes: usize) {
        if let Some(last) = self.batches.back_mut() {
            let bytes = bytes + size_of::<(A, usize)>();
            self.bytes += bytes;
            last.actions.push_back((action, bytes));
        }
    }

    /// Takes the next action that is due. If none has, `progress` is asked to say when.
    pub(super) fn pop_ready(&mut self, progress: &CompletionTracker) -> Option<A> {
        // Later actions need at least what earlier ones need, so looking at the first is enough.
        loop {
            let first = self.batches.front_mut()?;
            let before = batch_bytes::<A>(&first.dependencies);
            let due = all_met(&mut first.dependencies, progress);
            self.bytes -= before - batch_bytes::<A>(&first.dependencies);
            if !due {
                return None;
            }
            if let Some((action, bytes)) = first.actions.pop_front() {
                self.bytes -= bytes;
                return Some(action);
            }
            self.bytes -= batch_bytes::<A>(&first.dependencies);
            self.batches.pop_front();
        }
    }
}

const fn batch_bytes<A>(dependencies: &[Dependency]) -> usize {
    size_of::<Batch<A>>() + size_of_val(dependencies)
}
