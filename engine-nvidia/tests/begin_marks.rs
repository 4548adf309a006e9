//! A mark is launched before a kernel of a client whose session another server can take over, where others have work that may have stopped
//! the device; who is alone has none. In a process of its own, as `kept`.

mod common;

use std::time::Duration;

use common::{Controls, Fake, poke};
use engine::conformance::rig::Guest;

const PTX: &str = ".version 7.8\n.visible .entry poke() {}";

#[test]
fn kernels_have_a_mark_before_them_where_others_have_work() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let mut one = Guest::kept(&engine);
    let mut other = Guest::kept(&engine);
    let modules = [&mut one, &mut other].map(|guest| guest.module(PTX));
    controls.has_batches();
    // All that the driver is asked to launch for a kernel, with what tells of its end.
    let launched = |guest: &mut Guest, module: u64| {
        let (_, before) = controls.launches();
        guest.launch(0, module, 1, 1, &poke(0, 1));
        std::thread::sleep(Duration::from_millis(50));
        controls.launches().1 - before
    };
    controls.hold(true);
    let alone = launched(&mut one, modules[0]);
    controls.hold(false);
    one.wait(0).unwrap();
    controls.hold(true);
    assert_eq!(
        launched(&mut other, modules[1]),
        alone,
        "nobody else has work"
    );
    assert_eq!(launched(&mut one, modules[0]), alone + 1, "and a mark");
    controls.hold(false);
    one.wait(0).unwrap();
    other.wait(0).unwrap();
    assert_eq!(launched(&mut one, modules[0]), alone, "they are over");
    one.wait(0).unwrap();
}
