//! When a stream's operations ran, for the observer.
//!
//! Called where ends are seen, and by who issues while a time line is recorded. Must not know what is done with the times.

use std::time::{Duration, Instant};

use cuda_abi::types::CUevent;
use engine::{Activity, Span, clock};
use protocol::operations::{At, HoldReason};

use crate::device::work_signature::WorkSignature;
use crate::driver::Driver;
use crate::submit::stream::Stream;
use crate::submit::stream::state::{Issued, RanOperation, StreamState, TimingEvents};
use crate::sync::Handle;

/// While a time line is recorded: launches that take fewer microseconds go to the driver as batches, and those of a batch divide
/// its time. Others have events of their own, which cost the GPU about a microsecond each.
///
/// Between events of its own a kernel that does nothing takes five or six microseconds on an H200: with a bound below that, a short
/// kernel that once took long, as on a busy machine, would be thought long for ever, and run at a tenth of its rate.
pub(super) const SHORT: u32 = 10;

impl Stream {
    /// Whether somebody wants to know of each operation when it ran.
    pub(super) fn is_recorded(&self) -> bool {
        self.common.observer.wants_each_span()
    }

    /// Before an operation that is to be timed: an event where there is none.
    pub(super) fn time_begin(
        &self,
        driver: &Driver,
        state: &StreamState,
    ) -> Option<Handle<CUevent>> {
        let timed = |last: &Issued| last.timing.is_some();
        match state.issued.back().is_some_and(timed) {
            true => None,
            false => self.record_event(driver, state),
        }
    }

    /// After it. A time that cannot be had is told from looks.
    pub(super) fn time_end(
        &self,
        driver: &Driver,
        state: &StreamState,
        began: Option<Handle<CUevent>>,
    ) -> Option<TimingEvents> {
        let ended = self.record_event(driver, state);
        match (ended, began) {
            (Some(ended), began) => Some(TimingEvents { began, ended }),
            (None, began) => {
                if let Some(began) = began {
                    self.device().clock().release_event(driver, began);
                }
                None
            }
        }
    }

    fn record_event(&self, driver: &Driver, state: &StreamState) -> Option<Handle<CUevent>> {
        let event = self.device().clock().event(driver).ok()?;
        // SAFETY: the event is ours, and the stream is made again only when nothing is issued in it.
        let recorded = unsafe { driver.cuEventRecord(event.0, state.raw.0) };
        if recorded.is_err() {
            self.device().clock().release_event(driver, event);
            return None;
        }
        Some(event)
    }

    /// The times of an operation that has ended, or if it has not since the device died, none.
    pub(super) fn times_of(
        &self,
        timing: TimingEvents,
        has_ended: bool,
    ) -> Option<(Option<u64>, u64)> {
        let driver = self.device().enter().ok()?;
        let clock = self.device().clock();
        let TimingEvents { began, ended } = timing;
        if !has_ended {
            for event in began.into_iter().chain([ended]) {
                clock.release_event(driver, event);
            }
            return None;
        }
        let began = began.map(|event| clock.monotonic_time(driver, event));
        let ended = clock.monotonic_time(driver, ended);
        Some((began.transpose().ok()?, ended.ok()?))
    }

    /// Tells in which time the operations ran that a look has found to have ended: together, as what the last kernel among them
    /// is, or the last copy. The GPU writes no time beside its word.
    pub(super) fn report_together(&self, state: &mut StreamState, now: Instant) {
        let is_kernel = |ran: &&RanOperation| ran.activity == Activity::Kernel;
        let ran = state.ran_now.iter().rfind(is_kernel);
        if let Some(ran) = ran.or(state.ran_now.last()) {
            let span = self.span(ran, (clock::at(state.looked_at), clock::at(now)));
            if self.common.is_open() {
                self.common.observer.ran(&span);
            }
        }
        state.ran_now.clear();
        state.told_until = 0;
    }

