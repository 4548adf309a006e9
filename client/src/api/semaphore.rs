//! Semaphores of other interfaces: taking one by its descriptor, signalling, waiting, and letting it go.
//!
//! Owns the checks. Called by the shells of `exports`, and by `api::graph::semaphores` for nodes. Must not know how a
//! server waits.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC, CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS,
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, CUexternalSemaphore, CUstream,
};
use protocol::operations::{FOREIGN_PACKET, SemaphoreDestroy, SemaphoreImport};

use super::Outcome;
use crate::context::current;
use crate::graph::node::Payload;
use crate::graph::semaphores::{Described, Semaphores};
use crate::pointers::{In, List, Out};
use crate::session::session;
use crate::stream;

/// CUexternalSemaphoreHandleType: descriptors of Linux; what Windows and NVIDIA's own interfaces have.
const DESCRIPTORS: [u32; 2] = [1, 9];
const ELSEWHERE: [u32; 8] = [2, 3, 4, 5, 6, 7, 8, 10];

const WRONG: CUresult = CUresult::ERROR_INVALID_VALUE;

pub(crate) fn cuImportExternalSemaphore(
    semaphore: Out<CUexternalSemaphore>,
    sem_handle_desc: In<CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC>,
) -> Outcome {
    let session = session()?;
    semaphore.required()?;
    let described = sem_handle_desc.get()?;
    match described.r#type {
        kind if DESCRIPTORS.contains(&kind) => {}
        kind if ELSEWHERE.contains(&kind) => return Err(CUresult::ERROR_NOT_SUPPORTED),
        _ => return Err(WRONG),
    }
    let number = described.handle[0] as u32 as i32;
    if number < 0 || described.flags != 0 {
        return Err(WRONG);
    }
    let current = current()?;
    let handle = session.externals.new_semaphore();
    let request = SemaphoreImport {
        semaphore: handle,
        context: current.slot(),
        kind: described.r#type,
    };
    // SAFETY: the program promises an open descriptor; one that is not open fails to be sent.
    let theirs = unsafe { BorrowedFd::borrow_raw(number) };
    let imported = current
        .connection()
        .call_with_descriptor(FOREIGN_PACKET, theirs, &request);
    if imported.is_err() {
        crate::log::log!(
            "cuImportExternalSemaphore: descriptor {number} is not taken. Semaphores of Vulkan need an NVIDIA GPU, and a \
             server of this client alone: `openmps control -d --isolation=client`"
        );
    }
    imported?;
    // SAFETY: the program gives the descriptor away with a call that succeeds.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
    session.externals.add_semaphore(handle);
    semaphore.set(CUexternalSemaphore::from_bits(handle))
}

pub(crate) fn cuDestroyExternalSemaphore(ext_sem: CUexternalSemaphore) -> Outcome {
    let session = session()?;
    if !session.externals.remove_semaphore(ext_sem.bits()) {
        return Err(WRONG);
    }
    session.post(&SemaphoreDestroy {
        semaphore: ext_sem.bits(),
    })
}

/// A program's list of semaphores, and what is to be done to each, checked.
pub(super) fn checked(
    context: u64,
    handles: &[CUexternalSemaphore],
    params: Described,
) -> Result<Semaphores, CUresult> {
    let externals = &session()?.externals;
    let handles: Box<[u64]> = handles.iter().map(|it| it.bits()).collect();
    if !handles.iter().all(|it| externals.is_semaphore(*it)) {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    // The only flag there is is about NvSciSync.
    let plain = match &params {
        Described::Signal(all) => all.iter().all(|it| it.flags == 0),
        Described::Wait(all) => all.iter().all(|it| it.flags == 0),
    };
    match plain {
        true => Ok(Semaphores {
            context,
            handles,
            params,
        }),
        false => Err(WRONG),
    }
}

fn put(stream: CUstream, handles: Vec<CUexternalSemaphore>, params: Described) -> Outcome {
    let target = stream::target(stream)?;
    let semaphores = checked(target.stream.context(), &handles, params)?;
    if let Some(capture) = target.current_capture()? {
        return capture.add(
            target.slot,
            Payload::Semaphores(Arc::new(semaphores)).into(),
        );
    }
    semaphores.enqueue(&target)
}

pub(crate) fn cuSignalExternalSemaphoresAsync(
    ext_sem_array: List<CUexternalSemaphore>,
    params_array: List<CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS>,
    num_ext_sems: u32,
    stream: CUstream,
) -> Outcome {
    let params = Described::Signal(params_array.get(num_ext_sems)?.into());
    put(stream, ext_sem_array.get(num_ext_sems)?, params)
}

pub(crate) fn cuWaitExternalSemaphoresAsync(
    ext_sem_array: List<CUexternalSemaphore>,
    params_array: List<CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS>,
    num_ext_sems: u32,
    stream: CUstream,
) -> Outcome {
    let params = Described::Wait(params_array.get(num_ext_sems)?.into());
    put(stream, ext_sem_array.get(num_ext_sems)?, params)
}
