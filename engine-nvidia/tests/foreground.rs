//! Clients below normal priority beside others, over a fake driver that can be held.

mod common;

use common::{Controls, Fake, PTX, poke, until};
use engine::arena::GRANULE;
use engine::conformance::rig::{Guest, simple_launch};
use engine::{Engine, Share};
use protocol::operations::HoldReason;

const BELOW_NORMAL: Share = Share {
    percentage: 100.0,
    priority: 1,
    reserved: false,
};

fn below_normal(engine: &dyn Engine) -> Guest {
    let mut guest = Guest::with_share(engine, BELOW_NORMAL);
    guest.context(0, 0);
    guest
}

/// Whether a client below normal, beside one at work, was not let to the driver at once, and this was told. It may only have come late.
fn gives_way(fake: &Fake) -> bool {
    let engine = fake.open().expect("the fake opens");
    let controls = Controls::of(fake);
    controls.has_batches();
    let mut below = below_normal(&engine);
    let mut normal = Guest::new(&engine);
    let [there, here] = [&mut below, &mut normal].map(|guest| guest.commit(0, GRANULE));
    assert_eq!((below.wait(0), normal.wait(0)), (Ok(()), Ok(())));
    controls.hold(true);
    normal.write(0, here, &[1; 4]);
    let before = controls.queued();
    below.write(0, there, &[2; 4]);
    let waited = controls.queued() == before;
    until(
        "who works all the time is not waited for all the time",
        || controls.queued() > before,
    );
    controls.hold(false);
    assert_eq!((below.wait(0), normal.wait(0)), (Ok(()), Ok(())));
    assert_eq!(below.word(there), 0x0202_0202);
    assert_eq!(normal.observer.holds(), []);
    // For its accounts, though nobody records.
    let holds = below.observer.holds();
    let by_priority = |hold: &(_, HoldReason, u64)| hold.1 == HoldReason::Priority && hold.2 > 0;
    waited && holds.iter().any(by_priority)
}

#[test]
fn who_is_below_normal_waits_for_others_and_not_for_ever() {
    let fake = Fake::new(&["VERSION=12040"]);
    let attempts = 20;
    assert!(
        (0..attempts).any(|_| gives_way(&fake)),
        "what is below normal went to the driver at once, {attempts} times"
    );
}

#[test]
fn nobody_waits_where_all_are_below_normal() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("the fake opens");
    let controls = Controls::of(&fake);
    controls.has_batches();
    let mut guests = [(); 2].map(|()| below_normal(&engine));
    let addresses = guests.each_mut().map(|guest| guest.commit(0, GRANULE));
    for guest in &mut guests {
        assert_eq!(guest.wait(0), Ok(()));
    }
    controls.hold(true);
    for (guest, address) in guests.iter_mut().zip(addresses) {
        let before = controls.queued();
        guest.write(0, address, &[1; 4]);
        assert!(controls.queued() > before);
    }
    controls.hold(false);
    for guest in &mut guests {
        assert_eq!(guest.wait(0), Ok(()));
    }
}

/// A launch into a full hardware queue waits, with the context's lock held, whosever it is.
#[test]
fn a_long_run_of_one_below_normal_goes_to_the_driver_in_parts() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().expect("the fake opens");
    let controls = Controls::of(&fake);
    controls.has_batches();
    let mut below = below_normal(&engine);
    let mut normal = Guest::new(&engine);
    let [there, here] = [&mut below, &mut normal].map(|guest| guest.commit(0, GRANULE));
    let module = below.module(PTX);
    // So many that no stream may give the driver a whole run at once.
    for stream in 40..280 {
        normal.stream(stream);
    }
    let last = 128;
    for value in 1..=last {
        below.run_add(7, &simple_launch(module, 1, 1), &poke(there, value));
    }
    assert_eq!((below.wait(0), normal.wait(0)), (Ok(()), Ok(())));
    controls.hold(true);
    normal.write(0, here, &[1; 4]);
    until("the other is at work", || controls.queued() > 0);
    below.run_launch(0, 7);
    until("it goes on beside the other", || controls.queued() > 20);
    std::thread::sleep(std::time::Duration::from_millis(50));
    let begun = controls.queued();
    assert!(begun < 90, "{begun} at once");
    controls.hold(false);
    assert_eq!((below.wait(0), normal.wait(0)), (Ok(()), Ok(())));
    assert_eq!(below.word(there), last);
}
