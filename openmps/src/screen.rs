//! The screen of `openmps demo`: lines of several programs, each with its name before it, as
//! docker-compose prints them, above a bar that says how far the demo is.
//!
//! It knows neither daemons nor clients: the demo says which lines are shown and which go to a file. Called by `demo`
//! alone.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Where lines and progress go.
#[derive(Clone, Debug)]
pub struct Screen {
    /// Draws on standard error, and only on a terminal.
    progress: MultiProgress,
    /// Standard output is kept for the result: lines go to standard error.
    result_only: bool,
}

impl Screen {
    pub fn new(result_only: bool) -> Self {
        Self {
            progress: MultiProgress::new(),
            result_only,
        }
    }

    /// Prints what comes from `source`, line by line, as `name | line`, and returns it at the end.
    pub fn prefix_lines(
        &self,
        name: &str,
        source: impl Read + Send + 'static,
    ) -> JoinHandle<Vec<String>> {
        let (screen, name) = (self.clone(), name.to_owned());
        each_line(source, move |line| {
            screen.print(&format!("{name:<10} | {line}"));
        })
    }

    /// A bar of `steps` steps, until it is finished. It moves also while a step takes long.
    pub fn bar(&self, steps: u64) -> ProgressBar {
        let style =
            ProgressStyle::with_template("{spinner} [{bar:30}] {pos}/{len} {msg} ({elapsed})")
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("=> ");
        let bar = self.progress.add(ProgressBar::new(steps));
        bar.set_style(style);
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    }

    fn print(&self, line: &str) {
        // Who read the lines may have gone, as `head` does: the demo goes on, and ends its daemon.
        let _ = self.progress.suspend(|| match self.result_only {
            true => writeln!(std::io::stderr(), "{line}"),
            false => writeln!(std::io::stdout(), "{line}"),
        });
    }
}

/// Writes what comes from `source` to a file, line by line. A file that cannot be written loses lines, and nothing else.
pub fn lines_to_file(
    file: &Arc<File>,
    source: impl Read + Send + 'static,
) -> JoinHandle<Vec<String>> {
    let file = Arc::clone(file);
    each_line(source, move |line| {
        (&*file).write_all(format!("{line}\n").as_bytes()).ok();
    })
}

fn each_line(
    source: impl Read + Send + 'static,
    show: impl Fn(&str) + Send + 'static,
) -> JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        let mut lines = Vec::new();
        for line in BufReader::new(source).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            show(&line);
            lines.push(line);
        }
        lines
    })
}
