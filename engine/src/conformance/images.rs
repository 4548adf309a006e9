//! Images and modules.

use std::sync::Arc;
use std::time::Instant;

use protocol::operations::{ImageUnload, ModuleLoad, ModuleUnload};

use super::kernels;
use super::rig::{Guest, PATIENCE, noise, params};
use crate::arena::GRANULE;
use crate::{Bound, CUresult, Engine};

/// The descriptor has the kernels, their parameters' places, and the variables.
pub fn an_image_describes_itself(engine: &dyn Engine) {
    let mut first = Guest::new(engine);
    let (status, descriptor, _) = first.image(1, kernels::SAXPY.as_bytes());
    assert_eq!(status, CUresult::SUCCESS);
    assert!(descriptor.variables.is_empty());
    let [kernel] = &descriptor.kernels[..] else {
        panic!("one kernel, not {:?}", descriptor.kernels);
    };
    assert_eq!(kernel.name, "saxpy");
    assert_eq!(kernel.params, [(0, 4), (4, 4), (8, 8), (16, 8)]);
    assert!(kernel.max_threads >= 32);

    let (status, descriptor, _) = first.image(2, kernels::VARIABLES.as_bytes());
    assert_eq!(status, CUresult::SUCCESS);
    let variables: Vec<_> = descriptor
        .variables
        .iter()
        .map(|variable| (&variable.name[..], variable.bytes))
        .collect();
    let expected = [("table", 16), ("pointer", 8), ("seven", 4), ("room", 4096)];
    assert_eq!(variables, expected);

    // Another client gets the same, whether the engine kept it or not.
    let mut second = Guest::new(engine);
    let again = second.image(1, kernels::VARIABLES.as_bytes());
    assert_eq!((again.0, again.1), (CUresult::SUCCESS, descriptor));
    // A NUL may end the text.
    let terminated = [kernels::SAXPY.as_bytes(), b"\0rest"].concat();
    assert_eq!(second.image(2, &terminated).0, CUresult::SUCCESS);
    let unload = |guest: &mut Guest, image| guest.client.image_unload(&ImageUnload { image }, &[]);
    assert_eq!(unload(&mut second, 1), Ok(()));
    assert_eq!(unload(&mut second, 1), Err(CUresult::ERROR_INVALID_HANDLE));
    assert_eq!(
        second.image(1, kernels::SAXPY.as_bytes()).0,
        CUresult::SUCCESS
    );
}

