//! Sessions, dispatch, memory, limits and the executor.
