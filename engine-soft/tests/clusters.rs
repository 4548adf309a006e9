//! The clusters that a program sets of a kernel, and what fits.

use cuda_abi::types::{CUfunction_attribute as Attribute, CUlaunchAttributeID};
use engine::CUresult;
use engine::arena::GRANULE;
use engine::conformance::rig::{Guest, params, simple_launch};
use engine_soft::{Config, SoftEngine};
use protocol::operations::{ClusterOccupancy, FunctionSet};

/// Each block stores how many blocks its cluster has.
const TEXT: &str = "
.version 8.0
.target sm_90
.address_size 64
.visible .entry plain(.param .u64 at) { .reg .b64 %d<3>; .reg .b32 %r<3>; ld.param.u64 %d0, [at]; mov.u32 %r0, %ctaid.x;
    mul.wide.u32 %d1, %r0, 4; add.s64 %d0, %d0, %d1; mov.u32 %r1, %cluster_nctarank; st.global.u32 [%d0], %r1; ret; }
.visible .entry pairs(.param .u64 at) .explicitcluster .reqnctapercluster 2 { ret; }
";

/// A launch attribute that names clusters, as it travels.
fn named(blocks: u32) -> Vec<u8> {
    let mut bytes = vec![0; 72];
    bytes[..4].copy_from_slice(&CUlaunchAttributeID::CLUSTER_DIMENSION.0.to_le_bytes());
    for (at, side) in [blocks, 1, 1].into_iter().enumerate() {
        bytes[8 + 4 * at..12 + 4 * at].copy_from_slice(&side.to_le_bytes());
    }
    bytes
}

#[test]
fn clusters_that_are_set_are_those_of_every_launch() {
    let engine = SoftEngine::new(&Config::with_devices(1)).expect("a software GPU");
    let mut guest = Guest::new(&engine);
    let memory = guest.commit(0, GRANULE);
    let module = guest.module(TEXT);
    let set = |guest: &mut Guest, kernel: u32, attribute: Attribute, value: i32| {
        let request = FunctionSet {
            module,
            kernel,
            attribute: attribute.0,
            value,
        };
        guest.client.function_set(&request, &[])
    };
    let launch = |guest: &mut Guest, blocks: u32, cluster: Option<u32>| {
        let mut request = simple_launch(module, blocks, 1);
        request.attributes = cluster.is_some().into();
        let attributes = cluster.map(named).unwrap_or_default();
        let data = [attributes, params(&[memory])].concat();
        guest.launch_result(0, &request, &data)?;
        Ok(guest.word(memory))
    };
    let wrong = Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);
    assert_eq!(launch(&mut guest, 8, None), Ok(1));
    assert_eq!(
        set(&mut guest, 0, Attribute::REQUIRED_CLUSTER_WIDTH, 4),
        Ok(())
    );
    assert_eq!(
        launch(&mut guest, 8, None),
        wrong,
        "a part of what is to be said"
    );
    assert_eq!(
        set(&mut guest, 0, Attribute::REQUIRED_CLUSTER_HEIGHT, 1),
        Ok(())
    );
    assert_eq!(
        set(&mut guest, 0, Attribute::REQUIRED_CLUSTER_DEPTH, 1),
        Ok(())
    );
    assert_eq!(launch(&mut guest, 8, None), Ok(4));
    assert_eq!(launch(&mut guest, 8, Some(4)), Ok(4));
    assert_eq!(launch(&mut guest, 8, Some(2)), wrong);
    assert_eq!(launch(&mut guest, 6, None), wrong);
    let compiled = set(&mut guest, 1, Attribute::REQUIRED_CLUSTER_WIDTH, 4);
    assert_eq!(compiled, Err(CUresult::ERROR_NOT_PERMITTED));

    let mut fits = |kernel: u32, cluster: Option<u32>, largest: u32| {
        let request = ClusterOccupancy {
            module,
            kernel,
            grid: [64, 1, 1],
            block: [32, 1, 1],
            shared: 0,
            attributes: cluster.is_some().into(),
            largest,
        };
        let data = cluster.map(named).unwrap_or_default();
        let fits = guest
            .client
            .cluster_occupancy(&request, &data, &mut Vec::new());
        fits.map(|reply| reply.count)
    };
    let (pairs, fours) = (fits(1, None, 0).unwrap(), fits(0, None, 0).unwrap());
    assert_eq!(pairs, 2 * fours);
    assert_eq!(fits(1, Some(4), 0), wrong);
    assert_eq!(fits(0, Some(2), 0), wrong);
    assert_eq!(fits(0, None, 1), Ok(8));
}
