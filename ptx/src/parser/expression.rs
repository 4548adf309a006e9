//! Constants: literals, and expressions of them as in C.
//!
//! Integers are 64 bits wide, signed unless a `U` or their size says otherwise, and wrap.
//!
//! Called by the parser's operands and initializers. Knows no names: symbols are resolved by who calls.

use super::Parser;
use crate::error::{Error, ErrorKind};
use crate::lexer::Token;

/// How deep parentheses and signs may nest.
const MAX_DEPTH: u32 = 64;

/// A constant's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Constant {
    /// 64 bits, and whether they are an unsigned number.
    Integer(i64, bool),
    Float32(u32),
    Float64(u64),
}

/// An integer literal's value, and whether it is unsigned.
pub(super) fn integer(literal: &str) -> Result<(u64, bool), ErrorKind> {
    let digits = literal.strip_suffix('U').unwrap_or(literal);
    let (digits, radix) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&digits[2..], 16),
        [b'0', b'b' | b'B', ..] => (&digits[2..], 2),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    let value = u64::from_str_radix(digits, radix)
        .map_err(|_| ErrorKind::Value("integer out of range".to_owned()))?;
    Ok((
        value,
        literal.ends_with('U') || i64::try_from(value).is_err(),
    ))
}

/// How tightly a binary operator binds; larger is tighter.
fn precedence(operator: &str) -> Option<u32> {
    Some(match operator {
        "*" | "/" | "%" => 10,
        "+" | "-" => 9,
        "<<" | ">>" => 8,
        "<" | ">" | "<=" | ">=" => 7,
        "==" | "!=" => 6,
        "&" => 5,
        "^" => 4,
        "|" => 3,
        "&&" => 2,
        "||" => 1,
        _ => return None,
    })
}

/// Binds tighter than sums: the terms of `[x + 4 - 8]`.
const TERM: u32 = 10;

impl Parser<'_> {
    pub(super) fn constant(&mut self) -> Result<Constant, Error> {
        self.ternary(0)
    }

    pub(super) fn constant_integer(&mut self) -> Result<i64, Error> {
        let line = self.line;
        Self::want_integer(self.constant()?, line).map(|(value, _)| value)
    }

    /// What follows a symbol or register: `+4`, `-8`, `+4-8`, `+-4`, or nothing.
    pub(super) fn offset(&mut self) -> Result<i64, Error> {
        let mut offset = 0_i64;
        while let Token::Operator(sign @ ("+" | "-")) = self.token {
            let line = self.line;
            self.advance();
            let (term, _) = Self::want_integer(self.binary(TERM, 0)?, line)?;
            offset = if sign == "+" {
                offset.wrapping_add(term)
            } else {
                offset.wrapping_sub(term)
            };
        }
        Ok(offset)
    }

    fn want_integer(constant: Constant, line: u32) -> Result<(i64, bool), Error> {
        match constant {
            Constant::Integer(value, unsigned) => Ok((value, unsigned)),
            _ => {
                let kind = ErrorKind::Value("an integer is needed here".to_owned());
                Err(Error { line, kind })
            }
        }
    }

    fn ternary(&mut self, depth: u32) -> Result<Constant, Error> {
        let line = self.line;
        let condition = self.binary(1, depth)?;
        if !self.eat(Token::Operator("?")) {
            return Ok(condition);
        }
        let (condition, _) = Self::want_integer(condition, line)?;
        let yes = self.deeper(depth, Self::ternary)?;
        self.expect(Token::Colon, "':'")?;
        let no = self.deeper(depth, Self::ternary)?;
        Ok(if condition != 0 { yes } else { no })
    }

    fn deeper(
        &mut self,
        depth: u32,
        parse: impl FnOnce(&mut Self, u32) -> Result<Constant, Error>,
    ) -> Result<Constant, Error> {
        if depth == MAX_DEPTH {
            return Err(self.error(ErrorKind::TooLarge("nesting of an expression")));
        }
        parse(self, depth + 1)
    }

    fn binary(&mut self, tightest: u32, depth: u32) -> Result<Constant, Error> {
        let mut left = self.unary(depth)?;
        while let Token::Operator(operator) = self.token {
            let Some(level) = precedence(operator).filter(|&level| level >= tightest) else {
                break;
            };
            let line = self.line;
            self.advance();
            let right = self.binary(level + 1, depth)?;
            let left_value = Self::want_integer(left, line)?;
            let right_value = Self::want_integer(right, line)?;
            left = apply(operator, left_value, right_value).map_err(|kind| Error { line, kind })?;
        }
        Ok(left)
    }

    fn unary(&mut self, depth: u32) -> Result<Constant, Error> {
        let line = self.line;
        match self.token {
            Token::Operator(operator @ ("+" | "-" | "!" | "~")) => {
                self.advance();
                let value = self.deeper(depth, Self::unary)?;
                match (operator, value) {
                    ("+", value) => Ok(value),
                    ("-", Constant::Float32(bits)) => Ok(Constant::Float32(bits ^ (1 << 31))),
                    ("-", Constant::Float64(bits)) => Ok(Constant::Float64(bits ^ (1 << 63))),
                    (operator, value) => {
                        let (value, unsigned) = Self::want_integer(value, line)?;
                        Ok(match operator {
                            "-" => Constant::Integer(value.wrapping_neg(), unsigned),
                            "~" => Constant::Integer(!value, unsigned),
                            _ => Constant::Integer(i64::from(value == 0), false),
                        })
                    }
                }
            }
            Token::ParenOpen => {
                self.advance();
                let cast = match self.token {
                    Token::Dot("s64") => Some(false),
                    Token::Dot("u64") => Some(true),
                    _ => None,
                };
                if let Some(unsigned) = cast {
                    self.advance();
                    self.expect(Token::ParenClose, "')'")?;
                    let value = self.deeper(depth, Self::unary)?;
                    let (value, _) = Self::want_integer(value, line)?;
                    return Ok(Constant::Integer(value, unsigned));
                }
                let value = self.deeper(depth, Self::ternary)?;
                self.expect(Token::ParenClose, "')'")?;
                Ok(value)
            }
            _ => self.literal(),
        }
    }

    fn literal(&mut self) -> Result<Constant, Error> {
        let value = match self.token {
            Token::Integer(digits) => {
                let (value, unsigned) = integer(digits).map_err(|kind| self.error(kind))?;
                Constant::Integer(value.cast_signed(), unsigned)
            }
            Token::Float32(digits) => Constant::Float32(
                u32::from_str_radix(digits, 16).map_err(|_| self.expected("a number"))?,
            ),
            Token::Float64(digits) => Constant::Float64(
                u64::from_str_radix(digits, 16).map_err(|_| self.expected("a number"))?,
            ),
            Token::Decimal(digits) => {
                let value: f64 = digits.parse().map_err(|_| self.expected("a number"))?;
                Constant::Float64(value.to_bits())
            }
            Token::Word("WARP_SZ") => Constant::Integer(32, false),
            _ => return Err(self.expected("a constant")),
        };
        self.advance();
        Ok(value)
    }
}

