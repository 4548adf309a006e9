//! A driver library of our own making, in the place of NVIDIA's.
//!
//! Called by the tests of drivers and of the underlay. Must not know what a test wants of its symbols.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles the driver of `engine-nvidia/tests/fake/driver.c` into a folder, with definitions that its text tells of.
///
/// # Panics
/// If there is no C compiler.
pub fn compile(folder: &Path, definitions: &[&str]) -> PathBuf {
    let path = folder.join("libcuda.so.1");
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../engine-nvidia/tests/fake/driver.c"
    );
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-pthread"])
        .args(definitions.iter().map(|name| format!("-D{name}")))
        .arg(source)
        .arg("-o")
        .arg(&path)
        .status()
        .expect("a C compiler");
    assert!(compiled.success(), "the fake driver compiles");
    path
}
