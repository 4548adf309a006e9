//! A session's thread: from the daemon's packet to the session's end, whatever ends it.
//!
//! Started by the main loop. Must not know what is in the packet or what the client posts.

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use cuda_abi::CUresult;
use engine::Charge;
use protocol::control_messages::{Admit, Ending, Packet};
use transport::session::Publisher;
use transport::session::journal::{self, Entry, JOURNAL_MAX};
use transport::socket::Connection;

use crate::admission::{HandedMemory, ServerResources, admit};
use crate::event_queue::ServerEvent;
use crate::log::{ClientLog, Log};
use crate::memory::file_receiver::{FileReceiver, NoFile};
use crate::session::End;
use crate::session::observer::Cancellation;
use crate::time_lines::TimeLines;

/// What sessions' threads and the main thread share.
#[derive(Debug)]
pub struct Sessions {
    /// The engine, and what sessions share.
    pub host: Arc<ServerResources>,
    /// The server's log.
    pub log: Arc<dyn Log>,
    /// Clients of which somebody wants time lines.
    pub time_lines: Arc<TimeLines>,
    /// Clients that have a context, and are not gone.
    pub contexts: Arc<AtomicUsize>,
}

/// Whether a process has ended, or is about to: a process that exits closes its files some
/// microseconds before its descriptor says so.
fn has_ended(pidfd: &OwnedFd) -> bool {
    transport::socket::poll(&[pidfd.as_fd()], Some(Duration::from_millis(2)))
        .is_ok_and(|ready| ready.first() == Some(&true))
}

impl Sessions {
    /// A session, from the welcome to its end; on a thread of its own.
    pub fn serve(
        &self,
        packet: &Admit,
        pidfd: &OwnedFd,
        connection: &Arc<Connection>,
        memory: HandedMemory,
        cancellation: &Cancellation,
    ) -> Ending {
        let group = packet.member.group;
        let group = group.and_then(|number| self.host.groups.find(number));
        let group = group.map(|group| group.name.clone());
        let name = ClientLog::new(self.log.clone(), self.contexts.clone(), packet, group);
        name.connected();
        // A panic in a session ends that session. What it might have left half-done is the session's
        // own and is dropped; the arena and the engine are only touched through their own locks.
        let end = catch_unwind(AssertUnwindSafe(|| {
            self.serve_until_end(packet, connection, memory, &name, cancellation)
        }))
        .unwrap_or_else(|panic| {
            let text = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned());
            End {
                how: Ending::Failed,
                reason: Some(format!(
                    "the server failed in this session: {}",
                    text.unwrap_or_default()
                )),
            }
        });
        cancellation.nothing_to_observe();
        // A process that ends closes its socket first, which is no other ending.
        let how = match end.how {
            Ending::SocketClosed if has_ended(pidfd) => Ending::ProcessEnded,
            how => how,
        };
        name.disconnected(how, end.reason.as_deref());
        how
    }

    fn serve_until_end(
        &self,
        packet: &Admit,
        connection: &Arc<Connection>,
        memory: HandedMemory,
        name: &ClientLog,
        cancellation: &Cancellation,
    ) -> End {
        let admitted = admit(
            &self.host,
            packet,
            connection,
            memory,
            name.clone(),
            cancellation,
        );
        let mut admitted = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => {
                name.line(format_args!(
                    "refused with error {}: {}",
                    refusal.code.0, refusal.text
                ));
                let refused = Packet::Refused {
                    code: refusal.code.0,
                    text: refusal.text.clone(),
                };
                let _ = connection.try_send(&refused.encode(), &[]);
                return End {
                    how: Ending::Failed,
                    reason: Some(refusal.text),
                };
            }
        };
        let bases = std::mem::take(&mut admitted.bases);
        self.host
            .events
            .push(ServerEvent::Attached(packet.session, bases));

        // Whatever happens, a client that waits is told that nothing comes any more.
        let _close = CloseOnEnd(admitted.session.publisher(), cancellation);
        if let Some(former) = admitted.former.take() {
            // Else another server would do again what is done from here on, if this one ended.
            if let Err(how) = cancellation.wait_until_told() {
                return End { how, reason: None };
            }
            // As long as it is read.
            let mut held = Charge::new(admitted.held.clone());
            let files = (&*self.host.files, &*former.journal);
            let taken_over =
                receive_journal(connection, files, cancellation, &mut held).and_then(|entries| {
                    let consumer = &mut admitted.consumer;
                    let taken_over = (&former, entries);
                    admitted
                        .session
                        .take_over(consumer, taken_over, cancellation)
                });
            match taken_over {
                Ok(result) => {
                    let event = ServerEvent::TakenOver(packet.session, result.counts());
                    self.host.events.push(event);
                    name.line(result);
                }
                Err(end) => return end,
            }
        }
        admitted.session.serve(&mut admitted.consumer, cancellation)
    }
}

/// How often a session that waits for its client's journal looks whether it is to end.
const JOURNAL_SLICE: Duration = Duration::from_millis(20);

/// What a byte of a journal may take at most once it is read.
const JOURNAL_COST: u64 = 4;

/// Packets that a client may have sent to other servers before its journal comes.
const MOST_FOREIGN: usize = 64;

/// Waits until the client says what it has, which it does when it next looks for its server.
fn receive_journal(
    connection: &Connection,
    (files, packet): (&FileReceiver, &[u8]),
    cancellation: &Cancellation,
    held: &mut Charge,
) -> Result<Vec<Entry>, End> {
    let failed = |how: Ending, reason: String| End {
        how,
        reason: Some(reason),
    };
    let malformed = |reason: String| failed(Ending::Malformed, reason);
    let mut foreign = 0;
    let file = loop {
        if let Some(how) = cancellation.ending() {
            return Err(End { how, reason: None });
        }
        match transport::socket::poll(&[connection.as_fd()], Some(JOURNAL_SLICE)) {
            Ok(ready) if ready.first() == Some(&true) => {}
            Ok(_) => continue,
            Err(error) => return Err(failed(Ending::Failed, error.to_string())),
        }
        match files.receive(packet, connection) {
            Ok(file) => break file,
            // A client that has gone, or cannot go on, closes its end.
            Err(_) if connection.is_closed() => {
                let reason = "its client does not go on".to_owned();
                return Err(failed(Ending::SocketClosed, reason));
            }
            // It was sent to a server that ended before it was read.
            Err(NoFile::NotSent) if foreign < MOST_FOREIGN => foreign += 1,
            Err(error) => {
                let reason = format!("its client's journal did not come: {error:?}");
                return Err(malformed(reason));
            }
        }
    };
    let bytes = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_size.unsigned_abs());
    if bytes > JOURNAL_MAX || !held.grow(bytes.saturating_mul(JOURNAL_COST)) {
        return Err(malformed("its client's journal is too long".to_owned()));
    }
    match journal::read(file, bytes) {
        Ok(Some(entries)) => Ok(entries),
        Ok(None) => Err(malformed("its client's journal makes no sense".to_owned())),
        Err(error) => Err(malformed(error.to_string())),
    }
}

struct CloseOnEnd<'a>(Arc<Publisher>, &'a Cancellation);

impl Drop for CloseOnEnd<'_> {
    fn drop(&mut self) {
        self.0.close(match self.1.ending() {
            Some(Ending::Terminated) => CUresult::ERROR_MPS_CLIENT_TERMINATED,
            Some(Ending::KernelTime) => CUresult::ERROR_LAUNCH_TIMEOUT,
            _ => CUresult::ERROR_MPS_RPC_FAILURE,
        });
    }
}
