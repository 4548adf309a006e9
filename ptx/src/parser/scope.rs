//! Names inside a function: nested blocks, shadowing, register ranges, and labels.
//!
//! A name is looked up in constant time however deep the blocks nest: each map holds the innermost
//! meaning, and leaving a block puts back what it had hidden.
//!
//! Called by `function`, `body` and `operand` while one function is parsed. Knows no tokens and no types: names in,
//! indices out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::ast::{Label, Register, Symbol};
use crate::error::{Error, ErrorKind};

/// How deep blocks may nest. nvcc needs two.
const MAX_DEPTH: usize = 128;

/// What a name means in a function.
#[derive(Clone, Copy, Debug)]
pub(super) enum NamedItem {
    Register(Register),
    /// A vector register: its first element and how many there are.
    Vector(Register, u32),
    Symbol(Symbol),
    Targets(usize),
    Prototype(usize),
}

/// `%r<10>`: the first register and how many.
#[derive(Clone, Copy, Debug)]
struct Range {
    first: u32,
    count: u32,
}

/// What a block must put back when it ends.
#[derive(Debug)]
enum Hidden<'src> {
    NamedItem(&'src str, Option<(usize, NamedItem)>),
    Range(&'src str),
}

#[derive(Clone, Copy, Debug)]
struct LabelUse {
    label: u32,
    defined: bool,
    /// The line of the first mention.
    line: u32,
}

/// What a label came to mean.
#[derive(Clone, Copy, Debug)]
enum LabelTarget {
    Unknown,
    /// The instruction it stands before.
    At(usize),
    /// The label of the same name in an enclosing block.
    Outer(u32),
}

#[derive(Debug, Default)]
struct Block<'src> {
    hidden: Vec<Hidden<'src>>,
    labels: HashMap<&'src str, LabelUse>,
}

/// The names of one function.
#[derive(Debug)]
pub(super) struct Scopes<'src> {
    items: HashMap<&'src str, (usize, NamedItem)>,
    /// Ranges of a name, with their depths, innermost last: one may be shorter than the one it hides.
    ranges: HashMap<&'src str, Vec<(usize, Range)>>,
    blocks: Vec<Block<'src>>,
    places: Vec<LabelTarget>,
}

impl<'src> Scopes<'src> {
    /// With the function's own scope, that of its parameters, open.
    pub(super) fn new() -> Self {
        Self {
            items: HashMap::new(),
            ranges: HashMap::new(),
            blocks: vec![Block::default()],
            places: Vec::new(),
        }
    }

    /// Opens a block.
    pub(super) fn enter(&mut self) -> Result<(), ErrorKind> {
        if self.blocks.len() > MAX_DEPTH {
            return Err(ErrorKind::TooLarge("nesting of blocks"));
        }
        self.blocks.push(Block::default());
        Ok(())
    }

    /// Closes the innermost block.
    pub(super) fn leave(&mut self) {
        let Some(block) = self.blocks.pop() else {
            return;
        };
        for hidden in block.hidden.into_iter().rev() {
            match hidden {
                Hidden::NamedItem(name, Some(item)) => drop(self.items.insert(name, item)),
                Hidden::NamedItem(name, None) => drop(self.items.remove(name)),
                Hidden::Range(name) => {
                    if let Some(ranges) = self.ranges.get_mut(name) {
                        ranges.pop();
                    }
                }
            }
        }
        // A label that this block did not define is one of a block around it.
        let Some(outer) = self.blocks.last_mut() else {
            return;
        };
        for (name, mention) in block
            .labels
            .into_iter()
            .filter(|(_, mention)| !mention.defined)
        {
            match outer.labels.entry(name) {
                Entry::Occupied(known) => {
                    self.places[mention.label as usize] = LabelTarget::Outer(known.get().label);
                }
                Entry::Vacant(place) => {
                    place.insert(mention);
                }
            }
        }
    }

