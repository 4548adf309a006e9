//! The page of metrics over HTTP/1.1, on a TCP port or a Unix socket: one question a connection, and one answer.
//!
//! Whoever asks is a stranger. So many are served at a time, each within a few seconds and for a few kilobytes; others wait in the
//! kernel. The daemon is asked once a second at most, however many ask here.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use protocol::control_messages::View;

use super::text::{Format, page};
use crate::machine;

/// Connections that are served at a time.
const SERVED: usize = 16;

/// How long a connection may take to say what it wants and to take the answer, and the daemon to give it.
const WITHIN: Duration = Duration::from_secs(5);

/// Bytes of a question at most.
const MOST: usize = 8 << 10;

/// For how long an answer of the daemon's is given to others too.
const FRESH: Duration = Duration::from_secs(1);

/// Where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A port of an address of this machine.
    Tcp(SocketAddr),
    /// A file.
    Unix(PathBuf),
}

impl Address {
    /// An address as it stands on the command line.
    ///
    /// # Errors
    /// What it has to look like.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.is_empty() {
                true => Err("unix: is followed by the socket's path".to_owned()),
                false => Ok(Self::Unix(path.into())),
            };
        }
        let address = text.parse().map_err(|_| {
            "an address and a port, as 127.0.0.1:9400 or [::1]:9400, or unix: and a path".to_owned()
        })?;
        Ok(Self::Tcp(address))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}/metrics"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A connection's two kinds.
trait Stream: Read + Write {
    /// How long a read or a write may wait.
    fn limit(&self, most: Duration) -> std::io::Result<()>;
}

impl Stream for TcpStream {
    fn limit(&self, most: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(most))?;
        self.set_write_timeout(Some(most))
    }
}

impl Stream for UnixStream {
    fn limit(&self, most: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(most))?;
        self.set_write_timeout(Some(most))
    }
}

/// Takes one connection.
type Accept = Box<dyn Fn() -> std::io::Result<Box<dyn Stream>> + Send + Sync>;

/// Serves until SIGINT or SIGTERM.
pub fn serve(address: &Address, hostname: String) -> Result<ExitCode> {
    // Before anything is there to be removed at the end.
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGINT,
    ])?;
    let accept: Accept = match address {
        Address::Tcp(to) => {
            let listener = TcpListener::bind(to)
                .with_context(|| format!("cannot listen at {to}: choose another --listen"))?;
            eprintln!("openmps metrics: http://{}/metrics", listener.local_addr()?);
            Box::new(move || Ok(Box::new(listener.accept()?.0)))
        }
        Address::Unix(path) => {
            let listener = listen_at(path)?;
            eprintln!("openmps metrics: {address}");
            Box::new(move || Ok(Box::new(listener.accept()?.0)))
        }
    };
    let accept = Arc::new(accept);
    let page = Arc::new(Page {
        hostname,
        latest: Mutex::new(None),
    });
    for number in 0..SERVED {
        let (accept, page) = (accept.clone(), page.clone());
        std::thread::Builder::new()
            .name(format!("metrics {number}"))
            .spawn(move || {
                loop {
                    match accept() {
                        // What a stranger does wrong is the stranger's matter.
                        Ok(mut stream) => drop(answer(&mut *stream, &page)),
                        // No descriptors, or one who went away: others will be there.
                        Err(_) => std::thread::sleep(Duration::from_millis(100)),
                    }
                }
            })
            .context("cannot start a thread")?;
    }
    signals.forever().next();
    if let Address::Unix(path) = address {
        // Whoever has put something else there since keeps it.
        if is_socket(path) {
            let _ = std::fs::remove_file(path);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|facts| facts.file_type().is_socket())
}

