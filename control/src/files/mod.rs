//! The daemon's files: where they are (`directories`), what a running daemon holds of them (`instance`), and how they are
//! made and read where other users can write too (`safe_fs` files, `safe_path` directories and programs).
//!
//! Called by `startup`, and by whoever of the daemon keeps something in a file. Must not know what files mean to who wrote them.

pub(crate) mod claim_error;
pub mod directories;
pub(crate) mod error;
pub(crate) mod handed_on;
pub(crate) mod instance;
pub(crate) mod safe_fs;
pub(crate) mod safe_path;
