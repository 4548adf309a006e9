//! Memory of clients: windows of addresses, what backs them, page-locked memory, and what the driver computes about it.
//!
//! Called by clients and by what is submitted; knows nothing of streams, but for how far a zero fill has got.

pub(crate) mod address_space;
pub(crate) mod granules;
mod host_pages;
pub(crate) mod host_window;
mod kept_chunks;
pub(crate) mod peek;
pub(crate) mod physical;
pub(crate) mod physical_mappings;
pub(crate) mod reach_table;
pub(crate) mod shared_block;
mod spans;
pub(crate) mod tensor_map;
pub(crate) mod twin_constants;
pub(crate) mod window;
pub(crate) mod zero_fill;
