//! How bytes get from one process to another: sealed memory, the ring and its doorbell, sockets that carry descriptors.
//!
//! What a client and its server share, and nothing of what they say to each other: operations and
//! messages are `protocol`'s. The layers, from the bottom:
//!
//! * [`sync`]: atomics, fences and futexes, which loom can take the place of;
//! * [`memory`]: sealed memfds and their mappings, the only way to touch shared memory;
//! * [`doorbell`]: bounded spinning, then sleeping, and waking only those who said that they sleep;
//! * [`ring`]: many threads post records, one takes them;
//! * [`session`]: both ends of a client's four memfds put together;
//! * [`socket`]: packets with descriptors, and who is at the other end; [`background_close`]: what may wait when it is
//!   closed; [`token_descriptor`]: descriptors that stand for something of a server's.
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

pub mod background_close;
pub mod doorbell;
#[cfg(all(test, loom))]
mod loom_models;
#[cfg(not(loom))]
pub mod memory;
pub mod ring;
#[cfg(not(loom))]
pub mod session;
pub mod socket;
pub mod sync;
pub mod token_descriptor;
