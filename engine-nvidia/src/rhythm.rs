//! When a stream's work is expected to be over, so that somebody looks just then: a program that waits for a
//! kernel of some milliseconds again and again would lose a part of each to sleeping past its end.
//!
//! Owns how long the work took, from when the stream had none to when it had none again. Called by the
//! stream; must not know what the work is.

use std::time::{Duration, Instant};

/// Work of these lengths is learnt from.
const REGULAR: std::ops::Range<Duration> = Duration::from_micros(200)..Duration::from_millis(500);
/// What part of its length work may differ from that before it, if the next is expected to take as long.
const ALIKE: u32 = 16;

/// How far from when it is expected the end is looked for closely.
pub(crate) const NEAR: Duration = Duration::from_micros(150);

/// What is known of a stream's work.
#[derive(Debug, Default)]
pub(crate) struct Rhythm {
    /// When the work began that it has now.
    began: Option<Instant>,
    /// How long it took the last time.
    last: Duration,
    /// How long it will take; zero if there is no telling.
    expected: Duration,
}

impl Rhythm {
    /// The stream has work from now on.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.began = Some(now);
    }

    /// It has none any more.
    pub(crate) fn end(&mut self, now: Instant) {
        let Some(began) = self.began.take() else {
            return;
        };
        let took = now.saturating_duration_since(began);
        let last = std::mem::replace(&mut self.last, took);
        let alike = took.abs_diff(last) <= took / ALIKE && REGULAR.contains(&took);
        self.expected = if alike {
            took.min(last)
        } else {
            Duration::ZERO
        };
    }

    /// When it is expected to have none any more.
    pub(crate) fn due(&self) -> Option<Instant> {
        let began = self.began.filter(|_| !self.expected.is_zero())?;
        Some(began + self.expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_work_is_due_when_it_was_before() {
        let mut rhythm = Rhythm::default();
        let mut now = Instant::now();
        let mut work = |micros: u64| {
            rhythm.begin(now);
            let due = rhythm.due().map(|due| due - now);
            now += Duration::from_micros(micros);
            rhythm.end(now);
            assert_eq!(rhythm.due(), None, "there is no work");
            due
        };
        let micros = Duration::from_micros;
        assert_eq!(work(5000), None);
        assert_eq!(work(5100), None, "one says nothing");
        assert_eq!(work(4900), Some(micros(5000)));
        assert_eq!(work(9000), Some(micros(4900)));
        assert_eq!(work(9000), None, "it took longer");
        assert_eq!(work(50), Some(micros(9000)));
        assert_eq!(work(50), None);
        assert_eq!(work(700_000), None, "too short to wait for");
        assert_eq!(work(700_000), None);
        assert_eq!(work(1), None, "too long to be a matter");
    }
}
