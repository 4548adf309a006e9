//! Two devices: reaching each other's memory, copying from one to the other, and batches of copies.
//!
//! Owns what of a pair of devices is allowed and told. Called by the shells of `exports`; `pool` calls it to let
//! devices reach a pool. Must not know which way the bytes go: `copy` does.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUcontext, CUdevice, CUdevice_P2PAttribute, CUdeviceptr,
    CUmemcpyAttributes, CUstream,
};
use protocol::operations::{CONTEXT_SLOTS, PeerAccess};

use super::Outcome;
use super::copy::{between_any, device_to_device};
use super::copy_box::copy_3d;
use crate::context::{Current, current, current_as_it_is};
use crate::memory::copy::Return;
use crate::pointers::{In, List, Out};
use crate::session::connection::Device;
use crate::session::{Session, session};
use crate::stream::target;

/// Copies that a batch may have: more than any program's.
const MOST_COPIES: usize = 1 << 24;

/// CU_MEMCPY_SRC_ACCESS_ORDER_ANY, the last of the orders; 0 is none.
const LAST_ORDER: u32 = 3;

/// Whether kernels on one device can reach the memory of another.
pub(super) fn reach_each_other(one: &Device, other: &Device) -> bool {
    one.number != other.number && one.facts.reaches_peers() && other.facts.reaches_peers()
}

pub(crate) fn cuDeviceCanAccessPeer(
    can_access_peer: Out<i32>,
    ordinal: CUdevice,
    peer: CUdevice,
) -> Outcome {
    let session = session()?;
    let (one, other) = (session.device(ordinal)?, session.device(peer)?);
    can_access_peer.set(i32::from(reach_each_other(one, other)))
}

pub(crate) fn cuDeviceGetP2PAttribute(
    value: Out<i32>,
    attribute: CUdevice_P2PAttribute,
    source: CUdevice,
    destination: CUdevice,
) -> Outcome {
    let session = session()?;
    value.required()?;
    let (one, other) = (session.device(source)?, session.device(destination)?);
    if source == destination {
        return Err(CUresult::ERROR_INVALID_DEVICE);
    }
    let reach = i32::from(reach_each_other(one, other));
    value.set(match attribute {
        CUdevice_P2PAttribute::ACCESS_SUPPORTED
        | CUdevice_P2PAttribute::NATIVE_ATOMIC_SUPPORTED => reach,
        // All links are alike, and arrays are not reached.
        CUdevice_P2PAttribute::PERFORMANCE_RANK
        | CUdevice_P2PAttribute::ACCESS_ACCESS_SUPPORTED
        | CUdevice_P2PAttribute::ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED => 0,
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    })
}

/// The current context and the peer that a call names.
fn pair(peer: CUcontext) -> Result<(Current, Current), CUresult> {
    let current = current()?;
    let peer = session()?.contexts.get(peer.bits())?;
    Ok((current, peer))
}

pub(crate) fn cuCtxEnablePeerAccess(peer_context: CUcontext, flags: u32) -> Outcome {
    let (current, peer) = pair(peer_context)?;
    if flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let device = peer.device()?;
    if !reach_each_other(current.device()?, device) {
        return Err(CUresult::ERROR_PEER_ACCESS_UNSUPPORTED);
    }
    let mut peers = current.context.peers();
    if peers.contains(&peer.handle()) {
        return Err(CUresult::ERROR_PEER_ACCESS_ALREADY_ENABLED);
    }
    session()?.call(&PeerAccess {
        context: current.slot(),
        device: device.number,
        enabled: 1,
    })?;
    peers.push(peer.handle());
    Ok(())
}

/// Lets all contexts on a device reach the memory on another; those that are made later ask by
/// themselves ([`Pools::reached_from`](crate::memory::pool::Pools::reached_from)).
pub(super) fn enable_peer_access(
    session: &'static Session,
    from: CUdevice,
    to: CUdevice,
) -> Outcome {
    let (one, other) = (session.device(from)?, session.device(to)?);
    if !reach_each_other(one, other) {
        return Err(CUresult::ERROR_INVALID_DEVICE);
    }
    for current in session.contexts.on_device(from) {
        session.call(&PeerAccess {
            context: current.slot(),
            device: other.number,
            enabled: 1,
        })?;
    }
    Ok(())
}

