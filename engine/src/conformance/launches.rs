//! Launches: what they do and what they may ask for.

use cuda_abi::types::{CUdevice_attribute, CUfunction_attribute, CUlaunchAttributeID};
use protocol::operations::{
    CONTEXT_GREEN, ContextCreate, ContextDestroy, FunctionSet, LAUNCH_COOPERATIVE, Launch,
    ModuleUnload, OUTPUT_NONE, OUTPUT_PIECE, OUTPUT_STDOUT, OutputTake, STREAM_DEPTH,
};

use super::kernels;
use super::rig::{Guest, params, simple_launch};
use crate::arena::GRANULE;
use crate::{Activity, CUresult, Engine, clock};

/// The first program everybody writes, with threads beyond the end.
pub fn saxpy(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let count = 100_003_u32;
    let bytes = u64::from(count) * 4;
    let x = guest.commit(0, 2 * bytes + GRANULE);
    let y = x + bytes;
    let floats = |f: fn(u32) -> f32| (0..count).flat_map(move |i| f(i).to_le_bytes());
    guest.upload(x, &floats(|i| i as f32).collect::<Vec<u8>>());
    guest.upload(y, &floats(|i| 1.0 / (1 + i) as f32).collect::<Vec<u8>>());
    let module = guest.module(kernels::SAXPY);
    let mut data = count.to_le_bytes().to_vec();
    data.extend(2.5_f32.to_le_bytes());
    data.extend(params(&[x, y]));
    guest.launch(0, module, count.div_ceil(256), 256, &data);
    assert_eq!(guest.wait(0), Ok(()));
    let expected = floats(|i| 2.5_f32.mul_add(i as f32, 1.0 / (1 + i) as f32));
    assert!(guest.download(y, bytes) == expected.collect::<Vec<u8>>());
    // No thread wrote beyond the end.
    assert_eq!(guest.word(y + bytes), 0);
}

/// A green context runs the kernels of its device's primary context; another context does not.
pub fn a_green_context_runs_its_homes_kernels(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let module = guest.module(kernels::POKE);
    let word = guest.commit(0, GRANULE);
    for (context, stream, flags) in [(8, 40, CONTEXT_GREEN), (9, 41, 0)] {
        let request = ContextCreate {
            context,
            device: 0,
            flags,
            share: 500_000,
        };
        let made = guest.client.context_create(&request, &[]);
        made.expect("a context");
        guest.stream_in(stream, context).expect("a stream");
    }
    guest.launch(40, module, 1, 1, &params(&[word, 7]));
    assert_eq!(guest.wait(40), Ok(()));
    assert_eq!(guest.word(word), 7);
    let one = simple_launch(module, 1, 1);
    let refused = guest.launch_result(41, &one, &params(&[word, 8]));
    assert_eq!(refused, Err(CUresult::ERROR_INVALID_HANDLE));
    // Its end takes nothing of its home's along.
    let request = ContextDestroy { context: 8 };
    let ended = guest.client.context_destroy(&request, &[]);
    ended.expect("a context that ends");
    guest.launch(0, module, 1, 1, &params(&[word, 9]));
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(guest.word(word), 9);
}

/// Many launches one after another, of two kernels: each has its own parameters, and they go in order.
pub fn a_burst_keeps_its_order(engine: &dyn Engine) {
    // Two launches each, and no more than a stream takes, however slow the engine is.
    const COUNT: u64 = STREAM_DEPTH / 2;
    let mut guest = Guest::new(engine);
    let (poke, peek) = (guest.module(kernels::POKE), guest.module(kernels::PEEK));
    let word = guest.commit(0, GRANULE);
    let list = guest.commit(GRANULE, 4 * COUNT + GRANULE);
    for number in 0..COUNT {
        guest.launch(0, poke, 1, 1, &params(&[word, 7 * number + 1]));
        guest.launch(0, peek, 1, 1, &params(&[word, list + 4 * number]));
        // So that bursts of all lengths come together.
        if number.is_multiple_of(37) {
            guest.client.assist();
        }
    }
    assert_eq!(guest.wait(0), Ok(()));
    let words = guest.download(list, 4 * COUNT);
    for (number, found) in words.chunks_exact(4).enumerate() {
        assert_eq!(found, (7 * number as u32 + 1).to_le_bytes(), "{number}");
    }
    assert!(guest.observer.completed(0).is_sorted_by_key(|done| done.0));
}

