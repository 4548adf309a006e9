//! How far each stream of one client has come: what the engine's threads write and the session's
//! thread reads.
//!
//! One pair of counters a stream: the last position completed, and the position at which the session
//! asked to be woken. They are atomics, so that an engine thread that completes work takes no lock,
//! neither of this client nor of another. Streams' counters are made 64 at a time when first used: a
//! client with a few streams costs a few hundred bytes.
//!
//! Beside each stream's counters stand those of its [`host_barrier`]: up to where the client has released it;
//! and behind them all those of [`shared_event`]s: up to which record they have come.
//!
//! Knows nothing of dependencies (`stream_scheduler`) nor of shared memory (`transport`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use protocol::operations::{SHARED_EVENT_SLOTS, STREAM_SLOTS};

/// Streams whose counters are made together.
const GROUP: usize = 64;

/// Where the counters of a stream's host barrier are, in the place of a stream's slot.
#[must_use]
pub const fn host_barrier(stream: u32) -> u32 {
    STREAM_SLOTS.saturating_add(stream)
}

/// Where the counters of a shared event are, in the place of a stream's slot.
#[must_use]
pub const fn shared_event(slot: u32) -> u32 {
    (2 * STREAM_SLOTS).saturating_add(slot)
}

/// All counters that there are.
const SLOTS: u32 = 2 * STREAM_SLOTS + SHARED_EVENT_SLOTS;

/// The counters of one client's streams.
#[derive(Debug)]
pub struct CompletionTracker {
    groups: Box<[OnceLock<Box<[Counters; GROUP]>>]>,
    ready: AtomicBool,
}

#[derive(Debug, Default)]
struct Counters {
    /// The last position completed; 0 at first.
    completed: AtomicU64,
    /// The complement of the position that the session waits for; 0 when it waits for none. As the
    /// complement so that "none" is zero and the lowest position is the greatest word.
    wake_at: AtomicU64,
    /// The context that the stream belongs to.
    context: AtomicU32,
    /// The last position that the session has taken.
    taken: AtomicU64,
}

impl Default for CompletionTracker {
    fn default() -> Self {
        Self {
            groups: (0..SLOTS as usize / GROUP)
                .map(|_| OnceLock::new())
                .collect(),
            ready: AtomicBool::new(false),
        }
    }
}

impl CompletionTracker {
    /// The counters of a stream; `None` for a slot that does not exist.
    fn counters(&self, stream: u32) -> Option<&Counters> {
        let stream = stream as usize;
        let group = self.groups.get(stream / GROUP)?;
        let group = group.get_or_init(|| Box::new(std::array::from_fn(|_| Counters::default())));
        Some(&group[stream % GROUP])
    }

    /// Notes which context a stream belongs to.
    pub fn set_context(&self, stream: u32, context: u32) {
        if let Some(counters) = self.counters(stream) {
            counters.context.store(context, Ordering::Relaxed);
        }
    }

    /// The context that a stream belongs to.
    #[must_use]
    pub fn context(&self, stream: u32) -> u32 {
        self.counters(stream)
            .map_or(0, |counters| counters.context.load(Ordering::Relaxed))
    }

    /// The last position of a stream that is completed.
    #[must_use]
    pub fn completed(&self, stream: u32) -> u64 {
        self.counters(stream)
            .map_or(0, |counters| counters.completed.load(Ordering::Acquire))
    }

    /// Notes that the session has taken everything up to `sequence`.
    pub fn note_received(&self, stream: u32, sequence: u64) {
        if let Some(counters) = self.counters(stream) {
            counters.taken.store(sequence, Ordering::Relaxed);
        }
    }

    /// By stream that took anything, its context, how many operations it has completed, and how many it has taken and not completed;
    /// from any thread.
    pub fn of_each(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        let streams = self.groups[..STREAM_SLOTS as usize / GROUP].iter();
        let streams = streams
            .filter_map(OnceLock::get)
            .flat_map(|group| group.iter());
        streams.map(|counters| {
            // In this order: what completes in between makes less of it, and never less than nothing.
            let completed = counters.completed.load(Ordering::Acquire);
            let taken = counters.taken.load(Ordering::Relaxed);
            let context = counters.context.load(Ordering::Relaxed);
            (context, completed, taken.saturating_sub(completed))
        })
    }

