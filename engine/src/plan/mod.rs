//! What every engine checks of a request before any work is posted, so that all of them refuse the same.
//!
//! Engines call it while they plan an operation. It is arithmetic over a request's numbers alone: it
//! knows no memory, no device and no driver.

pub mod checks;
pub mod copy;
pub mod launch;
