//! Why a PTX text was refused, and on which line.
//!
//! Made by the lexer, the parser and the linker; whoever loads an image writes it into the program's log.
//!
//! Knows lines and words of the text, and no error code of CUDA's: `image` and the engines choose that.

use thiserror::Error;

/// A refusal of a PTX text.
///
/// It reads `line 12: unknown symbol 'x'`, which is what a JIT log shows to the programmer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {kind}")]
pub struct Error {
    /// The line in the source, from 1.
    pub line: u32,
    /// What is wrong there.
    pub kind: ErrorKind,
}

/// What is wrong with a PTX text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name is declared twice where it may be once.
    #[error("duplicate definition of '{0}'")]
    Duplicate(String),
    /// The text has no `.version` or no `.target` where one must stand.
    #[error("missing {0} directive")]
    Missing(&'static str),
    /// The text has more instructions than whoever parses it takes.
    #[error("the program has more than {0} instructions")]
    Instructions(u64),
    /// What the text declares takes more memory than whoever parses it has for it.
    #[error(
        "there is no memory left for this program: what it becomes when it is parsed is too large"
    )]
    NoMemory,
    /// The bytes are not UTF-8, so they are no PTX.
    #[error("the text is not UTF-8")]
    NotText,
    /// Something else was expected here.
    #[error("syntax error near '{found}': expected {expected}")]
    Syntax {
        /// What would have been right.
        expected: String,
        /// What stands there, shortened.
        found: String,
    },
    /// The text asks for more than this parser holds: nesting, registers, sizes.
    #[error("too large: {0}")]
    TooLarge(&'static str),
    /// A name that nothing declares.
    #[error("unknown symbol '{0}'")]
    UnknownSymbol(String),
    /// Valid PTX which OpenMPS does not take.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// A value that makes no sense where it stands.
    #[error("{0}")]
    Value(String),
}

impl Error {
    /// The text may be right, and asks for more than there is.
    #[must_use]
    pub const fn is_limit(&self) -> bool {
        matches!(self.kind, ErrorKind::Instructions(_) | ErrorKind::NoMemory)
    }
}

impl ErrorKind {
    pub(crate) fn duplicate(name: &str) -> Self {
        Self::Duplicate(shorten(name))
    }

    pub(crate) fn unknown(name: &str) -> Self {
        Self::UnknownSymbol(shorten(name))
    }

    pub(crate) fn unsupported(what: &str) -> Self {
        Self::Unsupported(shorten(what))
    }
}

/// The first characters of a word: the source is a client's, and messages travel into logs.
pub(crate) fn shorten(word: &str) -> String {
    const LONGEST: usize = 160;
    match word.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &word[..end]),
        None => word.to_owned(),
    }
}
