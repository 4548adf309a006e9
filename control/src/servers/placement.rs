//! Who shares an executor, and so a context, with whom: decided here and nowhere else.
//!
//! Clients in one executor share the device's context. What keeps them apart there is our own
//! checking; what keeps executors apart is the kernel and the driver. So users are not mixed unless
//! the operator asks for that by name. How far apart a user's own clients are kept [`server_for`] says.
//!
//! On the underlay the clients of one user may have several contexts (`--contexts`): one that is *common*, and more of
//! which each is an executor of its own. [`context_for`] says who comes to which, [`one_more`] whether there may be another.
//! What is reserved and who gives way to whom holds within one context, and memory and events that one client opens of another are
//! quickest there. So those who have something together are put into one, and all others are spread.
//!
//! Called by `daemon::admission`, `daemon::contexts`, `daemon::servers` and `daemon::views`. Must not know which servers run.

use protocol::limits;

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
    pub const NAMES: &'static str =
        "user, group, client and none, and fenced, alone or behind a comma";

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

/// What a list of how clients are kept apart says: how they are divided among servers, if it says so, and whether
/// their kernels are fenced. `None` for a list that makes no sense.
#[must_use]
pub fn isolations(text: &str) -> Option<(Option<Isolation>, bool)> {
    let fenced = limits::is_fenced(text).ok()?;
    let names = text.split(',').map(str::trim);
    let mut divisions = names.filter_map(Isolation::named);
    let division = divisions.next();
    divisions.next().is_none().then_some((division, fenced))
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
    /// One more of a user's, beside the common one: the user's id and the context's number.
    Context(u32, u64),
    /// Everybody's.
    Shared,
    /// None yet: its server stands by, and takes the place of one of this user's that has ended.
    Standby(u32),
}

impl ServerKey {
    /// The user that the executor runs for; `None` for everybody's.
    #[must_use]
    pub const fn uid(&self) -> Option<u32> {
        match self {
            Self::User(uid)
            | Self::Group(uid, _)
            | Self::Client(uid, _)
            | Self::Context(uid, _)
            | Self::Standby(uid) => Some(*uid),
            Self::Shared => None,
        }
    }

    /// The user whose clients have this context and maybe more; `None` where there is but one.
    #[must_use]
    pub const fn one_of_users(&self) -> Option<u32> {
        match self {
            Self::User(uid) | Self::Context(uid, _) => Some(*uid),
            Self::Group(..) | Self::Client(..) | Self::Shared | Self::Standby(_) => None,
        }
    }

    /// Whether its server stands by.
    #[must_use]
    pub const fn is_standby(&self) -> bool {
        matches!(self, Self::Standby(_))
    }

    /// Whether a standby can take the place of its server: not of a single client's, which begins as such, nor of one more of a
    /// user's, whose clients go to the common one.
    #[must_use]
    pub const fn may_be_followed(&self) -> bool {
        matches!(self, Self::User(_) | Self::Group(..) | Self::Shared)
    }

    /// Where clients go who had come to an executor that is no more.
    #[must_use]
    pub fn successor(self) -> Self {
        match self {
            Self::Context(uid, _) => Self::User(uid),
            same => same,
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

/// Bytes of each device that one more context takes, before anything is in it: an H200 with driver 580 takes 516 to 524 MiB.
pub const CONTEXT_BYTES: u64 = 544 << 20;

/// The part of a device's memory that contexts beyond the common ones may take.
const PART_OF_MEMORY: u64 = 4;

/// Contexts that NVIDIA's MPS of driver 580 has for a device.
const UNDERLAY_CONTEXTS: u32 = 48;

/// Of those, how many are left to the common contexts of users who have none yet.
const LEFT_TO_USERS: u32 = 8;

/// Contexts that one user's clients can have.
pub const MOST_CONTEXTS: u32 = UNDERLAY_CONTEXTS - LEFT_TO_USERS;

/// A client, as far as it matters with whom it shares a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Companion<'a> {
    /// Its process: the number as seen from here, and what tells it from others of that number.
    pub process: (i32, Option<u64>),
    /// What it belongs to, by its own word: a name that those have in common who may open each other's memory. `None`
    /// where it may be any's.
    pub job: Option<&'a str>,
    /// Whether it gives way to others.
    pub is_below_normal: bool,
}

/// What of a client's compute has to hold beside others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compute {
    /// Its own is limited, or that of its group, or it is in a partition.
    pub is_limited: bool,
    /// Something of the devices is reserved for somebody.
    pub something_is_reserved: bool,
}

impl Companion<'_> {
    fn is_same_process(&self, other: &Self) -> bool {
        let (pid, identity) = self.process;
        (pid != 0 || identity.is_some()) && self.process == other.process
    }

    fn is_of_same_job(&self, other: &Self) -> bool {
        self.job.is_some() && self.job == other.job
    }
}

/// One of a user's contexts.
#[derive(Clone, Debug)]
pub struct UserContext<'a> {
    /// Whether it is the common one.
    pub is_common: bool,
    /// Whether a client would be served there at once.
    pub is_ready: bool,
    /// Who is there, or waits to be.
    pub clients: Vec<Companion<'a>>,
}

