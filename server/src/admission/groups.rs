//! Groups of clients, as this server knows them: what the clients of one may take of the devices
//! together, and what came of asking the engine for their compute.
//!
//! What is taken is counted in memory that other servers with clients of the group have too, so a
//! limit holds whoever they run as. The numbers of groups are the daemon's. Static partitions are
//! groups without a budget. Knows neither sessions nor blocks.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cuda_abi::CUresult;
use daemon_interface::group_usage::GroupUsage;
use engine::{Engine, GroupShare};
use parking_lot::{Condvar, Mutex};
use protocol::control_messages;
use protocol::device_facts::DeviceFacts;
use protocol::limits;

use crate::session::kernel_time::KernelTime;

/// No limit.
const UNLIMITED: u64 = u64::MAX;

/// A group's part of the devices' compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compute {
    /// The part.
    pub share: GroupShare,
    /// The engine cannot hold the clients to it together, so each of them is held to it.
    pub each: bool,
}

/// A group of clients.
#[derive(Debug)]
pub struct Group {
    /// Its name, for logs.
    pub name: String,
    number: u32,
    slot: u32,
    usage: GroupUsage,
    /// Bytes of each device.
    limits: Vec<AtomicU64>,
    /// How long a kernel of its clients may run.
    pub kernel_time: Arc<KernelTime>,
    compute: Mutex<Option<Compute>>,
    /// Why it takes no clients: what it was given cannot hold.
    wrong: Mutex<Option<LimitError>>,
    /// One client at a time reserves, as [`GroupUsage::reserve`] wants it.
    taking: Mutex<()>,
}

/// Why a group's limits do not hold.
pub type LimitError = (CUresult, String);

impl Group {
    /// The number by which the engine knows it.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Takes bytes of a device. Says whether they are within the limit.
    #[must_use]
    pub fn charge(&self, device: u32, bytes: u64) -> bool {
        let _one = self.taking.lock();
        self.usage
            .reserve(self.slot, device, bytes, self.limit(device))
    }

    /// Gives them back.
    pub fn uncharge(&self, device: u32, bytes: u64) {
        if bytes > 0 {
            self.usage.release(self.slot, device, bytes);
        }
    }

    /// Bytes of a device that its clients together may take.
    #[must_use]
    pub fn limit(&self, device: u32) -> u64 {
        let limit = self.limits.get(device as usize);
        limit.map_or(0, |limit| limit.load(Ordering::Relaxed))
    }

    /// Bytes of a device that are left of the limit.
    #[must_use]
    pub fn remaining(&self, device: u32) -> u64 {
        self.limit(device).saturating_sub(self.usage.used(device))
    }

    /// Its part of the compute, if that is limited.
    #[must_use]
    pub fn compute(&self) -> Option<Compute> {
        *self.compute.lock()
    }

    /// Why it takes no clients.
    #[must_use]
    pub fn refusal(&self) -> Option<LimitError> {
        self.wrong.lock().clone()
    }
}

/// Memory that counts for a group as long as this is kept.
#[derive(Debug)]
pub struct GroupCharge {
    group: Arc<Group>,
    device: u32,
    bytes: u64,
}

impl GroupCharge {
    /// Keeps what was taken.
    #[must_use]
    pub const fn new(group: Arc<Group>, device: u32, bytes: u64) -> Self {
        Self {
            group,
            device,
            bytes,
        }
    }
}

impl Drop for GroupCharge {
    fn drop(&mut self) {
        self.group.uncharge(self.device, self.bytes);
    }
}

/// How often a client that waits for its group looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// All groups that the daemon has told of.
#[derive(Debug, Default)]
pub struct Groups(Arc<GroupTable>);

#[derive(Debug, Default)]
struct GroupTable {
    known: Mutex<KnownGroups>,
    /// Somebody's turn is over.
    turned: Condvar,
}

#[derive(Debug, Default)]
struct KnownGroups {
    groups: HashMap<u32, Arc<Group>>,
    /// Places of what is still to be done for a group.
    turns: HashMap<u32, BTreeSet<u64>>,
    /// The next place.
    next: u64,
}

