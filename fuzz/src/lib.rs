//! What several targets are made of.

pub mod kernels;
