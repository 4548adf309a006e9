//! Arrays, textures and surfaces; images of several parts.

use cuda_abi::types::{
    CU_TRSF_NORMALIZED_COORDINATES, CU_TRSF_READ_AS_INTEGER, CUDA_ARRAY3D_SURFACE_LDST,
    CUDA_TEXTURE_DESC, CUaddress_mode, CUarray_format, CUjitInputType,
};
use protocol::linked_image::{self, Part};
use protocol::operations::{
    ArrayCopy, ArrayCreate, ArrayDestroy, IMAGE_PART, ImageLoad, ModuleLoad, Space, TextureCreate,
    TextureDestroy,
};
use protocol::textures::{Resource, Spec};

use super::kernels;
use super::rig::{Guest, noise, params};
use crate::arena::GRANULE;
use crate::{CUresult, Engine};

/// An array of unsigned integers.
fn integers(array: u64, width: u64, height: u64, depth: u64) -> ArrayCreate {
    ArrayCreate {
        array,
        context: 0,
        width,
        height,
        depth,
        format: CUarray_format::UNSIGNED_INT32.0,
        channels: 1,
        flags: CUDA_ARRAY3D_SURFACE_LDST,
        levels: 1,
    }
}

fn create(guest: &mut Guest, request: &ArrayCreate) -> Result<u64, CUresult> {
    let made = guest.client.array_create(request, &[], &mut Vec::new());
    made.map(|reply| reply.bytes)
}

fn copy(guest: &mut Guest, request: &ArrayCopy) -> Result<(), CUresult> {
    let at = guest.at(0);
    let result = guest.client.array_copy(at, request, &[]);
    guest.taken(at, result)?;
    guest.wait(0)
}

