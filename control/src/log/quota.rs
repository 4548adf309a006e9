//! How much room each user's lines may take in a log: nobody's push out what is said of others.
//!
//! What strangers bring about (connections, commands, refusals) is written at their cost: each user, and each
//! group's clients together, have a bucket of bytes that fills slowly. Of what finds it empty only the number is
//! written. What a log's owner and root bring about, and what is the daemon's own (starts, faults), costs nothing.
//!
//! Called by `log` for each line. Must not know users' rights, only who a line is about.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// Bytes that somebody's lines may take at once: thousands of programs that start together.
pub(super) const AT_ONCE: u32 = 2 << 20;

/// And for each second, in the long run: 22 MB a day, so that what is said of others stays for days.
pub(super) const A_SECOND: u32 = 256;

/// Users and groups that have a bucket of their own. All others share one.
const MAX_BUCKETS: usize = 64;

/// How long left-out lines are counted until they are told of.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Who brought a line about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum About {
    /// A user.
    User(u32),
    /// The clients of a group, by its name.
    Group(String),
    /// Somebody of whom nothing is known.
    Somebody,
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Group(name) => write!(f, "clients of group {name}"),
            Self::Somebody => f.write_str("others"),
        }
    }
}

/// Lines that were left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// About whom.
    pub about: About,
    /// How many.
    pub lines: u64,
    /// Since the first of them.
    pub during: Duration,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            about,
            lines,
            during,
        } = self;
        let seconds = during.as_secs();
        write!(
            f,
            "... {lines} more lines about {about} in {seconds} s were left out"
        )
    }
}

#[derive(Debug)]
struct Bucket {
    bytes: f64,
    filled: Instant,
    /// Lines that were left out and are not told of, and when the first one was.
    left_out: u64,
    since: Instant,
}

impl Bucket {
    fn new(now: Instant) -> Self {
        Self {
            bytes: AT_ONCE.into(),
            filled: now,
            left_out: 0,
            since: now,
        }
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        let filled = passed.mul_add(A_SECOND.into(), self.bytes);
        self.bytes = filled.min(AT_ONCE.into());
        self.filled = now;
    }

    fn try_charge(&mut self, bytes: usize, now: Instant) -> bool {
        self.fill(now);
        let bytes = u32::try_from(bytes).map_or(f64::INFINITY, f64::from);
        if bytes <= self.bytes {
            self.bytes -= bytes;
            return true;
        }
        if self.left_out == 0 {
            self.since = now;
        }
        self.left_out += 1;
        false
    }

    /// Whether nothing would change if it were made anew.
    fn is_unused(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.left_out == 0 && self.bytes >= AT_ONCE.into()
    }
}

/// The shares of a log.
#[derive(Debug, Default)]
pub(super) struct Shares {
    buckets: BTreeMap<About, Bucket>,
}

impl Shares {
    /// Takes room for a line. Says whether there is some.
    pub(super) fn try_charge(&mut self, about: &About, bytes: usize, now: Instant) -> bool {
        let is_full = |buckets: &BTreeMap<About, Bucket>| {
            !buckets.contains_key(about) && buckets.len() >= MAX_BUCKETS
        };
        if is_full(&self.buckets) {
            self.buckets.retain(|_, bucket| !bucket.is_unused(now));
        }
        let who = match is_full(&self.buckets) {
            true => &About::Somebody,
            false => about,
        };
        if let Some(bucket) = self.buckets.get_mut(who) {
            return bucket.try_charge(bytes, now);
        }
        let mut bucket = Bucket::new(now);
        let taken = bucket.try_charge(bytes, now);
        self.buckets.insert(who.clone(), bucket);
        taken
    }

    /// What was left out and is to be told of now, or, `at_the_end`, ever.
    pub(super) fn left_out_to_report(&mut self, now: Instant, at_the_end: bool) -> Vec<LeftOut> {
        let mut told = Vec::new();
        for (about, bucket) in &mut self.buckets {
            let during = now.saturating_duration_since(bucket.since);
            if bucket.left_out > 0 && (at_the_end || during >= TELL_EVERY) {
                told.push(LeftOut {
                    about: about.clone(),
                    lines: std::mem::take(&mut bucket.left_out),
                    during,
                });
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u32 = 128;
    const FLOOD: u64 = 1_000_000;

    #[test]
    fn a_flood_leaves_others_their_room_and_is_told_of() {
        let (mut shares, start) = (Shares::default(), Instant::now());
        let (flooder, other) = (About::User(1000), About::User(1001));
        let mut written = 0;
        for number in 0..FLOOD {
            // Five seconds of it.
            let now = start + Duration::from_micros(number * 5);
            written += u64::from(shares.try_charge(&flooder, LINE as usize, now));
            if number == FLOOD / 2 {
                assert!(
                    shares.try_charge(&other, LINE as usize, now),
                    "in the middle of it"
                );
            }
        }
        let most = u64::from((AT_ONCE + 5 * A_SECOND) / LINE);
        assert!((most - 1..=most).contains(&written), "{written} of {most}");
        let now = start + Duration::from_secs(5);
        assert_eq!(shares.left_out_to_report(now, false), [], "not yet");
        let told = shares.left_out_to_report(now + TELL_EVERY, false);
        assert_eq!(told.len(), 1);
        assert_eq!((&told[0].about, told[0].lines), (&flooder, FLOOD - written));
        let text = told[0].to_string();
        assert!(
            text.contains("more lines about user 1000 in 14 s"),
            "{text}"
        );
        assert_eq!(
            shares.left_out_to_report(now + 2 * TELL_EVERY, true),
            [],
            "once"
        );
        // There is room again, as much as the time gives.
        let later = now + Duration::from_secs(100);
        let passed = (0..FLOOD).filter(|_| shares.try_charge(&flooder, LINE as usize, later));
        assert_eq!(passed.count(), (100 * A_SECOND / LINE) as usize);
        assert_eq!(
            shares.left_out_to_report(later, true).len(),
            1,
            "at the end"
        );
    }

    #[test]
    fn there_are_so_many_shares_and_no_more() {
        let (mut shares, start) = (Shares::default(), Instant::now());
        let half = AT_ONCE as usize / 2;
        for uid in 0..10_000 {
            shares.try_charge(&About::User(uid), half, start);
        }
        assert!(shares.buckets.len() <= MAX_BUCKETS + 1);
        assert!(!shares.try_charge(&About::User(10_000), half, start));
        assert!(
            shares.try_charge(&About::User(0), half, start),
            "it has its own"
        );
        // When theirs are full again they are forgotten.
        let later = start + Duration::from_secs(u64::from(AT_ONCE));
        shares.left_out_to_report(later, true);
        assert!(shares.try_charge(&About::User(10_001), half, later));
        assert_eq!(shares.buckets.len(), 1);
    }
}