fn apply(
    operator: &str,
    (left, left_unsigned): (i64, bool),
    (right, right_unsigned): (i64, bool),
) -> Result<Constant, ErrorKind> {
    let unsigned = left_unsigned || right_unsigned;
    let (wide_left, wide_right) = (left.cast_unsigned(), right.cast_unsigned());
    let zero = || ErrorKind::Value("division by zero".to_owned());
    let shift = u32::try_from(wide_right).unwrap_or(u32::MAX);
    let value = match operator {
        "*" => left.wrapping_mul(right),
        "/" | "%" if right == 0 => return Err(zero()),
        "/" if unsigned => (wide_left / wide_right).cast_signed(),
        "/" => left.wrapping_div(right),
        "%" if unsigned => (wide_left % wide_right).cast_signed(),
        "%" => left.wrapping_rem(right),
        "+" => left.wrapping_add(right),
        "-" => left.wrapping_sub(right),
        // A shift keeps its left operand's type.
        "<<" => {
            return Ok(Constant::Integer(
                left.checked_shl(shift).unwrap_or(0),
                left_unsigned,
            ));
        }
        ">>" if left_unsigned => {
            let value = wide_left.checked_shr(shift).unwrap_or(0).cast_signed();
            return Ok(Constant::Integer(value, true));
        }
        ">>" => return Ok(Constant::Integer(left >> shift.min(63), false)),
        "&" => left & right,
        "^" => left ^ right,
        "|" => left | right,
        _ => {
            let (less, equal) = if unsigned {
                (wide_left < wide_right, left == right)
            } else {
                (left < right, left == right)
            };
            let truth = match operator {
                "<" => less,
                ">" => !less && !equal,
                "<=" => less || equal,
                ">=" => !less,
                "==" => equal,
                "!=" => !equal,
                "&&" => left != 0 && right != 0,
                _ => left != 0 || right != 0,
            };
            return Ok(Constant::Integer(i64::from(truth), false));
        }
    };
    Ok(Constant::Integer(value, unsigned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(source: &str) -> Result<Constant, Error> {
        Parser::new(source, crate::Budget::default()).constant()
    }

    #[test]
    fn expressions_have_the_values_of_c() {
        for (source, expected) in [
            ("1 + 2 * 3 - 4", 3),
            ("(1 + 2) * -3", -9),
            ("-8 >> 1", -4),
            ("1 << 4 | 3", 19),
            ("~0 & 0xff", 255),
            ("017 + 0b11", 18),
            ("-1 < 0", 1),
            ("-1 < 0U", 0),
            ("1 ? 2 : 3 ? 4 : 5", 2),
            ("!5 == 0", 1),
            ("7 % 4 && 1 || 0", 1),
            ("(.u64) -1 / 2", i64::MAX),
            ("WARP_SZ - 1", 31),
            ("1 << 64", 0),
            ("0xFFFFFFFFFFFFFFFF", -1),
        ] {
            let Ok(Constant::Integer(found, _)) = value(source) else {
                panic!("{source}")
            };
            assert_eq!(found, expected, "{source}");
        }
    }

    #[test]
    fn floats_are_kept_as_bits() {
        assert_eq!(value("0f3F800000"), Ok(Constant::Float32(0x3f80_0000)));
        assert_eq!(
            value("-0d3FF0000000000000"),
            Ok(Constant::Float64((-1.0_f64).to_bits()))
        );
        assert_eq!(value("1.5e1"), Ok(Constant::Float64(15.0_f64.to_bits())));
    }

    #[test]
    fn nonsense_is_refused() {
        for source in [
            "1 / 0",
            "1 % 0",
            "18446744073709551616",
            "09",
            "1 +",
            "1.5 + 1",
            "x",
        ] {
            assert!(value(source).is_err(), "{source}");
        }
        assert!(value(&"-".repeat(100_000)).is_err());
        assert!(value(&"(".repeat(100_000)).is_err());
    }
}