/// A copy of all of an array of words out of memory without gaps.
fn whole(array: u64, from: u64, sides: [u64; 3]) -> ArrayCopy {
    ArrayCopy {
        to_space: Space::Array as u32,
        to: array,
        from_space: Space::Unified as u32,
        from,
        from_pitch: sides[0] * 4,
        from_slice: sides[0] * sides[1] * 4,
        width: sides[0] * 4,
        height: sides[1],
        depth: sides[2],
        ..ArrayCopy::default()
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect()
}

/// What goes into an array comes out, boxes with offsets too, and what was never written is zero.
pub fn boxes_go_in_and_out(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let (width, height, depth) = (24, 7, 3);
    let bytes = create(&mut guest, &integers(9, width, height, depth)).expect("an array");
    assert!(bytes >= width * height * depth * 4);
    let source = guest.commit(0, GRANULE);
    let target = guest.commit(GRANULE, GRANULE);
    guest.upload(source, &noise(GRANULE, 5));
    let content = words(&guest.download(source, 10 * 4 * 2 * 4));
    // A box of 10 × 4 × 2 words at (3, 2, 1).
    let into = ArrayCopy {
        to_x: 12,
        to_y: 2,
        to_z: 1,
        ..whole(9, source, [10, 4, 2])
    };
    assert_eq!(copy(&mut guest, &into), Ok(()));
    let out = ArrayCopy {
        to_space: Space::Unified as u32,
        to: target,
        to_pitch: width * 4,
        to_slice: width * height * 4,
        from_space: Space::Array as u32,
        from: 9,
        width: width * 4,
        height,
        depth,
        ..ArrayCopy::default()
    };
    assert_eq!(copy(&mut guest, &out), Ok(()));
    let seen = words(&guest.download(target, width * height * depth * 4));
    for z in 0..depth {
        for y in 0..height {
            for x in 0..width {
                let inside = (3..13).contains(&x) && (2..6).contains(&y) && (1..3).contains(&z);
                let expected = if inside {
                    content[(((z - 1) * 4 + y - 2) * 10 + x - 3) as usize]
                } else {
                    0
                };
                let at = ((z * height + y) * width + x) as usize;
                assert_eq!(seen[at], expected, "at {x}, {y}, {z}");
            }
        }
    }
}

/// Boxes beyond an array's sides, handles that are not there, and shapes that make no sense.
pub fn arrays_that_make_no_sense_are_refused(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let invalid = Err(CUresult::ERROR_INVALID_VALUE);
    create(&mut guest, &integers(1, 8, 8, 0)).expect("an array");
    assert_eq!(create(&mut guest, &integers(1, 8, 8, 0)), invalid);
    assert_eq!(create(&mut guest, &integers(2, 0, 8, 0)), invalid);
    assert_eq!(
        create(&mut guest, &integers(2, u64::MAX, u64::MAX, 1)),
        invalid
    );
    let three = ArrayCreate {
        channels: 3,
        ..integers(2, 8, 8, 0)
    };
    assert_eq!(create(&mut guest, &three), invalid);
    let elsewhere = ArrayCreate {
        context: 5,
        ..integers(2, 8, 8, 0)
    };
    let made = create(&mut guest, &elsewhere);
    assert_eq!(made, Err(CUresult::ERROR_INVALID_CONTEXT));

    let source = guest.commit(0, GRANULE);
    let fits = whole(1, source, [8, 8, 1]);
    assert_eq!(copy(&mut guest, &fits), Ok(()));
    for beyond in [
        ArrayCopy { to_x: 4, ..fits },
        ArrayCopy { to_y: 1, ..fits },
        ArrayCopy { to_z: 1, ..fits },
        ArrayCopy {
            to_level: 1,
            ..fits
        },
        ArrayCopy {
            to_x: u64::MAX - 3,
            ..fits
        },
        ArrayCopy { depth: 2, ..fits },
        ArrayCopy {
            from: source + GRANULE,
            ..fits
        },
        ArrayCopy {
            from_space: 9,
            ..fits
        },
    ] {
        let refused = Err(CUresult::ERROR_INVALID_VALUE);
        assert_eq!(copy(&mut guest, &beyond), refused, "{beyond:?}");
    }
    let absent = ArrayCopy { to: 77, ..fits };
    let result = copy(&mut guest, &absent);
    assert_eq!(result, Err(CUresult::ERROR_INVALID_HANDLE));
    let destroy = ArrayDestroy { array: 1 };
    assert_eq!(guest.client.array_destroy(&destroy, &[]), Ok(()));
    let again = guest.client.array_destroy(&destroy, &[]);
    assert_eq!(again, Err(CUresult::ERROR_INVALID_HANDLE));
}

fn object(guest: &mut Guest, spec: &Spec, surface: bool) -> Result<u64, CUresult> {
    let request = TextureCreate {
        context: 0,
        surface: surface.into(),
    };
    let made = guest
        .client
        .texture_create(&request, &spec.encode(), &mut Vec::new());
    made.map(|reply| reply.object)
}

/// A kernel reads a texture of an array, whose edge it goes over, and writes a surface.
pub fn kernels_read_textures_and_write_surfaces(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let (module, _) = guest.module_in(0, kernels::TEXTURE);
    create(&mut guest, &integers(1, 32, 0, 0)).expect("an array");
    create(&mut guest, &integers(2, 32, 0, 0)).expect("an array");
    let source = guest.commit(0, GRANULE);
    let out = guest.commit(GRANULE, GRANULE);
    guest.upload(source, &noise(GRANULE, 3));
    let content = words(&guest.download(source, 128));
    assert_eq!(copy(&mut guest, &whole(1, source, [32, 1, 1])), Ok(()));
    let sampler = CUDA_TEXTURE_DESC {
        addressMode: [CUaddress_mode::CLAMP; 3],
        flags: CU_TRSF_READ_AS_INTEGER,
        ..CUDA_TEXTURE_DESC::default()
    };
    let spec = |array, sampler| Spec {
        resource: Resource::Array(array),
        level: 0,
        sampler,
        view: None,
    };
    let texture = object(&mut guest, &spec(1, Some(sampler)), false).expect("an object");
    let surface = object(&mut guest, &spec(2, None), true).expect("an object");
    guest.launch(0, module, 1, 32, &params(&[texture, surface]));
    let back = ArrayCopy {
        to_space: Space::Unified as u32,
        to: out,
        from_space: Space::Array as u32,
        from: 2,
        width: 128,
        height: 1,
        depth: 1,
        ..ArrayCopy::default()
    };
    assert_eq!(copy(&mut guest, &back), Ok(()));
    let seen = words(&guest.download(out, 128));
    for (lane, value) in seen.iter().enumerate() {
        // Each lane reads four texels further on; the last four read the last one.
        assert_eq!(*value, content[(lane + 4).min(31)], "lane {lane}");
    }
    for (object, surface) in [(texture, 0), (surface, 1)] {
        let destroy = TextureDestroy {
            object,
            surface,
            context: 0,
        };
        assert_eq!(guest.client.texture_destroy(&destroy, &[]), Ok(()));
    }
}

/// Descriptions that make no sense, foreign arrays, and bytes that are no description.
pub fn textures_that_make_no_sense_are_refused(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    create(&mut guest, &integers(1, 32, 0, 0)).expect("an array");
    let sampler = CUDA_TEXTURE_DESC {
        flags: CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES,
        ..CUDA_TEXTURE_DESC::default()
    };
    let good = Spec {
        resource: Resource::Array(1),
        level: 0,
        sampler: Some(sampler),
        view: None,
    };
    assert!(object(&mut guest, &good, false).is_ok());
    let mut neighbour = Guest::new(engine);
    let foreign = object(&mut neighbour, &good, false);
    assert_eq!(foreign, Err(CUresult::ERROR_INVALID_HANDLE));
    let linear = Spec {
        resource: Resource::Linear {
            address: guest.windows[0].base,
            format: CUarray_format::FLOAT,
            channels: 1,
            bytes: 64,
        },
        ..good
    };
    // A surface is made of an array.
    assert!(object(&mut guest, &linear, true).is_err());
    for bad in [
        Spec { level: 3, ..good },
        Spec {
            sampler: None,
            ..good
        },
    ] {
        assert!(object(&mut guest, &bad, false).is_err(), "{bad:?}");
    }
    let bytes = good.encode();
    for end in 0..bytes.len() {
        let request = TextureCreate {
            context: 0,
            surface: 0,
        };
        let cut = guest
            .client
            .texture_create(&request, &bytes[..end], &mut Vec::new());
        assert_eq!(cut, Err(CUresult::ERROR_INVALID_VALUE));
    }
}

/// An array that never came back would leave its bytes taken.
pub fn arrays_give_their_memory_back(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let before = guest.client.free_memory(0);
    for round in 0..4 {
        create(&mut guest, &integers(round, 4096, 4096, 0)).expect("an array");
    }
    assert!(guest.client.free_memory(0) < before);
    for array in 0..2 {
        let destroy = ArrayDestroy { array };
        assert_eq!(guest.client.array_destroy(&destroy, &[]), Ok(()));
    }
    // The others go with their context.
    let destroy = protocol::operations::ContextDestroy { context: 0 };
    assert_eq!(guest.client.context_destroy(&destroy, &[]), Ok(()));
    assert!(guest.client.free_memory(0) >= before - (1 << 20));
}

fn part(name: &'static str, text: &'static str) -> Part<'static> {
    Part {
        kind: CUjitInputType::PTX.0,
        name,
        bytes: text.as_bytes(),
    }
}

