//! From tokens to the syntax tree, by recursive descent.
//!
//! Owns the grammar and the resolution of names. Recursion happens only in constant expressions and
//! nested initializers, both counted; blocks nest on a stack of their own. Each byte of the source is
//! looked at a bounded number of times, and what a few bytes can ask for many of (registers, padding
//! of initializers) is paid from budgets that grow with the source.
//!
//! Called by `image` for a text's first directives, by the engines through `ptx::parse_within`, and by fuzz
//! targets. Must not know what an instruction does, nor which a device has.

mod body;
mod declaration;
mod expression;
mod function;
mod initializer;
mod module;
mod operand;
mod scope;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::mem;

use crate::ast::{Function, Module, Relocation, Symbol, Variable};
use crate::budget::{Budget, Purse};
use crate::error::{Error, ErrorKind, shorten};
use crate::lexer::{Token, Tokens};

/// Registers and initializer bytes that even the shortest text may declare.
const BASE_BUDGET: u64 = 1 << 20;

/// Parses a PTX text.
///
/// NUL characters at its end are ignored, since images are C strings.
///
/// # Errors
/// The first thing that is not PTX, or not supported, with its line.
pub fn parse(source: &str) -> Result<Module<'_>, Error> {
    parse_within(source, Budget::default())
}

/// Parses a PTX text that may cost only so much.
///
/// # Errors
/// As [`parse`], and [`ErrorKind::Instructions`] or [`ErrorKind::NoMemory`] where the budget ends.
pub fn parse_within<'src>(source: &'src str, budget: Budget<'src>) -> Result<Module<'src>, Error> {
    Parser::new(source.trim_end_matches('\0'), budget).module()
}

/// Parses bytes that should be a PTX text.
///
/// # Errors
/// As [`parse`]; bytes that are not UTF-8 give [`ErrorKind::NotText`] with the line they stand on.
pub fn parse_bytes(source: &[u8]) -> Result<Module<'_>, Error> {
    let source = std::str::from_utf8(source).map_err(|error| {
        let newlines = source[..error.valid_up_to()]
            .iter()
            .filter(|&&b| b == b'\n')
            .count();
        Error {
            line: u32::try_from(newlines)
                .unwrap_or(u32::MAX)
                .saturating_add(1),
            kind: ErrorKind::NotText,
        }
    })?;
    parse(source)
}

/// Version, and target as written after `sm_`, of a PTX text whose rest is not looked at.
pub(crate) fn header(source: &str) -> Result<((u8, u8), &str), Error> {
    let mut parser = Parser::new(source.trim_end_matches('\0'), Budget::default());
    parser.version()?;
    let target = parser.target()?;
    Ok((parser.module.version, target))
}

/// What a name means at module scope.
#[derive(Clone, Copy, Debug)]
enum Global {
    Function(usize),
    Variable(usize),
}

/// An initializer's reference to a name that was not declared yet.
#[derive(Debug)]
struct PendingReference<'src> {
    /// The function whose variable it is; `None` for a module variable.
    function: Option<usize>,
    variable: usize,
    relocation: usize,
    name: &'src str,
    line: u32,
}

/// The token in hand and everything known of the module so far.
#[derive(Debug)]
struct Parser<'src> {
    tokens: Tokens<'src>,
    token: Token<'src>,
    /// The line of `token`.
    line: u32,
    /// The source text of `token`.
    text: &'src str,
    module: Module<'src>,
    globals: HashMap<&'src str, Global>,
    pending: Vec<PendingReference<'src>>,
    /// `.alias` directives: alias, aliasee, line.
    aliases: Vec<(usize, &'src str, u32)>,
    registers_left: u64,
    bytes_left: u64,
    purse: Purse<'src>,
}

