//! Fences: a PTX text becomes one whose accesses to global memory are checked before they are made.
//!
//! An access that does not lie in the client's own windows, or that is misaligned, is not made: what it was is
//! written into the client's fault record, and the thread exits. It exits, and does not go on with zeroes, because
//! what a thread computes after a wrong address is wrong as well, and a GPU would have ended it too.
//!
//! ```text
//! @%p1 ld.global.u32 %r1, [%rd1+4];
//! { add.s64 A, %rd1, 4; …; setp.ge.u64 P, A-base, size; …; @!P bra over; call openmps$fence_check, (A, 4, …);
//!   over: @%p1 ld.global.u32 %r1, [%rd1+4]; }
//! ```
//!
//! Whatever has no fence is refused by name. What comes out is parsed again and verified by `verify`, which believes
//! nothing that the rewriter says. Called by whoever loads a client's images. Must not know where windows are: their
//! description is a variable of the text ([`VARIABLE`], [`Windows`]), which may be written at any time.
//!
//! Memory of the thread, the block and its cluster (`.local`, `.shared`, `.param`, `.const`) is not checked: its
//! addresses are offsets in a window of the block's own, as the PTX manual's chapter on state spaces has it. What is
//! promised, and what not, stands in docs/threat-model.md.

mod access;
mod statement;
#[cfg(test)]
mod tests;
mod verify;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::ops::Range;

use crate::Budget;
use crate::ast::{Base, Function, Linkage, Module, Space};
use crate::error::{Error, ErrorKind};
use crate::lexer::Token;
use crate::source::{Edits, SourceToken, end_of_braces, end_of_line, words};
use access::{Access, Memory, Size, access, address_taken};
use statement::Statement;

/// The name of the constant variable that describes the windows: five words of 64 bits, as in [`Windows`].
pub const VARIABLE: &str = "openmps$fence";
/// The variable that says what only this text's kernels may reach: an address and bytes for each piece. The first is
/// nothing, and whoever loads the text may write one there; those behind are the text's own variables, whose addresses
/// the driver writes.
pub const VARIABLES: &str = "openmps$fence_variables";
/// The function that looks at an address for which the check in place is not enough.
const CHECK: &str = "openmps$fence_check";
/// The function that ends a thread.
const STOP: &str = "openmps$fence_stop";
/// The function that compares a pointer with the functions that may be called by one.
const TARGET: &str = "openmps$fence_target";
/// Their text.
const FUNCTIONS: &str = include_str!("fence.ptx");
/// The most variables of a text, which are looked at one after another.
const MOST_VARIABLES: usize = 1 << 12;
/// Bytes of a page: other windows than the largest begin and end at pages.
pub const PAGE: u64 = 4096;
/// Bits of a [word of the table](Windows::word) that are the window's pages.
const PAGES_BITS: u32 = 28;
/// Their prototypes.
const PROTOTYPES: &str = ".weak .func openmps$fence_stop(.param .b32 kind, .param .b32 line, \
    .param .b64 address);\n.weak .func openmps$fence_check(.param .b64 address, .param .b64 size, \
    .param .b32 mask, .param .b32 flags, .param .b32 line);\n\
    .weak .func openmps$fence_target(.param .b64 pointer, .param .b32 line);\n";
/// The most bytes that one access takes whose size the instruction says.
const MOST_FIXED: u64 = 128;
/// The most functions that an indirect call is compared with.
const MOST_CALLED: usize = 256;
/// What begins our own names before [`named`]: no token of PTX.
const MARK: char = '§';
/// The most bytes that are made of one byte of a text.
const COST: u64 = 256;

/// What a fault record says in its first word, of 32 bits. The line of the text follows, of 32 bits, then the
/// address, or the index or pointer that was wrong, of 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An address outside of the client's windows.
    Address = 1,
    /// An address that is not a multiple of what is accessed.
    Misaligned = 2,
    /// `trap`.
    Trap = 3,
    /// A branch or a call that goes nowhere.
    Target = 4,
}

