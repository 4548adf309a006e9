//! Atomics come from `transport::sync` alone, or loom would not see them.

use std::fs;
use std::path::Path;

fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("the sources are here") {
        let path = entry.expect("an entry of the folder").path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push((
                path.display().to_string(),
                fs::read_to_string(&path).expect("a source is text"),
            ));
        }
    }
}

#[test]
fn atomics_come_from_the_facade() {
    let mut found = Vec::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut found,
    );
    assert!(found.len() > 10, "the sources are not where they were");
    for (path, text) in found {
        if !path.ends_with("/src/sync.rs") {
            assert!(
                !text.contains("sync::atomic"),
                "{path} goes past transport::sync"
            );
        }
    }
}
