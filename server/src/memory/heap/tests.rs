//! How blocks lie in windows, and what is given back.

use super::*;

/// Counts what is committed, checks that nothing is twice, and has only so much.
struct Device {
    room: u64,
    granules: BTreeSet<u64>,
    commits: usize,
    /// Further windows that there are. They lie side by side, behind the first one.
    windows: Vec<Window>,
    /// The most bytes that a further window can have.
    most: u64,
    /// A former server has left everything.
    left: bool,
}

impl Device {
    fn new(room: u64) -> Self {
        Self {
            room,
            granules: BTreeSet::new(),
            commits: 0,
            windows: Vec::new(),
            most: u64::MAX,
            left: true,
        }
    }
}

impl Backing for Device {
    fn commit(&mut self, range: Window) -> Result<(), CUresult> {
        assert!(range.base.is_multiple_of(GRANULE) && range.bytes.is_multiple_of(GRANULE));
        if self.granules.len() as u64 * GRANULE + range.bytes > self.room {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        self.commits += 1;
        for at in (range.base..range.base + range.bytes).step_by(GRANULE as usize) {
            assert!(self.granules.insert(at), "committed twice");
        }
        Ok(())
    }
    fn recommit(&mut self, range: Window) -> Result<bool, CUresult> {
        self.commit(range)?;
        Ok(self.left)
    }
    fn decommit(&mut self, range: Window) {
        for at in (range.base..range.base + range.bytes).step_by(GRANULE as usize) {
            assert!(self.granules.remove(&at), "was not committed");
        }
    }
    fn extend(&mut self, device: u32, bytes: u64) -> Result<Window, CUresult> {
        assert_eq!(device, 3);
        if bytes > self.most {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let ends = self.windows.iter().map(|window| window.base + window.bytes);
        let window = Window {
            base: ends.max().unwrap_or(WINDOW.base + WINDOW.bytes),
            bytes: bytes.next_multiple_of(EXTENT),
        };
        self.windows.push(window);
        Ok(window)
    }
    fn retract(&mut self, window: Window) {
        let count = self.windows.len();
        self.windows.retain(|other| *other != window);
        assert_eq!(self.windows.len(), count - 1, "a window that was given");
        let mut granules = self.granules.range(window.base..window.base + window.bytes);
        assert_eq!(granules.next(), None, "nothing is committed there");
    }
}

const WINDOW: Window = Window {
    base: 0x1100_0000_0000,
    bytes: 1 << 30,
};

#[test]
fn reserved_addresses_are_aligned_and_never_committed() {
    let mut device = Device::new(WINDOW.bytes);
    let mut heap = Heap::new(WINDOW, None);
    let block = heap.allocate(3 * GRANULE, &mut device).unwrap();
    let align = 2 << 20;
    let one = heap.reserve(align, align, &mut device).unwrap();
    let two = heap.reserve(4 * align, 8 * align, &mut device).unwrap();
    assert!(one.is_multiple_of(align) && two.is_multiple_of(8 * align));
    assert_eq!(device.granules.len(), 3);
    assert!(heap.reserve(WINDOW.bytes, align, &mut device).is_err());
    heap.unreserve(one, align);
    heap.unreserve(two, 4 * align);
    heap.release(block, 3 * GRANULE, &mut device);
    assert_eq!(
        heap.reserve(WINDOW.bytes, align, &mut device),
        Ok(WINDOW.base)
    );
    assert!(device.granules.is_empty(), "what was retained made room");
}

#[test]
fn reserved_addresses_lie_apart_from_those_between_blocks() {
    let mut device = Device::new(WINDOW.bytes);
    let mut heap = Heap::new(WINDOW, Some(3));
    let bytes = 64 * GRANULE;
    let blocks = [(); 3].map(|()| heap.allocate(bytes, &mut device).unwrap());
    heap.release(blocks[1], bytes, &mut device);
    heap.trim(&mut device);
    let reserved = heap.reserve(bytes, GRANULE, &mut device).unwrap();
    assert!(
        reserved > blocks[2],
        "an engine may still have memory there"
    );
}

#[test]
fn what_does_not_fit_gets_a_window_which_goes_with_its_last_block() {
    let gib = 1 << 30;
    let mut device = Device::new(u64::MAX);
    let mut heap = Heap::new(WINDOW, Some(3));
    let small = heap.allocate(64 << 20, &mut device).unwrap();
    assert!(device.windows.is_empty() && WINDOW.contains(small, 64 << 20));
    let reserved = heap.reserve(1025 * gib, 8 * gib, &mut device).unwrap();
    assert!(reserved.is_multiple_of(8 * gib));
    let [window] = device.windows[..] else {
        panic!("one more window");
    };
    assert!(window.contains(reserved, 1025 * gib));
    assert_eq!(heap.window_of(reserved + gib), Some(window));
    assert_eq!(heap.window_of(small), Some(WINDOW));
    assert_eq!(heap.window_of(window.base + window.bytes), None);
    // Windows that lie side by side are two all the same.
    heap.unreserve(reserved, 1025 * gib);
    heap.release(small, 64 << 20, &mut device);
    heap.trim(&mut device);
    assert!(device.windows.is_empty() && !heap.retains());
    assert_eq!(
        heap.reserve(2 * gib, GRANULE, &mut device),
        Ok(WINDOW.base + 3 * gib),
        "none spans two, and it is the last of its own"
    );
    // Without room for as many again there is as much as is needed.
    device.most = 3 * gib;
    let large = 5 * gib / 2 + 5 * GRANULE;
    device.room = 0;
    assert!(heap.reserve(8 * gib, GRANULE, &mut device).is_err());
    assert_eq!(heap.rounded(large), Some(large));
    let windows = device.windows.len();
    assert!(heap.allocate(large, &mut device).is_err(), "no memory");
    heap.trim(&mut device);
    assert_eq!(device.windows.len(), windows, "nor a window");
}

#[test]
fn windows_stay_few_however_much_there_is() {
    let mut device = Device::new(u64::MAX);
    let mut heap = Heap::new(WINDOW, Some(3));
    let unit = 512 << 20;
    // Not counted by granules: there would be millions.
    let mut blocks = Vec::new();
    for _ in 0..282 {
        blocks.push(heap.reserve(unit, GRANULE, &mut device).unwrap());
    }
    blocks.sort_unstable();
    assert!(blocks.windows(2).all(|pair| pair[0] + unit <= pair[1]));
    assert!(device.windows.len() <= 8, "{}", device.windows.len());
    for block in blocks {
        heap.unreserve(block, unit);
    }
    heap.trim(&mut device);
    assert!(device.windows.is_empty());
}

#[test]
fn allocating_and_freeing_in_a_loop_commits_once() {
    let mut device = Device::new(WINDOW.bytes);
    let mut heap = Heap::new(WINDOW, None);
    for _ in 0..100 {
        let bytes = heap.rounded(4 << 20).unwrap();
        let block = heap.allocate(bytes, &mut device).unwrap();
        heap.release(block, bytes, &mut device);
    }
    assert_eq!(device.commits, 1);
    assert!(heap.retains());
    heap.trim(&mut device);
    assert!(device.granules.is_empty());
    assert!(!heap.retains());
}

#[test]
fn a_large_block_goes_back_to_the_device_at_once() {
    let mut device = Device::new(WINDOW.bytes);
    let mut heap = Heap::new(WINDOW, None);
    let bytes = heap.rounded(RETAINED + 1).unwrap();
    let block = heap.allocate(bytes, &mut device).unwrap();
    heap.release(block, bytes, &mut device);
    assert!(device.granules.is_empty());
}

#[test]
fn out_of_memory_leaks_nothing_and_retained_memory_is_used_first() {
    let mut device = Device::new(8 << 20);
    let mut heap = Heap::new(WINDOW, None);
    assert_eq!(
        heap.allocate(16 << 20, &mut device),
        Err(CUresult::ERROR_OUT_OF_MEMORY),
        "more than the device has"
    );
    let block = heap.allocate(6 << 20, &mut device).unwrap();
    heap.release(block, 6 << 20, &mut device);
    heap.allocate(8 << 20, &mut device)
        .expect("what was retained is given back for it");
    assert_eq!(
        heap.allocate(512, &mut device),
        Err(CUresult::ERROR_OUT_OF_MEMORY)
    );
    assert_eq!(heap.rounded(WINDOW.bytes + 1), None);
    assert_eq!(heap.rounded(u64::MAX), None);
}

#[test]
fn a_small_block_needs_only_a_granule_when_there_is_no_more() {
    let mut device = Device::new(GRANULE);
    let mut heap = Heap::new(WINDOW, None);
    heap.allocate(512, &mut device).unwrap();
}

#[test]
fn random_blocks_never_overlap_and_everything_comes_back() {
    let mut device = Device::new(WINDOW.bytes);
    let mut heap = Heap::new(WINDOW, None);
    let mut blocks: BTreeMap<u64, u64> = BTreeMap::new();
    let mut state = 7u64;
    let mut roll = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    for round in 0..20_000 {
        if round % 977 == 0 {
            heap.trim(&mut device);
        }
        if roll(2) == 0 && blocks.len() < 500 {
            let wanted = match roll(3) {
                0 => roll(2000),
                1 => roll(100 << 10),
                _ => roll(3 << 20),
            };
            let bytes = heap.rounded(wanted).unwrap();
            assert!(bytes >= wanted && bytes > 0);
            let start = heap.allocate(bytes, &mut device).unwrap();
            assert!(start.is_multiple_of(ALIGNMENT));
            assert!(WINDOW.contains(start, bytes));
            if let Some((&before, &length)) = blocks.range(..=start).next_back() {
                assert!(before + length <= start, "overlap");
            }
            if let Some((&after, _)) = blocks.range(start..).next() {
                assert!(start + bytes <= after, "overlap");
            }
            for granule in [start, start + bytes - 1] {
                assert!(device.granules.contains(&(granule / GRANULE * GRANULE)));
            }
            blocks.insert(start, bytes);
        } else if !blocks.is_empty() {
            let index = roll(blocks.len() as u64) as usize;
            let (&start, &bytes) = blocks.iter().nth(index).unwrap();
            blocks.remove(&start);
            heap.release(start, bytes, &mut device);
        }
    }
    for (start, bytes) in blocks {
        heap.release(start, bytes, &mut device);
    }
    heap.trim(&mut device);
    assert!(device.granules.is_empty(), "everything was given back");
    assert_eq!(heap.unused(), 0);
    assert_eq!(heap.vacant.by_start.len(), 1, "and is one range again");
}

#[test]
fn large_blocks_of_the_hosts_begin_where_huge_pages_can() {
    let mut device = Device::new(WINDOW.bytes);
    let mut heap = Heap::new(WINDOW, None);
    let bytes = 2 * HUGE_PAGE;
    let small = heap.allocate(GRANULE, &mut device).unwrap();
    let block = heap.allocate(bytes, &mut device).unwrap();
    assert!(block.is_multiple_of(HUGE_PAGE));
    for phase in [3 * GRANULE, HUGE_PAGE - GRANULE] {
        let reserved = heap.reserve_in_phase(bytes, phase, &mut device).unwrap();
        assert_eq!(reserved % HUGE_PAGE, phase);
        heap.unreserve(reserved, bytes);
    }
    let between = heap.allocate(GRANULE, &mut device).unwrap();
    assert!(
        (small..block).contains(&between),
        "what lies between is not lost"
    );
    // What is retained is taken again where it lies right.
    let commits = device.commits;
    heap.release(block, bytes, &mut device);
    assert_eq!(heap.allocate(bytes, &mut device), Ok(block));
    assert_eq!(device.commits, commits);
    // Where there is no room for it, a block lies anywhere.
    let mut heap = Heap::new(WINDOW, None);
    assert_eq!(
        heap.reserve_in_phase(WINDOW.bytes, GRANULE, &mut device),
        Ok(WINDOW.base)
    );
}

#[test]
fn blocks_are_placed_where_they_lay_and_leave_nothing() {
    let window = WINDOW;
    let mut backing = Device::new(WINDOW.bytes);
    let mut former = Heap::new(window, Some(3));
    let sizes = [
        512,
        GRANULE - 512,
        3 * GRANULE,
        1024,
        512,
        24 << 10,
        5 << 20,
        60 << 10,
    ];
    let mut blocks: Vec<(u64, u64)> = sizes
        .iter()
        .cycle()
        .take(200)
        .map(|&bytes| (former.allocate(bytes, &mut backing).unwrap(), bytes))
        .collect();
    // With holes, and in another order.
    blocks.retain(|(start, _)| !(start / ALIGNMENT).is_multiple_of(7));
    blocks.reverse();
    let mut backing = Device::new(WINDOW.bytes);
    let mut next = Heap::new(window, Some(3));
    for &(start, bytes) in &blocks {
        next.place(start, bytes, &mut backing).unwrap();
    }
    for &(start, bytes) in &blocks {
        assert!(next.place(start, bytes, &mut backing).is_err(), "taken");
    }
    for _ in 0..200 {
        let start = next.allocate(4096, &mut backing).unwrap();
        let apart = |&(at, bytes): &(u64, u64)| start + 4096 <= at || at + bytes <= start;
        assert!(blocks.iter().all(apart));
        blocks.push((start, 4096));
    }
    for (start, bytes) in blocks {
        next.release(start, bytes, &mut backing);
    }
    next.trim(&mut backing);
    assert_eq!(next.unused(), 0);
    assert_eq!(next.vacant.total, window.bytes, "all in one piece again");
    assert_eq!(next.vacant.by_start.len(), 1);
    for (start, bytes) in [
        (window.base + 1, 512),
        (window.base - 512, 512),
        (u64::MAX - 511, 512),
    ] {
        assert!(next.place(start, bytes, &mut backing).is_err());
    }
}

#[test]
fn blocks_are_placed_in_further_windows_and_such_without_any_go() {
    let gib = 1 << 30;
    let mut backing = Device::new(u64::MAX);
    let mut former = Heap::new(WINDOW, Some(3));
    let sizes = [gib / 2, 3 * gib, 512, 3 * gib / 4, 5 * gib, 24 << 10];
    let mut blocks: Vec<(u64, u64)> = sizes
        .iter()
        .map(|&bytes| (former.allocate(bytes, &mut backing).unwrap(), bytes))
        .collect();
    let windows = std::mem::take(&mut backing.windows);
    assert!(windows.len() > 1, "{windows:?}");
    blocks.reverse();
    // Of all but the last one.
    let (last, known) = windows.split_last().unwrap();
    let mut backing = Device::new(u64::MAX);
    let mut next = Heap::new(WINDOW, Some(3));
    for &window in known {
        backing.windows.push(window);
        next.add_window(window);
    }
    for &(start, bytes) in &blocks {
        let placed = next.place(start, bytes, &mut backing);
        assert_eq!(placed.is_err(), last.contains(start, 1), "{start:#x}");
    }
    for &window in known {
        let end = window.base + window.bytes;
        for (start, bytes) in [(end - gib, 2 * gib), (end, GRANULE), (end - 512, 1024)] {
            assert!(next.place(start, bytes, &mut backing).is_err());
        }
    }
    // Two windows side by side are two all the same, and one in which nothing lies is given back.
    backing.windows.push(*last);
    next.add_window(*last);
    let end = last.base;
    assert!(next.place(end - gib, 2 * gib, &mut backing).is_err());
    assert!(next.retains());
    next.trim(&mut backing);
    assert_eq!(backing.windows, known);
    for (start, bytes) in blocks {
        if !last.contains(start, 1) {
            next.release(start, bytes, &mut backing);
        }
    }
    next.trim(&mut backing);
    assert!(backing.windows.is_empty() && backing.granules.is_empty());
}

#[test]
fn blocks_whose_memory_was_not_left_are_known() {
    let mut backing = Device::new(WINDOW.bytes);
    let mut next = Heap::new(WINDOW, Some(3));
    let (left, lost) = (WINDOW.base, WINDOW.base + GRANULE);
    next.place(left, 512, &mut backing).unwrap();
    backing.left = false;
    next.place(lost, 512, &mut backing).unwrap();
    // What is in the same granule was not left either.
    next.place(lost + 4096, 512, &mut backing).unwrap();
    let found = [left, lost, lost + 4096].map(|start| next.is_lost(start, 512));
    assert_eq!(found, [false, true, true]);
}
