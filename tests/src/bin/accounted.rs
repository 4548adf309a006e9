//! Does a known amount of work and stays: so many launches, copies and bytes, and then says how long its kernels took by its own
//! events, in milliseconds. `accounted LAUNCHES GRAPHS UNITS`: that many launches, each of which takes that many units, and that many
//! launches of a graph of three kernels. When it hears `again` it does all but the loading once more; else it ends.
//!
//! It knows nothing of OpenMPS, whose accounts are compared with it.

use std::time::Duration;

use tests::cuda::{Code, Driver, Handle};
use tests::program::{finish, hear, say};

const KERNELS: &str = include_str!("../../kernels/kernels.ptx");

/// Elements of the data.
const COUNT: usize = 1 << 15;

/// Kernels of the graph.
const OF_GRAPH: usize = 3;

const CU_STREAM_CAPTURE_MODE_GLOBAL: u32 = 0;

fn main() {
    let numbers: Vec<u64> = std::env::args()
        .skip(1)
        .map(|text| text.parse().expect("a number"))
        .collect();
    finish(work(numbers[0], numbers[1], numbers[2]));
}

fn work(launches: u64, graphs: u64, units: u64) -> Result<(), Code> {
    let driver = Driver::ready();
    let module = driver.module(KERNELS)?;
    let churn = driver.function(module, "churn")?;
    let data = driver.alloc(COUNT * 8)?;
    let mut values = vec![1u64; COUNT];
    driver.upload(data, &values)?;
    let stream = driver.stream(0)?;
    let launch = |units: u64| driver.launch(churn, 8, 256, stream, &[data, COUNT as u64, units]);
    let (mut begin, mut end, mut graph, mut exec) = (0, 0, 0, 0);
    // SAFETY: the places are this function's own, and every handle is one that the driver gave.
    unsafe {
        driver.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL)?;
        for _ in 0..OF_GRAPH {
            launch(1)?;
        }
        driver.stream_end_capture(stream, &raw mut graph)?;
        driver.graph_instantiate(&raw mut exec, graph, 0)?;
        driver.event_create(&raw mut begin, 0)?;
        driver.event_create(&raw mut end, 0)?;
    }
    loop {
        // SAFETY: every handle is one that the driver gave.
        unsafe {
            driver.event_record(begin, stream)?;
            for _ in 0..launches {
                launch(units)?;
            }
            for _ in 0..graphs {
                driver.graph_launch(exec, stream)?;
            }
            driver.event_record(end, stream)?;
            driver.event_synchronize(end)?;
        }
        driver.download(&mut values, data)?;
        // SAFETY: two halves of an allocation of this program's.
        unsafe { driver.copy_on_device(data, data + COUNT as u64 * 4, COUNT * 4)? };
        driver.synchronize()?;
        say(&format!(
            "took {}",
            elapsed(&driver, begin, end)?.as_nanos()
        ));
        if hear() != "again" {
            return Ok(());
        }
    }
}

fn elapsed(driver: &Driver, begin: Handle, end: Handle) -> Result<Duration, Code> {
    let mut milliseconds = 0.0;
    // SAFETY: the place is this function's own, the events are recorded.
    unsafe { driver.event_elapsed_time(&raw mut milliseconds, begin, end)? };
    Ok(Duration::from_secs_f32(milliseconds / 1000.0))
}
