//! How much local memory a thread takes, with all the calls that it may make.
//!
//! Called once a module. Must not know what is kept there.

use crate::ir::{Callee, End, Func};
use crate::limits::LOCAL_BYTES;

/// Bytes that recursion may use of a thread's local memory beyond one frame of every function.
const RECURSION_BYTES: u32 = 32 * 1024;

/// What the local frames of these functions are aligned to.
pub(crate) fn alignment(funcs: &[Func]) -> u32 {
    let most = funcs.iter().map(|func| func.local_align).max();
    most.unwrap_or(1).max(16)
}

/// Bytes of local memory of a thread: what the deepest chain of calls takes, and a fixed amount more if a
/// function may come back to itself or is called through a pointer, as far as there may be so much.
/// `None` if it is more than a thread may have.
pub(crate) fn local_stride(funcs: &[Func]) -> Option<u32> {
    let align = alignment(funcs);
    let frames: Vec<u32> = funcs
        .iter()
        .map(|func| func.local_bytes.next_multiple_of(align))
        .collect();
    if frames.iter().any(|&frame| frame > LOCAL_BYTES) {
        return None;
    }
    match deepest(funcs, &frames) {
        Some(bytes) => Some(bytes.next_multiple_of(16)).filter(|&bytes| bytes <= LOCAL_BYTES),
        None => {
            let all = frames
                .iter()
                .copied()
                .fold(RECURSION_BYTES, u32::saturating_add);
            Some(all.min(LOCAL_BYTES).next_multiple_of(16))
        }
    }
}

/// What is known of a function on the way through the calls.
#[derive(Clone, Copy)]
enum Depth {
    No,
    /// It is on the chain that is looked at.
    OnChain,
    /// Bytes that it and the deepest chain below it take.
    Done(u32),
}

/// The bytes of the deepest chain of calls; `None` if there is no such thing. Without recursion of its own:
/// chains may be as long as a module has functions.
fn deepest(funcs: &[Func], frames: &[u32]) -> Option<u32> {
    let calls: Option<Vec<Vec<usize>>> = funcs.iter().map(callees).collect();
    let calls = calls?;
    let mut seen = vec![Depth::No; funcs.len()];
    // Function, the next of its calls, and the most that one of those before takes.
    let mut chain = vec![(0usize, 0usize, 0u32)];
    seen[0] = Depth::OnChain;
    while let Some((at, next, below)) = chain.last_mut() {
        if let Some(&callee) = calls[*at].get(*next) {
            *next += 1;
            match seen[callee] {
                Depth::Done(bytes) => *below = bytes.max(*below),
                Depth::OnChain => return None,
                Depth::No => {
                    seen[callee] = Depth::OnChain;
                    chain.push((callee, 0, 0));
                }
            }
            continue;
        }
        let total = frames[*at].saturating_add(*below);
        seen[*at] = Depth::Done(total);
        chain.pop();
        match chain.last_mut() {
            Some((.., below)) => *below = total.max(*below),
            None => return Some(total),
        }
    }
    None
}

/// Whom a function calls; `None` if it calls through a pointer.
fn callees(func: &Func) -> Option<Vec<usize>> {
    func.blocks
        .iter()
        .filter_map(|block| match &block.end {
            End::Call { callee, .. } => Some(match callee {
                Callee::Direct(callee) => Some(*callee as usize),
                Callee::Indirect(_) => None,
            }),
            _ => None,
        })
        .collect()
}
