//! On which processor a session's thread runs: anywhere, or on that of its client.
//!
//! A program that launches and waits, and its session, each look for the other's words. Where there are processors enough, each has one.
//! With more such pairs than processors the two of a pair are on processors that others want too, and each waits for its turn there
//! before the other's word can be seen. On one processor they hand it to each other, each as soon as it has nothing to do, and nobody else is waited for.
//!
//! Owns where the session's thread may run. Called by the session's loop around its waits. Must not know what is waited for.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use transport::session::Consumer;

use crate::session::running_threads::{self, ALL};

/// Ends of work that a session has seen without sleeping, one after the other, before it shares: a program whose work takes long sleeps
/// meanwhile, and so does its session. Where engines' own threads see the ends there are none.
const SEEN_SOON: u32 = 16;

/// By how much fewer pairs are to share before one stops that does.
const STEADY: u32 = ALL / 8;

/// How often the session's thread follows a client that moves. One whose threads take turns would have it moved with each launch.
const BETWEEN_MOVES: Duration = Duration::from_millis(1);

/// Sessions of this process that share, at most. The driver's lock of the one context is what more of them would wait for, and who waits for
/// that keeps the client's processor from it meanwhile.
const MOST_SHARING: u32 = 4;

/// Sessions of this process that share.
static SHARING: AtomicU32 = AtomicU32::new(0);

/// Where a session's thread runs.
#[derive(Debug)]
pub(super) struct ProcessorSharing {
    /// Where it could run when it began to share; none where that could not be found out.
    allowed: Option<CpuSet>,
    seen_soon: u32,
    /// It shares if more than this part of all is to.
    place: u32,
    /// The part that is to share.
    part_to_share: fn() -> u32,
    /// It is one of [`SHARING`].
    is_sharing: bool,
    /// The processor that it is held to, and since when.
    held: Option<(usize, Instant)>,
}

impl ProcessorSharing {
    /// Of the calling thread, which serves a session of this number. Sessions of all servers have numbers one after the other, and of any that are there
    /// together about as many share as are to: multiples of the golden ratio, without what is before the point, are spread evenly.
    pub(super) fn new(session: u64) -> Self {
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        Self {
            allowed: None,
            seen_soon: 0,
            place: (session.wrapping_mul(GOLDEN) >> 48) as u32,
            part_to_share: running_threads::part_to_share,
            is_sharing: false,
            held: None,
        }
    }

    /// The session is about to wait for its client, or for its client's work, without sleeping.
    pub(super) fn before_spinning(&mut self, consumer: &mut Consumer) {
        if self.seen_soon < SEEN_SOON {
            return;
        }
        let part = (self.part_to_share)();
        let steady = if self.is_sharing { STEADY } else { 0 };
        // Where nobody is to share, those of the first places do not either.
        if part == 0 || self.place >= part.saturating_add(steady) {
            self.leave(consumer);
        } else if self.is_sharing {
            self.follow(consumer);
        } else if self.begin() {
            consumer.set_beside_client(true);
        }
    }

    /// The session has seen its client's work come further while it was awake.
    pub(super) fn seen_soon(&mut self) {
        self.seen_soon = self.seen_soon.saturating_add(1);
    }

    /// The session is about to sleep, after which nobody knows where the client is: its thread may run anywhere again.
    pub(super) fn leave(&mut self, consumer: &mut Consumer) {
        self.seen_soon = 0;
        if self.is_sharing {
            consumer.set_beside_client(false);
            self.end();
        }
    }

    fn begin(&mut self) -> bool {
        let more = |sharing: u32| (sharing < MOST_SHARING).then_some(sharing + 1);
        if SHARING
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
        {
            self.is_sharing = true;
            self.allowed = sched_getaffinity(None).ok();
            if self.allowed.is_none() {
                self.end();
            }
        }
        self.is_sharing
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.is_sharing) {
            SHARING.fetch_sub(1, Ordering::Relaxed);
        }
        if let (Some((processor, _)), Some(allowed)) = (self.held.take(), &self.allowed)
            // Unless somebody else has said meanwhile where it is to run.
            && sched_getaffinity(None).is_ok_and(|now| now == only(processor))
        {
            // It could run there before.
            let _ = sched_setaffinity(None, allowed);
        }
    }

    /// Goes where the client says that it is. If it may not run there, the two do not share.
    fn follow(&mut self, consumer: &mut Consumer) {
        let Some(processor) = consumer.client_processor() else {
            return;
        };
        let stays =
            |(held, since): (usize, Instant)| held == processor || since.elapsed() < BETWEEN_MOVES;
        let may = |allowed: &CpuSet| processor < CpuSet::MAX_CPU && allowed.is_set(processor);
        if self.held.is_some_and(stays) {
            return;
        }
        if self.allowed.as_ref().is_some_and(may)
            && sched_setaffinity(None, &only(processor)).is_ok()
        {
            self.held = Some((processor, Instant::now()));
        } else {
            self.leave(consumer);
        }
    }
}

fn only(processor: usize) -> CpuSet {
    let mut only = CpuSet::new();
    only.set(processor);
    only
}

impl Drop for ProcessorSharing {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use transport::memory::Mapping;
    use transport::session::{ClientEnd, ServerEnd, SessionMemory};
    use transport::socket::Connection;

    use super::*;

    /// Where the client says in its memory on which processor it is, and 1.
    const PROCESSOR: usize = 512;

