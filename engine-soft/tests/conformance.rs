//! The software GPU passes the suite that every engine must pass, with one worker, with several, and
//! with two devices.

use cuda_abi::types::CUjitInputType;
use engine::arena::GRANULE;
use engine::conformance::kernels;
use engine::conformance::rig::{Guest, params, simple_launch};
use engine::{CUresult, Share, Window};
use engine_soft::{Config, SoftEngine};
use protocol::linked_image::{self, Part};
use protocol::operations::{ContextCreate, ImageLoad, LAUNCH_COOPERATIVE, Launch};

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

/// A fatbin of one entry: PTX with so many spaces behind it, compressed to almost nothing.
fn bloated(spaces: usize) -> Vec<u8> {
    let text = b".version 7.5\n.target sm_75\n.address_size 64\n ";
    // A run of literals; what stands before once more, `spaces` times; five literals, as must be.
    let mut stored = vec![0xff, text.len() as u8 - 15];
    stored.extend(text);
    stored.extend([1, 0]);
    let long = spaces - 4 - 15;
    stored.extend(vec![255; long / 255]);
    stored.push((long % 255) as u8);
    stored.push(5 << 4);
    stored.extend(b"\n\n\n\n\n");
    let expanded = (text.len() + spaces + 5) as u64;
    let padded = stored.len().next_multiple_of(8);
    let mut entry = Vec::new();
    entry.extend([1u16.to_le_bytes(), 0x0101u16.to_le_bytes()].concat());
    entry.extend(64u32.to_le_bytes());
    entry.extend((padded as u64).to_le_bytes());
    entry.extend((stored.len() as u32).to_le_bytes());
    entry.extend(0u32.to_le_bytes());
    entry.extend([0u16.to_le_bytes(), 9u16.to_le_bytes()].concat());
    entry.extend(75u32.to_le_bytes());
    entry.extend([0; 8]);
    entry.extend(0x2000u64.to_le_bytes());
    entry.extend([0; 8]);
    entry.extend(expanded.to_le_bytes());
    entry.extend(&stored);
    entry.resize(64 + padded, 0);
    let mut bytes = 0xba55_ed50u32.to_le_bytes().to_vec();
    bytes.extend([1u16.to_le_bytes(), 16u16.to_le_bytes()].concat());
    bytes.extend((entry.len() as u64).to_le_bytes());
    bytes.extend(entry);
    bytes
}

/// What compressed parts become is counted for a whole load.
#[test]
fn images_do_not_expand_without_bound() {
    let engine = engine(1, 1);
    let mut guest = Guest::new(&engine);
    let part = bloated(12 << 20);
    let mut load = |image: u64, parts: usize| {
        let part = |_| Part {
            kind: CUjitInputType::FATBINARY.0,
            name: "part",
            bytes: &part,
        };
        let bytes = linked_image::encode((0..parts).map(part));
        let request = ImageLoad {
            image,
            ..ImageLoad::default()
        };
        let mut log = Vec::new();
        let reply = guest.client.image_load(&request, &bytes, &mut log).unwrap();
        (
            CUresult(reply.status),
            String::from_utf8_lossy(&log).into_owned(),
        )
    };
    assert_eq!(load(1, 5).0, CUresult::SUCCESS);
    let (status, log) = load(2, 6);
    assert_eq!(status, CUresult::ERROR_OUT_OF_MEMORY, "{log}");
    assert!(log.contains("more than there is room for"), "{log}");
}

/// Mappings of physical memory are the system's, of which it has so many for a process.
#[test]
fn one_client_cannot_have_all_mappings() {
    let engine = engine(1, 1);
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let system: u64 = text.trim().parse().unwrap();
    let maps = |guest: &mut Guest| {
        let memory = guest.client.physical_create(0, GRANULE).unwrap();
        let first = guest.windows[0].base + GRANULE;
        let last = (guest.windows[0].bytes / GRANULE - 2) / 2;
        (0..last.min(system))
            .map(|at| Window {
                base: first + 2 * at * GRANULE,
                bytes: GRANULE,
            })
            .map(|at| guest.client.physical_map(at, &memory, 0))
            .take_while(|mapped| match mapped {
                Ok(()) => true,
                Err(error) => {
                    assert_eq!(*error, CUresult::ERROR_OUT_OF_MEMORY);
                    false
                }
            })
            .count() as u64
    };
    let mut guests: Vec<Guest> = Vec::new();
    for _ in 0..10 {
        let mut guest = Guest::new(&engine);
        let had = maps(&mut guest);
        assert!(had <= system / 16, "{had} of {system}");
        guests.push(guest);
    }
    // Who comes now is served like the first, and what went is given back.
    let mut late = Guest::new(&engine);
    late.commit(0, GRANULE);
    drop(guests);
    assert!(maps(&mut late) > 0);
}
