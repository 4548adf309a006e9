//! The api against the server of `testing`, by family.

mod arrays;
mod batches;
mod code;
mod conditional;
mod contexts;
mod error_log;
mod graphs;
mod green;
mod links;
mod memory;
mod notifications;
mod old_launches;
mod references;
mod semaphores;
mod streams;
mod tensor_maps;