    /// The processors that the calling thread may use.
    fn here() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|&at| set.is_set(at)).collect()
    }

    fn sharing() -> ProcessorSharing {
        ProcessorSharing {
            part_to_share: || ALL,
            ..ProcessorSharing::new(7)
        }
    }

    /// So long that it may be moved again.
    fn long_ago() -> Instant {
        Instant::now() - 2 * BETWEEN_MOVES
    }

    fn see_soon(sharing: &mut ProcessorSharing, consumer: &mut Consumer) {
        for _ in 0..SEEN_SOON {
            sharing.before_spinning(consumer);
            sharing.seen_soon();
        }
        sharing.before_spinning(consumer);
    }

    // One test, since all sessions of a process are counted together.
    #[test]
    fn a_session_runs_beside_its_client_until_it_sleeps() {
        let memory = SessionMemory::create(1 << 20).unwrap();
        let (ours, _theirs) = Connection::pair().unwrap();
        let (mut consumer, publisher) = ServerEnd::new(&memory).unwrap().split();
        let client = ClientEnd::new(&memory, ours).unwrap();
        let word = Mapping::map(&memory.ring).unwrap();
        let all = here();
        let mut sharing = sharing();

        see_soon(&mut sharing, &mut consumer);
        sharing.before_spinning(&mut consumer);
        assert_eq!(here(), all, "the client has not said where it is");
        // The client says so when it waits, now that it was told.
        let last = *all.last().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sched_setaffinity(None, &only(last)).unwrap();
                client.wait(0, 1).unwrap();
            });
            while consumer.client_processor().is_none() {
                std::thread::yield_now();
            }
            publisher.complete(0, 1);
        });
        sharing.before_spinning(&mut consumer);
        assert_eq!(here(), [last]);
        sharing.leave(&mut consumer);
        assert_eq!(here(), all);

        // A client may say what it likes.
        for wrong in [0, 1 << 20, u64::MAX] {
            word.word(PROCESSOR).store(wrong, Ordering::Relaxed);
            see_soon(&mut sharing, &mut consumer);
            sharing.before_spinning(&mut consumer);
            assert_eq!(here(), all, "{wrong}");
            sharing.leave(&mut consumer);
        }

        // Nor is the thread kept where the client was before it went where the thread cannot go.
        let say = |processor: usize| {
            let said = processor as u64 + 1;
            word.word(PROCESSOR).store(said, Ordering::Relaxed);
        };
        say(last);
        see_soon(&mut sharing, &mut consumer);
        sharing.before_spinning(&mut consumer);
        assert_eq!(here(), [last]);
        say(CpuSet::MAX_CPU - 1);
        sharing.held = Some((last, long_ago()));
        sharing.before_spinning(&mut consumer);
        assert!(!sharing.is_sharing);
        assert_eq!(here(), all);

        // Whoever says where it is to run, before it shares or meanwhile, has the last word.
        let everywhere = sched_getaffinity(None).unwrap();
        if let [first, .., last] = all[..] {
            sched_setaffinity(None, &only(first)).unwrap();
            say(last);
            see_soon(&mut sharing, &mut consumer);
            sharing.before_spinning(&mut consumer);
            assert_eq!(here(), [first]);
            sharing.leave(&mut consumer);
            sched_setaffinity(None, &everywhere).unwrap();
            see_soon(&mut sharing, &mut consumer);
            sharing.before_spinning(&mut consumer);
            assert_eq!(here(), [last]);
            sched_setaffinity(None, &only(first)).unwrap();
            sharing.leave(&mut consumer);
            assert_eq!(here(), [first]);
            sched_setaffinity(None, &everywhere).unwrap();
        }

        // Nobody follows a client from processor to processor with each launch.
        say(all[0]);
        see_soon(&mut sharing, &mut consumer);
        sharing.before_spinning(&mut consumer);
        assert_eq!(here(), [all[0]]);
        sharing.held = Some((all[0], Instant::now() + Duration::from_secs(60)));
        say(last);
        sharing.before_spinning(&mut consumer);
        assert_eq!(here(), [all[0]]);

        // Only so many share; who goes makes room, and where threads are few nobody shares.
        let mut others: Vec<_> = (1..MOST_SHARING).map(|_| self::sharing()).collect();
        assert!(others.iter_mut().all(ProcessorSharing::begin));
        let mut late = self::sharing();
        assert!(!late.begin());
        drop(others);
        assert!(late.begin());
        drop(late);
        for place in [sharing.place, 0] {
            sharing.place = place;
            sharing.part_to_share = || ALL;
            see_soon(&mut sharing, &mut consumer);
            assert!(sharing.is_sharing);
            sharing.part_to_share = || 0;
            sharing.before_spinning(&mut consumer);
            assert!(!sharing.is_sharing, "{place}");
            assert_eq!(here(), all);
        }
    }

    #[test]
    fn of_sessions_that_follow_each_other_about_as_many_share_as_are_to() {
        for first in [0, 1, 17, 1 << 40] {
            for count in 4..40_u32 {
                for to_share in [ALL / 4, ALL / 2, ALL / 3 * 2] {
                    let sessions = (first..first + u64::from(count)).map(ProcessorSharing::new);
                    let sharing = sessions.filter(|session| session.place < to_share).count();
                    let wanted = f64::from(count) * f64::from(to_share) / f64::from(ALL);
                    let off = (sharing as f64 - wanted).abs();
                    assert!(off < 2.0, "{sharing} of {count}, not {wanted}");
                }
            }
        }
    }
}
