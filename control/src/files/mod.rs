//! The daemon's files: where they are, what a running daemon holds of them, and how they are written where other users can write too.

pub(crate) mod claim_error;
pub mod directories;
pub(crate) mod error;
pub(crate) mod instance;
pub(crate) mod safe_fs;
pub(crate) mod safe_path;
