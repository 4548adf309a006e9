//! Holds `docs/coverage.md` and `docs/nvml-functions.md` to their tables. `UPDATE=1` writes the files instead.

use std::path::Path;

#[test]
fn the_documents_say_what_the_tables_say() {
    for (name, rendered) in [
        ("coverage.md", cuda_abi::coverage::render()),
        ("nvml-functions.md", cuda_abi::nvml::render()),
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let path = folder.join(name);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &rendered).expect("the page can be written");
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            written == rendered,
            "docs/{name} is not what the table says: run `UPDATE=1 cargo test -p cuda-abi --test coverage`"
        );
    }
}

#[test]
fn what_is_not_built_at_all_is_not_partial() {
    for row in cuda_abi::functions::ROWS {
        assert!(row.is_built() || row.partial.is_none(), "{}", row.name);
    }
}
