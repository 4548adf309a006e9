//! The names by which segments know arithmetic. Operations carry them from the table to here.
//!
//! Names only: what each becomes stands in `encode` and `allocate`.
//!
//! Given by `ops`, kept in `ir`, read by `segment`.

/// Operations that segments can have, by the lanes' type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tag {
    /// None of them.
    #[default]
    None,
    Add32,
    Add64,
    AddF32,
    AddF64,
    And32,
    DivF32,
    DivF64,
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
    RsqrtFtzF32,
    Shl32,
    ShrS32,
    ShrU32,
    SqrtF32,
    SqrtF64,
    Sub32,
    SubF32,
    SubF64,
    Xor32,
}
