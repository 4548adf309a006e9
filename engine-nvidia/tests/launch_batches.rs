//! Many launches one after another: they go to the driver as graphs, and do what they would by themselves.

mod common;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use common::{Controls, Fake, PTX, poke, until};
use cuda_abi::CUresult;
use engine::Share;
use engine::arena::GRANULE;
use engine::conformance::rig::{Guest, simple_launch};
use engine_nvidia::NvidiaEngine;
use protocol::operations::{Launch, ModuleUnload};

/// Launches after which a stream has batches.
const BEFORE: u32 = 64;

/// Graphs and executables that there are for clients with few streams: of six lengths, eight each.
const SUPPLY: i64 = 2 * 6 * 8;

/// A fake driver with these settings, an engine over it that has its supply of batches, and what is seen of both.
fn driver(settings: &[&str]) -> (Fake, NvidiaEngine, Controls) {
    let fake = Fake::new(settings);
    let engine = fake.open().expect("an engine over the fake driver");
    let controls = Controls::of(&fake);
    has_graphs(&controls, SUPPLY);
    (fake, engine, controls)
}

/// Waits until there are so many graphs and executables.
fn has_graphs(controls: &Controls, count: i64) {
    until(&format!("{count} graphs"), || controls.graphs() == count);
}

/// Ends a client and its engine, which leave no graph, and have made none while anything ran.
fn end(guest: Guest, engine: NvidiaEngine, controls: &Controls) {
    guest.end();
    drop(engine);
    has_graphs(controls, 0);
    assert_eq!(controls.stalls(), 0);
}

/// A client, its memory and its module.
fn poking(engine: &NvidiaEngine) -> (Guest, u64, u64) {
    let mut guest = Guest::new(engine);
    let at = guest.commit(0, GRANULE);
    let module = guest.module(PTX);
    (guest, at, module)
}

/// One whose stream has batches.
fn batching(engine: &NvidiaEngine) -> (Guest, u64, u64) {
    let (mut guest, at, module) = poking(engine);
    burst(&mut guest, 0, module, at, 0..BEFORE);
    assert_eq!(guest.wait(0), Ok(()));
    (guest, at, module)
}

/// Launches that each write their number to a place of their own.
fn burst(guest: &mut Guest, stream: u32, module: u64, at: u64, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let to = at + 4 * u64::from(number);
        guest.launch(stream, module, 1, 1, &poke(to, number + 1));
    }
}

fn is_done_up_to(guest: &mut Guest, at: u64, count: u32) {
    let words = guest.download(at, 4 * u64::from(count));
    for (number, word) in words.chunks_exact(4).enumerate() {
        assert_eq!(word, (number as u32 + 1).to_le_bytes(), "{number}");
    }
}

#[test]
fn a_burst_goes_in_few_graphs_and_each_launch_keeps_its_parameters() {
    let (_fake, engine, controls) = driver(&["VERSION=12040"]);
    let (mut guest, at, module) = batching(&engine);
    assert_eq!(controls.launches(), (0, i64::from(BEFORE)));
    // All of these are with the driver, or here, before any runs.
    controls.hold(true);
    burst(&mut guest, 0, module, at, BEFORE..BEFORE + 300);
    controls.hold(false);
    assert_eq!(guest.wait(0), Ok(()));
    let (graphs, alone) = controls.launches();
    assert_eq!(alone, i64::from(BEFORE), "went by themselves");
    assert!((9..30).contains(&graphs), "{graphs} graphs");
    is_done_up_to(&mut guest, at, BEFORE + 300);
    let completed = guest.observer.completed(0);
    assert!(completed.iter().all(|(_, result)| result.is_ok()));
    assert!(completed.is_sorted_by_key(|&(sequence, _)| sequence));
    // What comes between launches comes between them.
    for round in 0..50 {
        guest.launch(0, module, 1, 1, &poke(at, 2 * round));
        guest.write(0, at + 4, &(2 * round + 1).to_le_bytes());
        guest.launch(0, module, 1, 1, &poke(at + 4, 2 * round + 2));
        guest.event(0, 1);
        assert_eq!(guest.wait(0), Ok(()));
        assert_eq!(guest.word(at), 2 * round);
        assert_eq!(guest.word(at + 4), 2 * round + 2);
    }
    end(guest, engine, &controls);
}

