//! Where the daemon's socket is, and whether whoever listens there may be a daemon.
//!
//! Everything of ours that connects goes through [`fn@connect`]; it knows nothing of what is then said.
//!
//! A program hands its daemon its memory's content, and does what the daemon says. So whoever was first to make a
//! socket of that name is not yet a daemon: the kernel says who began to listen (SO_PEERCRED), and before a byte
//! is sent that must be
//!
//! * root, or the user that this program runs as; or
//! * the user that OPENMPS_DAEMON_USER names, which a program with more rights than its user does not
//!   believe ([`crate::environment::variable`]); or
//! * in a user namespace, somebody from outside, if nobody else can have chosen the socket. The kernel gives
//!   all who are from outside one number, the machine's root and any other user alike, and nobody inside can have it.
//!   So the way to the socket decides: each directory, link and the socket belong to root, to this
//!   program's user or to somebody from outside, and what lies in a directory that everybody may write to
//!   (`/tmp`) does not count, unless something is mounted there: only whoever set the namespace up can mount. A FUSE file system
//!   does not count either, as any user can mount one.
//!
//! A session's server is not asked: the daemon, which is believed by then, chose it, and hands it the
//! program's own connection. No program ever connects to a server.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Statx, StatxAttributes, StatxFlags};

use transport::socket::{Connection, SocketError, is_from_outside};

use crate::environment::variable;
use crate::log_text::one_line;

/// The variable that names the daemon's user.
const DAEMON_USER: &str = "OPENMPS_DAEMON_USER";

/// Links that are followed on one way.
const MAX_LINKS: u32 = 40;

/// Where a program finds the daemon: in the directory that CUDA_MPS_PIPE_DIRECTORY names, if its environment
/// is to be believed.
#[must_use]
pub fn control_socket() -> PathBuf {
    let directory = variable("CUDA_MPS_PIPE_DIRECTORY")
        .filter(|directory| !directory.is_empty())
        .unwrap_or_else(|| "/tmp/nvidia-mps".into());
    PathBuf::from(directory).join("control")
}

/// Why there is no connection to a daemon.
#[derive(Debug)]
pub enum ConnectError {
    /// The connection failed.
    Socket(SocketError),
    /// Somebody listens who may not be a daemon, and nothing was sent.
    Untrusted(Untrusted),
}

/// Whoever listens at a path may not be a daemon.
#[derive(Debug)]
pub struct Untrusted {
    path: PathBuf,
    why: String,
}

impl std::fmt::Display for Untrusted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "nothing was sent to {}: {}",
            self.path.display(),
            self.why
        )
    }
}

impl std::fmt::Display for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(error) => error.fmt(f),
            Self::Untrusted(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<SocketError> for ConnectError {
    fn from(error: SocketError) -> Self {
        Self::Socket(error)
    }
}

impl ConnectError {
    /// Whether it says that nobody listens at the path.
    #[must_use]
    pub fn is_nobody_listening(&self) -> bool {
        matches!(self, Self::Socket(error) if error.is_nobody_listening())
    }
}

/// Connects to the daemon at a path, and sends nothing. Waits no longer than `most` for one that is too busy to
/// take us; the same bound then holds for each [`Connection::send`].
///
/// # Errors
/// As [`Connection::connect_within`], and [`ConnectError::Untrusted`] when whoever listens may not be one.
pub fn connect(path: impl AsRef<Path>, most: Option<Duration>) -> Result<Connection, ConnectError> {
    let path = path.as_ref();
    let connection = Connection::connect_within(path, most)?;
    let uid = connection.peer_user()?;
    let own = rustix::process::geteuid().as_raw();
    let named = match variable(DAEMON_USER) {
        Some(text) if !text.is_empty() => Some(text.to_string_lossy().into_owned()),
        _ => None,
    };
    let named = match named {
        None => None,
        Some(text) => {
            let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
            let number = number_of(&text, &users);
            if number == Some(uid) {
                return Ok(connection);
            }
            Some((text, number))
        }
    };
    let why = if is_from_outside(uid) {
        match way_is_ours(path) {
            Ok(()) => return Ok(connection),
            Err(why) => format!(
                "it is of a user from outside this user namespace, who may be anybody, as {why}; mount the \
                 daemon's directory here, or trust all users from outside: {DAEMON_USER}={uid}"
            ),
        }
    } else if uid == 0 || uid == own {
        return Ok(connection);
    } else {
        format!(
            "it is user {uid}'s, who is neither root nor this program's user {own}; if the operator runs the \
             daemon as that user, set {DAEMON_USER}={uid}"
        )
    };
    let why = match named {
        None => why,
        Some((text, Some(_))) => format!("{why} in place of {}", one_line(&text)),
        Some((text, None)) => format!(
            "{why}; {DAEMON_USER}={} is no user's number, nor a name in /etc/passwd",
            one_line(&text)
        ),
    };
    Err(ConnectError::Untrusted(Untrusted {
        path: path.to_owned(),
        why,
    }))
}

/// A user's number, by that or by a name that is in the text of /etc/passwd.
fn number_of(user: &str, users: &str) -> Option<u32> {
    if let Ok(number) = user.parse() {
        return Some(number);
    }
    let mut lines = users.lines().map(|line| line.split(':'));
    let mut found = lines.find_map(|mut fields| (fields.next() == Some(user)).then_some(fields))?;
    found.nth(1)?.parse().ok()
}

/// Why somebody else could have chosen what is at a path.
#[derive(Debug)]
enum PathError {
    /// The kernel does not say what is there.
    Unreachable {
        path: PathBuf,
        source: std::io::Error,
    },
    /// Everybody may make files there, and nothing is mounted there, which only an outsider can do.
    WorldWritable {
        directory: PathBuf,
        next: PathBuf,
    },
    /// It belongs to a user of this user namespace.
    InsidersFile(PathBuf),
    TooManyLinks(PathBuf),
}

// By hand: the client library, which this is in, has no foreign crate but rustix.
impl std::fmt::Display for PathError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable { path, source } => write!(f, "{}: {source}", path.display()),
            Self::WorldWritable { directory, next } => write!(
                f,
                "everybody may write to {}, and nothing is mounted on {}",
                directory.display(),
                next.display()
            ),
            Self::InsidersFile(path) => write!(f, "{} belongs to a user of it", path.display()),
            Self::TooManyLinks(path) => write!(f, "{} has too many links", path.display()),
        }
    }
}

