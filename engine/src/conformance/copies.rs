//! Copies, fills and writes of all shapes, against the same done by hand.

use protocol::operations::{Copy, Fill, Space};

use super::rig::{Guest, STAGING, noise};
use crate::arena::GRANULE;
use crate::{CUresult, Engine};

const UNIFIED: u32 = Space::Unified as u32;
const STAGED: u32 = Space::Staging as u32;

/// One row, of lengths around what an engine might treat apart, between device, host and staging.
pub fn rows_of_every_size_in_every_direction(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, 2 << 20);
    let host = guest.commit_host();
    for width in [1, 2, 3, 4, 7, 8, 15, 16, 255, 4097, 65_537, 262_145] {
        for skew in [0, 1, 4] {
            let data = noise(width, width + skew);
            guest.stage(0, &data);
            let steps = [
                (UNIFIED, device + skew, STAGED, 0),
                (UNIFIED, device + (1 << 20), UNIFIED, device + skew),
                (UNIFIED, host + 2 * skew, UNIFIED, device + (1 << 20)),
                (STAGED, 4 << 20, UNIFIED, host + 2 * skew),
            ];
            for (to_space, to, from_space, from) in steps {
                let request = Copy {
                    to_space,
                    to,
                    from_space,
                    from,
                    width,
                    height: 1,
                    depth: 1,
                    ..Copy::default()
                };
                guest.copy(0, &request);
            }
            assert_eq!(guest.wait(0), Ok(()));
            assert_eq!(guest.staged(4 << 20, width), data, "{width} bytes");
            assert_eq!(guest.host_bytes(host + 2 * skew, width), data);
        }
    }
}

/// Rows and planes with their own distances on both sides; what lies between them stays.
pub fn planes_with_pitches(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let bytes = 2 << 20;
    let device = guest.commit(0, bytes);
    // Width, height, depth; pitch and slice of the source, then of the destination.
    let shapes = [
        (5, 3, 1, (8, 0), (16, 0)),
        (16, 4, 3, (16, 64), (16, 64)),
        (16, 4, 3, (16, 64), (20, 100)),
        (16, 4, 3, (24, 128), (16, 64)),
        (1, 1, 9, (0, 3), (0, 7)),
        (7, 1, 2, (0, 7), (0, 9)),
        (300, 500, 2, (512, 256_000), (1000, 500_000)),
        (1, 70_000, 1, (2, 0), (3, 0)),
        (512, 1024, 1, (512, 0), (1024, 0)),
    ];
    let before = noise(bytes, 1);
    let source = noise(bytes, 2);
    guest.stage(0, &source);
    for (width, height, depth, from, to) in shapes {
        guest.upload(device, &before);
        let request = Copy {
            to_space: UNIFIED,
            to: device + 1,
            to_pitch: to.0,
            to_slice: to.1,
            from_space: STAGED,
            from: 3,
            from_pitch: from.0,
            from_slice: from.1,
            width,
            height,
            depth,
        };
        guest.copy(0, &request);
        assert_eq!(guest.wait(0), Ok(()), "{request:?}");
        let mut expected = before.clone();
        for plane in 0..depth {
            for row in 0..height {
                let at = (1 + plane * to.1 + row * to.0) as usize;
                let out = (3 + plane * from.1 + row * from.0) as usize;
                let width = width as usize;
                expected[at..at + width].copy_from_slice(&source[out..out + width]);
            }
        }
        assert!(guest.download(device, bytes) == expected, "{request:?}");
    }
}

/// More than one thread's worth.
pub fn large_copies_and_fills(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let bytes = 24 << 20;
    let device = guest.commit(0, 2 * bytes + GRANULE);
    let data = noise(bytes, 3);
    guest.upload(device, &data);
    let request = Copy {
        to: device + bytes + 5,
        from: device,
        width: bytes,
        height: 1,
        depth: 1,
        ..Copy::default()
    };
    guest.stream(40);
    guest.copy(40, &request);
    guest.fill(40, &fill(device, 0x0403_0201, 4, bytes / 4));
    // Behind the large ones in the stream's order.
    guest.write(40, device + 2, &[9]);
    assert_eq!(guest.wait(40), Ok(()));
    assert!(guest.download(device + bytes + 5, bytes) == data);
    let mut expected = [1, 2, 3, 4].repeat((bytes / 4) as usize);
    expected[2] = 9;
    assert!(guest.download(device, bytes) == expected);
}

/// Elements of each size, in one row and in several.
pub fn fills_of_every_element(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let bytes = 1 << 20;
    let device = guest.commit(0, bytes);
    for (element, value) in [
        (1, 0xfe),
        (2, 0xbeef),
        (2, 0x1111),
        (4, 0xdead_beef),
        (4, 0),
    ] {
        for (pitch, width, height) in [(0, 1, 1), (0, 1000, 1), (256, 13, 7), (1024, 256, 900)] {
            let before = noise(bytes, 4);
            guest.upload(device, &before);
            let request = Fill {
                pitch,
                height,
                ..fill(device + 4, value, element, width)
            };
            guest.fill(0, &request);
            assert_eq!(guest.wait(0), Ok(()), "{request:?}");
            let mut expected = before;
            let pattern = &value.to_le_bytes()[..element as usize];
            for row in 0..height {
                let at = (4 + row * pitch) as usize;
                let row = pattern.repeat(width as usize);
                expected[at..at + row.len()].copy_from_slice(&row);
            }
            assert!(guest.download(device, bytes) == expected, "{request:?}");
        }
    }
    let misaligned = [
        fill(device + 1, 0, 2, 4),
        fill(device + 2, 0, 4, 4),
        Fill {
            pitch: 10,
            height: 2,
            ..fill(device, 0, 4, 2)
        },
        fill(device, 0, 3, 4),
        fill(device, 0, 0, 4),
        fill(device, 0, 8, 4),
    ];
    for request in misaligned {
        guest.fill(0, &request);
        let result = guest.wait(0);
        assert_eq!(result, Err(CUresult::ERROR_INVALID_VALUE), "{request:?}");
    }
}

