//! The fault matrix: each wrong that a client, or somebody else, does beside each work of a neighbour, and who lived
//! and who was told what.
//!
//! Called by `tests/tests/fault_matrix.rs`, which knows what the software GPU should say, and by `benches/faults`, which
//! prints what there is. A cell has a daemon of its own. Must not know what is right.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

mod scene;
mod soak;

pub use scene::Sharing;
use scene::{Client, Scene, end_by, signal};
pub use soak::{Holdings, Plan, Soak, soak};

/// How long neighbours work on once the wrong is done and told.
const AFTERWARDS: Duration = Duration::from_millis(300);

/// What is done in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The program does it itself, and ends by itself.
    Client(&'static str),
    /// `terminate_client` in the middle of it.
    Terminated(&'static str),
    /// It is limited to a time that it takes longer than.
    Limited(&'static str),
    /// SIGKILL in the middle of it.
    Killed(&'static str),
    /// A client that works is stopped, and goes on a while later.
    Stopped,
    /// The server gets a signal.
    Server(i32),
    /// As that, and another server may take over.
    Failover(i32),
    /// The daemon is killed.
    Daemon,
    /// The daemon goes on as the program now installed, and clients at servers of that.
    Upgrade,
    /// An illegal address, and nobody can write a log.
    DiskFull,
}

/// The rows: names, and what is done.
pub const WRONGS: &[(&str, Wrong)] = &[
    ("illegal address", Wrong::Client("illegal-address")),
    ("misaligned address", Wrong::Client("misaligned-address")),
    ("assert", Wrong::Client("assert")),
    ("trap", Wrong::Client("trap")),
    ("stack overflow", Wrong::Client("stack-overflow")),
    (
        "endless kernel, terminated",
        Wrong::Terminated("endless-kernel"),
    ),
    ("endless kernel, limited", Wrong::Limited("endless-kernel")),
    ("SIGKILL mid-kernel", Wrong::Killed("endless-kernel")),
    ("SIGKILL mid-copy", Wrong::Killed("endless-copies")),
    ("SIGSTOP", Wrong::Stopped),
    ("server SIGSEGV", Wrong::Server(libc::SIGSEGV)),
    ("server SIGKILL", Wrong::Server(libc::SIGKILL)),
    ("server SIGSEGV, --failover", Wrong::Failover(libc::SIGSEGV)),
    ("server SIGKILL, --failover", Wrong::Failover(libc::SIGKILL)),
    ("daemon SIGKILL", Wrong::Daemon),
    ("upgrade, --failover", Wrong::Upgrade),
    ("out of GPU memory", Wrong::Client("out-of-memory")),
    ("disk full", Wrong::DiskFull),
];

/// The columns: names, the program's work, and how many do it.
pub const NEIGHBOURS: &[(&str, &str, usize)] = &[
    ("idle", "idle", 1),
    ("kernels", "kernels", 1),
    ("8 that work a third of the time", "third", 8),
    ("graph", "graph", 1),
    ("copies", "copies", 1),
    ("32 neighbours", "kernels", 32),
];

/// What was seen in a cell.
#[derive(Debug)]
pub struct Cell {
    /// What the guilty program was told: `told CODE`, `exact`, `killed`, or what it said or did instead.
    pub guilty: String,
    /// The same of each neighbour; `wrong …` if a result was not exact.
    pub neighbours: Vec<String>,
    /// The longest round of any neighbour, which has the pause.
    pub longest: Duration,
    /// The same of a client that came afterwards.
    pub next: String,
    /// Whether a line of the log has the guilty program's process, and its error or how it ended.
    pub is_named: bool,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said: Vec<(&str, usize)> = Vec::new();
        for neighbour in &self.neighbours {
            match said.iter_mut().find(|(text, _)| text == neighbour) {
                Some((_, count)) => *count += 1,
                None => said.push((neighbour, 1)),
            }
        }
        let said: Vec<String> = said
            .iter()
            .map(|(text, count)| format!("{count} {text}"))
            .collect();
        write!(
            f,
            "{} | {} | {:.1} | {} | {}",
            self.guilty,
            said.join(", "),
            self.longest.as_secs_f64() * 1000.0,
            self.next,
            if self.is_named { "yes" } else { "no" }
        )
    }
}

/// Makes one cell. `program` is `faults`.
///
/// # Panics
/// If the daemon does not start, or the neighbours do not work before anything is done.
pub fn cell(
    sharing: &Sharing,
    program: &Path,
    wrong: Wrong,
    (_, work, count): (&str, &str, usize),
) -> Cell {
    let options: &[&str] = match wrong {
        Wrong::Failover(_) | Wrong::Upgrade => &["--failover"],
        _ => &[],
    };
    let scene = Scene::start(sharing, program, options, wrong == Wrong::DiskFull);
    let mut neighbours: Vec<Client> = (0..count)
        .map(|_| scene.client(&["neighbour", work]))
        .collect();
    for neighbour in &mut neighbours {
        assert_eq!(neighbour.next(), "running", "before anything was done");
    }
    let mut culprit = culprit(&scene, wrong);
    let (guilty, _) = take(&do_wrong(&scene, &mut culprit, wrong));
    std::thread::sleep(AFTERWARDS);
    let mut longest = Duration::ZERO;
    for neighbour in &mut neighbours {
        neighbour.tell();
    }
    let neighbours = neighbours.iter_mut().map(|neighbour| {
        let (said, took) = take(&neighbour.last());
        longest = longest.max(took);
        said
    });
    let neighbours = neighbours.collect();
    let pid = culprit.pid().to_string();
    let code = guilty.replace("told ", "error ");
    let reasons = [&*code, "fatal GPU error", "terminated", "killed"];
    let names =
        |line: &str| line.contains(&pid) && reasons.iter().any(|reason| line.contains(reason));
    let is_named = scene.log().lines().any(names);
    let (next, _) = take(&scene.client(&["neighbour", "kernels"]).last());
    Cell {
        guilty,
        neighbours,
        longest,
        next,
        is_named,
    }
}

/// Starts the program that does the wrong, or that it befalls.
fn culprit(scene: &Scene, wrong: Wrong) -> Client {
    match wrong {
        Wrong::Client(what) | Wrong::Terminated(what) | Wrong::Killed(what) => {
            scene.client(&["guilty", what])
        }
        Wrong::Limited(what) => scene.limited_client(&["guilty", what]),
        Wrong::DiskFull => scene.client(&["guilty", "illegal-address"]),
        Wrong::Stopped | Wrong::Server(_) | Wrong::Failover(_) | Wrong::Daemon | Wrong::Upgrade => {
            scene.client(&["neighbour", "kernels"])
        }
    }
}

/// Has the program, or who is meant instead, do the wrong; the program's last word.
fn do_wrong(scene: &Scene, culprit: &mut Client, wrong: Wrong) -> String {
    let started = culprit.next();
    if !["ready", "running"].contains(&&*started) {
        return started;
    }
    match wrong {
        Wrong::Client(_) | Wrong::DiskFull => {}
        Wrong::Limited(_) => {
            culprit.tell();
            let middle = culprit.next();
            if middle != "in the middle" {
                return middle;
            }
        }
        Wrong::Terminated(_) | Wrong::Killed(_) => {
            culprit.tell();
            let middle = culprit.next();
            if middle != "in the middle" {
                return middle;
            }
            // A moment, so that the GPU is in the middle of it as well.
            std::thread::sleep(Duration::from_millis(100));
            if let Wrong::Terminated(_) = wrong {
                let Some(server) = scene.server_of(culprit.pid()) else {
                    return "no server".into();
                };
                scene.control(&format!("terminate_client {server} {}", culprit.pid()));
            } else {
                culprit.signal(Signal::KILL);
            }
        }
        Wrong::Stopped => {
            culprit.signal(Signal::STOP);
            std::thread::sleep(AFTERWARDS);
            culprit.signal(Signal::CONT);
        }
        Wrong::Server(which) | Wrong::Failover(which) => {
            match (scene.server(), Signal::from_named_raw(which)) {
                (Some(server), Some(which)) => end_by(server, which),
                _ => return "no server".into(),
            }
        }
        Wrong::Daemon => signal(scene.daemon(), Signal::KILL),
        Wrong::Upgrade => {
            let went_over = |said: &String| {
                said.contains("go on at servers of the new program, 0 clients stay")
            };
            if scene.control("upgrade").filter(went_over).is_none() {
                return "no upgrade".into();
            }
        }
    }
    if matches!(wrong, Wrong::Server(_) | Wrong::Failover(_)) {
        std::thread::sleep(AFTERWARDS);
    }
    culprit.last()
}

/// What a last line tells, and the longest round: its last two words are numbers if it is one.
fn take(line: &str) -> (String, Duration) {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        [ref said @ .., rounds, micros] if !said.is_empty() && rounds.parse::<u64>().is_ok() => {
            let micros = micros.parse().unwrap_or_default();
            (said.join(" "), Duration::from_micros(micros))
        }
        _ => (line.to_owned(), Duration::ZERO),
    }
}
