//! A device that dies of clients whose sessions another server takes over. In a process of its own: the addresses that its
//! clients had stay taken.

mod common;

use common::{Controls, Fake, poke, until};
use engine::Guilt;
use engine::arena::GRANULE;
use engine::conformance::rig::Guest;

const PTX: &str = ".version 7.8\n.visible .entry poke() {}";

/// What the GPU had not begun when it died is known of clients whose sessions another server takes over.
#[test]
fn whose_work_was_not_begun_is_told_apart() {
    let fake = Fake::new(&["VERSION=12040", "DEVICES=2"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut guilty = Guest::kept(&engine);
    let mut behind = Guest::kept(&engine);
    // Kernels of it may begin on the device that is well.
    controls.dies_alone(0);
    let mut elsewhere = Guest::kept(&engine);
    elsewhere.context(1, 1);
    let mut unmarked = Guest::new(&engine);
    // What it writes may have been begun, but no kernel.
    let mut writes = Guest::kept(&engine);
    let device = writes.commit(0, GRANULE);
    let modules = [
        &mut guilty,
        &mut behind,
        &mut unmarked,
        &mut writes,
        &mut elsewhere,
    ];
    let modules = modules.map(|guest| guest.module(PTX));
    let work = [&guilty, &behind, &unmarked, &writes, &elsewhere];
    let work = work.map(|guest| guest.client.work_in_flight().unwrap());
    controls.spin(true);
    guilty.launch(0, modules[0], 1, 1, &poke(0, 1));
    // It may wait for batches to be made.
    until("it has begun", || controls.queued() > 0);
    controls.hold(true);
    behind.launch(0, modules[1], 1, 1, &poke(0, 1));
    unmarked.launch(0, modules[2], 1, 1, &poke(0, 1));
    writes.write(0, device, &[1; 64]);
    writes.launch(0, modules[3], 1, 1, &poke(0, 1));
    elsewhere.launch(0, modules[4], 1, 1, &poke(0, 1));
    // Where the gate was closed for a moment, somebody else gives the driver what waited.
    until("the driver has it all", || {
        work.iter().all(|work| !work.in_flight().is_empty())
    });
    controls.die(700);
    for guest in [&guilty, &behind, &unmarked, &writes, &elsewhere] {
        let _ = guest.observer.fault();
    }
    assert_eq!(guilty.observer.guilt(), [Guilt::Suspect]);
    assert_eq!(behind.observer.guilt(), [Guilt::Innocent]);
    assert_eq!(unmarked.observer.guilt(), [Guilt::Suspect]);
    let begun = work.map(|work| work.may_have_begun());
    assert_eq!(begun, [true, false, true, false, true]);
}