    /// How many blocks are open, the function's own included.
    pub(super) fn depth(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn declare(&mut self, name: &'src str, item: NamedItem) -> Result<(), ErrorKind> {
        let depth = self.blocks.len();
        let hidden = self.items.insert(name, (depth, item));
        if hidden.is_some_and(|(other, _)| other == depth) {
            return Err(ErrorKind::duplicate(name));
        }
        if let Some(block) = self.blocks.last_mut() {
            block.hidden.push(Hidden::NamedItem(name, hidden));
        }
        Ok(())
    }

    /// Declares `name<count>`: registers `name0`, `name1`, …
    pub(super) fn declare_range(
        &mut self,
        name: &'src str,
        first: u32,
        count: u32,
    ) -> Result<(), ErrorKind> {
        let depth = self.blocks.len();
        let ranges = self.ranges.entry(name).or_default();
        if ranges.last().is_some_and(|&(other, _)| other == depth) {
            return Err(ErrorKind::duplicate(name));
        }
        ranges.push((depth, Range { first, count }));
        if let Some(block) = self.blocks.last_mut() {
            block.hidden.push(Hidden::Range(name));
        }
        Ok(())
    }

    /// The innermost meaning of a name that is not a label.
    pub(super) fn find(&self, name: &str) -> Option<NamedItem> {
        let item = self.items.get(name).copied();
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let mut found = item;
        // `%r12` may be of `%r<…>` or, oddly, of `%r1<…>`. No range has ten digits.
        for split in (1..=digits.min(9)).map(|digits| name.len() - digits) {
            let (prefix, index) = name.split_at(split);
            if index.len() > 1 && index.starts_with('0') {
                continue;
            }
            let (Some(ranges), Ok(index)) = (self.ranges.get(prefix), index.parse::<u32>()) else {
                continue;
            };
            let holds = ranges.iter().rev().find(|(_, range)| index < range.count);
            if let Some(&(depth, range)) = holds
                && found.is_none_or(|(other, _)| depth > other)
            {
                found = Some((depth, NamedItem::Register(Register(range.first + index))));
            }
        }
        found.map(|(_, item)| item)
    }

    /// The label that a branch in the current block names.
    pub(super) fn label(&mut self, name: &'src str, line: u32) -> Result<Label, ErrorKind> {
        Ok(Label(self.mention(name, line)?.label))
    }

    /// Puts a label of the current block before instruction `at`.
    pub(super) fn define_label(
        &mut self,
        name: &'src str,
        at: usize,
        line: u32,
    ) -> Result<(), ErrorKind> {
        let mention = self.mention(name, line)?;
        if mention.defined {
            return Err(ErrorKind::duplicate(name));
        }
        mention.defined = true;
        let label = mention.label as usize;
        self.places[label] = LabelTarget::At(at);
        Ok(())
    }

    fn mention(&mut self, name: &'src str, line: u32) -> Result<&mut LabelUse, ErrorKind> {
        let next = u32::try_from(self.places.len()).map_err(|_| ErrorKind::TooLarge("labels"))?;
        let block = self
            .blocks
            .last_mut()
            .ok_or(ErrorKind::TooLarge("nesting of blocks"))?;
        Ok(block.labels.entry(name).or_insert_with(|| {
            self.places.push(LabelTarget::Unknown);
            LabelUse {
                label: next,
                defined: false,
                line,
            }
        }))
    }

    /// Where each label stands, once all blocks but the function's own are closed.
    pub(super) fn finish(self) -> Result<Vec<usize>, Error> {
        // The first in the text, so that the same text always gives the same message.
        let missing = self.blocks.iter().flat_map(|block| &block.labels);
        let missing = missing.filter(|(_, mention)| !mention.defined);
        if let Some((name, mention)) = missing.min_by_key(|(name, mention)| (mention.line, **name))
        {
            return Err(Error {
                line: mention.line,
                kind: ErrorKind::unknown(name),
            });
        }
        let place = |mut place: LabelTarget| {
            // A label leads only to labels of blocks further out, so this ends.
            while let LabelTarget::Outer(label) = place {
                place = self.places[label as usize];
            }
            match place {
                LabelTarget::At(index) => index,
                LabelTarget::Unknown | LabelTarget::Outer(_) => usize::MAX,
            }
        };
        Ok(self.places.iter().map(|&known| place(known)).collect())
    }
}
