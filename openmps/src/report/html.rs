//! What was recorded as one HTML file: tables and plots, nothing from elsewhere, no script.
//!
//! Must not know how it was recorded. Names are programs' own, and escaped. Called by `report`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::plot::{Layer, bytes, format_seconds, stacked_chart};
use super::record::{Client, Key, Recorded, Sample};
use crate::markup::escaped;

const STYLE: &str = include_str!("report.css");

/// Clients with a colour of their own in a plot.
const COLOURS: usize = 8;

/// Clients in the table of waits.
const WAITING: usize = 16;

/// The file. `about` says in words what was recorded.
pub fn page(recorded: &Recorded, title: &str, about: &[String]) -> String {
    let mut body = format!("<h1>{}</h1>\n", escaped(title));
    for line in about {
        _ = writeln!(body, "<p class=\"note\">{}</p>", escaped(line));
    }
    if let (count, Some(why)) = &recorded.unanswered {
        _ = writeln!(
            body,
            "<p class=\"note\">{count} times the daemon did not answer: {}</p>",
            escaped(why)
        );
    }
    if recorded.left_out > 0 {
        body += "<p class=\"note\">There were more clients than are told of here; the devices' sums have them all.</p>\n";
    }
    for (&ordinal, device) in &recorded.devices {
        _ = writeln!(body, "<h2>GPU {ordinal} · {}</h2>", escaped(&device.name));
        let worked = recorded.worked(ordinal);
        let part = percent(worked, recorded.seconds());
        _ = writeln!(
            body,
            "<p>{} multiprocessors, used for {part} of {}</p>",
            device.multiprocessors,
            format_seconds(recorded.seconds())
        );
        plots(&mut body, recorded, ordinal);
    }
    body += "<h2>Who used what</h2>\n";
    body += &used(recorded);
    body += "<h2>Where time was lost</h2>\n";
    body += &lost(recorded);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escaped(title)
    )
}

/// Who it is, with what tells two of a name apart.
fn name(client: &Client) -> String {
    format!("{} ({})", client.title, client.pid)
}

/// The same, and where it is.
fn full_name(client: &Client) -> String {
    match whereabouts(client) {
        place if place.is_empty() => name(client),
        place => format!("{} · {place}", name(client)),
    }
}