/// Which of a user's contexts a client comes to, by its place among them; `None` for the common one that there is not yet.
///
/// * Those of one process or job are together.
/// * Whose job is not known, or whose compute is limited, comes to the common one; and everybody while something is reserved.
/// * Who gives way is with those that it gives way to, if they are in one context; else in the common one. And who comes
///   later is with those that give way.
/// * Everybody else has an empty one, or that with the fewest clients.
#[must_use]
pub fn context_for(
    who: &Companion<'_>,
    compute: Compute,
    contexts: &[UserContext<'_>],
) -> Option<usize> {
    let with = |is_with: &dyn Fn(&Companion<'_>) -> bool| {
        let has = |context: &UserContext<'_>| context.clients.iter().any(is_with);
        // The common one, if it is one of several.
        let of_several = contexts.iter().enumerate().filter(|(_, at)| has(at));
        of_several
            .min_by_key(|(_, at)| !at.is_common)
            .map(|(place, _)| place)
    };
    let together = with(&|other| who.is_same_process(other))
        .or_else(|| with(&|other| who.is_of_same_job(other)));
    if together.is_some() {
        return together;
    }
    let common = contexts.iter().position(|context| context.is_common);
    if who.job.is_none() || compute.is_limited || compute.something_is_reserved {
        return common;
    }
    if who.is_below_normal {
        let mut others = contexts.iter().enumerate().filter(|(_, context)| {
            let mut clients = context.clients.iter();
            clients.any(|other| !other.is_below_normal)
        });
        return match (others.next(), others.next()) {
            (Some((place, _)), None) => Some(place),
            _ => common,
        };
    }
    if let Some(place) = with(&|other| other.is_below_normal) {
        return Some(place);
    }
    let ready = contexts.iter().enumerate().filter(|(_, at)| at.is_ready);
    ready
        // The common one is left to those who must be there as long as another is as good.
        .min_by_key(|(_, at)| (at.clients.len(), at.is_common))
        .map(|(place, _)| place)
        .or(common)
}

/// What counts for one more context.
#[derive(Clone, Copy, Debug)]
pub struct ContextCounts {
    /// As many as a user's clients may have, by the operator's word.
    pub most: u32,
    /// As many as they have.
    pub of_user: u32,
    /// As many as all have on the underlay.
    pub of_all: u32,
    /// Of those, how many are beyond the common ones.
    pub beyond_common: u32,
    /// Bytes of the device that has the least.
    pub least_memory: u64,
}

/// Why a user's clients get no further context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoMoreContexts {
    /// They have as many as were asked for.
    #[error("there are as many as --contexts asks for")]
    Asked,
    /// NVIDIA's MPS has no more to spare.
    #[error(
        "NVIDIA's MPS has {UNDERLAY_CONTEXTS} contexts, and {LEFT_TO_USERS} are left to users who have none yet"
    )]
    Underlay,
    /// They would take too much memory.
    #[error("contexts are to take no more than one {PART_OF_MEMORY}th of a device's memory")]
    Memory,
}

