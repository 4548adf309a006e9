//! Asking a daemon what there is: the devices, and who uses them.
//!
//! `nvml` and the command line ask, `control` answers. One connection for each question, which ends with the answer: nothing is kept that a fork's child or
//! another thread could disturb. Must not know how lists are shown.

use std::path::Path;
use std::time::Duration;

use protocol::control_messages::{
    Hello, Packet, Purpose, Unreadable, VERSION, View, ViewRequest, fingerprint,
};
use transport::socket::SocketError;

use crate::connect::{ConnectError, Untrusted, connect};

/// The most packets of an answer that are read: far more than there can be clients.
const PACKETS: usize = 4096;

/// Why there is no view.
#[derive(Debug)]
pub enum ViewError {
    /// The connection failed.
    Socket(SocketError),
    /// Somebody listens who may not be a daemon.
    Untrusted(Untrusted),
    /// The daemon refused, in its words.
    Refused(String),
    /// The daemon's answer cannot be read.
    Answer(Unreadable),
    /// The daemon answered something else.
    Other,
}

impl std::fmt::Display for ViewError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(error) => error.fmt(f),
            Self::Untrusted(error) => error.fmt(f),
            Self::Refused(text) => f.write_str(text),
            Self::Answer(error) => write!(f, "the daemon's answer cannot be read: {error}"),
            Self::Other => f.write_str("the daemon answered something that is no view"),
        }
    }
}

impl std::error::Error for ViewError {}

impl From<SocketError> for ViewError {
    fn from(error: SocketError) -> Self {
        Self::Socket(error)
    }
}

impl From<ConnectError> for ViewError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Socket(error) => Self::Socket(error),
            ConnectError::Untrusted(error) => Self::Untrusted(error),
        }
    }
}

impl From<Unreadable> for ViewError {
    fn from(error: Unreadable) -> Self {
        Self::Answer(error)
    }
}

/// Asks the daemon that listens at a socket. Each step waits for `most` at most.
///
/// # Errors
/// When nobody answers in time, or with something else.
pub fn request_view(
    socket: &Path,
    request: ViewRequest,
    most: Duration,
) -> Result<View, ViewError> {
    let connection = connect(socket, Some(most))?;
    connection.set_receive_timeout(Some(most))?;
    let hello = Packet::Hello(Hello {
        version: VERSION,
        fingerprint: fingerprint(),
        features: 0,
        purpose: Purpose::View(request),
    });
    connection.send(&hello.encode(), &[])?;
    let mut whole: Option<View> = None;
    for _ in 0..PACKETS {
        let (bytes, _) = connection.receive()?;
        let (last, view) = match Packet::decode(&bytes)? {
            Packet::View { last, view } => (last, view),
            Packet::Refused { text, .. } => return Err(ViewError::Refused(text)),
            _ => return Err(ViewError::Other),
        };
        match &mut whole {
            Some(whole) => whole.processes.extend(view.processes),
            None => whole = Some(view),
        }
        if last {
            return whole.ok_or(ViewError::Other);
        }
    }
    Err(ViewError::Other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::control_messages::{ViewedProcess, view_packets};
    use transport::socket::Listener;

    const MOST: Duration = Duration::from_secs(20);

    /// Answers the next question with these packets.
    fn answered(packets: Vec<Vec<u8>>) -> Result<View, ViewError> {
        let place = tempfile::tempdir().expect("a folder");
        let socket = place.path().join("control");
        let listener = Listener::bind(&socket).expect("a socket");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let connection = listener.accept().expect("a connection");
                connection.receive().expect("a question");
                for packet in packets {
                    let _ = connection.send(&packet, &[]);
                }
            });
            request_view(&socket, ViewRequest::default(), MOST)
        })
    }

    #[test]
    fn parts_become_one_view_again() {
        let view = View {
            driver: "1".into(),
            processes: vec![ViewedProcess::default(); 100],
            ..View::default()
        };
        let packets = view_packets(view.clone());
        assert!(packets.len() > 1);
        let packets = packets.iter().map(Packet::encode).collect();
        assert_eq!(answered(packets).expect("a view"), view);
    }

    #[test]
    fn what_is_no_view_is_an_error() {
        let refused = Packet::Refused {
            code: 805,
            text: "no".into(),
        };
        let error = answered(vec![refused.encode()]).expect_err("refused");
        assert!(matches!(&error, ViewError::Refused(text) if text == "no"));
        let error = answered(vec![Packet::Lost { code: 1 }.encode()]).expect_err("out of place");
        assert!(matches!(error, ViewError::Other));
        let error = answered(vec![b"rubbish".to_vec()]).expect_err("none of ours");
        assert!(matches!(error, ViewError::Answer(Unreadable::Magic)));
        // The daemon goes away in the middle.
        let error = answered(Vec::new()).expect_err("nothing");
        assert!(matches!(error, ViewError::Socket(_)));
    }
}
