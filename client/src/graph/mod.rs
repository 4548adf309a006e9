//! Graphs: recordings of what streams would be given.
//!
//! All of it lives in the client. A graph ([`body`], [`node`]) is built node by node or by capturing
//! streams ([`capture`]); an executable graph ([`exec`]) is a schedule of requests that are written
//! down already ([`lower`]), and a launch posts them, or has the server post those that it keeps
//! ([`run`]). So the server knows nothing of graphs, and one client's captures cannot disturb another's.
//!
//! The tables of handles are in [`table`].

pub(crate) mod batch;
pub(crate) mod body;
mod branch;
pub(crate) mod capture;
pub(crate) mod conditional;
pub(crate) mod dot;
pub(crate) mod exec;
mod launch;
mod listed;
mod lower;
pub(crate) mod memory;
pub(crate) mod node;
mod object;
mod pinned;
mod run;
mod schedule;
pub(crate) mod semaphores;
mod step;
mod table;

pub(crate) use table::{From, Graphs};
