//! What clients and groups have of a device's multiprocessors. The fake's has 1016: eight groups of 120, and 56
//! that its split leaves over.

mod common;

use std::time::Duration;

use common::{Controls, Fake, PTX, poke, until};
use cuda_abi::CUresult;
use engine::arena::GRANULE;
use engine::conformance::rig::Guest;
use engine::{Engine, GroupShare, Share};
use engine_nvidia::NvidiaEngine;

/// The group of multiprocessors that stands for what a split leaves over.
const LEFT_OVER: i64 = 1 << 8;

fn open() -> (Fake, NvidiaEngine, Controls) {
    let fake = Fake::new(&["VERSION=12040", "GREEN"]);
    let engine = fake.open().expect("the fake driver opens");
    let controls = Controls::of(&fake);
    (fake, engine, controls)
}

fn together(percentage: f32, reserved: bool) -> Option<GroupShare> {
    Some(GroupShare {
        device: None,
        percentage,
        reserved,
    })
}

/// A client with a context and memory.
fn come(engine: &NvidiaEngine, share: Share, group: Option<u32>) -> Guest {
    let mut guest = Guest::in_group(engine, share, group);
    guest.context(0, 0);
    guest.commit(0, GRANULE);
    guest
}

/// The multiprocessors that a launch is held to, 0 for all of them, and which groups they are.
fn launch(controls: &Controls, guest: &mut Guest, stream: u32) -> (i64, i64) {
    let device = guest.windows[0].base;
    let module = guest.module(PTX);
    guest.launch(stream, module, 1, 1, &poke(device, 1));
    assert_eq!(guest.wait(stream), Ok(()));
    (controls.part(), controls.groups())
}

#[test]
fn a_percentage_is_a_part_of_the_multiprocessors() {
    let (_fake, engine, controls) = open();
    let launch = |guest: &mut Guest, stream| launch(&controls, guest, stream).0;
    let mut whole = come(&engine, Share::default(), None);
    assert_eq!(launch(&mut whole, 0), 0);
    let mut limited = come(&engine, Share::of(45.0), None);
    assert_eq!(launch(&mut limited, 0), 3 * 120);
    // A change holds for streams that were there, once what they had is done.
    limited.stream(40);
    assert_eq!(launch(&mut limited, 40), 3 * 120);
    limited.client.set_share(Share::of(10.0)).unwrap();
    let smallest = (launch(&mut limited, 40), launch(&mut limited, 0));
    assert_eq!(smallest, (120, 120));
    controls.hold(true);
    let device = limited.windows[0].base;
    limited.write(40, device, &[1]);
    limited.client.set_share(Share::of(100.0)).unwrap();
    limited.write(40, device, &[2]);
    controls.hold(false);
    assert_eq!(limited.wait(40), Ok(()));
    assert_eq!(launch(&mut limited, 40), 0);
    // Just below everything is all groups, and not what is left over.
    limited.client.set_share(Share::of(99.0)).unwrap();
    assert_eq!(launch(&mut limited, 40), 8 * 120);
    assert_eq!(controls.stalls(), 0);
}

#[test]
fn all_of_a_group_have_its_part_together() {
    let (_fake, engine, controls) = open();
    let launch = |guest: &mut Guest| launch(&controls, guest, 0).0;
    engine.set_group(7, together(60.0, false)).unwrap();
    let mut first = come(&engine, Share::of(100.0), Some(7));
    let mut second = come(&engine, Share::of(50.0), Some(7));
    assert_eq!(
        (launch(&mut first), launch(&mut second)),
        (5 * 120, 2 * 120)
    );
    engine.set_group(7, together(20.0, false)).unwrap();
    assert_eq!((launch(&mut first), launch(&mut second)), (120, 120));
    engine.set_group(7, together(50.0, true)).unwrap();
    let mut other = come(&engine, Share::of(100.0), None);
    assert_eq!(
        (launch(&mut first), launch(&mut other)),
        (4 * 120, 4 * 120 + 56)
    );
    engine.set_group(7, None).unwrap();
    assert_eq!((launch(&mut first), launch(&mut second)), (0, 4 * 120));
    assert_eq!(controls.stalls(), 0);
}

#[test]
fn what_is_reserved_is_nobody_elses() {
    let (_fake, engine, controls) = open();
    let launch = |guest: &mut Guest, stream| launch(&controls, guest, stream);
    let mut first = come(&engine, Share::default(), None);
    first.stream(40);
    let mut limited = come(&engine, Share::of(60.0), None);
    assert_eq!(launch(&mut first, 40).0, 0);
    let mut owner = come(&engine, Share::reserving(50.0), None);
    let (count, own) = launch(&mut owner, 0);
    assert_eq!(count, 4 * 120);
    // Streams that were there, and those that come, of whoever has reserved nothing.
    first.stream(41);
    let mut late = come(&engine, Share::default(), None);
    let others = [
        launch(&mut first, 40),
        launch(&mut first, 41),
        launch(&mut late, 0),
    ];
    assert_eq!(others, [(4 * 120 + 56, 0b1_0000_1111); 3]);
    assert_eq!(own, 0b1111_0000);
    assert_eq!(launch(&mut limited, 0).1 & own, 0);
    // Somebody who runs may reserve something, too, and give it back.
    late.client.set_share(Share::reserving(30.0)).unwrap();
    let (count, more) = launch(&mut late, 0);
    assert_eq!((count, more & own), (2 * 120, 0));
    assert_eq!(launch(&mut first, 40).1, 0x1ff & !own & !more);
    late.client.set_share(Share::of(30.0)).unwrap();
    assert_eq!(launch(&mut late, 0).1 & own, 0);
    assert_eq!(launch(&mut first, 40).0, 4 * 120 + 56);
    // Who goes takes his reservation along.
    owner.end();
    assert_eq!((launch(&mut first, 40).0, launch(&mut first, 41).0), (0, 0));
    assert_eq!(controls.stalls(), 0);
}

