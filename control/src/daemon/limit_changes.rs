//! Changes of limits while clients run: servers are told, and the command is answered when all that
//! are concerned have said whether the change holds.
//!
//! A change holds everywhere or nowhere: if one server refuses a group's, the others get back what
//! held before.
//!
//! Called by commands, and by `daemon::servers` with what servers answered. Must not know how a server makes a
//! change hold.

use std::collections::BTreeSet;

use cuda_abi::CUresult;
use protocol::control_messages::{self, DeviceAccount, Packet};
use serde_json::json;

use super::Daemon;
use super::pending_limit_change::{PendingLimitChange, Subject};
use crate::commands::{Answer, Awaited, client_limits, group_added, group_limits, refused_change};
use crate::groups::saved::GroupLimits;
use crate::servers::limits::ClientLimits;
use crate::servers::registry::{ServerId, State};

impl Daemon {
    /// Has a server change a client's limits, or say what it has taken.
    pub(crate) fn change_client(
        &mut self,
        server: ServerId,
        limits: Option<ClientLimits>,
        change: control_messages::Change,
    ) -> Answer {
        let request = self.number();
        let session = change.session;
        let packet = Packet::Change(control_messages::Change { request, ..change });
        let told = self.registry.servers.get(&server).map(|server| {
            let sent = server.connection.try_send(&packet.encode(), &[]);
            sent.map_err(|error| error.to_string())
        });
        match told {
            Some(Ok(())) => {}
            Some(Err(error)) => return refused_change(&error),
            None => return refused_change("the server is gone"),
        }
        let subject = Subject::Client {
            server,
            session,
            limits,
        };
        self.await_limit_change(request, subject, BTreeSet::from([server]))
    }

    /// Changes a group's limits.
    pub(crate) fn change_group(&mut self, number: u32, limits: GroupLimits) -> Answer {
        let Some(group) = self.groups.by_number.get_mut(&number) else {
            return refused_change("the group is gone");
        };
        let previous = std::mem::replace(&mut group.limits, limits);
        let told = group.announced_to.clone();
        let request = self.number();
        let mut awaited = BTreeSet::new();
        let mut refused = None;
        for id in told {
            match self.send_group(id, number, request) {
                Ok(()) => {
                    awaited.insert(id);
                }
                Err(error) => refused = Some(error.to_string()),
            }
        }
        let subject = Subject::Group { number, previous };
        if awaited.is_empty() {
            return self.conclude_limit_change(&subject, refused, &[]);
        }
        let answer = self.await_limit_change(request, subject, awaited);
        if let Some(change) = self.limit_changes.get_mut(&request) {
            change.refused = refused;
        }
        answer
    }

    /// Has the servers that run agree to a new group or partition.
    pub(crate) fn confirm_group(&mut self, number: u32) -> Answer {
        let request = self.number();
        let group = self.groups.by_number.get(&number);
        let reserved = group.is_some_and(|group| group.limits.reserved);
        // Others need to know nothing before a client comes.
        let servers = self.registry.servers.iter().filter(|_| reserved);
        let running: Vec<ServerId> = servers
            .filter(|(_, server)| server.state == State::Active && !server.key.is_standby())
            .map(|(&id, _)| id)
            .collect();
        let sent = running.into_iter();
        let awaited: BTreeSet<ServerId> = sent
            .filter(|&id| self.send_group(id, number, request).is_ok())
            .collect();
        let subject = Subject::New { number };
        if awaited.is_empty() {
            return self.conclude_limit_change(&subject, None, &[]);
        }
        self.await_limit_change(request, subject, awaited)
    }

    fn await_limit_change(
        &mut self,
        request: u64,
        subject: Subject,
        awaited: BTreeSet<ServerId>,
    ) -> Answer {
        self.limit_changes.insert(
            request,
            PendingLimitChange {
                subject,
                awaited,
                refused: None,
                used: Vec::new(),
            },
        );
        Answer::pending_until(Awaited::Changed(request))
    }

