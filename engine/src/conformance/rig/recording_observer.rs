//! The observer of a client: it remembers what the engine says.
//!
//! Called by engines as an observer, read by the rig. Must not know what was asked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use protocol::operations::{At, HoldReason};

use super::{PATIENCE, lock};
use crate::{CUresult, CodeSource, Guilt, Observer, Span, Window};

/// An observer that remembers everything.
#[derive(Debug)]
pub struct RecordingObserver {
    state: Mutex<ObserverRecord>,
    wants_each_span: AtomicBool,
    has_ended: AtomicBool,
    /// Milliseconds that a kernel may run, or 0.
    kernel_time: AtomicU64,
    changed: Condvar,
    /// Variables of modules are placed here, by counting up.
    variables: Window,
    /// Managed ones here: all of the host window.
    managed: Window,
}

/// A position and what became of it.
pub type Completion = (u64, Result<(), CUresult>);

#[derive(Debug, Default)]
struct ObserverRecord {
    /// How often it was told that there is text.
    wrote: u64,
    /// How often it was told that a stream's work is about to be over.
    pre_wakes: HashMap<u32, u64>,
    wants_every_processor: Vec<bool>,
    completed: HashMap<u32, Vec<Completion>>,
    times: HashMap<u32, u64>,
    faults: Vec<(u32, CUresult, String)>,
    /// Whose each of them is.
    guilt: Vec<Guilt>,
    overruns: Vec<String>,
    spans: Vec<Span>,
    holds: Vec<(At, HoldReason, u64)>,
    slowed: u64,
    code: Vec<CodeSource>,
    variable_bytes: u64,
    managed_bytes: u64,
    /// The next variables lie where others lay, with what is in them.
    are_placed_again: bool,
}

impl RecordingObserver {
    /// One that was told nothing yet, with places for modules' variables and for managed ones.
    #[must_use]
    pub fn new(variables: Window, managed: Window) -> Self {
        Self {
            state: Mutex::default(),
            wants_each_span: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            kernel_time: AtomicU64::new(0),
            changed: Condvar::new(),
            variables,
            managed,
        }
    }

    /// What became of a position, if it is complete.
    pub fn result_of(&self, stream: u32, sequence: u64) -> Option<Result<(), CUresult>> {
        let state = lock(&self.state);
        let completed = state.completed.get(&stream)?;
        // Positions are complete in order.
        let found = completed.binary_search_by_key(&sequence, |(at, _)| *at);
        found.ok().map(|index| completed[index].1)
    }

    /// From now on it wants a span for each operation.
    pub fn want_each_span(&self) {
        self.wants_each_span.store(true, Ordering::Relaxed);
    }

    /// Its client is gone from now on, though nobody has dropped it.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Sets how long a kernel may run, in whole milliseconds, or that it may run for ever.
    pub fn limit_kernel_time(&self, limit: Option<Duration>) {
        let millis = limit.map_or(0, |limit| limit.as_millis() as u64);
        self.kernel_time.store(millis, Ordering::Relaxed);
    }

    /// From now on variables are placed where the first ones were, and hold what is there, as if it were another server's engine.
    pub fn place_variables_again(&self) {
        let mut state = lock(&self.state);
        (state.variable_bytes, state.managed_bytes) = (0, 0);
        state.are_placed_again = true;
    }

    /// Whose each of its faults is, as it was told.
    pub fn guilt(&self) -> Vec<Guilt> {
        lock(&self.state).guilt.clone()
    }

    /// What it was told of kernels that ran for too long and cannot be ended.
    pub fn overruns(&self) -> Vec<String> {
        lock(&self.state).overruns.clone()
    }

    /// Where code came from, each time that it was told.
    pub fn code(&self) -> Vec<CodeSource> {
        lock(&self.state).code.clone()
    }

    /// The spans of which it was told.
    pub fn spans(&self) -> Vec<Span> {
        lock(&self.state).spans.clone()
    }

    /// The operations that were held back, why, and for how many nanoseconds.
    pub fn holds(&self) -> Vec<(At, HoldReason, u64)> {
        lock(&self.state).holds.clone()
    }

    /// By how many nanoseconds others have slowed the client down.
    pub fn slowed(&self) -> u64 {
        lock(&self.state).slowed
    }

