//! Memory that is taken back while bytes are moved.

use std::time::Duration;

use protocol::operations::{Copy, Fill, Space};

use super::*;
use crate::copy::Transfer;
use crate::work::{Piece, Progress, SliceClock, Task};

#[derive(Debug)]
struct Nobody;
impl Owner for Nobody {}

const BYTES: u64 = 64 << 20;

/// A client's memory with a window of its own among those of all tests, which are numbered.
fn client(number: u64) -> (ClientMemory, Window, Arc<Bound>) {
    let at = |extent: u64, bytes| Window {
        base: arena::BASE + (7000 + 10 * number + extent) * arena::EXTENT,
        bytes,
    };
    let window = at(0, BYTES);
    let region = |window| Region {
        window,
        owner: Arc::new(Nobody),
    };
    let (host, staging) = (region(at(1, BYTES)), region(at(2, BYTES)));
    let budget = Arc::new(Bound::new(BYTES));
    let owner: Arc<dyn Owner> = Arc::new(Nobody);
    let budgets = [Arc::clone(&budget)];
    let memory = ClientMemory::new((&[window], Vec::new()), &budgets, &owner, &host, &staging);
    (memory.expect("addresses and memory"), window, budget)
}

fn fill(memory: &ClientMemory, window: Window) -> Transfer {
    let request = Fill {
        to: window.base,
        pitch: 0,
        value: 7,
        element: 1,
        width: window.bytes,
        height: 1,
    };
    let space = memory.copy_space();
    let _moving = space.moving();
    Transfer::fill(&space, &request).expect("committed memory")
}

#[test]
fn what_runs_on_writes_nothing_into_memory_that_was_taken_back() {
    let (memory, window, budget) = client(0);
    memory.commit(window).unwrap();
    let fill = fill(&memory, window);
    let mut piece = Piece::whole(fill.units());
    assert_eq!(
        fill.run(&mut piece, &mut SliceClock::start(Duration::ZERO), 0),
        Progress::Yielded
    );
    assert!(memory.spans[0].backing.held() > 0);
    memory.decommit(window);
    assert_eq!(memory.spans[0].backing.held(), 0);
    assert_eq!(budget.remaining(), BYTES);
    let mut later = SliceClock::start(Duration::from_secs(60));
    let failed = Progress::Failed(CUresult::ERROR_INVALID_VALUE);
    assert_eq!(fill.run(&mut piece, &mut later, 0), failed);
    assert_eq!(memory.spans[0].backing.held(), 0);
    // Nor does it read there, which would take pages as well.
    memory.commit(window).unwrap();
    let half = window.bytes / 2;
    let copy = Copy {
        to_space: Space::Unified as u32,
        to: window.base + half,
        to_pitch: 0,
        to_slice: 0,
        from_space: Space::Unified as u32,
        from: window.base,
        from_pitch: 0,
        from_slice: 0,
        width: half,
        height: 1,
        depth: 1,
    };
    let copy = Transfer::copy(&memory.copy_space(), &copy).unwrap();
    let mut piece = Piece::whole(copy.units());
    assert_eq!(
        copy.run(&mut piece, &mut SliceClock::start(Duration::ZERO), 0),
        Progress::Yielded
    );
    memory.decommit(Window {
        bytes: half,
        ..window
    });
    let held = memory.spans[0].backing.held();
    assert_eq!(copy.run(&mut piece, &mut later, 0), failed);
    assert_eq!(memory.spans[0].backing.held(), held);
}

#[test]
fn whoever_moves_bytes_meanwhile_has_done_when_memory_is_taken_back() {
    let (memory, window, budget) = client(1);
    for round in 0..60 {
        memory.commit(window).unwrap();
        let fill = fill(&memory, window);
        let half = fill.units() / 2;
        std::thread::scope(|scope| {
            for part in [0..half, half..fill.units()] {
                let fill = &fill;
                scope.spawn(move || {
                    let mut piece = Piece {
                        fresh: part,
                        cluster: None,
                    };
                    while fill.run(&mut piece, &mut SliceClock::start(Duration::ZERO), 0)
                        == Progress::Yielded
                    {}
                });
            }
            std::thread::sleep(Duration::from_micros(20 * round));
            memory.decommit(window);
        });
        assert_eq!(memory.spans[0].backing.held(), 0, "round {round}");
        assert_eq!(budget.remaining(), BYTES);
    }
}
