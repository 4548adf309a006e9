//! Variables and parameters: space, alignment, attributes, type, name and dimensions.
//!
//! Called for variables of a module, of a body, and for parameters. Must not know where they will lie.

use super::{Parser, VARIABLE};
use crate::ast::{Initializer, Linkage, Space, Type, Variable};
use crate::error::{Error, ErrorKind, shorten};
use crate::lexer::Token;

/// More dimensions than any program declares.
const MAX_DIMENSIONS: usize = 16;

/// What stands before the names of a declaration.
#[derive(Debug)]
pub(super) struct Specifier {
    pub(super) space: Space,
    pub(super) linkage: Linkage,
    pub(super) element: Type,
    /// 1, or 2, 4 or 8 for `.v2`, `.v4` and `.v8`.
    pub(super) lanes: u64,
    align: Option<u64>,
    managed: bool,
    /// The dimensions of the last name declared, outermost first; 0 where the brackets are empty.
    pub(super) dimensions: Vec<u64>,
}

/// The type that a word such as `u32` names where something is declared.
pub(super) fn type_named(word: &str) -> Option<Type> {
    Type::named(word).filter(|kind| kind.is_declarable())
}

impl<'src> Parser<'src> {
    /// The state space in hand.
    pub(super) fn space(&mut self) -> Result<Space, Error> {
        let space = match self.token {
            Token::Dot("const") => Space::Const,
            Token::Dot("global") => Space::Global,
            Token::Dot("local") => Space::Local,
            Token::Dot("param") => Space::Param,
            Token::Dot("shared" | "shared::cta") => Space::Shared,
            _ => return Err(self.expected("a state space")),
        };
        self.advance();
        Ok(space)
    }

    /// Everything between the space and the first name.
    pub(super) fn specifier(&mut self, space: Space, linkage: Linkage) -> Result<Specifier, Error> {
        let (mut element, mut align, mut managed, mut lanes) = (None, None, false, 1);
        let mut pointer = false;
        while let Token::Dot(word) = self.token {
            match word {
                "align" => {
                    self.advance();
                    let bytes = self.alignment()?;
                    // After `.ptr` it is the alignment of what the parameter points at.
                    if !pointer {
                        align = Some(bytes);
                    }
                    continue;
                }
                "attribute" => {
                    managed |= self.attributes()?;
                    continue;
                }
                "ptr" => pointer = true,
                "const" | "global" | "local" | "param" | "shared" if pointer => {}
                "v2" => lanes = 2,
                "v4" => lanes = 4,
                "v8" => lanes = 8,
                "texref" | "samplerref" | "surfref" => {
                    let what = format!("texture and surface references (.{word})");
                    return Err(self.error(ErrorKind::unsupported(&what)));
                }
                _ => match type_named(word) {
                    Some(kind) if element.is_none() => element = Some(kind),
                    _ => return Err(self.expected("a type")),
                },
            }
            self.advance();
        }
        let element = element.ok_or_else(|| self.expected("a type"))?;
        if element == Type::Pred {
            return Err(self.error(ErrorKind::Value(
                "predicates have no place in memory".into(),
            )));
        }
        Ok(Specifier {
            space,
            linkage,
            element,
            lanes,
            align,
            managed,
            dimensions: Vec::new(),
        })
    }

    fn alignment(&mut self) -> Result<u64, Error> {
        let line = self.line;
        let align = self.number("an alignment")?;
        if align.is_power_of_two() && align <= 1 << 20 {
            return Ok(align);
        }
        let kind = ErrorKind::Value("an alignment must be a power of two".to_owned());
        Err(Error { line, kind })
    }

    /// `.attribute(.managed, .unified(1, 2))`; whether `.managed` is among them.
    pub(super) fn attributes(&mut self) -> Result<bool, Error> {
        let mut managed = false;
        self.advance();
        self.expect(Token::ParenOpen, "'('")?;
        loop {
            match self.token {
                Token::Dot("managed") => managed = true,
                Token::Dot("unified") => {}
                _ => return Err(self.expected("an attribute")),
            }
            self.advance();
            if self.eat(Token::ParenOpen) {
                self.number("a number")?;
                while self.eat(Token::Comma) {
                    self.number("a number")?;
                }
                self.expect(Token::ParenClose, "')'")?;
            }
            if !self.eat(Token::Comma) {
                break;
            }
        }
        self.expect(Token::ParenClose, "')'")?;
        Ok(managed)
    }

    /// A name and its dimensions.
    pub(super) fn declarator(
        &mut self,
        specifier: &mut Specifier,
    ) -> Result<Variable<'src>, Error> {
        let line = self.line;
        self.pay(VARIABLE)?;
        let name = match self.token {
            // A prototype's parameters are nameless.
            Token::Sink => {
                self.advance();
                "_"
            }
            _ => self.word("a name")?,
        };
        specifier.dimensions.clear();
        while self.eat(Token::BracketOpen) {
            if specifier.dimensions.len() == MAX_DIMENSIONS {
                return Err(self.error(ErrorKind::TooLarge("dimensions")));
            }
            if self.eat(Token::BracketClose) {
                if !specifier.dimensions.is_empty() {
                    return Err(self.expected("a dimension"));
                }
                specifier.dimensions.push(0);
                continue;
            }
            let size = self.constant_integer()?;
            let size = u64::try_from(size).map_err(|_| self.expected("a dimension"))?;
            // An explicit 0 occupies nothing, as an unsized array does.
            specifier.dimensions.push(size);
            self.expect(Token::BracketClose, "']'")?;
        }
        let natural = specifier.element.size() * specifier.lanes;
        let size = specifier
            .dimensions
            .iter()
            .try_fold(natural, |size, &dimension| size.checked_mul(dimension))
            .filter(|&size| i64::try_from(size).is_ok())
            .ok_or_else(|| self.error(ErrorKind::TooLarge("variable")))?;
        Ok(Variable {
            name,
            space: specifier.space,
            linkage: specifier.linkage,
            element: specifier.element,
            size,
            align: specifier.align.unwrap_or(natural),
            init: Initializer::default(),
            managed: specifier.managed,
            line,
        })
    }

    /// Only what is defined elsewhere, or sized by the launch, may leave its size open.
    pub(super) fn check_sized(
        &self,
        variable: &Variable<'_>,
        specifier: &Specifier,
    ) -> Result<(), Error> {
        let open = specifier.dimensions.first() == Some(&0) && variable.size == 0;
        if open && variable.linkage != Linkage::Extern && variable.space != Space::Param {
            let message = format!("the size of '{}' is missing", shorten(variable.name));
            return Err(self.error(ErrorKind::Value(message)));
        }
        Ok(())
    }
}
