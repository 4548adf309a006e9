//! How many contexts each user's clients may have, and what is remembered of why they have no more.
//!
//! Kept by the daemon, called by `daemon::contexts`. Must not know servers: `registry` has them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::files::directories::{VariableError, text_variable};
use crate::servers::placement::{Isolation, MOST_CONTEXTS};
use crate::underlay::Mode;

/// How long nothing is tried after a context could not be had.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// How long contexts wait for clients of a user who has none any more.
const KEPT_FOR: Duration = Duration::from_secs(300);

/// The environment's word for `--contexts`.
const VARIABLE: &str = "OPENMPS_CONTEXTS";

/// The numbers that there are, for messages.
pub const NUMBERS: &str = "the numbers from 1 to 40";

/// Why users' clients cannot have contexts as an operator asks.
#[derive(Debug, thiserror::Error)]
pub enum ContextsError {
    /// A variable is no text.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The variable is no number, or none that can be.
    #[error("{VARIABLE}={0}: it is a number from 1 to {MOST_CONTEXTS}")]
    Number(String),
    /// On a bare device contexts get turns.
    #[error(
        "several contexts for a user's clients take an underlay, beside which they overlap: --underlay=auto"
    )]
    NoUnderlay,
    /// Clients are not put together by user.
    #[error(
        "--contexts is how many a user's clients share, and with --isolation={0} they do not share by user"
    )]
    Isolation(&'static str),
}

/// The number of contexts that a text asks for.
#[must_use]
pub fn named(text: &str) -> Option<u32> {
    let number = text.parse().ok()?;
    (1..=MOST_CONTEXTS).contains(&number).then_some(number)
}

/// What holds for all users, and what is known of each.
#[derive(Debug)]
pub(crate) struct UserContexts {
    /// As many as one user's clients may have.
    pub(crate) most: u32,
    users: BTreeMap<u32, User>,
}

#[derive(Debug, Default)]
struct User {
    /// Since when it has no clients.
    idle_since: Option<Instant>,
    /// Until when no more contexts are tried, and why.
    held_back: Option<(Instant, String)>,
    /// Why it has no more.
    why_not: Option<String>,
}

impl UserContexts {
    /// As an option or else the environment asks for.
    ///
    /// # Errors
    /// When it cannot be.
    pub(crate) fn new(
        option: Option<u32>,
        isolation: Isolation,
        underlay: Mode,
    ) -> Result<Self, ContextsError> {
        let most = match (option, text_variable(VARIABLE)?) {
            (Some(most), _) => most,
            (None, Some(text)) => named(&text).ok_or(ContextsError::Number(text))?,
            (None, None) => 1,
        };
        if most > 1 && underlay == Mode::None {
            return Err(ContextsError::NoUnderlay);
        }
        if most > 1 && !matches!(isolation, Isolation::User | Isolation::Group) {
            return Err(ContextsError::Isolation(isolation.name()));
        }
        Ok(Self {
            most,
            users: BTreeMap::new(),
        })
    }

    /// Notes whether a user has clients. Whether contexts are to be kept for those to come.
    pub(crate) fn are_needed(&mut self, uid: u32, has_clients: bool, now: Instant) -> bool {
        let user = self.users.entry(uid).or_default();
        if has_clients {
            user.idle_since = None;
            return true;
        }
        now.duration_since(*user.idle_since.get_or_insert(now)) < KEPT_FOR
    }

    /// For a while no more are tried for a user. Whether that was not so for the same reason before.
    pub(crate) fn hold_back(&mut self, uid: u32, why: &str, now: Instant) -> bool {
        let user = self.users.entry(uid).or_default();
        let is_new = user.held_back.as_ref().is_none_or(|(_, last)| last != why);
        user.held_back = Some((now + TRIED_AGAIN_AFTER, why.to_owned()));
        is_new
    }

    /// Why no more are tried for a user now.
    pub(crate) fn held_back(&self, uid: u32, now: Instant) -> Option<&str> {
        let (until, why) = self.users.get(&uid)?.held_back.as_ref()?;
        (*until > now).then_some(why)
    }

