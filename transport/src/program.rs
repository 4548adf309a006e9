//! The program that a library of ours is in: whether its environment is its own, and text that goes to its log.

use std::ffi::{OsString, c_ulong};

// SAFETY: as the C library declares it; it takes any number.
unsafe extern "C" {
    /// What the kernel told this process at its start.
    safe fn getauxval(kind: c_ulong) -> c_ulong;
}

/// Whether it has more rights than whoever started it (set-uid, set-gid, file capabilities), who wrote its
/// environment.
#[must_use]
pub fn is_privileged() -> bool {
    const AT_SECURE: c_ulong = 23;
    getauxval(AT_SECURE) != 0
}

/// A variable of the environment, which a privileged program does not believe: the dynamic linker believes
/// none of its own then either.
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    if is_privileged() {
        return None;
    }
    std::env::var_os(name)
}

/// Text as part of one line of a log: what could be taken for a line's end, or would move a terminal's
/// cursor, is written as it would be in a string of Rust's.
#[must_use]
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        // The last two end a line for some who read it.
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_on_its_line() {
        for (text, line) in [
            ("/tmp/a b", "/tmp/a b"),
            ("größe\\", "größe\\"),
            ("a\n[1] forged", "a\\n[1] forged"),
            ("\u{1b}[2J\r\u{9b}", "\\u{1b}[2J\\r\\u{9b}"),
            ("x\u{2028}y", "x\\u{2028}y"),
        ] {
            assert_eq!(one_line(text), line);
        }
    }
}
