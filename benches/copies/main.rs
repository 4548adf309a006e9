//! What copies cost one client: a program on the driver API, so that the same binary measures OpenMPS and
//! NVIDIA's driver. Beside them stands what memcpy takes in this process, in turn with them, so that ratios
//! hold on a busy machine too.
//!
//! `cargo run --release -p benches --bin copies` measures whatever `libcuda.so.1` is on the loader's path;
//! `openmps run -- target/release/copies` measures OpenMPS.

use std::time::{Duration, Instant};

use tests::cuda::Driver;

/// Bytes of a copy, and how many are made in a round.
const SIZES: [(usize, u32); 4] = [(4, 200), (4 << 10, 200), (1 << 20, 20), (256 << 20, 1)];

const LARGEST: usize = 256 << 20;

const ROUNDS: usize = 5;

fn main() {
    let json = std::env::args().any(|argument| argument == "--json");
    let driver = Driver::ready();
    let device = driver.alloc(LARGEST).expect("256 MiB are there");
    let mut pinned = std::ptr::null_mut();
    // SAFETY: the pointer is to a local.
    unsafe { driver.mem_host_alloc(&raw mut pinned, LARGEST, 0) }
        .expect("256 MiB of page-locked memory are there");
    // Touched, so that no copy pays for the kernel's pages.
    let mut heap = vec![1_u8; LARGEST];
    let mut other = vec![2_u8; LARGEST];
    // SAFETY: as many bytes as were asked for, which nobody else uses.
    unsafe { pinned.cast::<u8>().write_bytes(3, LARGEST) };

    for (bytes, count) in SIZES {
        let mut rows: [(&str, Vec<Duration>); 5] = [
            ("pageable to device", Vec::new()),
            ("device to pageable", Vec::new()),
            ("pinned to device", Vec::new()),
            ("device to pinned", Vec::new()),
            ("memcpy", Vec::new()),
        ];
        // One round more than is counted, so that everything has been used once; in turn, so that
        // drift favours nobody.
        for round in 0..=ROUNDS {
            for (way, (_, times)) in rows.iter_mut().enumerate() {
                let start = Instant::now();
                for _ in 0..count {
                    // SAFETY: every buffer has the largest size's bytes, and the calls are over when
                    // the copies are, as for page-locked memory CUDA says.
                    let done = unsafe {
                        match way {
                            0 => driver.copy_to_device(device, heap.as_ptr().cast(), bytes),
                            1 => driver.copy_to_host(heap.as_mut_ptr().cast(), device, bytes),
                            2 => driver.copy_to_device(device, pinned, bytes),
                            3 => driver.copy_to_host(pinned, device, bytes),
                            _ => {
                                other[..bytes].copy_from_slice(&heap[..bytes]);
                                std::hint::black_box(&mut other);
                                Ok(())
                            }
                        }
                    };
                    done.expect("it copies");
                }
                // What was posted counts too.
                driver.synchronize().expect("it is copied");
                if round > 0 {
                    times.push(start.elapsed() / count);
                }
            }
        }
        let medians = rows.map(|(name, mut times)| {
            times.sort();
            (name, times[times.len() / 2].as_secs_f64())
        });
        let memcpy = medians[medians.len() - 1].1;
        for (name, median) in medians {
            let rate = bytes as f64 / median / 1e9;
            if json {
                println!(
                    "{{\"name\":\"{name}\",\"bytes\":{bytes},\"median_us\":{:.3},\"gb_per_s\":{rate:.3}}}",
                    median * 1e6
                );
            } else {
                println!(
                    "{name:<20} {bytes:>10} B {:>12.3} µs {rate:>8.2} GB/s {:>6.2} of memcpy's speed",
                    median * 1e6,
                    memcpy / median
                );
            }
        }
    }
}