/// A place in the order of what is done for one group, which may take long: the engine may have to wait
/// for kernels. It is over when this is dropped.
#[derive(Debug)]
pub struct SettingTurn {
    shared: Arc<GroupTable>,
    number: u32,
    place: u64,
}

impl SettingTurn {
    fn new(shared: &Arc<GroupTable>, known: &mut KnownGroups, number: u32) -> Self {
        let place = known.next;
        known.next += 1;
        known.turns.entry(number).or_default().insert(place);
        Self {
            shared: shared.clone(),
            number,
            place,
        }
    }

    /// Waits for everything that is to be done for this group before.
    fn wait(&self) {
        self.wait_while(|known| {
            let turns = known.turns.get(&self.number);
            turns.is_some_and(|turns| turns.first() != Some(&self.place))
        });
    }

    /// Whether something is under way, for whichever group, that was told before.
    fn has_any_before(&self, known: &KnownGroups) -> bool {
        let mut turns = known.turns.values();
        turns.any(|turns| turns.first().is_some_and(|first| *first < self.place))
    }

    /// Waits until nothing is.
    fn wait_for_all_before(&self) {
        self.wait_while(|known| self.has_any_before(known));
    }

    fn wait_while(&self, is_so: impl Fn(&KnownGroups) -> bool) {
        let mut known = self.shared.known.lock();
        let turned = &self.shared.turned;
        turned.wait_while(&mut known, |known| is_so(known));
    }
}

impl Drop for SettingTurn {
    fn drop(&mut self) {
        let mut known = self.shared.known.lock();
        if let Some(turns) = known.turns.get_mut(&self.number) {
            turns.remove(&self.place);
            if turns.is_empty() {
                known.turns.remove(&self.number);
            }
        }
        drop(known);
        self.shared.turned.notify_all();
    }
}

impl Groups {
    /// The group with a number.
    #[must_use]
    pub fn find(&self, number: u32) -> Option<Arc<Group>> {
        self.0.known.lock().groups.get(&number).cloned()
    }

    /// Waits until everything that the daemon told of a group is done, or `enough` says that there is
    /// no use in waiting any more.
    pub fn wait_until_set(&self, number: u32, enough: impl Fn() -> bool) {
        let mut known = self.0.known.lock();
        while known.turns.contains_key(&number) && !enough() {
            self.0.turned.wait_for(&mut known, LOOK);
        }
    }

    /// The daemon has told of a group, or of its new limits: these are for [`Groups::apply_limits`] to set,
    /// on a thread that may wait. Until then it is there, and not [settled](Groups::wait_until_set).
    ///
    /// # Errors
    /// When its usage is no such memory.
    pub fn announce(
        &self,
        engine: &dyn Engine,
        packet: &control_messages::Group,
        usage: OwnedFd,
    ) -> Result<SettingTurn, LimitError> {
        let mut known = self.0.known.lock();
        if let Entry::Vacant(place) = known.groups.entry(packet.group) {
            let usage = GroupUsage::from_fd(usage)
                .map_err(|error| (CUresult::ERROR_OUT_OF_MEMORY, error.to_string()))?;
            let each = engine.devices().iter();
            place.insert(Arc::new(Group {
                name: packet.name.clone(),
                number: packet.group,
                slot: packet.slot,
                usage,
                limits: each.map(|_| AtomicU64::new(0)).collect(),
                kernel_time: Arc::default(),
                compute: Mutex::default(),
                wrong: Mutex::new(Some((
                    CUresult::ERROR_MPS_CONNECTION_FAILED,
                    "its limits were never set".to_owned(),
                ))),
                taking: Mutex::default(),
            }));
        }
        Ok(SettingTurn::new(&self.0, &mut known, packet.group))
    }

