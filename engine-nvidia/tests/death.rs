//! A device that dies. In a process of its own: the addresses that its clients had stay taken.

mod common;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use common::{Controls, Fake, poke};
use cuda_abi::CUresult;
use engine::Guilt;
use engine::arena::GRANULE;
use engine::conformance::rig::Guest;
use protocol::operations::{CONTEXT_SLOTS, Copy, Space};

const PTX: &str = ".version 7.8\n.visible .entry poke() {}";

/// Each death in a process of its own, which this one is when it is told of one.
#[test]
fn a_gpu_that_fails_is_told_of_with_what_to_do() {
    const DEATH: &str = "OPENMPS_TEST_DEATH";
    if let Ok(code) = std::env::var(DEATH) {
        return dies_of(code.parse().unwrap());
    }
    // Memory that error correction could not mend, a GPU that dropped off, and what nobody knows.
    for (code, advice) in [(214, "ECC"), (46, "Xid"), (999, "Xid")] {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "a_gpu_that_fails_is_told_of_with_what_to_do",
                "--nocapture",
            ])
            .env(DEATH, code.to_string())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains(advice),
            "{code}: {text}"
        );
    }
}

fn dies_of(code: u32) {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("a driver that works");
    let controls = Controls::of(&fake);
    let mut guest = Guest::new(&engine);
    let device = guest.commit(0, GRANULE);
    controls.hold(true);
    guest.write(0, device, &[1]);
    guest.stream(40);
    guest.stage(0, &[0xEE; 4]);
    let fetch = Copy {
        to_space: Space::Staging as u32,
        from: device,
        width: 4,
        height: 1,
        depth: 1,
        ..Copy::default()
    };
    guest.copy(40, &fetch);
    controls.die(code);
    assert_eq!(guest.wait(0), Err(CUresult(code)));
    // What was to come back has not.
    assert_eq!(guest.wait(40), Err(CUresult(code)));
    assert_eq!(guest.staged(0, 4), [0xEE; 4]);
    let (_, told, text) = guest.observer.fault();
    assert_eq!(told, CUresult(code));
    println!("{text}");
}

#[test]
fn a_dead_device_is_told_to_all_and_takes_nobody() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guilty = Guest::new(&engine);
    let mut other = Guest::new(&engine);
    other.context(1, 0);
    let device = guilty.commit(0, GRANULE);
    let module = guilty.module(PTX);
    guilty.write(0, device, &[0; 4]);
    assert_eq!(guilty.wait(0), Ok(()));
    controls.hold(true);
    for _ in 0..200 {
        guilty.launch(0, module, 1, 1, &poke(device, 1));
    }
    controls.die(700);
    let illegal = CUresult::ERROR_ILLEGAL_ADDRESS;
    assert_eq!(guilty.wait(0), Err(illegal));
    let completed = guilty.observer.completed(0);
    assert_eq!(completed.len(), 201);
    assert!(
        completed[1..]
            .iter()
            .all(|&(_, result)| result == Err(illegal))
    );
    let (context, code, text) = guilty.observer.fault();
    assert_eq!((context, code), (0, illegal));
    assert!(text.contains("poke") && text.contains("Fake GPU"), "{text}");
    assert!(text.contains("compute-sanitizer"), "{text}");
    // Once for each context, of clients that did nothing too.
    let _ = other.observer.fault();
    while other.observer.faults().len() < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(guilty.observer.faults().len(), 1);
    assert_eq!(guilty.observer.guilt(), [Guilt::Suspect]);
    assert_eq!(other.observer.guilt(), [Guilt::Innocent; 2]);
    other.write(0, device, &[1]);
    assert_eq!(other.wait(0), Err(illegal));
    assert_eq!(other.stream_in(CONTEXT_SLOTS, 0), Err(illegal));
    guilty.end();
    other.end();
    let attached = std::panic::catch_unwind(AssertUnwindSafe(|| Guest::new(&engine)));
    assert!(attached.is_err(), "nobody is taken");
}
