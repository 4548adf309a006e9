//! server.log: what is said of a server and its clients, in NVIDIA's words where it has some.
//!
//! Where lines go is the caller's; here is only what they say, so that tools which read them find
//! what they look for. "recevie" is in the original. Called by admission, the main loop and sessions. Must not know
//! files or the daemon.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use protocol::control_messages::{Admit, Ending, Guilt};

/// Takes lines of server.log.
pub trait Log: Send + Sync + fmt::Debug {
    /// Writes a line, in the name of a process that is not a server yet if `starting`.
    fn line(&self, starting: bool, text: &str);

    /// Writes a line that a client brought about, which may be left out if its user, or its group's clients
    /// together, bring about too many.
    fn line_about(&self, user: u32, group: Option<&str>, text: &str);
}

/// A log that keeps nothing.
#[derive(Debug)]
pub struct NoLog;

impl Log for NoLog {
    fn line(&self, _: bool, _: &str) {}

    fn line_about(&self, _: u32, _: Option<&str>, _: &str) {}
}

/// A client, for log lines.
#[derive(Clone, Debug)]
pub struct ClientLog {
    log: Arc<dyn Log>,
    pid: i32,
    user: u32,
    group: Option<String>,
    program: String,
    /// Whether the client has had a context.
    active: Arc<AtomicBool>,
    /// Clients that have a context, and are not gone.
    contexts: Arc<AtomicUsize>,
}

impl ClientLog {
    /// A client that was just handed to this server, and its group's name.
    pub fn new(
        log: Arc<dyn Log>,
        contexts: Arc<AtomicUsize>,
        admit: &Admit,
        group: Option<String>,
    ) -> Self {
        Self {
            log,
            pid: admit.pid,
            user: admit.uid,
            group,
            program: admit.client.program.clone(),
            active: Arc::default(),
            contexts,
        }
    }

    /// Writes a line that names the client by itself.
    pub fn line(&self, text: impl fmt::Display) {
        self.raw(&self.named(text));
    }

    fn named(&self, text: impl fmt::Display) -> String {
        format!("Client {} ({}): {text}", self.pid, self.program)
    }

    fn raw(&self, text: &str) {
        self.log.line_about(self.user, self.group.as_deref(), text);
    }

    /// Writes a line about a fault, which is never left out.
    pub fn fault_line(&self, text: impl fmt::Display) {
        self.log.line(false, &self.named(text));
    }

    /// NVIDIA numbers a client's contexts from 1; 0 stands for the client before it has one.
    fn identity(&self, context: u32) -> String {
        format!("{{PID: {}, Context ID: {context}}}", self.pid)
    }

    /// The client has come.
    pub fn connected(&self) {
        self.request(0);
    }

    fn request(&self, context: u32) {
        let who = self.identity(context);
        self.raw(&format!("Received new client request for {who}"));
        self.raw(&format!("Client {who} connected"));
        self.raw(&format!("Creating worker thread for client {who}"));
    }

    /// A context of the client works. Only the first one is news.
    pub fn active(&self, name: &str, uuid: &str) {
        if self.active.swap(true, Ordering::Relaxed) {
            return;
        }
        self.contexts.fetch_add(1, Ordering::Relaxed);
        self.request(1);
        self.raw(&format!("Device {name} (uuid {uuid}) is associated"));
        self.raw(&format!("Status of client {} is ACTIVE", self.identity(1)));
    }

    /// A context of the client is dead. Why, by whom, and who else has lost something is the engine's text.
    pub fn faulted(&self, context: u32, code: u32, guilt: Guilt, text: &str) {
        let who = format!("{{PID: {}, Context: {context}}}", self.pid);
        self.log.line(
            false,
            &format!("Client {who} encountered a fatal GPU error."),
        );
        self.fault_line(format_args!(
            "error {code} in context {context}, which is dead ({guilt}): {text}"
        ));
    }

    /// The client is gone.
    pub fn disconnected(&self, how: Ending, reason: Option<&str>) {
        self.line(match how {
            Ending::Detached => "left in good order".to_owned(),
            Ending::ProcessEnded => "its process ended without leaving (killed, or crashed)".into(),
            Ending::SocketClosed => "closed its connection without leaving".into(),
            Ending::Replaced => "attached again; its former session ends".into(),
            Ending::Malformed => {
                format!("disconnected: {}", reason.unwrap_or("broke the protocol"))
            }
            Ending::Shutdown => "ended by the server's shutdown".into(),
            Ending::Terminated => "terminated by the operator".into(),
            Ending::KernelTime => "ended, since its kernel ran for longer than it may".into(),
            Ending::Failed => format!("ended: {}", reason.unwrap_or("the server failed")),
        });
        let lost = |context| {
            self.raw(&format!(
                "Server failed to recevie command with status 806, assuming client {} exit",
                self.identity(context)
            ));
        };
        if self.active.load(Ordering::Relaxed) {
            let contexts = self.contexts.fetch_sub(1, Ordering::Relaxed) - 1;
            lost(1);
            self.raw(&format!(
                "Client {} exiting. Number of active client contexts is {contexts}.",
                self.identity(1)
            ));
        }
        lost(0);
        self.raw(&format!("Client process {} disconnected", self.pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::control_messages::{ClientFields, Membership, VERSION};
    use std::sync::Mutex;

    #[derive(Debug, Default)]
    struct Lines {
        own: Mutex<Vec<String>>,
        about: Mutex<Vec<(u32, Option<String>)>>,
    }

    impl Log for Lines {
        fn line(&self, _: bool, text: &str) {
            self.own.lock().unwrap().push(text.to_owned());
        }

        fn line_about(&self, user: u32, group: Option<&str>, _: &str) {
            let group = group.map(str::to_owned);
            self.about.lock().unwrap().push((user, group));
        }
    }

    #[test]
    fn all_but_faults_is_written_at_the_clients_cost() {
        let lines = Arc::new(Lines::default());
        let admit = Admit {
            session: 1,
            pid: 7,
            uid: 1000,
            gid: 1000,
            namespace: 0,
            version: VERSION,
            fingerprint: 0,
            features: 0,
            client: ClientFields::default(),
            member: Membership::default(),
            time_line: None,
            files: 0,
            bases: Vec::new(),
            takeover: 0,
            former: None,
        };
        let name = ClientLog::new(lines.clone(), Arc::default(), &admit, Some("a".into()));
        name.connected();
        name.active("GPU", "uuid");
        name.line("asks for much");
        name.disconnected(Ending::Detached, None);
        let about = std::mem::take(&mut *lines.about.lock().unwrap());
        assert!(about.len() > 10, "{about:?}");
        assert!(about.iter().all(|who| *who == (1000, Some("a".to_owned()))));
        assert!(lines.own.lock().unwrap().is_empty());
        name.faulted(1, 700, Guilt::Suspect, "why");
        name.fault_line("more");
        let own = lines.own.lock().unwrap().clone();
        assert_eq!(own.len(), 3);
        // Who else is affected is for the engine to say.
        assert!(own[1].ends_with("which is dead (suspect): why"), "{own:?}");
        assert!(lines.about.lock().unwrap().is_empty());
    }
}
