//! libcuda.so.1: the client runtime.
//!
//! From the program's side inwards:
//!
//! * [`exports`]: the C entry points, made from the table; nothing but shells;
//! * [`pointers`]: the program's pointers, checked once and then carried as what they are;
//! * [`api`]: one function for each built entry point, a file for each family: arguments in, errors out;
//! * [`graph`]: captures, graphs, and their launches;
//! * [`code`] (with modules, links, launches), [`memory`] (with copies, pools, mappings), [`stream`] (with
//!   events and host functions), [`context`]: the objects that the program's handles name, in tables that
//!   are read without a lock ([`handle`]). Each knows those behind it in this list and none before it;
//! * [`export_tables`]: the private tables that CUDA runtimes ask for, and what they keep with a
//!   context;
//! * [`session`]: the composition root, which makes all of these and which only `api` knows;
//!   [`session::attach`] makes it, [`session::exit_hook`] ends it;
//! * [`session::connection`]: the one connection to the server, over `transport`, through which all of
//!   them send;
//! * [`recorder`]: the time line that OPENMPS_TRACE asks for;
//! * [`error_log`]: calls that failed, for programs that ask;
//! * [`os`], [`log`]: what the library asks of Linux, and where it writes when told to.
//!
//! The library is a guest in somebody else's process: it prints nothing unless CUDA_LOG_FILE says so, keeps no thread before the
//! program asks for a host function ([`stream::host_function`]) or a time line ([`recorder`]), changes no signal, and turns its own panics into
//! errors.
//!
//! Programs load it where they would load NVIDIA's. It must not know engines, nor other clients.

mod api;
mod code;
mod context;
mod error_log;
mod export_tables;
mod exports;
mod graph;
mod handle;
mod log;
mod memory;
mod os;
mod pointers;
mod recorder;
mod session;
mod stream;

/// Tells a server that looks for the real driver that this file is not it.
#[used]
static MARK: [u8; 22] = *b"OpenMPS client runtime";

#[cfg(test)]
mod testing;