/// Of kernels and copies it is told when the device had them: within the time in which they were asked for, of each stream one
/// after another, and of each what it is.
pub fn what_ran_is_told_of(engine: &dyn Engine) {
    const ROUNDS: u64 = 20;
    let mut guest = Guest::new(engine);
    let module = guest.module(kernels::POKE);
    let word = guest.commit(0, GRANULE);
    let began = clock::now();
    // Once more than is looked for: the last may be told of a moment after it has completed.
    for round in 0..=ROUNDS {
        guest.launch(0, module, 1, 1, &params(&[word, round]));
        assert_eq!(guest.wait(0), Ok(()));
        guest.stage(0, &[7; 64 << 10]);
        guest.upload(word, &[7; 64 << 10]);
    }
    let told = guest.end();
    let ended = clock::now();
    let spans = told.spans();
    for activity in [Activity::Kernel, Activity::Copy] {
        let of_it: Vec<_> = spans
            .iter()
            .filter(|span| span.activity == activity)
            .collect();
        assert!(of_it.len() as u64 >= ROUNDS, "{activity:?}: {of_it:?}");
        for span in of_it {
            assert_eq!(span.device, 0);
            assert_ne!(span.multiprocessors, Some(0));
            assert!(
                began <= span.began && span.began <= span.ended && span.ended <= ended,
                "{began} {span:?} {ended}"
            );
        }
    }
    // One operation after another, since each was waited for.
    let orders = spans
        .windows(2)
        .all(|pair| pair[0].began <= pair[1].began && pair[0].at.sequence <= pair[1].at.sequence);
    assert!(orders, "{spans:?}");
}

/// Of launches that end together each is told of once or more, one after another, when the observer wants that.
pub fn each_of_a_burst_is_told_of(engine: &dyn Engine) {
    const BURST: u64 = 100;
    let mut guest = Guest::new(engine);
    guest.observer.want_each_span();
    let module = guest.module(kernels::POKE);
    let word = guest.commit(0, GRANULE);
    for round in 0..BURST {
        guest.launch(0, module, 1, 1, &params(&[word, round]));
    }
    assert_eq!(guest.wait(0), Ok(()));
    // The last may be told of a moment after it has completed.
    guest.launch(0, module, 1, 1, &params(&[word, BURST]));
    assert_eq!(guest.wait(0), Ok(()));
    let spans = guest.end().spans();
    let mut told: Vec<u64> = spans.iter().map(|span| span.at.sequence).collect();
    told.dedup();
    assert!(
        told.len() as u64 >= BURST && told.is_sorted(),
        "{} of {BURST}: {told:?}",
        told.len()
    );
    let in_order = spans.windows(2).all(|pair| pair[0].began <= pair[1].began);
    assert!(in_order, "{spans:?}");
}

/// Grids and blocks of three dimensions: nothing left out, nothing twice.
pub fn every_block_and_thread_runs_once(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let module = guest.module(kernels::COUNT);
    let most = 1 << 20;
    let device = guest.commit(0, 4 * most);
    for (grid, block) in [
        ([1, 1, 1], [1, 1, 1]),
        ([1, 1, 1], [1024, 1, 1]),
        ([3, 5, 7], [5, 3, 2]),
        ([1000, 1, 1], [33, 1, 1]),
        ([2, 3, 1], [4, 4, 64]),
        ([1, 9, 11], [1, 31, 1]),
    ] {
        let threads: u32 = grid.iter().chain(&block).product();
        assert!(u64::from(threads) < most);
        let zero = protocol::operations::Fill {
            to: device,
            element: 4,
            width: most,
            height: 1,
            ..Default::default()
        };
        guest.fill(0, &zero);
        let request = Launch {
            grid,
            block,
            ..simple_launch(module, 1, 1)
        };
        let result = guest.launch_result(0, &request, &params(&[device]));
        assert_eq!(result, Ok(()), "{grid:?} {block:?}");
        let bytes = u64::from(threads) * 4;
        let ones = 1_u32.to_le_bytes().repeat(threads as usize);
        assert!(guest.download(device, bytes) == ones, "{grid:?} {block:?}");
        assert_eq!(guest.word(device + bytes), 0);
    }
}

