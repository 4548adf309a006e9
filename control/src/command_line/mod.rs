//! The program that operators run: its arguments, one command or many from standard input, and a prompt.

pub(crate) mod arguments;
pub(crate) mod client;
pub(crate) mod prompt;
