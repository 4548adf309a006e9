//! What is shown on a terminal while clients are recorded.
//!
//! Called by `clients` and `client_files`. Must not know what is recorded, nor how: it is told counts.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What is shown while it records.
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("{spinner} {wide_msg} ({elapsed})")
            .unwrap_or_else(|_| ProgressStyle::default_spinner());
        bar.set_style(style);
        eprintln!("openmps: recording; Ctrl-C ends it");
        if std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        Self { bar }
    }

    /// Shows how many clients are recorded, and of their records how many came and were dropped.
    pub(super) fn show(&self, (clients, records, dropped): (usize, u64, u64)) {
        let missing = match dropped {
            0 => String::new(),
            dropped => format!(", {dropped} dropped"),
        };
        self.bar.set_message(format!(
            "{} recorded, {records} records{missing}",
            clients_in_words(clients)
        ));
        self.bar.tick();
    }

    pub(super) fn print(&mut self, text: &str) {
        self.bar.suspend(|| eprintln!("openmps: {text}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

pub(super) fn clients_in_words(count: usize) -> String {
    match count {
        1 => "1 client".to_owned(),
        count => format!("{count} clients"),
    }
}
