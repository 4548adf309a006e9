//! The simulation on one CUDA device or on several.
//!
//! Each device moves its own share of the bodies and needs the positions of all. Every device has two
//! copies of all positions, one being read and one being written, and sends its share of the new
//! ones to the others after each step. With `-hostmem` there is one pair of copies in host memory,
//! which all devices read and write, and nothing to send.
//!
//! Called by `main`. Must not know the command line.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::rc::Rc;

use crate::bodies::{BLOCK, Bodies, Real, SOFTENING_SQUARED, TIME_STEP};
use crate::cuda::{Context, DeviceMemory, Event, Kernel, PinnedMemory, Stream};
use crate::driver::{CU_EVENT_DEFAULT, CU_EVENT_DISABLE_TIMING, CUdeviceptr, CudaError};

/// Made from `nbody.cu`, which says how; a NUL ends it, as the driver wants of PTX text.
const PTX: &str = concat!(include_str!("../nbody.ptx"), "\0");

pub struct Simulation<T> {
    shares: Vec<Share>,
    /// Which copy of the positions is the present one.
    present: usize,
    bodies: u32,
    start: Event,
    end: Event,
    real: PhantomData<T>,
}

/// One device's part.
struct Share {
    stream: Stream,
    kernel: Kernel,
    positions: [Memory; 2],
    velocities: Memory,
    /// Takes data to and from device memory; absent where the bodies are in host memory already.
    staging: Option<[PinnedMemory; 2]>,
    /// This device's positions of the last step are where all devices read them.
    delivered: Event,
    first: u32,
    count: u32,
}

/// Where bodies are kept.
enum Memory {
    Device(DeviceMemory),
    Host(Rc<PinnedMemory>, CUdeviceptr),
}

impl Memory {
    fn address(&self) -> CUdeviceptr {
        match self {
            Self::Device(memory) => memory.address(),
            Self::Host(_, address) => *address,
        }
    }
}

impl<T: Real> Simulation<T> {
    /// Spreads `bodies` (a multiple of `BLOCK`, at least one block for each context) over the devices.
    pub fn new(contexts: &[Rc<Context>], bodies: u32, hostmem: bool) -> Result<Self, CudaError> {
        let ptx = CStr::from_bytes_until_nul(PTX.as_bytes()).expect("invariant: PTX ends in a NUL");
        let quads = |count: u32| count as usize * size_of::<[T; 4]>();
        let shared = match hostmem {
            true => Some([
                Rc::new(PinnedMemory::new(&contexts[0], quads(bodies))?),
                Rc::new(PinnedMemory::new(&contexts[0], quads(bodies))?),
            ]),
            false => None,
        };
        let boundary = |share: usize| bodies / BLOCK * share as u32 / contexts.len() as u32 * BLOCK;
        let shares = contexts.iter().enumerate().map(|(index, context)| {
            let first = boundary(index);
            let count = boundary(index + 1) - first;
            let host = |memory: &Rc<PinnedMemory>| {
                let address = memory.address_on(context)?;
                Ok(Memory::Host(Rc::clone(memory), address))
            };
            let device = |count| DeviceMemory::new(context, quads(count)).map(Memory::Device);
            let (positions, velocities, staging) = match &shared {
                Some([even, odd]) => {
                    let velocities = Rc::new(PinnedMemory::new(context, quads(count))?);
                    ([host(even)?, host(odd)?], host(&velocities)?, None)
                }
                None => {
                    let staging = [
                        PinnedMemory::new(context, quads(bodies))?,
                        PinnedMemory::new(context, quads(count))?,
                    ];
                    (
                        [device(bodies)?, device(bodies)?],
                        device(count)?,
                        Some(staging),
                    )
                }
            };
            Ok(Share {
                stream: Stream::new(context)?,
                kernel: Kernel::load(context, ptx, T::KERNEL)?,
                positions,
                velocities,
                staging,
                delivered: Event::new(context, CU_EVENT_DISABLE_TIMING)?,
                first,
                count,
            })
        });
        Ok(Self {
            shares: shares.collect::<Result<_, CudaError>>()?,
            present: 0,
            bodies,
            start: Event::new(&contexts[0], CU_EVENT_DEFAULT)?,
            end: Event::new(&contexts[0], CU_EVENT_DEFAULT)?,
            real: PhantomData,
        })
    }

    /// Sets the state of all bodies.
    pub fn upload(&mut self, bodies: &Bodies<T>) -> Result<(), CudaError> {
        self.synchronize()?;
        for share in &self.shares {
            let own = share.first as usize..(share.first + share.count) as usize;
            let staging = share.staging.as_ref();
            let targets = [&share.positions[self.present], &share.velocities];
            let values = [&bodies.positions[..], &bodies.velocities[own]];
            for (which, (target, values)) in targets.into_iter().zip(values).enumerate() {
                match (target, staging) {
                    (Memory::Host(memory, _), _) => memory.fill(values),
                    (Memory::Device(memory), Some(staging)) => {
                        staging[which].fill(values);
                        memory.upload(&staging[which], &share.stream)?;
                    }
                    (Memory::Device(_), None) => {
                        unreachable!("invariant: device memory has its staging memory")
                    }
                }
            }
        }
        self.synchronize()
    }

