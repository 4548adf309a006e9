//! The picture that ends `openmps demo`: when each program ran, side by side and one after another, on one scale.
//!
//! It turns spans of time into text for a terminal or into SVG. It knows neither programs nor daemons, and trusts no
//! name that it draws. Called by `demo` alone.

use std::fmt::Write as _;
use std::time::Duration;

use crate::markup::escaped;

/// Characters of the longest row of bars in a terminal.
const COLUMNS: u128 = 50;

/// Widths in the SVG, left of the bars, of the bars and right of them; and the height of a row.
const LEFT: u128 = 90;
const BARS: u128 = 620;
const RIGHT: u128 = 110;
const ROW: u128 = 22;

/// Readable on light and on dark ground.
const STYLE: &str = "text { font: 12px sans-serif; fill: #24292f } .title { font-weight: bold } \
                     @media (prefers-color-scheme: dark) { text { fill: #d7dde4 } }";

/// Programs that were run in one way.
#[derive(Debug)]
pub struct Phase {
    pub title: String,
    pub colour: &'static str,
    pub bars: Vec<Bar>,
}

/// One program's time from its start to its end, both counted from the beginning of its phase.
#[derive(Debug)]
pub struct Bar {
    pub name: String,
    pub began: Duration,
    pub ended: Duration,
}

impl Bar {
    /// What stands behind the bar.
    fn note(&self) -> String {
        format!("{} ms", self.ended.saturating_sub(self.began).as_millis())
    }
}

/// The picture for a terminal.
pub fn text(phases: &[Phase]) -> String {
    let longest = longest(phases);
    let columns = |time: Duration| {
        usize::try_from(time.as_micros() * COLUMNS / longest).unwrap_or(usize::MAX)
    };
    let mut out = String::new();
    for phase in phases {
        _ = writeln!(out, "{}", phase.title);
        for bar in &phase.bars {
            let began = columns(bar.began);
            let length = columns(bar.ended).saturating_sub(began).max(1);
            _ = writeln!(
                out,
                "{:<10} {}{} {}",
                bar.name,
                " ".repeat(began),
                "█".repeat(length),
                bar.note()
            );
        }
    }
    out
}

/// The picture as a file of its own.
pub fn svg(title: &str, phases: &[Phase]) -> String {
    let longest = longest(phases);
    let units = |time: Duration| time.as_micros() * BARS / longest;
    let mut body = label("title", 8, 0, title);
    let mut y = ROW;
    for phase in phases {
        y += ROW / 2;
        body += &label("title", 8, y, &phase.title);
        y += ROW;
        for bar in &phase.bars {
            let x = LEFT + units(bar.began);
            let length = units(bar.ended).saturating_sub(units(bar.began)).max(1);
            _ = writeln!(
                body,
                r#"<rect x="{x}" y="{}" width="{length}" height="16" rx="2" fill="{}"/>"#,
                y + 3,
                phase.colour
            );
            body += &label("name", 8, y, &bar.name);
            body += &label("note", x + length + 6, y, &bar.note());
            y += ROW;
        }
    }
    let (width, height) = (LEFT + BARS + RIGHT, y + ROW / 2);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\">\n<title>{}</title>\n<style>{STYLE}</style>\n{body}</svg>\n",
        escaped(title)
    )
}

/// Text in the row that begins at `y`.
fn label(class: &str, x: u128, y: u128, text: &str) -> String {
    let base = y + 15;
    format!(
        "<text class=\"{class}\" x=\"{x}\" y=\"{base}\">{}</text>\n",
        escaped(text)
    )
}

/// The time of the longest phase in microseconds, and never none.
fn longest(phases: &[Phase]) -> u128 {
    phases
        .iter()
        .flat_map(|phase| &phase.bars)
        .map(|bar| bar.ended.as_micros())
        .fold(1, u128::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(name: &str, began: u64, ended: u64) -> Bar {
        Bar {
            name: name.to_owned(),
            began: Duration::from_millis(began),
            ended: Duration::from_millis(ended),
        }
    }

    fn phases() -> [Phase; 2] {
        [
            Phase {
                title: "side by side".to_owned(),
                colour: "#3d84a8",
                bars: vec![bar("one", 0, 80), bar("two", 0, 100)],
            },
            Phase {
                title: "one after another".to_owned(),
                colour: "#d08a3c",
                bars: vec![bar("<three>", 0, 50), bar("four", 50, 100)],
            },
        ]
    }

    #[test]
    fn rows_of_text_stand_where_and_as_long_as_programs_ran() {
        let text = text(&phases());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "side by side");
        assert_eq!(lines[1], format!("one        {} 80 ms", "█".repeat(40)));
        assert_eq!(
            lines[5],
            format!("four       {}{} 50 ms", " ".repeat(25), "█".repeat(25))
        );
    }

    #[test]
    fn the_file_has_a_bar_for_each_program_and_every_text_escaped() {
        let svg = svg("a < b & \"c\"\u{1b}", &phases());
        assert_eq!(svg.matches("<rect ").count(), 4);
        assert!(svg.contains("<title>a &lt; b &amp; &quot;c&quot; </title>"));
        assert!(svg.contains("&lt;three&gt;") && !svg.contains("<three>"));
        assert!(svg.contains(r#"<rect x="400" "#), "{svg}");
    }

    #[test]
    fn programs_of_no_time_are_seen() {
        let phase = Phase {
            title: String::new(),
            colour: "#3d84a8",
            bars: vec![bar("none", 0, 0)],
        };
        assert!(svg("", &[phase]).contains(r#"width="1""#));
    }
}
