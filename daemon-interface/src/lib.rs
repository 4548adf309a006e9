//! How others meet the daemon: what a program, a tool or a server needs to know of it, and no more.
//!
//! * [`fn@connect`]: where it listens, and whether whoever listens there may be a daemon;
//! * [`view`]: what it shows of devices and clients to whoever asks;
//! * [`time_lines`]: what it and its servers record of clients for whoever asks;
//! * [`group_usage`]: what a group of clients has taken, counted by the daemon's servers in memory that they share;
//! * [`environment`]: what a library of ours believes of the environment of the program that it is in;
//! * [`label`]: what a client may be called;
//! * [`log_text`]: foreign text as part of a log's line;
//! * [`process`]: which process a number means.
//!
//! The libraries `client` and `nvml`, the command line and, for groups, servers use it. Which packets there are is
//! `protocol`'s, and how they travel `transport`'s. What the daemon does with them is `control`'s: nothing here knows it.

mod connect;
pub mod environment;
pub mod group_usage;
pub mod label;
pub mod log_text;
pub mod process;
pub mod time_lines;
pub mod view;

pub use connect::{ConnectError, Untrusted, connect, control_socket};