#[test]
fn all_may_be_reserved_and_the_others_go_on() {
    let (_fake, engine, controls) = open();
    let mut owner = come(&engine, Share::reserving(100.0), None);
    let mut other = come(&engine, Share::default(), None);
    assert_eq!(launch(&controls, &mut owner, 0), (8 * 120, 0xff));
    assert_eq!(launch(&controls, &mut other, 0), (56, LEFT_OVER));
    let refused = other.client.set_share(Share::reserving(1.0));
    assert_eq!(refused, Err(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION));
    assert_eq!(launch(&controls, &mut other, 0), (56, LEFT_OVER));
}

/// Whoever reserves waits until the parts can be made, and nobody else does.
#[test]
fn a_reservation_holds_once_kernels_have_ended() {
    let (_fake, engine, controls) = open();
    let mut busy = come(&engine, Share::default(), None);
    let module = busy.module(PTX);
    let device = busy.windows[0].base;
    let mut owner = come(&engine, Share::default(), None);
    let mut other = come(&engine, Share::default(), None);
    let small = other.module(PTX);
    controls.spin(true);
    busy.launch(0, module, 1, 1, &poke(0, 1));
    std::thread::scope(|scope| {
        let reserving = scope.spawn(|| owner.client.set_share(Share::reserving(50.0)));
        for value in 0..50 {
            let device = other.windows[0].base;
            other.launch(0, small, 1, 1, &poke(device, value));
            assert_eq!(other.wait(0), Ok(()));
            std::thread::sleep(Duration::from_millis(1));
        }
        // And come and go.
        drop(Guest::new(&engine));
        assert!(
            !reserving.is_finished(),
            "beside a kernel that was everywhere"
        );
        controls.spin(false);
        assert_eq!(reserving.join().unwrap(), Ok(()));
    });
    assert_eq!(busy.wait(0), Ok(()));
    busy.launch(0, module, 1, 1, &poke(device, 1));
    assert_eq!(busy.wait(0), Ok(()));
    assert_eq!(controls.groups(), 0b1_0000_1111);
    assert_eq!(controls.stalls(), 0);
}

/// A part that cannot be made changes nothing for anybody.
#[test]
fn what_cannot_be_reserved_changes_nothing() {
    let (_fake, engine, controls) = open();
    let mut first = come(&engine, Share::default(), None);
    let mut second = come(&engine, Share::default(), None);
    assert_eq!(launch(&controls, &mut first, 0).0, 0);
    // Batches for all, which are made beside the rest, and would fail in its place.
    controls.has_batches();
    let mut failed = 0;
    for calls in 1.. {
        controls.fail(calls);
        let result = second.client.set_share(Share::reserving(50.0));
        if controls.fail(0) > 0 {
            assert_eq!(result, Ok(()));
            break;
        }
        assert_eq!(result, Err(CUresult::ERROR_OUT_OF_MEMORY));
        assert_eq!(launch(&controls, &mut first, 0).0, 0);
        assert_eq!(launch(&controls, &mut second, 0).0, 0);
        failed += 1;
    }
    assert!(failed >= 2, "{failed} calls failed");
    assert_eq!(launch(&controls, &mut second, 0).1, 0b1111_0000);
    assert_eq!(launch(&controls, &mut first, 0).1, 0b1_0000_1111);
}

/// Clients that reserve, change and go at once end with what is due to those that are left.
#[test]
fn many_reserve_at_once() {
    let (_fake, engine, controls) = open();
    let mut first = come(&engine, Share::default(), None);
    std::thread::scope(|scope| {
        for percentage in [12.0, 13.0, 24.0, 25.0] {
            let engine = &engine;
            scope.spawn(move || {
                for round in 0..20 {
                    let mut guest = come(engine, Share::reserving(percentage), None);
                    if round % 2 == 0 {
                        guest.client.set_share(Share::of(percentage)).unwrap();
                    }
                }
            });
        }
    });
    until("the last to be gone", || {
        launch(&controls, &mut first, 0).0 == 0
    });
    assert_eq!(controls.stalls(), 0);
}

#[test]
fn a_device_of_several_is_reserved_by_itself() {
    let fake = Fake::new(&["VERSION=12040", "GREEN", "DEVICES=2"]);
    let engine = fake.open().unwrap();
    let controls = Controls::of(&fake);
    let of = |device| GroupShare {
        device: Some(device),
        percentage: 75.0,
        reserved: true,
    };
    engine.set_group(1, Some(of(0))).unwrap();
    engine.set_group(2, Some(of(1))).unwrap();
    let mut guest = come(&engine, Share::default(), Some(1));
    assert_eq!(launch(&controls, &mut guest, 0).0, 6 * 120);
    let mut other = come(&engine, Share::default(), None);
    assert_eq!(launch(&controls, &mut other, 0).0, 2 * 120 + 56);
}

#[test]
fn where_there_are_no_parts_nothing_can_be_reserved() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let none = Err(CUresult::ERROR_NOT_SUPPORTED);
    let mut guest = Guest::new(&engine);
    assert_eq!(guest.client.set_share(Share::reserving(50.0)), none);
    assert_eq!(engine.set_group(1, together(50.0, true)), none);
    assert_eq!(engine.set_group(1, together(50.0, false)), Ok(()));
    assert_eq!(guest.client.set_share(Share::of(50.0)), Ok(()));
}
