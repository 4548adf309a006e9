//! Sessions, dispatch, memory, limits and the executor.
#![forbid(unsafe_code)]

mod heap;
mod memory;
mod order;
mod progress;
