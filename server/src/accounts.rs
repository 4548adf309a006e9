//! What each client has had of each device: counted always, read by the main thread for the daemon.
//!
//! The session counts what its client asks for, the engine's threads how long the device worked for it. Must not know who reads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::{Activity, CodeSource, Span};
use parking_lot::Mutex;
use protocol::control_messages::DeviceAccount;

/// One client's accounts, by device.
#[derive(Debug)]
pub struct ClientAccounts {
    devices: Box<[Counters]>,
    /// Multiprocessors of each that the client may have.
    granted: Box<[u32]>,
    /// Bytes of each that it has, as its quotas count them.
    memory: Vec<Arc<AtomicU64>>,
}

/// A copy's direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From host memory.
    ToDevice,
    /// To host memory.
    FromDevice,
    /// Between two places of devices, or a fill.
    WithinDevice,
    /// Between two places of host memory.
    WithinHost,
}

#[derive(Debug, Default)]
struct Counters {
    kernels: OneWriter,
    copies: OneWriter,
    to_device: OneWriter,
    from_device: OneWriter,
    within_device: OneWriter,
    loads: OneWriter,
    load_time: OneWriter,
    kernel_time: BusyTime,
    multiprocessor_time: AtomicU64,
    copy_time: BusyTime,
    waited: BusyTime,
    throttled: BusyTime,
    faults: AtomicU64,
    code_from_disk: AtomicU64,
    code_compiled: AtomicU64,
}

/// A count that one thread adds to, the session's, so that adding needs no locked instruction.
#[derive(Debug, Default)]
struct OneWriter(AtomicU64);

