//! How much of a device was used, and by which processes: from the daemon's accounts.
//!
//! Called by the exports. A card's own sensor tells of the whole device, where this process can ask it; of processes only the daemon knows,
//! since to the driver all of them are one server. Must not know how it is counted.

use cuda_abi::nvml::nvmlReturn_t;

use super::version_is;
use crate::params::{ListOut, Out};
use crate::structs::{
    nvmlDevice_t, nvmlProcessUtilizationInfo_v1_t, nvmlProcessUtilizationSample_t,
    nvmlProcessesUtilizationInfo_t, nvmlUtilization_t, version,
};
use crate::usage_samples::{ProcessUsage, used_since};
use crate::{sensors, state};

/// Percent of a part, which is 100 at most: what ran at all is not 0.
fn percent(part: f64) -> u32 {
    (part * 100.0).ceil().clamp(0.0, 100.0) as u32
}

fn sum(used: &[ProcessUsage], part: fn(&ProcessUsage) -> f64) -> u32 {
    percent(used.iter().map(part).sum())
}

/// Of the software GPU the part of the time in which kernels of processes that are shown ran, added up, and in which memory was copied.
pub(crate) fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    rates: Out<nvmlUtilization_t>,
) -> Result<(), nvmlReturn_t> {
    let (_, known) = state::facts()?.device(device)?;
    rates.required()?;
    if !known.is_software {
        // SAFETY: the program promised that its structure can be written.
        let asked = unsafe { ask_sensor(device, rates.pointer()) };
        if asked != Err(nvmlReturn_t::ERROR_NOT_SUPPORTED) {
            return asked;
        }
    }
    // The latest period.
    let (_, used) = used_since(known, u64::MAX)?;
    rates.set(nvmlUtilization_t {
        gpu: sum(&used, |used| used.kernels),
        memory: sum(&used, |used| used.copies),
    })
}

/// # Safety
/// `pointer` is null or can be written.
unsafe fn ask_sensor(
    device: nvmlDevice_t,
    pointer: *mut nvmlUtilization_t,
) -> Result<(), nvmlReturn_t> {
    sensors::ask!(
        c"nvmlDeviceGetUtilizationRates",
        device: nvmlDevice_t, pointer: *mut nvmlUtilization_t
    )
}

/// When, and the processes that used something of a device since a time. Who has no room is told for how many there must be, also for
/// those that may begin to work before it asks again.
fn working(
    device: nvmlDevice_t,
    since: u64,
    has_room: bool,
) -> Result<(u64, Vec<ProcessUsage>), nvmlReturn_t> {
    let (_, known) = state::facts()?.device(device)?;
    let (at, mut used) = used_since(known, since)?;
    let works = |used: &ProcessUsage| used.multiprocessors > 0.0 || used.copies > 0.0;
    if !used.iter().any(works) {
        return Err(nvmlReturn_t::ERROR_NOT_FOUND);
    }
    if has_room {
        used.retain(works);
    }
    Ok((at, used))
}

/// What the device had done for processes since `since`, in microseconds since 1970; 0 for as long as is known.
pub(crate) fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    samples: ListOut<nvmlProcessUtilizationSample_t>,
    count: Out<u32>,
    since: u64,
) -> Result<(), nvmlReturn_t> {
    state::facts()?.device(device)?;
    let room = match samples.is_null() {
        true => 0,
        false => count.get()?,
    };
    count.required()?;
    let (at, used) = working(device, since, !samples.is_null())?;
    let list: Vec<_> = used
        .iter()
        .map(|used| nvmlProcessUtilizationSample_t {
            pid: used.pid,
            timeStamp: at,
            smUtil: percent(used.multiprocessors),
            memUtil: percent(used.copies),
            encUtil: 0,
            decUtil: 0,
        })
        .collect();
    count.set(list.len() as u32)?;
    samples.set(room, &list)
}

/// The same in the newer form.
pub(crate) fn nvmlDeviceGetProcessesUtilizationInfo(
    device: nvmlDevice_t,
    info: Out<nvmlProcessesUtilizationInfo_t>,
) -> Result<(), nvmlReturn_t> {
    state::facts()?.device(device)?;
    let given = info.get()?;
    version_is(given.version, version::<nvmlProcessesUtilizationInfo_t>(1))?;
    let room = match given.procUtilArray.is_null() {
        true => 0,
        false => given.processSamplesCount,
    };
    let has_room = !given.procUtilArray.is_null();
    let (at, used) = working(device, given.lastSeenTimeStamp, has_room)?;
    let list: Vec<_> = used
        .iter()
        .map(|used| nvmlProcessUtilizationInfo_v1_t {
            timeStamp: at,
            pid: used.pid,
            smUtil: percent(used.multiprocessors),
            memUtil: percent(used.copies),
            encUtil: 0,
            decUtil: 0,
            jpgUtil: 0,
            ofaUtil: 0,
        })
        .collect();
    info.set(nvmlProcessesUtilizationInfo_t {
        processSamplesCount: list.len() as u32,
        ..given
    })?;
    given.procUtilArray.set(room, &list)
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn what_ran_is_not_nothing_and_never_more_than_all() {
        let cases = [(0.0, 0), (0.001, 1), (0.5, 50), (1.0, 100), (2.5, 100)];
        for (part, expected) in cases {
            assert_eq!(percent(part), expected);
        }
    }
}
