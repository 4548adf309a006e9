//! The ring that a module's kernels write records to, and this process reads.
//!
//! It is pinned memory of this process, so that it can be read while kernels run, and when the device has
//! died: what it died of may be in it. Its first word says how far it was read, in bytes from the very
//! first on; the second how many bytes it has; records begin behind [`CONTROL`] words. A record is in one
//! piece; its first word is its kind and its bytes, is written last, and is 0 where no record is yet, so
//! that what was read is cleared. Kernels set bytes aside by counting in their module's variable
//! (`ring.ptx`).
//!
//! Kernels may write anything there: records are copied once, and then looked at. Called by a module's output. Must
//! not know formats.

use parking_lot::Mutex;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::CUresult;
use engine::Window;

use crate::device::Device;
use crate::sync::Handle;

/// Words before the records.
pub(crate) const CONTROL: usize = 8;

/// Bits of a record's first word that are its bytes; those above are its kind.
const KIND_SHIFT: u32 = 56;
/// Nothing, up to the end of the ring.
const PASSED_OVER: u64 = 1;
/// See `vprintf.ptx`.
pub(crate) const PRINTED: u64 = 2;
/// See `assertfail.ptx`.
pub(crate) const FAILED: u64 = 3;

/// A record as it was written, without its first word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: u64,
    pub(crate) words: Vec<u64>,
}

/// How far a ring was read.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    at: u64,
    /// Something stands there that is no record, and nothing can be read any more.
    broken: bool,
}

impl Reader {
    /// Takes the records that are there, at most as many as the ring holds.
    pub(crate) fn read(&mut self, ring: &[AtomicU64], mut take: impl FnMut(Record)) {
        let Some((control, data)) = ring.split_at_checked(CONTROL) else {
            return;
        };
        let size = 8 * data.len() as u64;
        let most = self.at + size;
        while !self.broken && self.at < most {
            let offset = self.at % size;
            let first = (offset / 8) as usize;
            let header = data[first].load(Ordering::Acquire);
            if header == 0 {
                break;
            }
            let (kind, bytes) = (header >> KIND_SHIFT, header & ((1 << KIND_SHIFT) - 1));
            let known = matches!(kind, PASSED_OVER | PRINTED | FAILED);
            if !known || bytes < 16 || !bytes.is_multiple_of(16) || bytes > size - offset {
                self.broken = true;
                break;
            }
            let record = &data[first..first + (bytes / 8) as usize];
            if kind != PASSED_OVER {
                let words = record[1..].iter().map(|word| word.load(Ordering::Relaxed));
                take(Record {
                    kind,
                    words: words.collect(),
                });
            }
            for word in record {
                word.store(0, Ordering::Relaxed);
            }
            self.at += bytes;
            // Kernels that see this see zeroes.
            control[0].store(self.at, Ordering::Release);
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Ring {
    device: Arc<Device>,
    memory: Handle<NonNull<AtomicU64>>,
    /// Words, with the first ones.
    words: usize,
    reader: Mutex<Reader>,
}

impl Ring {
    /// Makes a ring with this many bytes for records, a multiple of the page's size.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY, and the driver's status.
    pub(crate) fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, CUresult> {
        device.make_room()?;
        let all = bytes + 8 * CONTROL;
        // SAFETY: new memory, wherever there is room for it.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                all,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let out_of_memory = CUresult::ERROR_OUT_OF_MEMORY;
        if memory == libc::MAP_FAILED {
            return Err(out_of_memory);
        }
        let range = Window {
            base: memory as u64,
            bytes: all as u64,
        };
        // SAFETY: the range was just mapped, and is unmapped when it was unregistered.
        let registered = unsafe { device.register_host(range) };
        let usable = registered.and_then(|()| {
            let memory = NonNull::new(memory.cast::<AtomicU64>());
            memory.ok_or(out_of_memory)
        });
        let usable = usable.inspect_err(|_| {
            // SAFETY: this function mapped these bytes, and no reference to them exists: registering them failed.
            unsafe { libc::munmap(memory, all) };
        })?;
        let ring = Self {
            device: Arc::clone(device),
            memory: Handle(usable),
            words: all / 8,
            reader: Mutex::default(),
        };
        ring.words()[1].store(bytes as u64, Ordering::Release);
        Ok(ring)
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the memory is mapped as long as `self`, aligned to a page, zeroed when it came, and
        // reached only as whole atomic words here; what kernels write to it is any value at any time.
        unsafe { std::slice::from_raw_parts(self.memory.0.as_ptr(), self.words) }
    }

    /// Its address, here and for the GPU.
    pub(crate) fn address(&self) -> u64 {
        self.memory.0.as_ptr() as u64
    }

    /// That address, and how many bytes kernels may write from there on.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.address(), self.bytes() as u64)
    }

    /// Bytes of memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        8 * self.words
    }

    /// Takes the records that are there.
    pub(crate) fn read(&self, take: impl FnMut(Record)) {
        self.reader.lock().read(self.words(), take);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let (memory, bytes) = (self.memory, self.bytes());
        self.device.when_idle(bytes as u64, move |driver| {
            let memory = memory.raw().as_ptr().cast::<c_void>();
            // SAFETY: mapped and registered in `new`; kernels that write to it are over, and the module whose they
            // are gets another ring before it runs any again.
            unsafe {
                let _ = driver.cuMemHostUnregister(memory);
                libc::munmap(memory, bytes);
            }
        });
    }
}
