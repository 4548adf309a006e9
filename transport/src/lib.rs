//! Sealed memory, the ring and its doorbell, sockets that carry descriptors, frames.
//!
//! What a client and its server share, and nothing of what they say to each other: the operations
//! are `cuda-abi`'s. The layers, from the bottom:
//!
//! * [`sync`]: atomics, fences and futexes, which loom can take the place of;
//! * [`memory`]: sealed memfds and their mappings, the only way to touch shared memory;
//! * [`doorbell`]: bounded spinning, then sleeping, and waking only those who said that they sleep;
//! * [`ring`]: many threads post records, one takes them;
//! * [`session`]: both ends of a client's four memfds put together;
//! * [`ledger`]: what a group of clients has taken, counted by several servers;
//! * [`socket`] and [`handshake`]: how the two find each other; [`closer`]: what may wait when it is closed;
//!   [`daemon`]: where the daemon is, and who may be one; [`view`]: what a daemon shows of devices and
//!   clients to whoever asks.
//! * [`program`]: what is to be believed of the environment of the program that a library is in.
//!
//! Nothing that a peer wrote is trusted: it is copied out once, then checked, then used.
//!
//! The ring and the doorbell are checked with loom (bounded; seconds):
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p transport --release --lib loom
//! ```

#![cfg_attr(
    loom,
    allow(
        dead_code,
        reason = "sessions are left out of the models, and they use all of it"
    )
)]

#[cfg(not(target_endian = "little"))]
compile_error!("the records' form is the memory of a little-endian machine");

pub mod closer;
pub mod daemon;
pub mod descriptor;
pub mod doorbell;
pub mod handshake;
#[cfg(not(loom))]
pub mod ledger;
#[cfg(all(test, loom))]
mod loom_models;
#[cfg(not(loom))]
pub mod memory;
pub mod program;
pub mod ring;
#[cfg(not(loom))]
pub mod session;
pub mod socket;
pub mod sync;
pub mod view;
