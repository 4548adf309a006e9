//! Having a daemon's clients recorded: what is recorded comes over one connection, and ends with it.
//!
//! `openmps trace` asks; `control` says who is recorded, and servers send what is. What the parts hold is for the asker to check:
//! clients wrote some of it. Must not know what a record says. Called by `openmps trace` and the page.

use std::path::Path;
use std::time::Duration;

use protocol::control_messages::{
    Hello, Packet, Purpose, RecordedClient, RecordedPart, TimeLineRequest, VERSION, fingerprint,
};
use transport::socket::{Connection, SocketError};

use crate::connect::connect;
use crate::view::ViewError;

/// What comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// A client is recorded from now on. It may be told of more than once.
    Client(RecordedClient),
    /// A part of what is recorded of the client of a session.
    Part(u64, RecordedPart),
    /// The daemon and its servers have ended.
    End,
}

/// Clients that are recorded as long as this is there.
#[derive(Debug)]
pub struct TimeLines(Connection);

impl TimeLines {
    /// Asks the daemon that listens at a socket, and waits for it for `most` at most.
    ///
    /// # Errors
    /// When nobody takes the question in time. What the daemon says to it is told by [`TimeLines::next`].
    pub fn record(
        socket: &Path,
        request: TimeLineRequest,
        most: Duration,
    ) -> Result<Self, ViewError> {
        let connection = connect(socket, Some(most))?;
        let hello = Packet::Hello(Hello {
            version: VERSION,
            fingerprint: fingerprint(),
            features: 0,
            purpose: Purpose::TimeLines(request),
        });
        connection.send(&hello.encode(), &[])?;
        Ok(Self(connection))
    }

    /// What comes next, if it comes within `most`, which is not zero.
    ///
    /// # Errors
    /// When the daemon refused, or what comes cannot be read.
    pub fn next(&self, most: Duration) -> Result<Option<Recorded>, ViewError> {
        self.0.set_receive_timeout(Some(most))?;
        let bytes = match self.0.receive() {
            Ok((bytes, _)) => bytes,
            Err(error) if error.would_wait() => return Ok(None),
            Err(SocketError::Closed) => return Ok(Some(Recorded::End)),
            Err(error) => return Err(error.into()),
        };
        match Packet::decode(&bytes)? {
            Packet::RecordedClient(client) => Ok(Some(Recorded::Client(client))),
            Packet::Recorded { session, part } => Ok(Some(Recorded::Part(session, part))),
            Packet::Refused { text, .. } => Err(ViewError::Refused(text)),
            _ => Err(ViewError::Other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use transport::socket::Listener;

    const MOST: Duration = Duration::from_secs(20);

    #[test]
    fn what_comes_is_told_in_its_order() {
        let place = tempfile::tempdir().expect("a folder");
        let socket = place.path().join("control");
        let listener = Listener::bind(&socket).expect("a socket");
        let client = RecordedClient {
            session: 3,
            ..RecordedClient::default()
        };
        let part = RecordedPart::Dropped { count: 2 };
        let lines = TimeLines::record(&socket, TimeLineRequest::default(), MOST).expect("asked");
        let theirs = listener.accept().expect("a connection");
        theirs.receive().expect("a question");
        assert_eq!(lines.next(Duration::from_millis(1)).expect("nothing"), None);
        let packets = [
            Packet::RecordedClient(client.clone()),
            Packet::Recorded {
                session: 3,
                part: part.clone(),
            },
            Packet::Refused {
                code: 805,
                text: "no".into(),
            },
            Packet::Lost { code: 1 },
        ];
        for packet in packets {
            theirs.send(&packet.encode(), &[]).expect("sent");
        }
        drop(theirs);
        let next = || lines.next(MOST);
        assert_eq!(next().expect("told"), Some(Recorded::Client(client)));
        assert_eq!(next().expect("told"), Some(Recorded::Part(3, part)));
        assert!(matches!(next(), Err(ViewError::Refused(text)) if text == "no"));
        assert!(matches!(next(), Err(ViewError::Other)));
        assert_eq!(next().expect("told"), Some(Recorded::End));
    }
}
