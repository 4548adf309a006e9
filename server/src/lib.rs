//! Sessions, dispatch, memory, limits and the executor.
//!
//! One process, one engine, one thread a client. From the bottom:
//!
//! * `values`: streams that wait for values in memory;
//! * `progress`: how far each stream of a client is, written by the engine's threads;
//! * `order`: what a record has to wait for; the rules of CUDA's streams;
//! * `heap`, `memory`: a client's blocks in its windows, and its quotas; `addresses`: who has which
//!   windows; `images`: its images;
//! * `pinned`: what host memory all clients may have together;
//! * `held`: what the server holds of its own memory for clients;
//! * `modules`, `arrays`: what it has of them; `commons`, `sharing`, `descriptors`: what it shares with others;
//! * `groups`: what several clients may have together; `changes`: of limits, while a client runs;
//! * `listed`: what lists show of devices; `gate`: who may have contexts on a device;
//! * `observer`: what the engine tells; `log`: what is said of a client;
//! * `session`, `operations`: a client's thread, and what each operation does;
//! * `admission`, `serve`: from the daemon's packet to a session and its end; `run`: the main thread.
#![forbid(unsafe_code)]

mod addresses;
mod admission;
mod arrays;
mod changes;
mod commons;
mod descriptors;
mod files;
mod gate;
mod groups;
mod heap;
mod held;
mod images;
mod listed;
mod log;
mod memory;
mod modules;
mod news;
mod observer;
mod operations;
mod order;
mod pinned;
mod progress;
mod run;
mod serve;
mod session;
mod sharing;
mod values;

pub use gate::{Closed, Gate, Open};
pub use listed::{listed, uuid};
pub use log::{Log, NoLog};
pub use run::{RunError, run, run_gated};
