//! Which limits a client begins with, and what it is shown of devices.

use std::sync::LazyLock;

use engine::Attachment;
use engine::arena::EXTENT;

use super::*;
use crate::admission::compute_mode;

fn devices() -> Vec<DeviceFacts> {
    (0..2)
        .map(|index| DeviceFacts {
            name: "a device".into(),
            uuid: [index + 1; 16],
            total_memory: 8 << 30,
            attributes: vec![132; 20],
            ..DeviceFacts::default()
        })
        .collect()
}

/// Devices of 132 multiprocessors, shared out one by one. Of the second all but 40 are reserved.
#[derive(Debug)]
struct Some132;

impl Engine for Some132 {
    fn devices(&self) -> &[DeviceFacts] {
        static DEVICES: LazyLock<Vec<DeviceFacts>> = LazyLock::new(devices);
        &DEVICES
    }
    fn lost(&self) -> Option<CUresult> {
        None
    }
    fn unreserved(&self, device: usize) -> u32 {
        [u32::MAX, 40][device]
    }
    fn attach(&self, _: Attachment) -> Result<Box<dyn engine::Client>, CUresult> {
        Err(CUresult::ERROR_NOT_SUPPORTED)
    }
}

fn read(percentage: &str, memory: &str) -> Result<Limits, Refusal> {
    let fields = ClientFields {
        percentage: Some(percentage.into()),
        memory_limit: Some(memory.into()),
        ..ClientFields::default()
    };
    Limits::read(&fields, &devices())
}

#[test]
fn limits_are_the_lowest_of_each_device_and_never_lifted() {
    let limits = read("33.3", "0=2G,0=1G,GPU-0202=512M,1=3G").unwrap();
    assert_eq!(limits.memory, [1 << 30, 512 << 20]);
    assert_eq!(limits.share.percentage, 33.3);
}

#[test]
fn a_limit_that_cannot_hold_refuses_the_client() {
    for (percentage, memory) in [
        ("0", ""),
        ("junk", ""),
        ("50", "junk"),
        ("50", "2=1G"),
        ("50", "GPU-=1G"),
        ("50", "GPU-09=1G"),
    ] {
        let refusal = read(percentage, memory).err().unwrap();
        assert_eq!(refusal.code, CUresult::ERROR_MPS_CONNECTION_FAILED);
    }
}

#[test]
fn a_share_is_seen_in_the_number_of_multiprocessors() {
    let windows = [Window {
        base: 1 << 40,
        bytes: EXTENT,
    }; 2];
    for (percentage, count) in [("100", 132), ("33", 43), ("1", 1), ("0.1", 1)] {
        let mut limits = read(percentage, "0=1G,1=100G").unwrap();
        limits.reserved = vec![false, true];
        let told = facts_for_client(
            &Some132,
            &windows,
            &limits,
            None,
            &compute_mode::EnforcedByDriver,
        );
        assert_eq!(told[1].attribute(MULTIPROCESSOR_COUNT), Some(count));
        limits.reserved = vec![false; 2];
        let told = facts_for_client(
            &Some132,
            &windows,
            &limits,
            None,
            &compute_mode::EnforcedByDriver,
        );
        assert_eq!(told[1].attribute(MULTIPROCESSOR_COUNT), Some(count.min(40)));
        assert_eq!(told[1].total_memory, 8 << 30);
        assert_eq!(told[0].attribute(MULTIPROCESSOR_COUNT), Some(count));
        assert_eq!(told[0].attribute(ALL_MULTIPROCESSORS), Some(132));
        assert_eq!(told[0].total_memory, 1 << 30);
        assert_eq!(told[0].window, 1 << 40);
    }
}
