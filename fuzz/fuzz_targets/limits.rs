//! Any text as each kind of limit: refused, or a value within its bounds. Nothing is ever "no limit".
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::limits;

fuzz_target!(|text: &str| {
    if let Ok(value) = limits::percentage(text) {
        assert!(value > 0.0 && value <= 100.0);
        assert_eq!(limits::percentage(&value.to_string()), Ok(value));
    }
    if let Ok(list) = limits::memory_limits(text) {
        assert_eq!(list.is_empty(), text.trim().is_empty());
        let written: Vec<String> = list
            .iter()
            .map(|limit| format!("{}={}", limit.device, limit.bytes))
            .collect();
        assert!(list.iter().all(|limit| limit.bytes > 0));
        assert_eq!(limits::memory_limits(&written.join(",")), Ok(list));
    }
    if let Ok(bytes) = limits::size_in_bytes(text) {
        assert_eq!(limits::size_in_bytes(&bytes.to_string()), Ok(bytes));
    }
    assert!(limits::priority(text).is_err() || matches!(text.trim(), "0" | "1"));
});
