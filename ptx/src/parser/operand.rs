//! Operands of instructions.
//!
//! Called for each instruction. Must not know what the instruction does with them.

use super::NAME;
use super::body::BodyParser;
use super::expression::Constant;
use super::scope::NamedItem;
use crate::ast::{Address, Base, Operand, Register};
use crate::budget::heap;
use crate::error::{Error, ErrorKind, shorten};
use crate::lexer::Token;

/// What a list of operands costs: room for four of them and what the allocator adds.
const LIST: u64 = 4 * ELEMENT + 16;
/// What each operand in a list costs, which may be twice as long as it need be.
const ELEMENT: u64 = 2 * size_of::<Operand<'_>>() as u64;

/// Special registers without a component, and whether digits follow (`%envreg3`, `%pm0`).
const SPECIALS: &[&str] = &[
    "aggr_smem_size",
    "clock",
    "clock64",
    "clock_hi",
    "cluster_ctarank",
    "cluster_nctarank",
    "current_graph_exec",
    "dynamic_smem_size",
    "globaltimer",
    "globaltimer_hi",
    "globaltimer_lo",
    "gridid",
    "is_explicit_cluster",
    "laneid",
    "lanemask_eq",
    "lanemask_ge",
    "lanemask_gt",
    "lanemask_le",
    "lanemask_lt",
    "nsmid",
    "nwarpid",
    "reserved_smem_offset_begin",
    "reserved_smem_offset_cap",
    "reserved_smem_offset_end",
    "smid",
    "total_smem_size",
    "warpid",
];

/// Special registers of three components (the fourth is 0).
const SPECIAL_VECTORS: &[&str] = &[
    "clusterid",
    "cluster_ctaid",
    "cluster_nctaid",
    "ctaid",
    "nclusterid",
    "nctaid",
    "ntid",
    "tid",
];

/// Special registers that are numbered.
const SPECIAL_ARRAYS: &[&str] = &["envreg", "pm", "reserved_smem_offset_"];

/// Instructions whose operands may be parts of registers.
const SELECTING: &[&str] = &[
    "vabsdiff", "vadd", "vmad", "vmax", "vmin", "vset", "vshl", "vshr", "vsub",
];

/// The part's lowest bit and its bits.
fn part(selector: &str) -> Option<(u8, u8)> {
    Some(match selector {
        "b0" => (0, 8),
        "b1" => (8, 8),
        "b2" => (16, 8),
        "b3" => (24, 8),
        "h0" => (0, 16),
        "h1" => (16, 16),
        _ => return None,
    })
}

fn is_special(name: &str) -> bool {
    let numbered = |array: &str| {
        let index = name
            .strip_prefix(array)
            .map(|rest| rest.trim_end_matches("_64"));
        index.is_some_and(|index| !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit()))
    };
    SPECIALS.contains(&name)
        || SPECIAL_VECTORS.contains(&name)
        || SPECIAL_ARRAYS.iter().any(|array| numbered(array))
}

