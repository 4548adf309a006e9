//! The words of PTX.
//!
//! Owns what a token is and on which line it stands; knows no grammar. A modifier or directive is one
//! token with its dot (`.u32`, `.2d`, `.shared::cta`), a register is one token with its percent sign.

use logos::{Lexer, Logos};

/// A token. Those with text give it as a slice of the source.
#[derive(Clone, Copy, Debug, PartialEq, Logos)]
#[logos(skip r"[ \t\r\n\x0b\x0c]+")]
#[logos(skip(r"//[^\n]*", allow_greedy = true))]
#[logos(skip r"/\*([^*]|\*+[^*/])*\*+/")]
pub(crate) enum Token<'src> {
    /// A name: opcode, register, variable, label.
    #[regex(r"[a-zA-Z][a-zA-Z0-9_$]*")]
    #[regex(r"[_$%][a-zA-Z0-9_$]+")]
    Word(&'src str),
    /// A modifier or a directive, without its dot.
    #[regex(r"\.[a-zA-Z0-9_]+(::[a-zA-Z0-9_]+)*", |lex| &lex.slice()[1..])]
    Dot(&'src str),
    /// An integer literal as written.
    #[regex(r"[0-9]+U?")]
    #[regex(r"0[xX][0-9a-fA-F]+U?")]
    #[regex(r"0[bB][01]+U?")]
    Integer(&'src str),
    /// `0f` and eight hexadecimal digits, without `0f`.
    #[regex(r"0[fF][0-9a-fA-F]{8}", |lex| &lex.slice()[2..])]
    Float32(&'src str),
    /// `0d` and sixteen hexadecimal digits, without `0d`.
    #[regex(r"0[dD][0-9a-fA-F]{16}", |lex| &lex.slice()[2..])]
    Float64(&'src str),
    /// A decimal floating-point literal.
    #[regex(r"[0-9]+\.[0-9]*([eE][+-]?[0-9]+)?")]
    #[regex(r"[0-9]+[eE][+-]?[0-9]+")]
    Decimal(&'src str),
    /// A string with its quotes.
    #[regex(r#""([^"\\\n]|\\[^\n])*""#)]
    String(&'src str),
    #[token("_")]
    Sink,
    #[token(",")]
    Comma,
    #[token(";")]
    Semicolon,
    #[token(":")]
    Colon,
    #[token("(")]
    ParenOpen,
    #[token(")")]
    ParenClose,
    #[token("[")]
    BracketOpen,
    #[token("]")]
    BracketClose,
    #[token("{")]
    BraceOpen,
    #[token("}")]
    BraceClose,
    #[token("@")]
    At,
    #[token("=")]
    Equals,
    /// An operator of constant expressions; some have other uses (`p|q`, `%r<4>`, `!p`).
    #[token("+")]
    #[token("-")]
    #[token("*")]
    #[token("/")]
    #[token("%")]
    #[token("!")]
    #[token("~")]
    #[token("&")]
    #[token("|")]
    #[token("^")]
    #[token("?")]
    #[token("<")]
    #[token(">")]
    #[token("<<")]
    #[token(">>")]
    #[token("<=")]
    #[token(">=")]
    #[token("==")]
    #[token("!=")]
    #[token("&&")]
    #[token("||")]
    Operator(&'src str),
    /// Characters that begin no token.
    Invalid(&'src str),
    /// The end of the text.
    End,
}

/// Reads tokens and counts lines.
#[derive(Debug)]
pub(crate) struct Tokens<'src> {
    lexer: Lexer<'src, Token<'src>>,
    /// Up to where newlines have been counted.
    counted: usize,
    line: u32,
}

impl<'src> Tokens<'src> {
    pub(crate) fn new(source: &'src str) -> Self {
        Self {
            lexer: Token::lexer(source),
            counted: 0,
            line: 1,
        }
    }

    /// Where the last token begins, in bytes from the beginning of the source.
    pub(crate) fn start(&self) -> usize {
        self.lexer.span().start
    }

    /// The next token, the line it begins on, and its text.
    pub(crate) fn next(&mut self) -> (Token<'src>, u32, &'src str) {
        let token = match self.lexer.next() {
            Some(Ok(token)) => token,
            Some(Err(())) => Token::Invalid(self.lexer.slice()),
            None => Token::End,
        };
        let start = self.lexer.span().start;
        // A token's own text can hold a newline only if it is invalid, so counting up to its start
        // looks at each byte of the source once.
        let gap = self
            .lexer
            .source()
            .as_bytes()
            .get(self.counted..start)
            .unwrap_or_default();
        let newlines = gap.iter().filter(|&&byte| byte == b'\n').count();
        self.line = self
            .line
            .saturating_add(u32::try_from(newlines).unwrap_or(u32::MAX));
        self.counted = self.counted.max(start);
        (token, self.line, self.lexer.slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(source: &str) -> Vec<Token<'_>> {
        let mut tokens = Tokens::new(source);
        std::iter::from_fn(|| match tokens.next().0 {
            Token::End => None,
            token => Some(token),
        })
        .collect()
    }

    #[test]
    fn an_instruction_is_words_and_modifiers() {
        use Token::*;
        assert_eq!(
            all("@!%p1 ld.shared::cta.v2.f32 {%f1,_}, [%rd1+-4];"),
            [
                At,
                Operator("!"),
                Word("%p1"),
                Word("ld"),
                Dot("shared::cta"),
                Dot("v2"),
                Dot("f32"),
                BraceOpen,
                Word("%f1"),
                Comma,
                Sink,
                BraceClose,
                Comma,
                BracketOpen,
                Word("%rd1"),
                Operator("+"),
                Operator("-"),
                Integer("4"),
                BracketClose,
                Semicolon
            ]
        );
    }

    #[test]
    fn numbers_are_told_apart() {
        use Token::*;
        assert_eq!(
            all("0 017 0x1fU 0b101 12 0f3F800000 0d3FF0000000000000 1.5 9.0 1e-3 0F00000000"),
            [
                Integer("0"),
                Integer("017"),
                Integer("0x1fU"),
                Integer("0b101"),
                Integer("12"),
                Float32("3F800000"),
                Float64("3FF0000000000000"),
                Decimal("1.5"),
                Decimal("9.0"),
                Decimal("1e-3"),
                Float32("00000000")
            ]
        );
    }

    #[test]
    fn lines_are_counted_across_comments_and_bad_bytes() {
        let mut tokens = Tokens::new("a // x\n/* y\n * z **/ b\n\u{e9} c");
        let lines: Vec<u32> = (0..5).map(|_| tokens.next().1).collect();
        assert_eq!(lines, [1, 3, 4, 4, 4]);
    }

    #[test]
    fn very_long_comments_need_no_stack() {
        let long = if cfg!(miri) { 1 << 10 } else { 1 << 20 };
        let source = format!("/*{}*/ //{}\n x", "*a\n".repeat(long), "y".repeat(long));
        assert_eq!(all(&source), [Token::Word("x")]);
    }
}
