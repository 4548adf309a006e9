//! When clients below normal priority may give a device work, beside clients of normal priority.
//!
//! Owns what is known of the *foreground*, the work of clients of normal priority, and how much the driver has of the others.
//! Called by streams, before and after what goes to the driver. Must not know what the work is.
//!
//! The driver ends no block that runs, so what is to be quick must find little that runs. While the foreground works,
//! clients below normal begin nothing: they are *held*. In its pauses they begin only as much as takes a
//! [fraction of a millisecond](IN_PAUSES), after a [moment](MOMENT), since a program that launches one kernel after
//! another makes pauses too. Who works all the time is not waited for all the time: after [some](MOST_HELD), what is below
//! normal goes on beside it, with [little](BESIDE) in flight and the least urgent priority, until
//! the foreground has paused for a quarter of that. A second after its last work nobody gives way to it any more.
//!
//! Nobody waits for ever: what is below normal may wait for each other too, and take longer than expected. Where nothing of it has
//! [begun or ended](OVERDUE) for a while, what the driver has of it does not count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::device::Device;

/// A pause of the foreground that is one.
const MOMENT: Duration = Duration::from_micros(100);
/// How long the foreground counts as there after its last work.
const LINGER: Duration = Duration::from_secs(1);
/// For how long others are held, and how much of that a pause makes good for each time as long.
const MOST_HELD: Duration = Duration::from_millis(50);
const PAUSES_COUNT: u32 = 4;
/// Microseconds that the work of all clients below normal takes that the driver has, for more to go there: in
/// pauses of the foreground, and beside it.
const IN_PAUSES: u64 = 200;
const BESIDE: u64 = 500;
/// For how long nothing begins or ends below normal before what the driver has of it is taken to wait for something.
const OVERDUE: Duration = Duration::from_millis(20);

/// A device's foreground.
#[derive(Debug)]
pub(crate) struct Foreground {
    /// Clients below normal. While there are none, nothing else is kept.
    below_normal: AtomicUsize,
    /// Microseconds that what the driver has of these is expected to take.
    expected: AtomicU64,
    /// When that last changed, in nanoseconds after `since`.
    changed: AtomicU64,
    since: Instant,
    past: Mutex<Past>,
}

/// What the foreground has done.
#[derive(Debug)]
struct Past {
    /// Its streams with work.
    under_way: usize,
    began: Instant,
    /// When it last had none; `None` if nothing was seen of it.
    ended: Option<Instant>,
    /// For how long others were held before it began, less what was made good.
    held: Duration,
}

/// Whether a client below normal may begin something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// As all others.
    Free,
    /// If what the driver has of such clients takes no longer than so many microseconds.
    Upto(u64),
    Held,
}

impl Default for Foreground {
    fn default() -> Self {
        Self {
            below_normal: AtomicUsize::new(0),
            expected: AtomicU64::new(0),
            changed: AtomicU64::new(0),
            since: Instant::now(),
            past: Mutex::new(Past {
                under_way: 0,
                began: Instant::now(),
                ended: None,
                held: Duration::ZERO,
            }),
        }
    }
}