    /// A server has said what came of a change.
    pub(crate) fn limit_change_answered(
        &mut self,
        id: ServerId,
        request: u64,
        code: u32,
        text: &str,
        accounts: &[DeviceAccount],
    ) {
        if self.add_to_view(request, accounts) {
            return;
        }
        let refused = (code != CUresult::SUCCESS.0).then(|| text.to_owned());
        match self.limit_changes.get_mut(&request) {
            Some(change) => {
                change.refused = refused.or(change.refused.take());
                change.used = accounts.iter().map(|account| account.memory).collect();
                self.limit_change_no_longer_awaits(request, id);
            }
            None => {
                if let (Some(refused), Some(server)) = (refused, self.registry.servers.get(&id)) {
                    self.log(&format!("Server {}: {refused}", server.pid()));
                }
            }
        }
    }

    /// A session, or with none its server, is gone, and changes nothing any more.
    pub(crate) fn end_limit_changes(&mut self, id: ServerId, session: Option<u64>) {
        self.remove_from_views(id, session);
        let concerned = |change: &PendingLimitChange| match change.subject {
            Subject::Client {
                server,
                session: whose,
                ..
            } => server == id && session.is_none_or(|session| session == whose),
            Subject::Group { .. } | Subject::New { .. } => {
                session.is_none() && change.awaited.contains(&id)
            }
        };
        let ended: Vec<u64> = self
            .limit_changes
            .iter()
            .filter(|(_, change)| concerned(change))
            .map(|(&request, _)| request)
            .collect();
        for request in ended {
            if let Some(change) = self.limit_changes.get_mut(&request)
                && matches!(change.subject, Subject::Client { .. })
            {
                change.refused = Some("the client is gone".into());
            }
            self.limit_change_no_longer_awaits(request, id);
        }
    }

    fn limit_change_no_longer_awaits(&mut self, request: u64, id: ServerId) {
        let Some(change) = self.limit_changes.get_mut(&request) else {
            return;
        };
        change.awaited.remove(&id);
        if !change.awaited.is_empty() {
            return;
        }
        if let Some(change) = self.limit_changes.remove(&request) {
            let answer = self.conclude_limit_change(&change.subject, change.refused, &change.used);
            self.answer_with(Awaited::Changed(request), &answer);
        }
    }

    /// All have answered.
    fn conclude_limit_change(
        &mut self,
        subject: &Subject,
        refused: Option<String>,
        used: &[u64],
    ) -> Answer {
        match subject {
            Subject::Client {
                server,
                session,
                limits,
            } => {
                if let Some(refused) = refused {
                    return refused_change(&refused);
                }
                let home = self.registry.servers.get_mut(server);
                if let (Some(home), Some(limits)) = (home, limits)
                    && home.set_limits(*session, limits)
                    && let Some(client) = home.clients.get(session)
                {
                    let who = json!({ "client": client.pid, "uid": client.uid });
                    self.event("limit.set", who, json!({}));
                }
                client_limits(self, *server, *session, used)
            }
            Subject::Group { number, previous } => {
                if let Some(refused) = refused {
                    let group = self.groups.by_number.get_mut(number);
                    let told = group.map(|group| {
                        group.limits = previous.clone();
                        group.announced_to.clone()
                    });
                    for id in told.unwrap_or_default() {
                        let _ = self.send_group(id, *number, 0);
                    }
                    return refused_change(&refused);
                }
                self.save_group(*number);
                self.group_event("limit.set", *number, json!({}));
                group_limits(self, *number)
            }
            Subject::New { number } => {
                let answer = group_added(self, *number, refused.as_deref());
                if refused.is_some() {
                    let _ = self.remove_group(*number);
                } else {
                    self.save_group(*number);
                    self.group_event("group.added", *number, json!({}));
                }
                answer
            }
        }
    }
}
