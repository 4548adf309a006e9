//! Listening for HTTP, and a bounded number of threads that answer.
//!
//! Owns the bounds of a connection. Must not know what is asked for: who starts it says what is answered. Called by
//! `metrics` and `page`, through `http`.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Answer, Question};

/// Connections that are served at a time.
const SERVED: usize = 16;

/// How long a connection may take to say what it wants, and then to take the answer; and the daemon to give it.
pub const WITHIN: Duration = Duration::from_secs(5);

/// Where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A port of an address of this machine.
    Tcp(SocketAddr),
    /// A file.
    Unix(PathBuf),
}

/// A text is no address: what it has to look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressError {
    /// `unix:` and nothing behind it.
    NoPath,
    /// Neither an address with a port nor `unix:`.
    NoAddress,
}

// By hand: the fuzz target of questions builds this file without the crate for it.
impl fmt::Display for AddressError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::NoPath => "unix: is followed by the socket's path",
            Self::NoAddress => {
                "an address and a port, as 127.0.0.1:9400 or [::1]:9400, or unix: and a path"
            }
        })
    }
}

impl std::error::Error for AddressError {}

impl Address {
    /// An address as it stands on the command line.
    ///
    /// # Errors
    /// When it is neither an address with a port nor `unix:` with a path.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        match text.strip_prefix("unix:") {
            Some("") => Err(AddressError::NoPath),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text
                .parse()
                .map(Self::Tcp)
                .map_err(|_| AddressError::NoAddress),
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

/// A place where connections come in. Dropping it takes the socket's file away.
pub struct HttpListener {
    accept: Arc<Accept>,
    /// `http://ADDRESS:PORT` or `unix:PATH`.
    pub url: String,
    /// The socket's file.
    file: Option<PathBuf>,
}

impl HttpListener {
    /// Listens there.
    pub fn bind(address: &Address) -> Result<Self> {
        Ok(match address {
            Address::Tcp(to) => {
                let listener = TcpListener::bind(to)
                    .with_context(|| format!("cannot listen at {to}: choose another --listen"))?;
                let url = format!("http://{}", listener.local_addr()?);
                Self {
                    accept: Arc::new(Box::new(move || Ok(Box::new(listener.accept()?.0)))),
                    url,
                    file: None,
                }
            }
            Address::Unix(path) => {
                let listener = listen_at(path)?;
                Self {
                    accept: Arc::new(Box::new(move || Ok(Box::new(listener.accept()?.0)))),
                    url: format!("unix:{}", path.display()),
                    file: Some(path.clone()),
                }
            }
        })
    }

    /// Starts the threads that answer. `name` is in theirs.
    pub fn answer_with(
        &self,
        name: &str,
        answer: impl Fn(&Question) -> Answer + Send + Sync + 'static,
    ) -> Result<()> {
        let answer = Arc::new(answer);
        for number in 0..SERVED {
            let (accept, answer) = (self.accept.clone(), answer.clone());
            std::thread::Builder::new()
                .name(format!("{name} {number}"))
                .spawn(move || {
                    loop {
                        match accept() {
                            // What a stranger does wrong is the stranger's matter.
                            Ok(mut stream) => drop(serve_one(&mut *stream, &*answer)),
                            // No descriptors, or one who went away: others will be there.
                            Err(_) => std::thread::sleep(Duration::from_millis(100)),
                        }
                    }
                })
                .context("cannot start a thread")?;
        }
        Ok(())
    }
}

impl Drop for HttpListener {
    fn drop(&mut self) {
        // Whoever has put something else there since keeps it.
        if let Some(path) = &self.file
            && is_socket(path)
        {
            let _ = std::fs::remove_file(path);
        }
    }
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

/// Reads a question and writes its answer.
fn serve_one(stream: &mut dyn Stream, answer: &dyn Fn(&Question) -> Answer) -> std::io::Result<()> {
    let answer = match read_question(stream)? {
        Ok(question) => answer(&question),
        Err(refusal) => refusal,
    };
    let until = Instant::now() + WITHIN;
    for part in [answer.head().as_bytes(), &answer.body] {
        write_until(stream, part, until)?;
    }
    Ok(())
}

/// Reads until a question is whole, for [`WITHIN`] in all.
fn read_question(stream: &mut dyn Stream) -> std::io::Result<Result<Question, Answer>> {
    let until = Instant::now() + WITHIN;
    let mut bytes = Vec::new();
    let mut part = [0; 1024];
    loop {
        stream.limit(left(until)?)?;
        let count = stream.read(&mut part)?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        bytes.extend(&part[..count]);
        // It refuses what is longer than a question may be, so that this ends.
        match Question::read(&bytes) {
            Ok(Some(question)) => return Ok(Ok(question)),
            Ok(None) => {}
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
}

/// Writes all of it until then: a reader that takes a byte now and then has no longer than others.
fn write_until(stream: &mut dyn Stream, mut bytes: &[u8], until: Instant) -> std::io::Result<()> {
    while !bytes.is_empty() {
        stream.limit(left(until)?)?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn left(until: Instant) -> std::io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
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
    fn nobody_has_longer_than_the_end() {
        let (mut ours, _theirs) = UnixStream::pair().unwrap();
        // The other end takes nothing: what the kernel keeps for it is soon full.
        let end = Instant::now() + Duration::from_millis(20);
        let kept = write_until(&mut ours, &vec![0; 16 << 20], end).unwrap_err();
        assert!(
            matches!(kept.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            "{kept:?}"
        );
        assert!(left(end).is_err());
    }
}
