//! Time lines that somebody has asked the daemon for: what is recorded of clients goes to who asked, over the connection that the
//! daemon handed on.
//!
//! One thread each, which waits for nobody: what does not go out stays in the clients' [recordings](crate::session::recording), which
//! drop what they have no room for. Who asked writes the files; nothing here opens one. Called by the main loop and
//! by sessions that begin or end. Must not know what the records say.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::control_messages::{Packet, RecordedPart};
use protocol::operations::{At, SpanWriter};
use transport::socket::Connection;

use crate::session::observer::ClientObserver;
use crate::session::recording::{RecordingState, Room, Taken};

/// How often what was recorded goes out.
const ROUND: Duration = Duration::from_millis(20);

/// What the recordings of one time line's clients may keep, in bytes.
const ROOM: usize = 64 << 20;

/// Bytes of a part that fit a packet with what else is in it.
const PART: usize = 32 << 10;

/// Clients that are gone of which something is kept for a reader that has not come so far.
const MOST_LEFT: usize = 32;

/// Packets that wait for a reader, beyond which clients that are gone are not told of.
const MOST_UNSENT: usize = 1 << 14;

/// A client of a time line.
#[derive(Debug)]
struct Recorded {
    observer: Arc<ClientObserver>,
    /// The last place of which there was a span, by stream, where the stream has not come so far yet.
    open: BTreeMap<u32, u64>,
    /// How far streams had come in the round before: all spans up to there are there by now.
    reached: Vec<(u32, u64)>,
}

#[derive(Debug, Default)]
struct Progress {
    clients: Vec<Recorded>,
    unsent: VecDeque<Vec<u8>>,
    /// Whether who asked is gone: nobody is recorded any more.
    is_over: bool,
}

/// One time line, of any number of clients.
#[derive(Debug)]
pub struct TimeLine {
    number: u64,
    /// To who asked.
    connection: Connection,
    room: Arc<Room>,
    progress: Mutex<Progress>,
}

impl TimeLine {
    /// Records a client from now on.
    pub fn add(&self, observer: &Arc<ClientObserver>) {
        let mut progress = self.progress.lock();
        if progress.is_over {
            return;
        }
        if !observer.recording.begin(self.room.clone()) {
            let why = "it is recorded already, by itself (OPENMPS_TRACE) or for somebody else";
            progress.tell(observer.session(), over(why));
            return;
        }
        observer.publisher.record(self.number);
        progress.clients.push(Recorded {
            observer: observer.clone(),
            open: BTreeMap::new(),
            reached: Vec::new(),
        });
    }

    /// Sends what there is. Says whether anybody is there to read it.
    fn round(&self) -> bool {
        let mut progress = self.progress.lock();
        if self.connection.is_closed() || !progress.send(&self.connection) {
            return false;
        }
        if !progress.unsent.is_empty() {
            progress.forget_who_left();
            return true;
        }
        let mut clients = std::mem::take(&mut progress.clients);
        clients.retain_mut(|client| progress.pass_on(client));
        progress.clients = clients;
        progress.send(&self.connection)
    }

    fn end(&self) {
        let mut progress = self.progress.lock();
        progress.is_over = true;
        for client in progress.clients.drain(..) {
            client.observer.publisher.record(0);
            client.observer.recording.end();
        }
    }
}

fn over(text: &str) -> RecordedPart {
    RecordedPart::Over {
        text: text.to_owned(),
    }
}

impl Progress {
    fn tell(&mut self, session: u64, part: RecordedPart) {
        self.unsent
            .push_back(Packet::Recorded { session, part }.encode());
    }

    /// Sends packets until there is no room. Says whether anybody is there.
    fn send(&mut self, connection: &Connection) -> bool {
        while let Some(packet) = self.unsent.front() {
            match connection.try_send(packet, &[]) {
                Ok(()) => drop(self.unsent.pop_front()),
                Err(error) => return error.would_wait(),
            }
        }
        true
    }

    /// Passes on what was recorded of a client. Says whether there will be more.
    fn pass_on(&mut self, client: &mut Recorded) -> bool {
        let session = client.observer.session();
        let Taken {
            spans,
            places,
            client_records,
            dropped,
            state,
        } = client.observer.recording.drain();
        for part in joined(client_records) {
            self.tell(session, RecordedPart::Told(part.into()));
        }
        for piece in spans {
            self.tell(session, RecordedPart::Spans(piece.into()));
        }
        client.open.extend(places);
        if !client.reached.is_empty() {
            let mut writer = SpanWriter::default();
            for (stream, sequence) in client.reached.drain(..) {
                writer.put_reached(At { stream, sequence });
            }
            self.tell(session, RecordedPart::Spans(writer.take().into()));
        }
        let (publisher, reached) = (&client.observer.publisher, &mut client.reached);
        client.open.retain(|&stream, &mut last| {
            let now = publisher.completed(stream);
            reached.push((stream, now));
            now < last
        });
        if dropped > 0 {
            self.tell(session, RecordedPart::Dropped { count: dropped });
        }
        match state {
            RecordingState::GoesOn => return true,
            RecordingState::Over => self.tell(session, over("")),
            RecordingState::Lost => self.tell(
                session,
                over("it records itself from now on (OPENMPS_TRACE)"),
            ),
        }
        false
    }

    /// Lets those go that have left while nobody reads, but for a few: their reader may only be slow.
    fn forget_who_left(&mut self) {
        let mut kept = 0;
        let (stay, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.clients)
            .into_iter()
            .partition(|client| {
                let has_left = client.observer.recording.is_over();
                kept += usize::from(has_left);
                !has_left || kept <= MOST_LEFT
            });
        self.clients = stay;
        for client in left {
            client.observer.recording.end();
            if self.unsent.len() < MOST_UNSENT {
                self.tell(
                    client.observer.session(),
                    over("its end is missing, as nobody read it"),
                );
            }
        }
    }
}

/// Pieces of at most [`PART`] bytes of whole ones, in their order.
fn joined(told: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for piece in told {
        match parts.last_mut() {
            Some(part) if part.len() + piece.len() <= PART => part.extend(piece),
            _ => parts.push(piece),
        }
    }
    parts
}

/// The time lines of a server.
#[derive(Debug, Default)]
pub struct TimeLines(Mutex<HashMap<u64, Arc<TimeLine>>>);

impl TimeLines {
    /// The time line of a number, whose reader is at the other end of that socket.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn find(self: &Arc<Self>, number: u64, socket: OwnedFd) -> std::io::Result<Arc<TimeLine>> {
        let mut all = self.0.lock();
        if let Some(there) = all.get(&number) {
            return Ok(there.clone());
        }
        // Whoever asked may have sent anything there.
        let connection = Connection::from_fd(socket).refuse_descriptors();
        let new = Arc::new(TimeLine {
            number,
            connection,
            room: Arc::new(Room::new(ROOM)),
            progress: Mutex::default(),
        });
        let (own, time_line) = (self.clone(), new.clone());
        std::thread::Builder::new()
            .name("time line".into())
            .spawn(move || {
                while time_line.round() {
                    std::thread::sleep(ROUND);
                }
                own.0.lock().remove(&number);
                time_line.end();
            })?;
        all.insert(number, new.clone());
        Ok(new)
    }

    /// Sends what there is, before the server ends.
    pub fn finish(&self) {
        let all: Vec<_> = self.0.lock().values().cloned().collect();
        for time_line in all {
            time_line.round();
        }
    }
}
