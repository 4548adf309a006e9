//! How long it takes until all sessions of a server that has ended are at the next one.
//!
//! Kept by the daemon, which says it in its log. Must not know servers: sessions have numbers.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long one is remembered: of sessions that have come to nothing meanwhile nobody tells.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// What it is from which the time counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// The end of the server's process.
    Ended,
    /// That it said that it ends now.
    HandingOver,
}

/// Sessions of a server that has ended, or does so now.
#[derive(Debug)]
struct Handover {
    /// The process id of that server.
    former: u32,
    what: Since,
    /// When that was heard of.
    since: Instant,
    /// How many sessions there are.
    count: usize,
    unsent: BTreeSet<u64>,
    unwelcomed: BTreeSet<u64>,
}

/// Something that the last of such sessions has come to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    /// The process id of the server that had them.
    pub(crate) former: u32,
    /// From when on.
    pub(crate) what: Since,
    /// How many sessions there are.
    pub(crate) count: usize,
    /// How long it took.
    pub(crate) after: Duration,
}

impl std::fmt::Display for Reached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            former,
            what,
            count,
            after,
        } = self;
        let milliseconds = after.as_secs_f64() * 1e3;
        let what = match what {
            Since::Ended => "the end of that",
            Since::HandingOver => "it said that it ends",
        };
        write!(
            f,
            "the last of {count} clients of server {former}, {milliseconds:.1} ms after {what}"
        )
    }
}

/// Those that are under way.
#[derive(Debug, Default)]
pub(crate) struct Handovers(Vec<Handover>);

impl Handovers {
    /// A server has ended, or does so now, and another one is to have these sessions.
    pub(crate) fn begin(
        &mut self,
        (former, what): (u32, Since),
        sessions: BTreeSet<u64>,
        now: Instant,
    ) {
        self.0
            .retain(|handover| now.duration_since(handover.since) < KEPT_FOR);
        if !sessions.is_empty() {
            self.0.push(Handover {
                former,
                what,
                since: now,
                count: sessions.len(),
                unsent: sessions.clone(),
                unwelcomed: sessions,
            });
        }
    }

    /// A server was handed a session. If it was the last one, of what.
    pub(crate) fn sent(&mut self, session: u64, now: Instant) -> Option<Reached> {
        let mut all = self.0.iter_mut();
        let at = all.position(|handover| handover.unsent.remove(&session))?;
        let handover = &self.0[at];
        handover.unsent.is_empty().then(|| handover.reached(now))
    }

    /// A server has welcomed a session, or it has ended. If it was the last one, of what.
    pub(crate) fn welcomed(&mut self, session: u64, now: Instant) -> Option<Reached> {
        let mut all = self.0.iter_mut();
        let at = all.position(|handover| handover.unwelcomed.remove(&session))?;
        let is_last = self.0[at].unwelcomed.is_empty();
        is_last.then(|| self.0.remove(at).reached(now))
    }
}

impl Handover {
    fn reached(&self, now: Instant) -> Reached {
        Reached {
            former: self.former,
            what: self.what,
            count: self.count,
            after: now.duration_since(self.since),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_session_ends_it_whatever_becomes_of_the_others() {
        let now = Instant::now();
        let later = now + Duration::from_millis(7);
        let mut handovers = Handovers::default();
        handovers.begin((50, Since::Ended), BTreeSet::from([1, 2]), now);
        handovers.begin((60, Since::Ended), BTreeSet::from([3]), now);
        let reached = |former, count| {
            Some(Reached {
                former,
                what: Since::Ended,
                count,
                after: later - now,
            })
        };
        assert_eq!(handovers.sent(2, later), None);
        assert_eq!(handovers.sent(9, later), None, "none of them");
        assert_eq!(handovers.sent(1, later), reached(50, 2));
        assert_eq!(handovers.welcomed(3, later), reached(60, 1));
        assert_eq!(handovers.welcomed(1, later), None);
        assert_eq!(handovers.welcomed(2, later), reached(50, 2));
        assert_eq!(handovers.welcomed(2, later), None, "once");
        handovers.begin((70, Since::Ended), BTreeSet::from([4]), now);
        handovers.begin((80, Since::HandingOver), BTreeSet::new(), now + KEPT_FOR);
        assert_eq!(handovers.welcomed(4, later), None, "forgotten");
    }
}