    /// Sets what the daemon told of a group, when that is its turn.
    ///
    /// # Errors
    /// When the limits cannot hold. A new group then takes no clients; the limits of one that was
    /// known before stay as they were.
    pub fn apply_limits(
        &self,
        engine: &dyn Engine,
        packet: &control_messages::Group,
        turn: &SettingTurn,
    ) -> Result<(), LimitError> {
        turn.wait();
        let Some(group) = self.find(packet.group) else {
            return Ok(());
        };
        let set = || group.set(engine, packet, Arc::strong_count(&group) > 2);
        let others = turn.has_any_before(&self.0.known.lock());
        let set = match set() {
            // What was told before may leave as much as is wanted: a group's end, or less for one.
            Err((CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION, _)) if others => {
                turn.wait_for_all_before();
                set()
            }
            set => set,
        };
        let mut wrong = group.wrong.lock();
        match &set {
            Ok(()) => *wrong = None,
            // One that has worked goes on as it is.
            Err(why) if wrong.is_some() => *wrong = Some(why.clone()),
            Err(_) => {}
        }
        set
    }

    /// The daemon says that a group is no more. What the engine has of it is for [`Groups::end_in_engine`] to end.
    pub fn remove(&self, number: u32) -> Option<(SettingTurn, Arc<Group>)> {
        let mut known = self.0.known.lock();
        let group = known.groups.remove(&number)?;
        Some((SettingTurn::new(&self.0, &mut known, number), group))
    }

    /// Ends what the engine has of a group, when that is its turn.
    pub fn end_in_engine(&self, engine: &dyn Engine, turn: &SettingTurn, group: &Group) {
        turn.wait();
        if group.compute.lock().is_some_and(|compute| !compute.each) {
            let _ = engine.set_group(group.number, None);
        }
    }
}