pub(crate) fn cuCtxDisablePeerAccess(peer_context: CUcontext) -> Outcome {
    let (current, peer) = pair(peer_context)?;
    let session = session()?;
    let mut peers = current.context.peers();
    let at = peers.iter().position(|&other| other == peer.handle());
    peers.swap_remove(at.ok_or(CUresult::ERROR_PEER_ACCESS_NOT_ENABLED)?);
    let device = peer.context.device();
    // Another context of the same device may still be a peer.
    let on_device = |&other: &u64| {
        let other = session.contexts.get(other);
        other.is_ok_and(|other| other.context.device() == device)
    };
    if peers.iter().any(on_device) {
        return Ok(());
    }
    session
        .call(&PeerAccess {
            context: current.slot(),
            device: peer.device()?.number,
            enabled: 0,
        })
        .map(drop)
}

/// The contexts that a copy names.
fn contexts(to: CUcontext, from: CUcontext) -> Result<[Current; 2], CUresult> {
    let current = current_as_it_is()?;
    // NULL is the current one, as NVIDIA's driver has it.
    let named = |context: CUcontext| match context.bits() {
        0 => Ok(current),
        bits => session()?.contexts.get(bits),
    };
    Ok([named(to)?, named(from)?])
}

/// A copy without a stream comes after all work of both contexts.
fn drain(contexts: [Current; 2]) -> Outcome {
    contexts
        .iter()
        .filter(|context| context.context.is_made())
        .try_for_each(Current::drain)
}

pub(crate) fn cuMemcpyPeer(
    dst_device: CUdeviceptr,
    dst_context: CUcontext,
    src_device: CUdeviceptr,
    src_context: CUcontext,
    byte_count: usize,
) -> Outcome {
    let contexts = contexts(dst_context, src_context)?;
    drain(contexts)?;
    let target = target(CUstream::NULL)?;
    device_to_device(
        dst_device,
        src_device,
        byte_count,
        CUstream::NULL,
        Return::Early,
    )?;
    // And before all later work of both, whose streams know nothing of this one.
    target.wait(target.stream.posted())
}

pub(crate) fn cuMemcpyPeerAsync(
    dst_device: CUdeviceptr,
    dst_context: CUcontext,
    src_device: CUdeviceptr,
    src_context: CUcontext,
    byte_count: usize,
    stream: CUstream,
) -> Outcome {
    contexts(dst_context, src_context)?;
    device_to_device(dst_device, src_device, byte_count, stream, Return::Early)
}

/// The same box without the contexts, which addresses make superfluous.
fn plain(copy: &CUDA_MEMCPY3D_PEER) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcXInBytes: copy.srcXInBytes,
        srcY: copy.srcY,
        srcZ: copy.srcZ,
        srcLOD: copy.srcLOD,
        srcMemoryType: copy.srcMemoryType,
        srcHost: copy.srcHost,
        srcDevice: copy.srcDevice,
        srcArray: copy.srcArray,
        reserved0: std::ptr::null_mut(),
        srcPitch: copy.srcPitch,
        srcHeight: copy.srcHeight,
        dstXInBytes: copy.dstXInBytes,
        dstY: copy.dstY,
        dstZ: copy.dstZ,
        dstLOD: copy.dstLOD,
        dstMemoryType: copy.dstMemoryType,
        dstHost: copy.dstHost,
        dstDevice: copy.dstDevice,
        dstArray: copy.dstArray,
        reserved1: std::ptr::null_mut(),
        dstPitch: copy.dstPitch,
        dstHeight: copy.dstHeight,
        WidthInBytes: copy.WidthInBytes,
        Height: copy.Height,
        Depth: copy.Depth,
    }
}

pub(crate) fn cuMemcpy3DPeer(copy: In<CUDA_MEMCPY3D_PEER>) -> Outcome {
    let copy = copy.get()?;
    drain(contexts(copy.dstContext, copy.srcContext)?)?;
    let target = target(CUstream::NULL)?;
    copy_3d(&target, &plain(&copy), Return::WhenDone)?;
    target.wait(target.stream.posted())
}

pub(crate) fn cuMemcpy3DPeerAsync(copy: In<CUDA_MEMCPY3D_PEER>, stream: CUstream) -> Outcome {
    let copy = copy.get()?;
    contexts(copy.dstContext, copy.srcContext)?;
    copy_3d(&target(stream)?, &plain(&copy), Return::Early)
}