#[test]
fn what_the_driver_refuses_in_a_graph_is_refused_by_itself() {
    let (_fake, engine, _) = driver(&["VERSION=12040"]);
    let (mut guest, at, module) = poking(&engine);
    burst(&mut guest, 0, module, at, 0..BEFORE + 40);
    let wrong = guest.at(0);
    let launch = simple_launch(module, 1, 2000);
    let taken = guest.client.launch(wrong, &launch, &poke(at, 0));
    assert_eq!(guest.taken(wrong, taken), Ok(()));
    burst(&mut guest, 0, module, at, BEFORE + 40..BEFORE + 80);
    assert_eq!(guest.wait(0), Ok(()));
    let completed = guest.observer.completed(0);
    let failed: Vec<_> = completed
        .iter()
        .filter(|(_, result)| result.is_err())
        .collect();
    assert_eq!(
        failed,
        [&(wrong.sequence, Err(CUresult::ERROR_INVALID_VALUE))]
    );
    is_done_up_to(&mut guest, at, BEFORE + 80);
}

#[test]
fn a_batch_stays_in_the_part_that_its_client_has_now() {
    let (_fake, engine, controls) = driver(&["VERSION=12040", "GREEN"]);
    let mut guest = Guest::with_share(&engine, Share::of(50.0));
    guest.context(0, 0);
    let at = guest.commit(0, GRANULE);
    let module = guest.module(PTX);
    let (mut number, mut parts) = (0, BTreeSet::new());
    // Of 1016 multiprocessors in groups of 120.
    for (percentage, multiprocessors) in [(50.0, 480), (25.0, 240), (100.0, 0), (12.5, 120)] {
        guest.client.set_share(Share::of(percentage)).unwrap();
        // In the new part now, for which there are batches then.
        burst(&mut guest, 0, module, at, number..number + 1);
        number += 1;
        assert_eq!(guest.wait(0), Ok(()));
        parts.insert(controls.part());
        has_graphs(
            &controls,
            SUPPLY * (1 + parts.len() as i64 - i64::from(parts.contains(&0))),
        );
        let before = controls.launches();
        burst(&mut guest, 0, module, at, number..number + 200);
        number += 200;
        assert_eq!(guest.wait(0), Ok(()));
        assert_eq!(controls.part(), multiprocessors, "{percentage} %");
        let (graphs, alone) = controls.launches();
        assert!(graphs > before.0, "{percentage} %: no batch");
        assert_eq!(alone - before.1, i64::from(BEFORE) - 1, "{percentage} %");
    }
    is_done_up_to(&mut guest, at, number);
    end(guest, engine, &controls);
}

#[test]
fn a_batch_of_a_module_that_has_gone_is_made_anew() {
    let (_fake, engine, controls) = driver(&["VERSION=12040"]);
    let (mut guest, at, first) = poking(&engine);
    let second = guest.module(PTX);
    // The first module's batches, then the second's in the same ones, and the other way round.
    burst(&mut guest, 0, first, at, 0..300);
    burst(&mut guest, 0, second, at, 300..600);
    assert_eq!(guest.wait(0), Ok(()));
    let unload = |guest: &mut Guest, module| {
        let unload = ModuleUnload { module };
        assert_eq!(guest.client.module_unload(&unload, &[]), Ok(()));
    };
    unload(&mut guest, first);
    controls.settle(1, 1);
    burst(&mut guest, 0, second, at, 600..900);
    assert_eq!(guest.wait(0), Ok(()));
    let third = guest.module(PTX);
    burst(&mut guest, 0, third, at, 900..1000);
    assert_eq!(guest.wait(0), Ok(()));
    unload(&mut guest, third);
    controls.settle(1, 1);
    burst(&mut guest, 0, second, at, 1000..1100);
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(controls.stale_nodes(), 0);
    is_done_up_to(&mut guest, at, 1100);
    end(guest, engine, &controls);
}

