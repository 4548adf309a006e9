//! Plots as inline SVG: areas on top of each other over a time, with a scale at their left and below.
//!
//! Must not know what is plotted. Called by `html`.

use std::fmt::Write as _;

use crate::markup::escaped;

/// Units of the picture: the area's width and height, and what is left of it and below for the scales.
const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 160.0;
const LEFT: f64 = 70.0;
const BELOW: f64 = 22.0;

/// A layer: what it is called, its class for a colour, and a value for each stretch of time.
pub struct Layer {
    pub name: String,
    pub colour: String,
    pub values: Vec<f64>,
}

/// The layers over stretches of so many seconds each. `top` is the greatest value, and what it is called.
pub fn stacked_chart(title: &str, seconds: &[f64], layers: &[Layer], top: (f64, &str)) -> String {
    let all: f64 = seconds.iter().sum::<f64>().max(1e-9);
    let mut ends = Vec::with_capacity(seconds.len() + 1);
    let mut end = 0.0;
    for length in seconds {
        end += length;
        ends.push(LEFT + end / all * WIDTH);
    }
    let height_of = |value: f64| HEIGHT - (value / top.0.max(1e-9)).clamp(0.0, 1.0) * HEIGHT;
    let mut below = vec![0.0; seconds.len()];
    let mut areas = String::new();
    for layer in layers {
        let above: Vec<f64> = below
            .iter()
            .zip(&layer.values)
            .map(|(below, value)| below + value)
            .collect();
        if layer.values.iter().any(|value| *value > 0.0) {
            _ = writeln!(
                areas,
                r#"<path class="{}" d="{}"><title>{}</title></path>"#,
                layer.colour,
                area(&ends, &below, &above, height_of),
                escaped(&layer.name)
            );
        }
        below = above;
    }
    let (right, bottom) = (LEFT + WIDTH, HEIGHT + BELOW);
    let half = HEIGHT / 2.0;
    let label = escaped(title);
    format!(
        "<svg viewBox=\"0 0 {} {bottom}\" role=\"img\" aria-label=\"{label}\">\n\
         <rect class=\"ground\" x=\"{LEFT}\" y=\"0\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n{areas}\
         <path class=\"line\" d=\"M{LEFT} {half}H{right}\"/>\n\
         <text x=\"{}\" y=\"11\" text-anchor=\"end\">{}</text>\n\
         <text x=\"{}\" y=\"{HEIGHT}\" text-anchor=\"end\">0</text>\n\
         <text x=\"{LEFT}\" y=\"{}\">0 s</text>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
         <text x=\"{right}\" y=\"{}\" text-anchor=\"end\">{}</text>\n</svg>\n",
        right + 4.0,
        LEFT - 6.0,
        escaped(top.1),
        LEFT - 6.0,
        bottom - 6.0,
        LEFT + WIDTH / 2.0,
        bottom - 6.0,
        format_seconds(all / 2.0),
        bottom - 6.0,
        format_seconds(all),
    )
}

/// The outline between two lines of steps, each as wide as its stretch of time.
fn area(ends: &[f64], lower: &[f64], upper: &[f64], height_of: impl Fn(f64) -> f64) -> String {
    let mut path = format!(
        "M{LEFT:.1} {:.1}",
        height_of(lower.first().copied().unwrap_or(0.0))
    );
    let (mut back, mut begin) = (String::new(), LEFT);
    for ((end, lower), upper) in ends.iter().zip(lower).zip(upper) {
        _ = write!(path, "V{:.1}H{end:.1}", height_of(*upper));
        let low = height_of(*lower);
        // From the right to the left, in front of what is there.
        back.insert_str(0, &format!("L{end:.1} {low:.1}L{begin:.1} {low:.1}"));
        begin = *end;
    }
    path + &back + "Z"
}

/// A time for people.
pub fn format_seconds(seconds: f64) -> String {
    match seconds {
        short if short < 1.0 => format!("{:.0} ms", short * 1000.0),
        short if short < 120.0 => format!("{short:.1} s"),
        long if long < 7200.0 => format!("{:.0} min {:.0} s", (long / 60.0).floor(), long % 60.0),
        long => format!(
            "{:.0} h {:.0} min",
            (long / 3600.0).floor(),
            long % 3600.0 / 60.0
        ),
    }
}

/// Bytes for people.
pub fn bytes(count: u64) -> String {
    let mut count = count as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if count < 1024.0 {
            break;
        }
        count /= 1024.0;
        unit = next;
    }
    match unit {
        "B" => format!("{count} B"),
        _ => format!("{count:.1} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_as_wide_and_high_as_what_they_show() {
        let layer = |name: &str, values: &[f64]| Layer {
            name: name.into(),
            colour: "c0".into(),
            values: values.to_vec(),
        };
        let layers = [
            layer("<a>", &[0.5, 0.0]),
            layer("b", &[0.25, 1.0]),
            layer("none", &[0.0, 0.0]),
        ];
        let svg = stacked_chart("a < b", &[1.0, 3.0], &layers, (1.0, "100 %"));
        // A quarter of the width, half the height.
        assert!(
            svg.contains(r#"d="M70.0 160.0V80.0H275.0V160.0H890.0L"#),
            "{svg}"
        );
        assert!(
            svg.contains("<title>&lt;a&gt;</title>") && svg.contains("a &lt; b"),
            "{svg}"
        );
        assert_eq!(svg.matches("<path class=\"c0\"").count(), 2, "{svg}");
        assert!(svg.contains(">4.0 s</text>"), "{svg}");
        drop(stacked_chart("", &[], &[], (0.0, "")));
    }

    #[test]
    fn figures_are_for_people() {
        assert_eq!(format_seconds(0.25), "250 ms");
        assert_eq!(format_seconds(61.0), "61.0 s");
        assert_eq!(format_seconds(125.0), "2 min 5 s");
        assert_eq!(format_seconds(7260.0), "2 h 1 min");
        assert_eq!(bytes(12), "12 B");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
    }
}
