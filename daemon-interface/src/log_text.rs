//! Foreign text (names, paths, variables) as part of a log's line, which it can neither end nor forge.
//!
//! For the logs of the libraries `client` and `nvml`, and for errors that name variables. Must not know which log it
//! is. Called by whoever writes a log.

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
