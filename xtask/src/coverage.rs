//! `docs/coverage.md`: what is built of each driver function, as the table says.

use anyhow::{Result, ensure};

use crate::shell::root;

const FILE: &str = "docs/coverage.md";

/// Writes the page.
pub fn write() -> Result<()> {
    std::fs::write(root().join(FILE), cuda_abi::coverage::render())?;
    Ok(())
}

/// Refuses a page that is not what the table says.
pub fn check() -> Result<()> {
    let there = std::fs::read_to_string(root().join(FILE)).unwrap_or_default();
    ensure!(
        there == cuda_abi::coverage::render(),
        "{FILE} is not what the table says; run `cargo xtask coverage` and commit it"
    );
    Ok(())
}
