//! The main thread and the daemon: packets that come, and packets that go when the daemon reads.
//!
//! Called by the main loop. Must not know what a session does between its beginning and its end.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use engine::{MemoryChunk, Window};
use protocol::control_messages::{self, DeviceAccount, Ending, Guilt, Packet};
use rustix::event::epoll::{self, EventData, EventFlags};
use transport::socket::SocketError;

use crate::admission::ServerResources;
use crate::admission::groups::LimitError;
use crate::event_queue::ServerEvent;
use crate::log::Log;
use crate::main_loop::unsent::Unsent;
use crate::main_loop::{DAEMON, MainLoop};

/// Packets that wait for a daemon which does not read, beyond which faults are not told any more:
/// they are its log's, while its count of clients needs all others.
const MAX_UNSENT: usize = 4096;

impl MainLoop {
    pub(super) fn handle_daemon_packets(&mut self) {
        loop {
            match self.connection.try_receive() {
                Ok(Some((bytes, fds))) => match Packet::decode(&bytes) {
                    Ok(Packet::Admit(admit)) => self.admit(admit, fds),
                    Ok(Packet::ChunkMade {
                        session,
                        device,
                        base,
                        bytes,
                    }) => {
                        if let Some(descriptor) = fds.into_iter().next() {
                            let at = Window { base, bytes };
                            let chunk = MemoryChunk {
                                device,
                                at,
                                descriptor,
                            };
                            let inherited = self.inherited.entry(session).or_default();
                            inherited.chunks.insert((device, base), chunk);
                        }
                    }
                    Ok(Packet::WindowMade {
                        session,
                        device,
                        base,
                        bytes,
                    }) => {
                        let inherited = self.inherited.entry(session).or_default();
                        let file = fds.into_iter().next();
                        let window = Window { base, bytes };
                        inherited.windows.add(device, window, file);
                    }
                    Ok(Packet::Shutdown { force, grace }) => self.shut_down(force, grace),
                    Ok(Packet::Terminate { session }) => {
                        // One that is gone already needs no end.
                        if let Some(running) = self.running.get(&session) {
                            running.cancellation.end(Ending::Terminated);
                        }
                    }
                    Ok(Packet::HandOver) => self.is_asked_to_hand_over = true,
                    Ok(Packet::FormerEnded { former }) => {
                        for running in self.running.values() {
                            running.cancellation.former_ended(former);
                        }
                    }
                    Ok(Packet::Record { time_line, session }) => {
                        // One that is gone already has nothing to be recorded.
                        if let (Some(running), Some(socket)) =
                            (self.running.get(&session), fds.into_iter().next())
                        {
                            self.record_client(&running.cancellation, time_line, socket);
                        }
                    }
                    Ok(Packet::SeekExport {
                        question,
                        uid,
                        token,
                    }) => self.export_for_another(question, uid, token),
                    Ok(Packet::ExportFound { question, object }) => {
                        self.found_elsewhere(question, Some((object, fds)));
                    }
                    Ok(Packet::ExportNotFound { question }) => self.found_elsewhere(question, None),
                    Ok(Packet::Group(group)) => self.set_group(group, fds),
                    Ok(Packet::GroupGone { group }) => {
                        if let Some((turn, group)) = self.sessions.host.groups.remove(group) {
                            self.spawn_task(move |host, _| {
                                host.groups.end_in_engine(&*host.engine, &turn, &group);
                            });
                        }
                    }
                    Ok(Packet::Change(change)) => match self.running.get(&change.session) {
                        Some(running) => match running.cancellation.accounts() {
                            Some(accounts) if change.asks_only() => self.send(&Packet::Changed {
                                request: change.request,
                                code: CUresult::SUCCESS.0,
                                text: String::new(),
                                accounts,
                            }),
                            _ => running.cancellation.request_change(change),
                        },
                        None => self.send(&Packet::Changed {
                            request: change.request,
                            code: CUresult::ERROR_INVALID_VALUE.0,
                            text: "the client is gone".into(),
                            accounts: Vec::new(),
                        }),
                    },
                    Ok(_) => self.log_line(
                        "The daemon sent a packet that does not belong here; it is ignored",
                    ),
                    Err(error) => self.log_line(&format!(
                        "The daemon sent a packet that cannot be read ({error}); it is ignored"
                    )),
                },
                Ok(None) => return,
                Err(SocketError::Descriptors(bytes)) => self.handle_without_descriptors(&bytes),
                Err(error @ SocketError::Length) => {
                    self.log_line(&format!(
                        "The daemon sent a packet that cannot be read ({error}); it is ignored"
                    ));
                }
                Err(error) => {
                    // Clients go on without the daemon.
                    self.log_line(&format!(
                        "The daemon is gone ({error}); waiting for current clients to finish"
                    ));
                    let _ = epoll::delete(&self.epoll, &self.connection);
                    self.stopping = true;
                    // Nobody says any more when their former server's process has ended.
                    let running = self.running.values();
                    for running in running.filter(|running| running.cancellation.awaits_former()) {
                        running.cancellation.end(Ending::Failed);
                    }
                    return;
                }
            }
        }
    }

    /// A packet came without its descriptors. The daemon waits for what comes of it.
    fn handle_without_descriptors(&mut self, bytes: &[u8]) {
        match Packet::decode(bytes) {
            Ok(Packet::Admit(admit)) => {
                self.log_line("A client was lost: the server has no descriptor left for it; raise its limit of open files");
                self.report_end(admit.session, Ending::Failed, Vec::new());
            }
            Ok(Packet::Group(group)) => self.set_group(group, Vec::new()),
            Ok(Packet::ExportFound { question, .. }) => {
                self.log_line("Another server's memory was not opened: the server has no descriptor left for it; raise its limit of open files");
                self.found_elsewhere(question, None);
            }
            _ => {
                self.log_line("The daemon sent a packet whose descriptors are lost; it is ignored");
            }
        }
    }

