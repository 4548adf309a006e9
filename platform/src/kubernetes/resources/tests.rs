//! What is offered and given.

use super::super::container_settings::environment;
use super::*;
use crate::gpus::MIB;

fn gpus(mib: &[u64]) -> Vec<Gpu> {
    (0..)
        .zip(mib)
        .map(|(index, mib)| Gpu {
            index,
            uuid: format!("GPU-0000000{index}-4d9c-4a5a-8b55-0f7f4f9b1a0c"),
            memory: mib * MIB,
            ..Gpu::default()
        })
        .collect()
}

fn sharing(replicas: u32, only_one: bool) -> Sharing {
    Sharing {
        resource: "nvidia.com/gpu".into(),
        replicas,
        only_one,
    }
}

fn ids(resource: &Resource, places: &[usize]) -> Vec<String> {
    let each = places.iter();
    each.map(|&place| resource.devices[place].id.clone())
        .collect()
}

const GIB: Mode = Mode::Aliyun {
    unit: MemoryUnit::Gib,
};

#[test]
fn memory_is_offered_in_whole_units_with_gpushares_ids() {
    let gpus = gpus(&[15360, 15109]);
    let [resource] = &GIB.resources(&gpus).unwrap()[..] else {
        panic!("one resource");
    };
    assert_eq!(resource.name, "aliyun.com/gpu-mem");
    assert_eq!(resource.socket, "aliyungpushare.sock");
    assert_eq!(resource.devices.len(), 15 + 14);
    assert_eq!(
        resource.devices[16].id,
        "GPU-00000001-4d9c-4a5a-8b55-0f7f4f9b1a0c-_-1"
    );
    assert!(resource.devices.iter().all(|device| device.id.len() <= 63));
}

