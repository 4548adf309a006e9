//! Time lines of what programs did with the GPU: events in, files out; files in, tables out.
//!
//! * [`event`]: what happened: processes, tracks, activities;
//! * [`chrome`]: Chrome's JSON with the categories and argument names of Kineto, PyTorch's profiler, which
//!   Perfetto, chrome://tracing and TensorBoard open: the writer, and a reader that also takes Kineto's own;
//! * [`told`]: what a program that is recorded tells of its calls and work, as bytes, and [`thread_log`], what each thread writes of
//!   that; [`join`](mod@join): the file made of that and of when the device worked;
//! * [`output`]: a file that can be read at any moment while it grows, also after the disk was full;
//! * [`name_pattern`]: `output.%p`, as nvprof had it;
//! * `perfetto`: the protobuf form of Perfetto, made from such JSON;
//! * `merge`: several files as one, on one clock; `summary`: nvprof's tables.
//!
//! It knows neither sockets nor daemons nor engines. Without the feature `files` it is what a recorder needs,
//! and links no foreign crate.

pub mod chrome;
pub mod event;
pub mod join;
#[cfg(feature = "files")]
pub mod merge;
pub mod name_pattern;
pub mod output;
#[cfg(feature = "files")]
pub mod perfetto;
#[cfg(feature = "files")]
pub mod summary;
pub mod thread_log;
pub mod told;
