//! Memory of clients: addresses, blocks in them, files over them, and what each client and all may take.
//!
//! Called by sessions and by admission. Knows neither streams nor records.

pub mod address_account;
pub mod backing;
pub mod client_memory;
pub mod client_pages;
pub mod file_receiver;
pub mod further_windows;
pub mod heap;
pub mod host_budget;
pub mod mapped_file;
pub mod registered_files;
pub mod server_budget;
pub mod virtual_memory;
