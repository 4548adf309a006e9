//! Time lines of clients: who may have which recorded, and telling servers so, of clients that are there and of those that come.
//!
//! Called by `connections` and `admission`. Must not see what is recorded.

use std::os::fd::AsFd;

use protocol::control_messages::{
    Packet, RecordedClient, RecordedPart, TimeLineRequest, ViewRequest,
};
use transport::socket::Connection;

use super::Daemon;
use super::admission::namespace_of;
use crate::commands::Caller;
use crate::servers::registry::Client;
use crate::time_lines::{MOST, TimeLine};
use crate::views::Asker;

impl Daemon {
    /// Somebody wants time lines of clients, from now on.
    pub(crate) fn record(
        &mut self,
        connection: Connection,
        request: TimeLineRequest,
        via: Option<u32>,
    ) {
        let peer = match connection.peer() {
            Ok(peer) => peer,
            Err(error) => {
                let text = format!("cannot tell who asks: {error}");
                return self.refuse(&connection, None, via, &text);
            }
        };
        self.forget_who_stopped_recording();
        let caller = Caller {
            uid: peer.uid,
            pid: peer.pid,
            group: self.group_of(&peer, via),
        };
        if self.time_lines.len() >= MOST {
            let text = format!("{MOST} others have clients recorded already");
            return self.refuse(&connection, Some(peer.pid), caller.group, &text);
        }
        let asker = Asker {
            caller,
            // An operator knows clients by the numbers that the daemon knows them by.
            request: ViewRequest {
                all: self.may_change(caller),
                ..ViewRequest::default()
            },
            namespace: namespace_of(peer.pid),
            identity: peer.identity(),
            connection,
        };
        let time_line = TimeLine { asker, request };
        let number = self.number();
        let mut found = false;
        for server in self.registry.servers.values() {
            for (&session, client) in &server.clients {
                if !self.is_recorded_by(&time_line, client) {
                    continue;
                }
                found = true;
                let connection = &time_line.asker.connection;
                let record = Packet::Record {
                    time_line: number,
                    session,
                };
                self.announce(&time_line, session, client);
                let sent = server
                    .connection
                    .try_send(&record.encode(), &[connection.as_fd()]);
                if sent.is_err() {
                    let text = "its server has too much to read to be asked".to_owned();
                    let part = RecordedPart::Over { text };
                    let over = Packet::Recorded { session, part };
                    let _ = connection.try_send(&over.encode(), &[]);
                }
            }
        }
        if let (Some(pid), false) = (time_line.request.pid, found) {
            let text = format!(
                "process {pid} is no client of this daemon that you may see: openmps top lists them"
            );
            let Asker { connection, .. } = &time_line.asker;
            return self.refuse(connection, Some(caller.pid), caller.group, &text);
        }
        let about = self.about(caller.uid, caller.group);
        let whom = match time_line.request.pid {
            Some(pid) => format!("client {pid}"),
            None => "all clients that it may see".to_owned(),
        };
        let (uid, pid) = (caller.uid, caller.pid);
        self.log_about(
            &about,
            &format!("Process {pid} of user {uid} records {whom}"),
        );
        self.time_lines.insert(number, time_line);
    }

    fn is_recorded_by(&self, time_line: &TimeLine, client: &Client) -> bool {
        let own_namespace = namespace_of(std::process::id().cast_signed());
        self.sees_client(time_line.asker.caller, client) && time_line.wants(client, own_namespace)
    }

    /// Who has a client recorded that comes, if anybody has.
    pub(crate) fn recorder_of(&self, client: &Client) -> Option<u64> {
        // A process that attaches again after it was asked for by its number is still that process.
        let mut all = self.time_lines.iter();
        let found = all.find(|(_, time_line)| self.is_recorded_by(time_line, client));
        found.map(|(&number, _)| number)
    }

    /// Tells who asked of a client, before servers tell of it.
    pub(crate) fn announce(&self, time_line: &TimeLine, session: u64, client: &Client) {
        let own_namespace = namespace_of(std::process::id().cast_signed());
        let packet = Packet::RecordedClient(RecordedClient {
            session,
            pid: time_line.asker.pid_of(client, own_namespace),
            uid: client.uid,
            program: client.program.clone(),
        });
        // Who does not read learns of it by what servers send.
        let _ = time_line.asker.connection.try_send(&packet.encode(), &[]);
    }

    /// Forgets those who are gone.
    pub(crate) fn forget_who_stopped_recording(&mut self) {
        self.time_lines
            .retain(|_, time_line| !time_line.asker.connection.is_closed());
    }
}