    /// Where the next module's variables will lie.
    pub fn variables_begin(&self) -> u64 {
        self.variables.base + lock(&self.state).variable_bytes
    }

    /// Everything that a stream completed, in the order in which it was told.
    pub fn completed(&self, stream: u32) -> Vec<Completion> {
        let state = lock(&self.state);
        state.completed.get(&stream).cloned().unwrap_or_default()
    }

    /// When an event was passed.
    pub fn time(&self, event: u32) -> Option<u64> {
        lock(&self.state).times.get(&event).copied()
    }

    /// How often it was told that there is text.
    pub fn output_ready_count(&self) -> u64 {
        lock(&self.state).wrote
    }

    /// How often it was told that a stream's work is about to be over.
    pub fn pre_wakes(&self, stream: u32) -> u64 {
        lock(&self.state)
            .pre_wakes
            .get(&stream)
            .copied()
            .unwrap_or(0)
    }

    /// What it was told of work before that began, in order.
    pub fn wants_every_processor(&self) -> Vec<bool> {
        lock(&self.state).wants_every_processor.clone()
    }

    /// The faults, in order.
    pub fn faults(&self) -> Vec<(u32, CUresult, String)> {
        lock(&self.state).faults.clone()
    }

    /// Waits until a fault was told, and gives the first.
    pub fn fault(&self) -> (u32, CUresult, String) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(fault) = self.faults().into_iter().next() {
                return fault;
            }
            assert!(Instant::now() < deadline, "no fault was told");
            self.wait_a_moment();
        }
    }

    /// Waits until something was told, or a moment.
    pub fn wait_a_moment(&self) {
        let state = lock(&self.state);
        let _ = self.changed.wait_timeout(state, Duration::from_millis(5));
    }
}

impl Observer for RecordingObserver {
    fn completed(&self, at: At, result: Result<(), CUresult>) {
        let mut state = lock(&self.state);
        let completed = state.completed.entry(at.stream).or_default();
        completed.push((at.sequence, result));
        self.changed.notify_all();
    }

    fn pre_wake(&self, stream: u32) {
        *lock(&self.state).pre_wakes.entry(stream).or_default() += 1;
    }

    fn wants_every_processor(&self, whether: bool) {
        lock(&self.state).wants_every_processor.push(whether);
    }

    fn ran(&self, span: &Span) {
        lock(&self.state).spans.push(*span);
    }

    fn wants_each_span(&self) -> bool {
        self.wants_each_span.load(Ordering::Relaxed)
    }

    fn held_back(&self, at: At, _device: u32, why: HoldReason, nanoseconds: u64) {
        lock(&self.state).holds.push((at, why, nanoseconds));
    }

    fn slowed(&self, _device: u32, nanoseconds: u64) {
        lock(&self.state).slowed += nanoseconds;
    }

    fn code_came(&self, _device: u32, from: CodeSource) {
        lock(&self.state).code.push(from);
    }

    fn event_time(&self, event: u32, nanoseconds: u64) {
        lock(&self.state).times.insert(event, nanoseconds);
    }

    fn output_ready(&self) {
        lock(&self.state).wrote += 1;
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    fn kernel_time_limit(&self) -> Option<Duration> {
        let millis = self.kernel_time.load(Ordering::Relaxed);
        (millis > 0).then(|| Duration::from_millis(millis))
    }

    fn overran(&self, text: &str) {
        lock(&self.state).overruns.push(text.to_owned());
        self.changed.notify_all();
    }

    fn fault(&self, context: u32, code: CUresult, guilt: Guilt, text: &str) {
        let mut state = lock(&self.state);
        state.faults.push((context, code, text.into()));
        state.guilt.push(guilt);
        drop(state);
        self.changed.notify_all();
    }

    fn has_variables(&self) -> bool {
        lock(&self.state).are_placed_again
    }

    fn allocate(&self, _context: u32, bytes: u64, managed: bool) -> Result<Window, CUresult> {
        let mut state = lock(&self.state);
        let (window, used) = match managed {
            true => (self.managed, &mut state.managed_bytes),
            false => (self.variables, &mut state.variable_bytes),
        };
        let base = window.base + *used;
        let bytes = bytes.next_multiple_of(256);
        if !window.contains(base, bytes) {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        *used += bytes;
        Ok(Window { base, bytes })
    }
}
