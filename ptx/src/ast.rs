//! The syntax tree of a PTX module: what the text says, with names resolved and nothing interpreted.
//!
//! Made by `parser` and `link`, read by `layout` and by the lowering of `ptx-vm`. Knows no instruction by its name.
//!
//! An instruction keeps its opcode and modifiers as the words of the source, so that a reader of the
//! PTX manual finds them again and an engine matches on `("ld", ["param", "u64"])`. Which words make
//! sense together is the engine's to say: it answers a combination that it has not built with the
//! instruction's text and line.
//!
//! Names of registers, labels, variables and functions are resolved here, per scope, as the manual's
//! scoping rules say, so that an engine sees only indices.

/// A parsed `.ptx` text. Borrows names from the source.
#[derive(Clone, Debug, PartialEq)]
pub struct Module<'src> {
    /// The `.version` directive: major, minor.
    pub version: (u8, u8),
    /// The architecture number of `.target`, e.g. 75 of `sm_75` or 90 of `sm_90a`.
    pub target: u32,
    /// Module-scope variables (`.global`, `.const`, `.shared`, and `.extern .shared` arrays).
    pub variables: Vec<Variable<'src>>,
    /// Entries and device functions, declarations without a body included.
    pub functions: Vec<Function<'src>>,
}

/// Where a variable or an access lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// `.const`
    Const,
    /// `.global`
    Global,
    /// `.local`
    Local,
    /// `.param`, of an entry, of a function, or of a call in a body.
    Param,
    /// `.shared`
    Shared,
}

/// A fundamental type of PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants are PTX's own names")]
pub enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U16x2,
    U32,
    U64,
    S8,
    S16,
    S16x2,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
}

impl Type {
    /// The type that a word such as `u32` names, without the dot.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        Some(match word {
            "pred" => Self::Pred,
            "b8" => Self::B8,
            "b16" => Self::B16,
            "b32" => Self::B32,
            "b64" => Self::B64,
            "b128" => Self::B128,
            "u8" => Self::U8,
            "u16" => Self::U16,
            "u16x2" => Self::U16x2,
            "u32" => Self::U32,
            "u64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s16x2" => Self::S16x2,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// Whether variables, parameters and registers can be of it: two of them are types of instructions
    /// alone, whose operands are `b32` or `u32`.
    #[must_use]
    pub const fn is_declarable(self) -> bool {
        !matches!(self, Self::U16x2 | Self::S16x2)
    }
}

/// How a symbol is seen by the linker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Linkage {
    /// No linking directive: visible in this module only.
    #[default]
    Internal,
    /// `.visible`
    Visible,
    /// `.extern`: defined elsewhere.
    Extern,
    /// `.weak`
    Weak,
    /// `.common`
    Common,
}

/// A variable, or a parameter of a function or of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable<'src> {
    /// Its name.
    pub name: &'src str,
    /// Where it lives.
    pub space: Space,
    /// Its linkage.
    pub linkage: Linkage,
    /// Element type. `.v2`/`.v4` variables become arrays of 2 or 4 elements.
    pub element: Type,
    /// Bytes that it occupies; 0 for an unsized `.extern .shared` array.
    pub size: u64,
    /// Alignment in bytes, as given, else the natural one.
    pub align: u64,
    /// The initial bytes and the addresses to be written into them; empty means zeroes.
    pub init: Initializer,
    /// Whether `.attribute(.managed)` was given.
    pub managed: bool,
    /// The line of its declaration.
    pub line: u32,
}

/// A variable's first value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Initializer {
    /// Little-endian bytes from the variable's start; shorter than the variable means zeroes follow.
    pub bytes: Vec<u8>,
    /// Addresses to add in once everything has a place.
    pub relocations: Vec<Relocation>,
}

/// An address inside an initializer.
#[derive(Clone, Debug, PartialEq)]
pub struct Relocation {
    /// Where in the variable, in bytes. The address takes 8 bytes.
    pub offset: u64,
    /// What it names.
    pub symbol: Symbol,
    /// What is added to the address.
    pub addend: i64,
    /// Whether the address is wanted as a generic one (`generic(x)`).
    pub generic: bool,
}

/// An entry (`.entry`) or a device function (`.func`).
#[derive(Clone, Debug, PartialEq)]
pub struct Function<'src> {
    /// Its name.
    pub name: &'src str,
    /// `.entry` or not.
    pub entry: bool,
    /// Its linkage.
    pub linkage: Linkage,
    /// `.func`'s return parameters: `.reg` or `.param` variables.
    pub returns: Vec<Parameter<'src>>,
    /// Its parameters, in order.
    pub params: Vec<Parameter<'src>>,
    /// `.maxntid`, product of its dimensions, if given.
    pub max_threads: Option<u32>,
    /// `.reqntid`, if given.
    pub required_threads: Option<[u32; 3]>,
    /// `.reqnctapercluster`: blocks of a cluster in x, y, z, if given.
    pub cluster: Option<[u32; 3]>,
    /// `.maxclusterrank`: the most blocks of a cluster, if given.
    pub max_cluster: Option<u32>,
    /// `.explicitcluster`: whether a launch must say what its clusters are, where the entry does not.
    pub explicit_cluster: bool,
    /// `.blocksareclusters`: whether what is launched counts clusters, not blocks.
    pub blocks_are_clusters: bool,
    /// `.minnctapersm` (or its old name `.maxnctapersm`): blocks that shall fit a multiprocessor.
    pub min_blocks: Option<u32>,
    /// `.maxnreg`: the most registers of a thread.
    pub max_registers: Option<u32>,
    /// Whether `.noreturn` was given.
    pub noreturn: bool,
    /// The types of the registers; [`Register`] is an index into it.
    pub registers: Vec<Type>,
    /// The variables of all scopes of the body (`.shared`, `.local`, `.param`, `.const`, `.global`).
    pub variables: Vec<Variable<'src>>,
    /// For each [`Label`], the index into `body` of the instruction that it stands before; the length
    /// of `body` for a label at the end. Labels are distinct numbers even where they stand together.
    pub labels: Vec<usize>,
    /// `.branchtargets` and `.calltargets` lists in order of declaration.
    pub targets: Vec<Targets>,
    /// `.callprototype` declarations in order.
    pub prototypes: Vec<Prototype<'src>>,
    /// The instructions. `None` for a declaration.
    pub body: Option<Vec<Instruction<'src>>>,
    /// The line of its declaration.
    pub line: u32,
}

