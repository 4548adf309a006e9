//! The program that operators run: its arguments, one command or many from standard input, and a prompt.
//!
//! Called by `lib`. Must not reach into a daemon but by its socket.

pub(crate) mod arguments;
pub(crate) mod client;
pub(crate) mod prompt;
