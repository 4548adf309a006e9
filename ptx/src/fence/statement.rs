//! A statement of a function's body, cut into guard, opcode, modifiers and operands as the text has them.
//!
//! Called by the rewriter, which compares it with the tree's instruction before it believes it.

use std::ops::Range;

use crate::lexer::Token;
use crate::source::SourceToken;

/// A statement of a body, as tokens.
#[derive(Debug)]
pub(super) struct Statement<'src> {
    pub(super) tokens: Range<usize>,
    pub(super) guard: Option<(&'src str, bool)>,
    /// Opcode and modifiers.
    pub(super) name: Range<usize>,
    pub(super) opcode: &'src str,
    pub(super) modifiers: Vec<&'src str>,
    pub(super) operands: Vec<Range<usize>>,
}

impl<'src> Statement<'src> {
    pub(super) fn new(
        source: &'src str,
        words: &[SourceToken<'src>],
        tokens: Range<usize>,
    ) -> Self {
        let token = |at: usize| words.get(at).map_or(Token::End, |word| word.token);
        let mut at = tokens.start;
        let mut guard = None;
        if token(at) == Token::At {
            let negated = matches!(token(at + 1), Token::Operator("!"));
            let register = at + 1 + usize::from(negated);
            guard = Some((
                words
                    .get(register)
                    .and_then(|word| source.get(word.start..word.end))
                    .unwrap_or_default(),
                negated,
            ));
            at = register + 1;
        }
        let name = at;
        let opcode = match token(at) {
            Token::Word(word) => word,
            _ => "",
        };
        at += 1;
        let mut modifiers = Vec::new();
        while let Token::Dot(word) = token(at) {
            modifiers.push(word);
            at += 1;
        }
        let end = tokens.end.saturating_sub(1);
        let mut operands = Vec::new();
        let (mut depth, mut start) = (0_usize, at);
        for next in at..end {
            match token(next) {
                Token::BraceOpen | Token::BracketOpen | Token::ParenOpen => depth += 1,
                Token::BraceClose | Token::BracketClose | Token::ParenClose => {
                    depth = depth.saturating_sub(1);
                }
                Token::Comma if depth == 0 => {
                    operands.push(start..next);
                    start = next + 1;
                }
                _ => {}
            }
        }
        if start < end {
            operands.push(start..end);
        }
        Self {
            name: name..at,
            tokens,
            guard,
            opcode,
            modifiers,
            operands,
        }
    }

    /// The tokens of an operand.
    pub(super) fn operand(&self, index: usize) -> Range<usize> {
        self.operands.get(index).cloned().unwrap_or(0..0)
    }
}
