//! PTX and fatbin parsing: text and containers in, a syntax tree out.
//!
//! Pure: no I/O, no unsafe code, no global state. Everything here meets bytes that a client sent, so
//! each entry point returns an error with a line for anything that it does not understand, and bounds
//! what it allocates by the size of its input.
//!
//! Called by both engines: the software GPU for trees, the NVIDIA engine for classifying and rewriting. Must not
//! know how a module is run, nor on which device.

#![forbid(unsafe_code)]

pub mod ast;
mod budget;
mod error;
pub mod fence;
pub mod image;
pub mod layout;
mod lexer;
pub mod link;
mod parser;
pub mod pointers;
pub mod rewrite;
mod source;

pub use budget::{Budget, Memory, Unlimited};
pub use error::{Error, ErrorKind};
pub use parser::{parse, parse_bytes, parse_within};
