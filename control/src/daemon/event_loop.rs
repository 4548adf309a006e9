//! The daemon's one thread: it sleeps in epoll and hands each event to whoever it is for.
//!
//! Nothing here blocks: sockets are asked without waiting, and what takes long is another process's.
//!
//! Called by `startup`. Must not know what an event means: each file beside it does for its own.

use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use serde_json::json;

use super::Daemon;
use super::answers::{NO_ANSWER, send_answer};
use super::epoll_token::EpollToken;
use super::pending::PendingAnswer;
use super::signals::drain;
use super::upgrade::Upgrade;
use crate::commands::Awaited;

/// How often, at most, the logs are looked after.
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// How long it is left alone while nothing else happens and there are servers.
const LOOK_IDLE: Duration = Duration::from_secs(60);

impl Daemon {
    /// Runs until it is told to quit and all servers are gone.
    #[must_use]
    pub fn run(mut self) -> ExitCode {
        let mut events = Vec::with_capacity(64);
        // Of a daemon that was here before.
        self.reap();
        self.answer_who_asked_for_this_daemon();
        while !self.is_done() {
            events.clear();
            let timeout = self.next_deadline().map(|deadline| {
                // Rounded up, so that the deadline has passed when the wait is over.
                let left =
                    deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
                rustix::time::Timespec {
                    tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: i64::from(left.subsec_nanos()),
                }
            });
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    self.log(&format!("Cannot wait for events: {error}"));
                    break;
                }
            }
            for event in &events {
                let data = event.data;
                match EpollToken::decode(data.u64()) {
                    source @ (EpollToken::Listener
                    | EpollToken::Privileged
                    | EpollToken::Group(_)) => {
                        self.accept(source);
                    }
                    EpollToken::Orphan(slot) => self.orphaned_server_ended(slot),
                    EpollToken::LogPipe => self.instance.forward_log_pipe(),
                    EpollToken::Children => self.reap(),
                    EpollToken::Signals => self.signalled(),
                    EpollToken::HalfOpen(number) => self.half_open_spoke(number),
                    EpollToken::Server(id) => self.server_spoke(id),
                    EpollToken::Process(id) => self.server_ended(id, None),
                    EpollToken::Page => self.page_ended(),
                    EpollToken::DeviceScan => self.scan_printed(),
                    EpollToken::Underlay(number) => self.underlay_spoke(number),
                }
            }
            self.act_on_deadlines();
            self.rotate_logs();
            self.upgrade_if_possible();
        }
        self.restore_modes();
        self.log("Exit with status 0");
        let about = json!({ "daemon": std::process::id() });
        self.event("daemon.exited", about, json!({}));
        // Before the answers: whoever gets one may look for the files, or start the next daemon.
        let Self {
            instance, pending, ..
        } = self;
        drop(instance);
        for waiting in pending {
            send_answer(&waiting.connection, &waiting.answer);
        }
        ExitCode::SUCCESS
    }

    /// Whether it was told to quit, and nothing is left that it started.
    fn signalled(&mut self) {
        drain(&self.signals);
        if self.quitting {
            // Asked twice: no more patience.
            for server in self.registry.servers.values_mut() {
                server.deadline = Some(Instant::now());
            }
        } else {
            self.log("Quitting, as a signal asks");
        }
        self.quit(Some(Duration::ZERO));
    }

    /// Reaps children of any process group: servers and supervisors, and orphans, which a process 1 is given.
    fn reap(&mut self) {
        use rustix::process::{WaitOptions, wait};
        use std::os::unix::process::ExitStatusExt;
        drain(&self.children);
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let pid = pid.as_raw_nonzero().get().cast_unsigned();
            if let Some(id) = self.registry.by_pid(pid) {
                self.server_ended(id, Some(ExitStatus::from_raw(status.as_raw())));
            }
        }
    }

    fn rotate_logs(&mut self) {
        if self.rotated_at.elapsed() < LOOK_AFTER {
            return;
        }
        self.rotated_at = Instant::now();
        for log in self.instance.logs() {
            log.rotate(self.log_bytes);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let half_open = self.half_open.values().next().map(|first| first.deadline);
        let servers = self
            .registry
            .servers
            .values()
            .filter_map(|server| server.deadline);
        let answers = self.pending.iter().filter_map(|pending| pending.deadline);
        // Servers write to the log while this process sleeps.
        let logs = (!self.registry.servers.is_empty()).then(|| self.rotated_at + LOOK_IDLE);
        servers
            .chain(half_open)
            .chain(logs)
            .chain(self.listen_again)
            .chain(self.upgrade.as_ref().map(Upgrade::next_deadline))
            .chain(self.views.next_deadline())
            .chain(self.underlay.next_deadline())
            .chain(self.contexts.next_deadline(Instant::now()))
            .chain(self.standbys.next_deadline(Instant::now()))
            .chain(answers)
            .min()
    }

    fn act_on_deadlines(&mut self) {
        let now = Instant::now();
        self.drop_silent_connections(now);
        self.act_on_deadlines_of_views(now);
        self.underlay.act_on_deadlines(now);
        if self.listen_again.is_some_and(|time| time <= now) {
            self.listen_again = None;
            let _ = self.listen();
        }
        // A client that was told to end cannot go on, however long the device still works for it.
        let late =
            |pending: &PendingAnswer| pending.deadline.is_some_and(|deadline| deadline <= now);
        for mut pending in self.pending.extract_if(.., |pending| late(pending)) {
            if matches!(pending.until, Awaited::Changed(_)) {
                pending.answer.fail(NO_ANSWER);
            }
            send_answer(&pending.connection, &pending.answer);
        }
        self.end_late_servers(now);
        self.tend_contexts(now);
        self.tend_standbys(now);
    }
}
