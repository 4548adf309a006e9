//! How `openmps top` looks: 80 columns are enough, more show more.
//!
//! Called by `top` for each frame. Must not ask the daemon or read a key: a state comes in.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as TableRow, Table};

use super::app::{App, Mode, Row};
use super::kernels::{KernelTable, Sum};
use super::order::Sort;
use crate::usage::{ClientUsage, DeviceUsage, Wait};

/// Lines that a device takes.
const OF_DEVICE: u16 = 2;

/// Lines of the table and what is above it.
pub fn height(app: &App) -> u16 {
    let lines = app.devices().len() * usize::from(OF_DEVICE) + app.rows().len() + 2;
    u16::try_from(lines).unwrap_or(u16::MAX).min(1000)
}

/// The whole screen.
pub fn screen(frame: &mut Frame<'_>, app: &App) {
    let [main, foot] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
    list(frame, main, app);
    frame.render_widget(bottom_line(app), foot);
    match app.mode() {
        Mode::Detail => {
            if let Some((device, client)) = app.selected() {
                over(frame, "client", detail(device, client));
            }
        }
        Mode::Kernels(table) => {
            if let Some((_, client)) = app.selected() {
                let height = frame.area().height.saturating_sub(2).into();
                over(frame, "kernels", kernels(client, table, height));
            }
        }
        Mode::Help => over(frame, "keys", HELP.lines().map(Line::from).collect()),
        Mode::List | Mode::Filter(_) | Mode::Ask(..) => {}
    }
}

/// Devices and clients alone.
pub fn table(frame: &mut Frame<'_>, app: &App) {
    list(frame, frame.area(), app);
}

const HELP: &str = "\
up, down    select a client
Enter       all that is known of it
s           sort by the next column
/           only clients with a text in them
g           clients of a group together, then of a pod
t           which kernels it runs: it is recorded while they are shown
p           change its active thread percentage
m           change how much memory it may have
e           end it
Space       stop and go on
q           quit";

fn bottom_line(app: &App) -> Line<'_> {
    let text = match app.mode() {
        Mode::Filter(_) => format!("only with: {}_", app.filter()),
        Mode::Ask(question, typed) => match app.selected() {
            Some((_, client)) => format!("{}{typed}_", question.text(client)),
            None => String::new(),
        },
        _ => match app.message() {
            Some(message) => message.to_owned(),
            None if app.is_paused() => "stopped; Space goes on".to_owned(),
            None => {
                "q quit  ? keys  s sort  / filter  g groups  Enter detail  p m limits  e end it"
                    .to_owned()
            }
        },
    };
    Line::from(text).style(Style::new().add_modifier(Modifier::DIM))
}

fn list(frame: &mut Frame<'_>, area: Rect, app: &App) {
    let devices = app.devices();
    let above = u16::try_from(devices.len())
        .unwrap_or(u16::MAX)
        .saturating_mul(OF_DEVICE);
    // However many devices there are, some clients are seen.
    let above = above.min(area.height / 2);
    let [top, rest] = Layout::vertical([Constraint::Length(above), Constraint::Min(0)]).areas(area);
    let lines: Vec<Line<'_>> = devices
        .iter()
        .flat_map(|device| device_lines(app, device, top.width.into()))
        .collect();
    frame.render_widget(Paragraph::new(lines), top);

    let rows = app.rows();
    let several = devices.len() > 1;
    let mut header = vec!["    PID", "USER"];
    let mut widths = vec![Constraint::Length(7), Constraint::Length(7)];
    if several {
        header.push("GPU");
        widths.push(Constraint::Length(3));
    }
    for (title, width) in [
        ("GPU%", 4),
        ("", 5),
        (" SM%", 4),
        ("WAIT%", 5),
        ("MEMORY", 11),
        ("LAUNCH/s", 8),
        ("COPY/s", 6),
    ] {
        header.push(title);
        widths.push(Constraint::Length(width));
    }
    header.push("PROGRAM");
    widths.push(Constraint::Min(6));
    let marked = |title: &'static str| match title.trim_start() == column(app.sort()) {
        true => Cell::from(title.bold().underlined()),
        false => Cell::from(title.bold()),
    };
    let selected = rows.iter().position(|row| match row {
        Row::Client(device, client) => app.is_selected((device.device, client.session)),
        Row::Group(..) => false,
    });
    // What is selected is in sight.
    let sight = usize::from(rest.height.saturating_sub(1));
    let first = selected.map_or(0, |at| (at + 1).saturating_sub(sight));
    let shown = rows.iter().enumerate().skip(first);
    let table = Table::new(
        shown.map(|(at, row)| {
            let row = match row {
                Row::Group(name, clients) => group_row(name, clients, several),
                Row::Client(device, client) => client_row(app, device, client, several),
            };
            match Some(at) == selected {
                true => row.add_modifier(Modifier::REVERSED),
                false => row,
            }
        }),
        widths,
    )
    .header(TableRow::new(header.into_iter().map(marked)))
    .column_spacing(1);
    frame.render_widget(table, rest);
}