    /// One more was had.
    pub(crate) fn grown(&mut self, uid: u32) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.held_back = None;
        }
    }

    /// Notes why a user has no more. Whether that is something else than before.
    pub(crate) fn set_why_not(&mut self, uid: u32, why: Option<String>) -> bool {
        let user = self.users.entry(uid).or_default();
        let is_other = user.why_not != why;
        user.why_not = why;
        is_other
    }

    /// Why a user has no more.
    pub(crate) fn why_not(&self, uid: u32) -> Option<&str> {
        self.users.get(&uid)?.why_not.as_deref()
    }

    /// Forgets users who have no server.
    pub(crate) fn keep_users(&mut self, has_server: impl Fn(u32) -> bool) {
        self.users.retain(|&uid, _| has_server(uid));
    }

    /// When something is to be tried again, or given up.
    pub(crate) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let users = self.users.values();
        users
            .flat_map(|user| {
                let again = user.held_back.as_ref().map(|(until, _)| *until);
                [again, user.idle_since.map(|since| since + KEPT_FOR)]
            })
            .flatten()
            // What is past has been seen to.
            .filter(|deadline| *deadline > now)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(most: u32) -> UserContexts {
        UserContexts::new(Some(most), Isolation::User, Mode::Auto).unwrap()
    }

    #[test]
    fn several_take_an_underlay_and_clients_that_share_by_user() {
        let new = UserContexts::new;
        assert_eq!(new(None, Isolation::User, Mode::None).unwrap().most, 1);
        assert_eq!(of(8).most, 8);
        assert!(new(Some(8), Isolation::Group, Mode::NvidiaMps).is_ok());
        assert!(new(Some(1), Isolation::Client, Mode::None).is_ok());
        let why = new(Some(2), Isolation::User, Mode::None).unwrap_err();
        assert!(why.to_string().contains("--underlay=auto"), "{why}");
        for isolation in [Isolation::Client, Isolation::None] {
            let why = new(Some(2), isolation, Mode::Auto).unwrap_err();
            assert!(why.to_string().contains(isolation.name()), "{why}");
        }
        assert!(NUMBERS.ends_with(&MOST_CONTEXTS.to_string()));
        for (text, number) in [
            ("1", Some(1)),
            ("40", Some(40)),
            ("0", None),
            ("41", None),
            ("x", None),
        ] {
            assert_eq!(named(text), number);
        }
    }

    #[test]
    fn they_are_kept_for_a_while_after_the_last_client() {
        let mut contexts = of(4);
        let now = Instant::now();
        assert!(contexts.are_needed(1, false, now));
        assert_eq!(contexts.next_deadline(now), Some(now + KEPT_FOR));
        assert!(!contexts.are_needed(1, false, now + KEPT_FOR));
        assert_eq!(contexts.next_deadline(now + KEPT_FOR), None);
        assert!(contexts.are_needed(1, true, now + KEPT_FOR));
        assert!(contexts.are_needed(1, false, now + KEPT_FOR));
        contexts.keep_users(|uid| uid != 1);
        assert_eq!(contexts.next_deadline(now), None);
    }

    #[test]
    fn what_could_not_be_had_is_tried_again_later() {
        let mut contexts = of(4);
        let now = Instant::now();
        assert!(contexts.hold_back(1, "none left", now));
        assert!(
            !contexts.hold_back(1, "none left", now),
            "one line for each reason"
        );
        assert_eq!(contexts.held_back(1, now), Some("none left"));
        assert_eq!(contexts.held_back(2, now), None);
        let later = now + TRIED_AGAIN_AFTER;
        assert_eq!(contexts.next_deadline(now), Some(later));
        assert_eq!(contexts.held_back(1, later), None);
        assert!(!contexts.hold_back(1, "none left", later), "still the same");
        contexts.grown(1);
        assert!(contexts.hold_back(1, "none left", later));
    }
}
