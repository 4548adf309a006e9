//! How much local memory a thread takes, with all the calls that it may make.

use crate::exec::ir::{Callee, End, Func};
use crate::exec::program::FunctionCode;

/// Bytes that recursion may use of a thread's local memory beyond the deepest chain without it.
const RECURSION_BYTES: u32 = 32 * 1024;

/// Bytes of local memory of a thread: what the deepest chain of calls takes, and a fixed amount more if a
/// function may come back to itself or is called through a pointer.
pub(super) fn local_stride(funcs: &[Func], code: &[FunctionCode]) -> u32 {
    /// Depth below `at`; `None` for recursion.
    fn depth(
        at: usize,
        funcs: &[Func],
        code: &[FunctionCode],
        path: &mut Vec<usize>,
        done: &mut [Option<u32>],
    ) -> Option<u32> {
        if let Some(known) = done[at] {
            return Some(known);
        }
        if path.contains(&at) {
            return None;
        }
        path.push(at);
        let mut below = 0;
        for block in &funcs[at].blocks {
            if let End::Call { callee, .. } = &block.end {
                let Callee::Direct(callee) = callee else {
                    return None;
                };
                below = below.max(depth(*callee as usize, funcs, code, path, done)?);
            }
        }
        path.pop();
        let total = code[at].local.saturating_add(below);
        done[at] = Some(total);
        Some(total)
    }
    let straight = depth(
        0,
        funcs,
        code,
        &mut Vec::new(),
        &mut vec![None; funcs.len()],
    );
    let recursion = || {
        code.iter()
            .map(|function| function.local)
            .fold(RECURSION_BYTES, u32::saturating_add)
    };
    straight.unwrap_or_else(recursion).next_multiple_of(16)
}
