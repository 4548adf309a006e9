//! Initial values of variables, down to bytes and addresses.
//!
//! Called by declarations. Must not know addresses: those of symbols are left for who places them.

use super::declaration::Specifier;
use super::expression::Constant;
use super::{Parser, PendingReference, RELOCATION};
use crate::ast::{Relocation, Symbol, Type, Variable};
use crate::error::{Error, ErrorKind, shorten};
use crate::lexer::Token;

/// Stands in a relocation until its name is declared.
const UNRESOLVED: Symbol = Symbol::Module(usize::MAX);

/// An initializer being read.
struct InitializerTarget<'a, 'src> {
    variable: &'a mut Variable<'src>,
    specifier: &'a Specifier,
    /// Whose variable it is, and its index there.
    place: (Option<usize>, usize),
    /// Names of the function's scopes.
    local: &'a dyn Fn(&str) -> Option<Symbol>,
    /// Where the next element goes, in bytes.
    position: u64,
    /// The name and the next mask of an address that is given byte by byte.
    split: Option<(&'src str, u32)>,
}

/// An element that is an address.
struct SymbolValue<'src> {
    name: &'src str,
    generic: bool,
    addend: i64,
    line: u32,
}

impl<'src> Parser<'src> {
    /// What stands after `=`.
    pub(super) fn initializer(
        &mut self,
        variable: &mut Variable<'src>,
        specifier: &Specifier,
        function: Option<usize>,
        index: usize,
        local: &dyn Fn(&str) -> Option<Symbol>,
    ) -> Result<(), Error> {
        let place = (function, index);
        let mut target = InitializerTarget {
            variable,
            specifier,
            place,
            local,
            position: 0,
            split: None,
        };
        if self.token == Token::BraceOpen {
            self.aggregate(&mut target, 0)?;
        } else {
            self.element(&mut target)?;
        }
        if target.split.is_some() {
            return Err(self.error(ErrorKind::Value("an address lacks bytes".to_owned())));
        }
        let end = target.position;
        if specifier.dimensions.first() == Some(&0) && target.variable.size == 0 {
            // `x[] = {…}`: whole rows, as many as were given.
            let row = self.row(specifier, 0);
            target.variable.size = end
                .div_ceil(row.max(1))
                .checked_mul(row)
                .ok_or_else(|| self.error(ErrorKind::TooLarge("variable")))?;
        } else if end > target.variable.size {
            let message = format!("too many initial values for '{}'", shorten(variable.name));
            return Err(self.error(ErrorKind::Value(message)));
        }
        Ok(())
    }

    /// Bytes of one element of dimension `level`; the declarator has shown that they fit.
    fn row(&self, specifier: &Specifier, level: usize) -> u64 {
        let inner = specifier.dimensions.get(level + 1..).unwrap_or_default();
        inner.iter().fold(
            specifier.element.size() * specifier.lanes,
            |size, &dimension| size.saturating_mul(dimension),
        )
    }

    /// `{a, b, {c, d}}` at dimension `level`; a vector's elements are one dimension more.
    fn aggregate(
        &mut self,
        target: &mut InitializerTarget<'_, 'src>,
        level: usize,
    ) -> Result<(), Error> {
        let start = target.position;
        self.advance();
        while self.token != Token::BraceClose {
            if self.token == Token::BraceOpen {
                if level > target.specifier.dimensions.len() {
                    return Err(self.expected("a value"));
                }
                let next = target.position;
                self.aggregate(target, level + 1)?;
                let row = if level < target.specifier.dimensions.len() {
                    self.row(target.specifier, level)
                } else {
                    target.specifier.element.size()
                };
                let end = next.saturating_add(row);
                if target.position > end {
                    return Err(self.error(ErrorKind::Value("too many initial values".into())));
                }
                target.position = end;
            } else {
                self.element(target)?;
            }
            if !self.eat(Token::Comma) {
                break;
            }
        }
        // Only a list that says nothing may leave its place where it was.
        target.position = target.position.max(start);
        self.expect(Token::BraceClose, "'}'")
    }

    fn element(&mut self, target: &mut InitializerTarget<'_, 'src>) -> Result<(), Error> {
        let line = self.line;
        if let Token::Word(word) = self.token
            && word != "WARP_SZ"
        {
            let value = self.symbol_value()?;
            return self.address(target, &value);
        }
        let constant = self.constant()?;
        if let Constant::Integer(mask, _) = constant
            && self.eat(Token::ParenOpen)
        {
            let value = self.symbol_value()?;
            self.expect(Token::ParenClose, "')'")?;
            return self.masked(target, mask.cast_unsigned(), &value);
        }
        if target.split.is_some() {
            return Err(Error {
                line,
                kind: ErrorKind::Value("an address lacks bytes".into()),
            });
        }
        let element = target.specifier.element;
        let bytes = encode(element, constant).ok_or_else(|| {
            let message = "this value does not fit the variable's type".to_owned();
            Error {
                line,
                kind: ErrorKind::Value(message),
            }
        })?;
        let size = element.size();
        self.put(target, size, &bytes)
    }

