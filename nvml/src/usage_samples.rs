//! The latest samples of the daemon's accounts, for what was used between two of them.
//!
//! Called by the functions of utilisation. A call takes the list out and puts it back, so that there is no lock: who finds none, as
//! a fork's child may, samples twice. Must not know NVML's structures: they are `api::utilization`'s to fill.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use cuda_abi::nvml::nvmlReturn_t;
use protocol::control_messages::{DeviceAccount, View};

use crate::state::{self, Device};

/// The shortest time of which parts are told: NVML's own shortest sample period.
const PERIOD: Duration = Duration::from_micros(1_000_000 / 6);

/// Between two samples that are kept.
const APART: Duration = Duration::from_millis(50);

/// How long a sample is kept.
const KEPT: Duration = Duration::from_secs(10);

/// Samples that are kept at most.
const MOST: usize = 64;

/// What the daemon showed at a time.
#[derive(Clone, Debug)]
pub(crate) struct UsageSample {
    /// Microseconds since 1970, as NVML's time stamps are.
    pub at: u64,
    view: View,
    /// The device that was asked for, in it.
    device: usize,
}

/// A process, and what it used between two samples. Parts are from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ProcessUsage {
    /// Its process id.
    pub pid: u32,
    /// The part of the time in which its kernels ran.
    pub kernels: f64,
    /// The part of all multiprocessors' time.
    pub multiprocessors: f64,
    /// The part of the time in which copies and fills of it were made.
    pub copies: f64,
}

/// The list of samples, the latest last, or null while somebody has it, or nobody has sampled.
static SAMPLES: AtomicPtr<Vec<UsageSample>> = AtomicPtr::new(std::ptr::null_mut());

fn take_samples() -> Vec<UsageSample> {
    let list = SAMPLES.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if list.is_null() {
        return Vec::new();
    }
    // SAFETY: what is not null is from `put`'s box, and by the swap nobody else has it now.
    *unsafe { Box::from_raw(list) }
}

fn put_samples(list: Vec<UsageSample>) {
    let former = SAMPLES.swap(Box::into_raw(Box::new(list)), Ordering::AcqRel);
    if !former.is_null() {
        // SAFETY: what is not null is the box of another thread that put its list while this one had the former; by the swap it is ours alone.
        drop(unsafe { Box::from_raw(former) });
    }
}

fn sample(device: &Device) -> Result<UsageSample, nvmlReturn_t> {
    let (view, at) = state::current_view(device)?;
    let since = UNIX_EPOCH.elapsed().unwrap_or_default();
    Ok(UsageSample {
        at: since.as_micros() as u64,
        view,
        device: at,
    })
}

fn age(earlier: &UsageSample, now: &UsageSample) -> Duration {
    Duration::from_micros(now.at.saturating_sub(earlier.at))
}

/// Of the samples that are kept the one with which to compare: the latest that was no later than `since`, else the oldest.
fn earlier(kept: &[UsageSample], now: &UsageSample, since: u64) -> Option<UsageSample> {
    // Another daemon's accounts begin anew.
    let fits = |sample: &&UsageSample| {
        (PERIOD..KEPT).contains(&age(sample, now)) && sample.view.time < now.view.time
    };
    let mut fitting = kept.iter().filter(fits);
    let before = fitting.clone().rfind(|sample| sample.at <= since);
    before.or_else(|| fitting.next()).cloned()
}

/// What processes used of a device since a time, in microseconds since 1970, or for as long as is known; and when that was. Waits for a
/// sixth of a second where nobody has looked lately.
///
/// # Errors
/// What comes of asking.
pub(crate) fn used_since(
    device: &Device,
    since: u64,
) -> Result<(u64, Vec<ProcessUsage>), nvmlReturn_t> {
    let mut now = sample(device)?;
    let mut kept = take_samples();
    let earlier = match earlier(&kept, &now, since) {
        Some(earlier) => earlier,
        None => {
            put_samples(kept);
            std::thread::sleep(PERIOD);
            let first = std::mem::replace(&mut now, sample(device)?);
            kept = take_samples();
            kept.push(first.clone());
            first
        }
    };
    if kept.last().is_none_or(|last| age(last, &now) >= APART) {
        kept.push(now.clone());
    }
    kept.retain(|sample| age(sample, &now) < KEPT);
    let superfluous = kept.len().saturating_sub(MOST);
    kept.drain(..superfluous);
    put_samples(kept);
    Ok((now.at, between(&earlier, &now)))
}

