//! The page of `openmps page` in Debian's Chromium, without a screen: tests/platforms/page/page.py looks and types, and leaves
//! pictures to be looked at in target/platforms/page.
//!
//! Called by `platforms`. What is looked at is the script's: nothing here knows the page.

use std::fs;
use std::process::Command;

use anyhow::Result;

use super::{Folder, need, openmps};
use crate::shell::{root, run};

pub(super) fn in_a_browser() -> Result<()> {
    let packages = [
        "chromium",
        "chromium-driver",
        "fonts-dejavu-core",
        "python3-minimal",
    ];
    need(&["chromium", "chromedriver", "python3"], &packages)?;
    let sources = root().join("tests/platforms/page");
    let folder = Folder::new("page")?;
    let client = folder.path().join("client");
    run(Command::new("cc")
        .arg("-o")
        .arg(&client)
        .arg(sources.join("client.c"))
        .arg("-ldl"))?;
    let pictures = root().join("target/platforms/page");
    fs::create_dir_all(&pictures)?;
    run(Command::new("python3")
        // No folder of compiled ones beside the sources.
        .arg("-B")
        .arg(sources.join("page.py"))
        .arg(openmps())
        .arg(client)
        .arg(pictures))
}