    /// Sets a group of clients up as the daemon asks.
    fn set_group(&mut self, group: control_messages::Group, fds: Vec<OwnedFd>) {
        let host = &self.sessions.host;
        let told = match fds.into_iter().next() {
            Some(usage) => host.groups.announce(&*host.engine, &group, usage),
            None => Err((
                CUresult::ERROR_INVALID_VALUE,
                "no descriptor of its usage came".to_owned(),
            )),
        };
        let group = Arc::new(group);
        let told = told.and_then(|turn| {
            let group = group.clone();
            let started = self.spawn_task(move |host, log| {
                let set = host.groups.apply_limits(&*host.engine, &group, &turn);
                if set.is_ok()
                    && let Some(group) = host.groups.find(group.group)
                    && group.compute().is_some_and(|compute| compute.each)
                {
                    log.line(
                        false,
                        "The device cannot hold a group to one part: each of its clients is held to it",
                    );
                }
                drop(turn);
                report_group(host, log, &group, set);
            });
            let code = CUresult::ERROR_OPERATING_SYSTEM;
            let no_thread = || (code, "there is no thread for it".to_owned());
            started.then_some(()).ok_or_else(no_thread)
        });
        if told.is_err() {
            report_group(&self.sessions.host, &*self.sessions.log, &group, told);
        }
    }

    /// Does something on a thread of its own, because it may have to wait for kernels, which need never
    /// end. Whether there is one.
    pub(super) fn spawn_task(
        &self,
        act: impl FnOnce(&ServerResources, &dyn Log) + Send + 'static,
    ) -> bool {
        let sessions = self.sessions.clone();
        let act = move || act(&sessions.host, &*sessions.log);
        let thread = std::thread::Builder::new().name("groups".into());
        thread.spawn(act).is_ok()
    }

    fn shut_down(&mut self, force: bool, grace: u32) {
        if !self.stopping {
            self.log_line("Server has been notified to shutdown");
        }
        self.stopping = true;
        if force {
            self.end_all();
        } else {
            self.log_line("Waiting for current clients to finish");
            if grace != u32::MAX {
                self.force_at = Some(Instant::now() + Duration::from_millis(grace.into()));
            }
        }
    }

    /// Tells the daemon that a session has ended, and what its client has had.
    pub(super) fn report_end(
        &mut self,
        session: u64,
        how: Ending,
        mut accounts: Vec<DeviceAccount>,
    ) {
        for account in &mut accounts {
            (account.memory, account.queued) = (0, 0);
        }
        self.send(&Packet::Gone {
            session,
            how,
            accounts,
        });
    }

    /// Tells the daemon of a fault of a client's context, unless it has not read much of what it was told.
    pub(super) fn report_fault(&mut self, session: u64, code: CUresult, guilt: Guilt, text: &str) {
        if self.unsent.len() < MAX_UNSENT {
            self.send(&Packet::Fault {
                session,
                code: code.0,
                text: text.chars().take(1000).collect(),
                guilt,
            });
        }
    }

    /// Tells the daemon something, now or when it has read what it was told before: no client waits
    /// for a daemon that is slow.
    pub(super) fn send(&mut self, packet: &Packet) {
        self.send_when_it_reads(Unsent::new(packet));
    }

    /// As [`MainLoop::send`], with descriptors.
    pub(super) fn send_with(&mut self, packet: &Packet, descriptors: Vec<OwnedFd>) {
        self.send_when_it_reads(Unsent {
            descriptors,
            ..Unsent::new(packet)
        });
    }

    /// Tells the daemon that a session is here, and then the session that it knows.
    pub(super) fn say_attached(&mut self, session: u64, bases: Vec<u64>) {
        let client = self.running.get(&session);
        self.send_when_it_reads(Unsent {
            told: client.map(|running| running.cancellation.clone()),
            ..Unsent::new(&Packet::Attached { session, bases })
        });
    }

    /// As [`MainLoop::send`], with what belongs to it.
    fn send_when_it_reads(&mut self, unsent: Unsent) {
        self.unsent.push_back(unsent);
        self.send_unsent();
    }

    pub(super) fn send_unsent(&mut self) {
        let waited = self.unsent.len() > 1;
        while let Some(first) = self.unsent.front() {
            let descriptors: Vec<_> = first.descriptors.iter().map(AsFd::as_fd).collect();
            let sent = self.connection.try_send(&first.packet, &descriptors);
            if sent.is_err_and(|error| error.would_wait()) {
                break;
            }
            // A daemon that is gone needs to be told nothing.
            if let Some(told) = self.unsent.pop_front().and_then(|sent| sent.told) {
                told.told();
            }
        }
        let waits = !self.unsent.is_empty();
        if waits || waited {
            let mut flags = EventFlags::IN;
            flags.set(EventFlags::OUT, waits);
            let data = EventData::new_u64(DAEMON);
            let _ = epoll::modify(&self.epoll, &self.connection, data, flags);
        }
    }
}

/// Tells the daemon whether a group could be set up as it asked.
fn report_group(
    host: &ServerResources,
    log: &dyn Log,
    group: &control_messages::Group,
    set: Result<(), LimitError>,
) {
    let (code, text) = set.err().unwrap_or_default();
    if code != CUresult::SUCCESS {
        log.line(false, &format!("Group {}: {text}", group.name));
    }
    host.events.push(ServerEvent::Changed {
        request: group.request,
        code,
        text,
        accounts: Vec::new(),
    });
}
