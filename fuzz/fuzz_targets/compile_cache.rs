//! Any bytes, and any damage to a whole file, as an entry of the compile cache: what is found is what was kept, in a
//! file of the same bytes, and all else is a miss.
#![no_main]

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;

// The library that programs load exports functions of C's alone: this is the same source.
#[path = "../../client/src/export_tables/compile_cache/files.rs"]
#[allow(
    dead_code,
    reason = "not all of it is for files that somebody else wrote"
)]
mod files;

/// The most that is found. The library's is larger, and takes longer.
const LARGEST: usize = 4096;

/// A folder with one entry, and the entry's file.
struct Kept {
    files: files::Files,
    path: PathBuf,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.files.folder());
    }
}

/// Keeps a content, and gives the bytes of its file.
fn keep(kept: &Kept, key: &[u8], content: &[u8]) -> Vec<u8> {
    kept.files.put(key, content).expect("a folder of our own");
    fs::read(&kept.path).expect("it was kept")
}

const KEY: &[u8] = b"a key";

thread_local! {
    static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
}

fn kept() -> Kept {
    let folder = PathBuf::from(format!("/dev/shm/openmps-fuzz-{}", std::process::id()));
    let files = files::Files::new(folder.clone(), 1 << 20);
    files.put(KEY, b"content").expect("a folder of our own");
    let mut entries = fs::read_dir(&folder).expect("the folder").flatten();
    let path = entries.next().expect("the entry").path();
    Kept { files, path }
}

/// What is found in the place of an entry that is these bytes.
fn found(kept: &Kept, path: &Path, bytes: &[u8]) -> Option<Vec<u8>> {
    fs::write(path, bytes).expect("a file of our own");
    kept.files.get(KEY)
}

fuzz_target!(|bytes: &[u8]| {
    KEPT.with_borrow_mut(|all| {
        let kept = all.get_or_insert_with(kept);
        if let Some(content) = found(kept, &kept.path, bytes) {
            assert_eq!(keep(kept, KEY, &content), bytes, "found in no such file");
        }
        // Places of a whole file, and what is there instead; the length last.
        let content = b"content".repeat(usize::from(bytes.first().copied().unwrap_or(1)).max(1));
        let whole = keep(kept, KEY, &content);
        assert_eq!(kept.files.get(KEY).as_deref(), Some(&content[..]));
        let mut damaged = whole.clone();
        for place in bytes.chunks_exact(3) {
            let at = usize::from(u16::from_le_bytes([place[0], place[1]])) % damaged.len();
            damaged[at] = place[2];
        }
        if let [.., cut] = bytes {
            damaged.truncate(damaged.len() - usize::from(*cut) % damaged.len());
        }
        let after = found(kept, &kept.path, &damaged);
        assert_eq!(after.is_some(), damaged == whole, "damage is a miss");
    });
});
