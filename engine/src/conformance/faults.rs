//! Faults: whom they hit, what is said of them, and whom they leave alone.

use protocol::operations::Fill;

use super::kernels;
use super::rig::{Guest, noise, params, simple_launch};
use crate::arena::GRANULE;
use crate::{CUresult, Engine};

/// The context dies with everything in it; the client's other context and its memory do not.
pub fn an_illegal_address_ends_its_context_only(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, 2 * GRANULE);
    guest.context(1, 0);
    let good = guest.module(kernels::POKE);
    let (bad, _) = guest.module_in(1, kernels::POKE);
    assert_eq!(guest.stream_in(40, 1), Ok(()));
    let illegal = CUresult::ERROR_ILLEGAL_ADDRESS;
    let nowhere = device + 3 * GRANULE;
    guest.launch(40, bad, 3, 32, &params(&[nowhere, 1]));
    assert_eq!(guest.wait(40), Err(illegal));
    let (context, code, text) = guest.observer.fault();
    assert_eq!((context, code), (1, illegal));
    assert!(
        text.contains("poke") && text.contains(&format!("{nowhere:x}")),
        "{text}"
    );
    // All that comes later in it fails, in every stream.
    for stream in [1, 40] {
        guest.write(stream, device, &[1]);
        assert_eq!(guest.wait(stream), Err(illegal));
        let later = guest.launch_result(stream, &simple_launch(bad, 1, 1), &params(&[device, 1]));
        assert_eq!(later, Err(illegal));
    }
    assert_eq!(guest.stream_in(41, 1), Err(illegal));
    guest.launch(0, good, 1, 1, &params(&[device, 77]));
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(guest.word(device), 77);
    assert_eq!(guest.observer.faults().len(), 1);
}

/// The first of a run that faults is the last that runs, and its fault the result of all.
pub fn a_fault_within_a_run_is_what_comes_of_it(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, GRANULE);
    guest.context(1, 0);
    let (poke, _) = guest.module_in(1, kernels::POKE);
    let (trap, _) = guest.module_in(1, kernels::TRAP);
    let poke = simple_launch(poke, 1, 1);
    guest.run_add(0, &poke, &params(&[device, 1]));
    guest.run_add(0, &simple_launch(trap, 1, 1), &[]);
    guest.run_add(0, &poke, &params(&[device, 2]));
    guest.run_launch(1, 0);
    guest.run_launch(1, 0);
    let code = CUresult::ERROR_LAUNCH_FAILED;
    assert_eq!(guest.wait(1), Err(code));
    let completed = guest.observer.completed(1);
    assert_eq!(completed[..], [(1, Err(code)), (2, Err(code))]);
    assert_eq!(guest.observer.faults().len(), 1);
    assert_eq!(guest.word(device), 1);
}

/// Kernels reach neither another client's memory nor anything else of the process, by writing or by
/// reading; and the neighbour works on.
pub fn a_neighbour_is_out_of_reach(engine: &dyn Engine) {
    let mut neighbour = Guest::new(engine);
    let theirs = neighbour.commit(0, GRANULE);
    let host = neighbour.commit_host();
    neighbour.upload(theirs, &noise(GRANULE, 5));
    let here = Box::new(0x5eed_u64);
    let canary = std::ptr::from_ref(&*here) as u64;
    let mut own_window = 0;
    let wild = [
        theirs,
        theirs + GRANULE - 4,
        host,
        canary,
        canary & !0xfff,
        0,
        4,
        u64::MAX - 3,
        0x7fff_ffff_fffc,
        1 << 63,
    ];
    for address in wild {
        for kernel in [kernels::POKE, kernels::PEEK] {
            let mut guest = Guest::new(engine);
            let device = guest.commit(0, GRANULE);
            own_window = device;
            let module = guest.module(kernel);
            guest.launch(0, module, 1, 32, &params(&[address, device]));
            let result = guest.wait(0);
            assert_eq!(result, Err(CUresult::ERROR_ILLEGAL_ADDRESS), "{address:#x}");
        }
    }
    assert_ne!(own_window, theirs);
    assert_eq!(*here, 0x5eed);
    assert_eq!(neighbour.download(theirs, GRANULE), noise(GRANULE, 5));
    assert!(neighbour.observer.faults().is_empty());
}

/// `trap` is CUDA_ERROR_LAUNCH_FAILED.
pub fn a_trap_is_a_launch_failure(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let module = guest.module(kernels::TRAP);
    guest.launch(0, module, 1, 1, &[]);
    assert_eq!(guest.wait(0), Err(CUresult::ERROR_LAUNCH_FAILED));
    assert_eq!(guest.observer.fault().1, CUresult::ERROR_LAUNCH_FAILED);
}

/// An address inside the client's memory but not aligned.
pub fn a_misaligned_access_is_named(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, GRANULE);
    let module = guest.module(kernels::POKE);
    guest.launch(0, module, 1, 1, &params(&[device + 2, 1]));
    assert_eq!(guest.wait(0), Err(CUresult::ERROR_MISALIGNED_ADDRESS));
    assert!(guest.observer.fault().2.contains("poke"));
}

/// What waits behind the fault, in its stream and in others, is reported once each, in order.
pub fn queued_work_fails_in_order(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, GRANULE);
    let relay = guest.module(kernels::RELAY);
    guest.stream(40);
    guest.stream(41);
    let wait_then_fault = params(&[device, 1, 64, 1]);
    guest.launch(40, relay, 1, 1, &wait_then_fault);
    guest.launch(41, relay, 1, 1, &params(&[device, 2, device + 8, 1]));
    for stream in [40, 41] {
        for event in 0..10 {
            let fill = Fill {
                to: device + 16,
                element: 4,
                width: 4,
                height: 1,
                ..Fill::default()
            };
            guest.fill(stream, &fill);
            guest.event(stream, event);
            guest.launch(stream, relay, 1, 1, &wait_then_fault);
        }
    }
    guest.write(0, device, &1_u32.to_le_bytes());
    for stream in [40, 41] {
        assert_eq!(guest.wait(stream), Err(CUresult::ERROR_ILLEGAL_ADDRESS));
        let failed = Err(CUresult::ERROR_ILLEGAL_ADDRESS);
        let expected: Vec<_> = (1..=31).map(|at| (at, failed)).collect();
        assert_eq!(guest.observer.completed(stream), expected);
    }
    assert_eq!(guest.observer.faults().len(), 1);
}

/// Several clients fault at once, over and over; each is told of its own, and none of another's.
pub fn faults_come_to_every_thread_that_makes_them(engine: &dyn Engine) {
    std::thread::scope(|scope| {
        for index in 0..6_u64 {
            scope.spawn(move || {
                for _ in 0..8 {
                    let mut guest = Guest::new(engine);
                    let device = guest.commit(0, GRANULE);
                    let module = guest.module(kernels::POKE);
                    guest.launch(0, module, 64, 32, &params(&[device, index]));
                    assert_eq!(guest.wait(0), Ok(()));
                    assert_eq!(u64::from(guest.word(device)), index);
                    if index.is_multiple_of(2) {
                        guest.launch(0, module, 64, 32, &params(&[index * 4, 1]));
                        let result = guest.wait(0);
                        assert_eq!(result, Err(CUresult::ERROR_ILLEGAL_ADDRESS));
                        assert_eq!(guest.observer.faults().len(), 1);
                    } else {
                        assert!(guest.observer.faults().is_empty());
                    }
                }
            });
        }
    });
}
