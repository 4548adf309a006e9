//! Static partitions.

use crate::harness::{Held, Rig, until};

crate::harness::tests! {
    partitions_are_made_listed_named_and_removed
    without_a_partition_no_context_is_to_be_had
    what_is_reserved_is_never_more_than_there_is
}

fn partitioned() -> Rig {
    let rig = Rig::without_daemon();
    assert!(rig.control(&["-d", "-S"], None).status.success());
    rig
}

/// A client that names a partition, and what it says.
fn in_partition(rig: &Rig, partition: &str) -> (Held, String) {
    let mut held = rig.hold_as(None, &["partition", partition]);
    let said = held.line();
    (held, said)
}

const GPU: &str = "GPU-30313233-3435-3637-3839-616263646566";

fn partitions_are_made_listed_named_and_removed() {
    let rig = partitioned();
    let pid = rig.daemon_pid();
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(line.contains("\0-S\0"), "tools look for it: {line}");
    // Before any server: one is started, which knows the devices.
    assert_eq!(
        rig.said(&format!("sm_partition add {GPU} 40")),
        (format!("Partition {GPU}/1 created\n"), 0)
    );
    assert_eq!(
        rig.said("sm_partition add GPU-3031 50").1,
        0,
        "the beginning is enough"
    );
    let (text, exit) = rig.said(&format!("sm_partition add {GPU} 11"));
    assert!(
        text.starts_with(
            "Failed to fulfill the requested SM partition of 11 chunks, error \
             CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
        ) && exit == 1,
        "{text}"
    );
    let (list, _) = rig.said("lspart");
    let rows: Vec<Vec<&str>> = list
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let short = "GPU-30313233-3435-3637";
    assert_eq!(
        rows[0],
        [
            "GPU",
            "Partition",
            "free",
            "used",
            "free",
            "used",
            "clients"
        ]
    );
    assert_eq!(rows[1], ["chunks", "chunks", "SM", "SM"]);
    assert_eq!(rows[2], [short, "10", "90", "10", "90"]);
    assert_eq!(rows[3], [short, "1", "40", "40", "No"]);
    assert_eq!(rows[4], [short, "2", "50", "50", "No"]);

    let (client, said) = in_partition(&rig, &format!("{GPU}/1"));
    assert_eq!(said, "ready 40", "it sees its multiprocessors");
    let (other, said) = in_partition(&rig, "GPU-30/2");
    assert_eq!(said, "ready 50");
    assert!(rig.said("lspart").0.contains("Yes"));
    let (text, exit) = rig.said(&format!("sm_partition rm {GPU} 1"));
    assert_eq!(exit, 1);
    assert_eq!(
        text,
        format!("Partition {GPU}/1 in use. Terminate all clients before removing.\n")
    );
    drop((client, other));
    until("it can be removed", || {
        rig.said(&format!("sm_partition rm {GPU} 1")).1 == 0
    });
    assert_eq!(rig.said(&format!("sm_partition rm {GPU} 1")).1, 1);
    let (text, _) = rig.said(&format!("sm_partition add {GPU} 50"));
    assert_eq!(
        text,
        format!("Partition {GPU}/3 created\n"),
        "no name is used twice"
    );
    let list = rig.json("lspart");
    assert_eq!(list[0]["partitions"].as_array().unwrap().len(), 2);
    for wrong in [
        "sm_partition".to_owned(),
        "sm_partition add GPU-nobody 1".to_owned(),
        format!("sm_partition add {GPU} 0"),
        format!("sm_partition add {GPU} -1"),
        format!("sm_partition add {GPU} many"),
        format!("sm_partition rm {GPU} 9"),
    ] {
        let (text, exit) = rig.said(&wrong);
        assert!(exit == 1 && text.lines().count() == 1, "{wrong}: {text}");
    }
}

fn without_a_partition_no_context_is_to_be_had() {
    let rig = partitioned();
    rig.said(&format!("sm_partition add {GPU} 40"));
    for name in ["", "GPU-30/7", "junk", "/", "GPU-30/1/1"] {
        let (_held, said) = in_partition(&rig, name);
        assert_eq!(said, "fault 915 0", "{name:?}");
    }
    assert!(rig.control_log().contains("GPU-30/7, which there is not"));
    // Where nothing is partitioned, the variable means nothing.
    let plain = Rig::new();
    let (_held, said) = in_partition(&plain, "GPU-30/1");
    assert_eq!(said, "ready 100");
}

fn what_is_reserved_is_never_more_than_there_is() {
    let rig = Rig::new();
    let _client = rig.hold();
    assert_eq!(rig.said("group add a --percentage 60 --reserved").1, 0);
    let (text, exit) = rig.said("group add b --percentage 50 --reserved");
    assert!(
        text.contains("more would be reserved") && exit == 1,
        "{text}"
    );
    assert_eq!(rig.json("group list").as_array().unwrap().len(), 1);
    assert!(!rig.pipe().join("groups/b").exists());
    assert_eq!(rig.said("group add b --percentage 40 --reserved").1, 0);
    let (text, exit) = rig.said("limit set --group b --percentage 41");
    assert!(text.contains("nothing has changed") && exit == 1, "{text}");
    assert_eq!(rig.json("limit show --group b")["percentage"], 40.0);
    assert_eq!(
        rig.said("limit set --group b --percentage 41 --no-reserved")
            .1,
        0
    );
    let shown = rig.json("group show b");
    assert_eq!(
        (&shown["percentage"], &shown["reserved"]),
        (&41.0.into(), &false.into())
    );
}
