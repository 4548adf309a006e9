//! The page of metrics over HTTP. The daemon is asked once a second at most, however many ask here.
//!
//! Called by `metrics`. Must not know what is in a page.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use parking_lot::Mutex;
use protocol::control_messages::View;

use super::text::{Format, page};
use crate::http::{Address, Answer, HttpListener, Method, Question, TEXT, WITHIN};
use crate::machine;

/// For how long an answer of the daemon's is given to others too.
const FRESH: Duration = Duration::from_secs(1);

/// Serves until SIGINT or SIGTERM.
pub fn serve(address: &Address, hostname: String) -> Result<ExitCode> {
    // Before anything is there to be removed at the end.
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGINT,
    ])?;
    let listening = HttpListener::bind(address)?;
    match address {
        Address::Tcp(_) => eprintln!("openmps metrics: {}/metrics", listening.url),
        Address::Unix(_) => eprintln!("openmps metrics: {}", listening.url),
    }
    let page = Page {
        hostname,
        looks: Mutex::default(),
    };
    listening.answer_with("metrics", move |question| page.answer(question))?;
    signals.forever().next();
    Ok(ExitCode::SUCCESS)
}

/// What the answers are made of.
struct Page {
    hostname: String,
    looks: Mutex<Looks>,
}

/// The daemon's answers.
#[derive(Default)]
struct Looks {
    /// The latest, and when it came.
    latest: Option<(Instant, Arc<View>)>,
    /// The one before.
    earlier: Option<Arc<View>>,
}

impl Page {
    /// What the daemon shows, asked now or a moment ago, and what it showed the time before.
    fn views(&self) -> Result<(Option<Arc<View>>, Arc<View>)> {
        // Others wait here meanwhile, and then have the same answer.
        let mut looks = self.looks.lock();
        if let Some((came, view)) = &looks.latest
            && came.elapsed() < FRESH
        {
            return Ok((looks.earlier.clone(), view.clone()));
        }
        if let Some((_, view)) = looks.latest.take() {
            looks.earlier = Some(view);
        }
        let view = Arc::new(machine::view(WITHIN)?);
        looks.latest = Some((Instant::now(), view.clone()));
        Ok((looks.earlier.clone(), view))
    }

    fn answer(&self, question: &Question) -> Answer {
        match (question.method, &*question.path) {
            (Method::Get, "/metrics") => {
                let format = Format::accepted(question.header("accept").unwrap_or_default());
                match self.views() {
                    Ok((earlier, view)) => {
                        let text = page(earlier.as_deref(), &view, &self.hostname, format);
                        Answer::ok(format.content_type(), text)
                    }
                    Err(error) => Answer::line("503 Service Unavailable", &format!("{error:#}")),
                }
            }
            (Method::Get, "/") => Answer::ok(TEXT, "OpenMPS: metrics are at /metrics\n"),
            (Method::Get, _) => Answer::line("404 Not Found", "metrics are at /metrics"),
            _ => {
                Answer::line("405 Method Not Allowed", "only GET").with_headers(&[("Allow", "GET")])
            }
        }
    }
}