/// Several parts become one image: functions and variables of one are those of the others.
pub fn parts_are_linked(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let image = linked_image::encode([
        part("caller", kernels::CALLER),
        part("callee", kernels::CALLEE),
    ]);
    let (status, descriptor, log) = guest.image(1, &image);
    assert_eq!(status, CUresult::SUCCESS, "{log}");
    assert_eq!(descriptor.kernels.len(), 1);
    assert!(descriptor.variables.iter().any(|v| v.name == "amount"));
    let request = ModuleLoad {
        module: 50,
        image: 1,
        ..ModuleLoad::default()
    };
    let loaded = guest.client.module_load(&request, &[], &mut Vec::new());
    assert!(loaded.is_ok());
    let out = guest.commit(0, GRANULE);
    guest.launch(0, 50, 1, 1, &params(&[out]));
    assert_eq!(guest.wait(0), Ok(()));
    assert_eq!(guest.word(out), 3 * 14);
}

/// Links that lack something, have it twice, or have a damaged part, say what.
pub fn links_that_fail_say_why(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let alone = linked_image::encode([part("caller", kernels::CALLER)]);
    let (status, _, log) = guest.image(1, &alone);
    assert_ne!(status, CUresult::SUCCESS);
    assert!(log.contains("amount"), "{log}");
    let twice = linked_image::encode([
        part("caller", kernels::CALLER),
        part("one", kernels::CALLEE),
        part("two", kernels::CALLEE),
    ]);
    let (status, _, log) = guest.image(2, &twice);
    assert_ne!(status, CUresult::SUCCESS);
    assert!(log.contains("thrice"), "{log}");
    for end in 0..alone.len() {
        let (status, ..) = guest.image(3, &alone[..end]);
        assert_eq!(status, CUresult::ERROR_INVALID_IMAGE, "cut at {end}");
    }
    // A part alone is looked at for what is wrong with itself only.
    let mut check = |parts: &[Part<'_>]| {
        let request = ImageLoad {
            image: 4,
            options: IMAGE_PART,
            ..ImageLoad::default()
        };
        let image = linked_image::encode(parts.iter().copied());
        let said = guest
            .client
            .image_load(&request, &image, &mut Vec::new())
            .expect("a reply");
        CUresult(said.status)
    };
    assert_eq!(check(&[part("caller", kernels::CALLER)]), CUresult::SUCCESS);
    let broken = check(&[part("broken", kernels::BROKEN)]);
    assert_eq!(broken, CUresult::ERROR_INVALID_PTX);
}

/// What is made of an array goes with it, and so does its memory.
pub fn textures_go_with_their_array(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    create(&mut guest, &integers(1, 4096, 4096, 0)).expect("an array");
    let spec = Spec {
        resource: Resource::Array(1),
        level: 0,
        sampler: None,
        view: None,
    };
    let surface = object(&mut guest, &spec, true).expect("an object");
    let used = guest.client.free_memory(0);
    let destroy = ArrayDestroy { array: 1 };
    assert_eq!(guest.client.array_destroy(&destroy, &[]), Ok(()));
    assert!(guest.client.free_memory(0) > used);
    let gone = TextureDestroy {
        object: surface,
        surface: 1,
        context: 0,
    };
    let gone = guest.client.texture_destroy(&gone, &[]);
    assert_eq!(gone, Err(CUresult::ERROR_INVALID_HANDLE));
}
