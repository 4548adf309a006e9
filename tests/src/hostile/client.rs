//! A client without a library: it speaks the protocol itself, by the book up to where an attack begins.
//!
//! Called by the attacks of `tests/hostile`. Must not use `client`: a library keeps rules that an attacker does not.

use std::path::Path;
use std::time::Duration;

use protocol::control_messages::{
    ClientFields, FEATURE_TAKEOVER, Hello, Packet, Purpose, VERSION, Welcome, fingerprint,
};
use protocol::operations::ContextCreate;
use transport::memory::Mapping;
use transport::session::{ClientEnd, SessionMemory};
use transport::socket::Connection;

/// How long a daemon may take to answer a stranger on a busy machine.
const ANSWER: Duration = Duration::from_secs(30);

/// A session of a client that speaks the protocol itself.
#[derive(Debug)]
pub struct BareClient {
    /// Its side of the session.
    pub end: ClientEnd,
    /// The ring's memory, to write to past all rules.
    pub ring: Mapping,
    /// What the server said.
    pub welcome: Welcome,
}

/// The first packet of a connection.
pub fn greeting(purpose: Purpose) -> Vec<u8> {
    greeting_with(0, purpose)
}

fn greeting_with(features: u64, purpose: Purpose) -> Vec<u8> {
    let hello = Hello {
        version: VERSION,
        fingerprint: fingerprint(),
        features,
        purpose,
    };
    Packet::Hello(hello).encode()
}

/// The first packet of a client, whose session another server may take over.
pub fn client_greeting() -> Vec<u8> {
    let client = ClientFields {
        program: "liar".into(),
        ..ClientFields::default()
    };
    greeting_with(FEATURE_TAKEOVER, Purpose::Client(client))
}

/// Connects to the daemon or the group of a directory.
///
/// # Panics
/// If nobody is there.
pub fn connect(directory: &Path) -> Connection {
    Connection::connect(directory.join("control")).expect("a daemon is there")
}

impl BareClient {
    /// Becomes a client of the daemon or of the group of a directory.
    ///
    /// # Errors
    /// What it is answered in the place of a welcome.
    ///
    /// # Panics
    /// If nobody answers.
    pub fn attach(directory: &Path) -> Result<Self, Box<Packet>> {
        let connection = connect(directory);
        connection
            .send(&client_greeting(), &[])
            .expect("the daemon listens");
        Self::welcomed(connection)
    }

    /// Waits for the answer to its greeting.
    ///
    /// # Errors
    /// As [`BareClient::attach`].
    ///
    /// # Panics
    /// If there is no answer.
    pub fn welcomed(connection: Connection) -> Result<Self, Box<Packet>> {
        connection
            .set_receive_timeout(Some(ANSWER))
            .expect("a limit");
        let (bytes, fds) = connection.receive().expect("an answer");
        let welcome = match Packet::decode(&bytes).expect("a packet") {
            Packet::Welcome(welcome) => welcome,
            other => return Err(Box::new(other)),
        };
        let memory = SessionMemory::from_fds(fds, welcome.host_bytes).expect("a session's memory");
        Ok(Self {
            ring: Mapping::map(&memory.ring).expect("the ring's memory"),
            end: ClientEnd::new(&memory, connection).expect("a client's end"),
            welcome,
        })
    }

    /// Makes its first context.
    ///
    /// # Panics
    /// If the session is over.
    pub fn with_context(self) -> Self {
        let create = ContextCreate::default();
        self.end.post(0, 0, &create, &[]).expect("a session");
        self
    }
}