/// The title of the column by which clients are sorted.
fn column(sort: Sort) -> &'static str {
    match sort {
        Sort::Kernels => "GPU%",
        Sort::Multiprocessors => "SM%",
        Sort::Memory => "MEMORY",
        Sort::Waited => "WAIT%",
        Sort::Launches => "LAUNCH/s",
        Sort::Copies => "COPY/s",
        Sort::Pid => "PID",
        Sort::Program => "PROGRAM",
    }
}

fn device_lines(app: &App, device: &DeviceUsage, width: usize) -> [Line<'static>; 2] {
    let wide = (width.saturating_sub(44) / 2).clamp(8, 40);
    let busy = device.rates.multiprocessors;
    let taken = part(device.memory_used, device.memory_total);
    [
        Line::from(vec![
            format!("GPU {} {}", device.device, device.name).bold(),
            format!(
                "  {} clients, {} multiprocessors",
                device.clients.len(),
                device.multiprocessors
            )
            .into(),
            match device.still_seconds {
                Some(seconds) => format!("  no progress for {seconds:.0} s").bold(),
                None => "".into(),
            },
        ]),
        Line::from(vec![
            Span::from(format!(" SM  {} {:>4}% ", bar(busy, wide), percent(busy))),
            curve(app.device_history(device.device), 8).into(),
            Span::from(format!(
                " MEM {} {} / {}",
                bar(taken, wide),
                bytes(device.memory_used as f64),
                bytes(device.memory_total as f64)
            )),
        ]),
    ]
}

fn client_row(
    app: &App,
    device: &DeviceUsage,
    client: &ClientUsage,
    several: bool,
) -> TableRow<'static> {
    let rates = &client.rates;
    let pid = match client.pid {
        0 => "?".to_owned(),
        pid => pid.to_string(),
    };
    let mut cells = vec![format!("{pid:>7}"), client.user.clone()];
    if several {
        cells.push(device.device.to_string());
    }
    cells.extend([
        format!("{:>4}", percent(rates.kernels)),
        curve(app.history((device.device, client.session)), 5),
        format!("{:>4}", percent(rates.multiprocessors)),
        format!("{:>5}", percent(rates.waited)),
        format!(
            "{:>5}/{:<5}",
            bytes(client.memory as f64),
            bytes(client.memory_limit as f64)
        ),
        format!("{:>8}", count(rates.launches)),
        format!("{:>6}", bytes(rates.to_device + rates.from_device)),
        client.title(),
    ]);
    TableRow::new(cells)
}

