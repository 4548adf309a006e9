//! A client of one server opens what a client of another server of the same user shares: the daemon asks those others, and passes
//! the first answer on, with what comes with it. It keeps nothing of it, and waits for nobody.
//!
//! Called by `servers` when a server asks, answers or ends. Must not know what is shared.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use protocol::control_messages::{Packet, SharedObject};
use transport::background_close;

use super::Daemon;
use crate::servers::registry::{ServerId, State};
use crate::servers::seeks::Asker;

impl Daemon {
    /// A server asks for what a client of this user's shares.
    pub(super) fn seek_export(&mut self, id: ServerId, question: u64, uid: u32, token: [u64; 4]) {
        let asker = Asker {
            server: id,
            question,
        };
        let now = Instant::now();
        let of_user = |id: &ServerId| {
            let server = self.registry.servers.get(id);
            server.and_then(|server| server.key.one_of_users()) == Some(uid)
        };
        // Of its own user alone, and only where that one has several.
        if !of_user(&id) || !self.seeks.may_ask(id, now) {
            return self.answer_seek(asker, None);
        }
        let number = self.number();
        let packet = Packet::SeekExport {
            question: number,
            uid,
            token,
        }
        .encode();
        let others = self.registry.servers.iter();
        let others = others.filter(|(other, server)| {
            // One that takes no more clients may have some who share.
            let serves = matches!(server.state, State::Active | State::Stopping);
            **other != id && server.key.one_of_users() == Some(uid) && serves
        });
        // Who does not read has nothing to answer.
        let asked = others.filter(|(_, server)| server.connection.try_send(&packet, &[]).is_ok());
        let asked: BTreeSet<ServerId> = asked.map(|(&id, _)| id).collect();
        match asked.is_empty() {
            true => self.answer_seek(asker, None),
            false => self.seeks.add(number, asker, asked, now),
        }
    }

    /// A server has what another one asked for.
    pub(super) fn export_found(
        &mut self,
        id: ServerId,
        number: u64,
        object: SharedObject,
        descriptors: Vec<OwnedFd>,
    ) {
        if let Some(asker) = self.seeks.found(number, id, Instant::now()) {
            self.answer_seek(asker, Some((object, &descriptors)));
        }
        // What a server says are the descriptors of a device's memory may be those of anything.
        background_close::close(descriptors);
    }

    /// A server does not have it.
    pub(super) fn export_not_found(&mut self, id: ServerId, number: u64) {
        if let Some(asker) = self.seeks.not_found(number, id) {
            self.answer_seek(asker, None);
        }
    }

    /// A server is no more.
    pub(super) fn forget_seeks(&mut self, id: ServerId) {
        for asker in self.seeks.forget(id) {
            self.answer_seek(asker, None);
        }
    }

    /// Tells a server, which goes on by itself if it does not read.
    fn answer_seek(&self, asker: Asker, found: Option<(SharedObject, &[OwnedFd])>) {
        let Some(server) = self.registry.servers.get(&asker.server) else {
            return;
        };
        let question = asker.question;
        let (packet, descriptors) = match found {
            Some((object, descriptors)) => (Packet::ExportFound { question, object }, descriptors),
            None => (Packet::ExportNotFound { question }, &[][..]),
        };
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let _ = server.connection.try_send(&packet.encode(), &descriptors);
    }
}
