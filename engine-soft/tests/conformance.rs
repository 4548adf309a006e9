//! The software GPU passes the suite that every engine must pass, with one worker, with several, and
//! with two devices.

use cuda_abi::operations::{ContextCreate, LAUNCH_COOPERATIVE, Launch};
use engine::arena::GRANULE;
use engine::conformance::kernels;
use engine::conformance::rig::{Guest, params, simple_launch};
use engine::{CUresult, Share};
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

/// A context is no larger than its part of the device, nor than its client's.
#[test]
fn contexts_have_at_most_their_part() {
    let engine = engine(4, 1);
    for (percentage, share, sms) in [
        (100.0, 0, 4),
        (100.0, 500_000, 2),
        (100.0, 250_000, 1),
        (100.0, 1, 1),
        (100.0, u32::MAX, 4),
        (75.0, 500_000, 2),
        (25.0, 500_000, 1),
    ] {
        let client = Share {
            percentage,
            ..Share::default()
        };
        let mut guest = Guest::with_share(&engine, client);
        let request = ContextCreate {
            context: 0,
            device: 0,
            flags: 0,
            share,
        };
        assert_eq!(guest.client.context_create(&request, &[]), Ok(()));
        let device = guest.commit(0, GRANULE);
        let module = guest.module(kernels::MEET);
        let launch = |blocks: u32| Launch {
            flags: LAUNCH_COOPERATIVE,
            ..simple_launch(module, blocks, 1024)
        };
        let data = params(&[device, 1]);
        assert_eq!(guest.launch_result(0, &launch(sms), &data), Ok(()));
        let too_large = guest.launch_result(0, &launch(sms + 1), &data);
        assert_eq!(too_large, Err(CUresult::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE));
    }
}
