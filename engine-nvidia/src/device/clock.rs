//! Times of events, in nanoseconds of one clock a device.
//!
//! The driver tells only how far two events are apart, as a 32-bit float of milliseconds. Against a
//! base event long past that is coarse, so an event that is far from the base becomes the new base.

use parking_lot::Mutex;

use cuda_abi::CUresult;
use cuda_abi::types::{CUevent, CUstream};

use crate::driver::Driver;
use crate::sync::Handle;

/// Beyond this many milliseconds from the base the base is moved; up to it the float is exact to
/// 32 ns, which is finer than the GPU's own clock ticks for events.
const FAR: f32 = 500.0;

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
        self.give_back(driver, done_with);
        time
    }

    /// Takes an event back that nobody will ask for any more.
    pub(crate) fn give_back(&self, driver: &Driver, event: Handle<CUevent>) {
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

fn create(driver: &Driver) -> Result<Handle<CUevent>, CUresult> {
    let mut event = CUevent::NULL;
    // SAFETY: the pointer is to a local.
    unsafe { driver.cuEventCreate(&raw mut event, 0)? };
    Ok(Handle(event))
}
