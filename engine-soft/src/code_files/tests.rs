//! Files that are whole, damaged, others', many, and what hinders keeping.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;

use tempfile::TempDir;

use super::*;

/// What was said.
type Said = Arc<Mutex<Vec<String>>>;

fn open_in(folder: &Path) -> (io::Result<CodeFiles>, Said) {
    let said = Said::default();
    let to = Arc::clone(&said);
    let say = Box::new(move |text: &str| to.lock().push(text.to_owned()));
    (CodeFiles::open(folder, say), said)
}

fn open(place: &TempDir) -> CodeFiles {
    open_in(&place.path().join("of/code")).0.unwrap()
}

fn names(place: &TempDir) -> Vec<PathBuf> {
    let entries = fs::read_dir(place.path().join("of/code")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn only(place: &TempDir) -> PathBuf {
    let [name] = &names(place)[..] else {
        panic!("one file: {:?}", names(place));
    };
    name.clone()
}

const ONE: Digest = [1; 32];
const TWO: Digest = [2; 32];

#[test]
fn what_is_kept_is_found_by_this_server_and_the_next_in_one_private_file() {
    let place = TempDir::new().unwrap();
    let files = open(&place);
    assert_eq!(files.find(&ONE), None);
    files.keep(&ONE, b"one");
    assert_eq!(files.find(&ONE).unwrap(), b"one");
    drop(files);
    let files = open(&place);
    files.keep(&TWO, b"");
    assert_eq!(files.find(&ONE).unwrap(), b"one");
    drop(files);
    let files = open(&place);
    assert_eq!(files.find(&ONE).unwrap(), b"one");
    assert_eq!(files.find(&TWO).unwrap(), b"");
    let metadata = fs::metadata(only(&place)).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
}

#[test]
fn two_servers_at_once_have_a_file_each() {
    let place = TempDir::new().unwrap();
    let (first, second) = (open(&place), open(&place));
    first.keep(&ONE, b"one");
    second.keep(&TWO, b"two");
    first.keep(&ONE, b"again");
    assert_eq!(second.find(&ONE), None, "it is not looked for later");
    drop((first, second));
    assert_eq!(names(&place).len(), 2);
    let files = open(&place);
    assert_eq!(files.find(&ONE).unwrap(), b"again", "the later one");
    assert_eq!(files.find(&TWO).unwrap(), b"two");
}

#[test]
fn a_damaged_record_is_not_found_and_can_be_kept_again() {
    let place = TempDir::new().unwrap();
    let files = open(&place);
    files.keep(&ONE, b"one");
    files.keep(&TWO, b"two");
    drop(files);
    let path = only(&place);
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        for cut in [false, true] {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            let bytes = if cut { &whole[..at] } else { &damaged[..] };
            fs::write(&path, bytes).unwrap();
            let files = open(&place);
            let found = [(&ONE, b"one"), (&TWO, b"two")].map(|(digest, contents)| {
                let found = files.find(digest);
                assert!(found.is_none() || found.as_deref() == Some(contents));
                found.is_some()
            });
            assert_ne!(found, [true, true], "byte {at}, cut: {cut}");
            files.keep(&ONE, b"one");
            files.keep(&TWO, b"two");
            drop(files);
            let files = open(&place);
            assert_eq!(files.find(&ONE).unwrap(), b"one", "byte {at}, cut: {cut}");
            assert_eq!(files.find(&TWO).unwrap(), b"two", "byte {at}, cut: {cut}");
        }
    }
}

#[test]
fn a_length_beyond_the_file_makes_no_room() {
    let place = TempDir::new().unwrap();
    let files = open(&place);
    files.keep(&ONE, b"one");
    drop(files);
    let path = only(&place);
    let mut bytes = fs::read(&path).unwrap();
    let length = MAGIC.len() + RECORD.len();
    for claimed in [u64::MAX, u64::MAX - 96, 1 << 40, 4] {
        bytes[length..][..8].copy_from_slice(&claimed.to_le_bytes());
        fs::write(&path, &bytes).unwrap();
        assert_eq!(open(&place).find(&ONE), None);
    }
}

#[test]
fn what_others_may_change_or_own_is_not_read() {
    let place = TempDir::new().unwrap();
    let kept = || {
        let files = open(&place);
        files.keep(&ONE, b"one");
        drop(files);
        only(&place)
    };
    let path = kept();
    for open_to in [0o620, 0o602, 0o644] {
        fs::set_permissions(&path, fs::Permissions::from_mode(open_to)).unwrap();
        assert_eq!(open(&place).find(&ONE), None, "{open_to:o}");
    }
    fs::remove_dir_all(place.path().join("of")).unwrap();
    let path = kept();
    let elsewhere = place.path().join("elsewhere");
    fs::rename(&path, &elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    assert_eq!(open(&place).find(&ONE), None, "a link");
    fs::remove_dir_all(place.path().join("of")).unwrap();
    if geteuid().is_root() {
        let path = kept();
        std::os::unix::fs::chown(&path, Some(1), None).unwrap();
        assert_eq!(open(&place).find(&ONE), None, "another user's");
        std::os::unix::fs::chown(place.path().join("of/code"), Some(1), None).unwrap();
        let refused = open_in(&place.path().join("of/code")).0.unwrap_err();
        assert!(refused.to_string().contains("chmod 700"), "{refused}");
    }
}

#[test]
fn a_folder_that_others_may_enter_or_that_is_a_link_is_not_opened() {
    let place = TempDir::new().unwrap();
    drop(open(&place));
    let folder = place.path().join("of/code");
    for open_to in [0o755, 0o710, 0o702] {
        fs::set_permissions(&folder, fs::Permissions::from_mode(open_to)).unwrap();
        let refused = open_in(&folder).0.unwrap_err().to_string();
        assert!(refused.contains("chmod 700"), "{refused}");
    }
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    let link = place.path().join("link");
    symlink(&folder, &link).unwrap();
    open_in(&link).0.unwrap_err();
    // Nor is there a folder where there is a file.
    fs::write(place.path().join("file"), "").unwrap();
    open_in(&place.path().join("file")).0.unwrap_err();
}

#[test]
fn a_full_disk_is_said_once_and_what_was_kept_stays() {
    let place = TempDir::new().unwrap();
    let files = open(&place);
    files.keep(&ONE, b"one");
    drop(files);
    let (files, said) = open_in(&place.path().join("of/code"));
    let mut files = files.unwrap();
    // A file that takes nothing more.
    let number = files.files.len() - 1;
    let read_only = File::open(only(&place)).unwrap();
    files.files[number] = read_only;
    files.keep(&TWO, b"two");
    files.keep(&TWO, b"two");
    assert_eq!(files.find(&TWO), None);
    assert_eq!(files.find(&ONE).unwrap(), b"one");
    assert_eq!(said.lock().len(), 1, "{:?}", said.lock());
    assert!(said.lock()[0].contains("any more"), "{:?}", said.lock());
}

#[test]
fn those_written_longest_ago_go() {
    let place = TempDir::new().unwrap();
    drop(open(&place));
    let folder = place.path().join("of/code");
    for number in 0..6_u64 {
        let path = folder.join(format!("{number}{ENDING}"));
        let mut new = OpenOptions::new();
        let file = new.write(true).create_new(true).mode(0o600).open(&path);
        let file = file.unwrap();
        file.set_len(MOST_BYTES / 4).unwrap();
        let ago = std::time::Duration::from_secs(100 - number);
        file.set_modified(std::time::SystemTime::now() - ago)
            .unwrap();
    }
    drop(open(&place));
    let exists = |number: u64| folder.join(format!("{number}{ENDING}")).exists();
    let left: Vec<u64> = (0..6).filter(|&number| exists(number)).collect();
    assert_eq!(left, [3, 4, 5], "with the one that was there first");
    fs::write(folder.join("notes"), "mine").unwrap();
    drop(open(&place));
    assert!(folder.join("notes").exists());
}

#[test]
fn a_file_has_an_end() {
    let place = TempDir::new().unwrap();
    let files = open(&place);
    let large = vec![7; FILE_BYTES as usize / 2];
    files.keep(&ONE, &large);
    files.keep(&TWO, &large);
    assert_eq!(files.find(&TWO), None);
    assert_eq!(files.find(&ONE).unwrap(), large);
    drop(files);
    // The next server begins another.
    let files = open(&place);
    files.keep(&TWO, &large);
    assert_eq!(files.find(&TWO).unwrap(), large);
    assert_eq!(names(&place).len(), 2);
}
