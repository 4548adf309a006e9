//! What the page's server answers: its files, what is known as JSON, and what came of a change.
//!
//! Must not know sockets, nor how what is known came to be. Called by the threads of `http`, for each question.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::Directories;
use parking_lot::Mutex;
use serde_json::Value;

use super::change::Change;
use super::guard::Guard;
use super::history::Span;
use super::journal;
use super::time_line::TimeLine;
use super::watch::Watch;
use crate::http::{Answer, Method, Question};

/// What every answer says: nothing from elsewhere, nothing within others' pages, no guesses of types, nothing kept.
const HEADERS: &[(&str, &str)] = &[
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
];

const JSON: &str = "application/json";

/// The files, by their paths.
const FILES: &[(&str, &str, &str)] = &[
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("assets/page.html"),
    ),
    (
        "/page.css",
        "text/css; charset=utf-8",
        include_str!("assets/page.css"),
    ),
    (
        "/page.js",
        "text/javascript; charset=utf-8",
        include_str!("assets/page.js"),
    ),
    (
        "/timeline.js",
        "text/javascript; charset=utf-8",
        include_str!("assets/timeline.js"),
    ),
    (
        "/parts.js",
        "text/javascript; charset=utf-8",
        include_str!("assets/parts.js"),
    ),
    (
        "/icon.svg",
        "image/svg+xml",
        include_str!("assets/icon.svg"),
    ),
];

/// For how long log lines are given to others too.
const FRESH: Duration = Duration::from_secs(1);

/// What answers are made of.
#[derive(Debug)]
pub struct Answers {
    guard: Guard,
    watch: Arc<Watch>,
    /// Log lines, and when they were read.
    log: Mutex<Option<(Instant, Vec<u8>)>>,
    /// One change at a time: the daemon has others to serve.
    changing: Mutex<()>,
    time_line: Arc<TimeLine>,
}

impl Answers {
    pub fn new(guard: Guard, watch: Arc<Watch>) -> Self {
        Self {
            guard,
            watch,
            log: Mutex::new(None),
            changing: Mutex::new(()),
            time_line: Arc::default(),
        }
    }

    pub fn answer(&self, question: &Question) -> Answer {
        let answer = self.guard.check_host(question).and_then(|()| {
            match (question.method, &*question.path) {
                (Method::Post, "/api/change") => self.change(question),
                (Method::Post, "/api/timeline") => self.record(question),
                (Method::Get, "/api/change") => Err(only("POST")),
                (Method::Get, path) => self.answer_get(question, path),
                (Method::Post | Method::Other, _) => Err(only("GET")),
            }
        });
        let answer = answer.unwrap_or_else(|refusal| refusal);
        match answer.headers {
            [] => answer.with_headers(HEADERS),
            // A refusal's own line says more to its reader, who is no page.
            _ => answer,
        }
    }

    fn answer_get(&self, question: &Question, path: &str) -> Result<Answer, Answer> {
        if let Some((_, content_type, text)) = FILES.iter().find(|(there, ..)| *there == path) {
            return Ok(Answer::ok(content_type, *text));
        }
        match path {
            "/api/now" | "/api/recent" | "/api/history" | "/api/log" | "/api/timeline" => {
                self.guard.check_token(question)?;
            }
            _ => return Err(Answer::line("404 Not Found", "there is no such page")),
        }
        let body = match path {
            "/api/now" => self.watch.now().to_vec(),
            "/api/recent" => self.watch.recent().to_string().into_bytes(),
            "/api/timeline" => self.time_line.now().to_vec(),
            "/api/history" => self.history(question)?.to_string().into_bytes(),
            _ => self.log(),
        };
        Ok(Answer::ok(JSON, body))
    }

    fn history(&self, question: &Question) -> Result<Value, Answer> {
        let wrong = |why| Answer::line("400 Bad Request", why);
        let span = question.parameter("span").unwrap_or("minutes");
        let span = Span::named(span).ok_or(wrong("span is minute, minutes or day"))?;
        let number = |name| question.parameter(name).map(str::parse::<u64>);
        match (number("device"), number("session")) {
            (None, None) => Ok(self.watch.history(span)),
            (Some(Ok(device)), Some(Ok(session))) => {
                let device = u32::try_from(device).unwrap_or(u32::MAX);
                let of_it = self.watch.history_of(device, session, span);
                of_it.ok_or(Answer::line("404 Not Found", "this client has no history"))
            }
            _ => Err(wrong("a client has two numbers: device and session")),
        }
    }

    fn log(&self) -> Vec<u8> {
        let mut log = self.log.lock();
        if let Some((read, lines)) = &*log
            && read.elapsed() < FRESH
        {
            return lines.clone();
        }
        let lines = journal::last_lines(&logs()).to_string().into_bytes();
        *log = Some((Instant::now(), lines.clone()));
        lines
    }

