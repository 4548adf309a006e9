//! When a server is started ahead, to stand by until another one of its user's has ended, and what is remembered of those that
//! came to nothing.
//!
//! Kept by the daemon, called by `daemon::standbys`. Must not know servers: `registry` has them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use protocol::control_messages::ListedDevice;

/// How long after clients have come, or were taken over, the next one is started: until then processors and devices are theirs.
const A_MOMENT: Duration = Duration::from_secs(1);

/// How long none is started after one that found no room, or was told to end.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The longest time between the ends of standbys that die, which doubles with each.
const MOST_DOUBLED: u32 = 8;

/// The part of each device's memory that is to be free beside a standby.
const FREE_PART: u64 = 8;

/// Whether servers stand by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standby {
    /// Where devices have memory to spare.
    #[default]
    Auto,
    /// Wherever one can.
    Always,
    /// None.
    Never,
}

impl Standby {
    /// The names, for messages.
    pub const NAMES: &'static str = "auto, always and never";

    /// The one with a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Auto, Self::Always, Self::Never]
            .into_iter()
            .find(|one| one.name() == name)
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }

    /// Whether a standby that has found so much free on its devices is to stay.
    pub(crate) fn has_room(self, devices: &[ListedDevice], free: &[u64]) -> bool {
        let mut each = devices.iter().zip(free);
        self == Self::Always || each.all(|(device, free)| *free >= device.total_memory / FREE_PART)
    }
}

/// What holds for all users, and what is known of each.
#[derive(Debug)]
pub(crate) struct Standbys {
    pub(crate) when: Standby,
    users: BTreeMap<u32, User>,
}

#[derive(Debug)]
struct User {
    /// Before that none is started.
    next: Instant,
    /// How many have ended in a row that were not needed.
    died: u32,
}

impl Standbys {
    pub(crate) const fn new(when: Standby) -> Self {
        Self {
            when,
            users: BTreeMap::new(),
        }
    }

    /// Whether one may be started for a user who is to have one.
    pub(crate) fn may_start(&mut self, uid: u32, now: Instant) -> bool {
        let next = now + A_MOMENT;
        let user = self.users.entry(uid).or_insert(User { next, died: 0 });
        user.next <= now
    }

    /// Whether one may be started for a user before this time, as far as is known.
    pub(crate) fn may_start_before(&self, uid: u32, time: Instant) -> bool {
        self.users.get(&uid).is_none_or(|user| user.next < time)
    }

    /// A user's has become the server of clients.
    pub(crate) fn was_needed(&mut self, uid: u32, now: Instant) {
        let next = now + A_MOMENT;
        self.users.insert(uid, User { next, died: 0 });
    }

    /// A user's has ended by itself. How long until the next one.
    pub(crate) fn has_died(&mut self, uid: u32, now: Instant) -> Duration {
        let user = self.users.entry(uid).or_insert(User { next: now, died: 0 });
        user.died = (user.died + 1).min(MOST_DOUBLED);
        let wait = A_MOMENT * (1 << user.died);
        user.next = user.next.max(now + wait);
        wait
    }

    /// For a while none is started for a user.
    pub(crate) fn hold_back(&mut self, uid: u32, now: Instant) {
        let user = self.users.entry(uid).or_insert(User { next: now, died: 0 });
        user.next = now + TRIED_AGAIN_AFTER;
    }

    /// Forgets users who have no server.
    pub(crate) fn keep_users(&mut self, has_server: impl Fn(u32) -> bool) {
        self.users.retain(|&uid, _| has_server(uid));
    }

    /// When one may be started next.
    pub(crate) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let times = self.users.values().map(|user| user.next);
        times.filter(|next| *next > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_leaves_too_little_free_does_not_stay_unless_it_was_asked_for() {
        let device = |total_memory| ListedDevice {
            total_memory,
            ..ListedDevice::default()
        };
        let devices = [device(80), device(16)];
        for (free, has_room) in [
            (&[10, 2][..], true),
            (&[9, 2], false),
            (&[80, 1], false),
            // Their memory is no other process's.
            (&[], true),
        ] {
            assert_eq!(Standby::Auto.has_room(&devices, free), has_room, "{free:?}");
            assert!(Standby::Always.has_room(&devices, free));
        }
    }

    #[test]
    fn those_that_die_are_started_less_and_less_often() {
        let now = Instant::now();
        let mut standbys = Standbys::new(Standby::Auto);
        assert!(!standbys.may_start(7, now), "not at once");
        assert!(standbys.may_start(7, now + A_MOMENT));
        let waits: Vec<u64> = (0..10)
            .map(|_| standbys.has_died(7, now).as_secs())
            .collect();
        assert_eq!(waits, [2, 4, 8, 16, 32, 64, 128, 256, 256, 256]);
        assert!(!standbys.may_start(7, now + Duration::from_secs(255)));
        assert!(standbys.may_start(7, now + Duration::from_secs(256)));
        standbys.was_needed(7, now);
        assert_eq!(standbys.next_deadline(now), Some(now + A_MOMENT));
        standbys.hold_back(7, now);
        assert_eq!(standbys.has_died(7, now).as_secs(), 2);
        assert!(!standbys.may_start(7, now + Duration::from_secs(59)));
        standbys.keep_users(|_| false);
        assert_eq!(standbys.next_deadline(now), None);
    }

    #[test]
    fn each_has_a_name() {
        for name in ["auto", "always", "never"] {
            assert_eq!(Standby::named(name).map(Standby::name), Some(name));
            assert!(Standby::NAMES.contains(name));
        }
        assert_eq!(Standby::named("yes"), None);
    }
}
