//! libcuda.so.1: the client runtime.
//!
//! From the program's side inwards:
//!
//! * [`exports`]: the C entry points, made from the table; nothing but shells;
//! * [`params`]: the program's pointers, checked once and then carried as what they are;
//! * [`api`]: one function for each built entry point, by family: arguments in, errors out;
//! * [`context`], [`stream`], [`event`], [`module`], [`function`], [`memory`]: the objects that the
//!   program's handles name, in tables ([`slots`], [`handle`]) that are read without a lock;
//! * [`graph`]: captures, graphs, and their launches; [`host`]: functions that streams call here;
//! * [`launch`], [`copy`], [`image`], [`occupancy`]: what takes more than passing on;
//! * [`export_tables`]: the private tables that CUDA runtimes ask for, and what they keep with a
//!   context;
//! * [`session`]: the one session with the server, over `transport`; [`attach`] makes it, [`leave`]
//!   ends it.
//!
//! The library is a guest in somebody else's process: it prints nothing, keeps no thread before the
//! program asks for a host function ([`host`]), changes no signal, and turns its own panics into
//! errors.

mod absent;
mod affinity;
mod api;
mod array;
mod attach;
mod context;
mod copy;
mod event;
mod export_tables;
mod exports;
mod external;
mod function;
mod graph;
mod handle;
mod host;
mod image;
mod launch;
#[cfg_attr(
    test,
    allow(dead_code, reason = "the loader calls it, in the library only")
)]
mod leave;
mod link;
mod log;
mod managed;
mod memory;
mod module;
mod occupancy;
mod output;
mod pages;
mod params;
mod pool;
mod prepared;
mod process_maps;
mod references;
mod registered;
mod session;
mod signals;
mod slots;
mod staging;
mod stream;
mod tensor_map;
mod virtual_memory;
mod visible;
mod windows;

/// Tells a server that looks for the real driver that this file is not it.
#[used]
static MARK: [u8; 22] = *b"OpenMPS client runtime";

#[cfg(test)]
mod testing;