#[test]
fn streams_beyond_a_clients_room_do_without_chains() {
    let (_fake, engine, controls) = driver(&["VERSION=12040"]);
    let (mut guest, at, module) = poking(&engine);
    (40..60).for_each(|stream| guest.stream(stream));
    // Of each length as many as there are streams, and four more.
    has_graphs(&controls, 2 * 6 * (21 + 4));
    let mut with_batches = 0;
    for stream in 40..60 {
        burst(&mut guest, stream, module, at, 0..BEFORE);
        for length in [32, 16, 8, 4, 2, 1] {
            burst(&mut guest, stream, module, at, 0..length);
            assert_eq!(guest.wait(stream), Ok(()));
        }
        let before = controls.launches().0;
        burst(&mut guest, stream, module, at, 0..32);
        assert_eq!(guest.wait(stream), Ok(()));
        with_batches += i64::from(controls.launches().0 > before);
    }
    // As many as its room is for, or one more, as a burst may be taken apart.
    assert!((8..=9).contains(&with_batches), "{with_batches} streams");
    guest.destroy(40);
    assert_eq!(guest.wait(40), Ok(()));
    end(guest, engine, &controls);
}

#[test]
fn a_gathered_launch_does_not_wait_for_others() {
    let (_fake, engine, _) = driver(&["VERSION=12040"]);
    let (mut guest, at, module) = batching(&engine);
    // Nobody says that nothing more comes: the poller issues it.
    guest.launch(0, module, 1, 1, &poke(at, 77));
    until("it is issued", || guest.is_done(0));
    assert_eq!(guest.word(at), 77);
}

#[test]
fn launches_behind_what_is_signalled_is_signalled_together() {
    let (_fake, engine, controls) = driver(&["VERSION=12040"]);
    let (mut guest, at, module) = poking(&engine);
    // By themselves, and once there are batches.
    for first in [0, BEFORE] {
        burst(&mut guest, 0, module, at, 0..first);
        assert_eq!(guest.wait(0), Ok(()));
        controls.hold(true);
        let before = (controls.signatures(), controls.launches().0);
        for number in 0..40 {
            burst(&mut guest, 0, module, at, number..number + 1);
            guest.client.assist();
        }
        // The first, and what waits for as long as it may where a thread waits for a processor.
        let signalled = controls.signatures() - before.0 + controls.launches().0 - before.1;
        controls.hold(false);
        assert_eq!(guest.wait(0), Ok(()));
        assert!((1..20).contains(&signalled), "{signalled} of 40");
        is_done_up_to(&mut guest, at, 40);
    }
    end(guest, engine, &controls);
}

/// A run of launches that each write their number to a place of their own.
fn add(guest: &mut Guest, run: u32, module: u64, at: u64, count: u32) {
    let launch = simple_launch(module, 1, 1);
    for number in 0..count {
        let to = at + 4 * u64::from(number);
        guest.run_add(run, &launch, &poke(to, number + 1));
    }
}

/// Launches it into cleared memory.
fn run(guest: &mut Guest, stream: u32, run: u32, at: u64, count: u32) {
    guest.write(stream, at, &vec![0; 4 * count as usize]);
    guest.run_launch(stream, run);
    assert_eq!(guest.wait(stream), Ok(()));
    is_done_up_to(guest, at, count);
}

