//! A text as tokens with their places, and replacements in it.
//!
//! Used by `rewrite` and `fence`, which change some words of a text and leave all others as they are. Must not know
//! what a token means.

use std::ops::Range;

use crate::lexer::{Token, Tokens};

/// A token of the source and where it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceToken<'src> {
    pub(crate) token: Token<'src>,
    pub(crate) line: u32,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Replacements in the source, in order.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    pub(crate) list: Vec<(Range<usize>, String)>,
}

impl Edits {
    pub(crate) fn replace(&mut self, range: Range<usize>, text: impl Into<String>) {
        self.list.push((range, text.into()));
    }

    pub(crate) fn insert(&mut self, at: usize, text: impl Into<String>) {
        self.replace(at..at, text);
    }

    pub(crate) fn apply(self, source: &str) -> String {
        let mut out = String::with_capacity(source.len() + 1024);
        let mut at = 0;
        for (range, text) in self.list {
            out.push_str(source.get(at..range.start).unwrap_or_default());
            out.push_str(&text);
            at = range.end;
        }
        out.push_str(source.get(at..).unwrap_or_default());
        out
    }
}

/// The tokens of a text.
pub(crate) fn words(source: &str) -> Vec<SourceToken<'_>> {
    let mut tokens = Tokens::new(source);
    let mut words = Vec::new();
    loop {
        let (token, line, text) = tokens.next();
        if token == Token::End {
            return words;
        }
        let start = tokens.start();
        words.push(SourceToken {
            token,
            line,
            start,
            end: start + text.len(),
        });
    }
}

/// Past the tokens that begin on the line of this one.
pub(crate) fn end_of_line(words: &[SourceToken<'_>], at: usize) -> usize {
    let rest = words.get(at..).unwrap_or_default();
    let line = rest.first().map_or(0, |word| word.line);
    at + rest.iter().take_while(|word| word.line == line).count()
}

/// Past the closing brace of the next opening one.
pub(crate) fn end_of_braces(words: &[SourceToken<'_>], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while let Some(word) = words.get(at) {
        at += 1;
        match word.token {
            Token::BraceOpen => depth += 1,
            Token::BraceClose if depth <= 1 => break,
            Token::BraceClose => depth -= 1,
            _ => {}
        }
    }
    at
}
