//! Straight-line runs of arithmetic as one operation.

/// How a compiler of segments knows an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tag {
    /// It does not.
    #[default]
    None,
}

/// Machine code of a segment.
#[derive(Debug)]
pub(crate) struct Native;
