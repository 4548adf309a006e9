//! A program of musl's, as images of Alpine's hold them, that is given our library: what it is told.
//!
//! Called by `platforms`. No container engine is needed, and none is known here.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};

use super::{Folder, need, openmps, output};
use crate::shell::{root, run};

/// What musl's loader says of glibc's; people look for these words, and the docs have them.
const MESSAGE: &str = "Error loading shared library ld-linux-x86-64.so.2";

/// The docs that tell how a container is given the library.
const DOCS: [&str; 2] = ["docs/compose.md", "docs/cdi.md"];

pub(super) fn refused() -> Result<()> {
    need(&["musl-gcc"], &["musl-tools"])?;
    let folder = Folder::new("musl")?;
    let program = folder.path().join("memory");
    run(Command::new("musl-gcc")
        .arg("-o")
        .arg(&program)
        .arg("tests/platforms/memory.c"))?;
    let library = folder.path().join("libcuda.so.1");
    fs::copy(root().join("target/embedded/release/libcuda.so"), &library)?;
    // As a container has it.
    let mounted = output(Command::new(&program).env("LD_LIBRARY_PATH", folder.path()))?;
    let text = String::from_utf8_lossy(&mounted.stdout).into_owned()
        + &String::from_utf8_lossy(&mounted.stderr);
    let needed = format!("(needed by {})", library.display());
    ensure!(
        !mounted.status.success() && text.contains(MESSAGE) && text.contains(&needed),
        "{}: {text}",
        mounted.status
    );
    for file in DOCS {
        let doc = fs::read_to_string(root().join(file))?;
        ensure!(doc.contains(MESSAGE), "{file} does not have: {MESSAGE}");
    }
    // By our own command it is told in words.
    let ours = output(Command::new(openmps()).args(["run", "--"]).arg(&program))?;
    let text = String::from_utf8_lossy(&ours.stderr);
    ensure!(
        !ours.status.success() && text.contains("is a program of musl's") && text.contains("glibc"),
        "{}: {text}",
        ours.status
    );
    Ok(())
}