#[test]
fn memory_of_one_gpu_is_given_with_gpushares_variables() {
    let gpus = gpus(&[15360, 15360]);
    let resource = GIB.resources(&gpus).unwrap().remove(0);
    let grant = resource.grant(&ids(&resource, &[15, 17]), &gpus).unwrap();
    assert_eq!(grant.mib, BTreeMap::from([(1, 2048)]));
    let memory = grant.memory(&gpus);
    assert_eq!(memory[&gpus[1].uuid], "2048M");
    assert_eq!(memory[&gpus[0].uuid], "1", "another GPU is closed to it");
    let environment = environment(&GIB, &grant, 3, &gpus);
    let limit = format!("{}=2048M", gpus[1].uuid);
    for (name, value) in [
        ("ALIYUN_COM_GPU_MEM_IDX", "1"),
        ("ALIYUN_COM_GPU_MEM_POD", "3"),
        ("ALIYUN_COM_GPU_MEM_CONTAINER", "2"),
        ("ALIYUN_COM_GPU_MEM_DEV", "15"),
        ("CUDA_VISIBLE_DEVICES", &gpus[1].uuid),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", &limit),
        ("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"),
        ("NVIDIA_VISIBLE_DEVICES", "void"),
    ] {
        assert_eq!(environment[name], value, "{name}");
    }
    assert!(!environment.contains_key("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
}

#[test]
fn memory_of_two_gpus_is_refused_in_gpushares_words() {
    let gpus = gpus(&[15360, 15360]);
    let resource = GIB.resources(&gpus).unwrap().remove(0);
    let error = resource
        .grant(&ids(&resource, &[0, 20]), &gpus)
        .unwrap_err();
    assert!(
        error.to_string().starts_with("no-gpu-has-2GiB-to-run"),
        "{error}"
    );
    assert!(resource.grant(&[], &gpus).is_err());
    assert!(resource.grant(&["GPU-x-_-0".into()], &gpus).is_err());
}

#[test]
fn what_no_kubelet_takes_is_refused_with_what_to_do() {
    let mib = Mode::Aliyun {
        unit: MemoryUnit::Mib,
    };
    assert_eq!(
        mib.resources(&gpus(&[15360])).unwrap()[0].devices.len(),
        15360
    );
    let error = mib.resources(&gpus(&[144_384; 8])).unwrap_err().to_string();
    assert!(error.contains("--memory-unit=GiB"), "{error}");
    let error = GIB.resources(&gpus(&[512])).unwrap_err().to_string();
    assert!(error.contains("--memory-unit=MiB"), "{error}");
    let error = GIB.resources(&[]).unwrap_err().to_string();
    assert!(error.contains("no GPU"), "{error}");
}

#[test]
fn replicas_are_divided_as_nvidias_plugin_divides_them() {
    for (mib, replicas, part, percentage) in [
        (23040, 4, 5760, 25),
        (15360, 10, 1536, 10),
        (40960, 3, 13653, 33),
        (81559, 7, 11651, 14),
        (81559, 49, 1664, 2),
        (81559, 1000, 81, 1),
    ] {
        let (gpus, mode) = (gpus(&[mib]), Mode::Nvidia(sharing(replicas, true)));
        let resource = mode.resources(&gpus).unwrap().remove(0);
        assert_eq!(resource.socket, "nvidia-gpu.sock");
        let last = replicas as usize - 1;
        assert_eq!(
            resource.devices[last].id,
            format!("{}::{last}", gpus[0].uuid)
        );
        let grant = resource.grant(&ids(&resource, &[last]), &gpus).unwrap();
        assert_eq!((grant.mib[&0], grant.percentage), (part, Some(percentage)));
        let environment = environment(&mode, &grant, 1, &gpus);
        assert_eq!(
            environment["CUDA_MPS_PIPE_DIRECTORY"],
            "/mps/nvidia.com/gpu/pipe"
        );
        assert_eq!(
            environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"],
            percentage.to_string()
        );
    }
}

#[test]
fn several_replicas_are_refused_or_add_up() {
    let gpus = gpus(&[23040, 23040]);
    let one = Mode::Nvidia(sharing(4, true))
        .resources(&gpus)
        .unwrap()
        .remove(0);
    assert_eq!(
        one.grant(&ids(&one, &[0, 1]), &gpus)
            .unwrap_err()
            .to_string(),
        "maximum request size for shared resources is 1; found 2"
    );
    let many = Mode::Nvidia(sharing(4, false))
        .resources(&gpus)
        .unwrap()
        .remove(0);
    let grant = many.grant(&ids(&many, &[0, 1, 4]), &gpus).unwrap();
    assert_eq!(grant.mib, BTreeMap::from([(0, 11520), (1, 5760)]));
    assert_eq!(grant.percentage, Some(50));
}

#[test]
fn shares_are_of_no_gpu() {
    let mode = Mode::Openmps {
        unit: MemoryUnit::Mib,
    };
    let gpus = gpus(&[1000, 1000]);
    let resources = mode.resources(&gpus).unwrap();
    assert_eq!(resources[0].name, "openmps.org/gpu-memory");
    assert_eq!(resources[1].devices.len(), 200);
    let grant = resources[1]
        .grant(&ids(&resources[1], &[3, 150]), &gpus)
        .unwrap();
    assert_eq!(grant.percentage, Some(2));
    assert_eq!(
        environment(&mode, &grant, 1, &gpus),
        BTreeMap::from([(
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(),
            "2".to_owned()
        )])
    );
}

#[test]
fn memory_is_preferred_on_one_gpu() {
    let gpus = gpus(&[4096, 4096, 4096]);
    let resource = GIB.resources(&gpus).unwrap().remove(0);
    // 2 free of the first, 4 of the second, 3 of the third.
    let free = ids(&resource, &[2, 3, 4, 5, 6, 7, 8, 9, 10]);
    let places = |count, must: &[usize], placement| -> Vec<usize> {
        let must = ids(&resource, must);
        let chosen = resource.preferred(&free, &must, count, placement);
        chosen.iter().map(|id| resource.by_id[id]).collect()
    };
    assert_eq!(places(2, &[], Placement::Binpack), [2, 3]);
    assert_eq!(places(3, &[], Placement::Binpack), [8, 9, 10]);
    assert_eq!(places(2, &[], Placement::Spread), [4, 5]);
    assert_eq!(places(3, &[8], Placement::Binpack), [8, 9, 10]);
    // None has room: some are named all the same, and the grant says what is wrong.
    assert_eq!(places(5, &[], Placement::Binpack).len(), 5);
    assert_eq!(places(20, &[], Placement::Binpack).len(), 9);
}

#[test]
fn replicas_are_preferred_on_several_gpus() {
    let gpus = gpus(&[4096, 4096]);
    let resource = Mode::Nvidia(sharing(2, false))
        .resources(&gpus)
        .unwrap()
        .remove(0);
    let free = ids(&resource, &[0, 1, 2, 3]);
    let chosen = resource.preferred(&free, &[], 2, Placement::Spread);
    assert_eq!(chosen, ids(&resource, &[0, 2]));
}