#[test]
fn a_run_is_one_graph_of_which_only_the_signal_is_changed() {
    let (_fake, engine, controls) = driver(&["VERSION=12040"]);
    let (mut guest, at, module) = batching(&engine);
    add(&mut guest, 0, module, at, 100);
    guest.stream(40);
    // In the stream's batches, until it has a graph and its executable.
    run(&mut guest, 0, 0, at, 100);
    has_graphs(&controls, SUPPLY + 2);
    // In any stream.
    for round in 0..10 {
        let before = (controls.changed_nodes(), controls.launches());
        run(&mut guest, [0, 40][round % 2], 0, at, 100);
        let (graphs, alone) = controls.launches();
        assert_eq!((graphs - before.1.0, alone - before.1.1), (1, 0));
        assert_eq!(controls.changed_nodes() - before.0, 1, "{round}");
    }
    guest.run_destroy(0);
    has_graphs(&controls, SUPPLY);
    end(guest, engine, &controls);
}

/// A launch with one attribute, and its data.
fn with_attribute(module: u64, id: u32, value: u32, parameters: &[u8]) -> (Launch, Vec<u8>) {
    let launch = Launch {
        attributes: 1,
        ..simple_launch(module, 1, 1)
    };
    let mut data = [
        &id.to_le_bytes()[..],
        &[0; 4],
        &value.to_le_bytes(),
        &[0; 60],
    ]
    .concat();
    data.extend(parameters);
    (launch, data)
}

#[test]
fn kernels_of_a_run_keep_their_attributes_in_its_graph() {
    /// CUlaunchAttributeID: what a node has too, and what it does not.
    const CLUSTER: u32 = 4;
    const OVERLAPPING: u32 = 6;
    let (_fake, engine, controls) = driver(&["VERSION=12040", "ATTRIBUTES"]);
    let (mut guest, at, module) = batching(&engine);
    let mut made = 0;
    let mut graph_of = |run: u32, id: u32, value: u32, guest: &mut Guest| {
        for number in 0..10 {
            let to = at + 4 * u64::from(number);
            let (launch, data) = with_attribute(module, id, value, &poke(to, number + 1));
            guest.run_add(run, &launch, &data);
        }
        self::run(guest, 0, run, at, 10);
        made += 2 * i64::from(id == CLUSTER || value == 0);
        has_graphs(&controls, SUPPLY + made);
        let before = controls.launches();
        self::run(guest, 0, run, at, 10);
        let (graphs, alone) = controls.launches();
        (graphs - before.0, alone - before.1)
    };
    assert_eq!(graph_of(0, CLUSTER, 2, &mut guest), (1, 0));
    assert_eq!(controls.node_attributes(), 20);
    // An edge of another kind, unless it is off.
    assert_eq!(graph_of(1, OVERLAPPING, 1, &mut guest), (0, 10));
    assert_eq!(graph_of(2, OVERLAPPING, 0, &mut guest), (1, 0));
    assert_eq!(controls.node_attributes(), 20);
    end(guest, engine, &controls);
}

#[test]
fn a_run_stays_in_the_part_that_its_client_has_now() {
    let (_fake, engine, controls) = driver(&["VERSION=12040", "GREEN"]);
    let mut guest = Guest::with_share(&engine, Share::of(50.0));
    guest.context(0, 0);
    let at = guest.commit(0, GRANULE);
    let module = guest.module(PTX);
    burst(&mut guest, 0, module, at, 0..1);
    add(&mut guest, 0, module, at, 10);
    for (percentage, multiprocessors) in [(50.0, 480), (25.0, 240), (100.0, 0)] {
        guest.client.set_share(Share::of(percentage)).unwrap();
        // It is made anew for the part.
        let is_one_graph = || {
            let before = controls.launches();
            run(&mut guest, 0, 0, at, 10);
            assert_eq!(controls.part(), multiprocessors, "{percentage} %");
            controls.launches() == (before.0 + 1, before.1)
        };
        until("the run is one graph", is_one_graph);
    }
    end(guest, engine, &controls);
}

