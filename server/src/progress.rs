//! How far each stream of one client has come: what the engine's threads write and the session's
//! thread reads.
//!
//! One pair of words a stream: the last position completed, and the position at which the session
//! asked to be woken. They are atomics, so that an engine thread that completes work takes no lock,
//! neither of this client nor of another. Streams' words are made 64 at a time when first used: a
//! client with a few streams costs a few hundred bytes.
//!
//! Beside each stream's words stand those of its [`gate`]: up to where the client has released it;
//! and behind them all those of [`shared_event`]s: up to which record they have come.
//!
//! Knows nothing of dependencies (`order`) nor of shared memory (`transport`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use cuda_abi::operations::{SHARED_EVENT_SLOTS, STREAM_SLOTS};

/// Streams whose words are made together.
const GROUP: usize = 64;

/// Where the words of a stream's gate are, in the place of a stream's slot.
#[must_use]
pub const fn gate(stream: u32) -> u32 {
    STREAM_SLOTS.saturating_add(stream)
}

/// Where the words of a shared event are, in the place of a stream's slot.
#[must_use]
pub const fn shared_event(slot: u32) -> u32 {
    (2 * STREAM_SLOTS).saturating_add(slot)
}

/// All words that there are.
const SLOTS: u32 = 2 * STREAM_SLOTS + SHARED_EVENT_SLOTS;

/// The words of one client's streams.
#[derive(Debug)]
pub struct Progress {
    groups: Box<[OnceLock<Box<[Words; GROUP]>>]>,
    due: AtomicBool,
}

#[derive(Debug, Default)]
struct Words {
    /// The last position completed; 0 at first.
    completed: AtomicU64,
    /// The complement of the position that the session waits for; 0 when it waits for none. As the
    /// complement so that "none" is zero and the lowest position is the greatest word.
    wanted: AtomicU64,
    /// The context that the stream belongs to.
    context: AtomicU32,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            groups: (0..SLOTS as usize / GROUP)
                .map(|_| OnceLock::new())
                .collect(),
            due: AtomicBool::new(false),
        }
    }
}

impl Progress {
    /// The words of a stream; `None` for a slot that does not exist.
    fn words(&self, stream: u32) -> Option<&Words> {
        let stream = stream as usize;
        let group = self.groups.get(stream / GROUP)?;
        let group = group.get_or_init(|| Box::new(std::array::from_fn(|_| Words::default())));
        Some(&group[stream % GROUP])
    }

    /// Notes which context a stream belongs to.
    pub fn set_context(&self, stream: u32, context: u32) {
        if let Some(words) = self.words(stream) {
            words.context.store(context, Ordering::Relaxed);
        }
    }

    /// The context that a stream belongs to.
    #[must_use]
    pub fn context(&self, stream: u32) -> u32 {
        self.words(stream)
            .map_or(0, |words| words.context.load(Ordering::Relaxed))
    }

    /// The last position of a stream that is completed.
    #[must_use]
    pub fn completed(&self, stream: u32) -> u64 {
        self.words(stream)
            .map_or(0, |words| words.completed.load(Ordering::Acquire))
    }

    /// Notes that a stream has completed everything up to `sequence`. Says whether the session is to
    /// be woken because it waits for this.
    #[must_use]
    pub fn complete(&self, stream: u32, sequence: u64) -> bool {
        let Some(words) = self.words(stream) else {
            return false;
        };
        // Paired with `want`: SeqCst on both words, so that either this sees the wish or the one who
        // wishes sees the completion.
        words.completed.fetch_max(sequence, Ordering::SeqCst);
        let wanted = words.wanted.load(Ordering::SeqCst);
        if wanted == 0 || sequence < !wanted {
            return false;
        }
        // The session asks again for whatever it still waits for, each time it is woken.
        words.wanted.store(0, Ordering::SeqCst);
        self.due.store(true, Ordering::SeqCst);
        true
    }

    /// Asks to be woken when the stream has completed `until`. Returns true, and asks for nothing,
    /// if it has already.
    #[must_use]
    pub fn want(&self, stream: u32, until: u64) -> bool {
        let Some(words) = self.words(stream) else {
            return true;
        };
        words.wanted.fetch_max(!until, Ordering::SeqCst);
        // Paired with `complete`.
        words.completed.load(Ordering::SeqCst) >= until
    }

    /// Begins again from 0. Nobody waits for it or completes it meanwhile.
    pub fn reset(&self, stream: u32) {
        if let Some(words) = self.words(stream) {
            words.completed.store(0, Ordering::SeqCst);
            words.wanted.store(0, Ordering::SeqCst);
        }
    }

    /// Notes that something which the session waits for is complete already.
    pub fn set_due(&self) {
        self.due.store(true, Ordering::SeqCst);
    }

    /// Whether something that the session waited for has completed since the last call.
    #[must_use]
    pub fn take_due(&self) -> bool {
        // The plain load keeps the usual case, nothing due, free of a locked instruction.
        self.due.load(Ordering::SeqCst) && self.due.swap(false, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_are_noted_and_wake_only_who_asked() {
        let progress = Progress::default();
        assert!(!progress.complete(5, 1));
        assert_eq!(progress.completed(5), 1);
        assert!(!progress.want(5, 3));
        assert!(!progress.want(5, 2));
        assert!(!progress.take_due());
        assert!(progress.complete(5, 2), "the lowest wish counts");
        assert!(progress.take_due());
        assert!(!progress.complete(5, 3), "a wish is granted once");
        assert!(progress.want(5, 3), "already there");
    }

    #[test]
    fn a_slot_beyond_the_last_is_harmless() {
        let progress = Progress::default();
        assert!(!progress.complete(shared_event(SHARED_EVENT_SLOTS), 1));
        assert_eq!(progress.completed(u32::MAX), 0);
        assert!(progress.want(u32::MAX, 1));
    }

    #[test]
    fn no_wish_is_lost_between_two_threads() {
        use std::sync::atomic::AtomicU64;
        let progress = Progress::default();
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
                    if progress.want(0, until) {
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