    /// Notes that a stream has completed everything up to `sequence`. Says whether the session is to
    /// be woken because it waits for this.
    #[must_use]
    pub fn complete(&self, stream: u32, sequence: u64) -> bool {
        let Some(counters) = self.counters(stream) else {
            return false;
        };
        // Paired with `wake_when`: SeqCst on both counters, so that either this sees the wish or the one who
        // wishes sees the completion.
        counters.completed.fetch_max(sequence, Ordering::SeqCst);
        let wake_at = counters.wake_at.load(Ordering::SeqCst);
        if wake_at == 0 || sequence < !wake_at {
            return false;
        }
        // The session asks again for whatever it still waits for, each time it is woken.
        counters.wake_at.store(0, Ordering::SeqCst);
        self.ready.store(true, Ordering::SeqCst);
        true
    }

    /// Asks to be woken when the stream has completed `until`. Returns true, and asks for nothing,
    /// if it has already.
    #[must_use]
    pub fn wake_when(&self, stream: u32, until: u64) -> bool {
        let Some(counters) = self.counters(stream) else {
            return true;
        };
        counters.wake_at.fetch_max(!until, Ordering::SeqCst);
        // Paired with `complete`.
        counters.completed.load(Ordering::SeqCst) >= until
    }

    /// Begins again from 0. Nobody waits for it or completes it meanwhile.
    pub fn reset(&self, stream: u32) {
        if let Some(counters) = self.counters(stream) {
            counters.completed.store(0, Ordering::SeqCst);
            counters.wake_at.store(0, Ordering::SeqCst);
        }
    }

    /// Notes that something which the session waits for is complete already.
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::SeqCst);
    }

    /// Whether something that the session waited for has completed since the last call.
    #[must_use]
    pub fn take_ready(&self) -> bool {
        // The plain load keeps the usual case, nothing ready, free of a locked instruction.
        self.ready.load(Ordering::SeqCst) && self.ready.swap(false, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_are_noted_and_wake_only_who_asked() {
        let progress = CompletionTracker::default();
        assert!(!progress.complete(5, 1));
        assert_eq!(progress.completed(5), 1);
        assert!(!progress.wake_when(5, 3));
        assert!(!progress.wake_when(5, 2));
        assert!(!progress.take_ready());
        assert!(progress.complete(5, 2), "the lowest wish counts");
        assert!(progress.take_ready());
        assert!(!progress.complete(5, 3), "a wish is granted once");
        assert!(progress.wake_when(5, 3), "already there");
    }

    #[test]
    fn what_was_taken_and_is_not_complete_is_queued() {
        let progress = CompletionTracker::default();
        assert_eq!(progress.of_each().count(), 0, "no stream took anything");
        progress.set_context(70, 3);
        progress.note_received(70, 5);
        let queued = || {
            progress
                .of_each()
                .map(|(context, _, queued)| (context, queued))
                .filter(|&(_, queued)| queued > 0)
                .collect::<Vec<_>>()
        };
        assert_eq!(queued(), [(3, 5)]);
        let _ = progress.complete(70, 4);
        // The place of a barrier is no stream.
        progress.note_received(host_barrier(2), 9);
        assert_eq!(queued(), [(3, 1)]);
        let _ = progress.complete(70, 5);
        assert_eq!(queued(), []);
    }

    #[test]
    fn a_slot_beyond_the_last_is_harmless() {
        let progress = CompletionTracker::default();
        assert!(!progress.complete(shared_event(SHARED_EVENT_SLOTS), 1));
        assert_eq!(progress.completed(u32::MAX), 0);
        assert!(progress.wake_when(u32::MAX, 1));
    }

    #[test]
    fn no_wish_is_lost_between_two_threads() {
        use std::sync::atomic::AtomicU64;
        let progress = CompletionTracker::default();
        let rings = AtomicU64::new(0);
        const LAST: u64 = 20_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for sequence in 1..=LAST {
                    if progress.complete(0, sequence) {
                        rings.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
            let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
            for until in 1..=LAST {
                loop {
                    let seen = rings.load(Ordering::SeqCst);
                    if progress.wake_when(0, until) {
                        break;
                    }
                    // Only a ring ends the wait, as for a session that sleeps.
                    while rings.load(Ordering::SeqCst) == seen {
                        assert!(std::time::Instant::now() < limit, "no ring for {until}");
                        std::thread::yield_now();
                    }
                }
            }
        });
        assert_eq!(progress.completed(0), LAST);
    }
}