/// Where it is: its user, group, container and pod, as far as they are known.
fn whereabouts(client: &Client) -> String {
    let named = |word: &str, name: &Option<String>| {
        let name = name.as_ref()?;
        Some(format!("{word} {name}"))
    };
    let user = (!client.user.is_empty()).then(|| client.user.clone());
    let parts = [
        user,
        named("group", &client.group),
        named("container", &client.place.container),
        named("pod", &client.place.pod),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join(", ")
}

fn percent(part: f64, all: f64) -> String {
    format!("{:.1} %", 100.0 * part / all.max(1e-9))
}

/// A device's clients, those that used it most, with their colours; the others have none.
fn most(recorded: &Recorded, device: u32) -> Vec<Key> {
    let mut sums: BTreeMap<Key, f64> = BTreeMap::new();
    for sample in &recorded.samples {
        for (key, (worked, _)) in sample.clients.range((device, 0)..=(device, u64::MAX)) {
            *sums.entry(*key).or_default() += worked;
        }
    }
    let mut keys: Vec<Key> = sums.keys().copied().collect();
    keys.sort_by(|one, other| sums[other].total_cmp(&sums[one]));
    keys.truncate(COLOURS);
    keys.sort_unstable();
    keys
}

fn plots(body: &mut String, recorded: &Recorded, device: u32) {
    let keys = most(recorded, device);
    let seconds: Vec<f64> = recorded
        .samples
        .iter()
        .map(|sample| sample.seconds)
        .collect();
    let layers = |of_client: &dyn Fn(&Sample, &Key) -> f64, of_all: &dyn Fn(&Sample) -> f64| {
        let mut layers: Vec<Layer> = keys
            .iter()
            .enumerate()
            .map(|(colour, key)| Layer {
                name: recorded.clients.get(key).map(full_name).unwrap_or_default(),
                colour: format!("c{colour}"),
                values: recorded
                    .samples
                    .iter()
                    .map(|sample| of_client(sample, key))
                    .collect(),
            })
            .collect();
        let rest = |(index, sample): (usize, &Sample)| {
            let named: f64 = layers.iter().map(|layer| layer.values[index]).sum();
            // What rounding leaves is nobody's.
            match of_all(sample) - named {
                little if little < 0.001 * of_all(sample) => 0.0,
                rest => rest,
            }
        };
        let values = recorded.samples.iter().enumerate().map(rest).collect();
        layers.push(Layer {
            name: "others, or not seen by name".to_owned(),
            colour: "rest".to_owned(),
            values,
        });
        layers
    };
    let of_client =
        |sample: &Sample, key: &Key| sample.clients.get(key).copied().unwrap_or_default();
    let of_device = |sample: &Sample| sample.devices.get(&device).copied().unwrap_or_default();
    let part = |seconds: f64, sample: &Sample| seconds / sample.seconds.max(1e-9);
    let worked = layers(
        &|sample, key| part(of_client(sample, key).0, sample),
        &|sample| part(of_device(sample).0, sample),
    );
    let held = layers(&|sample, key| of_client(sample, key).1 as f64, &|sample| {
        of_device(sample).1 as f64
    });
    body.push_str("<ul class=\"legend\">\n");
    for (layer, memory) in worked.iter().zip(&held) {
        if layer
            .values
            .iter()
            .chain(&memory.values)
            .any(|value| *value > 0.0)
        {
            _ = writeln!(
                body,
                "<li><svg viewBox=\"0 0 1 1\" aria-hidden=\"true\"><rect class=\"{}\" width=\"1\" height=\"1\"/></svg>{}</li>",
                layer.colour,
                escaped(&layer.name)
            );
        }
    }
    body.push_str("</ul>\n<p class=\"note\">Multiprocessors, by client</p>\n");
    body.push_str(&stacked_chart(
        "Multiprocessors, by client",
        &seconds,
        &worked,
        (1.0, "100 %"),
    ));
    let most_held = recorded
        .samples
        .iter()
        .map(|sample| of_device(sample).1)
        .max();
    let most_held = most_held.unwrap_or(0);
    body.push_str("<p class=\"note\">Memory, by client</p>\n");
    let top = (most_held as f64, &*bytes(most_held));
    body.push_str(&stacked_chart("Memory, by client", &seconds, &held, top));
}

/// A table in a frame that scrolls.
fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut out = "<div class=\"scroll\"><table>\n<thead><tr>".to_owned();
    for (column, title) in head.iter().enumerate() {
        let class = if column == 0 { " class=\"text\"" } else { "" };
        _ = write!(out, "<th scope=\"col\"{class}>{title}</th>");
    }
    out += "</tr></thead>\n<tbody>\n";
    for row in rows {
        out += "<tr>";
        for (column, cell) in row.iter().enumerate() {
            out += &match column {
                0 => format!("<th scope=\"row\">{cell}</th>"),
                _ => format!("<td>{cell}</td>"),
            };
        }
        out += "</tr>\n";
    }
    out + "</tbody>\n</table></div>\n"
}

fn used(recorded: &Recorded) -> String {
    if recorded.clients.is_empty() {
        return "<p>No client was seen.</p>\n".to_owned();
    }
    let rows = recorded.clients.iter().map(|((device, _), client)| {
        let had = &client.had;
        let multiprocessors = recorded
            .devices
            .get(device)
            .map_or(1, |it| it.multiprocessors);
        let all = recorded.worked(*device) * f64::from(multiprocessors);
        vec![
            escaped(&name(client)),
            escaped(&whereabouts(client)),
            device.to_string(),
            format_seconds(client.seen.1 - client.seen.0),
            had.kernels.to_string(),
            format_seconds(had.kernel_seconds),
            percent(had.multiprocessor_seconds.min(all), all),
            bytes(client.memory),
            bytes(had.bytes_to_device),
            bytes(had.bytes_from_device),
            had.faults.to_string(),
        ]
    });
    let head = [
        "Client",
        "User, group, container, pod",
        "GPU",
        "There for",
        "Kernels",
        "They ran",
        "Part of all work",
        "Memory, at most",
        "To device",
        "From device",
        "Faults",
    ];
    table(&head, rows)
}

