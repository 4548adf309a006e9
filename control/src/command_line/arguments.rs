//! The command line, with the spellings that NVIDIA's program takes.
//!
//! Called by `lib`'s `main` before anything else. Must not know a running daemon: text in, an action out.

use crate::compute_mode;
use crate::servers::contexts;
use crate::servers::placement::{Isolation, isolations};
use crate::servers::standbys::Standby;
use crate::underlay::Mode;
use protocol::limits::FENCED;

/// What the program is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Print the usage text.
    Help,
    /// Print the version.
    Version,
    /// Be the daemon.
    Daemon(Options),
    /// Send one command to the daemon.
    Command(String),
    /// Send the lines of standard input to the daemon.
    Lines,
    /// An option that does not exist, or is not built.
    Refused(ArgumentError),
}

/// Why the arguments mean nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// There is no such option.
    #[error("Unrecognized option {argument}{}", nearest.map_or_else(String::new, |option| format!("; did you mean {option}?")))]
    Unknown {
        /// As it was written.
        argument: String,
        /// One that is spelt much like it.
        nearest: Option<&'static str>,
    },
    /// An option takes one of a few names.
    #[error("{argument}: it is one of {names}")]
    NoSuchName {
        /// As it was written.
        argument: String,
        /// Those that there are.
        names: &'static str,
    },
    /// [`PAGE_PROCESS`] names no process.
    #[error("{0}: a process' number")]
    NoProcess(String),
    /// `--compute-mode` names none.
    #[error(transparent)]
    Mode(#[from] compute_mode::UnknownMode),
}

/// How to be the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Stay in the foreground, with log lines on standard output too.
    pub foreground: bool,
    /// `-M`: several users' clients are served at once.
    pub multiuser: bool,
    /// `-q`: a server is started at once, so that the devices are known.
    pub ready_devices: bool,
    /// `--isolation`: how far apart clients are kept.
    pub isolation: Option<Isolation>,
    /// `--isolation` with `fenced`: all clients' kernels are.
    pub fenced: bool,
    /// `--compute-mode`: what devices are set to while the daemon runs.
    pub compute_mode: Option<u32>,
    /// `--underlay`: what runs beneath servers.
    pub underlay: Option<Mode>,
    /// `--contexts`: how many a user's clients share.
    pub contexts: Option<u32>,
    /// `-S`: clients have contexts in static partitions only.
    pub static_partitions: bool,
    /// `--failover`: sessions of a server that ends by itself are taken over by another one.
    pub failover: bool,
    /// `--standby`: whether a server waits ready-made for that.
    pub standby: Option<Standby>,
    /// [`PAGE_PROCESS`]: the page that was started with it.
    pub page: Option<i32>,
}

impl Options {
    /// The arguments of a daemon in the background that is to be so.
    #[must_use]
    pub fn arguments(self) -> Vec<String> {
        // Each by its name: one that is left out here does not compile.
        let Self {
            foreground: _,
            multiuser,
            ready_devices,
            isolation,
            fenced,
            compute_mode,
            underlay,
            contexts,
            static_partitions,
            failover,
            standby,
            page,
        } = self;
        let named = |option: &str, name: &str| format!("--{option}={name}");
        let flags = [
            (multiuser, "-M"),
            (ready_devices, "-q"),
            (static_partitions, "-S"),
            (failover, "--failover"),
        ];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set);
        let values = [
            isolation.map(|it| named("isolation", it.name())),
            fenced.then(|| named("isolation", FENCED)),
            compute_mode.map(|it| named("compute-mode", &compute_mode::name(it))),
            underlay.map(|it| named("underlay", it.name())),
            contexts.map(|it| named("contexts", &it.to_string())),
            standby.map(|it| named("standby", it.name())),
            page.map(|pid| format!("{PAGE_PROCESS}{pid}")),
        ];
        let flags = flags.map(|(_, flag)| flag.to_owned());
        flags.chain(values.into_iter().flatten()).collect()
    }
}