impl<'src> BodyParser<'_, 'src> {
    pub(super) fn operand(&mut self, opcode: &str) -> Result<Operand<'src>, Error> {
        match self.parser.token {
            Token::BracketOpen => self.memory(),
            Token::BraceOpen => self.vector_and_predicate(),
            Token::ParenOpen if opcode == "call" => self.list(),
            // Always a label, whatever else has that name.
            Token::Word(_) if opcode == "bra" => self.branch_target(),
            Token::Word(word) if SELECTING.contains(&opcode) => self.selected(word),
            Token::Operator("-") if SELECTING.contains(&opcode) => self.negative(),
            _ => self.simple(),
        }
    }

    /// `r.b0` of a video instruction, or an operand without a selector.
    fn selected(&mut self, word: &'src str) -> Result<Operand<'src>, Error> {
        let Some(NamedItem::Register(register)) = self.scopes.find(word) else {
            return self.simple();
        };
        self.parser.advance();
        if let Token::Dot(selector) = self.parser.token
            && let Some((first, bits)) = part(selector)
        {
            self.parser.advance();
            return Ok(Operand::Part {
                register,
                first,
                bits,
            });
        }
        self.register(register)
    }

    /// A negative constant of a video instruction, and no negated register.
    fn negative(&mut self) -> Result<Operand<'src>, Error> {
        self.simple().map_err(|error| match self.parser.token {
            Token::Word(word) if matches!(self.scopes.find(word), Some(NamedItem::Register(_))) => {
                let what =
                    "negated operands of video instructions; docs/instructions.md says what is";
                self.parser.error(ErrorKind::Unsupported(what.into()))
            }
            _ => error,
        })
    }

    /// A register as a whole.
    fn register(&self, register: Register) -> Result<Operand<'src>, Error> {
        if let Token::Dot(selector) = self.parser.token {
            let what = format!(
                "operand selectors (.{}) other than .b0 to .h1 of video instructions on words; docs/instructions.md says what is",
                shorten(selector)
            );
            return Err(self.parser.error(ErrorKind::Unsupported(what)));
        }
        Ok(Operand::Register(register))
    }

    fn branch_target(&mut self) -> Result<Operand<'src>, Error> {
        self.parser.pay(NAME)?;
        let line = self.parser.line;
        let name = self.parser.word("a label")?;
        let label = self
            .scopes
            .label(name, line)
            .map_err(|kind| Error { line, kind })?;
        Ok(Operand::Label(label))
    }

    /// An operand without brackets around it.
    fn simple(&mut self) -> Result<Operand<'src>, Error> {
        let operand = match self.parser.token {
            Token::Word(word) if word != "WARP_SZ" => self.name(word)?,
            Token::Sink => {
                self.parser.advance();
                Operand::Sink
            }
            Token::Operator("!") => self.negated()?,
            _ => self.constant()?,
        };
        if matches!(operand, Operand::Register(_) | Operand::Sink)
            && self.parser.eat(Token::Operator("|"))
        {
            let second = match self.parser.token {
                Token::Word(word) => self.name(word)?,
                Token::Sink => {
                    self.parser.advance();
                    Operand::Sink
                }
                _ => return Err(self.parser.expected("a register")),
            };
            self.parser.pay(2 * heap::<Operand<'_>>(1))?;
            return Ok(Operand::Pair(Box::new(operand), Box::new(second)));
        }
        Ok(operand)
    }

    fn constant(&mut self) -> Result<Operand<'src>, Error> {
        Ok(match self.parser.constant()? {
            Constant::Integer(value, _) => Operand::Integer(value),
            Constant::Float32(bits) => Operand::Float32(bits),
            Constant::Float64(bits) => Operand::Float64(bits),
        })
    }

    /// `!p`, or the constant `!1`.
    fn negated(&mut self) -> Result<Operand<'src>, Error> {
        self.parser.advance();
        if let Token::Word(_) = self.parser.token {
            return Ok(Operand::Not(self.predicate()?));
        }
        let line = self.parser.line;
        match self.parser.constant()? {
            Constant::Integer(value, _) => Ok(Operand::Integer(i64::from(value == 0))),
            _ => Err(Error {
                line,
                kind: ErrorKind::Value("an integer is needed here".into()),
            }),
        }
    }

    /// A register, special register, variable, function, target list or prototype.
    fn name(&mut self, word: &'src str) -> Result<Operand<'src>, Error> {
        let line = self.parser.line;
        self.parser.advance();
        match self.scopes.find(word) {
            Some(NamedItem::Register(register)) => self.register(register),
            Some(NamedItem::Vector(first, count)) => self.vector_register(first, count),
            Some(NamedItem::Symbol(symbol)) => Ok(Operand::Symbol(symbol, self.parser.offset()?)),
            Some(NamedItem::Targets(index)) => Ok(Operand::Targets(index)),
            Some(NamedItem::Prototype(index)) => Ok(Operand::Prototype(index)),
            None => match (self.parser.global(word), word.strip_prefix('%')) {
                (Some(symbol), _) => Ok(Operand::Symbol(symbol, self.parser.offset()?)),
                (None, Some(special)) if is_special(special) => self.special(special),
                _ => Err(Error {
                    line,
                    kind: ErrorKind::unknown(word),
                }),
            },
        }
    }

    fn special(&mut self, name: &'src str) -> Result<Operand<'src>, Error> {
        let component = match self.parser.token {
            Token::Dot("x") => Some('x'),
            Token::Dot("y") => Some('y'),
            Token::Dot("z") => Some('z'),
            Token::Dot("w") => Some('w'),
            _ => None,
        };
        if component.is_some() {
            if !SPECIAL_VECTORS.contains(&name) {
                return Err(self.parser.expected("a register without components"));
            }
            self.parser.advance();
        }
        Ok(Operand::Special(name, component))
    }

    /// `v` or `v.x` of `.reg .v4 .f32 v`.
    fn vector_register(&mut self, first: Register, count: u32) -> Result<Operand<'src>, Error> {
        let Token::Dot(component) = self.parser.token else {
            self.parser.pay(heap::<Operand<'_>>(4))?;
            let element = |index| Operand::Register(Register(first.0 + index));
            return Ok(Operand::Vector((0..count).map(element).collect()));
        };
        let index = match component {
            "x" | "r" => 0,
            "y" | "g" => 1,
            "z" | "b" => 2,
            "w" | "a" => 3,
            _ => count,
        };
        if index >= count {
            return Err(self.parser.expected("a component"));
        }
        self.parser.advance();
        Ok(Operand::Register(Register(first.0 + index)))
    }

    /// `{a, b, _, 1}`, or `{a, b, c, d}|p` of a texture read that says whether the texels were there.
    fn vector_and_predicate(&mut self) -> Result<Operand<'src>, Error> {
        let vector = self.vector()?;
        if !self.parser.eat(Token::Operator("|")) {
            return Ok(vector);
        }
        let second = match self.parser.token {
            Token::Word(word) => self.name(word)?,
            Token::Sink => {
                self.parser.advance();
                Operand::Sink
            }
            _ => return Err(self.parser.expected("a predicate")),
        };
        self.parser.pay(2 * heap::<Operand<'_>>(1))?;
        Ok(Operand::Pair(Box::new(vector), Box::new(second)))
    }

    /// `{a, b, _, 1}`
    fn vector(&mut self) -> Result<Operand<'src>, Error> {
        let mut elements = Vec::new();
        self.parser.advance();
        self.parser.pay(LIST)?;
        loop {
            self.parser.pay(ELEMENT)?;
            elements.push(self.simple()?);
            if !self.parser.eat(Token::Comma) {
                break;
            }
        }
        self.parser.expect(Token::BraceClose, "'}'")?;
        Ok(Operand::Vector(elements))
    }

    /// `(a, b)` of a call, or `()`.
    fn list(&mut self) -> Result<Operand<'src>, Error> {
        self.parser.advance();
        let mut elements = Vec::new();
        self.parser.pay(LIST)?;
        while self.parser.token != Token::ParenClose {
            self.parser.pay(ELEMENT)?;
            elements.push(self.simple()?);
            if !self.parser.eat(Token::Comma) {
                break;
            }
        }
        self.parser.expect(Token::ParenClose, "')'")?;
        Ok(Operand::List(elements))
    }

    /// `[base + offset]`, `[base, {coordinates}]`, `[texture, sampler, {coordinates}]`.
    fn memory(&mut self) -> Result<Operand<'src>, Error> {
        self.parser.advance();
        let address = self.address()?;
        if self.parser.eat(Token::BracketClose) {
            return Ok(Operand::Address(address));
        }
        self.parser.pay(LIST)?;
        let mut parts = vec![Operand::Address(address)];
        while self.parser.eat(Token::Comma) {
            self.parser.pay(ELEMENT)?;
            let part = match self.parser.token {
                Token::BraceOpen => self.vector()?,
                _ => Operand::Address(self.address()?),
            };
            parts.push(part);
        }
        self.parser.expect(Token::BracketClose, "']'")?;
        Ok(Operand::Indexed(parts))
    }

    fn address(&mut self) -> Result<Address, Error> {
        let Token::Word(word) = self.parser.token else {
            return Ok(Address {
                base: Base::Immediate,
                offset: self.parser.constant_integer()?,
            });
        };
        let line = self.parser.line;
        match self.name(word)? {
            Operand::Register(register) => {
                let base = Base::Register(register);
                Ok(Address {
                    base,
                    offset: self.parser.offset()?,
                })
            }
            Operand::Symbol(symbol, offset) => Ok(Address {
                base: Base::Symbol(symbol),
                offset,
            }),
            _ => {
                let kind = ErrorKind::Value(format!("'{}' is no address", shorten(word)));
                Err(Error { line, kind })
            }
        }
    }
}
