//! What is built of each function of the driver and of its management library, and of PTX's instructions, as the tables
//! say.
//!
//! Called by `main`, which writes the pages, and by `ci`, which fails where they are not up to date. The pages'
//! text is made below, in `coverage`.

mod driver_functions;
mod nvml_functions;

use anyhow::{Result, ensure};

use crate::shell::{cargo, root, run};

/// Makes a page's text.
type Page = fn() -> String;

/// The pages, and what makes them.
const PAGES: [(&str, Page); 2] = [
    ("docs/coverage.md", driver_functions::render),
    ("docs/nvml-functions.md", nvml_functions::render),
];

/// Writes the pages.
pub fn write() -> Result<()> {
    for (file, render) in PAGES {
        std::fs::write(root().join(file), render())?;
    }
    // What the software GPU takes is found out by its own test, which fails where the page is not up to date.
    let page = ["test", "-p", "ptx-vm", "--test", "exec", "the_page_is_what"];
    run(cargo().args(page).env("UPDATE", "1"))
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

#[cfg(test)]
mod tests {
    #[test]
    fn the_pages_say_what_the_tables_say() {
        super::check().unwrap();
    }
}
