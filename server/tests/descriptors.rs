//! A server that has no descriptor left. Alone in its process, since the limit is the process's.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod rig;

use std::os::fd::AsRawFd;

use cuda_abi::CUresult;
use protocol::control_messages::{ClientFields, Ending};
use rig::Rig;
use rig::engine::FakeEngine;
use rustix::process::{Resource, Rlimit, getpid, getrlimit, setrlimit};

#[test]
fn a_client_that_is_lost_on_its_way_is_told_of_and_the_next_one_comes() {
    let rig = Rig::new(FakeEngine::new());
    let first = rig.attach_with_context();
    // What its session attached with it has given back.
    first.round_trip();
    let before = getrlimit(Resource::Nofile);
    let lower = |current| {
        let limit = Rlimit {
            current: Some(current),
            ..before
        };
        setrlimit(Resource::Nofile, limit).unwrap();
    };
    let lost = rig.hand_over_with(ClientFields::default(), 5, getpid(), || {
        // Not one more: all below the limit are taken.
        lower(256);
        let mut taken = Vec::new();
        // The first client's session still gives back what it attached with.
        for _ in 0..10 {
            while let Ok(file) = std::fs::File::open("/dev/null") {
                taken.push(file);
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        taken
    });
    assert_eq!(rig.ending_of(lost.session), Ending::Failed);
    drop(lost);
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(rig.log.contain("no descriptor left for it"));
    rig.attach_with_context().round_trip();

    // A few are left: those are for whoever is connected, and the next one is told.
    let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
    lower(u64::from(next.unsigned_abs()) + 40);
    let refused = rig.try_attach(ClientFields::default(), 6, getpid());
    setrlimit(Resource::Nofile, before).unwrap();
    let (code, text) = refused.err().unwrap();
    assert_eq!(code, CUresult::ERROR_MPS_MAX_CLIENTS_REACHED.0);
    assert!(text.contains("LimitNOFILE"), "{text}");
    rig.attach_with_context().round_trip();
    first.round_trip();
}
