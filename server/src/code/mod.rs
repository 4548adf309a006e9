//! Images, modules, arrays and textures of a client: what they take of its bounds, and when they end.
//!
//! Called by sessions. What is in them is the engine's business.

pub mod arrays;
pub mod images;
pub mod modules;