/// Where the windows of a client are described. Its words are those of [`VARIABLE`], in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Where its largest window begins, a multiple of 128.
    pub base: u64,
    /// Bytes of it, a multiple of 128.
    pub size: u64,
    /// Where all its windows stand, a [word](Windows::word) each, in memory that is none of the client's. Words may be
    /// written at any time, each at once: a kernel that runs sees one window or the other.
    pub table: u64,
    /// How many words they are.
    pub count: u64,
    /// Where its fault record is: 16 bytes that are none of the client's, zeroes as long as nothing was wrong.
    pub record: u64,
}

impl Windows {
    /// Nothing is inside. What is denied then is a fault of the device's, as the record is nowhere.
    pub const NONE: Self = Self {
        base: 0,
        size: 0,
        table: 0,
        count: 0,
        record: 0,
    };

    /// The word of the table that stands for a window, both in [pages](PAGE). 0 stands for none.
    /// `None` for one that begins or ends elsewhere, is larger than 1 TiB, or ends beyond 2^48.
    #[must_use]
    pub const fn word(base: u64, bytes: u64) -> Option<u64> {
        let (first, pages) = (base / PAGE, bytes / PAGE);
        let is_whole = base.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE);
        if !is_whole || pages >> PAGES_BITS != 0 || (first + pages) >> (64 - PAGES_BITS) != 0 {
            return None;
        }
        Some(first << PAGES_BITS | pages)
    }

    /// Where the window of a word begins.
    #[must_use]
    pub const fn base_of(word: u64) -> u64 {
        (word >> PAGES_BITS) * PAGE
    }

    /// The words of [`VARIABLE`], as they stand in memory.
    #[must_use]
    pub const fn words(&self) -> [u64; 5] {
        [self.base, self.size, self.table, self.count, self.record]
    }
}

/// A text with fences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fenced {
    /// The text.
    pub text: String,
    /// How many instructions are checked.
    pub checked: usize,
}

/// Puts fences into a text. `provided` says which functions that the text only declares it may call: they are
/// trusted to check their own accesses.
///
/// # Errors
/// A text that does not parse, and whatever cannot be fenced, by its name and line.
pub fn fence(
    source: &str,
    windows: &Windows,
    provided: &dyn Fn(&str) -> bool,
    budget: Budget<'_>,
) -> Result<Fenced, Error> {
    if !budget
        .memory
        .take((source.len() as u64).saturating_mul(COST))
    {
        return Err(Error {
            line: 1,
            kind: ErrorKind::NoMemory,
        });
    }
    let source = source.trim_end_matches('\0');
    let module = crate::parse_within(source, budget)?;
    let words = words(source);
    let reserved = |word: &&SourceToken<'_>| matches!(word.token, Token::Word(name) if name.contains(VARIABLE));
    if let Some(word) = words.iter().find(reserved) {
        return Err(refused(word.line, "a name that is kept for fences"));
    }
    let taken = address_taken(&module);
    if taken.len() > MOST_CALLED {
        return Err(refused(1, "so many functions whose addresses are taken"));
    }
    let own = variables(&module)?;
    let bodies = module
        .functions
        .iter()
        .filter(|function| function.body.is_some())
        .map(|function| (function.name, function))
        .collect();
    let mut rewriter = Rewriter {
        source,
        words,
        module: &module,
        bodies,
        provided,
        windows,
        edits: Edits::default(),
        begun: false,
        checked: 0,
    };
    rewriter.module()?;
    let Rewriter {
        edits,
        checked,
        begun,
        ..
    } = rewriter;
    let mut text = edits.apply(source);
    if begun {
        let newer = module.version >= (7, 7) && module.target >= 70;
        let cluster = module.version >= (7, 8) && module.target >= 90;
        let mut spaces = String::new();
        if newer {
            spaces.push_str("isspacep.param %is, %address;\n@%is bra allowed;\n");
        }
        let mut targets = String::new();
        for function in taken
            .iter()
            .filter_map(|&index| module.functions.get(index))
        {
            let _ = writeln!(
                targets,
                "mov.u64 %function, {};\nsetp.eq.u64 %is, %pointer, %function;\n@%is bra allowed;",
                function.name
            );
        }
        let functions = FUNCTIONS
            .replace("SPACES", &spaces)
            .replace("TARGETS", &targets)
            .replace("COUNT", &(1 + own.len()).to_string());
        let is_shared = "isspacep.shared %is, %address;\n";
        let wider = "isspacep.shared::cluster %is, %address;\n";
        text.push('\n');
        let words = own.iter().map(|(name, bytes)| format!(", {name}, {bytes}"));
        let _ = writeln!(
            text,
            ".weak .global .align 8 .u64 {VARIABLES}[{}] = {{0, 0{}}};",
            2 + 2 * own.len(),
            words.collect::<String>()
        );
        match cluster {
            true => text.push_str(&functions.replace(is_shared, wider)),
            false => text.push_str(&functions),
        }
    }
    verify::verify(&text, provided)?;
    Ok(Fenced { text, checked })
}

