//! Each thread's stack of contexts, and the context that a call is in.
//!
//! Owns the stack, which holds handles only: another thread may end a context that stands on it. Nearly
//! every function of `api` begins here, launches too, so the way to the current context takes no lock.
//!
//! Has a context made at the server that is not yet, and must not end one: `registry` does.

use std::cell::{Cell, RefCell};

use cuda_abi::CUresult;

use super::{Contexts, Current, contexts};

thread_local! {
    /// The handle of the calling thread's context, or 0. Without a destructor, so that it can be
    /// read until the thread is gone.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
    /// The handles below it on the stack.
    static BELOW: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The handle of the calling thread's context, or 0.
pub(crate) fn top() -> u64 {
    CURRENT.get()
}

/// Makes a context the calling thread's in place of the one that is; 0 for none.
pub(crate) fn replace(handle: u64) {
    CURRENT.set(handle);
}

/// Puts a context onto the calling thread's stack.
pub(crate) fn push(handle: u64) -> Result<(), CUresult> {
    BELOW
        .try_with(|below| below.borrow_mut().push(CURRENT.get()))
        .map_err(|_| CUresult::ERROR_DEINITIALIZED)?;
    CURRENT.set(handle);
    Ok(())
}

/// Takes the top of the calling thread's stack.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT when the stack is empty.
pub(crate) fn pop() -> Result<u64, CUresult> {
    let below = BELOW
        .try_with(|below| below.borrow_mut().pop())
        .map_err(|_| CUresult::ERROR_DEINITIALIZED)?;
    match CURRENT.get() {
        0 if below.is_none() => Err(CUresult::ERROR_INVALID_CONTEXT),
        top => {
            CURRENT.set(below.unwrap_or(0));
            Ok(top)
        }
    }
}

/// The calling thread's context, made or not, healthy or not.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT without one, CUDA_ERROR_CONTEXT_IS_DESTROYED when another thread has
/// destroyed it.
#[inline(always)]
pub(crate) fn current_as_it_is() -> Result<Current, CUresult> {
    let contexts = contexts()?;
    match CURRENT.get() {
        0 => Err(CUresult::ERROR_INVALID_CONTEXT),
        handle => contexts
            .get(handle)
            .map_err(|_| CUresult::ERROR_CONTEXT_IS_DESTROYED),
    }
}

// Always inlined: what these give is a few words that a launch reads at once, and passing them
// through memory costs a store that is not yet there when it is read.

/// The calling thread's context, ready for use.
///
/// # Errors
/// As [`current_as_it_is`], and the error that the context died of.
#[inline(always)]
pub(crate) fn current() -> Result<Current, CUresult> {
    ready(current_as_it_is()?)
}

/// The context whose memory, code and events the calling thread's context uses, ready for use.
///
/// # Errors
/// As [`current`].
pub(crate) fn resource_context() -> Result<Current, CUresult> {
    current()?.resource_context()
}

/// The context of a handle, ready for use.
///
/// # Errors
/// CUDA_ERROR_CONTEXT_IS_DESTROYED for a dead one, and the error that it died of.
#[inline(always)]
pub(crate) fn usable(contexts: &'static Contexts, handle: u64) -> Result<Current, CUresult> {
    ready(
        contexts
            .get(handle)
            .map_err(|_| CUresult::ERROR_CONTEXT_IS_DESTROYED)?,
    )
}
#[inline(always)]
fn ready(current: Current) -> Result<Current, CUresult> {
    if !current.context.is_made() {
        current.make_late()?;
    }
    current.connection().check_fault(current.slot())?;
    Ok(current)
}
