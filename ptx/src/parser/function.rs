//! Functions: their headers, parameters and performance directives.
//!
//! Called by the parser for module-level functions, and by `body` for prototypes of indirect calls. Must not know
//! instructions: what stands between the braces is `body`'s.

use super::body::BodyParser;
use super::declaration::type_named;
use super::scope::{NamedItem, Scopes};
use super::{Parser, VARIABLE};
use crate::ast::{Function, Linkage, Parameter, Prototype, Register, Symbol, Type, Variable};
use crate::error::{Error, ErrorKind};
use crate::layout::{MAX_PARAMETERS, params_size};
use crate::lexer::Token;

impl<'src> Parser<'src> {
    /// What follows `.entry` or `.func`.
    pub(super) fn function(
        &mut self,
        entry: bool,
        linkage: Linkage,
        line: u32,
    ) -> Result<(), Error> {
        while self.token == Token::Dot("attribute") {
            self.attributes()?;
        }
        let mut function = Function {
            name: "",
            entry,
            linkage,
            returns: Vec::new(),
            params: Vec::new(),
            max_threads: None,
            required_threads: None,
            cluster: None,
            max_cluster: None,
            explicit_cluster: false,
            blocks_are_clusters: false,
            min_blocks: None,
            max_registers: None,
            noreturn: false,
            registers: Vec::new(),
            variables: Vec::new(),
            labels: Vec::new(),
            targets: Vec::new(),
            prototypes: Vec::new(),
            body: None,
            line,
        };
        let mut scopes = Scopes::new();
        if !entry && self.token == Token::ParenOpen {
            function.returns =
                self.parameters(&mut function.registers, &mut scopes, Symbol::Return)?;
        }
        function.name = self.word("a function name")?;
        if self.token == Token::ParenOpen {
            function.params =
                self.parameters(&mut function.registers, &mut scopes, Symbol::Param)?;
        }
        if entry && params_size(&function) > MAX_PARAMETERS {
            return Err(Error {
                line,
                kind: ErrorKind::TooLarge("parameters"),
            });
        }
        self.performance(&mut function)?;
        if self.eat(Token::Semicolon) {
            self.declare_function(function)?;
            return Ok(());
        }
        if self.token != Token::BraceOpen {
            return Err(self.expected("'{' or ';'"));
        }
        function.body = Some(Vec::new());
        // Declared before its body is read, so that it can call itself; the body follows.
        let index = self.declare_function(function.clone())?;
        self.module.functions[index] = BodyParser::read(self, function, scopes, index)?;
        Ok(())
    }