/// The variables of a text in global memory, which its kernels may reach by any address, and their bytes.
fn variables<'src>(module: &Module<'src>) -> Result<Vec<(&'src str, u64)>, Error> {
    let in_functions = module.functions.iter().flat_map(|it| &it.variables);
    if let Some(variable) = in_functions.clone().find(|it| it.space == Space::Global) {
        let what = "a variable in global memory inside of a function";
        return Err(refused(variable.line, what));
    }
    let all = module.variables.iter();
    let own: Vec<_> = all
        .filter(|it| it.space == Space::Global && it.linkage != Linkage::Extern && it.size > 0)
        .map(|variable| (variable.name, variable.size))
        .collect();
    match own.len() > MOST_VARIABLES {
        true => Err(refused(1, "so many variables")),
        false => Ok(own),
    }
}

fn refused(line: u32, what: &str) -> Error {
    Error {
        line,
        kind: ErrorKind::unsupported(&format!("in a fenced program: {what}")),
    }
}

struct Rewriter<'a, 'src> {
    source: &'src str,
    words: Vec<SourceToken<'src>>,
    module: &'a Module<'src>,
    /// Functions with bodies that have not been met yet.
    bodies: HashMap<&'src str, &'a Function<'src>>,
    provided: &'a dyn Fn(&str) -> bool,
    windows: &'a Windows,
    edits: Edits,
    /// Whether the prototypes stand in the text.
    begun: bool,
    checked: usize,
}