    /// `name`, `generic(name)`, either with an offset.
    fn symbol_value(&mut self) -> Result<SymbolValue<'src>, Error> {
        let line = self.line;
        let mut name = self.word("a name")?;
        let generic = name == "generic" && self.eat(Token::ParenOpen);
        let mut addend = 0;
        if generic {
            name = self.word("a name")?;
            addend = self.offset()?;
            self.expect(Token::ParenClose, "')'")?;
        }
        addend = self.offset()?.wrapping_add(addend);
        Ok(SymbolValue {
            name,
            generic,
            addend,
            line,
        })
    }

    fn address(
        &mut self,
        target: &mut InitializerTarget<'_, 'src>,
        value: &SymbolValue<'src>,
    ) -> Result<(), Error> {
        if target.specifier.element.size() != 8 {
            let message = "an address takes 64 bits".to_owned();
            return Err(Error {
                line: value.line,
                kind: ErrorKind::Value(message),
            });
        }
        self.relocate(target, value)?;
        self.put(target, 8, &[0; 8])
    }

    /// `0xFF00(name)`: one byte of an address, in an array of bytes. They come in order.
    fn masked(
        &mut self,
        target: &mut InitializerTarget<'_, 'src>,
        mask: u64,
        value: &SymbolValue<'src>,
    ) -> Result<(), Error> {
        let next = target.split.map_or(0, |(_, next)| next);
        let same = target.split.is_none_or(|(name, _)| name == value.name);
        if target.specifier.element.size() != 1 || !same || mask != 0xff << (8 * next) {
            let message = "parts of an address other than all its bytes in order".to_owned();
            return Err(Error {
                line: value.line,
                kind: ErrorKind::Unsupported(message),
            });
        }
        if next == 0 {
            self.relocate(target, value)?;
        }
        target.split = (next < 7).then_some((value.name, next + 1));
        self.put(target, 1, &[0])
    }

    fn relocate(
        &mut self,
        target: &mut InitializerTarget<'_, 'src>,
        value: &SymbolValue<'src>,
    ) -> Result<(), Error> {
        self.pay(RELOCATION)?;
        let symbol = (target.local)(value.name).or_else(|| self.global(value.name));
        let relocations = &mut target.variable.init.relocations;
        if symbol.is_none() {
            self.pending.push(PendingReference {
                function: target.place.0,
                variable: target.place.1,
                relocation: relocations.len(),
                name: value.name,
                line: value.line,
            });
        }
        relocations.push(Relocation {
            offset: target.position,
            symbol: symbol.unwrap_or(UNRESOLVED),
            addend: value.addend,
            generic: value.generic,
        });
        Ok(())
    }

    /// Writes one element. Zeroes are not written until something follows them.
    fn put(
        &mut self,
        target: &mut InitializerTarget<'_, 'src>,
        size: u64,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let known = target.variable.init.bytes.len() as u64;
        if bytes.iter().any(|&byte| byte != 0) {
            let padding = target.position.saturating_sub(known);
            self.take_bytes(padding.saturating_add(size))?;
            let padded = known + padding;
            let length = usize::try_from(padded)
                .map_err(|_| self.error(ErrorKind::TooLarge("initializer")))?;
            target.variable.init.bytes.resize(length, 0);
            target.variable.init.bytes.extend_from_slice(bytes);
        }
        target.position = target.position.saturating_add(size);
        Ok(())
    }
}

/// A constant as the little-endian bytes of a type; `None` where it has no meaning in it.
fn encode(element: Type, constant: Constant) -> Option<Vec<u8>> {
    let size = usize::try_from(element.size()).ok()?;
    let bits: u64 = match (element, constant) {
        (Type::F32, Constant::Float32(bits)) => u64::from(bits),
        #[allow(clippy::cast_possible_truncation, reason = "PTX rounds such constants")]
        (Type::F32, Constant::Float64(bits)) => u64::from((f64::from_bits(bits) as f32).to_bits()),
        #[allow(clippy::cast_precision_loss, reason = "PTX rounds such constants")]
        (Type::F32, Constant::Integer(value, _)) => u64::from((value as f32).to_bits()),
        (Type::F64, Constant::Float32(bits)) => f64::from(f32::from_bits(bits)).to_bits(),
        (Type::F64, Constant::Float64(bits)) => bits,
        #[allow(clippy::cast_precision_loss, reason = "PTX rounds such constants")]
        (Type::F64, Constant::Integer(value, _)) => (value as f64).to_bits(),
        (Type::B32 | Type::U32 | Type::S32, Constant::Float32(bits)) => u64::from(bits),
        (Type::B64 | Type::U64 | Type::S64, Constant::Float64(bits)) => bits,
        (Type::Pred, _) | (_, Constant::Float32(_) | Constant::Float64(_)) => return None,
        // Wider values are cut as nvcc relies on (`-1` in a `.b8`); 16 bytes get the sign.
        (_, Constant::Integer(value, unsigned)) => {
            let fill = if value < 0 && !unsigned { 0xff } else { 0 };
            let mut bytes = value.to_le_bytes().to_vec();
            bytes.resize(16, fill);
            bytes.truncate(size);
            return Some(bytes);
        }
    };
    let mut bytes = bits.to_le_bytes().to_vec();
    bytes.truncate(size);
    Some(bytes)
}
