//! What somebody with the token wants of a client: read from JSON, and made a command of the daemon's.
//!
//! A client is named by its device and its session, which no other has had, so that nobody else is hit who has its process id
//! since. Of what was written only numbers get into the command. Must not know HTTP.

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::command;
use crate::usage::{ClientUsage, DeviceUsage};

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum What {
    /// To see its limits.
    Show,
    /// To end it.
    End,
    /// That it has this active thread percentage.
    Percentage(f64),
    /// That it has so many bytes of the device's memory at most, or all.
    Memory(Option<u64>),
    /// That it is of this priority, 0 or 1.
    Priority(u8),
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    device: u32,
    session: u64,
    what: What,
}

impl Change {
    /// What the body of a question says.
    ///
    /// # Errors
    /// What it has to look like.
    pub fn read(body: &[u8]) -> Result<Self> {
        serde_json::from_slice(body).map_err(|error| {
            anyhow!(
                "{error}: it has to be {{\"device\": N, \"session\": N, \"what\": \"show\", \"end\", \
                 {{\"percentage\": N}}, {{\"memory\": BYTES or null}} or {{\"priority\": 0 or 1}}}}"
            )
        })
    }

    /// The command that does it.
    ///
    /// # Errors
    /// Why there is none.
    fn command(&self, devices: &[DeviceUsage]) -> Result<String> {
        let client = self.client(devices).context("the client has left")?;
        let (pid, server) = (client.pid, client.server);
        if pid == 0 {
            bail!(
                "its process id cannot be seen from here: `openmps control ps` says how it is named"
            );
        }
        let set = format!("limit set --client {pid}");
        Ok(match &self.what {
            What::Show => format!("limit show --client {pid} --json"),
            What::End => format!("terminate_client {server} {pid}"),
            What::Percentage(percentage) => format!("{set} --percentage {percentage}"),
            What::Memory(None) => format!("{set} --memory {}=none", self.device),
            What::Memory(Some(bytes)) => format!("{set} --memory {}={bytes}", self.device),
            What::Priority(priority) => format!("{set} --priority {priority}"),
        })
    }

    fn client<'a>(&self, devices: &'a [DeviceUsage]) -> Option<&'a ClientUsage> {
        let device = devices.iter().find(|it| it.device == self.device)?;
        let mut clients = device.clients.iter();
        clients.find(|client| client.session == self.session)
    }

    /// Has the daemon do it, which checks whether this process' user may; what came of it.
    pub fn carry_out(&self, devices: &[DeviceUsage]) -> Value {
        let done = self
            .command(devices)
            .and_then(|line| command::carry_out(&line));
        match done {
            Err(error) => json!({ "done": false, "said": error.to_string() }),
            Ok(said) => json!({
                "done": true,
                "said": command::first_line(&said),
                "limits": serde_json::from_str::<Value>(&said).unwrap_or_default(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> Vec<DeviceUsage> {
        let client = |session, pid| ClientUsage {
            session,
            pid,
            server: 7,
            ..ClientUsage::default()
        };
        vec![DeviceUsage {
            device: 1,
            clients: vec![client(5, 40), client(6, 0)],
            ..DeviceUsage::default()
        }]
    }

    #[test]
    fn changes_are_commands_with_numbers() {
        for (what, expected) in [
            (r#""show""#, "limit show --client 40 --json"),
            (r#""end""#, "terminate_client 7 40"),
            (
                r#"{"percentage": 33.5}"#,
                "limit set --client 40 --percentage 33.5",
            ),
            (
                r#"{"memory": null}"#,
                "limit set --client 40 --memory 1=none",
            ),
            (
                r#"{"memory": 4096}"#,
                "limit set --client 40 --memory 1=4096",
            ),
            (r#"{"priority": 1}"#, "limit set --client 40 --priority 1"),
        ] {
            let text = format!(r#"{{"device": 1, "session": 5, "what": {what}}}"#);
            let change = Change::read(text.as_bytes()).unwrap();
            assert_eq!(change.command(&devices()).unwrap(), expected);
        }
    }

    #[test]
    fn what_is_no_change_is_refused() {
        for wrong in [
            "",
            "[]",
            r#"{"device": 1, "session": 5}"#,
            r#"{"device": 1, "session": 5, "what": "quit"}"#,
            r#"{"device": 1, "session": 5, "what": {"percentage": "1 --reserved"}}"#,
            r#"{"device": 1, "session": 5, "what": {"memory": -1}}"#,
            r#"{"device": 1, "session": 5, "what": "end", "more": 1}"#,
        ] {
            let error = Change::read(wrong.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("it has to be"), "{wrong}: {error}");
        }
        let of = |session| Change {
            device: 1,
            session,
            what: What::End,
        };
        let refused = |session| of(session).command(&devices()).unwrap_err().to_string();
        assert!(refused(6).contains("cannot be seen"));
        assert!(refused(9).contains("has left"));
    }
}
