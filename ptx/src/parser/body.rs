//! A function's body: blocks, declarations, labels and instructions.
//!
//! Called for each function with a body. Must not know what an instruction does: `ptx-vm` gives it a meaning.

use super::scope::{NamedItem, Scopes};
use super::{Global, NAME, Parser};
use crate::ast::{
    Function, Guard, Instruction, Linkage, Operand, Register, Space, Symbol, Targets, Type,
};
use crate::budget::heap;
use crate::error::{Error, ErrorKind};
use crate::lexer::Token;

/// A body being read.
#[derive(Debug)]
pub(super) struct BodyParser<'p, 'src> {
    pub(super) parser: &'p mut Parser<'src>,
    pub(super) function: Function<'src>,
    pub(super) scopes: Scopes<'src>,
    instructions: Vec<Instruction<'src>>,
    /// Of the instruction being read: kept, so that each instruction allocates exactly what it has.
    modifiers: Vec<&'src str>,
    operands: Vec<Operand<'src>>,
    /// The function's index in the module.
    index: usize,
}

impl<'p, 'src> BodyParser<'p, 'src> {
    /// Reads a body, from its brace on, and completes the function with it.
    pub(super) fn read(
        parser: &'p mut Parser<'src>,
        function: Function<'src>,
        scopes: Scopes<'src>,
        index: usize,
    ) -> Result<Function<'src>, Error> {
        let mut body = Self {
            parser,
            function,
            scopes,
            instructions: Vec::new(),
            modifiers: Vec::new(),
            operands: Vec::new(),
            index,
        };
        let outermost = body.scopes.depth();
        body.enter()?;
        while body.scopes.depth() > outermost {
            body.statement()?;
        }
        body.function.labels = body.scopes.finish()?;
        body.function.body = Some(body.instructions);
        Ok(body.function)
    }

    fn enter(&mut self) -> Result<(), Error> {
        self.scopes
            .enter()
            .map_err(|kind| self.parser.error(kind))?;
        self.parser.advance();
        Ok(())
    }

    fn statement(&mut self) -> Result<(), Error> {
        match self.parser.token {
            Token::BraceOpen => self.enter(),
            Token::BraceClose => {
                self.scopes.leave();
                self.parser.advance();
                Ok(())
            }
            Token::Semicolon => {
                self.parser.advance();
                Ok(())
            }
            Token::Dot(directive) => self.directive(directive),
            Token::At => {
                let guard = self.guard()?;
                let line = self.parser.line;
                let opcode = self.parser.word("an instruction")?;
                self.instruction(Some(guard), opcode, line)
            }
            Token::Word(word) => {
                let line = self.parser.line;
                self.parser.advance();
                if self.parser.eat(Token::Colon) {
                    self.label(word, line)
                } else {
                    self.instruction(None, word, line)
                }
            }
            _ => Err(self.parser.expected("an instruction")),
        }
    }

    fn directive(&mut self, directive: &str) -> Result<(), Error> {
        self.parser.pay(NAME)?;
        match directive {
            "reg" => self.registers(),
            "loc" => self.parser.location(),
            "pragma" => self.parser.pragma(),
            "file" => self.parser.file(),
            "extern" => {
                self.parser.advance();
                self.variables(Linkage::Extern)
            }
            "visible" | "weak" => {
                self.parser.advance();
                self.variables(Linkage::Internal)
            }
            _ => self.variables(Linkage::Internal),
        }
    }

    /// What stands behind `name:`: a list of targets, a prototype, or an instruction.
    fn label(&mut self, name: &'src str, line: u32) -> Result<(), Error> {
        self.parser.pay(NAME)?;
        let item = match self.parser.token {
            Token::Dot("branchtargets") => {
                let targets = self.target_list(|body, name, line| {
                    body.scopes
                        .label(name, line)
                        .map_err(|kind| Error { line, kind })
                })?;
                self.function.targets.push(Targets::Branch(targets));
                NamedItem::Targets(self.function.targets.len() - 1)
            }
            Token::Dot("calltargets") => {
                let targets =
                    self.target_list(|body, name, line| match body.parser.globals.get(name) {
                        Some(&Global::Function(index)) => Ok(index),
                        _ => Err(Error {
                            line,
                            kind: ErrorKind::unknown(name),
                        }),
                    })?;
                self.function.targets.push(Targets::Call(targets));
                NamedItem::Targets(self.function.targets.len() - 1)
            }
            Token::Dot("callprototype") => {
                let prototype = self.parser.prototype()?;
                self.function.prototypes.push(prototype);
                NamedItem::Prototype(self.function.prototypes.len() - 1)
            }
            _ => {
                let at = self.instructions.len();
                return self
                    .scopes
                    .define_label(name, at, line)
                    .map_err(|kind| Error { line, kind });
            }
        };
        self.scopes
            .declare(name, item)
            .map_err(|kind| Error { line, kind })
    }

    /// `.branchtargets a, b;` without its label.
    fn target_list<T>(
        &mut self,
        mut resolve: impl FnMut(&mut Self, &'src str, u32) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        self.parser.advance();
        let mut list = Vec::new();
        loop {
            let line = self.parser.line;
            let name = self.parser.word("a name")?;
            self.parser.pay(NAME)?;
            list.push(resolve(self, name, line)?);
            if !self.parser.eat(Token::Comma) {
                break;
            }
        }
        self.parser.expect(Token::Semicolon, "';'")?;
        Ok(list)
    }

    /// `.reg .b32 %r<10>, a, b;`
    fn registers(&mut self) -> Result<(), Error> {
        self.parser.advance();
        let lanes = match self.parser.token {
            Token::Dot("v2") => 2,
            Token::Dot("v4") => 4,
            _ => 1,
        };
        if lanes > 1 {
            self.parser.advance();
        }
        let kind = self.parser.register_type()?;
        loop {
            let line = self.parser.line;
            let name = self.parser.word("a register")?;
            self.parser.pay(NAME)?;
            let declared = if self.parser.eat(Token::Operator("<")) {
                if lanes > 1 {
                    let what = ErrorKind::unsupported("ranges of vector registers");
                    return Err(self.parser.error(what));
                }
                let count = self.parser.number32("a number of registers")?;
                let first = self.new_registers(kind, count)?;
                self.parser.expect(Token::Operator(">"), "'>'")?;
                self.scopes.declare_range(name, first.0, count)
            } else {
                let first = self.new_registers(kind, lanes)?;
                let item = if lanes > 1 {
                    NamedItem::Vector(first, lanes)
                } else {
                    NamedItem::Register(first)
                };
                self.scopes.declare(name, item)
            };
            declared.map_err(|kind| Error { line, kind })?;
            if !self.parser.eat(Token::Comma) {
                break;
            }
        }
        self.parser.expect(Token::Semicolon, "';'")
    }

    fn new_registers(&mut self, kind: Type, count: u32) -> Result<Register, Error> {
        self.parser
            .new_registers(&mut self.function.registers, kind, count)
    }

    /// Variables of a block.
    fn variables(&mut self, linkage: Linkage) -> Result<(), Error> {
        let space: Space = self.parser.space()?;
        let mut specifier = self.parser.specifier(space, linkage)?;
        loop {
            let mut variable = self.parser.declarator(&mut specifier)?;
            let line = variable.line;
            let index = self.function.variables.len();
            let item = NamedItem::Symbol(Symbol::Local(index));
            self.scopes
                .declare(variable.name, item)
                .map_err(|kind| Error { line, kind })?;
            if self.parser.eat(Token::Equals) {
                let scopes = &self.scopes;
                let local = |name: &str| match scopes.find(name) {
                    Some(NamedItem::Symbol(symbol)) => Some(symbol),
                    _ => None,
                };
                let function = Some(self.index);
                self.parser
                    .initializer(&mut variable, &specifier, function, index, &local)?;
            }
            self.parser.check_sized(&variable, &specifier)?;
            self.function.variables.push(variable);
            if !self.parser.eat(Token::Comma) {
                break;
            }
        }
        self.parser.expect(Token::Semicolon, "';'")
    }

    /// `@p` or `@!p`
    fn guard(&mut self) -> Result<Guard, Error> {
        self.parser.advance();
        let negated = self.parser.eat(Token::Operator("!"));
        Ok(Guard {
            register: self.predicate()?,
            negated,
        })
    }

    /// A predicate register.
    pub(super) fn predicate(&mut self) -> Result<Register, Error> {
        let line = self.parser.line;
        let name = self.parser.word("a predicate")?;
        match self.scopes.find(name) {
            Some(NamedItem::Register(register))
                if self.function.registers.get(register.0 as usize) == Some(&Type::Pred) =>
            {
                Ok(register)
            }
            Some(_) => {
                let kind = ErrorKind::Value(format!("'{name}' is not a predicate"));
                Err(Error { line, kind })
            }
            None => Err(Error {
                line,
                kind: ErrorKind::unknown(name),
            }),
        }
    }

    fn instruction(
        &mut self,
        guard: Option<Guard>,
        opcode: &'src str,
        line: u32,
    ) -> Result<(), Error> {
        while let Token::Dot(modifier) = self.parser.token {
            self.modifiers.push(modifier);
            self.parser.advance();
        }
        if self.parser.token != Token::Semicolon {
            loop {
                let operand = self.operand(opcode)?;
                self.operands.push(operand);
                if !self.parser.eat(Token::Comma) {
                    break;
                }
            }
        }
        self.parser.expect(Token::Semicolon, "';'")?;
        // Room in the list that is not used takes no memory: it is too large to be copied when it grows.
        let bytes = size_of::<Instruction<'_>>() as u64
            + heap::<&str>(self.modifiers.len())
            + heap::<Operand<'_>>(self.operands.len());
        let paid = self.parser.purse.pay_instruction(bytes);
        paid.map_err(|kind| Error { line, kind })?;
        let modifiers = self.modifiers.drain(..).collect();
        let operands = self.operands.drain(..).collect();
        self.instructions.push(Instruction {
            guard,
            opcode,
            modifiers,
            operands,
            line,
        });
        Ok(())
    }
}
