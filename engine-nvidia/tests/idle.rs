//! An engine without work. In a process of its own: it looks at the time of this process' threads.

mod common;

use std::time::Duration;

use common::Fake;
use engine::arena::GRANULE;
use engine::conformance::rig::Guest;

#[test]
fn an_idle_engine_uses_no_processor() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    let mut guest = Guest::new(&engine);
    let device = guest.commit(0, GRANULE);
    guest.write(0, device, &[1]);
    assert_eq!(guest.wait(0), Ok(()));
    let ticks = || {
        // The poller's user and system time, in ticks of the clock.
        std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).ok())
            .filter(|stat| stat.contains("(nvidia-poller)"))
            .map(|stat| {
                let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split(' ').collect();
                fields[12].parse::<u64>().unwrap() + fields[13].parse::<u64>().unwrap()
            })
            .sum::<u64>()
    };
    std::thread::sleep(Duration::from_millis(20));
    let before = ticks();
    std::thread::sleep(Duration::from_millis(500));
    let used = ticks() - before;
    assert!(used < 5, "{used} ticks");
}