/// Dimensions, parameters and handles that make no sense, each with CUDA's code, and no harm done.
pub fn launches_that_ask_too_much_are_refused(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let module = guest.module(kernels::COUNT);
    let device = guest.commit(0, GRANULE);
    let data = params(&[device]);
    let good = simple_launch(module, 1, 1);
    let invalid = CUresult::ERROR_INVALID_VALUE;
    let handle = CUresult::ERROR_INVALID_HANDLE;
    let wrong = [
        (
            Launch {
                grid: [0, 1, 1],
                ..good
            },
            invalid,
        ),
        (
            Launch {
                grid: [1, 1, 0],
                ..good
            },
            invalid,
        ),
        (
            Launch {
                grid: [1, 65_536, 1],
                ..good
            },
            invalid,
        ),
        (
            Launch {
                grid: [u32::MAX, 1, 1],
                ..good
            },
            invalid,
        ),
        (
            Launch {
                block: [0, 1, 1],
                ..good
            },
            invalid,
        ),
        (
            Launch {
                block: [1, 1, 65],
                ..good
            },
            invalid,
        ),
        (
            Launch {
                block: [1025, 1, 1],
                ..good
            },
            invalid,
        ),
        (
            Launch {
                block: [32, 33, 1],
                ..good
            },
            invalid,
        ),
        (
            Launch {
                block: [u32::MAX; 3],
                ..good
            },
            invalid,
        ),
        (
            Launch {
                shared: 1 << 20,
                ..good
            },
            invalid,
        ),
        (
            Launch {
                shared: u32::MAX,
                ..good
            },
            invalid,
        ),
        (
            Launch {
                flags: 0x80,
                ..good
            },
            invalid,
        ),
        (
            Launch {
                attributes: 1,
                ..good
            },
            invalid,
        ),
        (
            Launch {
                attributes: u32::MAX,
                ..good
            },
            invalid,
        ),
        (Launch { kernel: 1, ..good }, handle),
        (Launch { module: 77, ..good }, handle),
    ];
    for (request, code) in wrong {
        let result = guest.launch_result(0, &request, &data);
        assert_eq!(result, Err(code), "{request:?}");
    }
    for data in [&data[..0], &data[..7], &[0; 9]] {
        assert_eq!(
            guest.launch_result(0, &good, data),
            Err(invalid),
            "{data:?}"
        );
    }
    guest.context(1, 0);
    // A kernel of context 0 in a stream of context 1.
    assert_eq!(guest.launch_result(1, &good, &data), Err(handle));
    assert_eq!(guest.launch_result(0, &good, &data), Ok(()));
    assert_eq!(guest.word(device), 1);
    assert!(guest.observer.faults().is_empty());
}

