//! Straight-line runs of arithmetic as one operation.

/// How a compiler of segments knows an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tag {
    /// It does not.
    #[default]
    None,
    Add32,
    Add64,
    AddF32,
    AddF64,
    And32,
    FmaF32,
    FmaF64,
    Mad32,
    Mov32,
    Mov64,
    Mul32,
    MulF32,
    MulF64,
    NegF32,
    Or32,
    RsqrtF32,
    Sub32,
    SubF32,
    SubF64,
    Xor32,
}

/// Machine code of a segment.
#[derive(Debug)]
pub(crate) struct Native;