/// How whoever starts a daemon with a page says which process that is. People do not.
pub const PAGE_PROCESS: &str = "--page-process=";

/// The long options, to find the one that was meant.
const OPTIONS: &[&str] = &[
    "--help",
    "--version",
    "--daemon",
    "--foreground",
    "--multiuser-server",
    "--ready-devices",
    "--isolation",
    "--static-partitioning",
    "--compute-mode",
    "--underlay",
    "--contexts",
    "--failover",
    "--standby",
];

/// How many letters have to be changed, put in or left out to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.chars().enumerate() {
        let mut above_left = std::mem::replace(&mut row[0], index + 1);
        for (column, theirs) in other.iter().enumerate() {
            let above = row[column + 1];
            row[column + 1] = (above_left + usize::from(letter != *theirs))
                .min(above + 1)
                .min(row[column] + 1);
            above_left = above;
        }
    }
    row[other.len()]
}

/// What an option of the form `--option=NAME` names, which is one of a few.
///
/// # Errors
/// Which there are.
fn one_of<T>(
    argument: &str,
    named: fn(&str) -> Option<T>,
    names: &'static str,
) -> Result<T, ArgumentError> {
    let (_, name) = argument.split_once('=').unwrap_or_default();
    named(name).ok_or_else(|| ArgumentError::NoSuchName {
        argument: argument.to_owned(),
        names,
    })
}