/// What an attribute asks for is done, is a hint, or is refused.
pub fn attributes_are_never_dropped(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let module = guest.module(kernels::COUNT);
    let device = guest.commit(0, GRANULE);
    let one = |id: u32, value: [u32; 3]| {
        let mut bytes = vec![0; 72];
        bytes[..4].copy_from_slice(&id.to_le_bytes());
        for (index, word) in value.into_iter().enumerate() {
            let at = 8 + 4 * index;
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    };
    type Id = CUlaunchAttributeID;
    let mut launches = 0;
    let mut launch = |guest: &mut Guest, attributes: &[Vec<u8>]| {
        let request = Launch {
            attributes: attributes.len() as u32,
            ..simple_launch(module, 1, 1)
        };
        let data = [attributes.concat(), params(&[device])].concat();
        let result = guest.launch_result(0, &request, &data);
        launches += u32::from(result.is_ok());
        (result, launches)
    };
    let taken = [
        one(Id::IGNORE.0, [9; 3]),
        one(Id::CLUSTER_DIMENSION.0, [1; 3]),
        one(Id::PRIORITY.0, [0; 3]),
        one(Id::COOPERATIVE.0, [1, 0, 0]),
        one(Id::PROGRAMMATIC_STREAM_SERIALIZATION.0, [1, 0, 0]),
        one(Id::MEM_SYNC_DOMAIN.0, [0; 3]),
    ];
    for attribute in &taken {
        assert_eq!(
            launch(&mut guest, std::slice::from_ref(attribute)).0,
            Ok(())
        );
    }
    assert_eq!(launch(&mut guest, &taken).0, Ok(()));
    let refused = [
        one(Id::PROGRAMMATIC_EVENT.0, [0; 3]),
        one(Id::LAUNCH_COMPLETION_EVENT.0, [0; 3]),
        one(Id::DEVICE_UPDATABLE_KERNEL_NODE.0, [1, 0, 0]),
        one(4711, [0; 3]),
    ];
    let not_supported = Err(CUresult::ERROR_NOT_SUPPORTED);
    for attribute in refused {
        let both = [taken[0].clone(), attribute];
        assert_eq!(launch(&mut guest, &both).0, not_supported, "{both:?}");
    }
    let clusters = CUdevice_attribute::CLUSTER_LAUNCH.0;
    // The grid is of one block.
    let cluster = one(Id::CLUSTER_DIMENSION.0, [2, 1, 1]);
    let refused = match engine.devices()[0].attribute(clusters) {
        Some(0) => CUresult::ERROR_NOT_SUPPORTED,
        _ => CUresult::ERROR_INVALID_CLUSTER_SIZE,
    };
    assert_eq!(launch(&mut guest, &[cluster]).0, Err(refused));
    assert_eq!(guest.word(device), launches);
}

/// Unloading takes effect once the work before it is done.
pub fn an_unloaded_module_is_kept_for_its_grids(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, GRANULE);
    let relay = guest.module(kernels::RELAY);
    guest.stream(40);
    guest.launch(40, relay, 1, 1, &params(&[device, 1, device + 4, 2]));
    guest.launch(40, relay, 1, 1, &params(&[device, 1, device + 8, 3]));
    let unload = ModuleUnload { module: relay };
    assert_eq!(guest.client.module_unload(&unload, &[]), Ok(()));
    let request = simple_launch(relay, 1, 1);
    let refused = guest.launch_result(0, &request, &params(&[device, 0, device, 0]));
    assert_eq!(refused, Err(CUresult::ERROR_INVALID_HANDLE));
    guest.write(0, device, &1_u32.to_le_bytes());
    assert_eq!(guest.wait(40), Ok(()));
    assert_eq!([guest.word(device + 4), guest.word(device + 8)], [2, 3]);
}

