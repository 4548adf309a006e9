//! A server hands its clients over though no device is lost: a client that has gone has left work that does not end, and that only the end of
//! this process ends; or the daemon asks for it, since another server is to go on with them.
//!
//! Nothing new is given to the devices then, and when nothing runs but what was left, clients go to the next server: nobody has anything
//! begun, so nobody loses anything. Only where sessions are kept, and all that are here can go over; else it is as `clients` has it.
//! Called by the main loop while a session is to end, and when it is asked. Must not know how an engine keeps work back.

use std::time::{Duration, Instant};

use protocol::control_messages::Packet;

use super::{LOOK, MainLoop, TELLING};

/// How long what a client has left may take to its end.
const LEFT: Duration = Duration::from_secs(3);

/// How long clients that are here may be kept waiting for each other's work to end, and when it is tried again. Kernels that take longer keep
/// all from going over.
const MOST: Duration = Duration::from_secs(1);
/// The same where the daemon asks, which it does once.
const MOST_ASKED: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_secs(10);

/// How often it is looked meanwhile whether anything runs.
const STEP: Duration = Duration::from_millis(1);

/// How far a server is with it.
#[derive(Debug, Default)]
pub(super) enum Rest {
    /// It works.
    #[default]
    No,
    /// It was tried in vain, and is not tried before then.
    NotBefore(Instant),
    /// Since then nothing new is begun.
    Since(Instant),
    /// Nothing runs that is anybody's here.
    Reached,
}

impl Rest {
    /// Until when it is looked again.
    pub(super) fn interval(&self) -> Duration {
        match self {
            Self::Since(_) => STEP,
            Self::No | Self::NotBefore(_) | Self::Reached => LOOK,
        }
    }

    /// Whether work is held back that is to go on here if it comes to nothing.
    pub(super) fn is_waited_for(&self) -> bool {
        matches!(self, Self::Since(_))
    }

    /// Whether what was not complete was not begun.
    pub(super) fn is_reached(&self) -> bool {
        matches!(self, Self::Reached)
    }
}

impl MainLoop {
    /// Looks whether there is reason to hand clients over, and does so once nothing runs that they would lose.
    pub(super) fn hand_over_at_rest(&mut self) {
        let engine = self.sessions.host.engine.clone();
        let most = match self.is_asked_to_hand_over {
            true => MOST_ASKED,
            false => MOST,
        };
        match self.rest {
            Rest::Reached => {}
            Rest::NotBefore(time) if !self.is_asked_to_hand_over && Instant::now() < time => {}
            Rest::No | Rest::NotBefore(_) => {
                let Some(why) = self.why_hand_over() else {
                    return;
                };
                if self.can_hand_over() {
                    self.log_line(&format!(
                        "{why}. When nothing else runs, another server takes all other clients over"
                    ));
                    self.rest = Rest::Since(Instant::now());
                } else {
                    self.say_that_all_stay("not all of its clients can go over");
                }
            }
            Rest::Since(since) => {
                if !self.can_hand_over() || self.why_hand_over().is_none() {
                    engine.end_rest();
                    self.rest = Rest::No;
                    self.say_that_all_stay("not all of its clients can go over any more");
                } else if engine.rest() {
                    self.rest = Rest::Reached;
                    self.hands_over_at = Some(Instant::now() + TELLING);
                } else if since.elapsed() > most {
                    engine.end_rest();
                    self.rest = Rest::NotBefore(Instant::now() + AGAIN);
                    let late = format!("work has not ended within {} s", most.as_secs());
                    self.log_line(&format!("Others' {late}: all stay here for now"));
                    self.say_that_all_stay(&late);
                }
            }
        }
    }

    /// Why clients are to go over, if they are.
    fn why_hand_over(&self) -> Option<String> {
        if self.is_asked_to_hand_over {
            return Some("The daemon asks to hand over".into());
        }
        let what = self.sessions.host.engine.left_work(LEFT)?;
        let who = self.names_of_ending();
        Some(format!(
            "{who} has gone and left work that does not end: {what}"
        ))
    }

    /// Answers the daemon, if it has asked.
    fn say_that_all_stay(&mut self, why: &str) {
        if std::mem::take(&mut self.is_asked_to_hand_over) {
            self.send(&Packet::Stays { text: why.into() });
        }
    }

    /// Whether sessions are kept, all that are not to end can go over, and nothing else is under way.
    fn can_hand_over(&self) -> bool {
        // Who was not welcomed yet may well wait for what does not end, and comes to the next server as it came to this one.
        let goes = |running: &super::Running| {
            let observer = running.cancellation.observer();
            running.cancellation.ending().is_some()
                || observer.is_none_or(|observer| observer.can_go_over())
        };
        !self.stopping
            && self.hands_over_at.is_none()
            && self.running.values().any(|running| running.is_kept)
            && self.running.values().all(goes)
    }
}
