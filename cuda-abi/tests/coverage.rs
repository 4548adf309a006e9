//! Holds `docs/coverage.md` to the table. `UPDATE=1` writes the file instead.

use std::path::Path;

#[test]
fn the_document_says_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/coverage.md");
    let rendered = cuda_abi::coverage::render();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &rendered).expect("docs/coverage.md can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == rendered,
        "docs/coverage.md is not what the table says: run `UPDATE=1 cargo test -p cuda-abi --test coverage`"
    );
}

#[test]
fn what_is_not_built_at_all_is_not_partial() {
    for row in cuda_abi::functions::ROWS {
        assert!(row.is_built() || row.partial.is_none(), "{}", row.name);
    }
}
