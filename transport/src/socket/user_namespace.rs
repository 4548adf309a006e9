//! Users that have no number in our user namespace.
//!
//! Who compares users by number asks here: the daemon, its files, servers, and whoever connects. Must not know who is
//! allowed what.

use std::sync::OnceLock;

/// The number by which the kernel calls users that are not of this user namespace: it is nobody's, and
/// whoever has it has nothing in common with others that have it.
#[must_use]
pub fn overflow_uid() -> u32 {
    static UID: OnceLock<u32> = OnceLock::new();
    *UID.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
        text.trim().parse().unwrap_or(65_534)
    })
}

/// Whether a user has no number in our user namespace: then the namespace was made by somebody who could
/// give us other files altogether, and nobody in it is that user.
#[must_use]
pub fn is_from_outside(uid: u32) -> bool {
    let map = || std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    uid == overflow_uid() && !has_all_users(&map())
}

/// Whether a user namespace has every user of the machine.
fn has_all_users(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls on sockets that Miri does not know")]
    fn who_has_no_number_here_is_from_outside_of_a_namespace() {
        assert!(has_all_users("         0          0 4294967295\n"));
        assert!(!has_all_users("0 1000 1\n1 100000 65536\n"));
        assert!(!has_all_users(""));
        assert!(!is_from_outside(0) && !is_from_outside(1000));
    }
}
