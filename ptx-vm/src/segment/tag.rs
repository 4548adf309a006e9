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
    AbsF32,
    Add32,
    Add64,
    AddF32,
    AddF64,
    And32,
    And64,
    /// From integers of 32 bits.
    CvtS32F32,
    CvtU32F32,
    DivF32,
    DivF64,
    FmaF32,
    FmaF64,
    /// A load by 64-bit addresses, global or generic.
    LoadGlobal,
    /// A load from shared memory by 32-bit addresses.
    LoadShared,
    /// Any function of three bits.
    Lop3,
    Mad32,
    MaxS32,
    MaxU32,
    MinS32,
    MinU32,
    Mov32,
    Mov64,
    Mul32,
    MulF32,
    MulF64,
    /// 32 bits times 32 bits.
    MulWideS32,
    MulWideU32,
    /// The lower half of 64 bits.
    Narrow,
    NegF32,
    Not32,
    Or32,
    Or64,
    RsqrtF32,
    RsqrtFtzF32,
    Shl32,
    Shl64,
    ShrS32,
    ShrU32,
    ShrU64,
    SqrtF32,
    SqrtF64,
    /// A store by 64-bit addresses, global or generic.
    StoreGlobal,
    /// A store to shared memory by 32-bit addresses.
    StoreShared,
    Sub32,
    Sub64,
    SubF32,
    SubF64,
    /// 32 bits to 64.
    WidenS32,
    WidenU32,
    Xor32,
    Xor64,
}

impl Tag {
    /// Whether AVX2 has code for it; AVX-512 has for all.
    pub(crate) fn is_early(self) -> bool {
        matches!(
            self,
            Self::Add32
                | Self::Add64
                | Self::AddF32
                | Self::AddF64
                | Self::And32
                | Self::And64
                | Self::CvtS32F32
                | Self::DivF32
                | Self::DivF64
                | Self::FmaF32
                | Self::FmaF64
                | Self::Mad32
                | Self::MaxS32
                | Self::MaxU32
                | Self::MinS32
                | Self::MinU32
                | Self::Mov32
                | Self::Mov64
                | Self::Mul32
                | Self::MulF32
                | Self::MulF64
                | Self::NegF32
                | Self::Or32
                | Self::Or64
                | Self::RsqrtF32
                | Self::RsqrtFtzF32
                | Self::Shl32
                | Self::ShrS32
                | Self::ShrU32
                | Self::SqrtF32
                | Self::SqrtF64
                | Self::Sub32
                | Self::Sub64
                | Self::SubF32
                | Self::SubF64
                | Self::Xor32
                | Self::Xor64
        )
    }
}
