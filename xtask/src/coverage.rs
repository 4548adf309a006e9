//! What is built of each function of the driver and of its management library, as the tables say.

use anyhow::{Result, ensure};

use crate::shell::root;

/// Makes a page's text.
type Page = fn() -> String;

/// The pages, and what makes them.
const PAGES: [(&str, Page); 2] = [
    ("docs/coverage.md", cuda_abi::coverage::render),
    ("docs/nvml-functions.md", cuda_abi::nvml::render),
];

/// Writes the pages.
pub fn write() -> Result<()> {
    for (file, render) in PAGES {
        std::fs::write(root().join(file), render())?;
    }
    Ok(())
}

/// Refuses a page that is not what its table says.
pub fn check() -> Result<()> {
    for (file, render) in PAGES {
        let there = std::fs::read_to_string(root().join(file)).unwrap_or_default();
        ensure!(
            there == render(),
            "{file} is not what the table says; run `cargo xtask coverage` and commit it"
        );
    }
    Ok(())
}
