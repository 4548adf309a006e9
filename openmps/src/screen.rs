//! The screen of `openmps demo`: lines of several programs, each with its name before it, as
//! docker-compose prints them, above a moving line that says what is being done.

use std::io::{BufRead, BufReader, Read};
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
        std::thread::spawn(move || {
            let mut lines = Vec::new();
            for line in BufReader::new(source).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                screen.print(&format!("{name:<10} | {line}"));
                lines.push(line);
            }
            lines
        })
    }

    /// A line that shows that something is going on, and for how long, until it is finished.
    pub fn busy(&self, label: &str) -> ProgressBar {
        let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})")
            .unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = self.progress.add(ProgressBar::new_spinner());
        bar.set_style(style);
        bar.set_message(label.to_owned());
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    }

    fn print(&self, line: &str) {
        self.progress.suspend(|| {
            if self.result_only {
                eprintln!("{line}");
            } else {
                println!("{line}");
            }
        });
    }
}
