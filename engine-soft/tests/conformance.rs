//! The software GPU passes the suite that every engine must pass, with one worker, with several, and
//! with two devices.

use engine_soft::{Config, SoftEngine};

fn engine(workers: usize, devices: u32) -> SoftEngine {
    let config = Config {
        workers,
        // Enough for every case, and little enough to be used up.
        memory: 512 << 20,
        ..Config::with_devices(devices)
    };
    SoftEngine::new(&config).expect("a software GPU")
}

mod one_worker {
    engine::conformance_suite!(|| crate::engine(1, 1));
}

mod four_workers {
    engine::conformance_suite!(|| crate::engine(4, 1));
}

mod two_devices {
    engine::conformance_suite!(|| crate::engine(2, 2));
}
