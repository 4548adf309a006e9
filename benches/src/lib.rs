//! Benchmarks.
//!
//! Only binaries, each in its folder; nothing is shared by them here.