impl Foreground {
    /// One client more, or less, is below normal.
    pub(crate) fn count_below_normal(&self, more: bool) {
        if more {
            self.below_normal.fetch_add(1, Ordering::Relaxed);
        } else {
            self.below_normal.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A stream of a client of normal priority begins to work, until what this gives is dropped. `None` where there is
    /// nobody to give way.
    pub(crate) fn begin(device: &Arc<Device>) -> Option<ForegroundWork> {
        let foreground = device.foreground();
        if foreground.below_normal.load(Ordering::Relaxed) == 0 {
            return None;
        }
        foreground.past.lock().begin(Instant::now());
        Some(ForegroundWork(Arc::clone(device)))
    }

    /// Whether a client below normal may give the driver something.
    pub(crate) fn admits(&self) -> bool {
        match self.past.lock().admission(Instant::now()) {
            Admission::Free => true,
            Admission::Upto(most) => {
                self.expected.load(Ordering::Relaxed) <= most
                    || self.is_overdue(self.since.elapsed())
            }
            Admission::Held => false,
        }
    }

    /// Whether the foreground is there, at work or not.
    pub(crate) fn is_there(&self) -> bool {
        self.past.lock().admission(Instant::now()) != Admission::Free
    }

    /// What the driver has of a stream of a client below normal is expected to take so many microseconds, and not as many
    /// as before.
    pub(crate) fn expect(&self, before: u64, now: u64) {
        self.expected
            .fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        self.changed
            .store(self.since.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Whether what the driver has of clients below normal takes longer, `now` after `since`, than anything expected of it
    /// explains.
    fn is_overdue(&self, now: Duration) -> bool {
        let changed = Duration::from_nanos(self.changed.load(Ordering::Relaxed));
        let expected = Duration::from_micros(self.expected.load(Ordering::Relaxed));
        now.saturating_sub(changed) > OVERDUE.max(expected)
    }
}

impl Past {
    fn begin(&mut self, now: Instant) {
        self.under_way += 1;
        if self.under_way > 1 {
            return;
        }
        let paused = self.ended.map_or(LINGER, |ended| now - ended);
        if paused >= MOMENT {
            self.held = self.held.saturating_sub(paused * PAUSES_COUNT);
            self.began = now;
        } else {
            // As if it had gone on: what was counted at its end is counted at the next one.
            self.held = self.held.saturating_sub((now - paused) - self.began);
        }
    }

    fn end(&mut self, now: Instant) {
        self.under_way -= 1;
        if self.under_way == 0 {
            self.held = (self.held + (now - self.began)).min(MOST_HELD);
            self.ended = Some(now);
        }
    }

    fn admission(&self, now: Instant) -> Admission {
        if self.under_way > 0 {
            return match self.held + (now - self.began) <= MOST_HELD {
                true => Admission::Held,
                false => Admission::Upto(BESIDE),
            };
        }
        match self.ended.map(|ended| now - ended) {
            Some(paused) if paused < MOMENT && self.held < MOST_HELD => Admission::Held,
            Some(paused) if paused < LINGER => Admission::Upto(IN_PAUSES),
            _ => Admission::Free,
        }
    }
}

/// A stream of the foreground has work as long as this is.
#[derive(Debug)]
pub(crate) struct ForegroundWork(Arc<Device>);

impl Drop for ForegroundWork {
    fn drop(&mut self) {
        self.0.foreground().past.lock().end(Instant::now());
        // Who is held may go on soon.
        self.0.gate().wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A past without anything, and the time at which it begins.
    fn past() -> (Past, Instant) {
        let start = Instant::now();
        let past = Past {
            under_way: 0,
            began: start,
            ended: None,
            held: Duration::ZERO,
        };
        (past, start)
    }

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn others_are_held_while_it_works_and_begin_little_in_its_pauses() {
        let (mut past, start) = past();
        assert_eq!(past.admission(start), Admission::Free);
        past.begin(start);
        past.begin(start + micros(10));
        assert_eq!(past.admission(start + micros(20)), Admission::Held);
        past.end(start + micros(300));
        assert_eq!(past.admission(start + micros(301)), Admission::Held);
        past.end(start + micros(400));
        assert_eq!(past.admission(start + micros(450)), Admission::Held);
        let paused = start + micros(400) + MOMENT;
        assert_eq!(past.admission(paused), Admission::Upto(IN_PAUSES));
        assert_eq!(past.admission(start + 2 * LINGER), Admission::Free);
    }

    #[test]
    fn one_who_works_all_the_time_is_not_waited_for_all_the_time() {
        let (mut past, start) = past();
        // Kernels one by one, with pauses that are none.
        let mut now = start;
        for _ in 0..1_000 {
            past.begin(now);
            past.end(now + micros(90));
            now += micros(100);
        }
        past.begin(now);
        assert_eq!(past.admission(now), Admission::Upto(BESIDE));
        past.end(now + micros(90));
        // Half of what it may have: the others are held for as long again.
        let next = now + micros(90) + MOST_HELD / 2 / PAUSES_COUNT;
        past.begin(next);
        assert_eq!(past.admission(next + MOST_HELD / 3), Admission::Held);
        assert_eq!(past.admission(next + MOST_HELD), Admission::Upto(BESIDE));
    }

    #[test]
    fn short_pauses_do_not_count_what_came_before_twice() {
        let (mut past, start) = past();
        let mut now = start;
        for _ in 0..100 {
            past.begin(now);
            past.end(now + micros(90));
            now += micros(100);
        }
        // 10 ms of 50.
        past.begin(now);
        assert_eq!(past.admission(now + micros(39_000)), Admission::Held);
        assert_eq!(
            past.admission(now + micros(41_000)),
            Admission::Upto(BESIDE)
        );
    }

    #[test]
    fn what_the_driver_has_of_all_streams_is_counted_together() {
        let foreground = Foreground::default();
        foreground.past.lock().begin(Instant::now());
        foreground.past.lock().end(Instant::now() - MOMENT);
        assert!(foreground.admits());
        foreground.expect(0, 150);
        foreground.expect(0, 100);
        assert!(!foreground.admits());
        let now = foreground.since.elapsed();
        assert!(!foreground.is_overdue(now));
        assert!(foreground.is_overdue(now + OVERDUE + micros(250)));
        foreground.expect(150, 0);
        assert!(foreground.admits());
    }
}
