//! Rewriting of a PTX text for a driver that would do some things where nobody sees them: `__managed__`
//! variables become memory of the caller's choice, and calls of functions that the driver brings become
//! calls of others.
//!
//! Called by `engine-nvidia/src/code`, and by `engine-soft` for references. Must not know what the replacements do,
//! nor where a variable's memory comes from.
//!
//! The text stays as it is but for the words that must change, so that nothing is lost that the tree does
//! not hold. A managed variable leaves behind a variable with its address (see [`Managed::pointer`]); each
//! instruction that names it gets a block of its own, in which a register holds the address:
//!
//! ```text
//! ld.global.u32 %r1, [counter+4];
//! { .reg .b64 %openmps0; ld.global.b64 %openmps0, [counter$openmps]; ld.global.u32 %r1, [%openmps0+4]; }
//! ```
//!
//! Texture and surface references, which a driver binds behind everybody's back, become variables in the same
//! way: each holds a texture or surface object ([`TEXTURE`], [`SURFACE`]).
//!
//! What the manual allows and no compiler writes is refused, with its line.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::ops::Range;

use crate::Budget;
use crate::ast::{Initializer, Linkage};
use crate::error::{Error, ErrorKind};
use crate::lexer::Token;
use crate::source::{Edits, SourceToken, end_of_braces, end_of_line, words};

/// A function that the driver brings, and what is called in its stead.
#[derive(Clone, Copy, Debug)]
pub struct Redirect<'a> {
    /// Its name.
    pub from: &'a str,
    /// What is called.
    pub to: &'a str,
    /// PTX that defines it, put where the module declares the function.
    pub definition: &'a str,
    /// Whether the declaration stays, because the definition needs it.
    pub keep: bool,
}

/// What is added to the name of a texture reference, and to that of a surface reference: then it names the
/// variable of 8 bytes to which an object must be written before anything runs.
pub const TEXTURE: &str = "$texture";
/// See [`TEXTURE`].
pub const SURFACE: &str = "$surface";

/// A managed variable of a module.
#[derive(Clone, Debug, PartialEq)]
pub struct Managed {
    /// Its name.
    pub name: String,
    /// The name of the variable of 8 bytes to which its address must be written before anything runs.
    pub pointer: String,
    /// Bytes.
    pub size: u64,
    /// Alignment in bytes, a power of two.
    pub align: u64,
    /// The first bytes; zeroes follow.
    pub init: Vec<u8>,
}

/// A text that was rewritten.
#[derive(Clone, Debug, PartialEq)]
pub struct Rewritten {
    /// The new text.
    pub text: String,
    /// The variables of this module whose memory the caller provides. Those of other modules that it names
    /// are theirs.
    pub managed: Vec<Managed>,
    /// Which of the redirects the module declares and was given.
    pub redirected: Vec<bool>,
}

