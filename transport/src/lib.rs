//! Sealed memory, the ring and its doorbell, sockets that carry descriptors, frames.
