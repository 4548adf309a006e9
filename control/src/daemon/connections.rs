//! Connections that have not said yet what they are for: few words are awaited, and not for long.
//!
//! Called by the event loop. Must not know what a command or a client's packet asks: it hands both on.

use std::time::{Duration, Instant};

use protocol::control_messages::{FEATURE_REMARK, Packet, Purpose, Unreadable};
use serde_json::json;
use transport::socket::{Connection, SocketError};

use super::Daemon;
use super::epoll_token::EpollToken;
use super::half_open::HalfOpen;
use crate::commands::{self, Caller};
use crate::groups::GroupKind;
use crate::log::About;

/// How long a connection may say nothing.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connections taken before other events get their turn.
const AT_A_TIME: usize = 64;

impl Daemon {
    /// Takes those who connect: to the socket for all, to the owner's, or to a group's.
    pub(crate) fn accept(&mut self, source: EpollToken) {
        let group = match source {
            EpollToken::Group(number) => Some(number),
            _ => None,
        };
        for _ in 0..AT_A_TIME {
            if transport::background_close::is_behind() {
                return self.pause_listening();
            }
            let of_group = group.map(|number| self.groups.by_number.get(&number));
            let listener = match (of_group, source, &self.instance.privileged) {
                (Some(Some(group)), _, _) => match &group.kind {
                    GroupKind::Named { listener, .. } => listener,
                    GroupKind::Partition(_) => return,
                },
                // Removed since.
                (Some(None), _, _) => return,
                (None, EpollToken::Privileged, Some(privileged)) => privileged,
                _ => &self.instance.listener,
            };
            match listener.try_accept() {
                Ok(Some(connection)) => self.accepted(connection, group),
                Ok(None) => return,
                Err(error) => {
                    // Most likely no descriptor is left. A silent connection's helps; or time does.
                    let text = format!("Cannot accept a connection: {error}");
                    self.log_about(&About::Somebody, &text);
                    if self.half_open.pop_first().is_none() {
                        self.pause_listening();
                    }
                    return;
                }
            }
        }
    }

    fn accepted(&mut self, connection: Connection, group: Option<u32>) {
        if self.half_open.len() >= self.most_half_open {
            self.half_open.pop_first();
        }
        let number = self.number();
        if let Err(error) = self.watch(&connection, EpollToken::HalfOpen(number)) {
            let about = self.about_peer(&connection, group);
            self.log_about(&about, &format!("Cannot watch a connection: {error}"));
            return;
        }
        self.half_open.insert(
            number,
            HalfOpen {
                connection,
                group,
                deadline: Instant::now() + PATIENCE,
            },
        );
        // What it has to say is usually there already.
        self.half_open_spoke(number);
    }

    pub(crate) fn drop_silent_connections(&mut self, now: Instant) {
        while let Some(first) = self.half_open.first_entry()
            && first.get().deadline <= now
        {
            let HalfOpen {
                connection, group, ..
            } = first.remove();
            let about = self.about_peer(&connection, group);
            self.log_about(&about, "Accepting connection...");
            self.log_about(&about, "A connection said nothing and was closed");
        }
    }

    /// A connection has said something, or ended.
    pub(crate) fn half_open_spoke(&mut self, number: u64) {
        let Some(half_open) = self.half_open.get(&number) else {
            return;
        };
        let about = self.about_peer(&half_open.connection, half_open.group);
        let received = match half_open.connection.try_receive() {
            Ok(None) => return,
            Ok(Some((bytes, _))) => Some(Packet::decode(&bytes)),
            Err(SocketError::Unwanted) => {
                let text = "A connection sent descriptors, which nobody takes here, and was closed";
                self.log_about(&about, text);
                None
            }
            Err(_) => None,
        };
        let Some(HalfOpen {
            connection, group, ..
        }) = self.half_open.remove(&number)
        else {
            return;
        };
        self.unwatch(&connection);
        // Said here and not when it came: there are some of which nothing is said.
        let is_quiet = matches!(
            &received,
            Some(Ok(Packet::Hello(hello)))
                if match &hello.purpose {
                    Purpose::Command { line } => commands::is_quiet(line),
                    Purpose::Client(_) => false,
                    // Programs that watch devices ask all the time.
                    Purpose::View(_) => true,
                    Purpose::TimeLines(_) => false,
                }
        );
        if !is_quiet {
            self.log_about(&about, "Accepting connection...");
        }
        match received {
            // It ended: a tool that looked whether somebody listens.
            None => {}
            Some(Ok(Packet::Hello(hello))) => match &hello.purpose {
                Purpose::Client(_) => self.client(connection, hello, group),
                Purpose::Command { line } => {
                    let remarks = hello.features & FEATURE_REMARK != 0;
                    self.command(connection, line, group, remarks);
                }
                Purpose::View(request) => self.view(connection, request.clone(), group),
                Purpose::TimeLines(request) => self.record(connection, request.clone(), group),
            },
            Some(Err(Unreadable::Version(versions))) => {
                self.refuse(&connection, None, group, &versions.to_string());
            }
            // Whoever it is would not understand an answer.
            Some(Err(Unreadable::Magic)) => {
                let text = "A connection said something that is none of OpenMPS, and was closed";
                self.log_about(&about, text);
            }
            Some(Ok(_)) => self.refuse(&connection, None, group, "expected a Hello"),
            Some(Err(error)) => self.refuse(&connection, None, group, &error.to_string()),
        }
    }

    fn command(&mut self, connection: Connection, line: &str, group: Option<u32>, remarks: bool) {
        let peer = match connection.peer() {
            Ok(peer) => peer,
            Err(error) => {
                let about = self.about_peer(&connection, group);
                self.log_about(
                    &about,
                    &format!("A command was refused: the kernel does not say whose it is: {error}"),
                );
                return;
            }
        };
        let caller = Caller {
            uid: peer.uid,
            pid: peer.pid,
            group,
        };
        if commands::is_quiet(line) {
            let answer = commands::run(self, caller, line);
            self.answer(connection, caller, line, answer);
            return;
        }
        let about = self.about(caller.uid, group);
        self.log_about(&about, "NEW UI");
        self.log_about(&about, &format!("Cmd:{line}"));
        let mut answer = commands::run(self, caller, line);
        for line in answer.log.as_ref().unwrap_or(&answer.text).lines() {
            self.log_about(&about, line);
        }
        let why = answer.remark.as_deref().unwrap_or(answer.text.trim_end());
        let refused = (answer.exit != 0).then_some(why);
        self.event_about(
            &about,
            "command",
            json!({ "uid": caller.uid, "pid": caller.pid }),
            json!({ "line": line, "exit": answer.exit, "refused": refused }),
        );
        answer.remark = answer.remark.filter(|_| remarks);
        self.answer(connection, caller, line, answer);
        self.log_about(&about, "UI closed");
    }
}
