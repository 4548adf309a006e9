//! Server processes as the daemon knows them; nothing here acts by itself.

pub(crate) mod limits;
pub mod placement;
pub mod process;
pub(crate) mod registry;