/// Reads the arguments that follow the program's name.
#[must_use]
pub fn parse(arguments: &[String]) -> Action {
    let mut options = Options::default();
    let mut daemon = false;
    for (index, argument) in arguments.iter().enumerate() {
        match argument.as_str() {
            "-h" | "--help" => return Action::Help,
            "-v" | "--version" => return Action::Version,
            "-d" | "--daemon" => daemon = true,
            "-f" | "--forground" | "--foreground" => {
                daemon = true;
                options.foreground = true;
            }
            "-M" | "--multiuser-server" | "-multiuser-server" => options.multiuser = true,
            "-q" | "--ready-devices" => options.ready_devices = true,
            _ if argument.starts_with("--isolation=") => {
                match one_of(argument, isolations, Isolation::NAMES) {
                    Ok((it, fenced)) => {
                        options.isolation = it.or(options.isolation);
                        options.fenced |= fenced;
                    }
                    Err(why) => return Action::Refused(why),
                }
            }
            _ if argument.starts_with("--underlay=") => {
                match one_of(argument, Mode::named, Mode::NAMES) {
                    Ok(it) => options.underlay = Some(it),
                    Err(why) => return Action::Refused(why),
                }
            }
            _ if argument.starts_with("--contexts=") => {
                match one_of(argument, contexts::named, contexts::NUMBERS) {
                    Ok(it) => options.contexts = Some(it),
                    Err(why) => return Action::Refused(why),
                }
            }
            _ if argument.starts_with("--standby=") => {
                match one_of(argument, Standby::named, Standby::NAMES) {
                    Ok(it) => options.standby = Some(it),
                    Err(why) => return Action::Refused(why),
                }
            }
            _ if argument.starts_with("--compute-mode=") => {
                let name = argument.trim_start_matches("--compute-mode=");
                match compute_mode::named(name) {
                    Ok(mode) => options.compute_mode = Some(mode),
                    Err(why) => return Action::Refused(why.into()),
                }
            }
            _ if argument.starts_with(PAGE_PROCESS) => {
                let number = argument.trim_start_matches(PAGE_PROCESS).parse();
                match number.ok().filter(|pid| *pid > 0) {
                    Some(pid) => options.page = Some(pid),
                    None => return Action::Refused(ArgumentError::NoProcess(argument.clone())),
                }
            }
            "-S" | "--static-partitioning" => {
                options.static_partitions = true;
            }
            "--failover" => options.failover = true,
            _ if argument.starts_with('-') => {
                let nearest = OPTIONS
                    .iter()
                    .map(|option| (distance(argument, option), option))
                    .min()
                    .filter(|(distance, _)| *distance <= 3);
                return Action::Refused(ArgumentError::Unknown {
                    argument: argument.clone(),
                    nearest: nearest.map(|(_, option)| *option),
                });
            }
            _ => return Action::Command(arguments[index..].join(" ")),
        }
    }
    if daemon {
        Action::Daemon(options)
    } else {
        Action::Lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(line: &str) -> Action {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words)
    }

    #[test]
    fn every_known_spelling_is_taken() {
        let daemon = |foreground, multiuser| {
            Action::Daemon(Options {
                foreground,
                multiuser,
                ..Options::default()
            })
        };
        assert_eq!(parse_words("-d"), daemon(false, false));
        assert_eq!(
            parse_words("--daemon -q --isolation=none"),
            Action::Daemon(Options {
                ready_devices: true,
                isolation: Some(Isolation::None),
                ..Options::default()
            })
        );
        for foreground in ["-f", "--forground", "--foreground"] {
            assert_eq!(parse_words(foreground), daemon(true, false));
        }
        for multiuser in ["-M", "--multiuser-server", "-multiuser-server"] {
            assert_eq!(parse_words(&format!("-f {multiuser}")), daemon(true, true));
            assert_eq!(parse_words(&format!("{multiuser} -d")), daemon(false, true));
        }
        assert_eq!(
            parse_words("-d --underlay=nvidia-mps"),
            Action::Daemon(Options {
                underlay: Some(Mode::NvidiaMps),
                ..Options::default()
            })
        );
        assert_eq!(
            parse_words("-d --underlay=auto --contexts=8"),
            Action::Daemon(Options {
                underlay: Some(Mode::Auto),
                contexts: Some(8),
                ..Options::default()
            })
        );
        for partitioning in ["-S", "--static-partitioning"] {
            assert_eq!(
                parse_words(&format!("-d {partitioning}")),
                Action::Daemon(Options {
                    static_partitions: true,
                    ..Options::default()
                })
            );
        }
        assert_eq!(parse_words("-h"), Action::Help);
        assert_eq!(parse_words("-v"), Action::Version);
        assert_eq!(parse_words(""), Action::Lines);
    }

    #[test]
    fn a_daemon_in_the_background_gets_all_options() {
        let all = Options {
            foreground: false,
            multiuser: true,
            ready_devices: true,
            isolation: Some(Isolation::Group),
            fenced: true,
            compute_mode: Some(compute_mode::EXCLUSIVE_PROCESS),
            underlay: Some(Mode::NvidiaMps),
            contexts: Some(8),
            static_partitions: true,
            failover: true,
            standby: Some(Standby::Always),
            page: Some(77),
        };
        for options in [all, Options::default()] {
            let mut arguments = vec!["-d".to_owned()];
            arguments.extend(options.arguments());
            assert_eq!(parse(&arguments), Action::Daemon(options));
        }
    }

    #[test]
    fn what_follows_the_options_is_one_command() {
        assert_eq!(
            parse_words("start_server -uid 1000"),
            Action::Command("start_server -uid 1000".into())
        );
        assert_eq!(
            parse_words("quit -t 5"),
            Action::Command("quit -t 5".into())
        );
    }

    #[test]
    fn unknown_options_are_named() {
        let refused = |line| match parse_words(line) {
            Action::Refused(why) => why.to_string(),
            other => panic!("{line} is {other:?}"),
        };
        assert_eq!(refused("--bogus"), "Unrecognized option --bogus");
        assert_eq!(
            refused("-d --multi-user-server"),
            "Unrecognized option --multi-user-server; did you mean --multiuser-server?"
        );
        for wrong in ["-d --contexts=0", "-d --contexts=41", "-d --contexts"] {
            assert!(matches!(parse_words(wrong), Action::Refused(_)), "{wrong}");
        }
        for wrong in [
            "-d --isolation=x",
            "-d --underlay=mps",
            "-d --underlay",
            "-d --standby=yes",
            "-d --standby",
        ] {
            assert!(matches!(parse_words(wrong), Action::Refused(_)), "{wrong}");
        }
    }
}
