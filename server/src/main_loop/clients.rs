//! The main thread's clients: the session of each is begun here on a thread of its own, and is told to end when the
//! process or its socket does.
//!
//! Called by the main loop. Must not know what clients post, nor how packets are sent.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use cuda_abi::CUresult;
use protocol::control_messages::{Admit, Ending, Packet};
use rustix::event::epoll::{self, EventFlags};
use rustix::process::getpid;
use transport::socket::Connection;

use crate::admission::{HandedMemory, claim_addresses};
use crate::event_queue::ServerEvent;
use crate::main_loop::watchdog::ClientWork;
use crate::main_loop::{FIRST_SESSION, MainLoop};
use crate::session::observer::Cancellation;

/// A session as the main thread knows it.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) cancellation: Arc<Cancellation>,
    pub(super) pidfd: Arc<OwnedFd>,
    pub(super) connection: Arc<Connection>,
    who: Option<(i32, u64)>,
    thread: Option<JoinHandle<()>>,
    /// For the log.
    name: String,
    /// Another server can take it over.
    pub(super) is_kept: bool,
}

impl Running {
    /// What devices have of its work and what has ended, once the session is there.
    pub(super) fn work(&self) -> Option<ClientWork> {
        let observer = self.cancellation.observer()?;
        let is_limited = observer.kernel_time.limit().is_some();
        Some(ClientWork {
            name: self.name.clone(),
            completed: observer.completed_operations(),
            in_flight: observer.in_flight(),
            // One that is to end has a kernel that nothing ends.
            is_limited: is_limited && self.cancellation.ending().is_none(),
        })
    }
}

/// Descriptors that a server keeps for those who are connected, and to tell others that it has no more.
const SPARE_DESCRIPTORS: u64 = 48;

impl MainLoop {
    /// Whether a session is to end and has not.
    pub(super) fn has_ending(&self) -> bool {
        let mut running = self.running.values();
        running.any(|running| running.cancellation.ending().is_some())
    }

    /// Whether all sessions are to end, and what they wait for does not come.
    pub(super) fn only_stuck_are_left(&self) -> bool {
        let mut running = self.running.values();
        running.all(|running| running.cancellation.ending().is_some())
            && self.sessions.host.engine.hung_work().is_some()
    }

    /// A client that has gone may have left work that does not end and that the engine cannot end. New
    /// clients then get another server, whose device has nothing to do with it; and when those that are
    /// here have left, this one ends, and the work with it.
    pub(super) fn check_ending_sessions(&mut self) {
        if self.stuck || self.rest.is_reached() {
            return;
        }
        let Some(what) = self.sessions.host.engine.hung_work() else {
            return;
        };
        self.stuck = true;
        let pid = getpid().as_raw_pid();
        self.log_line(&format!(
            "{} has gone and left work that does not end: {what}. Its memory stays taken, and what would \
             wait for it fails with error 46: other clients here can load no modules. `shutdown_server {pid} \
             -f` ends it, with all clients of this server; else it ends when they have left",
            self.names_of_ending(),
        ));
        self.stop_admitting(CUresult::ERROR_DEVICE_UNAVAILABLE);
    }

    /// Whose sessions are to end, for the log.
    pub(super) fn names_of_ending(&self) -> String {
        let ending = self.running.values();
        let mut names: Vec<&str> = ending
            .filter(|running| running.cancellation.ending().is_some())
            .map(|running| &*running.name)
            .collect();
        names.sort_unstable();
        names.join(", ")
    }

    pub(super) fn end_all(&self) {
        for running in self.running.values() {
            running.cancellation.end(Ending::Shutdown);
        }
    }

    /// What tells one process from another, unless nothing does.
    fn identity(&self, pid: i32, pidfd: &OwnedFd) -> Option<(i32, u64)> {
        let inode = process_inode(pidfd.as_fd());
        // Before Linux 6.9 all processes' descriptors have one inode, and then only the id tells.
        (pid != 0 || inode != self.own_process).then_some((pid, inode))
    }

