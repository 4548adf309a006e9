//! Server processes as the daemon knows them; nothing here acts by itself.
//!
//! Used by `daemon` and `commands`. Must not know sockets' events: `daemon` has them.

pub mod code_folder;
pub mod contexts;
pub mod faults;
pub(crate) mod handovers;
pub(crate) mod kept_session;
pub(crate) mod limits;
pub(crate) mod moving;
pub mod placement;
pub mod process;
pub(crate) mod registry;
pub(crate) mod seeks;
pub mod standbys;