impl<'src> Rewriter<'_, 'src> {
    fn token(&self, at: usize) -> Token<'src> {
        self.words.get(at).map_or(Token::End, |word| word.token)
    }

    fn line(&self, at: usize) -> u32 {
        self.words.get(at).map_or(0, |word| word.line)
    }

    /// The source's text of some tokens.
    fn text(&self, range: Range<usize>) -> &'src str {
        let span = self.span(range);
        self.source.get(span).unwrap_or_default()
    }

    fn span(&self, range: Range<usize>) -> Range<usize> {
        let start = self.words.get(range.start).map_or(0, |word| word.start);
        let last = range.end.checked_sub(1).and_then(|at| self.words.get(at));
        start..last.map_or(start, |word| word.end.max(start))
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
                Token::Semicolon => at + 1,
                _ => self.declaration(at)?,
            };
        }
        if let Some((name, function)) = self.bodies.iter().next() {
            let what = format!("a function that was not found again: {name}");
            return Err(refused(function.line, &what));
        }
        Ok(())
    }

    /// A variable, a function, or a directive that ends with a semicolon. Gives what follows it.
    fn declaration(&mut self, start: usize) -> Result<usize, Error> {
        if !self.begun {
            self.begun = true;
            let Windows {
                base,
                size,
                table,
                count,
                record,
            } = self.windows;
            let variable = format!(
                ".weak .const .align 8 .b64 {VARIABLE}[5] = {{{base}, {size}, {table}, {count}, {record}}};\n\
                 {PROTOTYPES}"
            );
            let at = self.span(start..start + 1).start;
            self.edits.insert(at, variable);
        }
        let mut at = start;
        let mut function = None;
        loop {
            match self.token(at) {
                Token::Dot("func" | "entry") => function = Some(at),
                Token::BraceOpen => {
                    let end = end_of_braces(&self.words, at);
                    if let Some(function) = function {
                        self.body(function, at + 1..end.saturating_sub(1))?;
                        return Ok(end);
                    }
                    at = end;
                    continue;
                }
                Token::Semicolon | Token::End => return Ok((at + 1).min(self.words.len())),
                _ => {}
            }
            at += 1;
        }
    }

    /// The name of a function whose `.func` or `.entry` stands here.
    fn name(&self, mut at: usize) -> &'src str {
        loop {
            at += 1;
            match self.token(at) {
                Token::Dot(_) => {}
                Token::ParenOpen => {
                    while !matches!(self.token(at), Token::ParenClose | Token::End) {
                        at += 1;
                    }
                }
                Token::Word(name) => return name,
                _ => return "",
            }
        }
    }

    /// The tokens of a function's body, without its braces: each statement is one of the tree's instructions.
    fn body(&mut self, function: usize, range: Range<usize>) -> Result<(), Error> {
        let line = self.line(function);
        let lost = |line| refused(line, "a statement that was not found again");
        let Some(function) = self.bodies.remove(self.name(function)) else {
            return Err(lost(line));
        };
        let mut instructions = function.body.iter().flatten();
        let mut at = range.start;
        while at < range.end {
            at = match self.token(at) {
                // Braces of scopes; those of operands stand within statements.
                Token::BraceOpen | Token::BraceClose | Token::Semicolon => at + 1,
                Token::Dot("loc" | "file") => end_of_line(&self.words, at),
                Token::Word(_) if self.token(at + 1) == Token::Colon => at + 2,
                first => {
                    let rest = self.words.get(at..range.end).unwrap_or_default();
                    let end = rest
                        .iter()
                        .position(|word| word.token == Token::Semicolon)
                        .map_or(range.end, |length| at + length + 1);
                    if !matches!(first, Token::Dot(_)) {
                        let instruction = instructions.next().ok_or_else(|| lost(self.line(at)))?;
                        let statement = Statement::new(self.source, &self.words, at..end);
                        if statement.opcode != instruction.opcode
                            || statement.modifiers != instruction.modifiers
                            || statement.operands.len() != instruction.operands.len()
                        {
                            return Err(lost(self.line(at)));
                        }
                        let need = access(self.module, function, instruction, self.provided)
                            .map_err(|what| {
                                let name = self.text(statement.name.clone());
                                refused(self.line(at), &format!("{what}: {name}"))
                            })?;
                        self.statement(function, &statement, &need);
                    }
                    end
                }
            };
        }
        match instructions.next() {
            Some(instruction) => Err(lost(instruction.line)),
            None => Ok(()),
        }
    }

    /// Writes what stands around a statement.
    fn statement(&mut self, function: &Function<'src>, statement: &Statement<'src>, need: &Access) {
        if *need == Access::Free {
            return;
        }
        let number = self.checked;
        self.checked += 1;
        let line = self.line(statement.tokens.start);
        let span = self.span(statement.tokens.clone());
        let mut out = String::from("{ ");
        match need {
            Access::Free => {}
            Access::Memory(memory) => {
                self.check(&mut out, function, statement, memory, number, line);
            }
            Access::Branch(operand, count) => {
                let index = self.text(statement.operand(*operand));
                let _ = write!(
                    out,
                    ".reg .pred §P, §Q; .reg .b64 §A; cvt.u64.u32 §A, {index}; setp.ge.u64 §P, §A, {count}; "
                );
                guarded(&mut out, statement);
                stop(&mut out, Fault::Target, line, number);
            }
            Access::Call(operand) => {
                let pointer = self.text(statement.operand(*operand));
                let _ = write!(
                    out,
                    ".reg .pred §P, §Q; .reg .b64 §A; mov.b64 §A, {pointer}; setp.eq.u64 §P, §A, §A; "
                );
                guarded(&mut out, statement);
                let _ = write!(
                    out,
                    "@!§P bra §L{number}; {{ .param .b64 §U; .param .b32 §V; st.param.b64 [§U], §A; \
                     st.param.b32 [§V], {line}; call {TARGET}, (§U, §V); }} §L{number}: "
                );
            }
            Access::Trap => {
                let _ = write!(
                    out,
                    ".reg .pred §P, §Q; .reg .b64 §A; mov.u64 §A, 0; setp.eq.u64 §P, §A, §A; "
                );
                guarded(&mut out, statement);
                stop(&mut out, Fault::Trap, line, number);
                out.push('}');
                self.edits.replace(span, named(&out));
                return;
            }
        }
        self.edits.insert(span.start, named(&out));
        self.edits.insert(span.end, " }");
    }

    fn check(
        &self,
        out: &mut String,
        function: &Function<'src>,
        statement: &Statement<'src>,
        memory: &Memory,
        number: usize,
        line: u32,
    ) {
        out.push_str(".reg .pred §P, §Q; .reg .b64 §A, §B, §C; .reg .b32 §D; ");
        let offset = memory.address.offset;
        let inside = statement.operand(memory.operand);
        // Between the brackets, up to an offset.
        let mut end = inside.start + 1;
        while end + 1 < inside.end && !matches!(self.token(end), Token::Operator(_)) {
            end += 1;
        }
        let base = self.text(inside.start + 1..end);
        let _ = match memory.address.base {
            Base::Immediate => write!(out, "mov.u64 §A, {offset}; "),
            Base::Symbol(_) => write!(out, "mov.u64 §A, {base}; add.s64 §A, §A, {offset}; "),
            Base::Register(register) => {
                let ty = function.registers.get(register.0 as usize);
                match ty.map(|ty| ty.size()) {
                    Some(4) => write!(out, "cvt.u64.u32 §A, {base}; add.s64 §A, §A, {offset}; "),
                    _ => write!(out, "add.s64 §A, {base}, {offset}; "),
                }
            }
        };
        let mask = memory.align - 1;
        let size = match memory.size {
            Size::Fixed(bytes) => {
                let _ = write!(
                    out,
                    "ld.const.u64 §B, [{VARIABLE}]; sub.u64 §B, §A, §B; ld.const.u64 §C, [{VARIABLE}+8]; \
                     setp.ge.u64 §P, §B, §C; "
                );
                if mask > 0 {
                    let _ = write!(
                        out,
                        "cvt.u32.u64 §D, §A; and.b32 §D, §D, {mask}; setp.ne.or.u32 §P, §D, 0, §P; "
                    );
                }
                bytes.to_string()
            }
            Size::Operand(operand) => {
                let bytes = self.text(statement.operand(operand));
                let _ = write!(
                    out,
                    "mov.b32 §D, {bytes}; cvt.u64.u32 §B, §D; setp.eq.u64 §P, §A, §A; "
                );
                "§B".to_owned()
            }
        };
        guarded(out, statement);
        let flags = u32::from(memory.generic) | (u32::from(memory.reads) << 1);
        let _ = write!(
            out,
            "@!§P bra §L{number}; {{ .param .b64 §U; .param .b64 §V; .param .b32 §W; .param .b32 §X; \
             .param .b32 §Y; st.param.b64 [§U], §A; st.param.b64 [§V], {size}; st.param.b32 [§W], {mask}; \
             st.param.b32 [§X], {flags}; st.param.b32 [§Y], {line}; call {CHECK}, (§U, §V, §W, §X, §Y); }} \
             §L{number}: "
        );
    }
}