/// Bytes that come with the record are those of the time of the call.
pub fn writes_from_the_record(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, GRANULE);
    for bytes in [1, 2, 4, 8, 9, 64, 20_000] {
        let mut data = noise(bytes, bytes);
        let written = data.clone();
        // The large fill makes the write wait in the queue of an engine that has one.
        guest.fill(0, &fill(device, 0, 1, GRANULE));
        guest.write(0, device + 8, &data);
        data.fill(0);
        assert_eq!(guest.wait(0), Ok(()));
        assert_eq!(guest.download(device + 8, bytes), written);
    }
    guest.write(0, device, &[]);
    assert_eq!(guest.wait(0), Ok(()));
    guest.write(0, device + GRANULE - 1, &[1, 2]);
    assert_eq!(guest.wait(0), Err(CUresult::ERROR_INVALID_VALUE));
}

/// Products and sums that do not fit 64 bits, rows that overlap, spaces that do not exist.
pub fn extents_that_overflow_are_refused(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, GRANULE);
    let plain = Copy {
        to: device,
        to_pitch: 64,
        to_slice: 256,
        from: device + 1024,
        from_pitch: 64,
        from_slice: 256,
        width: 4,
        height: 2,
        depth: 2,
        ..Copy::default()
    };
    guest.copy(0, &plain);
    assert_eq!(guest.wait(0), Ok(()));
    let huge = u64::MAX / 2;
    let wrong = [
        Copy {
            width: u64::MAX,
            ..plain
        },
        Copy {
            height: huge,
            ..plain
        },
        Copy {
            depth: huge,
            ..plain
        },
        Copy {
            width: 1 << 40,
            height: 1 << 40,
            ..plain
        },
        Copy {
            to_pitch: u64::MAX,
            ..plain
        },
        Copy {
            from_slice: u64::MAX,
            ..plain
        },
        Copy {
            to_slice: 1 << 63,
            depth: 3,
            ..plain
        },
        Copy {
            to_pitch: 3,
            ..plain
        },
        Copy {
            from_pitch: 0,
            ..plain
        },
        Copy {
            from_slice: 1,
            ..plain
        },
        Copy {
            to_space: 2,
            ..plain
        },
        Copy {
            from_space: u32::MAX,
            ..plain
        },
    ];
    for request in wrong {
        guest.copy(0, &request);
        let result = guest.wait(0);
        assert_eq!(result, Err(CUresult::ERROR_INVALID_VALUE), "{request:?}");
    }
    let rows = fill(device, 0, 4, 4);
    let wrong = [
        Fill {
            width: u64::MAX,
            ..rows
        },
        Fill {
            width: 1 << 62,
            height: 2,
            pitch: 64,
            ..rows
        },
        Fill {
            height: huge,
            pitch: 1 << 32,
            ..rows
        },
        Fill {
            height: 2,
            pitch: 4,
            ..rows
        },
    ];
    for request in wrong {
        guest.fill(0, &request);
        let result = guest.wait(0);
        assert_eq!(result, Err(CUresult::ERROR_INVALID_VALUE), "{request:?}");
    }
}

/// Staging has an end.
pub fn misplaced_sides_are_refused(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    let device = guest.commit(0, GRANULE);
    for (offset, width) in [
        (STAGING, 1),
        (STAGING - 3, 4),
        (u64::MAX, 1),
        (u64::MAX - 7, 64),
    ] {
        for swap in [false, true] {
            let mut request = Copy {
                to: device,
                from_space: STAGED,
                from: offset,
                width,
                height: 1,
                depth: 1,
                ..Copy::default()
            };
            if swap {
                std::mem::swap(&mut request.to, &mut request.from);
                std::mem::swap(&mut request.to_space, &mut request.from_space);
            }
            guest.copy(0, &request);
            let result = guest.wait(0);
            assert_eq!(result, Err(CUresult::ERROR_INVALID_VALUE), "{request:?}");
        }
    }
}

/// A copy or fill without bytes succeeds, wherever it points.
pub fn nothing_to_copy_is_no_error(engine: &dyn Engine) {
    let mut guest = Guest::new(engine);
    for (width, height, depth) in [(0, 1, 1), (4, 0, u64::MAX), (u64::MAX, u64::MAX, 0)] {
        let request = Copy {
            to: 1,
            from: u64::MAX,
            width,
            height,
            depth,
            ..Copy::default()
        };
        guest.copy(0, &request);
        assert_eq!(guest.wait(0), Ok(()), "{request:?}");
    }
    guest.fill(0, &fill(4, 0, 4, 0));
    assert_eq!(guest.wait(0), Ok(()));
}

fn fill(to: u64, value: u32, element: u32, width: u64) -> Fill {
    Fill {
        to,
        pitch: 0,
        value,
        element,
        width,
        height: 1,
    }
}
