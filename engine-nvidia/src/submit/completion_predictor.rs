//! When a stream's work is expected to be over, so that somebody looks just then, and whoever sleeps until
//! then is awake: a program that waits for a kernel of some milliseconds again and again would lose a part of
//! each to sleeping past its end.
//!
//! Owns how long pieces of work took, from when the stream had none to when it had none again, by what they
//! were. Called by the stream; must not know what that means.

use std::time::{Duration, Instant};

use crate::device::work_signature::WorkSignature;

/// Work of these lengths is learnt from.
const REGULAR: std::ops::Range<Duration> = Duration::from_micros(200)..Duration::from_millis(500);
/// What part of its length work may differ from that before it, if the next is expected to take as long.
const ALIKE: u32 = 16;

/// Different pieces of work that are known at a time.
const KNOWN: usize = 16;

/// How long before its expected end it is looked for more closely; those who sleep for it are woken then, or
/// after all but this part of it. A processor that was idle for long takes a hundred microseconds or two to wake.
pub(crate) const NEAR: Duration = Duration::from_micros(250);
const NEAR_PART: u32 = 4;
/// How long after its expected end work is still expected to be over in a moment.
pub(crate) const LATE: Duration = Duration::from_micros(100);

/// How long some work takes.
#[derive(Clone, Copy, Debug, Default)]
struct Length {
    kind: WorkSignature,
    /// The last time.
    last: Duration,
    /// The next time; zero if there is no telling.
    expected: Duration,
}

/// What is known of a stream's work.
#[derive(Debug, Default)]
pub(crate) struct CompletionPredictor {
    /// When the work began that it has now.
    began: Option<Instant>,
    /// What that is, so far.
    kind: WorkSignature,
    known: [Length; KNOWN],
    /// The one that was forgotten last.
    next: usize,
}

/// When work is expected to be over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedCompletion {
    /// When those who sleep until then are to be woken.
    pub(crate) near: Instant,
    pub(crate) at: Instant,
}

impl CompletionPredictor {
    /// The stream, which had no work, has some from now on.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.began = Some(now);
        self.kind = WorkSignature::default();
    }

    /// It has this too.
    pub(crate) fn add(&mut self, work: WorkSignature) {
        self.kind = self.kind.then(work);
    }

    /// It has none any more.
    pub(crate) fn end(&mut self, now: Instant) {
        let Some(began) = self.began.take() else {
            return;
        };
        let took = now.saturating_duration_since(began);
        let kind = self.kind;
        let Some(known) = self.known.iter_mut().find(|known| known.kind == kind) else {
            if REGULAR.contains(&took) {
                self.forget();
                self.known[self.next] = Length {
                    kind,
                    last: took,
                    expected: Duration::ZERO,
                };
            }
            return;
        };
        let last = std::mem::replace(&mut known.last, took);
        let alike = took.abs_diff(last) <= took / ALIKE && REGULAR.contains(&took);
        known.expected = if alike {
            took.min(last)
        } else {
            Duration::ZERO
        };
    }

    /// Chooses what is forgotten next: something of which there is no telling, if there is such a thing.
    fn forget(&mut self) {
        let ring = (1..=KNOWN).map(|step| (self.next + step) % KNOWN);
        let mut idle = ring.filter(|&at| self.known[at].expected.is_zero());
        self.next = idle.next().unwrap_or((self.next + 1) % KNOWN);
    }

    /// When it is expected to have none any more.
    pub(crate) fn expected_completion(&self) -> Option<ExpectedCompletion> {
        let began = self.began?;
        let known = self.known.iter().find(|known| known.kind == self.kind)?;
        let length = known.expected;
        (!length.is_zero()).then(|| ExpectedCompletion {
            near: began + length - NEAR.min(length / NEAR_PART),
            at: began + length,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work of one kind after another, each of so many microseconds; when its end was expected.
    struct PredictedWork {
        completion_predictor: CompletionPredictor,
        now: Instant,
    }

    impl PredictedWork {
        fn of(&mut self, kinds: &[u64], micros: u64) -> Option<Duration> {
            self.completion_predictor.begin(self.now);
            for &kind in kinds {
                self.completion_predictor
                    .add(WorkSignature::default().and(kind));
            }
            let due = self.completion_predictor.expected_completion().map(|due| {
                assert_eq!(due.at - due.near, NEAR.min((due.at - self.now) / 4));
                due.at - self.now
            });
            self.now += Duration::from_micros(micros);
            self.completion_predictor.end(self.now);
            assert_eq!(
                self.completion_predictor.expected_completion(),
                None,
                "there is no work"
            );
            due
        }
    }

    fn work() -> PredictedWork {
        PredictedWork {
            completion_predictor: CompletionPredictor::default(),
            now: Instant::now(),
        }
    }

    fn micros(micros: u64) -> Option<Duration> {
        Some(Duration::from_micros(micros))
    }

    #[test]
    fn regular_work_is_due_when_it_was_before() {
        let mut work = work();
        assert_eq!(work.of(&[7], 5000), None);
        assert_eq!(work.of(&[7], 5100), None, "one says nothing");
        assert_eq!(work.of(&[7], 4900), micros(5000));
        assert_eq!(work.of(&[7], 9000), micros(4900));
        assert_eq!(work.of(&[7], 9000), None, "it took longer");
        assert_eq!(work.of(&[7], 50), micros(9000));
        assert_eq!(work.of(&[7], 50), None);
        assert_eq!(work.of(&[7], 700_000), None, "too short to wait for");
        assert_eq!(work.of(&[7], 700_000), None);
        assert_eq!(work.of(&[7], 1), None, "too long to be a matter");
    }

    #[test]
    fn work_that_takes_turns_is_known_each_by_itself() {
        let mut work = work();
        for round in 0..3 {
            let told = |length| micros(length).filter(|_| round == 2);
            assert_eq!(work.of(&[1], 1000), told(1000));
            assert_eq!(work.of(&[2], 5000), told(5000));
            assert_eq!(work.of(&[1, 2], 6000), told(6000));
            assert_eq!(work.of(&[2, 1], 8000), told(8000), "another order");
        }
        // Only so many at a time, and what came once does not oust what is expected.
        for kind in 10..10 + 2 * KNOWN as u64 {
            work.of(&[kind], 3000);
        }
        assert_eq!(work.of(&[1], 1000), micros(1000));
        for kind in 10..10 + 2 * KNOWN as u64 {
            work.of(&[kind], 3000);
            work.of(&[kind], 3000);
        }
        assert_eq!(work.of(&[1], 1000), None);
    }
}
