//! Programs and images that tests run.
//!
//! Used by tests of platforms and Kubernetes. Must not know which engine runs them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::images;
use crate::shell::{root, run};

/// The development build.
pub fn openmps() -> PathBuf {
    root().join("target/debug/openmps")
}

/// The program that looks how much memory it may have, built by the machine's C compiler.
pub fn memory_program() -> Result<PathBuf> {
    let folder = root().join("target/platforms");
    std::fs::create_dir_all(&folder)?;
    let program = folder.join("memory");
    let source = root().join("tests/platforms/memory.c");
    run(Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(source)
        .arg("-ldl"))?;
    Ok(program)
}

/// The image of [`canary`].
pub const CANARY: &str = "localhost/openmps-canary";

/// An image that has nothing of ours in it, and a program that ends at once: an engine that cannot run it
/// can run nothing.
pub fn canary() -> Result<PathBuf> {
    let folder = root().join("target/platforms");
    std::fs::create_dir_all(&folder)?;
    let (source, program) = (folder.join("canary.c"), folder.join("canary"));
    std::fs::write(&source, "int main(void) { return 0; }\n")?;
    run(Command::new("cc").arg("-o").arg(&program).arg(&source))?;
    let tree = images::Tree::new("openmps-canary")?;
    tree.program(&program, "canary")?;
    tree.pack(
        CANARY,
        &serde_json::json!({"Cmd": ["canary"], "Env": ["PATH=/usr/bin"]}),
    )
}

/// An image's archive.
pub fn archive(name: &str) -> PathBuf {
    Path::new("target/images").join(name)
}