fn group_row(name: &str, clients: &[&ClientUsage], several: bool) -> TableRow<'static> {
    let sum = |value: fn(&ClientUsage) -> f64| clients.iter().map(|client| value(client)).sum();
    let mut cells = vec![String::new(), String::new()];
    if several {
        cells.push(String::new());
    }
    let memory: u64 = clients.iter().map(|client| client.memory).sum();
    cells.extend([
        format!("{:>4}", percent(sum(|client| client.rates.kernels))),
        String::new(),
        format!("{:>4}", percent(sum(|client| client.rates.multiprocessors))),
        String::new(),
        format!("{:>5}", bytes(memory as f64)),
        format!("{:>8}", count(sum(|client| client.rates.launches))),
        format!(
            "{:>6}",
            bytes(sum(
                |client| client.rates.to_device + client.rates.from_device
            ))
        ),
        format!("{name} ({} clients)", clients.len()),
    ]);
    TableRow::new(cells).bold()
}

fn detail(device: &DeviceUsage, client: &ClientUsage) -> Vec<Line<'static>> {
    let total = &client.total;
    let group = client.group.as_deref().unwrap_or("none");
    let waits = client.waits.iter().map(|wait| {
        format!(
            "  {:<16}{:>3} %",
            waited_for(device, wait),
            percent(wait.part)
        )
    });
    [
        format!("{} ({})", client.title(), client.pid),
        format!(
            "user {}, group {group}, server {}",
            client.user, client.server
        ),
        format!(
            "container {}, pod {}",
            client.place.container.as_deref().unwrap_or("none"),
            client.place.pod.as_deref().unwrap_or("none")
        ),
        format!("GPU {} {}", device.device, device.name),
        format!(
            "memory            {} of {}",
            bytes(client.memory as f64),
            bytes(client.memory_limit as f64)
        ),
        format!(
            "kernels           {} in {:.3} s",
            total.kernels, total.kernel_seconds
        ),
        format!("queued            {} operations now", client.queued),
        format!("multiprocessors   {:.3} s", total.multiprocessor_seconds),
        format!(
            "copies            {} in {:.3} s",
            total.copies, total.copy_seconds
        ),
        format!("  to the device   {}", bytes(total.bytes_to_device as f64)),
        format!(
            "  from the device {}",
            bytes(total.bytes_from_device as f64)
        ),
        format!(
            "  within it       {}",
            bytes(total.bytes_within_device as f64)
        ),
        format!(
            "modules loaded    {} in {:.3} s",
            total.loads, total.load_seconds
        ),
        format!("waited for others {:.3} s", total.waited_seconds),
        format!("held by its limit {:.3} s", total.throttled_seconds),
        format!("faults            {}", total.faults),
        format!("waits for others  {} % now", percent(client.rates.waited)),
    ]
    .into_iter()
    .chain(waits)
    .map(Line::from)
    .collect()
}

/// Streams of which there is a line.
const STREAMS_SHOWN: usize = 4;

/// A client's kernels and streams, in so many lines at most.
fn kernels(client: &ClientUsage, table: &KernelTable, most: usize) -> Vec<Line<'static>> {
    let all: u64 = table.kernels.iter().map(|(_, sum)| sum.nanoseconds).sum();
    let row = |sum: &Sum, name: &str| {
        let part = sum.nanoseconds as f64 / all.max(1) as f64;
        let mean = sum.nanoseconds as f64 / sum.count.max(1) as f64 / 1e3;
        format!(
            "{:>4} %{:>10}{mean:>12.1}  {name}",
            percent(part),
            sum.count
        )
    };
    let mut lines = vec![match &table.over {
        Some(why) => format!("{} ({}): {why}", client.title(), client.pid),
        None => format!(
            "{} ({}), recorded for {} s; any key ends it",
            client.title(),
            client.pid,
            table.seconds
        ),
    }];
    let head = |what: &str| format!("  TIME     COUNT     MEAN µs  {what}");
    let streams = table.streams.iter().take(STREAMS_SHOWN);
    let streams: Vec<_> = streams
        .map(|(stream, sum)| row(sum, &format!("stream {stream}")))
        .collect();
    let room = most.saturating_sub(streams.len() + 5);
    lines.push(head("KERNEL"));
    let shown = table.kernels.iter().take(room);
    lines.extend(shown.map(|(name, sum)| row(sum, name)));
    match table.kernels.len().saturating_sub(room) {
        0 if all == 0 => lines.push("nothing has run yet".to_owned()),
        0 => {}
        more => lines.push(format!("and {more} more")),
    }
    if !streams.is_empty() {
        lines.push(head("STREAM"));
        lines.extend(streams);
    }
    if table.dropped > 0 {
        lines.push(format!(
            "{} found no room and are not counted",
            table.dropped
        ));
    }
    lines.into_iter().map(Line::from).collect()
}

