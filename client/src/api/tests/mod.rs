//! The api against the server of `testing`, by family.

mod code;
mod contexts;
mod graphs;
mod memory;
mod streams;