/// A formal parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameter<'src> {
    /// `.reg` of a device function.
    Register(Register),
    /// `.param`: of an entry, or of a device function under the ABI.
    Memory(Variable<'src>),
}

/// A `.branchtargets` or `.calltargets` list.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// Labels of this function.
    Branch(Vec<Label>),
    /// Indices into [`Module::functions`].
    Call(Vec<usize>),
}

/// A `.callprototype`.
#[derive(Clone, Debug, PartialEq)]
pub struct Prototype<'src> {
    /// Return parameters.
    pub returns: Vec<Variable<'src>>,
    /// Parameters.
    pub params: Vec<Variable<'src>>,
}

/// A register: an index into [`Function::registers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Register(pub u32);

/// A label: an index into [`Function::labels`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Label(pub u32);

/// A named thing whose address can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Symbol {
    /// An index into [`Module::functions`].
    Function(usize),
    /// An index into [`Function::variables`].
    Local(usize),
    /// An index into [`Module::variables`].
    Module(usize),
    /// The function's own parameter, by index into [`Function::params`].
    Param(usize),
    /// The function's own return parameter, by index into [`Function::returns`].
    Return(usize),
}

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction<'src> {
    /// `@p` or `@!p`.
    pub guard: Option<Guard>,
    /// The first word: `ld`, `add`, `bra`, …
    pub opcode: &'src str,
    /// The words after it, without their dots: `["global", "nc", "v4", "f32"]`.
    pub modifiers: Vec<&'src str>,
    /// The operands in order of the source. `setp.… p|q, a, b` gives `[Pair(p, q), a, b]`;
    /// `call (r), f, (a, b)` gives `[List([r]), f, List([a, b])]`.
    pub operands: Vec<Operand<'src>>,
    /// Its line in the source, from 1.
    pub line: u32,
}

/// A guard predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The predicate register.
    pub register: Register,
    /// `@!p`.
    pub negated: bool,
}

/// One operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand<'src> {
    /// `[base + offset]`.
    Address(Address),
    /// A floating-point immediate, as its bits: `0f3F800000`.
    Float32(u32),
    /// A floating-point immediate, as its bits: `0d3FF0…`, or a decimal such as `1.5`.
    Float64(u64),
    /// An address with coordinates: `[texture, {x, y}]`, `[texture, sampler, {x, y}]` or, of a tensor
    /// copy, `[map, {x, y}]`: what stands between the brackets, as addresses and a vector.
    Indexed(Vec<Self>),
    /// An integer immediate, sign-extended or zero-extended to 64 bits as it was written.
    Integer(i64),
    /// A label of this function.
    Label(Label),
    /// A parenthesised list of a call.
    List(Vec<Self>),
    /// A negated predicate operand, `!p`.
    Not(Register),
    /// `p|q`; either side may be the sink `_`, and the first a vector.
    Pair(Box<Self>, Box<Self>),
    /// A part of a register of 32 bits, as video instructions select one: `r.b0` to `r.b3`, `r.h0`, `r.h1`.
    Part {
        /// The register.
        register: Register,
        /// The part's lowest bit in it.
        first: u8,
        /// Bits of the part: 8 or 16.
        bits: u8,
    },
    /// A prototype of an indirect call: an index into [`Function::prototypes`].
    Prototype(usize),
    /// A register.
    Register(Register),
    /// The sink `_`.
    Sink,
    /// A special register by its name without `%`, with its component: `("tid", Some('x'))`,
    /// `("laneid", None)`.
    Special(&'src str, Option<char>),
    /// A variable's or function's address as a value, plus an offset: `mov.u64 %rd1, table + 8`.
    Symbol(Symbol, i64),
    /// A target list: an index into [`Function::targets`].
    Targets(usize),
    /// `{a, b, c, d}`; elements may be registers, immediates or the sink.
    Vector(Vec<Self>),
}

/// A memory operand.
#[derive(Clone, Debug, PartialEq)]
pub struct Address {
    /// What the address starts from.
    pub base: Base,
    /// Bytes added to it.
    pub offset: i64,
}

/// The start of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// An absolute address: `[16]`.
    Immediate,
    /// A register's value.
    Register(Register),
    /// A variable or parameter.
    Symbol(Symbol),
}

impl Type {
    /// Bytes that a value takes in memory; a predicate has none and gives 0.
    #[must_use]
    pub const fn size(self) -> u64 {
        match self {
            Self::Pred => 0,
            Self::B8 | Self::U8 | Self::S8 => 1,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 2,
            Self::B32 | Self::U32 | Self::S32 | Self::F32 => 4,
            Self::U16x2 | Self::S16x2 | Self::F16x2 | Self::Bf16x2 => 4,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 8,
            Self::B128 => 16,
        }
    }
}