fn between(earlier: &UsageSample, now: &UsageSample) -> Vec<ProcessUsage> {
    let span = now.view.time.saturating_sub(earlier.view.time).max(1) as f64;
    let viewed = now.view.devices.get(now.device);
    let multiprocessors = viewed
        .map_or(1, |viewed| viewed.device.multiprocessors)
        .max(1);
    let on_it = now.view.processes.iter();
    let on_it = on_it.filter(|process| process.device as usize == now.device && !process.is_server);
    on_it
        .map(|process| {
            let mut former = earlier.view.processes.iter();
            let former = former.find(|former| {
                former.device as usize == earlier.device && former.session == process.session
            });
            // Who has come since had nothing.
            let former = former.map_or_else(DeviceAccount::default, |former| former.account);
            let part = |read: fn(&DeviceAccount) -> u64| {
                let had = read(&process.account).saturating_sub(read(&former));
                (had as f64 / span).min(f64::from(multiprocessors))
            };
            ProcessUsage {
                pid: match process.is_asker {
                    true => std::process::id(),
                    false => process.pid.cast_unsigned(),
                },
                kernels: part(|of| of.kernel_time).min(1.0),
                multiprocessors: part(|of| of.multiprocessor_time) / f64::from(multiprocessors),
                copies: part(|of| of.copy_time).min(1.0),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::control_messages::{ListedDevice, ViewedDevice, ViewedProcess};

    /// A sample after so many milliseconds, when processes have had so many milliseconds of two multiprocessors.
    fn look_at(milliseconds: u64, had: &[(u64, u64)]) -> UsageSample {
        let process = |&(session, had): &(u64, u64)| ViewedProcess {
            pid: 100 + session as i32,
            session,
            account: DeviceAccount {
                kernel_time: had * 1_000_000,
                multiprocessor_time: had * 2_000_000,
                copy_time: had * 100_000,
                ..DeviceAccount::default()
            },
            ..ViewedProcess::default()
        };
        UsageSample {
            at: milliseconds * 1000,
            view: View {
                devices: vec![ViewedDevice {
                    device: ListedDevice {
                        multiprocessors: 4,
                        ..ListedDevice::default()
                    },
                    ..ViewedDevice::default()
                }],
                processes: had.iter().map(process).collect(),
                time: 7 + milliseconds * 1_000_000,
                ..View::default()
            },
            device: 0,
        }
    }

    #[test]
    fn what_was_used_is_what_came_between() {
        let (first, now) = (
            look_at(1000, &[(1, 500)]),
            look_at(2000, &[(1, 900), (2, 5000)]),
        );
        let used = between(&first, &now);
        let expected = ProcessUsage {
            pid: 101,
            kernels: 0.4,
            multiprocessors: 0.2,
            copies: 0.04,
        };
        assert_eq!(used[0], expected);
        // More than there can have been since it came is what there was.
        assert_eq!((used[1].kernels, used[1].multiprocessors), (1.0, 1.0));
        assert_eq!(between(&now, &now)[0].kernels, 0.0);
    }

    #[test]
    fn the_look_before_is_the_one_that_was_asked_for() {
        let kept: Vec<UsageSample> = [1, 5_000, 9_000, 10_900].map(|at| look_at(at, &[])).into();
        let now = look_at(11_000, &[]);
        let chosen = |since| earlier(&kept, &now, since).map(|sample| sample.at);
        assert_eq!(chosen(9_500_000), Some(9_000_000));
        assert_eq!(chosen(9_000_000), Some(9_000_000));
        assert_eq!(chosen(u64::MAX), Some(9_000_000), "not what was just now");
        assert_eq!(chosen(0), Some(5_000_000), "the first is too old");
        assert!(earlier(&[], &now, 0).is_none());
        let mut anew = look_at(11_000, &[]);
        anew.view.time = 1;
        assert!(earlier(&kept, &anew, 0).is_none(), "another daemon");
    }

    #[test]
    fn the_list_is_nobodys_twice() {
        put_samples(vec![look_at(1, &[])]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let mut list = take_samples();
                        list.truncate(3);
                        list.push(look_at(2, &[(1, 1)]));
                        put_samples(list);
                    }
                });
            }
        });
        assert!(take_samples().len() <= 4);
        assert!(take_samples().is_empty());
    }
}