    pub(super) fn admit(&mut self, packet: Admit, fds: Vec<OwnedFd>) {
        let number = packet.session;
        let inherited = self.inherited.remove(&number).unwrap_or_default();
        let mut fds = fds.into_iter();
        let (Some(socket), Some(pidfd)) = (fds.next(), fds.next()) else {
            self.log_line(
                "The daemon handed over a client without its descriptors; the client is not served",
            );
            return self.report_end(number, Ending::Failed, Vec::new());
        };
        let mut memory: Vec<OwnedFd> = fds.collect();
        let reader = packet.time_line.and_then(|_| memory.pop());
        // The kernel gives the lowest numbers that are free: high ones say that few are.
        if is_nearly_last(&memory) {
            let text = "the server has hardly a descriptor left: raise its limit (LimitNOFILE= of a unit, ulimit -n)";
            self.log_line(&format!("Client {} was refused: {text}", packet.pid));
            let refused = Packet::Refused {
                code: CUresult::ERROR_MPS_MAX_CLIENTS_REACHED.0,
                text: text.into(),
            };
            let _ = Connection::from_stranger(socket).try_send(&refused.encode(), &[]);
            return self.report_end(number, Ending::Failed, Vec::new());
        }
        let memory = HandedMemory {
            descriptors: memory,
            claimed: claim_addresses(&self.sessions.host, &packet.bases),
            chunks: inherited.chunks.into_values().collect(),
            windows: inherited.windows,
        };
        let (pidfd, connection) = (Arc::new(pidfd), Arc::new(Connection::from_stranger(socket)));
        let cancellation = Arc::new(Cancellation::of_former(packet.former));
        if let (Some(number), Some(reader)) = (packet.time_line, reader) {
            self.record_client(&cancellation, number, reader);
        }
        let who = self.identity(packet.pid, &pidfd);
        let name = format!("Client {} ({})", packet.pid, packet.client.program);
        let former = self.end_predecessor(who);
        let watched = self
            .watch(&*pidfd, FIRST_SESSION + 2 * number, EventFlags::IN)
            .and_then(|()| {
                let flags = EventFlags::RDHUP | EventFlags::HUP;
                self.watch(&*connection, FIRST_SESSION + 2 * number + 1, flags)
            });
        let thread = watched.map_err(std::io::Error::from).and_then(|()| {
            let sessions = self.sessions.clone();
            let cancellation = cancellation.clone();
            let (pidfd, connection) = (pidfd.clone(), connection.clone());
            std::thread::Builder::new()
                .name(format!("client {}", packet.pid))
                .spawn(move || {
                    while let Some(former) = &former
                        && !former.is_finished()
                        && sessions.host.engine.hung_work().is_none()
                    {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let how = sessions.serve(&packet, &pidfd, &connection, memory, &cancellation);
                    drop(connection);
                    sessions.host.events.push(ServerEvent::Ended(number, how));
                })
        });
        match thread {
            Ok(thread) => {
                self.running.insert(
                    number,
                    Running {
                        cancellation,
                        pidfd,
                        connection,
                        who,
                        thread: Some(thread),
                        name,
                        is_kept: false,
                    },
                );
            }
            Err(error) => {
                self.log_line(&format!(
                    "A client was refused: no thread can be started for it ({error})"
                ));
                let refused = Packet::Refused {
                    code: CUresult::ERROR_MPS_MAX_CLIENTS_REACHED.0,
                    text: error.to_string(),
                };
                let _ = connection.try_send(&refused.encode(), &[]);
                self.report_end(number, Ending::Failed, Vec::new());
            }
        }
    }

    /// Has a client recorded for who reads at the other end of that socket.
    pub(super) fn record_client(&self, client: &Cancellation, number: u64, socket: OwnedFd) {
        match self.sessions.time_lines.find(number, socket) {
            Ok(time_line) => client.set_time_line(time_line),
            Err(error) => {
                self.log_line(&format!("A client is not recorded: {error}"));
            }
        }
    }

    /// Ends the session that a process had before, whose thread is to be waited for.
    fn end_predecessor(&mut self, who: Option<(i32, u64)>) -> Option<JoinHandle<()>> {
        let who = who?;
        let former = self
            .running
            .values_mut()
            .find(|running| running.who == Some(who) && running.thread.is_some())?;
        former.cancellation.end(Ending::Replaced);
        former.thread.take()
    }

    /// A client's process or socket has ended.
    pub(super) fn end_client(&mut self, number: u64) {
        let (session, of_socket) = (number / 2, number % 2 == 1);
        let Some(running) = self.running.get(&session) else {
            return;
        };
        // Once is enough; the descriptors stay readable.
        let _ = epoll::delete(&self.epoll, &*running.pidfd);
        let _ = epoll::delete(&self.epoll, &*running.connection);
        running.cancellation.end(if of_socket {
            Ending::SocketClosed
        } else {
            Ending::ProcessEnded
        });
    }
}

/// Whether these descriptors are among the last that this process may have.
fn is_nearly_last(fds: &[OwnedFd]) -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let numbers = fds
        .iter()
        .map(|fd| u64::from(fd.as_raw_fd().unsigned_abs()));
    let highest = numbers.max().unwrap_or(0);
    limit.is_some_and(|limit| highest + SPARE_DESCRIPTORS >= limit)
}

/// What tells processes apart: since Linux 6.9 each has an inode of its own.
pub(super) fn process_inode(pidfd: std::os::fd::BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(pidfd).map_or(0, |stat| stat.st_ino)
}