    /// Whether somebody with the token has sent JSON, which a form of a stranger's page cannot.
    fn may_have_done(&self, question: &Question) -> Result<(), Answer> {
        self.guard.may_change(question)?;
        let content_type = question.header("content-type").unwrap_or_default();
        match content_type.split(';').next() == Some(JSON) {
            true => Ok(()),
            false => Err(Answer::line(
                "415 Unsupported Media Type",
                "a change comes as application/json",
            )),
        }
    }

    /// Has a time line recorded, which costs all clients something: so it needs the token.
    fn record(&self, question: &Question) -> Result<Answer, Answer> {
        self.may_have_done(question)?;
        let wanted = serde_json::from_slice(&question.body).map_err(|error| {
            let why = format!("{error}: it has to be {{}} or {{\"seconds\": N}}");
            Answer::line("400 Bad Request", &why)
        })?;
        let started = self.time_line.start(&wanted);
        started.map_err(|why| Answer::line("409 Conflict", &why))?;
        Ok(Answer::ok(JSON, self.time_line.now().to_vec()))
    }

    fn change(&self, question: &Question) -> Result<Answer, Answer> {
        self.may_have_done(question)?;
        let change = Change::read(&question.body)
            .map_err(|why| Answer::line("400 Bad Request", &why.to_string()))?;
        let _one = self.changing.lock();
        let came_of_it = change.carry_out(&self.watch.devices());
        Ok(Answer::ok(JSON, came_of_it.to_string()))
    }
}

fn only(method: &'static str) -> Answer {
    let answer = Answer::line("405 Method Not Allowed", &format!("only {method}"));
    match method {
        "POST" => answer.with_headers(&[("Allow", "POST")]),
        _ => answer.with_headers(&[("Allow", "GET")]),
    }
}

/// The logs of the daemon of the environment.
fn logs() -> Vec<PathBuf> {
    match Directories::from_environment() {
        Ok(directories) => vec![directories.control_log(), directories.server_log()],
        Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(head: &str) -> Answer {
        let guard = Guard::new("0123456789abcdef".into(), Vec::new(), false);
        let answers = Answers::new(guard, Arc::new(Watch::new("h".into(), None)));
        let text = format!("{head}\r\n\r\n");
        answers.answer(&Question::read(text.as_bytes()).unwrap().unwrap())
    }

    #[test]
    fn each_question_has_its_answer() {
        let host = "HTTP/1.1\r\nHost: localhost";
        for (line, status) in [
            ("GET /", "200"),
            ("GET /page.js", "200"),
            ("GET /page.css", "200"),
            ("GET /icon.svg", "200"),
            ("GET /api/now", "200"),
            ("GET /parts.js", "200"),
            ("GET /api/log", "200"),
            ("GET /api/recent", "200"),
            ("GET /api/history", "200"),
            ("GET /api/history?span=day", "200"),
            ("GET /api/history?span=year", "400"),
            ("GET /api/history?device=0", "400"),
            ("GET /api/history?device=0&session=-1", "400"),
            ("GET /api/history?device=0&session=1", "404"),
            ("GET /api/change", "405"),
            ("GET /../etc/passwd", "404"),
            ("POST /api/now", "405"),
            ("DELETE /", "405"),
            ("POST /api/change", "401"),
            ("GET /timeline.js", "200"),
            ("GET /api/timeline", "200"),
            ("POST /api/timeline", "401"),
        ] {
            let answer = asked(&format!("{line} {host}"));
            assert!(answer.status.starts_with(status), "{line}: {answer:?}");
        }
        let elsewhere = asked("GET / HTTP/1.1\r\nHost: evil.example");
        assert!(elsewhere.status.starts_with("421"), "{elsewhere:?}");
        let authorised =
            format!("POST /api/change {host}\r\nAuthorization: Bearer 0123456789abcdef");
        assert!(asked(&authorised).status.starts_with("415"));
        let json = format!("{authorised}\r\nContent-Type: application/json");
        assert!(asked(&json).status.starts_with("400"));
    }

    #[test]
    fn the_files_are_whole_in_themselves() {
        let (_, _, html) = FILES[0];
        let page = asked("GET / HTTP/1.1\r\nHost: 127.0.0.1:1");
        assert!(
            page.headers
                .iter()
                .any(|(name, _)| *name == "Content-Security-Policy")
        );
        let is_inline = |word: &str| {
            word.starts_with("<style")
                || word.starts_with("style=")
                || (word.starts_with("on") && word.contains('='))
        };
        assert!(!html.split_whitespace().any(is_inline));
        for (path, _, text) in FILES {
            let elsewhere = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!elsewhere.contains("://"), "{path} names another place");
            assert!(
                !text.contains("innerHTML") && !text.contains("eval("),
                "{path}"
            );
        }
    }
}
