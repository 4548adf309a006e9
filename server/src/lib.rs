//! The server: sessions of clients, what they may take of the devices, and the order of their work.
//!
//! One process, one engine, one thread a client. From the bottom:
//!
//! * [`stream_scheduler`]: which record of a client may go to the engine now, by CUDA's rules of streams,
//!   and how far each stream is (`completion`);
//! * [`memory`]: a client's addresses, blocks and quotas; what host memory all clients may have, and what
//!   the server holds of its own memory for them;
//! * [`ipc`]: what clients share: exports, imports, shared events, descriptors of physical memory;
//! * [`code`]: images, modules, arrays and textures;
//! * [`session`]: a client's thread, and what each operation does (`dispatch`);
//! * [`admission`]: from the daemon's packet to a session: limits, groups, compute modes;
//! * [`main_loop`]: the main thread, which hears the daemon and notices when clients end;
//! * [`event_queue`]: what other threads tell the main thread; [`log`]: the lines of server.log.
#![forbid(unsafe_code)]

mod accounts;
mod admission;
mod code;
mod event_queue;
mod ipc;
mod log;
mod main_loop;
mod memory;
mod session;
mod stream_scheduler;
mod time_lines;

pub use admission::compute_mode::{ComputeModePolicy, ContextRefused, EnforcedByDriver};
pub use admission::device_list::{listed, uuid};
pub use log::{Log, NoLog};
pub use main_loop::{Outcome, RunError, Settings, WATCHDOG_PATIENCE, run, run_with};
pub use memory::file_receiver::{FileReceiver, NoFile, receive_files};