fn waited_for(device: &DeviceUsage, wait: &Wait) -> String {
    let other = device
        .clients
        .iter()
        .find(|other| Some(other.session) == wait.session);
    match other {
        Some(other) => format!("{} ({})", other.title(), other.pid),
        None => "others' clients".to_owned(),
    }
}

/// Shows lines in a box over the rest.
fn over(frame: &mut Frame<'_>, title: &'static str, lines: Vec<Line<'_>>) {
    let area = frame.area();
    let width = lines.iter().map(Line::width).max().unwrap_or(0) + 4;
    let width = u16::try_from(width).unwrap_or(u16::MAX).min(area.width);
    let height = u16::try_from(lines.len() + 2)
        .unwrap_or(u16::MAX)
        .min(area.height);
    let place = Rect {
        x: (area.width - width) / 2,
        y: (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, place);
    frame.render_widget(
        Paragraph::new(lines).block(Block::bordered().title(title)),
        place,
    );
}

fn part(of: u64, all: u64) -> f64 {
    of as f64 / all.max(1) as f64
}

fn percent(part: f64) -> String {
    format!("{:.0}", part * 100.0)
}

/// A bar of so many columns, full at 1.
fn bar(part: f64, columns: usize) -> String {
    let full = (part.clamp(0.0, 1.0) * columns as f64).round() as usize;
    format!("[{}{}]", "|".repeat(full), " ".repeat(columns - full))
}

/// The latest values from 0 to 1, one a column.
fn curve(values: impl DoubleEndedIterator<Item = f64>, columns: usize) -> String {
    const HEIGHTS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let latest: Vec<char> = values
        .rev()
        .take(columns)
        .map(|value| HEIGHTS[(value.clamp(0.0, 1.0) * 8.0).ceil() as usize])
        .collect();
    let text: String = latest.into_iter().rev().collect();
    format!("{text:>columns$}")
}

/// Bytes in at most six columns.
fn bytes(bytes: f64) -> String {
    let mut value = bytes;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1000.0 {
            return match value < 10.0 && unit != "B" {
                true => format!("{value:.1}{}", &unit[..1]),
                false => format!("{value:.0}{}", &unit[..1]),
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1}T")
}

/// A count in at most six columns.
fn count(value: f64) -> String {
    match value {
        value if value < 10_000.0 => format!("{value:.0}"),
        value if value < 1e6 => format!("{:.0}k", value / 1e3),
        value => format!("{:.1}M", value / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyCode;

    use super::super::app::Action;
    use super::super::app::tests::usage;
    use super::super::order::Grouping;
    use super::*;

    fn lines(app: &App) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a screen");
        terminal
            .draw(|frame| screen(frame, app))
            .expect("a drawing");
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(80);
        rows.map(|row| {
            row.iter()
                .map(|cell| cell.symbol())
                .collect::<String>()
                .trim_end()
                .to_owned()
        })
        .collect()
    }

    #[test]
    fn eighty_columns_show_who_uses_what() {
        let mut app = App::new(Sort::Kernels, String::new(), Grouping::No);
        app.update(usage());
        let lines = lines(&app);
        assert_eq!(
            lines[..5],
            [
                "GPU 0 OpenMPS software GPU  2 clients, 4 multiprocessors",
                " SM  [                  ]    0%        ▆ MEM [|||               ] 3.0G / 16G",
                "    PID USER    GPU%        SM% WAIT% MEMORY      LAUNCH/s COPY/s PROGRAM",
                "   4002 ada       50     ▄   25    25  2.0G/8.0G       12k   1.4G train.py",
                "   4001 ada       25     ▂   12    25  1.0G/8.0G       12k   1.4G nbody",
            ]
        );
        assert!(lines[23].starts_with("q quit"));
    }

    #[test]
    fn boxes_and_questions_are_shown_over_it() {
        let mut app = App::new(Sort::Kernels, String::new(), Grouping::Groups);
        app.update(usage());
        app.key(KeyCode::Down);
        app.key(KeyCode::Enter);
        let detail = lines(&app).join("\n");
        assert!(
            detail.contains("train.py (4002)") && detail.contains("waited for others 0.000 s"),
            "{detail}"
        );
        assert!(
            detail.contains("waits for others  25 % now")
                && detail.contains("  nbody (4001)     25 %")
                && detail.contains("queued            0 operations now"),
            "{detail}"
        );
        app.key(KeyCode::Enter);
        app.key(KeyCode::Char('e'));
        let asked = lines(&app);
        assert!(asked[23].starts_with("End train.py (4002)?"), "{asked:?}");
    }

    #[test]
    fn kernels_have_their_count_mean_and_share() {
        let mut app = App::new(Sort::Kernels, String::new(), Grouping::No);
        app.update(usage());
        assert_eq!(app.key(KeyCode::Char('t')), Action::WatchKernels(4002));
        let nothing = lines(&app).join("\n");
        assert!(nothing.contains("nothing has run yet"), "{nothing}");
        let sum = |count, nanoseconds| Sum { count, nanoseconds };
        let mut table = KernelTable {
            seconds: 3,
            kernels: (0..30)
                .map(|at| (format!("other{at}"), sum(1, 0)))
                .collect(),
            streams: vec![(2, sum(12_000, 4_000_000))],
            dropped: 7,
            over: None,
        };
        table
            .kernels
            .insert(0, ("gemm".to_owned(), sum(2_000, 3_000_000)));
        table
            .kernels
            .insert(1, ("copies and fills".to_owned(), sum(10_000, 1_000_000)));
        app.set_kernels(table);
        let shown = lines(&app);
        let of = |text: &str| {
            let boxed = shown.iter().filter_map(|line| line.split('│').nth(1));
            let found = boxed.map(str::trim).find(|line| line.contains(text));
            found.expect(text).to_owned()
        };
        assert_eq!(
            of("recorded"),
            "train.py (4002), recorded for 3 s; any key ends it"
        );
        assert_eq!(of("gemm"), "75 %      2000         1.5  gemm");
        assert_eq!(of("stream 2"), "100 %     12000         0.3  stream 2");
        assert!(of("more").starts_with("and 1"), "{shown:?}");
        assert_eq!(of("no room"), "7 found no room and are not counted");
        assert_eq!(app.key(KeyCode::Enter), Action::Nothing);
        assert!(!app.shows_kernels());
    }

    #[test]
    fn any_size_of_screen_will_do() {
        let mut app = App::new(Sort::Kernels, String::new(), Grouping::Groups);
        app.update(usage());
        for mode in ['?', 'x', 't', 'x', 'e', 'n', '/'] {
            app.key(KeyCode::Char(mode));
            for (width, height) in [(1, 1), (3, 2), (20, 4), (80, 1), (300, 100)] {
                let mut terminal =
                    Terminal::new(TestBackend::new(width, height)).expect("a screen");
                terminal
                    .draw(|frame| screen(frame, &app))
                    .expect("a drawing");
            }
        }
    }

    #[test]
    fn sizes_are_short() {
        let cases = [
            (0.0, "0B"),
            (999.0, "999B"),
            (1024.0, "1.0K"),
            (20.0 * 1048576.0, "20M"),
            (1.5e9, "1.4G"),
            (3e15, "2728.5T"),
        ];
        for (value, text) in cases {
            assert_eq!(bytes(value), text);
        }
        assert_eq!(count(9_999.4), "9999");
        assert_eq!(count(5_550_000.0), "5.5M");
    }
}
