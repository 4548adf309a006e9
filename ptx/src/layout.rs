//! Where the parameters of an entry lie in its parameter buffer.
//!
//! The rule: each parameter begins at the end of the one before it, rounded up to its alignment. A
//! scalar's alignment is its size; an aggregate's stands in its declaration.
//!
//! Called by the parser, and by `ptx-vm` where a kernel finds its parameters. Knows sizes and alignments, not what
//! is passed.

use crate::ast::{Function, Parameter};

/// The most bytes of parameters that an entry may have, since PTX 8.1.
pub const MAX_PARAMETERS: u64 = 32_764;

/// Offset and size in bytes of each parameter, in order.
///
/// A `.reg` parameter, which only device functions have, is laid out as a variable of its type.
#[must_use]
pub fn params(function: &Function<'_>) -> Vec<(u64, u64)> {
    let mut end = 0_u64;
    let place = |parameter: &Parameter<'_>| {
        let (size, align) = match parameter {
            Parameter::Memory(variable) => (variable.size, variable.align),
            Parameter::Register(register) => {
                let size = function
                    .registers
                    .get(register.0 as usize)
                    .map_or(0, |t| t.size());
                (size, size)
            }
        };
        let offset = end
            .checked_next_multiple_of(align.max(1))
            .unwrap_or(u64::MAX);
        end = offset.saturating_add(size);
        (offset, size)
    };
    function.params.iter().map(place).collect()
}

/// Bytes that all parameters take together, with the gaps between them.
#[must_use]
pub fn params_size(function: &Function<'_>) -> u64 {
    params(function)
        .last()
        .map_or(0, |&(offset, size)| offset.saturating_add(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_follow_size_and_alignment() {
        let module = crate::parse(
            ".version 9.0\n.target sm_75\n.visible .entry k(.param .u8 a, .param .u64 b,\n\
             .param .align 4 .b8 c[6], .param .u16 d, .param .align 16 .b8 e[12], .param .f32 f,\n\
             .param .u64 .ptr .global .align 128 g) { ret; }\n.entry none() { ret; }",
        )
        .unwrap();
        let entry = &module.functions[0];
        let expected = [(0, 1), (8, 8), (16, 6), (22, 2), (32, 12), (44, 4), (48, 8)];
        assert_eq!(params(entry), expected);
        assert_eq!(params_size(entry), 56);
        assert_eq!(params(&module.functions[1]), []);
        assert_eq!(params_size(&module.functions[1]), 0);
    }

    #[test]
    fn an_entry_with_too_many_parameters_is_refused() {
        let source = |bytes: u32| {
            format!(".version 9.0 .target sm_75\n.entry k(.param .b8 a[{bytes}]) {{ ret; }}")
        };
        assert!(crate::parse(&source(32_764)).is_ok());
        assert!(crate::parse(&source(32_765)).is_err());
    }
}