/// Rewrites a text. `prelude` stands before the first definition of a redirect's, if there is one.
///
/// # Errors
/// A text that does not parse; a managed variable that is used or initialized in a way that cannot be
/// rewritten.
pub fn rewrite(
    source: &str,
    prelude: &str,
    redirects: &[Redirect<'_>],
    budget: Budget<'_>,
) -> Result<Rewritten, Error> {
    let words = words(source);
    let mut names = HashMap::new();
    let plain = without_references(source, &words, &mut names)?;
    let module = crate::parse_within(&plain, budget)?;
    let mut managed = Vec::new();
    for variable in module.variables.iter().filter(|variable| variable.managed) {
        let Initializer { bytes, relocations } = &variable.init;
        let linkage = match variable.linkage {
            Linkage::Extern => ".extern",
            Linkage::Weak | Linkage::Common => ".weak",
            Linkage::Internal | Linkage::Visible => ".visible",
        };
        if !relocations.is_empty() {
            let what = "a managed variable that begins with addresses";
            return Err(refused(variable.line, what, variable.name));
        }
        let pointer = format!("{}$openmps", variable.name);
        if variable.linkage != Linkage::Extern {
            managed.push(Managed {
                name: variable.name.to_owned(),
                pointer: pointer.clone(),
                size: variable.size,
                align: variable.align,
                init: bytes.clone(),
            });
        }
        names.insert(variable.name.to_owned(), Pointer { pointer, linkage });
    }
    let mut rewriter = Rewriter {
        words,
        names,
        prelude,
        redirects,
        redirected: vec![false; redirects.len()],
        defined: module
            .functions
            .iter()
            .filter(|function| function.body.is_some())
            .map(|function| function.name.to_owned())
            .collect(),
        edits: Edits::default(),
    };
    rewriter.module()?;
    let Rewriter {
        redirected, edits, ..
    } = rewriter;
    Ok(Rewritten {
        text: edits.apply(source),
        managed,
        redirected,
    })
}

/// The most bytes that are made of one byte of a text: its word, and the block around a statement as short as
/// can be.
const COST: u64 = 96;

/// Whether a text has texture or surface references; more may be thought to.
#[must_use]
pub fn has_references(source: &str) -> bool {
    source.contains(".texref") || source.contains(".surfref")
}

/// Rewrites the texture and surface references of a text, and nothing else.
///
/// # Errors
/// A text that does not parse; a reference that is used or initialized in a way that cannot be rewritten; and
/// [`ErrorKind::NoMemory`] where the budget ends.
pub fn references(source: &str, budget: Budget<'_>) -> Result<String, Error> {
    if !budget
        .memory
        .take((source.len() as u64).saturating_mul(COST))
    {
        let kind = ErrorKind::NoMemory;
        return Err(Error { line: 1, kind });
    }
    let words = words(source);
    let mut names = HashMap::new();
    let plain = without_references(source, &words, &mut names)?;
    crate::parse_within(&plain, budget)?;
    let mut rewriter = Rewriter {
        words,
        names,
        prelude: "",
        redirects: &[],
        redirected: Vec::new(),
        defined: HashSet::new(),
        edits: Edits::default(),
    };
    rewriter.module()?;
    Ok(rewriter.edits.apply(source))
}

/// The text with variables of 8 bytes in the place of its references, which are noted in `names`. Each byte
/// stays where it is.
fn without_references<'src>(
    source: &'src str,
    words: &[SourceToken<'src>],
    names: &mut HashMap<String, Pointer>,
) -> Result<Cow<'src, str>, Error> {
    let mut plain = Cow::Borrowed(source);
    let token = |at: Option<usize>| match at.and_then(|at| words.get(at)) {
        Some(word) => word.token,
        None => Token::End,
    };
    for (at, word) in words.iter().enumerate() {
        let suffix = match word.token {
            Token::Dot("texref") => TEXTURE,
            Token::Dot("surfref") => SURFACE,
            _ => continue,
        };
        let [before, space] = [at.checked_sub(2), at.checked_sub(1)].map(token);
        let [name, end] = [Some(at + 1), Some(at + 2)].map(token);
        let (Token::Dot("global"), Token::Word(name), Token::Semicolon) = (space, name, end) else {
            let what = "a texture or surface reference that is no plain variable of the module";
            return Err(refused(
                word.line,
                what,
                source.get(word.start..word.end).unwrap_or_default(),
            ));
        };
        let linkage = match before {
            Token::Dot("extern") => ".extern",
            Token::Dot("weak" | "common") => ".weak",
            _ => ".visible",
        };
        let pointer = Pointer {
            pointer: format!("{name}{suffix}"),
            linkage,
        };
        names.insert(name.to_owned(), pointer);
        let blank = format!("{:1$}", ".b64", word.end - word.start);
        plain.to_mut().replace_range(word.start..word.end, &blank);
    }
    Ok(plain)
}

fn refused(line: u32, what: &str, name: &str) -> Error {
    Error {
        line,
        kind: ErrorKind::unsupported(&format!("{what}: {name}")),
    }
}

/// What a managed variable or a reference leaves behind.
#[derive(Clone, Debug)]
struct Pointer {
    pointer: String,
    linkage: &'static str,
}

struct Rewriter<'src, 'a> {
    words: Vec<SourceToken<'src>>,
    /// What leaves a variable of another name behind.
    names: HashMap<String, Pointer>,
    prelude: &'a str,
    redirects: &'a [Redirect<'a>],
    redirected: Vec<bool>,
    /// Functions with bodies.
    defined: HashSet<String>,
    edits: Edits,
}