/// Dynamic shared memory: the default limit, the one that can be asked for, and that it is there.
pub fn shared_memory_beyond_the_default_must_be_asked_for(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let module = guest.module(kernels::SHARED);
    let device = guest.commit(0, GRANULE);
    let facts = &engine.devices()[0];
    let fact = |attribute: CUdevice_attribute| {
        facts
            .attribute(attribute.0)
            .unwrap_or_default()
            .unsigned_abs()
    };
    let plain = fact(CUdevice_attribute::MAX_SHARED_MEMORY_PER_BLOCK);
    let most = fact(CUdevice_attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    assert!(plain >= 48 << 10 && most >= plain);
    let launch = |guest: &mut Guest, shared: u32| {
        let request = Launch {
            shared,
            ..simple_launch(module, 1, 1)
        };
        let words = shared / 4;
        let result = guest.launch_result(0, &request, &params(&[device, words.into()]));
        if result.is_ok() {
            assert_eq!(guest.word(device), words * (words + 1) / 2);
        }
        result
    };
    let set = |guest: &mut Guest, attribute: CUfunction_attribute, value: u32| {
        let request = FunctionSet {
            module,
            kernel: 0,
            attribute: attribute.0,
            value: value.cast_signed(),
        };
        guest.client.function_set(&request, &[])
    };
    assert_eq!(launch(&mut guest, plain), Ok(()));
    let more = CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
    if most > plain {
        assert!(launch(&mut guest, most).is_err());
        assert_eq!(set(&mut guest, more, most), Ok(()));
        assert_eq!(launch(&mut guest, most), Ok(()));
    }
    let invalid = Err(CUresult::ERROR_INVALID_VALUE);
    assert_eq!(set(&mut guest, more, most + 1), invalid);
    assert_eq!(set(&mut guest, more, u32::MAX), invalid);
    let carveout = CUfunction_attribute::PREFERRED_SHARED_MEMORY_CARVEOUT;
    assert_eq!(set(&mut guest, carveout, 50), Ok(()));
    assert_eq!(set(&mut guest, carveout, 101), invalid);
    assert_eq!(set(&mut guest, CUfunction_attribute::NUM_REGS, 1), invalid);
}

/// As many blocks as the device holds meet; more are refused.
pub fn a_cooperative_grid_meets_at_a_barrier(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let facts = &engine.devices()[0];
    if facts.attribute(CUdevice_attribute::COOPERATIVE_LAUNCH.0) != Some(1) {
        return;
    }
    let sms = facts.attribute(CUdevice_attribute::MULTIPROCESSOR_COUNT.0);
    let sms = sms.expect("a count of SMs").unsigned_abs();
    let module = guest.module(kernels::MEET);
    let device = guest.commit(0, GRANULE);
    let launch = |blocks: u32| Launch {
        flags: LAUNCH_COOPERATIVE,
        ..simple_launch(module, blocks, 1)
    };
    let rounds = 3;
    let data = params(&[device, rounds]);
    assert_eq!(guest.launch_result(0, &launch(4 * sms), &data), Ok(()));
    assert_eq!(guest.word(device), 4 * sms * rounds as u32);
    let too_large = guest.launch_result(0, &launch(sms * 1000), &data);
    assert_eq!(too_large, Err(CUresult::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE));
}

/// What kernels print comes to their client, and to no other, when they are done.
pub fn what_kernels_print_comes_to_their_client(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let mut other = Guest::new(engine);
    let modules = [guest.module(kernels::PRINT), guest.module(kernels::PRINT)];
    let idle = other.module(kernels::PRINT);
    let printed = |guest: &mut Guest| {
        let mut all = String::new();
        loop {
            let mut text = Vec::new();
            let request = OutputTake { reserved: 0 };
            let reply = guest.client.output_take(&request, &[], &mut text);
            match reply.expect("text or none").sink {
                OUTPUT_NONE => return all,
                sink => assert_eq!(sink, OUTPUT_STDOUT),
            }
            assert!(text.len() <= OUTPUT_PIECE);
            all += &String::from_utf8(text).expect("text");
        }
    };
    for module in modules {
        guest.launch(0, module, 3, 64, &[]);
        assert_eq!(guest.wait(0), Ok(()));
        assert!(guest.observer.output_ready_count() > 0);
        assert_eq!(printed(&mut guest), "number 7\n".repeat(192));
    }
    assert_eq!(other.observer.output_ready_count(), 0);
    assert_eq!(printed(&mut other), "");
    other.launch(0, idle, 1, 1, &[]);
    assert_eq!(other.wait(0), Ok(()));
    assert_eq!(printed(&mut other), "number 7\n");
}