/// Takes the guard of a statement into P: what does not run needs no check.
fn guarded(out: &mut String, statement: &Statement<'_>) {
    let _ = match statement.guard {
        Some((guard, false)) => write!(out, "and.pred §P, §P, {guard}; "),
        Some((guard, true)) => write!(out, "not.pred §Q, {guard}; and.pred §P, §P, §Q; "),
        None => Ok(()),
    };
}

/// Ends the thread if P.
fn stop(out: &mut String, fault: Fault, line: u32, number: usize) {
    let kind = fault as u32;
    let _ = write!(
        out,
        "@!§P bra §L{number}; {{ .param .b32 §U; .param .b32 §V; .param .b64 §W; st.param.b32 [§U], {kind}; \
         st.param.b32 [§V], {line}; st.param.b64 [§W], §A; call {STOP}, (§U, §V, §W); }} §L{number}: "
    );
}

/// Gives our own names, `§A` and so on, a form that no client's can have.
fn named(text: &str) -> String {
    let mut parts = text.split(MARK);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // Registers and predicates; labels and parameters.
        let sigil = if part.starts_with(['A', 'B', 'C', 'D', 'P', 'Q']) {
            "%"
        } else {
            "$"
        };
        let _ = write!(out, "{sigil}{VARIABLE}_{part}");
    }
    out
}
