//! Groups of clients, and limits that change while clients run.

use std::os::unix::fs::PermissionsExt;

use cuda_abi::CUresult;
use protocol::operations::{ManagedAlloc, MemAlloc, MemFree, MemInfo, PhysicalCreate};
use rustix::process::Signal;

use crate::harness::{Client, Held, Rig, kill, runs, until};
use crate::skipped::skipped;

crate::harness::tests! {
    all_processes_of_a_group_share_one_budget
    a_group_is_found_by_cgroup
    a_group_survives_its_daemon_and_what_its_clients_hold_still_counts
    through_a_groups_socket_nothing_changes_and_only_its_own_is_seen
    limits_change_at_once_or_say_why_not
    users_of_one_group_have_one_budget_between_their_servers
    what_cannot_be_a_group_is_refused
    state_that_somebody_else_wrote_keeps_the_daemon_from_starting
    a_group_that_cannot_be_kept_is_none
    a_groups_socket_bears_what_the_other_does
}

impl Rig {
    /// A client process of a group, and what it says when it has its session or has not.
    fn try_hold_in(&self, group: &str, uid: Option<u32>) -> (Held, String) {
        let mut held = self.hold_in(self.pipe().join("groups").join(group), uid, &[]);
        let said = held.line();
        (held, said)
    }

    fn hold_in_group(&self, group: &str) -> Held {
        let (held, said) = self.try_hold_in(group, None);
        assert_eq!(said, "ready");
        held
    }

    fn used(&self, group: &str) -> u64 {
        self.json(&format!("group show {group}"))["memory"][0]["used"]
            .as_u64()
            .unwrap()
    }
}

/// What a client process does with a line.
pub fn carry_out(client: &Client, line: &str) -> String {
    let (what, number) = line.split_once(' ').unwrap_or((line, "0"));
    let bytes: u64 = number.parse().unwrap();
    let end = &client.end;
    let status = match what {
        "alloc" => {
            let reply = end.call(&MemAlloc { context: 0, bytes }, &[]).unwrap();
            if reply.status == CUresult::SUCCESS {
                return reply.fields.address.to_string();
            }
            reply.status
        }
        "managed" => {
            end.call(&ManagedAlloc { context: 0, bytes }, &[])
                .unwrap()
                .status
        }
        "physical" => {
            let create = PhysicalCreate {
                handle: bytes,
                device: 0,
                bytes,
            };
            end.call(&create, &[]).unwrap().status
        }
        "free" => {
            end.post(0, 0, &MemFree { address: bytes }, &[]).unwrap();
            CUresult::SUCCESS
        }
        "info" => {
            let reply = end.call(&MemInfo { device: 0 }, &[]).unwrap();
            return format!("{} {}", reply.fields.free, reply.fields.total);
        }
        _ => panic!("{line}"),
    };
    status.0.to_string()
}

impl Held {
    /// Allocates, and gives the address; 2 where there is no memory left for it.
    fn alloc(&mut self, bytes: u64) -> u64 {
        self.ask(&format!("alloc {bytes}")).parse().unwrap()
    }

    /// Free and total.
    fn info(&mut self) -> (u64, u64) {
        let said = self.ask("info");
        let (free, total) = said.split_once(' ').unwrap();
        (free.parse().unwrap(), total.parse().unwrap())
    }
}

const MIB: u64 = 1 << 20;
/// CUDA_ERROR_OUT_OF_MEMORY, which is no address.
const FULL: u64 = 2;