/// Whether a user's clients may have one more context.
///
/// # Errors
/// Why not.
pub const fn one_more(there_are: ContextCounts) -> Result<(), NoMoreContexts> {
    if there_are.of_user >= there_are.most {
        return Err(NoMoreContexts::Asked);
    }
    if there_are.of_all >= MOST_CONTEXTS {
        return Err(NoMoreContexts::Underlay);
    }
    let bytes = (there_are.beyond_common as u64 + 1) * CONTEXT_BYTES;
    if bytes > there_are.least_memory / PART_OF_MEMORY {
        return Err(NoMoreContexts::Memory);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: Companion<'static> = Companion {
        process: (100, None),
        job: Some("a"),
        is_below_normal: false,
    };
    const FREE: Compute = Compute {
        is_limited: false,
        something_is_reserved: false,
    };
    const LIMITED: Compute = Compute {
        is_limited: true,
        ..FREE
    };
    const RESERVED: Compute = Compute {
        something_is_reserved: true,
        ..FREE
    };

    fn client(pid: i32, job: &'static str) -> Companion<'static> {
        Companion {
            process: (pid, None),
            job: Some(job),
            ..JOB
        }
    }

    fn below(pid: i32, job: &'static str) -> Companion<'static> {
        Companion {
            is_below_normal: true,
            ..client(pid, job)
        }
    }

    /// The common context and others, each ready, with these clients.
    fn contexts(clients: &[&[Companion<'static>]]) -> Vec<UserContext<'static>> {
        let each = clients.iter().enumerate();
        each.map(|(place, clients)| UserContext {
            is_common: place == 0,
            is_ready: true,
            clients: clients.to_vec(),
        })
        .collect()
    }

    #[test]
    fn clients_are_spread_and_the_common_context_is_the_last_choice() {
        let mut all = contexts(&[&[], &[], &[]]);
        let jobs = ["a", "b", "c", "d", "e", "f"];
        let mut places = Vec::new();
        for (pid, job) in (1..).zip(jobs) {
            let who = client(pid, job);
            let place = context_for(&who, FREE, &all).unwrap();
            all[place].clients.push(who);
            places.push(place);
        }
        assert_eq!(places, [1, 2, 0, 1, 2, 0]);
        // One that is being made is not waited for.
        let mut all = contexts(&[&[client(1, "a")], &[]]);
        all[1].is_ready = false;
        assert_eq!(context_for(&client(2, "b"), FREE, &all), Some(0));
        all[0].is_ready = false;
        assert_eq!(context_for(&client(2, "b"), FREE, &all), Some(0));
        assert_eq!(context_for(&client(2, "b"), FREE, &[]), None);
    }

    #[test]
    fn a_process_and_a_job_are_in_one_context() {
        let all = contexts(&[&[], &[client(1, "a")], &[]]);
        assert_eq!(context_for(&client(2, "a"), FREE, &all), Some(1), "its job");
        assert_eq!(
            context_for(&client(1, "b"), FREE, &all),
            Some(1),
            "it again"
        );
        let unseen = |identity| Companion {
            process: (0, identity),
            job: Some("c"),
            ..JOB
        };
        let mut all = contexts(&[&[], &[unseen(None)], &[unseen(Some(7))]]);
        all[1].clients[0].job = Some("d");
        assert_eq!(context_for(&unseen(Some(7)), FREE, &all), Some(2));
        all[2].clients.clear();
        assert_eq!(
            context_for(&unseen(None), FREE, &all),
            Some(2),
            "not the same"
        );
        // However limited: what it has together with its job counts for more.
        assert_eq!(context_for(&client(3, "d"), LIMITED, &all), Some(1));
    }

    #[test]
    fn who_may_have_something_with_any_other_comes_to_the_common_context() {
        let all = contexts(&[&[client(1, "a"), client(2, "b")], &[]]);
        let unknown = Companion { job: None, ..JOB };
        assert_eq!(context_for(&unknown, FREE, &all), Some(0));
        for compute in [LIMITED, RESERVED] {
            assert_eq!(context_for(&client(3, "c"), compute, &all), Some(0));
            assert_eq!(context_for(&client(3, "c"), compute, &[]), None);
        }
        // Two that are not known have nothing in common by that.
        let other = Companion {
            process: (9, None),
            ..unknown
        };
        let all = contexts(&[&[], &[unknown]]);
        assert_eq!(context_for(&other, FREE, &all), Some(0));
    }

    #[test]
    fn who_gives_way_is_with_those_that_it_gives_way_to() {
        let all = contexts(&[&[], &[client(1, "a")], &[]]);
        assert_eq!(context_for(&below(2, "b"), FREE, &all), Some(1));
        let all = contexts(&[&[], &[client(1, "a")], &[client(2, "b")]]);
        assert_eq!(
            context_for(&below(3, "c"), FREE, &all),
            Some(0),
            "or common"
        );
        let all = contexts(&[&[], &[below(1, "a")], &[]]);
        assert_eq!(
            context_for(&client(2, "b"), FREE, &all),
            Some(1),
            "and back"
        );
        let all = contexts(&[&[below(3, "c")], &[below(1, "a")], &[]]);
        assert_eq!(context_for(&client(2, "b"), FREE, &all), Some(0));
    }

    #[test]
    fn contexts_are_bounded_by_each_of_three() {
        let now = ContextCounts {
            most: 4,
            of_user: 3,
            of_all: 3,
            beyond_common: 2,
            least_memory: 24 << 30,
        };
        assert_eq!(one_more(now), Ok(()));
        for (there_are, why) in [
            (ContextCounts { of_user: 4, ..now }, NoMoreContexts::Asked),
            (
                ContextCounts { of_all: 40, ..now },
                NoMoreContexts::Underlay,
            ),
            (
                ContextCounts {
                    least_memory: 6 << 30,
                    ..now
                },
                NoMoreContexts::Memory,
            ),
        ] {
            assert_eq!(one_more(there_are), Err(why));
        }
    }

    #[test]
    fn who_waited_for_a_context_that_is_gone_waits_for_the_common_one() {
        let context = ServerKey::Context(1, 5);
        assert_eq!(context.one_of_users(), Some(1));
        assert_eq!(context.uid(), Some(1));
        assert_eq!(context.successor(), ServerKey::User(1));
        let group = ServerKey::Group(1, "a".into());
        assert_eq!(group.one_of_users(), None);
        assert_eq!(group.clone().successor(), group);
    }

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
    fn a_list_has_one_division_and_fences() {
        for (text, expected) in [
            ("fenced", Some((None, true))),
            ("client", Some((Some(Isolation::Client), false))),
            ("group,fenced", Some((Some(Isolation::Group), true))),
            ("group,client", None),
            ("fences", None),
            ("", None),
        ] {
            assert_eq!(isolations(text), expected, "{text}");
        }
        let names = [
            Isolation::User,
            Isolation::Group,
            Isolation::Client,
            Isolation::None,
        ];
        assert_eq!(names.map(Isolation::name), limits::DIVISIONS);
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