/// Listens at a file that its user alone may open. One that nobody listens at any more is replaced.
fn listen_at(path: &Path) -> Result<UnixListener> {
    let bound = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_socket(path) => {
            if UnixStream::connect(path).is_ok() {
                bail!("somebody listens at {} already", path.display());
            }
            std::fs::remove_file(path).and_then(|()| UnixListener::bind(path))
        }
        bound => bound,
    };
    let listener = bound.with_context(|| format!("cannot listen at {}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// What the answers are made of.
struct Page {
    hostname: String,
    /// The daemon's latest answer, and when it came.
    latest: Mutex<Option<(Instant, Arc<View>)>>,
}

impl Page {
    /// What the daemon shows, asked now or a moment ago.
    fn view(&self) -> Result<Arc<View>> {
        // Others wait here meanwhile, and then have the same answer.
        let mut latest = self.latest.lock();
        if let Some((came, view)) = &*latest
            && came.elapsed() < FRESH
        {
            return Ok(view.clone());
        }
        *latest = None;
        let view = Arc::new(machine::view(WITHIN)?);
        *latest = Some((Instant::now(), view.clone()));
        Ok(view)
    }
}

/// What somebody wants.
#[derive(Debug, PartialEq, Eq)]
enum Question {
    Metrics(Format),
    /// The page that leads to the others.
    Root,
    Nothing,
    /// Something that is not read only.
    OtherMethod,
    Malformed,
    /// More than [`MOST`] bytes.
    TooLong,
}

/// Reads a question and writes its answer.
fn answer(stream: &mut dyn Stream, page_of: &Page) -> std::io::Result<()> {
    let (status, content_type, body) = match read_question(stream)? {
        Question::Metrics(format) => match page_of.view() {
            Ok(view) => (
                "200 OK",
                format.content_type(),
                page(&view, &page_of.hostname, format),
            ),
            Err(error) => ("503 Service Unavailable", TEXT, format!("{error:#}\n")),
        },
        Question::Root => (
            "200 OK",
            TEXT,
            "OpenMPS: metrics are at /metrics\n".to_owned(),
        ),
        Question::Nothing => (
            "404 Not Found",
            TEXT,
            "metrics are at /metrics\n".to_owned(),
        ),
        Question::OtherMethod => ("405 Method Not Allowed", TEXT, "only GET\n".to_owned()),
        Question::Malformed => ("400 Bad Request", TEXT, "this is not HTTP/1\n".to_owned()),
        Question::TooLong => (
            "431 Request Header Fields Too Large",
            TEXT,
            "too long\n".to_owned(),
        ),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.limit(WITHIN)?;
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

const TEXT: &str = "text/plain; charset=utf-8";

/// Reads until a question is whole, for [`WITHIN`] in all.
fn read_question(stream: &mut dyn Stream) -> std::io::Result<Question> {
    let until = Instant::now() + WITHIN;
    let mut bytes = Vec::new();
    let mut part = [0; 1024];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.limit(left)?;
        let count = stream.read(&mut part)?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        bytes.extend(&part[..count]);
        if let Some(question) = question(&bytes) {
            return Ok(question);
        }
        if bytes.len() > MOST {
            return Ok(Question::TooLong);
        }
    }
}

/// What these bytes ask for; `None` while more is needed.
fn question(bytes: &[u8]) -> Option<Question> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(_) => return Some(Question::Malformed),
    }
    let path = request.path.unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    Some(match (request.method, path) {
        (Some("GET"), "/metrics") => {
            let accept = request
                .headers
                .iter()
                .find(|header| header.name.eq_ignore_ascii_case("accept"));
            let accept = accept.map(|header| String::from_utf8_lossy(header.value));
            Question::Metrics(Format::accepted(&accept.unwrap_or_default()))
        }
        (Some("GET"), "/") => Question::Root,
        (Some("GET"), _) => Question::Nothing,
        _ => Question::OtherMethod,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_ports_or_files() {
        assert_eq!(
            Address::parse("127.0.0.1:9400"),
            Ok(Address::Tcp(([127, 0, 0, 1], 9400).into()))
        );
        assert_eq!(
            Address::parse("unix:/run/m.sock"),
            Ok(Address::Unix("/run/m.sock".into()))
        );
        for wrong in ["", "9400", "unix:", "localhost", "127.0.0.1"] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn questions_are_read_whole_and_others_refused() {
        let metrics = Question::Metrics(Format::Prometheus);
        assert_eq!(question(b"GET /metrics HTTP/1.1\r\nHost: a\r\n"), None);
        assert_eq!(
            question(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"),
            Some(metrics)
        );
        assert_eq!(
            question(b"GET /metrics?x=1 HTTP/1.0\r\naccept: application/openmetrics-text\r\n\r\n"),
            Some(Question::Metrics(Format::OpenMetrics))
        );
        for (bytes, expected) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], Question::Root),
            (b"GET /etc/passwd HTTP/1.1\r\n\r\n", Question::Nothing),
            (b"POST /metrics HTTP/1.1\r\n\r\n", Question::OtherMethod),
            (b"\x16\x03\x01\x02", Question::Malformed),
        ] {
            assert_eq!(question(bytes), Some(expected));
        }
    }
}
