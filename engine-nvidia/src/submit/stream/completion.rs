//! How the end of a stream's operations is seen and reported.
//!
//! Called by whoever polls, and by who posts where something has ended already. Must not know how work is issued.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use engine::{Activity, Span, clock};
use protocol::operations::At;

use crate::device::fence::has_reached;
use crate::submit::client_streams::Polled;
use crate::submit::command::CompletionAction;
use crate::submit::completion_predictor::{ExpectedCompletion, LATE};
use crate::submit::stream::Stream;
use crate::submit::stream::state::{MOST_AHEAD, StreamState};

/// How long an operation stays unsignalled at most, more or less. Many times what a launch takes when all
/// clients launch at once, or batches would never fill.
pub(super) const STALE: Duration = Duration::from_micros(500);

impl Stream {
    /// Notes whether there is anything to do before the word changes, for [`Stream::poll`].
    pub(super) fn note(&self, state: &StreamState) {
        let seen = self.last.word.load(Ordering::Relaxed);
        let calm = !state.is_open()
            && state.pending.is_empty()
            && state.before.is_none()
            && state.issued.front().is_some_and(|front| {
                !has_reached(seen, front.fence_value) && !front.after.prints()
            });
        let after = |time: Instant| {
            let after = time.saturating_duration_since(self.common.came);
            u64::try_from(after.as_nanos()).unwrap_or(0)
        };
        let (near, due) = match state.completion_predictor.due() {
            Some(ExpectedCompletion { near, at }) => (after(near), after(at)),
            // What waits for room is to follow at once; nobody sleeps for it.
            None if !state.pending.is_empty() && state.expected > MOST_AHEAD => (
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
            after => Some(self.common.came + Duration::from_nanos(after)),
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
            && readback.has_come()
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
            while let Some(front) = state.issued.front() {
                let come = has_reached(word, front.fence_value);
                if !come && dead.is_ok() {
                    break;
                }
                let Some(mut issued) = state.issued.pop_front() else {
                    break;
                };
                let result = if come { issued.result } else { dead };
                if let CompletionAction::Deliver(readback) = issued.after {
                    state.bounce = Some(readback.end(result.is_ok()));
                    issued.after = CompletionAction::Nothing;
                }
                state.commands -= issued.commands;
                state.expected -= u64::from(issued.length.1);
                if come {
                    state.ended_now.push(issued.length);
                    if let Some(activity) = issued.activity {
                        let sort = issued.length.0;
                        state.ran_now.push((issued.sequence, activity, sort));
                    }
                }
                self.context.leave();
                progress = true;
                if matches!(issued.after, CompletionAction::Destroy) {
                    self.destroy(state.raw);
                    state.ended = true;
                }
                let sequence = issued.is_last_part.then_some(issued.sequence);
                self.finish(sequence, result, issued.after);
            }
            if !state.ended_now.is_empty() {
                let now = Instant::now();
                let took = now.saturating_duration_since(state.looked_at);
                self.context.durations().learn(&state.ended_now, took);
                state.ended_now.clear();
                self.tell_of_spans(state, now);
                state.looked_at = now;
            }
            if progress && !state.is_under_way() {
                state.completion_predictor.end(Instant::now());
                state.wait_predictor.learn(state.pending.is_empty());
            }
            let mut gave = false;
            while !state.pending.is_empty() && self.may_issue(state) {
                let Some((sequence, work)) = state.pending.pop_front() else {
                    self.context.leave();
                    break;
                };
                gave = true;
                self.common.waiting.give(work.kept());
                self.take(state, sequence, work);
            }
            // What failed at once is reported at once.
            if !gave {
                return progress;
            }
            if !state.is_fetching() {
                self.sign_rest(state);
            }
        }
    }

    /// Tells in which time the operations ran that a look has found to have ended. The GPU writes no time beside its word: where
    /// they are told of one by one the time is divided by what they are known to take, else they are together what the
    /// last kernel among them is, or the last copy.
    fn tell_of_spans(&self, state: &mut StreamState, now: Instant) {
        let ran = std::mem::take(&mut state.ran_now);
        if self.common.is_open() {
            let (began, ended) = (clock::at(state.looked_at), clock::at(now));
            if self.common.observer.wants_each_span() {
                let durations = self.context.durations();
                let lengths = ran.iter().map(|&(_, _, sort)| durations.expected(sort, 0));
                let parts = divided(began, ended, lengths);
                for (&(sequence, activity, _), (began, ended)) in ran.iter().zip(parts) {
                    self.tell_of_span(sequence, activity, (began, ended));
                }
            } else if let Some(&(sequence, activity, _)) = ran
                .iter()
                .rfind(|(_, activity, _)| *activity == Activity::Kernel)
                .or(ran.last())
            {
                self.tell_of_span(sequence, activity, (began, ended));
            }
        }
        // Empty, with room for the next.
        state.ran_now = ran;
        state.ran_now.clear();
    }

    fn tell_of_span(&self, sequence: u64, activity: Activity, (began, ended): (u64, u64)) {
        self.common.observer.ran(&Span {
            at: At {
                stream: self.slot,
                sequence,
            },
            device: self.device().ordinal().unsigned_abs(),
            activity,
            began,
            ended,
            multiprocessors: None,
        });
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

/// Divides a time in proportion to lengths, one part after another. What takes no time counts a little.
fn divided(
    began: u64,
    ended: u64,
    lengths: impl Iterator<Item = u32> + Clone,
) -> impl Iterator<Item = (u64, u64)> {
    const LITTLE: f64 = 0.1;
    let weight = |length: u32| f64::from(length) + LITTLE;
    let together: f64 = lengths.clone().map(weight).sum();
    let time = ended.saturating_sub(began) as f64;
    lengths.scan((0.0, began), move |(before, from), length| {
        *before += weight(length);
        let to = began + (time * *before / together).round() as u64;
        Some((std::mem::replace(from, to), to))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_divided_without_gaps() {
        let parts: Vec<_> = divided(1_000, 5_000, [10, 0, 30].into_iter()).collect();
        let lengths: Vec<u64> = parts.iter().map(|(began, ended)| ended - began).collect();
        assert_eq!(parts[0].0, 1_000);
        assert_eq!(parts[2].1, 5_000);
        assert!(parts.windows(2).all(|pair| pair[0].1 == pair[1].0));
        assert_eq!(lengths.iter().sum::<u64>(), 4_000);
        assert!(
            lengths[2] > 2 * lengths[0] && lengths[1] < 20,
            "{lengths:?}"
        );
        assert_eq!(divided(9, 7, [1].into_iter()).collect::<Vec<_>>(), [(9, 9)]);
        assert_eq!(divided(3, 4, std::iter::empty()).count(), 0);
    }
}
