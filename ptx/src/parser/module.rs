//! Directives at module scope, and what is settled once the whole module is read.
//!
//! Owns the module's symbols while it is read. Called by the parser's loop. Must not know instructions.

use super::{FUNCTION, Global, NAME, Parser};
use crate::ast::{Function, Linkage, Module, Operand, Space, Symbol, Targets, Variable};
use crate::error::{Error, ErrorKind, shorten};
use crate::lexer::Token;

impl<'src> Parser<'src> {
    /// The whole text.
    pub(super) fn module(mut self) -> Result<Module<'src>, Error> {
        self.version()?;
        self.target()?;
        loop {
            match self.token {
                Token::End => break,
                // Stray semicolons end declarations in some generators' output.
                Token::Semicolon => {
                    self.advance();
                }
                Token::Dot(directive) => self.directive(directive)?,
                _ => return Err(self.expected("a directive")),
            }
        }
        self.resolve_pending()?;
        self.resolve_aliases()?;
        Ok(self.module)
    }

    pub(super) fn version(&mut self) -> Result<(), Error> {
        if !self.eat(Token::Dot("version")) {
            return Err(self.error(ErrorKind::Missing(".version")));
        }
        let Token::Decimal(text) = self.token else {
            return Err(self.expected("a version"));
        };
        let version = text
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        self.module.version = version.ok_or_else(|| self.expected("a version"))?;
        self.advance();
        Ok(())
    }

    /// `.target sm_90a, debug`; the architecture as written, without `sm_`.
    pub(super) fn target(&mut self) -> Result<&'src str, Error> {
        let mut target = None;
        if !self.eat(Token::Dot("target")) {
            return Err(self.error(ErrorKind::Missing(".target")));
        }
        loop {
            let Token::Word(name) = self.token else {
                return Err(self.expected("a target"));
            };
            let number = name
                .strip_prefix("sm_")
                .or_else(|| name.strip_prefix("compute_"));
            if let Some(number) = number {
                // The letter of `sm_90a` and `sm_100f` says which instructions may be used.
                let digits = number.trim_end_matches(['a', 'f']);
                self.module.target = digits.parse().map_err(|_| self.expected("a target"))?;
                target = Some(number);
            } else if !matches!(
                name,
                "texmode_unified" | "texmode_independent" | "debug" | "map_f64_to_f32"
            ) {
                return Err(self.expected("a target"));
            }
            self.advance();
            if !self.eat(Token::Comma) {
                break;
            }
        }
        target.ok_or_else(|| self.error(ErrorKind::Missing(".target sm_…")))
    }

    fn directive(&mut self, directive: &'src str) -> Result<(), Error> {
        let line = self.line;
        match directive {
            "address_size" => {
                self.advance();
                if self.number("an address size")? != 64 {
                    let kind = ErrorKind::Unsupported("addresses of 32 bits".to_owned());
                    return Err(Error { line, kind });
                }
                Ok(())
            }
            "file" => self.file(),
            "loc" => self.location(),
            "pragma" => self.pragma(),
            "section" => self.section(),
            "alias" => self.alias(),
            // A further `.target` restates the first in files made by joining.
            "target" => self.target().map(drop),
            _ => self.declaration(),
        }
    }

    /// `[linkage] (.entry | .func | state space) …`
    fn declaration(&mut self) -> Result<(), Error> {
        let line = self.line;
        let mut linkage = Linkage::Internal;
        loop {
            let Token::Dot(directive) = self.token else {
                return Err(self.expected(".entry, .func or a state space"));
            };
            match directive {
                "visible" => linkage = Linkage::Visible,
                "extern" => linkage = Linkage::Extern,
                "weak" => linkage = Linkage::Weak,
                "common" => linkage = Linkage::Common,
                "entry" => {
                    self.advance();
                    return self.function(true, linkage, line);
                }
                "func" => {
                    self.advance();
                    return self.function(false, linkage, line);
                }
                _ => {
                    let space = self.space()?;
                    return self.module_variables(space, linkage);
                }
            }
            self.advance();
        }
    }

    fn module_variables(&mut self, space: Space, linkage: Linkage) -> Result<(), Error> {
        if space == Space::Param {
            return Err(self.expected("a state space of variables"));
        }
        let mut specifier = self.specifier(space, linkage)?;
        loop {
            let index = self.module.variables.len();
            let variable = self.declarator(&mut specifier)?;
            let index = self.declare_variable(variable, index)?;
            if linkage == Linkage::Extern && self.token == Token::Equals {
                return Err(self.expected("';': what is defined elsewhere has no value here"));
            }
            if self.eat(Token::Equals) {
                let mut variable = self.module.variables[index].clone();
                self.initializer(&mut variable, &specifier, None, index, &|_| None)?;
                self.module.variables[index] = variable;
            }
            self.check_sized(&self.module.variables[index], &specifier)?;
            if !self.eat(Token::Comma) {
                break;
            }
        }
        self.expect(Token::Semicolon, "';'")
    }

    /// Gives a module variable its place; a definition takes the place of its `.extern` declaration.
    fn declare_variable(&mut self, variable: Variable<'src>, next: usize) -> Result<usize, Error> {
        match self.globals.get(variable.name) {
            None => {
                self.globals.insert(variable.name, Global::Variable(next));
                self.module.variables.push(variable);
                Ok(next)
            }
            Some(&Global::Variable(index)) => {
                let known = &mut self.module.variables[index];
                if known.linkage == Linkage::Extern {
                    *known = variable;
                    Ok(index)
                } else if variable.linkage == Linkage::Extern {
                    // Declared again after its definition: parse it, keep the definition.
                    Ok(index)
                } else {
                    Err(self.error(ErrorKind::duplicate(variable.name)))
                }
            }
            Some(Global::Function(_)) => Err(self.error(ErrorKind::duplicate(variable.name))),
        }
    }

    /// Gives a function its place; a definition takes the place of its declarations.
    pub(super) fn declare_function(&mut self, function: Function<'src>) -> Result<usize, Error> {
        self.pay(FUNCTION)?;
        let line = function.line;
        match self.globals.get(function.name) {
            None => {
                let index = self.module.functions.len();
                self.globals.insert(function.name, Global::Function(index));
                self.module.functions.push(function);
                Ok(index)
            }
            Some(&Global::Function(index)) => {
                let known = &mut self.module.functions[index];
                if known.entry != function.entry {
                    let kind = ErrorKind::duplicate(function.name);
                    return Err(Error { line, kind });
                }
                match (known.body.is_some(), function.body.is_some()) {
                    (true, true) => {
                        let kind = ErrorKind::duplicate(function.name);
                        return Err(Error { line, kind });
                    }
                    (true, false) => {}
                    (false, _) => *known = function,
                }
                Ok(index)
            }
            Some(Global::Variable(_)) => Err(Error {
                line,
                kind: ErrorKind::duplicate(function.name),
            }),
        }
    }

    /// `.file 1 "name"[, timestamp, size]`
    pub(super) fn file(&mut self) -> Result<(), Error> {
        self.advance();
        self.number("a file index")?;
        let Token::String(_) = self.token else {
            return Err(self.expected("a file name"));
        };
        self.advance();
        while self.eat(Token::Comma) {
            self.number("a number")?;
        }
        Ok(())
    }

    /// `.loc 1 14 0[, function_name label[+offset], inlined_at 1 20 3]`
    pub(super) fn location(&mut self) -> Result<(), Error> {
        self.advance();
        for what in ["a file index", "a line", "a column"] {
            self.number(what)?;
        }
        while self.eat(Token::Comma) {
            match self.word("'function_name' or 'inlined_at'")? {
                "function_name" => {
                    self.word("a label")?;
                    if self.eat(Token::Operator("+")) {
                        self.number("an offset")?;
                    }
                }
                "inlined_at" => {
                    for what in ["a file index", "a line", "a column"] {
                        self.number(what)?;
                    }
                }
                _ => return Err(self.expected("'function_name' or 'inlined_at'")),
            }
        }
        Ok(())
    }

    /// `.pragma "nounroll";`
    pub(super) fn pragma(&mut self) -> Result<(), Error> {
        self.advance();
        loop {
            let Token::String(_) = self.token else {
                return Err(self.expected("a string"));
            };
            self.advance();
            if !self.eat(Token::Comma) {
                break;
            }
        }
        self.expect(Token::Semicolon, "';'")
    }

    /// `.section .debug_info { … }`: debugger's data, of no use here.
    fn section(&mut self) -> Result<(), Error> {
        self.advance();
        let (Token::Dot(_) | Token::Word(_) | Token::String(_)) = self.token else {
            return Err(self.expected("a section name"));
        };
        self.advance();
        self.expect(Token::BraceOpen, "'{'")?;
        let mut depth = 1_u32;
        while depth > 0 {
            match self.token {
                Token::BraceOpen => depth = depth.saturating_add(1),
                Token::BraceClose => depth -= 1,
                Token::End => return Err(self.expected("'}'")),
                _ => {}
            }
            self.advance();
        }
        Ok(())
    }

    /// `.alias name, function;`
    fn alias(&mut self) -> Result<(), Error> {
        let line = self.line;
        self.advance();
        let alias = self.word("a function")?;
        let Some(&Global::Function(index)) = self.globals.get(alias) else {
            return Err(Error {
                line,
                kind: ErrorKind::unknown(alias),
            });
        };
        self.expect(Token::Comma, "','")?;
        let aliasee = self.word("a function")?;
        self.pay(NAME)?;
        self.aliases.push((index, aliasee, line));
        self.expect(Token::Semicolon, "';'")
    }

    fn resolve_pending(&mut self) -> Result<(), Error> {
        for pending in std::mem::take(&mut self.pending) {
            let Some(symbol) = self.global(pending.name) else {
                return Err(Error {
                    line: pending.line,
                    kind: ErrorKind::unknown(pending.name),
                });
            };
            if let Some(relocation) = self.relocation(&pending) {
                relocation.symbol = symbol;
            }
        }
        Ok(())
    }

    /// Makes each use of an alias a use of the function that it stands for.
    fn resolve_aliases(&mut self) -> Result<(), Error> {
        if self.aliases.is_empty() {
            return Ok(());
        }
        let mut means: Vec<usize> = (0..self.module.functions.len()).collect();
        for &(alias, name, line) in &self.aliases {
            let Some(&Global::Function(target)) = self.globals.get(name) else {
                return Err(Error {
                    line,
                    kind: ErrorKind::unknown(name),
                });
            };
            // The manual forbids an alias of an alias, so one step suffices and no loop can arise.
            if self.module.functions[target].body.is_none()
                || self.module.functions[alias].body.is_some()
            {
                let message = format!("'{}' cannot be aliased", shorten(name));
                return Err(Error {
                    line,
                    kind: ErrorKind::Value(message),
                });
            }
            means[alias] = target;
        }
        let rename = |symbol: &mut Symbol| {
            if let Symbol::Function(index) = symbol {
                *index = means[*index];
            }
        };
        let rename_variable = |variable: &mut Variable<'_>| {
            variable
                .init
                .relocations
                .iter_mut()
                .for_each(|r| rename(&mut r.symbol));
        };
        self.module.variables.iter_mut().for_each(rename_variable);
        for function in &mut self.module.functions {
            function.variables.iter_mut().for_each(rename_variable);
            for targets in &mut function.targets {
                if let Targets::Call(functions) = targets {
                    functions
                        .iter_mut()
                        .for_each(|index| *index = means[*index]);
                }
            }
            let operands = function
                .body
                .iter_mut()
                .flatten()
                .flat_map(|i| &mut i.operands);
            for operand in operands {
                if let Operand::Symbol(symbol, _) = operand {
                    rename(symbol);
                }
            }
        }
        Ok(())
    }
}
