//! From a line to a command: a pure function of the text, so that anything may be tried on it.
//!
//! Knows the table's grammar and nothing of the daemon. What an argument means is the command's. Called by the table of
//! commands. Must not know the daemon.

use super::row::Command;

/// A line that is a command.
#[derive(Clone, Debug)]
pub struct CommandLine<'a> {
    /// Its row.
    pub command: &'static Command,
    /// What follows its name.
    pub arguments: Arguments<'a>,
}

/// What follows a command's name, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments<'a> {
    /// Plain words, in order.
    pub words: Vec<&'a str>,
    /// Options without a value that were given.
    pub flags: Vec<&'static str>,
    /// Options with a value, and their values.
    pub values: Vec<(&'static str, &'a str)>,
    /// Whether `--json` was given.
    pub json: bool,
}

impl<'a> Arguments<'a> {
    /// The plain word at a place, from 0.
    #[must_use]
    pub fn word(&self, place: usize) -> Option<&'a str> {
        self.words.get(place).copied()
    }

    /// Whether an option was given.
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    /// The value of an option; of several the last.
    #[must_use]
    pub fn value(&self, option: &str) -> Option<&'a str> {
        let mut given = self.values.iter().rev();
        given
            .find(|(name, _)| *name == option)
            .map(|(_, value)| *value)
    }
}

/// Why a line is no command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineError<'a> {
    /// There is no such command. The text is the whole line, which may be empty.
    Unknown(&'a str),
    /// A word too many.
    Superfluous(&'static str, &'a str),
    /// An option that takes a value has none.
    NoValue(&'static str, &'static str),
}

impl std::fmt::Display for LineError<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown(line) => write!(f, "Unknown command \"{line}\""),
            Self::Superfluous(command, word) => write!(f, "{command} does not take \"{word}\""),
            Self::NoValue(command, option) => write!(f, "{command} {option} takes a value"),
        }
    }
}

impl std::error::Error for LineError<'_> {}

/// Reads a line. Names are case-sensitive; words are separated by white space; a word that is none of
/// the command's options is a plain word, whatever it begins with.
///
/// # Errors
/// When it is no command, or has more than the command takes.
pub fn parse<'a>(
    commands: &'static [Command],
    line: &'a str,
) -> Result<CommandLine<'a>, LineError<'a>> {
    let line = line.trim();
    let mut words = line.split_whitespace();
    let name = words.next().unwrap_or("");
    let command = commands
        .iter()
        .find(|command| command.name == name)
        .ok_or(LineError::Unknown(line))?;
    let mut arguments = Arguments::default();
    while let Some(word) = words.next() {
        if word == "--json" {
            arguments.json = true;
        } else if let Some(flag) = command.flags.iter().find(|flag| **flag == word) {
            arguments.flags.push(flag);
        } else if let Some(option) = command.values.iter().find(|option| **option == word) {
            // What is an option itself is no value: it was forgotten.
            let is_option = |word: &&str| {
                *word == "--json" || command.flags.contains(word) || command.values.contains(word)
            };
            let value = words
                .next()
                .filter(|word| !is_option(word))
                .ok_or(LineError::NoValue(command.name, option))?;
            arguments.values.push((option, value));
        } else if arguments.words.len() < command.words {
            arguments.words.push(word);
        } else {
            return Err(LineError::Superfluous(command.name, word));
        }
    }
    Ok(CommandLine { command, arguments })
}

#[cfg(test)]
mod tests {
    use super::super::{COMMANDS, parse};

    #[test]
    fn words_and_options_are_sorted() {
        let line = parse("  shutdown_server\t-f 12 --json ").unwrap();
        assert_eq!(line.command.name, "shutdown_server");
        assert_eq!(line.arguments.word(0), Some("12"));
        assert!(line.arguments.has("-f") && line.arguments.json);
        let line = parse("start_server -uid 1000").unwrap();
        assert_eq!(line.arguments.value("-uid"), Some("1000"));
        let line = parse("set_default_active_thread_percentage -5").unwrap();
        assert_eq!(
            line.arguments.word(0),
            Some("-5"),
            "for the command to refuse"
        );
    }

    #[test]
    fn what_is_no_command_says_why() {
        let refused = |line| parse(line).unwrap_err().to_string();
        assert_eq!(refused(""), "Unknown command \"\"");
        assert_eq!(refused(" x  y "), "Unknown command \"x  y\"");
        assert_eq!(
            refused("get_server_list 7"),
            "get_server_list does not take \"7\""
        );
        for line in ["ps -p", "ps -p --json", "ps -p -p 1"] {
            assert_eq!(refused(line), "ps -p takes a value");
        }
        assert_eq!(
            refused("group add g --memory --reserved"),
            "group --memory takes a value"
        );
    }

    #[test]
    fn every_command_reads_its_own_name_and_no_name_is_there_twice() {
        for command in COMMANDS {
            assert_eq!(parse(command.name).unwrap().command.name, command.name);
            let named = COMMANDS.iter().filter(|other| other.name == command.name);
            assert_eq!(named.count(), 1, "{}", command.name);
        }
    }
}