fn lost(recorded: &Recorded) -> String {
    if recorded.clients.is_empty() {
        return "<p>No client was seen.</p>\n".to_owned();
    }
    let rows = recorded.clients.values().map(|client| {
        let there = client.seen.1 - client.seen.0;
        let had = &client.had;
        let bar = |part: f64, colour: &str| {
            let width = (100.0 * part / there.max(1e-9)).clamp(0.0, 100.0);
            format!(
                "{}<svg viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect class=\"ground\" width=\"100\" \
                 height=\"10\"/><rect class=\"{colour}\" width=\"{width:.1}\" height=\"10\"/></svg>",
                percent(part, there)
            )
        };
        // Kernels and copies of a client may run at the same time.
        let busy = had.kernel_seconds + had.waited_seconds + had.copy_seconds + had.load_seconds;
        vec![
            escaped(&name(client)),
            bar(had.kernel_seconds, "c2"),
            bar(had.waited_seconds, "c1"),
            bar(had.copy_seconds, "c0"),
            bar(had.load_seconds, "c3"),
            bar((there - busy).max(0.0), "rest"),
            escaped(&waited_for(recorded, client)),
        ]
    });
    let head = [
        "Client",
        "Kernels ran",
        "Waited for others",
        "Copied",
        "Loaded modules",
        "Neither",
        "Waited most for",
    ];
    let mut rows: Vec<_> = rows.collect();
    let left_out = rows.len().saturating_sub(WAITING);
    if left_out > 0 {
        let mut by_wait: Vec<(f64, usize)> = recorded
            .clients
            .values()
            .map(|client| client.had.waited_seconds)
            .zip(0..)
            .collect();
        by_wait.sort_by(|one, other| other.0.total_cmp(&one.0));
        let kept: Vec<usize> = by_wait.iter().take(WAITING).map(|(_, at)| *at).collect();
        rows = kept.into_iter().map(|at| rows[at].clone()).collect();
    }
    let mut out = "<p class=\"note\">Parts of the time that the client was there. Kernels and copies of a client may run side by side, so that \
                   parts may be more than all together.</p>\n"
        .to_owned();
    out += &table(&head, rows.into_iter());
    if left_out > 0 {
        _ = writeln!(
            out,
            "<p class=\"note\">Those {WAITING} that waited longest; {left_out} others are not shown.</p>"
        );
    }
    out
}

/// The client, or those that are not shown, for which this one waited longest.
fn waited_for(recorded: &Recorded, client: &Client) -> String {
    let longest = client
        .waits
        .iter()
        .max_by(|one, other| one.1.total_cmp(other.1));
    match longest {
        Some((session, seconds)) if *seconds > 0.0 => {
            let found = recorded
                .clients
                .iter()
                .find(|((_, of), _)| Some(*of) == *session);
            let whom = found.map_or("others".to_owned(), |(_, other)| name(other));
            format!("{whom}, {}", format_seconds(*seconds))
        }
        _ => "–".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container_names::ContainerName;
    use crate::usage::Total;

    fn recorded() -> Recorded {
        let sample = |one: f64, all: f64| Sample {
            seconds: 1.0,
            devices: [(0, (all, 4096))].into(),
            clients: [((0, 1), (one, 1024))].into(),
        };
        let client = |program: &str, had: Total| Client {
            title: program.into(),
            seen: (0.0, 2.0),
            had,
            ..Client::default()
        };
        let waits = [(Some(2), 0.4), (None, 0.1)].into();
        let had = Total {
            kernels: 7,
            kernel_seconds: 0.5,
            waited_seconds: 0.5,
            ..Total::default()
        };
        Recorded {
            samples: vec![sample(0.5, 0.5), sample(0.25, 1.0)],
            devices: [(0, super::super::record::Device::default())].into(),
            clients: [
                (
                    (0, 1),
                    Client {
                        waits,
                        ..client("<script>\"&\u{1b}", had)
                    },
                ),
                (
                    (0, 2),
                    Client {
                        user: "ada".to_owned(),
                        place: ContainerName {
                            pod: Some("<web>-0".to_owned()),
                            ..ContainerName::default()
                        },
                        ..client("b", Total::default())
                    },
                ),
            ]
            .into(),
            ..Recorded::default()
        }
    }

    #[test]
    fn a_report_says_who_had_what_and_escapes_names() {
        let html = page(&recorded(), "a < b", &["c & d".to_owned()]);
        assert!(html.contains("<title>a &lt; b</title>") && html.contains("c &amp; d"));
        assert!(
            html.contains("&lt;script&gt;&quot;&amp;  (0)") && !html.contains("<script"),
            "{html}"
        );
        assert!(html.contains("used for 75.0 % of 2.0 s"), "{html}");
        // A quarter of the time each.
        assert_eq!(html.matches("25.0 %<svg").count(), 2, "{html}");
        assert!(html.contains("b (0), 400 ms"), "{html}");
        assert!(html.contains("<td>ada, pod &lt;web&gt;-0</td>"), "{html}");
        assert!(html.contains("others, or not seen by name"), "{html}");
        assert!(!html.contains("://"), "nothing from elsewhere");
        let nobody = page(&Recorded::default(), "", &[]);
        assert!(nobody.contains("No client was seen"));
    }
}