impl OneWriter {
    fn add(&self, more: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(more);
        self.0.store(sum, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl ClientAccounts {
    /// Accounts with nothing in them, of a client that may have so many multiprocessors of each device, and whose memory is
    /// counted there. Of a device that is not among them nothing is counted.
    #[must_use]
    pub fn new(granted: &[u32], memory: Vec<Arc<AtomicU64>>) -> Self {
        Self {
            devices: granted.iter().map(|_| Counters::default()).collect(),
            granted: granted.into(),
            memory,
        }
    }

    fn of(&self, device: u32) -> Option<&Counters> {
        self.devices.get(device as usize)
    }

    /// The session has handed kernels to the engine.
    pub fn add_launches(&self, device: u32, kernels: u64) {
        if let Some(counters) = self.of(device) {
            counters.kernels.add(kernels);
        }
    }

    /// The session has handed a copy of so many bytes, a fill or a write to the engine.
    pub fn add_copy(&self, device: u32, direction: Direction, bytes: u64) {
        let Some(counters) = self.of(device) else {
            return;
        };
        counters.copies.add(1);
        match direction {
            Direction::ToDevice => counters.to_device.add(bytes),
            Direction::FromDevice => counters.from_device.add(bytes),
            Direction::WithinDevice => counters.within_device.add(bytes),
            Direction::WithinHost => {}
        }
    }

    /// The session has loaded a module, which took so many nanoseconds.
    pub fn add_module_load(&self, device: u32, nanoseconds: u64) {
        if let Some(counters) = self.of(device) {
            counters.loads.add(1);
            counters.load_time.add(nanoseconds);
        }
    }

    /// A device worked for the client; from any thread.
    pub fn add_busy_time(&self, span: &Span) {
        let Some(counters) = self.of(span.device) else {
            return;
        };
        match span.activity {
            Activity::Copy => counters.copy_time.add(span.began, span.ended),
            Activity::Kernel => {
                counters.kernel_time.add(span.began, span.ended);
                let multiprocessors = span
                    .multiprocessors
                    .unwrap_or(self.granted[span.device as usize]);
                let took = span.ended.saturating_sub(span.began);
                counters.multiprocessor_time.fetch_add(
                    took.saturating_mul(multiprocessors.into()),
                    Ordering::Relaxed,
                );
            }
        }
    }

    /// The client's work waited for other clients from then until then; from any thread.
    pub fn add_wait(&self, device: u32, began: u64, ended: u64) {
        if let Some(counters) = self.of(device) {
            counters.waited.add(began, ended);
        }
    }

    /// A limit of the client's own held its work back from then until then; from any thread.
    pub fn add_throttling(&self, device: u32, began: u64, ended: u64) {
        if let Some(counters) = self.of(device) {
            counters.throttled.add(began, ended);
        }
    }

    /// A context on a device died of a fault; from any thread.
    pub fn add_fault(&self, device: u32) {
        if let Some(counters) = self.of(device) {
            counters.faults.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Code for the client came from there; from any thread.
    pub fn add_code(&self, device: u32, from: CodeSource) {
        if let Some(counters) = self.of(device) {
            let counter = match from {
                CodeSource::Disk => &counters.code_from_disk,
                CodeSource::Compiler => &counters.code_compiled,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What the client has had, by device.
    #[must_use]
    pub fn read(&self) -> Vec<DeviceAccount> {
        let memory = self
            .memory
            .iter()
            .map(|bytes| bytes.load(Ordering::Relaxed));
        self.devices
            .iter()
            .zip(memory)
            .map(|(counters, memory)| DeviceAccount {
                memory,
                kernels: counters.kernels.get(),
                kernel_time: counters.kernel_time.get(),
                multiprocessor_time: counters.multiprocessor_time.load(Ordering::Relaxed),
                copies: counters.copies.get(),
                copy_time: counters.copy_time.get(),
                bytes_to_device: counters.to_device.get(),
                bytes_from_device: counters.from_device.get(),
                bytes_within_device: counters.within_device.get(),
                loads: counters.loads.get(),
                load_time: counters.load_time.get(),
                waited: counters.waited.get(),
                throttled: counters.throttled.get(),
                faults: counters.faults.load(Ordering::Relaxed),
                // The session knows.
                queued: 0,
                code_from_disk: counters.code_from_disk.load(Ordering::Relaxed),
                code_compiled: counters.code_compiled.load(Ordering::Relaxed),
            })
            .collect()
    }
}

/// Intervals that are remembered, since another may yet overlap them. More can only be where so many threads tell of their own,
/// each late by more than the others took.
const REMEMBERED: usize = 32;

/// The length of the union of intervals, which come about in the order of their ends.
#[derive(Debug, Default)]
struct BusyTime {
    total: AtomicU64,
    /// The latest intervals, disjoint and in order.
    latest: Mutex<VecDeque<(u64, u64)>>,
}

impl BusyTime {
    fn get(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    fn add(&self, began: u64, ended: u64) {
        if ended <= began {
            return;
        }
        let mut latest = self.latest.lock();
        let more = match latest.back_mut() {
            // The common cases: it comes after all others, or the last one grows.
            Some(last) if (last.0..=last.1).contains(&began) => {
                let more = ended.saturating_sub(last.1);
                last.1 += more;
                more
            }
            Some(last) if began < last.0 => insert(&mut latest, began, ended),
            _ => {
                latest.push_back((began, ended));
                ended - began
            }
        };
        if latest.len() > REMEMBERED {
            latest.pop_front();
        }
        // Under the lock, so that it only grows.
        let total = self.total.load(Ordering::Relaxed) + more;
        self.total.store(total, Ordering::Relaxed);
    }
}

/// Puts an interval among others, disjoint and in order, and says by how much they are longer together.
fn insert(intervals: &mut VecDeque<(u64, u64)>, began: u64, ended: u64) -> u64 {
    let mut merged = (began, ended);
    let mut known = 0;
    // Those from here on begin after the new one ends.
    let after = intervals.partition_point(|interval| interval.0 <= ended);
    let mut at = after;
    while let Some(before) = at.checked_sub(1)
        && let Some(&interval) = intervals.get(before)
        && interval.1 >= merged.0
    {
        known += interval.1 - interval.0;
        merged = (merged.0.min(interval.0), merged.1.max(interval.1));
        at = before;
    }
    intervals.drain(at..after);
    intervals.insert(at, merged);
    merged.1 - merged.0 - known
}

#[cfg(test)]
mod tests {
    use super::*;

    fn union(intervals: &[(u64, u64)]) -> u64 {
        let busy = BusyTime::default();
        for &(began, ended) in intervals {
            busy.add(began, ended);
        }
        busy.get()
    }

    #[test]
    fn overlapping_time_counts_once() {
        assert_eq!(union(&[]), 0);
        assert_eq!(union(&[(5, 5), (7, 3)]), 0, "no time at all");
        assert_eq!(union(&[(0, 10), (10, 20), (30, 31)]), 21);
        assert_eq!(union(&[(5, 6), (0, 10)]), 10, "a long one told of late");
        assert_eq!(union(&[(0, 10), (2, 3), (0, 10)]), 10);
        assert_eq!(union(&[(0, 2), (4, 6), (8, 10), (1, 9)]), 10);
        assert_eq!(union(&[(8, 10), (0, 2), (4, 6)]), 6, "out of order");
        assert_eq!(union(&[(8, 10), (0, 2), (1, 9)]), 10);
    }

    #[test]
    fn it_is_the_union_whatever_comes() {
        // Each instant on its own, beside what is kept of intervals. No more of these are apart than are remembered.
        let mut seed = 7_u64;
        for _ in 0..200 {
            let mut instants = [false; 60];
            let busy = BusyTime::default();
            for _ in 0..12 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let began = (seed >> 33) % 60;
                let ended = (began + (seed >> 50) % 9).min(60);
                busy.add(began, ended);
                for instant in began..ended {
                    instants[instant as usize] = true;
                }
                let covered = instants.iter().filter(|busy| **busy).count();
                assert_eq!(busy.get(), covered as u64);
            }
        }
    }

    #[test]
    fn what_is_counted_is_read_by_device() {
        let memory = [3_u64, 4].map(|bytes| Arc::new(AtomicU64::new(bytes)));
        let accounts = ClientAccounts::new(&[10, 20], memory.to_vec());
        accounts.add_launches(1, 5);
        accounts.add_launches(9, 5);
        accounts.add_copy(0, Direction::ToDevice, 100);
        accounts.add_copy(0, Direction::FromDevice, 10);
        accounts.add_copy(0, Direction::WithinDevice, 1);
        accounts.add_copy(0, Direction::WithinHost, 1000);
        accounts.add_module_load(1, 77);
        accounts.add_wait(1, 10, 14);
        // Of several streams, whose waits overlap.
        accounts.add_wait(1, 12, 16);
        accounts.add_throttling(1, 30, 35);
        accounts.add_fault(1);
        let span = Span {
            at: protocol::operations::At {
                stream: 0,
                sequence: 1,
            },
            device: 1,
            activity: Activity::Kernel,
            began: 100,
            ended: 107,
            multiprocessors: Some(2),
        };
        accounts.add_busy_time(&span);
        accounts.add_busy_time(&Span {
            multiprocessors: None,
            ..span
        });
        accounts.add_busy_time(&Span {
            device: 0,
            activity: Activity::Copy,
            ..span
        });
        for from in [CodeSource::Compiler, CodeSource::Disk, CodeSource::Compiler] {
            accounts.add_code(0, from);
        }
        assert_eq!(
            accounts.read(),
            [
                DeviceAccount {
                    memory: 3,
                    copies: 4,
                    bytes_to_device: 100,
                    bytes_from_device: 10,
                    bytes_within_device: 1,
                    copy_time: 7,
                    code_from_disk: 1,
                    code_compiled: 2,
                    ..DeviceAccount::default()
                },
                DeviceAccount {
                    memory: 4,
                    kernels: 5,
                    kernel_time: 7,
                    multiprocessor_time: 7 * 2 + 7 * 20,
                    loads: 1,
                    load_time: 77,
                    waited: 6,
                    throttled: 5,
                    faults: 1,
                    ..DeviceAccount::default()
                },
            ]
        );
    }
}
