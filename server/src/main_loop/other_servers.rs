//! The main thread and the user's other servers, by way of the daemon: what they ask for is exported, and what they answer comes to
//! the session that waits for it.
//!
//! Called by the main loop. Must not know what is opened, or how it is mapped.

use protocol::control_messages::Packet;
use transport::background_close;

use super::MainLoop;
use crate::admission::ServerResources;
use crate::event_queue::ServerEvent;
use crate::ipc::elsewhere::Answer;
use crate::ipc::exports::{Token, User};
use crate::ipc::for_others::Wanted;
use crate::log::Log;

impl MainLoop {
    /// A client opens what nobody here shares.
    pub(super) fn seek_elsewhere(&mut self, question: u64, uid: u32, token: Token) {
        // Without the daemon nobody is asked, and nobody is to wait for that.
        if self.connection.is_closed() {
            return self.found_elsewhere(question, None);
        }
        self.send(&Packet::SeekExport {
            question,
            uid,
            token,
        });
    }

    /// Another server asks for what a client of the user's shares.
    pub(super) fn export_for_another(&mut self, question: u64, uid: u32, token: Token) {
        let host = &self.sessions.host;
        let Some(object) = host.exports.find(User::Known(uid), &token) else {
            return self.answer_another(question, None);
        };
        let wanted = Wanted {
            question,
            token,
            object,
        };
        match host.for_others.begin(wanted) {
            Ok(false) => {}
            Ok(true) => {
                let export = |host: &ServerResources, log: &dyn Log| {
                    host.for_others.export_all(log, |question, found| {
                        host.events
                            .push(ServerEvent::ExportAnswer { question, found });
                    });
                };
                if !self.spawn_task(export) {
                    // Those who wait hear of it when their time is over, unless another thread does it.
                    self.sessions.host.for_others.has_no_thread();
                }
            }
            Err(wanted) => self.answer_another(wanted.question, None),
        }
    }

    /// Tells another server what it asked for.
    pub(super) fn answer_another(&mut self, question: u64, found: Option<Answer>) {
        match found {
            Some((object, descriptors)) => {
                self.send_with(&Packet::ExportFound { question, object }, descriptors);
            }
            None => self.send(&Packet::ExportNotFound { question }),
        }
    }

    /// What a session here waits for was found at another server, or was not.
    pub(super) fn found_elsewhere(&self, question: u64, found: Option<Answer>) {
        let late = match &self.sessions.host.other_servers {
            Some(servers) => servers.answer(question, found),
            None => found,
        };
        if late.is_some() {
            // Closing what another server has sent may wait.
            background_close::run(move || drop(late));
        }
    }
}