impl<'src> Rewriter<'src, '_> {
    fn token(&self, at: usize) -> Token<'src> {
        self.words.get(at).map_or(Token::End, |word| word.token)
    }

    /// What the managed variable or the reference that a token names leaves behind.
    fn managed_at(&self, at: usize) -> Option<&Pointer> {
        match self.token(at) {
            Token::Word(name) => self.names.get(name),
            _ => None,
        }
    }

    /// The function that is to be called in the stead of the one that a token names.
    fn redirect_at(&self, at: usize) -> Option<usize> {
        let Token::Word(name) = self.token(at) else {
            return None;
        };
        let index = self
            .redirects
            .iter()
            .position(|redirect| redirect.from == name)?;
        (!self.defined.contains(name)).then_some(index)
    }

    fn line(&self, at: usize) -> u32 {
        self.words.get(at).map_or(0, |word| word.line)
    }

    /// Where the source's text of some tokens lies.
    fn span(&self, range: &Range<usize>) -> Range<usize> {
        let start = self.words.get(range.start).map_or(0, |word| word.start);
        let last = range.end.checked_sub(1).and_then(|at| self.words.get(at));
        start..last.map_or(start, |word| word.end)
    }

    fn module(&mut self) -> Result<(), Error> {
        let mut at = 0;
        while at < self.words.len() {
            at = match self.token(at) {
                Token::Dot("version" | "address_size") => at + 2,
                Token::Dot("target") => {
                    let mut at = at + 2;
                    while self.token(at) == Token::Comma {
                        at += 2;
                    }
                    at
                }
                Token::Dot("file" | "loc") => end_of_line(&self.words, at),
                Token::Dot("section") => end_of_braces(&self.words, at),
                _ => self.declaration(at)?,
            };
        }
        Ok(())
    }

    /// A variable, a function, or a directive that ends with a semicolon. Gives what follows it.
    fn declaration(&mut self, start: usize) -> Result<usize, Error> {
        let mut at = start;
        let mut function = false;
        loop {
            match self.token(at) {
                Token::Dot("func" | "entry") => function = true,
                Token::BraceOpen if function => {
                    let end = end_of_braces(&self.words, at);
                    self.check_names(start..at)?;
                    self.body(at + 1, end.saturating_sub(1))?;
                    return Ok(end);
                }
                Token::BraceOpen => {
                    at = end_of_braces(&self.words, at);
                    continue;
                }
                Token::Semicolon | Token::End => {
                    let end = (at + 1).min(self.words.len());
                    if function {
                        self.prototype(start..end);
                    } else {
                        self.variable(start..end)?;
                    }
                    return Ok(end);
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Nothing declared here may have a managed variable's name.
    fn check_names(&self, range: Range<usize>) -> Result<(), Error> {
        for at in range {
            if let Some(Pointer { pointer, .. }) = self.managed_at(at) {
                let what = "another use of the name of a managed variable or a reference";
                return Err(refused(self.line(at), what, pointer));
            }
        }
        Ok(())
    }

    /// A function's declaration without a body.
    fn prototype(&mut self, range: Range<usize>) {
        let Some(index) = range.clone().find_map(|at| self.redirect_at(at)) else {
            return;
        };
        let span = self.span(&range);
        let Redirect {
            definition, keep, ..
        } = self.redirects[index];
        // What is declared twice is defined once.
        let prelude = match self.redirected.iter().any(|&is| is) {
            true => "",
            false => self.prelude,
        };
        let definition = match self.redirected[index] {
            true => String::new(),
            false => format!("{prelude}{definition}"),
        };
        if keep {
            self.edits.insert(span.end, format!("\n{definition}"));
        } else {
            self.edits.replace(span, definition);
        }
        self.redirected[index] = true;
    }

    fn variable(&mut self, range: Range<usize>) -> Result<(), Error> {
        let is_left_behind = range.clone().any(|at| match self.token(at) {
            Token::Dot("texref" | "surfref") => true,
            Token::Dot("managed") => {
                at.checked_sub(2).map(|at| self.token(at)) == Some(Token::Dot("attribute"))
            }
            _ => false,
        });
        let mut named = range.clone().filter_map(|at| self.managed_at(at));
        let (first, second) = (named.next(), named.next());
        if !is_left_behind || first.is_none() {
            return self.check_names(range);
        }
        let (Some(Pointer { pointer, linkage }), None) = (first, second) else {
            return Err(refused(
                self.line(range.start),
                "several managed variables in one declaration",
                "",
            ));
        };
        let declaration = format!("{linkage} .global .align 8 .b64 {pointer};");
        let span = self.span(&range);
        self.edits.replace(span, declaration);
        Ok(())
    }

    /// The tokens of a function's body, without its braces.
    fn body(&mut self, start: usize, end: usize) -> Result<(), Error> {
        let mut at = start;
        while at < end {
            at = match self.token(at) {
                // Braces of scopes; those of operands stand within statements.
                Token::BraceOpen | Token::BraceClose | Token::Semicolon => at + 1,
                Token::Dot("loc" | "file") => end_of_line(&self.words, at),
                Token::Word(_) if self.token(at + 1) == Token::Colon => {
                    self.check_names(at..at + 1)?;
                    at + 2
                }
                _ => {
                    let rest = self.words.get(at..end).unwrap_or_default();
                    let length = rest
                        .iter()
                        .position(|word| word.token == Token::Semicolon)
                        .map_or(rest.len(), |length| length + 1);
                    self.statement(at..at + length)?;
                    at + length
                }
            };
        }
        Ok(())
    }

    fn statement(&mut self, range: Range<usize>) -> Result<(), Error> {
        if matches!(self.token(range.start), Token::Dot(_)) {
            return self.check_names(range);
        }
        if !range.clone().any(|at| self.managed_at(at).is_some()) {
            for at in range {
                if let Some(index) = self.redirect_at(at)
                    && self.redirected[index]
                {
                    let span = self.span(&(at..at + 1));
                    self.edits.replace(span, self.redirects[index].to);
                }
            }
            return Ok(());
        }
        // The registers of the block, and the statement with them.
        let mut before = String::from("{ ");
        let mut edits = Vec::new();
        let mut depth = 0_usize;
        let mut count = 0;
        let mut at = range.start;
        while at < range.end {
            match self.token(at) {
                Token::BracketOpen => depth += 1,
                Token::BracketClose => depth = depth.saturating_sub(1),
                _ => {}
            }
            let Some(Pointer { pointer, .. }) = self.managed_at(at) else {
                at += 1;
                continue;
            };
            let mut end = at + 1;
            let register = format!("%openmps{count}");
            count += 1;
            let _ = write!(
                before,
                ".reg .b64 {register}; ld.global.b64 {register}, [{pointer}]; "
            );
            // `[x+4]` stays so; `x+4` as a value is an addition.
            if depth == 0 && matches!(self.token(end), Token::Operator(_)) {
                let (offset, length) = self.offset(end)?;
                let _ = write!(before, "add.s64 {register}, {register}, {offset}; ");
                end += length;
            }
            edits.push((self.span(&(at..end)), register));
            at = end;
        }
        let span = self.span(&range);
        self.edits.insert(span.start, before);
        self.edits.list.append(&mut edits);
        self.edits.insert(span.end, " }");
        Ok(())
    }

    /// What is added to an address: `+4`, `-4` or `+-4`, and how many tokens that is.
    fn offset(&self, at: usize) -> Result<(String, usize), Error> {
        let (negative, number) = match [self.token(at), self.token(at + 1)] {
            [Token::Operator("+"), Token::Operator("-")] => (true, at + 2),
            [Token::Operator("+"), _] => (false, at + 1),
            [Token::Operator("-"), _] => (true, at + 1),
            _ => (false, at),
        };
        let after = self.token(number + 1);
        match (self.token(number), after) {
            (Token::Integer(digits), Token::Comma | Token::Semicolon | Token::ParenClose)
                if number > at =>
            {
                let sign = if negative { "-" } else { "" };
                Ok((format!("{sign}{digits}"), number + 1 - at))
            }
            _ => Err(refused(
                self.line(at),
                "arithmetic with the address of a managed variable or a reference",
                "",
            )),
        }
    }
}
