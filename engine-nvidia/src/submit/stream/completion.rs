//! How the end of a stream's operations is seen and reported.
//!
//! Called by whoever polls, and by who posts where something has ended already. Must not know how work is issued.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use protocol::operations::At;

use crate::device::fence::has_reached;
use crate::submit::client_streams::Polled;
use crate::submit::command::CompletionAction;
use crate::submit::completion_predictor::{ExpectedCompletion, LATE};
use crate::submit::stream::Stream;
use crate::submit::stream::state::{MOST_AHEAD, RanOperation, StreamState};

/// How long an operation stays unsignalled at most, more or less. Many times what a launch takes when all
/// clients launch at once, or batches would never fill.
pub(super) const STALE: Duration = Duration::from_micros(500);

impl Stream {
    /// Notes whether there is anything to do before the word changes, for [`Stream::poll`].
    pub(super) fn note(&self, state: &mut StreamState) {
        self.report_expected_work(state);
        let seen = self.last.word.load(Ordering::Relaxed);
        let calm = !state.is_open()
            && state.pending.is_empty()
            && state.before.is_none()
            && state.issued.front().is_some_and(|front| {
                !has_reached(seen, front.fence_value) && !front.after.prints()
            });
        let after = |time: Instant| {
            let after = time.saturating_duration_since(self.common.attached_at);
            u64::try_from(after.as_nanos()).unwrap_or(0)
        };
        let (near, due) = match state.completion_predictor.expected_completion() {
            Some(ExpectedCompletion { near, at }) => (after(near), after(at)),
            // What waits for room is to follow at once; nobody sleeps for it.
            None if !state.pending.is_empty() && self.is_far_ahead(state) => (
                0,
                after(state.looked_at + Duration::from_micros(state.expected)),
            ),
            None => (0, 0),
        };
        if self.last.due.swap(due, Ordering::Relaxed) != due {
            self.last.near.store(near, Ordering::Relaxed);
        }
        self.last.calm.store(calm, Ordering::Release);
    }

    /// What a look has found. An end that is long overdue was not to be told.
    pub(super) fn polled(&self, progress: bool, busy: bool) -> Polled {
        let time = |word: &AtomicU64| match word.load(Ordering::Relaxed) {
            0 => None,
            after => Some(self.common.attached_at + Duration::from_nanos(after)),
        };
        let due = time(&self.last.due).filter(|_| busy);
        let now = due.map(|_| Instant::now());
        let due = due.filter(|&due| now < Some(due + LATE));
        if due.is_some()
            && time(&self.last.near).is_some_and(|near| Some(near) <= now)
            && self.last.near.swap(0, Ordering::Relaxed) != 0
            && self.common.is_open()
        {
            self.common.observer.pre_wake(self.slot);
        }
        Polled {
            progress,
            busy,
            due,
            untold: busy && due.is_none(),
        }
    }

    /// Reports what has completed, issues what waits, and signals what has been unsignalled for long.
    pub(crate) fn poll(self: &Arc<Self>) -> Polled {
        if self.last.calm.load(Ordering::Acquire)
            && self.word.load() == self.last.word.load(Ordering::Relaxed)
            && self.context.check_told().is_ok()
            && self.context.check_record().is_ok()
        {
            return self.polled(false, true);
        }
        // Else somebody is issuing, or looking.
        let Some(mut state) = self.state.try_lock() else {
            return self.polled(false, true);
        };
        let state = &mut *state;
        if let Some(before) = &state.before {
            if !before.is_idle() {
                return self.polled(false, true);
            }
            state.before = None;
        }
        // So that the ring of a kernel that runs long does not become full.
        if let Some(front) = state.issued.front() {
            front.after.drain_output();
        }
        let progress = self.advance(state);
        if state.is_open() && state.open_since.elapsed() > STALE {
            self.sign_rest(state);
        }
        let busy = state.is_under_way() || !state.pending.is_empty();
        state.listed = busy;
        self.note(state);
        self.polled(progress, busy)
    }

    /// Where the last operation is a readback whose data has come, writes the word as the GPU does for others.
    pub(super) fn land(&self, state: &mut StreamState) {
        if state.unsignalled > 0
            && let Some(last) = state.issued.back_mut()
            && let CompletionAction::Deliver(readback) = &mut last.after
            && readback.is_complete()
        {
            self.word.store(last.fence_value);
            state.fence_value = last.fence_value;
            state.unsignalled = 0;
        }
    }