/// Bytes of no known form, and no bytes.
pub fn what_is_no_image_is_refused(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    for bytes in [&b""[..], b"\0", b"garbage", b"\x7fELF", &[0xff; 1000]] {
        let (status, descriptor, log) = guest.image(1, bytes);
        assert_eq!(status, CUresult::ERROR_INVALID_IMAGE, "{bytes:?}");
        assert!(descriptor.kernels.is_empty());
        assert!(!log.is_empty());
    }
    // A fatbin's head without what it announces.
    let mut fatbin = 0xba55_ed50_u32.to_le_bytes().to_vec();
    fatbin.extend([1, 0, 16, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    assert_eq!(guest.image(1, &fatbin).0, CUresult::ERROR_INVALID_IMAGE);
    // A refused image is not there.
    let request = ModuleLoad {
        module: 1,
        image: 1,
        ..ModuleLoad::default()
    };
    let refused = guest.client.module_load(&request, &[], &mut Vec::new());
    assert_eq!(refused, Err(CUresult::ERROR_INVALID_HANDLE));
}

/// Wrong PTX gives CUDA_ERROR_INVALID_PTX and a log with the line, and damages nothing.
pub fn wrong_ptx_is_refused_with_its_line(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    for (ptx, line) in [(kernels::BROKEN, "6"), (kernels::UNKNOWN, "5")] {
        let (status, _, log) = guest.image(1, ptx.as_bytes());
        assert_eq!(status, CUresult::ERROR_INVALID_PTX, "{log}");
        assert!(log.contains(line), "{log}");
    }
    assert!(
        guest
            .image(2, kernels::UNKNOWN.as_bytes())
            .2
            .contains("frobnicate")
    );
    // Every truncation of a good text is refused or a shorter good text.
    for end in 0..kernels::COUNT.len() {
        let (status, ..) = guest.image(3, &kernels::COUNT.as_bytes()[..end]);
        if status == CUresult::SUCCESS {
            let unloaded = guest.client.image_unload(&ImageUnload { image: 3 }, &[]);
            assert_eq!(unloaded, Ok(()));
        }
    }
    assert_eq!(
        guest.image(4, kernels::COUNT.as_bytes()).0,
        CUresult::SUCCESS
    );
}

/// Initial values, the address of one variable in another, and zeroes.
pub fn variables_have_their_first_values(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let (module, addresses) = guest.module_in(0, kernels::VARIABLES);
    let [table, pointer, seven, room] = addresses[..] else {
        panic!("four addresses, not {addresses:x?}");
    };
    let words: Vec<u8> = [11_u32, 22, 33, 0]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    assert_eq!(guest.download(table, 16), words);
    assert_eq!(guest.download(pointer, 8), table.to_le_bytes());
    assert_eq!(guest.word(seven), 7);
    assert_eq!(guest.download(room, 4096), vec![0; 4096]);
    let out = guest.commit(0, GRANULE);
    guest.launch(0, module, 1, 1, &params(&[out]));
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!([guest.word(out), guest.word(out + 4)], [22, 7]);
    // The kernel's change is seen from outside.
    assert_eq!(guest.word(table + 8), 34);
}

/// Two modules of one image do not share variables.
pub fn modules_have_variables_of_their_own(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let out = guest.commit(0, GRANULE);
    let (first, addresses) = guest.module_in(0, kernels::VARIABLES);
    for round in 1..=3 {
        guest.launch(0, first, 1, 1, &params(&[out]));
        assert_eq!(guest.wait(0), Ok(()));
        assert_eq!(guest.word(out + 8), 33 + round);
    }
    let (second, others) = guest.module_in(0, kernels::VARIABLES);
    assert!(addresses.iter().all(|address| !others.contains(address)));
    guest.launch(0, second, 1, 1, &params(&[out]));
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(guest.word(out + 8), 34);
    assert_eq!(guest.word(addresses[0] + 8), 36);
    let unload = ModuleUnload { module: first };
    assert_eq!(guest.client.module_unload(&unload, &[]), Ok(()));
    let gone = guest.client.module_unload(&unload, &[]);
    assert_eq!(gone, Err(CUresult::ERROR_INVALID_HANDLE));
}

/// Memory that was used before holds zeroes when a variable without a value comes to lie in it.
pub fn variables_lie_in_cleared_memory(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let place = guest.observer.variables_begin() - guest.windows[0].base;
    let bytes = kernels::LARGE_BYTES + 8 * GRANULE;
    let base = guest.commit(place, bytes);
    guest.upload(base, &noise(bytes.next_multiple_of(GRANULE), 9));
    let (_, addresses) = guest.module_in(0, kernels::LARGE);
    let [large, odd] = addresses[..] else {
        panic!("two addresses, not {addresses:x?}");
    };
    assert!(guest.download(large, kernels::LARGE_BYTES) == vec![0; kernels::LARGE_BYTES as usize]);
    assert!(guest.download(odd, 70_001) == vec![0; 70_001]);
    if !guest.windows[0].contains(large, kernels::LARGE_BYTES) {
        return; // A driver places them where it likes.
    }
    assert_eq!(large, base);
    // What lies behind them is nobody's business.
    let behind = odd + 70_001 - base;
    let before = noise(bytes.next_multiple_of(GRANULE), 9);
    let rest = &before[behind as usize..][..1000];
    assert_eq!(guest.download(base + behind, 1000), rest);
}

/// Managed variables, where an engine has them, are seen by the host as by a kernel; and alignments
/// beyond that of memory hold.
pub fn managed_variables_are_the_hosts_too(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let (_, described, _) = guest.image(100, kernels::MANAGED.as_bytes());
    if !described.variables.iter().any(|variable| variable.managed) {
        return; // The engine does not claim to have any.
    }
    let (module, addresses) = guest.module_in(0, kernels::MANAGED);
    // Engines tell of them in any order.
    let address = |name: &str| {
        let mut variables = described.variables.iter();
        let place = variables.position(|variable| variable.name.as_bytes() == name.as_bytes());
        addresses[place.expect(name)]
    };
    let [counter, room, aligned] = ["counter", "room", "aligned"].map(address);
    assert!(counter.is_multiple_of(4096) && room.is_multiple_of(1024));
    // Where a driver places what is not managed is its own affair.
    assert!(!guest.windows[0].contains(aligned, 1) || aligned.is_multiple_of(4096));
    assert!(guest.host.contains(counter, 4) && guest.host.contains(room, 2048));
    assert_eq!(guest.host_bytes(counter, 4), 3_u32.to_le_bytes());
    assert_eq!(guest.host_bytes(room, 2048), vec![0; 2048]);
    guest.set_host(counter, &40_u32.to_le_bytes());
    guest.set_host(room + 1024, &2_u32.to_le_bytes());
    guest.launch(0, module, 1, 1, &[]);
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(guest.host_bytes(room + 1024, 4), 42_u32.to_le_bytes());
    assert_eq!(guest.word(aligned), 5);
}

/// What a server holds for an image is taken of its first client's, once, and is given back with the last.
pub fn an_image_that_several_have_counts_once(engine: &dyn Engine) {
    let all = Arc::new(Bound::new(64 << 20));
    let client = || Guest::with_held(engine, Arc::new(Bound::within(&all, 32 << 20)));
    let mut guests = [(); 3].map(|()| client());
    let before = all.taken();
    guests[0].module(kernels::SAXPY);
    let with_it = all.taken();
    assert!(with_it > before, "it counts");
    for guest in &mut guests[1..] {
        guest.module(kernels::SAXPY);
    }
    assert_eq!(all.taken(), with_it, "once");
    let [first, second, third] = guests;
    first.end();
    drop(second);
    let left = all.taken();
    assert!(left > before, "who has it still keeps it");
    drop(third);
    let deadline = Instant::now() + PATIENCE;
    while all.taken() != 0 {
        assert!(Instant::now() < deadline, "it is not given back");
        std::thread::yield_now();
    }
    // Who may not hold it does not get it.
    let mut none = Guest::with_held(engine, Arc::new(Bound::new(16)));
    let (status, _, log) = none.image(1, kernels::SAXPY.as_bytes());
    assert_eq!(status, CUresult::ERROR_OUT_OF_MEMORY, "{log}");
}
