//! Times of events, in nanoseconds of one clock a device.
//!
//! The driver tells only how far two events are apart, as a 32-bit float of milliseconds. Against a
//! base event long past that is coarse, so an event that is far from the base becomes the new base. Called by streams
//! for events and recordings. Must not know whose event it is.

use engine::clock;
use parking_lot::Mutex;

use cuda_abi::CUresult;
use cuda_abi::types::{CUevent, CUstream};

use crate::driver::Driver;
use crate::sync::Handle;

/// Beyond this many milliseconds from the base the base is moved; up to it the float is exact to
/// 32 ns, which is finer than the GPU's own clock ticks for events.
const FAR: f32 = 500.0;

/// Nanoseconds in which a device's clock and the processor's differ by one more at most.
const MOST_DRIFT: u64 = 10_000;

/// Events that are kept for use again.
const SPARE: usize = 256;

/// A device's event clock.
#[derive(Debug)]
pub(crate) struct Clock {
    state: Mutex<ClockEvents>,
}

#[derive(Debug)]
struct ClockEvents {
    base: Handle<CUevent>,
    base_time: u64,
    monotonic: Option<MonotonicOffset>,
    spare: Vec<Handle<CUevent>>,
}

impl Clock {
    /// Starts the clock. The device's context is current.
    ///
    /// # Errors
    /// The status of the call that failed.
    pub(crate) fn new(driver: &Driver, stream: CUstream) -> Result<Self, CUresult> {
        let base = create(driver)?;
        // SAFETY: event and stream were just made in the current context.
        unsafe {
            driver.cuEventRecord(base.0, stream)?;
            driver.cuStreamSynchronize(stream)?;
        }
        Ok(Self {
            state: Mutex::new(ClockEvents {
                base,
                // Times before the base must not fall below zero.
                base_time: 1 << 40,
                monotonic: None,
                spare: Vec::new(),
            }),
        })
    }

    /// An event that keeps time. The device's context is current.
    ///
    /// # Errors
    /// The status of the call that failed.
    pub(crate) fn event(&self, driver: &Driver) -> Result<Handle<CUevent>, CUresult> {
        let spare = self.state.lock().spare.pop();
        spare.map_or_else(|| create(driver), Ok)
    }

    /// The time of an event that has been passed, which is taken back.
    ///
    /// # Errors
    /// The status of the call that failed.
    pub(crate) fn time(&self, driver: &Driver, event: Handle<CUevent>) -> Result<u64, CUresult> {
        let mut state = self.state.lock();
        let mut milliseconds = 0_f32;
        // SAFETY: the pointer is to a local; both events are ours and alive.
        let asked =
            unsafe { driver.cuEventElapsedTime(&raw mut milliseconds, state.base.0, event.0) };
        let mut done_with = event;
        let time = asked.map(|()| {
            let nanoseconds = (f64::from(milliseconds) * 1e6).round() as i64;
            let time = state.base_time.saturating_add_signed(nanoseconds);
            if milliseconds > FAR {
                done_with = std::mem::replace(&mut state.base, event);
                state.base_time = time;
            }
            time
        });
        drop(state);
        self.release_event(driver, done_with);
        time
    }

    /// When an event was passed, in nanoseconds of CLOCK_MONOTONIC; it is taken back.
    ///
    /// How far the clocks are apart is what they were apart when an event was read, at the least: it is read some time after
    /// it was passed, and the one that was read soonest tells best.
    ///
    /// # Errors
    /// The status of the call that failed.
    pub(crate) fn monotonic_time(
        &self,
        driver: &Driver,
        event: Handle<CUevent>,
    ) -> Result<u64, CUresult> {
        let time = self.time(driver, event)?;
        let now = clock::now();
        let mut state = self.state.lock();
        let offset = MonotonicOffset::read(state.monotonic, time, now);
        state.monotonic = Some(offset);
        Ok(time.saturating_add_signed(offset.nanoseconds))
    }

    /// Takes an event back that nobody will ask for any more.
    pub(crate) fn release_event(&self, driver: &Driver, event: Handle<CUevent>) {
        let mut state = self.state.lock();
        if state.spare.len() < SPARE {
            state.spare.push(event);
        } else {
            // SAFETY: the event is ours, and nothing else holds it.
            let _ = unsafe { driver.cuEventDestroy_v2(event.0) };
        }
    }

    /// Destroys the events. The device's context is current.
    pub(crate) fn close(&self, driver: &Driver) {
        let mut state = self.state.lock();
        let base = state.base;
        for event in state.spare.drain(..).chain([base]) {
            // SAFETY: the events are ours; the device is going, so nobody will use the clock.
            let _ = unsafe { driver.cuEventDestroy_v2(event.0) };
        }
    }
}

/// How far CLOCK_MONOTONIC is ahead of a device's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MonotonicOffset {
    nanoseconds: i64,
    /// When that was read.
    at: u64,
}

impl MonotonicOffset {
    /// What is known once an event of that time has been read now. The clocks may drift apart: what was known long ago is
    /// believed the less.
    fn read(known: Option<Self>, time: u64, now: u64) -> Self {
        let nanoseconds = now.wrapping_sub(time).cast_signed();
        let best = known.map_or(nanoseconds, |known| {
            let drift = now.saturating_sub(known.at) / MOST_DRIFT;
            known
                .nanoseconds
                .saturating_add_unsigned(drift)
                .min(nanoseconds)
        });
        Self {
            nanoseconds: best,
            at: now,
        }
    }
}

fn create(driver: &Driver) -> Result<Handle<CUevent>, CUresult> {
    let mut event = CUevent::NULL;
    // SAFETY: the pointer is to a local.
    unsafe { driver.cuEventCreate(&raw mut event, 0)? };
    Ok(Handle(event))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_that_was_read_soonest_tells_how_far_clocks_are_apart() {
        let late = MonotonicOffset::read(None, 1_000, 51_000);
        assert_eq!(late.nanoseconds, 50_000);
        let soon = MonotonicOffset::read(Some(late), 2_000, 42_000);
        assert_eq!(soon.nanoseconds, 40_000);
        let late = MonotonicOffset::read(Some(soon), 3_000, 103_000);
        assert_eq!(
            late.nanoseconds, 40_006,
            "61 µs later by as much as clocks drift"
        );
        let behind = MonotonicOffset::read(None, 1 << 40, 5);
        assert_eq!((1_u64 << 40).saturating_add_signed(behind.nanoseconds), 5);
    }
}