/// What a name costs in the tables of its scope.
const NAME: u64 = 192;
/// What a variable or a parameter costs, with its name.
const VARIABLE: u64 = NAME + 2 * size_of::<Variable<'_>>() as u64;
/// What a function costs without all that it has.
const FUNCTION: u64 = 2 * NAME + 2 * size_of::<Function<'_>>() as u64;
/// What an address in an initializer costs.
const RELOCATION: u64 = 2 * (size_of::<Relocation>() + size_of::<PendingReference<'_>>()) as u64;

impl<'src> Parser<'src> {
    fn new(source: &'src str, budget: Budget<'src>) -> Self {
        let mut tokens = Tokens::new(source);
        let (token, line, text) = tokens.next();
        let length = source.len() as u64;
        Self {
            tokens,
            token,
            line,
            text,
            module: Module {
                version: (0, 0),
                target: 0,
                variables: Vec::new(),
                functions: Vec::new(),
            },
            globals: HashMap::new(),
            pending: Vec::new(),
            aliases: Vec::new(),
            // A register is named at least once, and an initial value takes at least a digit and a
            // comma for at most eight bytes: real texts stay below these.
            registers_left: BASE_BUDGET + length,
            bytes_left: BASE_BUDGET + 8 * length,
            purse: Purse::new(budget),
        }
    }

    /// Takes the token in hand and reads the next.
    fn advance(&mut self) -> Token<'src> {
        let (token, line, text) = self.tokens.next();
        self.line = line;
        self.text = text;
        mem::replace(&mut self.token, token)
    }

    /// Takes the token in hand if it is this one.
    fn eat(&mut self, token: Token<'_>) -> bool {
        let found = self.token == token;
        if found {
            self.advance();
        }
        found
    }

    fn expect(&mut self, token: Token<'_>, name: &str) -> Result<(), Error> {
        if self.eat(token) {
            Ok(())
        } else {
            Err(self.expected(name))
        }
    }

    fn word(&mut self, what: &str) -> Result<&'src str, Error> {
        match self.token {
            Token::Word(word) => {
                self.advance();
                Ok(word)
            }
            _ => Err(self.expected(what)),
        }
    }

    /// An integer literal that fits, with no sign.
    fn number(&mut self, what: &str) -> Result<u64, Error> {
        let Token::Integer(digits) = self.token else {
            return Err(self.expected(what));
        };
        let (value, _) = expression::integer(digits).map_err(|kind| self.error(kind))?;
        self.advance();
        Ok(value)
    }

    /// An integer literal of at most 32 bits.
    fn number32(&mut self, what: &str) -> Result<u32, Error> {
        let line = self.line;
        u32::try_from(self.number(what)?).map_err(|_| Error {
            line,
            kind: ErrorKind::Value(format!("{what} is out of range")),
        })
    }

    /// A refusal at the token in hand.
    fn error(&self, kind: ErrorKind) -> Error {
        Error {
            line: self.line,
            kind,
        }
    }

    /// A refusal that says what should have stood in place of the token in hand.
    fn expected(&self, what: &str) -> Error {
        let found = match self.token {
            Token::End => "end of file".to_owned(),
            _ => shorten(self.text),
        };
        self.error(ErrorKind::Syntax {
            expected: what.to_owned(),
            found,
        })
    }

    /// Pays for bytes that are about to be kept.
    fn pay(&mut self, bytes: u64) -> Result<(), Error> {
        self.purse.pay(bytes).map_err(|kind| self.error(kind))
    }

    fn take_registers(&mut self, count: u32) -> Result<(), Error> {
        match self.registers_left.checked_sub(u64::from(count)) {
            Some(left) => {
                self.registers_left = left;
                // A register is a byte, in a list that may be twice as long as it need be.
                self.pay(2 * u64::from(count))
            }
            None => Err(self.error(ErrorKind::TooLarge("registers"))),
        }
    }

    fn take_bytes(&mut self, count: u64) -> Result<(), Error> {
        match self.bytes_left.checked_sub(count) {
            Some(left) => {
                self.bytes_left = left;
                self.pay(count.saturating_mul(2))
            }
            None => Err(self.error(ErrorKind::TooLarge("initializer"))),
        }
    }

    /// A name's meaning at module scope.
    fn global(&self, name: &str) -> Option<Symbol> {
        self.globals.get(name).map(|global| match *global {
            Global::Function(index) => Symbol::Function(index),
            Global::Variable(index) => Symbol::Module(index),
        })
    }

    fn relocation(&mut self, pending: &PendingReference<'_>) -> Option<&mut Relocation> {
        let variables = match pending.function {
            Some(function) => &mut self.module.functions.get_mut(function)?.variables,
            None => &mut self.module.variables,
        };
        variables
            .get_mut(pending.variable)?
            .init
            .relocations
            .get_mut(pending.relocation)
    }
}