impl Group {
    fn set(
        &self,
        engine: &dyn Engine,
        packet: &control_messages::Group,
        has_clients: bool,
    ) -> Result<(), LimitError> {
        let refuse = |error: &dyn std::fmt::Display| {
            (CUresult::ERROR_MPS_CONNECTION_FAILED, error.to_string())
        };
        let memory = limits_of(engine.devices(), &packet.memory).map_err(|text| refuse(&text))?;
        let wanted = match &packet.percentage {
            Some(text) => Some(Compute {
                share: GroupShare {
                    device: packet.device,
                    percentage: limits::percentage(text).map_err(|error| refuse(&error))?,
                    reserved: packet.reserved,
                },
                each: false,
            }),
            None => None,
        };
        let kernel_time = packet.kernel_time.as_deref().map(limits::kernel_time);
        let kernel_time = kernel_time.transpose().map_err(|error| refuse(&error))?;
        self.set_compute(engine, wanted, has_clients)?;
        self.kernel_time.set(kernel_time);
        for (limit, bytes) in self.limits.iter().zip(memory) {
            limit.store(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    fn set_compute(
        &self,
        engine: &dyn Engine,
        wanted: Option<Compute>,
        has_clients: bool,
    ) -> Result<(), LimitError> {
        let mut compute = self.compute.lock();
        let as_it_is = match (*compute, wanted) {
            (Some(is), Some(wanted)) => is.share == wanted.share,
            (None, None) => true,
            _ => false,
        };
        if as_it_is {
            return Ok(());
        }
        // What each client was held to when it came stays with it.
        let frozen = has_clients && compute.is_some_and(|compute| compute.each);
        let set = if frozen {
            Err(CUresult::ERROR_NOT_SUPPORTED)
        } else {
            engine.set_group(self.number, wanted.map(|wanted| wanted.share))
        };
        match set {
            Ok(()) => *compute = wanted,
            Err(CUresult::ERROR_NOT_SUPPORTED) if !has_clients => match wanted {
                Some(wanted) if wanted.share.reserved => {
                    return Err((
                        CUresult::ERROR_NOT_SUPPORTED,
                        "this device's compute cannot be reserved".to_owned(),
                    ));
                }
                // Held to it each by itself is more than asked, but together they are not held.
                _ => {
                    *compute = wanted.map(|wanted| Compute {
                        each: true,
                        ..wanted
                    });
                }
            },
            Err(code) => {
                let text = match code {
                    CUresult::ERROR_NOT_SUPPORTED => {
                        "this device's compute cannot be divided anew while clients run".to_owned()
                    }
                    CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION => {
                        "more would be reserved than the device has".to_owned()
                    }
                    _ => format!("the device refuses it with error {}", code.0),
                };
                return Err((code, text));
            }
        }
        Ok(())
    }
}

/// The limit of each device, by a text as CUDA_MPS_PINNED_DEVICE_MEM_LIMIT has it; the lowest of
/// several for one device.
///
/// # Errors
/// When it does not parse, or names no device, in words.
pub fn limits_of(devices: &[DeviceFacts], text: &str) -> Result<Vec<u64>, String> {
    let mut memory = vec![UNLIMITED; devices.len()];
    for limit in limits::memory_limits(text).map_err(|error| error.to_string())? {
        let device = find(devices, &limit.device).ok_or_else(|| {
            format!(
                "memory limit for device {}, which there is not or more than one",
                limit.device
            )
        })?;
        memory[device] = memory[device].min(limit.bytes);
    }
    Ok(memory)
}

/// The device with an ordinal, or a UUID that begins so.
fn find(devices: &[DeviceFacts], name: &str) -> Option<usize> {
    if let Ok(ordinal) = name.parse::<usize>() {
        return (ordinal < devices.len()).then_some(ordinal);
    }
    let mut found = (0..devices.len()).filter(|&index| {
        let uuid = crate::admission::device_list::uuid(&devices[index].uuid);
        uuid.to_ascii_lowercase()
            .starts_with(&name.to_ascii_lowercase())
    });
    found.next().filter(|_| found.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{Attachment, Client};
    use std::os::fd::AsFd;

    /// Two devices whose compute cannot be divided by groups.
    #[derive(Debug)]
    struct Undivided(Vec<DeviceFacts>);

    impl Engine for Undivided {
        fn devices(&self) -> &[DeviceFacts] {
            &self.0
        }
        fn lost(&self) -> Option<CUresult> {
            None
        }
        fn attach(&self, _: Attachment) -> Result<Box<dyn Client>, CUresult> {
            Err(CUresult::ERROR_NOT_SUPPORTED)
        }
    }

    struct Rig {
        engine: Undivided,
        groups: Groups,
        usage: GroupUsage,
    }

    impl Rig {
        fn new() -> Self {
            Self {
                engine: Undivided(vec![DeviceFacts::default(); 2]),
                groups: Groups::default(),
                usage: GroupUsage::create("test").unwrap(),
            }
        }

        fn told(
            &self,
            memory: &str,
            percentage: Option<&str>,
            reserved: bool,
        ) -> Result<(), LimitError> {
            let packet = control_messages::Group {
                group: 1,
                memory: memory.into(),
                percentage: percentage.map(str::to_owned),
                reserved,
                ..control_messages::Group::default()
            };
            let fd = self.usage.as_fd().try_clone_to_owned().unwrap();
            let turn = self.groups.announce(&self.engine, &packet, fd)?;
            self.groups.apply_limits(&self.engine, &packet, &turn)
        }
    }

    #[test]
    fn where_a_group_cannot_be_held_to_its_part_each_client_is() {
        let rig = Rig::new();
        let (code, _) = rig.told("", Some("25"), true).unwrap_err();
        assert_eq!(
            code,
            CUresult::ERROR_NOT_SUPPORTED,
            "nothing can be kept free"
        );
        assert!(
            rig.groups.find(1).unwrap().refusal().is_some(),
            "and no client comes"
        );
        rig.told("", Some("25"), false).unwrap();
        let group = rig.groups.find(1).unwrap();
        assert!(group.refusal().is_none());
        assert!(group.compute().unwrap().each);
        // While somebody is in it, nothing of that can change.
        let (code, _) = rig.told("", Some("50"), false).unwrap_err();
        assert_eq!(code, CUresult::ERROR_NOT_SUPPORTED);
        assert_eq!(group.compute().unwrap().share.percentage, 25.0);
        assert!(group.refusal().is_none(), "it goes on as it was");
    }

    /// A device of which groups reserve parts, and that ends a group when told.
    #[derive(Debug)]
    struct Reserving {
        devices: Vec<DeviceFacts>,
        reserved: Mutex<HashMap<u32, f32>>,
        may_end: Mutex<std::sync::mpsc::Receiver<()>>,
    }

    impl Engine for Reserving {
        fn devices(&self) -> &[DeviceFacts] {
            &self.devices
        }
        fn lost(&self) -> Option<CUresult> {
            None
        }
        fn attach(&self, _: Attachment) -> Result<Box<dyn Client>, CUresult> {
            Err(CUresult::ERROR_NOT_SUPPORTED)
        }
        fn set_group(&self, number: u32, share: Option<GroupShare>) -> Result<(), CUresult> {
            let Some(share) = share else {
                self.may_end.lock().recv().unwrap();
                self.reserved.lock().remove(&number);
                return Ok(());
            };
            let mut reserved = self.reserved.lock();
            let all: f32 = reserved.values().sum();
            if all + share.percentage > 100.0 {
                return Err(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION);
            }
            reserved.insert(number, share.percentage);
            Ok(())
        }
    }

    #[test]
    fn who_is_told_after_the_end_of_a_group_has_what_that_had() {
        let (end, may_end) = std::sync::mpsc::channel();
        let engine = Reserving {
            devices: vec![DeviceFacts::default()],
            reserved: Mutex::default(),
            may_end: Mutex::new(may_end),
        };
        let (groups, usage) = (Groups::default(), GroupUsage::create("test").unwrap());
        let announce = |group: u32, percentage: &str| {
            let packet = control_messages::Group {
                group,
                percentage: Some(percentage.into()),
                reserved: true,
                ..control_messages::Group::default()
            };
            let fd = usage.as_fd().try_clone_to_owned().unwrap();
            let turn = groups.announce(&engine, &packet, fd).unwrap();
            (packet, turn)
        };
        let (first, turn) = announce(1, "60");
        groups.apply_limits(&engine, &first, &turn).unwrap();
        drop(turn);
        let (end_turn, group) = groups.remove(1).unwrap();
        let (second, turn) = announce(2, "50");
        let (third, last) = announce(3, "60");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                groups.end_in_engine(&engine, &end_turn, &group);
                drop(end_turn);
            });
            let second = scope.spawn(|| {
                let set = groups.apply_limits(&engine, &second, &turn);
                drop(turn);
                set
            });
            let third = scope.spawn(|| groups.apply_limits(&engine, &third, &last));
            // So that most of the time they have been refused once.
            std::thread::sleep(Duration::from_millis(50));
            end.send(()).unwrap();
            assert_eq!(second.join().unwrap(), Ok(()));
            let (code, text) = third.join().unwrap().unwrap_err();
            assert_eq!(code, CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION);
            assert!(text.contains("more would be reserved"), "{text}");
        });
    }

