//! openmps.
fn main() {}
