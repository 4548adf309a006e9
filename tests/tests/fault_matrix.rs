//! A part of the fault matrix on the software GPU, with who is to live and who is to be told what. The whole is printed by
//! `benches/faults.sh`.

use std::path::Path;
use std::time::Duration;

use tests::daemon::openmps;
use tests::fault_matrix::{Cell, NEIGHBOURS, Plan, Sharing, WRONGS, Wrong, cell, soak};

const PROGRAM: &str = env!("CARGO_BIN_EXE_faults");

/// What the guilty is told, whether neighbours live, and whether the guilty is named in the log: the rule of
/// docs/faults.md. Who comes next is served, but where there is no daemon any more.
fn expected(wrong: Wrong) -> (&'static str, &'static str, bool) {
    match wrong {
        Wrong::Client("illegal-address") => ("told 700", "exact", true),
        Wrong::Client("misaligned-address") => ("told 716", "exact", true),
        Wrong::Client("assert") => ("told 710", "exact", true),
        Wrong::Client("trap") => ("told 719", "exact", true),
        Wrong::Client("stack-overflow") => ("told 714", "exact", true),
        // It is an error of a call, and no fault.
        Wrong::Client("out-of-memory") => ("told 2", "exact", false),
        Wrong::Terminated(_) => ("told 810", "exact", true),
        Wrong::Limited(_) => ("told 702", "exact", true),
        Wrong::Killed(_) => ("killed", "exact", true),
        Wrong::Stopped | Wrong::Daemon | Wrong::Upgrade => ("exact", "exact", false),
        // Nobody takes over: all clients of a server end with it.
        Wrong::Server(_) => ("told 806", "told 806", false),
        // Of those who were in a kernel [`check`] lets each be told so.
        Wrong::Failover(_) => ("exact", "exact", false),
        // Nobody can write who it was.
        Wrong::DiskFull => ("told 700", "exact", false),
        Wrong::Client(other) => panic!("no expectation of {other}"),
    }
}

fn software_gpu(fenced: bool) -> Sharing {
    Sharing::OpenMps {
        openmps: openmps().to_owned(),
        engine: "soft",
        fenced,
        failover: false,
    }
}

fn check(name: &str, wrong: Wrong, neighbours: (&str, &str, usize), fenced: bool) {
    let seen: Cell = cell(&software_gpu(fenced), Path::new(PROGRAM), wrong, neighbours);
    let (guilty, others, is_named) = expected(wrong);
    let at = format!("{name} beside {}: {seen}", neighbours.0);
    // Whoever has kernels may have had one on the device when the server ended.
    let is_failover = matches!(wrong, Wrong::Failover(_));
    let may_be_cut_off = is_failover && neighbours.1 != "idle";
    let is = |said: &str, expected: &str, may: bool| said == expected || may && said == "told 719";
    assert!(is(&seen.guilty, guilty, is_failover), "{at}");
    assert_eq!(seen.neighbours.len(), neighbours.2, "{at}");
    let mut each = seen.neighbours.iter();
    assert!(each.all(|said| is(said, others, may_be_cut_off)), "{at}");
    if !is_failover {
        assert_eq!(seen.is_named, is_named, "{at}");
    }
    match wrong {
        // Fail closed: never a GPU without a daemon.
        Wrong::Daemon => assert_eq!(seen.next, "ended exit status: 1", "{at}"),
        _ => assert_eq!(seen.next, "exact", "{at}"),
    }
}

#[test]
fn each_wrong_beside_a_neighbour_whose_results_are_checked() {
    let kernels = NEIGHBOURS[1];
    assert_eq!(kernels.0, "kernels");
    for (name, wrong) in WRONGS {
        check(name, *wrong, kernels, false);
    }
}

#[test]
fn nothing_is_otherwise_for_fenced_clients() {
    for (name, wrong) in &WRONGS[..2] {
        check(name, *wrong, NEIGHBOURS[1], true);
    }
}

#[test]
fn a_fault_an_endless_kernel_and_a_kill_beside_each_neighbour() {
    let chosen = [
        "illegal address",
        "endless kernel, terminated",
        "endless kernel, limited",
        "SIGKILL mid-copy",
        "server SIGKILL, --failover",
        "upgrade, --failover",
    ];
    for (name, wrong) in WRONGS.iter().filter(|(name, _)| chosen.contains(name)) {
        for neighbours in NEIGHBOURS {
            check(name, *wrong, *neighbours, false);
        }
    }
}

#[test]
fn wrongs_at_random_leave_nothing_and_spoil_no_result() {
    let seen = soak(
        &software_gpu(false),
        Path::new(PROGRAM),
        Plan {
            rounds: 30,
            seed: 0x2545_F491_4F6C_DD1D,
            of_each: 1,
            every: Duration::ZERO,
        },
        |_, _| {},
    );
    for (wrong, told) in &seen.guilty {
        assert_eq!(told, expected(*wrong).0, "{wrong:?} of {seen:?}");
    }
    assert!(
        seen.neighbours.iter().all(|(_, said)| said == "exact"),
        "{seen:?}"
    );
    let [before, after] = &seen.server;
    assert_eq!(before, after, "{seen:?}");
    assert!(before.free.starts_with("free "), "{seen:?}");
}
