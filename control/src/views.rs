//! What a process is shown of devices and clients: by NVIDIA's management library as ours answers it, and
//! by nvidia-smi.
//!
//! An operator is shown all that it may see. Everybody else is shown what is its own: memory as if the
//! device had no more than its quota, and of the clients those of its group, or those of its user that it
//! could find in /proc. What clients have taken only their servers know; they are asked, and the answer
//! waits for them. Where no server has run yet, a process of its own looks at the devices once.
//!
//! Called by `daemon::views` and `daemon::time_lines`. Must not know sockets: a process and a question come in.

use std::collections::BTreeMap;
use std::process::Child;
use std::time::{Duration, Instant};

use protocol::control_messages::{DeviceAccount, ListedDevice, ViewRequest};
use protocol::limits;
use transport::socket::Connection;

use crate::commands::Caller;
use crate::groups::Group;
use crate::servers::limits::device_named;
use crate::servers::registry::{Client, ServerId};

/// How long servers may take to say what their clients have.
pub(crate) const COUNTED_WITHIN: Duration = Duration::from_secs(5);

/// How long the look at the devices may take.
pub(crate) const SCANNED_WITHIN: Duration = Duration::from_secs(60);

/// Questions that may wait for something at a time.
pub(crate) const MAX_WAITING: usize = 1024;

/// Bytes of what a look prints that are read: sixty-four devices take far less.
pub(crate) const MAX_PRINTED: usize = 1 << 20;

/// A client, by its server and session.
pub(crate) type ClientId = (ServerId, u64);

/// Who asked for what.
#[derive(Debug)]
pub(crate) struct Asker {
    pub(crate) connection: Connection,
    pub(crate) caller: Caller,
    pub(crate) request: ViewRequest,
    /// The inode of its pid namespace, or 0 where it cannot be seen.
    pub(crate) namespace: u64,
    /// Its process's own number, if the kernel gives one.
    pub(crate) identity: Option<u64>,
}

/// A question to which servers have not said everything yet.
#[derive(Debug)]
pub(crate) struct Counting {
    pub(crate) asker: Asker,
    /// Whom they are asked about, by the number of the request.
    pub(crate) awaited: BTreeMap<u64, ClientId>,
    /// What these have had of each device.
    pub(crate) accounts: BTreeMap<ClientId, Vec<DeviceAccount>>,
    pub(crate) deadline: Instant,
}

/// A process that looks at the devices.
#[derive(Debug)]
pub(crate) struct DeviceScan {
    pub(crate) child: Child,
    pub(crate) printed: Vec<u8>,
    pub(crate) has_ended: bool,
    pub(crate) deadline: Instant,
}

/// Questions under way, and what a look has found.
#[derive(Debug, Default)]
pub struct Views {
    pub(crate) counting: BTreeMap<u64, Counting>,
    pub(crate) waiting_for_scan: Vec<Asker>,
    pub(crate) scan: Option<DeviceScan>,
    pub(crate) found: Vec<ListedDevice>,
}

impl Views {
    /// When the first of them is given up.
    pub fn next_deadline(&self) -> Option<Instant> {
        let counting = self.counting.values().map(|counting| counting.deadline);
        let look = self.scan.iter().map(|look| look.deadline);
        counting.chain(look).min()
    }
}

impl Asker {
    /// Whether a client is this process.
    pub(crate) fn is(&self, client: &Client) -> bool {
        match (self.identity, client.identity) {
            (Some(one), Some(other)) => one == other,
            _ => client.pid != 0 && client.pid == self.caller.pid,
        }
    }

    /// The process id that a client has for the asker; 0 where it has none or that cannot be told.
    pub(crate) fn pid_of(&self, client: &Client, own_namespace: u64) -> i32 {
        if self.request.all || self.namespace == own_namespace {
            return client.pid;
        }
        let known = client.pid != 0 && client.namespace != 0;
        if !known || client.namespace != self.namespace {
            return 0;
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", client.pid));
        innermost_pid(&status.unwrap_or_default()).unwrap_or(0)
    }
}

/// The process id that a process has in its own namespace, by its /proc/PID/status.
pub(crate) fn innermost_pid(status: &str) -> Option<i32> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

/// The version of NVIDIA's driver, if it is loaded.
pub(crate) fn nvidia_driver() -> Option<String> {
    let text = std::fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(text.trim().to_owned())
}

/// What a group may take of a device, if that is limited.
pub(crate) fn limit_of_group(group: &Group, devices: &[ListedDevice], device: u32) -> Option<u64> {
    let limits = group.limits.memory.iter();
    let of_device = limits.filter(|(name, _)| device_named(devices, name) == Some(device));
    of_device
        .filter_map(|(_, size)| limits::size_in_bytes(size).ok())
        .min()
}

/// Memory that somebody may take, and has taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) total: u64,
    pub(crate) used: u64,
}

impl Budget {
    /// Total, used and free. What was taken before a limit was lowered is used, and more than there is in
    /// all is not shown.
    pub(crate) fn total_used_free(self) -> [u64; 3] {
        let used = self.used.min(self.total);
        [self.total, used, self.total - used]
    }
}

pub(crate) fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_process_id_is_the_last_one() {
        let status = "Name:\tnbody\nNSpid:\t4242\t17\t5\nThreads:\t1\n";
        assert_eq!(innermost_pid(status), Some(5));
        assert_eq!(innermost_pid("NSpid:\t88\n"), Some(88));
        assert_eq!(innermost_pid("Name:\tx\n"), None);
    }

    #[test]
    fn no_more_is_used_than_there_is() {
        let budget = |total, used| Budget { total, used }.total_used_free();
        assert_eq!(budget(10, 4), [10, 4, 6]);
        assert_eq!(budget(10, 12), [10, 10, 0]);
    }
}
