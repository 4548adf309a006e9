//! Events of the structured log as the daemon writes them.
//!
//! Called by the files of this folder. Must not know the log's form: `log::events` does.

use serde_json::Value;

use super::Daemon;
use crate::log::About;
use crate::log::events::line;

impl Daemon {
    /// Writes an event: what happened, to whom, and more where there is more. `who` and `more` are
    /// objects.
    pub(crate) fn event(&self, what: &str, who: Value, more: Value) {
        self.instance.events.raw(&line(what, who, more));
    }

    /// As [`Daemon::event`], at the cost of whoever brought it about.
    pub(crate) fn event_about(&self, about: &About, what: &str, who: Value, more: Value) {
        let line = line(what, who, more);
        self.instance.events.raw_about(about, &line);
    }
}
