//! Memory: what the program has of it, by address, and how it is copied.
//!
//! A part for each way to get memory (pools, arrays, mappings, registered and imported memory), and the
//! copies. `api` and graphs call it; it posts through streams, and must not know code and graphs.

pub(crate) mod address_space;
pub(crate) mod array;
pub(crate) mod copy;
pub(crate) mod external;
pub(crate) mod fill;
pub(crate) mod managed_advice;
pub(crate) mod pool;
pub(crate) mod ranges;
pub(crate) mod registered;
pub(crate) mod virtual_memory;
