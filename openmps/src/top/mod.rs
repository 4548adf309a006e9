//! `openmps top`: who uses the devices now.
//!
//! Looks at the daemon's accounts again and again, and shows what came between two looks. [`app`] is what is shown and what keys do to
//! it, [`draw`] how it looks; here is the terminal.
//!
//! Called by `main`. Must not know how it looks.

mod app;
mod draw;
mod kernels;
mod order;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use protocol::control_messages::View;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use self::app::{Action, App};
use self::kernels::KernelWatch;
use self::order::{Grouping, Sort};
use crate::command;
use crate::machine;
use crate::usage::{self, Usage};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Print one table and end
    #[arg(long)]
    once: bool,
    /// Print the same as JSON, with more of each client, and end
    #[arg(long)]
    json: bool,
    /// Seconds between two looks
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: f64,
    /// What the clients are sorted by
    #[arg(short, long, value_enum, default_value = "kernels")]
    sort: Sort,
    /// Only clients whose program, label, user, group, container, pod or process id has this in it
    #[arg(short, long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Clients of a group together, below their sum
    #[arg(short, long)]
    groups: bool,
    /// Clients of a pod or container together, below their sum
    #[arg(long, conflicts_with = "groups")]
    pods: bool,
}

/// How long the daemon may take once the screen is there: keys wait meanwhile.
const WITHIN: Duration = Duration::from_secs(2);

/// Columns of a table that goes to no terminal.
const COLUMNS: u16 = 120;

fn interval(text: &str) -> Result<f64> {
    let seconds: f64 = text.parse().map_err(|_| anyhow!("a number of seconds"))?;
    if !(0.1..=3600.0).contains(&seconds) {
        bail!("from 0.1 to 3600 seconds");
    }
    Ok(seconds)
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let interval = Duration::from_secs_f64(arguments.interval);
    let together = match (arguments.groups, arguments.pods) {
        (true, _) => Grouping::Groups,
        (_, true) => Grouping::Pods,
        _ => Grouping::No,
    };
    let mut app = App::new(arguments.sort, arguments.filter.clone(), together);
    if arguments.once || arguments.json {
        let earlier = machine::view(machine::PATIENCE)?;
        std::thread::sleep(interval);
        let usage = usage::between(Some(&earlier), &machine::view(machine::PATIENCE)?);
        if arguments.json {
            println!("{}", serde_json::to_string_pretty(&app.filtered(usage))?);
            return Ok(ExitCode::SUCCESS);
        }
        app.update(usage);
        print!("{}", as_text(&app)?);
        return Ok(ExitCode::SUCCESS);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!(
            "top keeps a terminal up to date, and here is none: --once prints one table, --json the same for programs"
        );
    }
    // Before the screen is taken, so that what is wrong stays to be read.
    let first = machine::view(machine::PATIENCE)?;
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let result = event_loop(&mut terminal, &mut app, first, interval);
    ratatui::restore();
    result.map(|()| ExitCode::SUCCESS)
}

/// The table as lines of text, as wide as the terminal if there is one.
fn as_text(app: &App) -> Result<String> {
    let columns = match std::io::stdout().is_terminal() {
        true => ratatui::crossterm::terminal::size().map_or(COLUMNS, |(columns, _)| columns),
        false => COLUMNS,
    };
    let mut terminal = Terminal::new(TestBackend::new(columns, draw::height(app)))?;
    terminal.draw(|frame| draw::table(frame, app))?;
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for row in buffer.content().chunks(buffer.area.width.into()) {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    Ok(text)
}

/// Shows what is, until somebody ends it.
fn event_loop(
    terminal: &mut ratatui::DefaultTerminal,
    app: &mut App,
    mut earlier: View,
    interval: Duration,
) -> Result<()> {
    app.update(usage::between(None, &earlier));
    let mut next = Instant::now() + interval;
    let mut watch: Option<KernelWatch> = None;
    loop {
        // Nobody is recorded for longer than somebody looks.
        watch = watch.filter(|_| app.shows_kernels());
        if let Some(watch) = &watch {
            app.set_kernels(watch.table());
        }
        terminal.draw(|frame| draw::screen(frame, app))?;
        let left = next.saturating_duration_since(Instant::now());
        if event::poll(left)? {
            let Event::Key(key) = event::read()? else {
                continue;
            };
            if key.kind != KeyEventKind::Press {
                continue;
            }
            let interrupts = key.modifiers.contains(KeyModifiers::CONTROL)
                && matches!(key.code, KeyCode::Char('c' | 'd'));
            match app.key(key.code) {
                _ if interrupts => return Ok(()),
                Action::Quit => return Ok(()),
                Action::Nothing => {}
                Action::Command(line) => app.show_message(&carry_out(&line)),
                Action::WatchKernels(pid) => match KernelWatch::begin(pid) {
                    Ok(begun) => watch = Some(begun),
                    Err(error) => app.close(&format!("{error:#}")),
                },
            }
            continue;
        }
        next = Instant::now() + interval;
        match machine::view(WITHIN) {
            Ok(view) => {
                if !app.is_paused() {
                    app.update(usage::between(Some(&earlier), &view));
                    earlier = view;
                }
            }
            // A daemon may come back.
            Err(error) => {
                app.update(Usage::default());
                app.show_message(&format!("{error:#}"));
            }
        }
    }
}

/// Has the daemon carry out a command, and says in a line what came of it.
fn carry_out(line: &str) -> String {
    match command::carry_out(line) {
        Ok(said) if said.trim().is_empty() => format!("{line}: done"),
        Ok(said) => command::first_line(&said),
        Err(error) => error.to_string(),
    }
}