impl PathError {
    fn unreachable(path: &Path, source: impl Into<std::io::Error>) -> Self {
        Self::Unreachable {
            path: path.to_owned(),
            source: source.into(),
        }
    }
}

/// What the kernel says of one step of a way.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Whose it is.
    owner: u32,
    mode: u32,
    /// Whether something is mounted there that only whoever has the namespace could mount.
    is_mounted: bool,
}

impl Step {
    const KIND: u32 = 0o170_000;
    const LINK: u32 = 0o120_000;

    const fn is_link(self) -> bool {
        self.mode & Self::KIND == Self::LINK
    }

    fn at(path: &Path) -> Result<Self, PathError> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let found: Statx = rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS)
            .map_err(|error| PathError::unreachable(path, error))?;
        // Linux 5.8.
        let both = found.stx_attributes & found.stx_attributes_mask;
        let is_mounted = both.contains(StatxAttributes::MOUNT_ROOT) && !is_fuse(path);
        Ok(Self {
            owner: found.stx_uid,
            mode: found.stx_mode.into(),
            is_mounted,
        })
    }
}

/// Whether a path is in a file system that a program of some user's serves.
fn is_fuse(path: &Path) -> bool {
    const FUSE: u64 = 0x6573_5546;
    rustix::fs::statfs(path).is_ok_and(|facts| u64::try_from(facts.f_type) == Ok(FUSE))
}

/// Whether nobody but root, this user, and those outside who set this user namespace up can have chosen what
/// is at a path.
///
/// # Errors
/// Why not.
fn way_is_ours(path: &Path) -> Result<(), PathError> {
    let own = rustix::process::geteuid().as_raw();
    let may_own = |owner| owner == 0 || owner == own || is_from_outside(owner);
    way(path, may_own, Step::at)
}