#[test]
fn a_run_of_kernels_that_were_never_launched_goes_one_by_one() {
    let (_fake, engine, controls) = driver(&["VERSION=12040"]);
    let (mut guest, at, module) = poking(&engine);
    add(&mut guest, 0, module, at, 20);
    run(&mut guest, 0, 0, at, 20);
    assert_eq!(controls.launches(), (0, 20));
    // In the stream's batches, until it has a graph.
    run(&mut guest, 0, 0, at, 20);
    assert_eq!(controls.launches().1, 20);
    has_graphs(&controls, SUPPLY + 2);
    let before = controls.launches();
    run(&mut guest, 0, 0, at, 20);
    assert_eq!(controls.launches(), (before.0 + 1, before.1));
    // What the driver refuses is refused each time, and the stream goes on.
    guest.run_add(1, &simple_launch(module, 1, 1), &poke(at, 7));
    guest.run_add(1, &simple_launch(module, 1, 2000), &poke(at, 8));
    for _ in 0..3 {
        guest.run_launch(0, 1);
        assert_eq!(guest.wait(0), Err(CUresult::ERROR_INVALID_VALUE));
    }
    run(&mut guest, 0, 0, at, 20);
    end(guest, engine, &controls);
}

#[test]
fn a_run_holds_no_module_that_was_unloaded() {
    let (_fake, engine, controls) = driver(&["VERSION=12040"]);
    let (mut guest, at, _) = batching(&engine);
    for round in 0..6 {
        let module = guest.module(PTX);
        burst(&mut guest, 0, module, at, 0..1);
        add(&mut guest, 0, module, at, 10);
        run(&mut guest, 0, 0, at, 10);
        has_graphs(&controls, SUPPLY + 2);
        run(&mut guest, 0, 0, at, 10);
        let unload = ModuleUnload { module };
        assert_eq!(guest.client.module_unload(&unload, &[]), Ok(()), "{round}");
        has_graphs(&controls, SUPPLY);
        guest.run_destroy(0);
    }
    assert_eq!(controls.stale_nodes(), 0);
    end(guest, engine, &controls);
}

#[test]
fn runs_beyond_a_clients_room_go_in_the_streams_batches() {
    let (_fake, engine, controls) = driver(&["VERSION=12040"]);
    let (mut guest, at, module) = batching(&engine);
    // Twenty of a hundred and twenty, at places of their own, round after round.
    for number in 0..20 {
        let at = at + 512 * u64::from(number);
        add(&mut guest, number, module, at, 120);
    }
    let fitting = 1024 / 121;
    for round in 0..3 {
        if round == 1 {
            has_graphs(&controls, SUPPLY + 2 * fitting);
        }
        for number in 0..20 {
            let before = controls.launches();
            run(&mut guest, 0, number, at + 512 * u64::from(number), 120);
            let (graphs, alone) = controls.launches();
            let graphs = graphs - before.0;
            if round == 0 {
                continue;
            }
            // Three of 32, then 16 and 8.
            let expected = if i64::from(number) < fitting { 1 } else { 5 };
            assert_eq!((graphs, alone - before.1), (expected, 0), "{number}");
        }
    }
    end(guest, engine, &controls);
}

/// Of kernels that are only known to have ended together, one has run for as long as all of them when all have for as
/// many times as one may.
#[test]
fn a_batch_is_not_taken_for_one_kernel_that_runs_for_too_long() {
    let (_fake, engine, controls) = driver(&["VERSION=12040"]);
    let (mut guest, at, module) = batching(&engine);
    guest
        .observer
        .limit_kernel_time(Some(Duration::from_millis(50)));
    controls.hold(true);
    let begun = Instant::now();
    burst(&mut guest, 0, module, at, 0..32);
    until("it is told of one", || {
        !guest.observer.overruns().is_empty()
    });
    let took = begun.elapsed();
    controls.hold(false);
    assert_eq!(guest.wait(0), Ok(()));
    assert!(took > Duration::from_millis(50) * 8, "{took:?}");
}
