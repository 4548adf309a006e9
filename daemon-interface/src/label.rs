//! What a client may be called: how long its label is at most, and which characters it has.
//!
//! The client library cuts what is in its environment, and the daemon makes it fit once more, since whoever connects may send
//! anything. Whoever shows a label escapes it as its own output needs. Must not know where a label is shown.

/// Bytes of a label at most.
pub const MOST: usize = 128;

/// The variable from which a client takes its label.
pub const VARIABLE: &str = "OPENMPS_LABEL";

/// A label of a text, however long and whatever is in it: on one line, without control characters and such as are not seen or turn
/// round what stands behind them, and cut with a `…` where it is too long. `None` where nothing is left.
#[must_use]
pub fn of(text: &str) -> Option<String> {
    let mut label = String::new();
    for c in text.trim().chars() {
        let c = if is_seen(c) { c } else { '?' };
        if label.len() + c.len_utf8() > MOST {
            label.truncate(label.floor_char_boundary(MOST - '…'.len_utf8()));
            label.push('…');
            break;
        }
        label.push(c);
    }
    (!label.is_empty()).then_some(label)
}

/// Whether a character takes its own place on a line.
fn is_seen(c: char) -> bool {
    let hidden = matches!(
        c,
        // What joins and parts letters unseen, marks and turns of direction, ends of lines, marks of order and of annotations, tags.
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    );
    !c.is_control() && !hidden
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short_and_on_one_line() {
        for (text, label) in [
            ("night run 7", Some("night run 7")),
            ("  größe <b>\"{}\\ ", Some("größe <b>\"{}\\")),
            ("a\nb\x1b[2Jc\u{9b}", Some("a?b?[2Jc?")),
            ("user\u{202e}toor\u{200b}", Some("user?toor?")),
            (" \n ", None),
            ("", None),
        ] {
            assert_eq!(of(text).as_deref(), label);
        }
    }

    #[test]
    fn ten_megabytes_are_cut_between_characters() {
        for part in ["x", "ä", "€", "\u{1f980}", "\0"] {
            let label = of(&part.repeat(10 << 20)).expect("a label");
            assert!(label.len() <= MOST && label.len() > MOST - 8, "{label}");
            assert!(label.ends_with('…'), "{label}");
        }
        let just = "x".repeat(MOST);
        assert_eq!(of(&just), Some(just));
    }
}