fn way(
    path: &Path,
    may_own: impl Fn(u32) -> bool,
    step_at: impl Fn(&Path) -> Result<Step, PathError>,
) -> Result<(), PathError> {
    let whole = std::path::absolute(path).map_err(|error| PathError::unreachable(path, error))?;
    let mut left: VecDeque<OsString> = whole.iter().map(OsString::from).collect();
    let mut at = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        let next = match Path::new(&name).components().next() {
            Some(Component::RootDir) => {
                at = PathBuf::from("/");
                continue;
            }
            Some(Component::ParentDir) => {
                at.pop();
                continue;
            }
            Some(Component::Normal(name)) => at.join(name),
            _ => continue,
        };
        let (directory, step) = (step_at(&at)?, step_at(&next)?);
        if directory.mode & 0o002 != 0 && !step.is_mounted {
            return Err(PathError::WorldWritable {
                directory: at,
                next,
            });
        }
        if !may_own(step.owner) || !may_own(directory.owner) {
            return Err(PathError::InsidersFile(next));
        }
        if step.is_link() {
            links += 1;
            if links > MAX_LINKS {
                return Err(PathError::TooManyLinks(path.to_owned()));
            }
            let target =
                std::fs::read_link(&next).map_err(|error| PathError::unreachable(&next, error))?;
            for part in target.iter().rev() {
                left.push_front(part.to_owned());
            }
            continue;
        }
        at = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use transport::socket::Listener;

    const DIRECTORY: u32 = 0o040_755;
    const OPEN: u32 = 0o041_777;
    const OUTSIDE: u32 = 65_534;
    const INSIDE: u32 = 1234;

    /// What [`way`] says of a way whose steps are these.
    fn judged(path: &str, steps: &[(&str, u32, u32, bool)]) -> Result<(), PathError> {
        way(
            Path::new(path),
            |owner| owner == 0 || owner == OUTSIDE,
            |at| {
                let step = steps.iter().find(|step| Path::new(step.0) == at);
                let &(_, owner, mode, is_mounted) =
                    step.ok_or_else(|| PathError::InsidersFile(at.to_owned()))?;
                Ok(Step {
                    owner,
                    mode,
                    is_mounted,
                })
            },
        )
    }

    #[test]
    fn a_way_counts_if_nobody_else_could_have_laid_it() {
        let root = ("/", OUTSIDE, DIRECTORY, true);
        let run = ("/run", OUTSIDE, DIRECTORY, false);
        let tmp = ("/tmp", OUTSIDE, OPEN, false);
        let there = |owner, mode| ("/run/mps", owner, mode, false);
        let socket = ("/run/mps/control", OUTSIDE, 0o140_666, false);
        let path = "/run/mps/control";
        judged(path, &[root, run, there(OUTSIDE, DIRECTORY), socket]).unwrap();
        judged(path, &[root, run, there(0, DIRECTORY), socket]).unwrap();
        // Somebody inside could have made a link there, or moved another's socket there.
        judged(path, &[root, run, there(INSIDE, DIRECTORY), socket]).unwrap_err();
        judged(path, &[root, run, there(OUTSIDE, OPEN), socket]).unwrap_err();
        let theirs = ("/run/mps/control", INSIDE, 0o140_666, false);
        judged(path, &[root, run, there(0, DIRECTORY), theirs]).unwrap_err();
        // Anybody outside could have made it, unless it was mounted for us.
        for (is_mounted, counts) in [(false, false), (true, true)] {
            let steps = [
                root,
                run,
                tmp,
                ("/tmp/mps", OUTSIDE, DIRECTORY, is_mounted),
                ("/tmp/mps/control", OUTSIDE, 0o140_666, false),
            ];
            let judged = judged("/run/../tmp/./mps/control", &steps);
            assert_eq!(judged.is_ok(), counts, "{judged:?}");
        }
    }

    #[test]
    fn links_are_followed_where_nobody_else_could_have_made_them() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().canonicalize().unwrap();
        std::fs::create_dir(place.join("real")).unwrap();
        std::fs::write(place.join("real/control"), "").unwrap();
        std::os::unix::fs::symlink("real", place.join("link")).unwrap();
        std::os::unix::fs::symlink("loop", place.join("loop")).unwrap();
        let said = |path: &str, linker: u32| {
            way(
                &place.join(path),
                |owner| owner != INSIDE,
                |at| {
                    let step = Step::at(at)?;
                    Ok(Step {
                        owner: if step.is_link() { linker } else { step.owner },
                        // The test's own directory lies in one that everybody may write to.
                        mode: step.mode & !0o002,
                        ..step
                    })
                },
            )
        };
        said("link/control", 0).unwrap();
        let told = said("link/control", INSIDE).unwrap_err().to_string();
        assert!(told.contains("link"), "{told}");
        assert!(matches!(
            said("loop/control", 0),
            Err(PathError::TooManyLinks(_))
        ));
        assert!(said("link/nothing", 0).is_err());
    }

    #[test]
    fn users_are_named_by_number_or_by_name() {
        let users = "root:x:0:0:root:/root:/bin/sh\nmps:x:977:977::/:/bin/false\nbroken\nodd:x:y\n";
        assert_eq!(number_of("977", users), Some(977));
        assert_eq!(number_of("mps", users), Some(977));
        assert_eq!(number_of("root", users), Some(0));
        for nobody in ["ps", "broken", "odd", "", "-1"] {
            assert_eq!(number_of(nobody, users), None, "{nobody}");
        }
    }

    #[test]
    fn ones_own_daemon_is_spoken_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let listener = Listener::bind(&path).unwrap();
        let connection = connect(&path, None).unwrap();
        connection.send(b"hello", &[]).unwrap();
        assert_eq!(listener.accept().unwrap().receive().unwrap().0, b"hello");
    }
}