    /// Tells when each of them ran, and learns from it. Those that have no events divide the time that others leave by what they are
    /// known to take.
    pub(super) fn report_each(&self, state: &mut StreamState, now: Instant) {
        let ran = std::mem::take(&mut state.ran_now);
        let mut until = match state.told_until {
            0 => clock::at(state.looked_at),
            until => until,
        };
        let now = clock::at(now).max(until);
        let mut untimed = 0;
        let mut spans = std::mem::take(&mut state.spans);
        for (index, one) in ran.iter().enumerate() {
            let Some((began, ended)) = one.times else {
                continue;
            };
            let began = began.unwrap_or(until).clamp(until, now);
            self.time_untimed(state, &ran[untimed..index], (until, began), &mut spans);
            let ended = ended.clamp(began, now);
            let took = Duration::from_nanos(ended - began);
            let is_alone = state.contention.is_alone;
            let durations = self.context.durations();
            let alone = durations.learn(&[one.length], took, is_alone);
            self.report_slowdown(state, (took, alone));
            spans.push(self.span(one, (began, ended)));
            (until, untimed) = (ended, index + 1);
        }
        let rest = &ran[untimed..];
        if !rest.is_empty() {
            self.time_untimed(state, rest, (until, now), &mut spans);
            until = now;
        }
        if self.common.is_open() {
            self.common.observer.ran_each(&spans);
        }
        state.told_until = until;
        // Empty, with room for the next.
        state.ran_now = ran;
        state.ran_now.clear();
        spans.clear();
        state.spans = spans;
    }

    /// The times of those that have no events: they divide a time.
    fn time_untimed(
        &self,
        state: &mut StreamState,
        ran: &[RanOperation],
        (began, ended): (u64, u64),
        spans: &mut Vec<Span>,
    ) {
        if ran.is_empty() {
            return;
        }
        let durations = self.context.durations();
        let mut lengths = std::mem::take(&mut state.untimed);
        lengths.extend(ran.iter().map(|one| one.length));
        let took = Duration::from_nanos(ended - began);
        let alone = durations.learn(&lengths, took, state.contention.is_alone);
        self.report_slowdown(state, (took, alone));
        // Most are as the one before.
        let mut before: Option<(WorkSignature, u32)> = None;
        for (sort, length) in &mut lengths {
            *length = match before {
                Some((known, expected)) if known == *sort => expected,
                _ => durations.expected(*sort, 0),
            };
            before = Some((*sort, *length));
        }
        let known = lengths.iter().map(|&(_, expected)| expected);
        for (one, part) in ran.iter().zip(divided(began, ended, known)) {
            spans.push(self.span(one, part));
        }
        lengths.clear();
        state.untimed = lengths;
    }

    /// Tells by how much others have slowed down what ended: how long it took, and takes alone.
    pub(super) fn report_slowdown(
        &self,
        state: &mut StreamState,
        (took, alone): (Duration, Duration),
    ) {
        let others_run = || self.context.others_run(clock::now());
        if let Some(cost) = state.contention.add_period(took, alone, others_run)
            && self.common.is_open()
        {
            let device = self.device().ordinal().unsigned_abs();
            self.common.observer.slowed(device, cost);
        }
    }

    /// Notes since when and why the first operation is held back that waits here, where somebody wants to know: a recording, or the
    /// accounts of a client below normal.
    pub(super) fn note_hold_begin(&self, state: &mut StreamState) {
        let is_wanted = self.is_recorded() || self.common.is_below_normal();
        if state.pending.is_empty() || state.hold_since.is_some() || !is_wanted {
            return;
        }
        let why = if state.commands >= self.depth() || self.is_far_ahead(state) {
            HoldReason::Depth
        } else if state.before.is_some() {
            HoldReason::FormerStream
        } else if state.is_fetching() {
            HoldReason::Depth
        } else if self.gives_way(state) {
            HoldReason::Priority
        } else if self.context.is_gate_closed() {
            HoldReason::Loads
        } else {
            // Its driver's stream is of a part that the client does not have any more.
            HoldReason::Limit
        };
        state.hold_since = Some((clock::now(), why));
    }

    /// The first operation that waited here goes to the driver.
    pub(super) fn report_hold(&self, state: &mut StreamState, sequence: u64) {
        let Some((since, why)) = state.hold_since.take() else {
            return;
        };
        if self.common.is_open() {
            let at = At {
                stream: self.slot,
                sequence,
            };
            let device = self.device().ordinal().unsigned_abs();
            let nanoseconds = clock::now().saturating_sub(since);
            self.common.observer.held_back(at, device, why, nanoseconds);
        }
    }

    fn span(&self, ran: &RanOperation, (began, ended): (u64, u64)) -> Span {
        Span {
            at: At {
                stream: self.slot,
                sequence: ran.sequence,
            },
            device: self.device().ordinal().unsigned_abs(),
            activity: ran.activity,
            began,
            ended,
            multiprocessors: None,
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
