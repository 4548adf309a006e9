//! The command line, with the spellings that NVIDIA's program takes.

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
    Refused(String),
}

/// How to be the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Stay in the foreground, with log lines on standard output too.
    pub foreground: bool,
    /// `-M`: one server for the clients of all users was asked for.
    pub multiuser: bool,
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
            // Prepares answers to `device_query`; ours need no preparation.
            "-q" | "--ready-devices" => {}
            "-S" | "--static-partitioning" => {
                return Action::Refused(format!(
                    "{argument}: static partitioning is not built yet"
                ));
            }
            _ if argument.starts_with('-') => {
                return Action::Refused(format!("Unrecognized option {argument}"));
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
            })
        };
        assert_eq!(parse_words("-d"), daemon(false, false));
        assert_eq!(parse_words("--daemon -q"), daemon(false, false));
        for foreground in ["-f", "--forground", "--foreground"] {
            assert_eq!(parse_words(foreground), daemon(true, false));
        }
        for multiuser in ["-M", "--multiuser-server", "-multiuser-server"] {
            assert_eq!(parse_words(&format!("-f {multiuser}")), daemon(true, true));
            assert_eq!(parse_words(&format!("{multiuser} -d")), daemon(false, true));
        }
        assert_eq!(parse_words("-h"), Action::Help);
        assert_eq!(parse_words("-v"), Action::Version);
        assert_eq!(parse_words(""), Action::Lines);
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
        assert_eq!(
            parse_words("--bogus"),
            Action::Refused("Unrecognized option --bogus".into())
        );
        assert!(matches!(parse_words("-d -S"), Action::Refused(_)));
    }
}