    /// Reads the state of all bodies back.
    pub fn download(&self) -> Result<Bodies<T>, CudaError> {
        for share in &self.shares {
            let sources = [&share.positions[self.present], &share.velocities];
            for (source, staging) in sources.into_iter().zip(share.staging.iter().flatten()) {
                if let Memory::Device(memory) = source {
                    memory.download(staging, &share.stream)?;
                }
            }
        }
        self.synchronize()?;
        let zero = vec![[T::default(); 4]; self.bodies as usize];
        let mut bodies = Bodies {
            positions: zero.clone(),
            velocities: zero,
        };
        for (index, share) in self.shares.iter().enumerate() {
            let own = share.first as usize..(share.first + share.count) as usize;
            let read = |which: usize, source: &Memory, values: &mut [[T; 4]]| match source {
                Memory::Host(memory, _) => memory.read(values),
                Memory::Device(_) => {
                    if let Some(staging) = &share.staging {
                        staging[which].read(values);
                    }
                }
            };
            if index == 0 {
                // Every device has all positions, so a missed exchange would show in the last steps.
                read(0, &share.positions[self.present], &mut bodies.positions);
            }
            read(1, &share.velocities, &mut bodies.velocities[own]);
        }
        Ok(bodies)
    }

    /// Moves the bodies on by `steps` and returns the milliseconds that it took by the device's clock.
    pub fn advance(&mut self, steps: u32) -> Result<f64, CudaError> {
        self.synchronize()?;
        self.start.record(&self.shares[0].stream)?;
        for _ in 0..steps {
            self.step()?;
        }
        let first = &self.shares[0].stream;
        for share in &self.shares[1..] {
            first.wait(&share.delivered)?;
        }
        self.end.record(first)?;
        self.synchronize()?;
        self.end.milliseconds_since(&self.start)
    }

    fn step(&mut self) -> Result<(), CudaError> {
        let next = 1 - self.present;
        // All waits before any record of this step: they are for the step before.
        for (index, share) in self.shares.iter().enumerate() {
            for (_, other) in self.others(index) {
                share.stream.wait(&other.delivered)?;
            }
        }
        for (index, share) in self.shares.iter().enumerate() {
            self.launch(share)?;
            if self.shares.len() == 1 {
                continue;
            }
            let quad = size_of::<[T; 4]>();
            let (offset, size) = (share.first as usize * quad, share.count as usize * quad);
            for (_, other) in self.others(index) {
                // The other device has finished reading this copy: `launch` came after its event
                // of the step before.
                if let (Memory::Device(from), Memory::Device(to)) =
                    (&share.positions[next], &other.positions[next])
                {
                    from.send(to, offset, size, &share.stream)?;
                }
            }
            share.delivered.record(&share.stream)?;
        }
        self.present = next;
        Ok(())
    }

    fn others(&self, index: usize) -> impl Iterator<Item = (usize, &Share)> {
        self.shares
            .iter()
            .enumerate()
            .filter(move |(other, _)| *other != index)
    }

    fn launch(&self, share: &Share) -> Result<(), CudaError> {
        let mut new_positions = share.positions[1 - self.present].address();
        let mut positions = share.positions[self.present].address();
        let mut velocities = share.velocities.address();
        let mut first = share.first;
        let mut tiles = self.bodies / BLOCK;
        let mut time_step = T::from_f64(TIME_STEP);
        let mut softening_squared = T::from_f64(SOFTENING_SQUARED);
        let mut parameters: [*mut c_void; 7] = [
            (&raw mut new_positions).cast(),
            (&raw mut positions).cast(),
            (&raw mut velocities).cast(),
            (&raw mut first).cast(),
            (&raw mut tiles).cast(),
            (&raw mut time_step).cast(),
            (&raw mut softening_squared).cast(),
        ];
        // SAFETY: the types are those of `nbody.cu`; both position buffers hold `tiles` blocks of
        // bodies and the velocities `count`, as `new` made them; they outlive the stream's work,
        // because `drop` synchronises first.
        unsafe {
            share
                .kernel
                .launch(share.count / BLOCK, BLOCK, &share.stream, &mut parameters)
        }
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        self.shares
            .iter()
            .try_for_each(|share| share.stream.synchronize())
    }
}

impl<T> Drop for Simulation<T> {
    fn drop(&mut self) {
        for share in &self.shares {
            // After an error the work is over too.
            let _ = share.stream.synchronize();
        }
    }
}