    /// Reports what has completed and issues what waits. Whether anything had completed.
    pub(super) fn advance(&self, state: &mut StreamState) -> bool {
        let mut progress = false;
        loop {
            // In this order: a device that died later does not undo what had completed.
            let dead = self.context.check_told();
            self.land(state);
            let word = self.word.load();
            self.last.word.store(word, Ordering::Relaxed);
            // After the word: what has come may have been denied something.
            let denied = self.context.check_record();
            while let Some(front) = state.issued.front() {
                let come = has_reached(word, front.fence_value);
                if !come && dead.is_ok() {
                    break;
                }
                let Some(mut issued) = state.issued.pop_front() else {
                    break;
                };
                let result = if come {
                    issued.result.and(denied)
                } else {
                    dead
                };
                if let CompletionAction::Deliver(readback) = issued.after {
                    state.bounce = Some(readback.end(result.is_ok()));
                    issued.after = CompletionAction::Nothing;
                }
                let timing = issued.timing.take();
                let times = timing.and_then(|timing| self.times_of(timing, come));
                state.commands -= issued.commands;
                state.expected -= u64::from(issued.length.1);
                if come {
                    state.ended_now.push(issued.length);
                    if let Some(activity) = issued.activity {
                        state.ran_now.push(RanOperation {
                            sequence: issued.sequence,
                            activity,
                            length: issued.length,
                            times,
                        });
                    }
                }
                progress = true;
                if matches!(issued.after, CompletionAction::Destroy) {
                    self.destroy(state.raw);
                    state.ended = true;
                }
                let sequence = issued.is_last_part.then_some(issued.sequence);
                if let Some(sequence) = sequence {
                    state.reported = if result.is_ok() { sequence } else { 0 };
                }
                self.finish(sequence, result, issued.after);
                // Reported by now: where nothing runs, nothing has been done that is not known to be.
                self.context.operation_done();
            }
            if !state.ended_now.is_empty() {
                let now = Instant::now();
                let took = now.saturating_duration_since(state.looked_at);
                if self.is_recorded() {
                    self.report_each(state, now);
                } else {
                    let durations = self.context.durations();
                    let alone = durations.learn(&state.ended_now, took, state.contention.is_alone);
                    self.report_slowdown(state, (took, alone));
                    self.report_together(state, now);
                }
                state.ended_now.clear();
                state.looked_at = now;
                if took > Duration::from_micros(MOST_AHEAD) {
                    self.expect_anew(state);
                }
            }
            if progress && !state.is_under_way() {
                state.completion_predictor.end(Instant::now());
                state.foreground = None;
                state.wait_predictor.learn(state.pending.is_empty());
            }
            let mut gave = false;
            while !state.pending.is_empty() && self.may_issue(state) {
                let Some((sequence, work)) = state.pending.pop_front() else {
                    self.context.operation_done();
                    break;
                };
                gave = true;
                self.report_hold(state, sequence);
                self.common.waiting.subtract(work.held_bytes());
                self.accept(state, sequence, work);
            }
            // What failed at once is reported at once.
            if !gave {
                self.note_hold_begin(state);
                return progress;
            }
            if !state.is_fetching() {
                self.sign_rest(state);
            }
        }
    }

    /// What took long is known by now to take long, and the driver may have more of it, which was thought short.
    fn expect_anew(&self, state: &mut StreamState) {
        let durations = self.context.durations();
        for issued in &mut state.issued {
            let (sort, expected) = &mut issued.length;
            state.expected -= u64::from(*expected);
            *expected = durations.expected(*sort, *expected);
            state.expected += u64::from(*expected);
        }
        if state.expected > MOST_AHEAD {
            self.context
                .expect_durations(state.issued.iter().map(|issued| issued.length.0));
        }
    }

    /// Does what is due after an operation and reports it.
    pub(super) fn finish(
        &self,
        sequence: Option<u64>,
        result: Result<(), CUresult>,
        after: CompletionAction,
    ) {
        let open = self.common.is_open();
        after.drain_output();
        if let CompletionAction::Time { event, raw } = after {
            let time = self
                .device()
                .enter()
                .and_then(|driver| self.device().clock().time(driver, raw));
            if let Ok(time) = time
                && open
            {
                self.common.observer.event_time(event, time);
            }
        } else {
            // The modules may go before the client hears of their kernels' end.
            drop(after);
        }
        if open && let Some(sequence) = sequence {
            let at = At {
                stream: self.slot,
                sequence,
            };
            self.common.observer.completed(at, result);
        }
    }
}
