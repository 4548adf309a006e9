//! The names by which segments know arithmetic. Operations carry them from the table to here.
//!
//! Names only: what each becomes stands in `encode` and `allocate`.
//!
//! Given by `ops`, kept in `ir`, read by `segment`.

use ptx::ast::Type;

/// Operations that segments can have, by the lanes' type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
    /// Of predicates, as the other two.
    AndPredicate,
    /// The block's index along an axis, of what is the same in all lanes.
    BlockIndex(u8),
    /// A predicate of two numbers.
    Compare(Compared, u8),
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
    /// The larger number, of which a NaN is none.
    MaxF32,
    MaxS32,
    MaxU32,
    MinF32,
    MinS32,
    MinU32,
    Mov32,
    Mov64,
    /// A copy of a predicate or of 16 bits, also with zeros before it.
    MovNarrow,
    Mul32,
    MulF32,
    MulF64,
    /// 32 bits times 32 bits.
    MulWideS32,
    MulWideU32,
    /// The lower half of 64 bits.
    Narrow,
    /// The lower half of 32 bits.
    Narrow16,
    NegF32,
    Not32,
    NotPredicate,
    Or32,
    Or64,
    OrPredicate,
    RsqrtF32,
    RsqrtFtzF32,
    /// One of two values by a predicate.
    Select32,
    Select64,
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
    /// A sum into a word of shared memory, whose old value nobody reads.
    SumShared,
    /// 32 bits to 64.
    WidenS32,
    WidenU32,
    Xor32,
    Xor64,
    XorPredicate,
}

/// What is compared, by the lanes' type: 16 bits are compared as 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Compared {
    F32,
    F64,
    S32,
    S64,
    U32,
    U64,
}

impl Compared {
    pub(crate) fn is_whole(self) -> bool {
        !matches!(self, Self::F32 | Self::F64)
    }

    /// Whether they are whole numbers of 64 bits.
    pub(crate) fn is_wide(self) -> bool {
        matches!(self, Self::S64 | Self::U64)
    }
}

impl Tag {
    /// What is named by the words of a comparison of a type; `None` if segments have none of it.
    pub(crate) fn comparison(name: &str, ty: Type) -> Self {
        let compared = match ty {
            Type::F32 => Compared::F32,
            Type::F64 => Compared::F64,
            // With zeros before them, signed numbers are equal or not.
            Type::S16 if matches!(name, "eq" | "ne") => Compared::U32,
            Type::S32 => Compared::S32,
            Type::S64 => Compared::S64,
            Type::B16 | Type::U16 | Type::B32 | Type::U32 => Compared::U32,
            Type::B64 | Type::U64 => Compared::U64,
            _ => return Self::None,
        };
        // The processor's numbers of the predicates; of floats those that raise nothing.
        let predicate = match (compared, name) {
            (Compared::F32 | Compared::F64, name) => match name {
                "eq" => 0x00,
                "lt" => 0x11,
                "le" => 0x12,
                "nan" => 0x03,
                "neu" => 0x04,
                "geu" => 0x15,
                "gtu" => 0x16,
                "num" => 0x07,
                "equ" => 0x08,
                "ltu" => 0x19,
                "leu" => 0x1a,
                "ne" => 0x0c,
                "ge" => 0x1d,
                "gt" => 0x1e,
                _ => return Self::None,
            },
            (_, "eq") => 0,
            (_, "lt" | "lo") => 1,
            (_, "le" | "ls") => 2,
            (_, "ne") => 4,
            (_, "ge" | "hs") => 5,
            (_, "gt" | "hi") => 6,
            _ => return Self::None,
        };
        Self::Compare(compared, predicate)
    }

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