fn all_processes_of_a_group_share_one_budget() {
    let rig = Rig::new();
    let (directory, exit) = rig.said("group add a --memory 0=64M");
    let path = rig.pipe().join("groups/a");
    assert_eq!((directory.trim(), exit), (path.to_str().unwrap(), 0));
    let mode = std::fs::metadata(path.join("control"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o666);
    let (mut one, mut other) = (rig.hold_in_group("a"), rig.hold_in_group("a"));
    let mut stranger = rig.hold();

    assert_eq!(one.info(), (64 * MIB, 64 * MIB));
    let block = one.alloc(40 * MIB);
    assert_eq!(other.info(), (24 * MIB, 64 * MIB), "the group's");
    for way in ["alloc", "managed", "physical"] {
        assert_eq!(other.ask(&format!("{way} {}", 26 * MIB)), "2", "{way}");
    }
    assert_eq!(other.ask(&format!("managed {}", 8 * MIB)), "0");
    assert_ne!(other.alloc(16 * MIB), FULL, "to the last byte");
    assert_eq!((one.alloc(1), rig.used("a")), (FULL, 64 * MIB));
    assert_ne!(stranger.alloc(1 << 30), FULL, "which concerns no stranger");

    one.ask(&format!("free {block}"));
    assert_eq!(one.info().0, 40 * MIB);
    drop(other);
    until("the other is gone", || {
        rig.json("group list")[0]["clients"]
            .as_array()
            .unwrap()
            .len()
            == 1
    });
    assert_eq!(rig.used("a"), 0, "and what it had is back");
    let table = rig.said("group list").0;
    assert_eq!(table.lines().count(), 2, "{table}");
    assert!(table.contains(&(64 * MIB).to_string()), "{table}");
    let (text, exit) = rig.said("group remove a");
    assert!(text.contains("in use") && exit == 1, "{text}");
    drop(one);
    until("it can be removed", || rig.said("group remove a").1 == 0);
    assert!(!path.exists());
    assert_eq!(rig.said("group show a"), ("Group a not found\n".into(), 1));
}

/// A cgroup that this process is not in the root of, or none.
fn own_cgroup() -> Option<String> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.map(str::to_owned).find(|path| path != "/")
}

fn a_group_is_found_by_cgroup() {
    let Some(cgroup) = own_cgroup() else {
        return skipped("this process is in no cgroup but the root's");
    };
    let rig = Rig::new();
    assert_eq!(
        rig.said(&format!("group add here --memory 0=32M --cgroup {cgroup}"))
            .1,
        0
    );
    assert_eq!(rig.said("group add elsewhere --cgroup /no/such").1, 0);
    assert_eq!(rig.hold().info().1, 32 * MIB);
    // Nor does another group's socket help.
    assert_eq!(rig.hold_in_group("elsewhere").info().1, 32 * MIB);
}

fn a_group_survives_its_daemon_and_what_its_clients_hold_still_counts() {
    let rig = Rig::new();
    rig.said("group add a --memory 0=64M --percentage 25");
    rig.said("group add b --cgroup /x/y");
    let mut old = rig.hold_in_group("a");
    old.alloc(40 * MIB);
    let server = rig.servers()[0];
    let pid = rig.daemon_pid();
    kill(pid, Signal::KILL);
    until("the daemon is gone", || !runs(pid));
    rig.start();
    let list = rig.json("group list");
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!(
        (&list[0]["percentage"], &list[1]["cgroup"]),
        (&25.0.into(), &"/x/y".into())
    );
    assert_eq!(rig.used("a"), 40 * MIB);
    let mut new = rig.hold_in_group("a");
    assert_ne!(rig.servers()[0], server);
    assert_eq!(new.info(), (24 * MIB, 64 * MIB));
    assert_eq!(new.alloc(25 * MIB), FULL);
    assert_eq!(old.alloc(25 * MIB), FULL);
    assert_ne!(old.alloc(24 * MIB), FULL);
    assert_eq!(new.alloc(1), FULL);
    // Killed, it gives back what its clients had.
    kill(server, Signal::KILL);
    until("it is back", || rig.used("a") == 0);
    assert_ne!(new.alloc(60 * MIB), FULL);
    let first = rig.servers()[0];
    kill(first, Signal::KILL);
    until("and so it is from a server of this daemon's", || {
        rig.used("a") == 0
    });
}

fn through_a_groups_socket_nothing_changes_and_only_its_own_is_seen() {
    let rig = Rig::new();
    rig.said("group add a");
    rig.said("group add b");
    let mine = rig.hold_in_group("a");
    let theirs = rig.hold_in_group("b");
    let ask = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut command = rig.command(&words);
        command.env("CUDA_MPS_PIPE_DIRECTORY", rig.pipe().join("groups/a"));
        let output = command.output().unwrap();
        (
            String::from_utf8(output.stdout).unwrap(),
            output.status.code().unwrap(),
        )
    };
    for line in [
        "quit",
        "group add c",
        "group remove b",
        "limit set --group a --memory 0=none",
        "set_default_active_thread_percentage 10",
        "sm_partition add GPU-x 1",
    ] {
        let (text, exit) = ask(line);
        assert!(
            text.contains("not through a group's socket"),
            "{line}: {text}"
        );
        assert_eq!(exit, 1);
    }
    assert_eq!(ask("group show b").1, 1);
    assert_eq!(ask("group list").0.lines().count(), 2);
    assert_eq!(ask("ps").0.lines().count(), 2, "a header and one client");
    assert_eq!(ask("get_default_active_thread_percentage").0, "100.0\n");
    drop((mine, theirs));
}

