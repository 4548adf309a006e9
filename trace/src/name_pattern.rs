//! Names of files with places for what differs between processes, as nvprof had them.
//!
//! Called by the client's recorder and by `openmps trace`, for the names that users give. Must not open a file, nor
//! ask the system: facts come in.

use std::fmt;

/// What the places stand for.
pub trait Facts {
    /// `%p`.
    fn pid(&self) -> u32;
    /// `%h`.
    fn host(&self) -> String;
    /// `%q{NAME}`: a variable of the environment, if it is set.
    fn variable(&self, name: &str) -> Option<String>;
}

/// Why a pattern is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatternError {
    /// Nothing at all.
    Empty,
    /// A `%` at the end.
    EndsWithPercent,
    /// A letter that stands for nothing.
    Unknown(char),
    /// `%q` without `{NAME}` behind it.
    NoVariable,
    /// A variable that is not set.
    Unset(String),
    /// A NUL, which no name of a file has.
    Nul,
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the name of the output file is empty"),
            Self::EndsWithPercent => write!(f, "a single % at the end: a percent sign is %%"),
            Self::Unknown(letter) => write!(
                f,
                "%{} stands for nothing: there are %p (process id), %h (host), %q{{NAME}} (variable of the \
                 environment) and %% (a percent sign)",
                letter.escape_default()
            ),
            Self::NoVariable => write!(f, "%q needs a variable's name in braces: %q{{NAME}}"),
            Self::Unset(name) => {
                write!(f, "%q{{{}}}: that variable is not set", name.escape_debug())
            }
            Self::Nul => write!(f, "no name of a file has a NUL in it"),
        }
    }
}

impl std::error::Error for PatternError {}

/// The longest that one place is filled with, in characters.
const LONGEST: usize = 100;

/// Fills in a pattern. Folders are those that the pattern's own text names: what a place is filled with stays one
/// part of a name, so a slash or a control character in it becomes `_`, and so does a value of dots alone.
///
/// # Errors
/// What is wrong with the pattern.
pub fn expand(pattern: &str, facts: &impl Facts) -> Result<String, PatternError> {
    if pattern.is_empty() {
        return Err(PatternError::Empty);
    }
    if pattern.contains('\0') {
        return Err(PatternError::Nul);
    }
    let mut name = String::new();
    let mut rest = pattern.chars();
    while let Some(character) = rest.next() {
        if character != '%' {
            name.push(character);
            continue;
        }
        match rest.next() {
            None => return Err(PatternError::EndsWithPercent),
            Some('%') => name.push('%'),
            Some('p') => name.push_str(&facts.pid().to_string()),
            Some('h') => name.push_str(&one_part(&facts.host())),
            Some('q') => {
                let variable = rest
                    .as_str()
                    .strip_prefix('{')
                    .and_then(|rest| rest.split_once('}'))
                    .filter(|(variable, _)| !variable.is_empty() && !variable.contains('='));
                let (variable, behind) = variable.ok_or(PatternError::NoVariable)?;
                let value = facts.variable(variable);
                let value = value.ok_or_else(|| PatternError::Unset(variable.to_owned()))?;
                name.push_str(&one_part(&value));
                rest = behind.chars();
            }
            Some(letter) => return Err(PatternError::Unknown(letter)),
        }
    }
    Ok(name)
}

/// Whether processes get names of their own by it: with one host, by `%p` alone.
#[must_use]
pub fn tells_processes_apart(pattern: &str) -> bool {
    let mut rest = pattern;
    while let Some((_, behind)) = rest.split_once('%') {
        if behind.starts_with('p') {
            return true;
        }
        rest = behind.get(1..).unwrap_or_default();
    }
    false
}

fn one_part(value: &str) -> String {
    let part: String = value
        .chars()
        .take(LONGEST)
        .map(|character| match character {
            '/' => '_',
            _ if character.is_control() => '_',
            _ => character,
        })
        .collect();
    if !part.is_empty() && part.chars().all(|character| character == '.') {
        return "_".to_owned();
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Here;

    impl Facts for Here {
        fn pid(&self) -> u32 {
            17
        }

        fn host(&self) -> String {
            "node/1".into()
        }

        fn variable(&self, name: &str) -> Option<String> {
            match name {
                "RANK" => Some("3".into()),
                "UP" => Some("..".into()),
                "OUT" => Some("../../etc/\n".into()),
                "LONG" => Some("x".repeat(100_000)),
                _ => None,
            }
        }
    }

    #[test]
    fn places_are_filled() {
        for (pattern, name) in [
            ("output.%p", "output.17"),
            ("a/%h-%q{RANK}.%p.json", "a/node_1-3.17.json"),
            ("100%%", "100%"),
            ("%%p", "%p"),
            ("../%q{UP}/x", "../_/x"),
            ("%q{OUT}", ".._.._etc__"),
        ] {
            assert_eq!(expand(pattern, &Here).as_deref(), Ok(name), "{pattern}");
        }
        assert_eq!(expand("%q{LONG}", &Here).unwrap().len(), LONGEST);
    }

    #[test]
    fn bad_patterns_are_told() {
        for (pattern, error) in [
            ("", PatternError::Empty),
            ("a%", PatternError::EndsWithPercent),
            ("%d", PatternError::Unknown('d')),
            ("%ü", PatternError::Unknown('ü')),
            ("%q", PatternError::NoVariable),
            ("%q{", PatternError::NoVariable),
            ("%q{}", PatternError::NoVariable),
            ("%q{A=B}", PatternError::NoVariable),
            ("%q{NONE}", PatternError::Unset("NONE".into())),
            ("a\0b", PatternError::Nul),
        ] {
            assert_eq!(expand(pattern, &Here), Err(error.clone()), "{pattern}");
            assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn processes_are_told_apart_by_p() {
        assert!(tells_processes_apart("output.%p"));
        assert!(tells_processes_apart("%%%p"));
        for one in ["output", "%%p", "%h", "%", "%ü"] {
            assert!(!tells_processes_apart(one), "{one}");
        }
    }
}
