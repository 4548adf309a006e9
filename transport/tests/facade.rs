//! Atomics come from `transport::sync` alone, or loom would not see them.

use std::fs;
use std::path::Path;

fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push((
                path.display().to_string(),
                fs::read_to_string(&path).unwrap(),
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
