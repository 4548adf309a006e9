//! Text within XML and HTML.
//!
//! The demo's picture and reports write both. Must not know what the text is: it may be a hostile program's name.

/// Text as XML has it. Control characters, for which XML has no place, become spaces.
pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => out.push(' '),
            control if control.is_control() => out.push(' '),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_no_markup() {
        assert_eq!(
            escaped("<a b=\"c\">&\u{1b}\u{ffff}"),
            "&lt;a b=&quot;c&quot;&gt;&amp;  "
        );
    }
}
