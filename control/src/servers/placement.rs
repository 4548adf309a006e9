//! Who shares an executor, and so a context, with whom: one function, and nothing else decides it.
//!
//! Clients in one executor share the device's context. What keeps them apart there is our own
//! checking; what keeps executors apart is the kernel and the driver. So users are not mixed unless
//! the operator asks for that by name.
//!
//! Called by `daemon::admission`, `daemon::servers` and `daemon::views`. Must not know which servers run.

/// How far apart clients are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// One executor for each user.
    #[default]
    User,
    /// One for each group of a user's clients.
    Group,
    /// One for each client.
    Client,
    /// One for everybody. Weaker: users share a context.
    None,
}

impl Isolation {
    /// The names, for messages.
    pub const NAMES: &'static str = "user, group, client and none";

    /// The isolation with a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::User, Self::Group, Self::Client, Self::None]
            .into_iter()
            .find(|isolation| isolation.name() == name)
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Client => "client",
            Self::None => "none",
        }
    }
}

/// Who asks, by the kernel's word.
#[derive(Clone, Copy, Debug)]
pub struct Requester<'a> {
    /// The user.
    pub uid: u32,
    /// The group that the operator or its socket put it in, if any.
    pub group: Option<&'a str>,
    /// The session's number, which no other session has.
    pub session: u64,
}

/// Names an executor. Clients with the same key share one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServerKey {
    /// A user's.
    User(u32),
    /// A group's of a user.
    Group(u32, String),
    /// A single client's: the user's id and the session.
    Client(u32, u64),
    /// Everybody's.
    Shared,
}

impl ServerKey {
    /// The user that the executor runs for; `None` for everybody's.
    #[must_use]
    pub const fn uid(&self) -> Option<u32> {
        match self {
            Self::User(uid) | Self::Group(uid, _) | Self::Client(uid, _) => Some(*uid),
            Self::Shared => None,
        }
    }
}

/// The executor for a client.
#[must_use]
pub fn server_for(who: Requester<'_>, isolation: Isolation) -> ServerKey {
    match (isolation, who.group) {
        (Isolation::None, _) => ServerKey::Shared,
        (Isolation::Client, _) => ServerKey::Client(who.uid, who.session),
        (Isolation::Group, Some(group)) => ServerKey::Group(who.uid, group.to_owned()),
        (Isolation::Group, None) | (Isolation::User, _) => ServerKey::User(who.uid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(uid: u32, group: Option<&str>, session: u64, isolation: Isolation) -> ServerKey {
        server_for(
            Requester {
                uid,
                group,
                session,
            },
            isolation,
        )
    }

    #[test]
    fn users_are_apart_unless_isolation_is_given_up_by_name() {
        for isolation in [
            Isolation::default(),
            Isolation::User,
            Isolation::Group,
            Isolation::Client,
        ] {
            assert_ne!(
                key(1, Some("a"), 1, isolation),
                key(2, Some("a"), 2, isolation)
            );
        }
        assert_eq!(
            key(1, Some("a"), 1, Isolation::None),
            key(2, None, 2, Isolation::None)
        );
    }

    #[test]
    fn within_a_user_it_is_as_asked() {
        assert_eq!(
            key(1, Some("a"), 1, Isolation::User),
            key(1, Some("b"), 2, Isolation::User)
        );
        assert_ne!(
            key(1, Some("a"), 1, Isolation::Group),
            key(1, Some("b"), 2, Isolation::Group)
        );
        assert_eq!(
            key(1, Some("a"), 1, Isolation::Group),
            key(1, Some("a"), 2, Isolation::Group)
        );
        assert_ne!(
            key(1, None, 1, Isolation::Client),
            key(1, None, 2, Isolation::Client)
        );
    }
}