fn limits_change_at_once_or_say_why_not() {
    let rig = Rig::new();
    rig.said("group add a --memory 0=64M");
    let mut client = rig.hold_in_group("a");
    let block = client.alloc(40 * MIB);
    let (text, exit) = rig.said("limit set --group a --memory 0=16M");
    assert!(
        text.contains("allocations fail until less is") && exit == 0,
        "{text}"
    );
    assert_eq!(client.info(), (0, 16 * MIB));
    assert_eq!(client.alloc(1), FULL);
    client.ask(&format!("free {block}"));
    assert_ne!(client.alloc(16 * MIB), FULL);
    assert_eq!(rig.said("limit set --group a --memory 0=none").1, 0);
    assert_ne!(client.alloc(1 << 30), FULL);

    let pid = client.pid();
    let (text, exit) = rig.said(&format!(
        "limit set --client {pid} --memory 0=2G --priority 0"
    ));
    assert_eq!(exit, 0, "{text}");
    assert_eq!(client.info().1, 2 << 30);
    assert_eq!(client.alloc(1 << 30), FULL);
    let shown = rig.json(&format!("limit show --client {pid}"));
    assert_eq!(shown["memory"][0]["limit"], 2u64 << 30);
    assert_eq!(shown["memory"][0]["used"], (1u64 << 30) + 16 * MIB);
    assert_eq!(shown["group"], "a");
    let server = rig.servers()[0];
    assert_eq!(
        rig.said(&format!("limit show --client {server}/1")).1,
        0,
        "by its number"
    );

    // This engine cannot divide its compute anew; then nothing else has changed either.
    let (text, exit) = rig.said(&format!(
        "limit set --client {pid} --memory 0=8G --percentage 50"
    ));
    assert!(
        text.starts_with("nothing has changed: ") && exit == 1,
        "{text}"
    );
    assert_eq!(client.info().1, 2 << 30);
    for wrong in [
        "limit",
        "limit set",
        "limit set --client 1 --group a",
        "limit set --client 1 --memory 0=1G",
        "limit set --group nobody --memory 0=1G",
        "limit set --group a --memory 1=1G",
        "limit set --group a --memory 0=much",
        "limit set --group a --memory 0",
        "limit set --group a --percentage 0",
        "limit set --group a --reserved",
        "limit set --group a --priority 1",
        "limit set --group a --reserved --no-reserved --percentage 5",
    ] {
        let (text, exit) = rig.said(wrong);
        assert!(exit == 1 && text.lines().count() == 1, "{wrong}: {text}");
    }
    let of_other = format!("limit set --client {pid} --memory 7=1G");
    assert_eq!(rig.said(&of_other).1, 1);
    let group = &rig.json("group list")[0];
    assert_eq!(group["memory"][0]["limit"], serde_json::Value::Null);
    assert_eq!(rig.events("limit.set").len(), 3);
}

fn users_of_one_group_have_one_budget_between_their_servers() {
    if !rustix::process::geteuid().is_root() {
        return skipped("being other users takes root");
    }
    let rig = Rig::without_daemon();
    rig.open_to_all();
    assert!(rig.control(&["-d", "-M"], None).status.success());
    rig.said("group add a --memory 0=64M");
    let mut mine = rig.hold_in_group("a");
    let (mut other, said) = rig.try_hold_in("a", Some(4242));
    assert_eq!(said, "ready");
    assert_ne!(other.alloc(40 * MIB), FULL);
    assert_eq!(rig.servers().len(), 2);
    assert_eq!(mine.info(), (24 * MIB, 64 * MIB));
    assert_eq!(mine.alloc(25 * MIB), FULL);
    assert_eq!(rig.said("limit set --group a --memory 0=80M").1, 0);
    assert_ne!(mine.alloc(40 * MIB), FULL);
    drop(other);
    until("it is back", || rig.used("a") == 40 * MIB);
    // A client process killed with kill -9 gives back; so does a whole server.
    for server in rig.servers() {
        kill(server, Signal::KILL);
    }
    until("all is back", || rig.used("a") == 0);
}