    #[test]
    fn limits_are_each_devices_and_hold_from_when_they_are_told() {
        let rig = Rig::new();
        rig.told("0=1M,1=4M,1=2M", None, false).unwrap();
        let group = rig.groups.find(1).unwrap();
        assert_eq!((group.limit(0), group.limit(1)), (1 << 20, 2 << 20));
        assert_eq!(group.limit(2), 0, "there is no such device");
        assert!(group.charge(0, 1 << 20) && !group.charge(0, 1) && !group.charge(2, 1));
        rig.told("0=2M", None, false).unwrap();
        assert!(group.charge(0, 1 << 20) && group.charge(1, 1 << 40));
        assert!(rig.told("2=1M", None, false).is_err());
        assert_eq!(group.limit(0), 2 << 20);
        let kept = GroupCharge::new(group.clone(), 0, 2 << 20);
        assert_eq!(group.remaining(0), 0);
        drop(kept);
        assert_eq!(group.remaining(0), 2 << 20);
        let (turn, group) = rig.groups.remove(1).unwrap();
        rig.groups.end_in_engine(&rig.engine, &turn, &group);
        drop(turn);
        rig.groups
            .wait_until_set(1, || panic!("nothing is left to do"));
        assert!(rig.groups.find(1).is_none());
    }
}
