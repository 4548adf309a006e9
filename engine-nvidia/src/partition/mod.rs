//! SM partitions: which multiprocessors each client and group has, planned as numbers, and made as green contexts.
//!
//! Called by the engine when a share changes and by contexts that need theirs; knows nothing of what runs there.

pub(crate) mod allocator;
pub(crate) mod green_context;
pub(crate) mod planner;
pub(crate) mod sm_set;