/// Checks the attributes of a batch: each holds from its index on, the first from 0.
fn check_attributes(attributes: &[CUmemcpyAttributes], indices: &[usize], count: usize) -> Outcome {
    let wrong = Err(CUresult::ERROR_INVALID_VALUE);
    if attributes.is_empty() || attributes.len() > count || indices.first() != Some(&0) {
        return wrong;
    }
    let rising = indices.windows(2).all(|pair| pair[0] < pair[1]);
    let inside = indices.iter().all(|&index| index < count);
    let known = attributes
        .iter()
        .all(|attribute| (1..=LAST_ORDER).contains(&attribute.srcAccessOrder));
    if rising && inside && known {
        Ok(())
    } else {
        wrong
    }
}

#[allow(clippy::too_many_arguments, reason = "CUDA's function has them")]
pub(crate) fn cuMemcpyBatchAsync(
    dsts: List<CUdeviceptr>,
    srcs: List<CUdeviceptr>,
    sizes: List<usize>,
    count: usize,
    attrs: List<CUmemcpyAttributes>,
    attr_idxs: List<usize>,
    num_attrs: usize,
    fail_idx: Out<usize>,
    stream: CUstream,
) -> Outcome {
    // What fails as a whole fails at no copy in particular.
    fail_idx.set_if(usize::MAX);
    batch(
        (&dsts, &srcs, &sizes, count),
        (&attrs, &attr_idxs, num_attrs),
        stream,
        |at| fail_idx.set_if(at),
    )
}

#[allow(clippy::too_many_arguments, reason = "CUDA's function has them")]
pub(crate) fn cuMemcpyBatchAsync_v2(
    dsts: List<CUdeviceptr>,
    srcs: List<CUdeviceptr>,
    sizes: List<usize>,
    count: usize,
    attrs: List<CUmemcpyAttributes>,
    attr_idxs: List<usize>,
    num_attrs: usize,
    stream: CUstream,
) -> Outcome {
    batch(
        (&dsts, &srcs, &sizes, count),
        (&attrs, &attr_idxs, num_attrs),
        stream,
        |_| {},
    )
}

fn batch(
    (dsts, srcs, sizes, count): (&List<CUdeviceptr>, &List<CUdeviceptr>, &List<usize>, usize),
    (attrs, attr_idxs, num_attrs): (&List<CUmemcpyAttributes>, &List<usize>, usize),
    stream: CUstream,
    failed_at: impl Fn(usize),
) -> Outcome {
    // Not in the legacy stream, says the manual; its slot is its context's.
    if target(stream)?.slot < CONTEXT_SLOTS {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if count == 0 || count > MOST_COPIES || num_attrs > count {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let (number, attributes) = (count as u32, num_attrs as u32);
    check_attributes(&attrs.get(attributes)?, &attr_idxs.get(attributes)?, count)?;
    let (dsts, srcs, sizes) = (dsts.get(number)?, srcs.get(number)?, sizes.get(number)?);
    // In order, which is one of the orders that a batch allows; sources are read during the call
    // where they are the program's own memory, as each order allows too.
    for (at, ((dst, src), size)) in dsts.into_iter().zip(srcs).zip(sizes).enumerate() {
        between_any(dst, src, size, stream, Return::Early).inspect_err(|_| failed_at(at))?;
    }
    Ok(())
}

impl Session {
    /// The ordinal of a device that this process sees, by its number for the server.
    pub(crate) fn ordinal_of(&self, number: u32) -> Option<CUdevice> {
        self.ordinal_where(|device| device.number == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::managed_advice::NOWHERE;

    #[test]
    fn attributes_of_a_batch_begin_at_0_and_rise() {
        let attributes = |order| CUmemcpyAttributes {
            srcAccessOrder: order,
            srcLocHint: NOWHERE,
            dstLocHint: NOWHERE,
            flags: 0,
        };
        let two = [attributes(1), attributes(3)];
        assert_eq!(check_attributes(&two, &[0, 2], 3), Ok(()));
        for indices in [[1, 2], [0, 0], [0, 3]] {
            assert!(check_attributes(&two, &indices, 3).is_err(), "{indices:?}");
        }
        assert!(check_attributes(&[], &[], 3).is_err());
        assert!(check_attributes(&[attributes(0)], &[0], 3).is_err());
        assert!(check_attributes(&[attributes(4)], &[0], 3).is_err());
    }
}