    /// `(.param .b32 a, .reg .u32 b)`
    fn parameters(
        &mut self,
        registers: &mut Vec<Type>,
        scopes: &mut Scopes<'src>,
        symbol: fn(usize) -> Symbol,
    ) -> Result<Vec<Parameter<'src>>, Error> {
        let mut parameters = Vec::new();
        self.advance();
        while self.token != Token::ParenClose {
            if self.eat(Token::Dot("reg")) {
                let kind = self.register_type()?;
                let name = self.word("a name")?;
                self.pay(VARIABLE)?;
                let register = self.new_registers(registers, kind, 1)?;
                scopes
                    .declare(name, NamedItem::Register(register))
                    .map_err(|kind| self.error(kind))?;
                parameters.push(Parameter::Register(register));
            } else {
                let variable = self.parameter()?;
                if variable.name != "_" {
                    let item = NamedItem::Symbol(symbol(parameters.len()));
                    scopes
                        .declare(variable.name, item)
                        .map_err(|kind| self.error(kind))?;
                }
                parameters.push(Parameter::Memory(variable));
            }
            if !self.eat(Token::Comma) {
                break;
            }
        }
        self.expect(Token::ParenClose, "')'")?;
        Ok(parameters)
    }

    /// `.param .align 8 .b8 name[16]`
    fn parameter(&mut self) -> Result<Variable<'src>, Error> {
        if self.token != Token::Dot("param") {
            return Err(self.expected("a parameter"));
        }
        let space = self.space()?;
        let mut specifier = self.specifier(space, Linkage::Internal)?;
        self.declarator(&mut specifier)
    }

    /// `.callprototype (.param .b32 _) _ (.param .b64 _, …)`, without its label.
    pub(super) fn prototype(&mut self) -> Result<Prototype<'src>, Error> {
        self.advance();
        let returns = if self.token == Token::ParenOpen {
            self.prototype_list()?
        } else {
            Vec::new()
        };
        if !self.eat(Token::Sink) {
            self.word("'_'")?;
        }
        let params = if self.token == Token::ParenOpen {
            self.prototype_list()?
        } else {
            Vec::new()
        };
        loop {
            match self.token {
                Token::Dot("noreturn") => {
                    self.advance();
                }
                Token::Dot("abi_preserve" | "abi_preserve_control") => {
                    self.advance();
                    self.number("a number")?;
                }
                _ => break,
            }
        }
        self.expect(Token::Semicolon, "';'")?;
        Ok(Prototype { returns, params })
    }

    fn prototype_list(&mut self) -> Result<Vec<Variable<'src>>, Error> {
        let mut parameters = Vec::new();
        self.advance();
        while self.token != Token::ParenClose {
            if self.token == Token::Dot("reg") {
                return Err(self.error(ErrorKind::unsupported("registers in a call prototype")));
            }
            parameters.push(self.parameter()?);
            if !self.eat(Token::Comma) {
                break;
            }
        }
        self.expect(Token::ParenClose, "')'")?;
        Ok(parameters)
    }

    /// `.maxntid 256, 1, 1 .minnctapersm 2 …`
    fn performance(&mut self, function: &mut Function<'src>) -> Result<(), Error> {
        while let Token::Dot(directive) = self.token {
            match directive {
                "maxntid" => {
                    let line = self.line;
                    let [x, y, z] = self.dimensions()?;
                    let threads = x.checked_mul(y).and_then(|xy| xy.checked_mul(z));
                    let message = || ErrorKind::Value(".maxntid is out of range".to_owned());
                    let threads = threads.ok_or_else(|| Error {
                        line,
                        kind: message(),
                    })?;
                    function.max_threads = Some(threads);
                }
                "reqntid" => function.required_threads = Some(self.dimensions()?),
                "reqnctapercluster" => function.cluster = Some(self.dimensions()?),
                "maxclusterrank" => {
                    self.advance();
                    function.max_cluster = Some(self.number32("a number")?);
                }
                "minnctapersm" | "maxnctapersm" => {
                    self.advance();
                    function.min_blocks = Some(self.number32("a number")?);
                }
                "maxnreg" => {
                    self.advance();
                    function.max_registers = Some(self.number32("a number")?);
                }
                "abi_preserve" | "abi_preserve_control" => {
                    self.advance();
                    self.number32("a number")?;
                }
                "explicitcluster" => {
                    self.advance();
                    function.explicit_cluster = true;
                }
                "blocksareclusters" => {
                    self.advance();
                    function.blocks_are_clusters = true;
                }
                "noreturn" => {
                    self.advance();
                    function.noreturn = true;
                }
                "attribute" => drop(self.attributes()?),
                "pragma" => self.pragma()?,
                _ => return Err(self.expected("a performance directive")),
            }
        }
        Ok(())
    }

    /// One to three numbers; those left out are 1.
    fn dimensions(&mut self) -> Result<[u32; 3], Error> {
        let mut dimensions = [1; 3];
        self.advance();
        for dimension in &mut dimensions {
            *dimension = self.number32("a number of threads")?;
            if !self.eat(Token::Comma) {
                break;
            }
        }
        Ok(dimensions)
    }

    /// The type in hand, of a register.
    pub(super) fn register_type(&mut self) -> Result<Type, Error> {
        let Token::Dot(word) = self.token else {
            return Err(self.expected("a type"));
        };
        let kind = type_named(word).ok_or_else(|| self.expected("a type"))?;
        self.advance();
        Ok(kind)
    }

    /// Adds registers; the first of them.
    pub(super) fn new_registers(
        &mut self,
        registers: &mut Vec<Type>,
        kind: Type,
        count: u32,
    ) -> Result<Register, Error> {
        self.take_registers(count)?;
        let first = registers.len();
        registers.resize(first + count as usize, kind);
        u32::try_from(registers.len())
            .map_err(|_| self.error(ErrorKind::TooLarge("registers")))
            .map(|end| Register(end - count))
    }
}
