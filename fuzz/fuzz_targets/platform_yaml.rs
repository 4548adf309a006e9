//! Cloudpods' files, as anybody may have written them: read or refused with a message that names a
//! line of the file, never more.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use platform::cloudpods::{HostConf, device_entries};
use platform::yaml::{BadFile, File};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let lines = text
        .split(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'])
        .count() as u64;
    let check = |error: BadFile| {
        let message = error.to_string();
        assert!(
            message.starts_with("file.yml") && message.contains("\n  -> "),
            "{message}"
        );
        assert!(error.line.is_none_or(|line| line <= lines + 1), "{message}");
    };
    let file = match File::parse(Path::new("file.yml"), text) {
        Ok(file) => file,
        Err(error) => return check(error),
    };
    match HostConf::of(&file) {
        Ok(conf) => assert!((1..=100).contains(&conf.replicas) && conf.pipe.is_absolute()),
        Err(error) => check(error),
    }
    match device_entries(&file) {
        Ok(entries) => {
            for entry in &entries {
                assert!((1..=100).contains(&entry.parts) && entry.path.is_absolute());
            }
        }
        Err(error) => check(error),
    }
});