fn what_cannot_be_a_group_is_refused() {
    let rig = Rig::new();
    assert_eq!(rig.said("group add a").1, 0);
    for wrong in [
        "group",
        "group add",
        "group add a",
        "group add ../x",
        "group add .x",
        "group add b --memory junk",
        "group add b --memory 0=1.5G",
        "group add b --percentage 101",
        "group add b --reserved",
        "group add b --cgroup here",
        "group remove b",
        "group list a",
    ] {
        let (text, exit) = rig.said(wrong);
        assert!(exit == 1 && text.lines().count() == 1, "{wrong}: {text}");
    }
    // Its socket's path would be just too long.
    let used = rig.pipe().join("groups//control").as_os_str().len();
    let long = "x".repeat(64.min(108 - used));
    let (text, exit) = rig.said(&format!("group add {long}"));
    if used + long.len() == 108 {
        assert!(text.contains("107") && exit == 1, "{text}");
    } else {
        assert_eq!(rig.said(&format!("group remove {long}")).1, 0);
    }
    // A device that nobody has is found out when the first client comes, who is refused.
    rig.said("group add far --memory 7=1G");
    let (_, why) = rig.try_hold_in("far", None);
    assert!(why.starts_with("805 ") && why.contains("device 7"), "{why}");
    let (text, _) = rig.said("group add far2 --memory 7=1G");
    assert!(text.contains("device 7"), "now it is known: {text}");
    assert_eq!(rig.json("group list").as_array().unwrap().len(), 2);
}

fn state_that_somebody_else_wrote_keeps_the_daemon_from_starting() {
    let rig = Rig::new();
    rig.said("group add a");
    let file = rig.pipe().join("group_state/a.json");
    assert_eq!(
        std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(rig.ask("quit"), "");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    let output = rig.control(&["-d"], None);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("a.json") && text.lines().count() == 1,
        "{text}"
    );
}

fn a_group_that_cannot_be_kept_is_none() {
    let rig = Rig::new();
    // As on a disk that is full: nothing can be written there.
    std::fs::write(rig.pipe().join("group_state"), "in the way").unwrap();
    let (text, exit) = rig.said("group add a");
    assert!(text.contains("group_state") && exit == 1, "{text}");
    assert_eq!(rig.said("group list"), (String::new(), 0));
    assert!(!rig.pipe().join("groups").exists());
    std::fs::remove_file(rig.pipe().join("group_state")).unwrap();
    assert_eq!(rig.said("group add a").1, 0);
    // A limit holds even if it cannot be kept; the log says that the next daemon will not know.
    std::fs::remove_dir_all(rig.pipe().join("group_state")).unwrap();
    std::fs::write(rig.pipe().join("group_state"), "in the way").unwrap();
    assert_eq!(rig.said("limit set --group a --memory 0=1G").1, 0);
    assert!(rig.control_log().contains("Group a cannot be saved"));
}

fn a_groups_socket_bears_what_the_other_does() {
    let rig = Rig::new();
    rig.said("group add a");
    let socket = rig.pipe().join("groups/a/control");
    let connect = || transport::socket::Connection::connect(&socket).unwrap();
    let silent: Vec<_> = (0..1000).map(|_| connect()).collect();
    for bytes in [&b"x"[..], &[0xff; 60_000], b"OMPS\x01\x00\x01\x00\x00\x00"] {
        let connection = connect();
        connection.send(bytes, &[]).unwrap();
        until("it is closed", || connection.is_closed());
    }
    assert_eq!(rig.hold_in_group("a").work(), "0");
    assert_eq!(rig.ask("get_default_active_thread_percentage"), "100.0\n");
    // Removed under them, and made again.
    drop(silent);
    until("it can be removed", || rig.said("group remove a").1 == 0);
    assert_eq!(rig.said("group add a").1, 0);
    assert_eq!(rig.hold_in_group("a").work(), "0");
}
