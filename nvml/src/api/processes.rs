//! The processes that use a device. All that a client can make are compute processes.
//!
//! Owns nothing: it asks the daemon's view. Called by the exports. Must not tell of processes that the view has
//! not.

use cuda_abi::nvml::nvmlReturn_t;

use super::version_is;
use crate::params::{ListOut, Out};
use crate::state;
use crate::structs::{
    nvmlDevice_t, nvmlProcessDetail_v1_t, nvmlProcessDetailList_t, nvmlProcessInfo_v1_t,
    nvmlProcessInfo_v2_t, version,
};

/// Says that a number is not known.
const NOT_AVAILABLE: u64 = u64::MAX;

/// Says that a process is of no slice of the device.
const NO_INSTANCE: u32 = u32::MAX;

/// Which processes: nvmlProcessMode_t.
const COMPUTE: u32 = 0;
const GRAPHICS: u32 = 1;
const MPS: u32 = 2;
const ALL: u32 = 3;

/// A process, and the bytes of the device that it has.
#[derive(Clone, Copy, Debug)]
struct Process {
    pid: u32,
    used: u64,
}

impl From<Process> for nvmlProcessInfo_v1_t {
    fn from(process: Process) -> Self {
        Self {
            pid: process.pid,
            usedGpuMemory: process.used,
        }
    }
}

impl From<Process> for nvmlProcessInfo_v2_t {
    fn from(process: Process) -> Self {
        Self {
            pid: process.pid,
            usedGpuMemory: process.used,
            gpuInstanceId: NO_INSTANCE,
            computeInstanceId: NO_INSTANCE,
        }
    }
}

impl From<Process> for nvmlProcessDetail_v1_t {
    fn from(process: Process) -> Self {
        Self {
            pid: process.pid,
            usedGpuMemory: process.used,
            gpuInstanceId: NO_INSTANCE,
            computeInstanceId: NO_INSTANCE,
            usedGpuCcProtectedMemory: NOT_AVAILABLE,
        }
    }
}

/// Those of a device that this process is shown.
fn processes(device: nvmlDevice_t) -> Result<Vec<Process>, nvmlReturn_t> {
    let (_, device) = state::facts()?.device(device)?;
    let (view, at) = state::current_view(device)?;
    let on_it = view.processes.iter();
    let on_it = on_it.filter(|process| process.device as usize == at);
    Ok(on_it
        .map(|process| Process {
            pid: match process.is_asker {
                true => std::process::id(),
                false => process.pid.cast_unsigned(),
            },
            used: process.used.unwrap_or(NOT_AVAILABLE),
        })
        .collect())
}

/// Gives a list, or how long it is where there is too little room.
fn write_list<T: Copy + From<Process>>(
    processes: &[Process],
    count: &Out<u32>,
    infos: ListOut<T>,
) -> Result<(), nvmlReturn_t> {
    let room = count.get()?;
    let infos_now: Vec<T> = processes.iter().map(|process| T::from(*process)).collect();
    count.set(infos_now.len() as u32)?;
    infos.set(room, &infos_now)
}

fn compute<T: Copy + From<Process>>(
    device: nvmlDevice_t,
    count: &Out<u32>,
    infos: ListOut<T>,
) -> Result<(), nvmlReturn_t> {
    state::facts()?.device(device)?;
    count.required()?;
    write_list(&processes(device)?, count, infos)
}

/// There are none.
fn none<T: Copy + From<Process>>(
    device: nvmlDevice_t,
    count: &Out<u32>,
    infos: ListOut<T>,
) -> Result<(), nvmlReturn_t> {
    state::facts()?.device(device)?;
    write_list(&[], count, infos)
}

macro_rules! lists {
    ($($how:ident $name:ident $info:ident;)*) => {
        $(pub(crate) fn $name(
            device: nvmlDevice_t,
            count: Out<u32>,
            infos: ListOut<$info>,
        ) -> Result<(), nvmlReturn_t> {
            $how(device, &count, infos)
        })*
    };
}

// A client is a compute process, and is listed once: not among those of MPS again.
lists! {
    compute nvmlDeviceGetComputeRunningProcesses nvmlProcessInfo_v1_t;
    compute nvmlDeviceGetComputeRunningProcesses_v2 nvmlProcessInfo_v2_t;
    compute nvmlDeviceGetComputeRunningProcesses_v3 nvmlProcessInfo_v2_t;
    none nvmlDeviceGetGraphicsRunningProcesses nvmlProcessInfo_v1_t;
    none nvmlDeviceGetGraphicsRunningProcesses_v2 nvmlProcessInfo_v2_t;
    none nvmlDeviceGetGraphicsRunningProcesses_v3 nvmlProcessInfo_v2_t;
    none nvmlDeviceGetMPSComputeRunningProcesses nvmlProcessInfo_v1_t;
    none nvmlDeviceGetMPSComputeRunningProcesses_v2 nvmlProcessInfo_v2_t;
    none nvmlDeviceGetMPSComputeRunningProcesses_v3 nvmlProcessInfo_v2_t;
}

pub(crate) fn nvmlDeviceGetRunningProcessDetailList(
    device: nvmlDevice_t,
    list: Out<nvmlProcessDetailList_t>,
) -> Result<(), nvmlReturn_t> {
    state::facts()?.device(device)?;
    let given = list.get()?;
    version_is(given.version, version::<nvmlProcessDetailList_t>(1))?;
    let found = match given.mode {
        COMPUTE | ALL => processes(device)?,
        GRAPHICS | MPS => Vec::new(),
        _ => return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT),
    };
    list.set(nvmlProcessDetailList_t {
        numProcArrayEntries: found.len() as u32,
        ..given
    })?;
    let details: Vec<_> = found
        .into_iter()
        .map(nvmlProcessDetail_v1_t::from)
        .collect();
    given.procArray.set(given.numProcArrayEntries, &details)
}
