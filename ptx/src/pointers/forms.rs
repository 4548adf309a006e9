//! Which instructions are understood, and words of theirs.
//!
//! Called by `flow`. Must not know what flows.

use crate::ast::Operand;

/// Instructions that make a value of their operands and touch nothing else. The first operand gets it.
pub(super) const VALUES: &[&str] = &[
    "abs",
    "add",
    "addc",
    "and",
    "bar",
    "barrier",
    "bfe",
    "bfi",
    "bfind",
    "bmsk",
    "brev",
    "clz",
    "cnot",
    "copysign",
    "cos",
    "createpolicy",
    "cvt",
    "cvta",
    "div",
    "dp2a",
    "dp4a",
    "ex2",
    "fma",
    "fns",
    "isspacep",
    "lg2",
    "lop3",
    "mad",
    "mad24",
    "madc",
    "match",
    "max",
    "min",
    "mma",
    "mov",
    "movmatrix",
    "mul",
    "mul24",
    "neg",
    "not",
    "or",
    "popc",
    "prmt",
    "rcp",
    "redux",
    "rem",
    "rsqrt",
    "sad",
    "selp",
    "set",
    "setp",
    "shf",
    "shfl",
    "shl",
    "shr",
    "sin",
    "slct",
    "sqrt",
    "sub",
    "subc",
    "szext",
    "tanh",
    "testp",
    "vabsdiff",
    "vabsdiff2",
    "vabsdiff4",
    "vadd",
    "vadd2",
    "vadd4",
    "vavrg2",
    "vavrg4",
    "vmad",
    "vmax",
    "vmax2",
    "vmax4",
    "vmin",
    "vmin2",
    "vmin4",
    "vote",
    "vset",
    "vset2",
    "vset4",
    "vshl",
    "vshr",
    "vsub",
    "vsub2",
    "vsub4",
    "xor",
];

/// Of those, the ones that take something off, or make a number of bits that is less than nothing.
pub(super) const LOWERING: &[&str] = &[
    "lop3", "neg", "not", "set", "sub", "subc", "vset", "vset2", "vset4", "vsub", "vsub2", "vsub4",
];

/// Instructions that go elsewhere, end, or wait.
pub(super) const JUMPS: &[&str] = &["bra", "brx", "exit", "nanosleep", "ret", "trap"];

/// Special registers that say the same each time a kernel runs.
pub(super) const SAME_EACH_TIME: &[&str] = &[
    "tid",
    "ntid",
    "ctaid",
    "nctaid",
    "laneid",
    "lanemask_eq",
    "lanemask_le",
    "lanemask_lt",
    "lanemask_ge",
    "lanemask_gt",
    "clusterid",
    "nclusterid",
    "cluster_ctaid",
    "cluster_nctaid",
    "cluster_ctarank",
    "cluster_nctarank",
    "is_explicit_cluster",
    "dynamic_smem_size",
    "total_smem_size",
    "aggr_smem_size",
];

/// Words of accesses that others could watch, or that order what others see.
pub(super) const STRONG: &[&str] = &["acquire", "async", "mmio", "relaxed", "release", "volatile"];

/// The state spaces that an access can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// None: a generic address.
    Generic,
    Global,
    Const,
    Param,
    /// `.local` and `.shared`.
    Own,
}

/// Which state space an instruction names.
pub(super) fn named(modifiers: &[&str]) -> Result<Named, &'static str> {
    let spaces = modifiers.iter().filter_map(|word| {
        Some(match *word {
            "global" => Named::Global,
            "const" => Named::Const,
            "param" | "param::entry" | "param::func" => Named::Param,
            "local" | "shared" | "shared::cta" | "shared::cluster" => Named::Own,
            _ => return None,
        })
    });
    let spaces: Vec<Named> = spaces.collect();
    match spaces[..] {
        [] => Ok(Named::Generic),
        [space] => Ok(space),
        _ => Err("several state spaces"),
    }
}

pub(super) fn is_same_each_time(operand: &Operand<'_>) -> bool {
    match operand {
        Operand::Special(name, _) => SAME_EACH_TIME.contains(name),
        Operand::Vector(parts) | Operand::List(parts) | Operand::Indexed(parts) => {
            parts.iter().all(is_same_each_time)
        }
        Operand::Pair(first, second) => is_same_each_time(first) && is_same_each_time(second),
        _ => true,
    }
}

/// Whether a number of an instruction may stand for a negative one.
pub(super) fn is_negative(operand: &Operand<'_>) -> bool {
    match *operand {
        Operand::Integer(number) => i32::try_from(number).map_or(true, i32::is_negative),
        Operand::Float32(bits) => f32::from_bits(bits).is_sign_negative(),
        Operand::Float64(bits) => f64::from_bits(bits).is_sign_negative(),
        _ => false,
    }
}
