//! Who means harm, boundary by boundary. Beside each attack a bystander works, checks its results, and says how
//! long it had to wait at worst; docs/threat-model.md says what is promised.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod descriptors;
mod journal;
mod limits;
mod memory;
mod records;
mod scene;
mod signals;
mod users;
