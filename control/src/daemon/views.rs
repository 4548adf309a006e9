//! Answers to what programs ask of devices and clients: servers are asked what their clients have taken, and the answer waits for them.
//!
//! Called by `connections` and the event loop. Must not decide what somebody may see: `crate::views` does.

use std::collections::BTreeMap;
use std::time::Instant;

use protocol::control_messages::{
    self, ClientFields, DeviceAccount, ListedDevice, Packet, STANDBY_LABEL, Takeovers, View,
    ViewRequest, ViewedDevice, ViewedProcess,
};
use protocol::limits::LimitError;
use transport::socket::Connection;

use super::Daemon;
use super::admission::namespace_of;
use crate::commands::Caller;
use crate::compute_mode::{SoftwareModes, is_software_name};
use crate::servers::limits::limits_of;
use crate::servers::placement::{Requester, server_for};
use crate::servers::process::SERVER_NAME;
use crate::servers::registry::{Client, ServerId};
use crate::views::{
    Asker, Budget, COUNTED_WITHIN, ClientId, Counting, MAX_WAITING, limit_of_group, nvidia_driver,
    sum,
};

impl Daemon {
    /// Somebody wants to be shown the devices and clients.
    pub(crate) fn view(&mut self, connection: Connection, request: ViewRequest, via: Option<u32>) {
        let peer = match connection.peer() {
            Ok(peer) => peer,
            Err(error) => {
                let text = format!("cannot tell who asks: {error}");
                return self.refuse(&connection, None, via, &text);
            }
        };
        let asker = Asker {
            caller: Caller {
                uid: peer.uid,
                pid: peer.pid,
                group: self.group_of(&peer, via),
            },
            request,
            namespace: namespace_of(peer.pid),
            identity: peer.identity(),
            connection,
        };
        if self.views.counting.len() + self.views.waiting_for_scan.len() >= MAX_WAITING {
            return self.refuse_view(&asker, "too many wait to be shown the devices");
        }
        if !self.devices_known().is_empty() {
            return self.count(asker);
        }
        if let Err(error) = self.scan_devices() {
            return self.refuse_view(&asker, &error.to_string());
        }
        self.views.waiting_for_scan.push(asker);
    }

    pub(super) fn refuse_view(&self, asker: &Asker, why: &str) {
        let Caller { pid, group, .. } = asker.caller;
        self.refuse(&asker.connection, Some(pid), group, why);
    }

    /// The devices that a server has, or would have.
    pub(super) fn devices_known(&self) -> &[ListedDevice] {
        match &*self.devices {
            [] => &self.views.found,
            devices => devices,
        }
    }

    /// The clients that an asker is shown, or that count for what it is shown.
    fn clients_for(&self, asker: &Asker) -> Vec<ClientId> {
        let own_namespace = namespace_of(std::process::id().cast_signed());
        let shown = |client: &Client| {
            if asker.request.all || asker.caller.group.is_some() {
                return self.sees_client(asker.caller, client);
            }
            let in_reach = asker.namespace != 0
                && (asker.namespace == client.namespace
                    || asker.namespace == own_namespace && client.pid != 0);
            asker.is(client) || client.uid == asker.caller.uid && in_reach
        };
        let mut list = Vec::new();
        for (&id, server) in &self.registry.servers {
            let clients = server.clients.iter();
            // The asker may be heard of before its server has said that it welcomed it.
            let is_there = |client: &Client| client.attached || asker.is(client);
            let of_server = clients.filter(|(_, client)| is_there(client) && shown(client));
            list.extend(of_server.map(|(&session, _)| (id, session)));
        }
        list
    }

    /// Has servers say what the clients have that an asker is shown.
    pub(super) fn count(&mut self, asker: Asker) {
        let mut awaited = BTreeMap::new();
        for (id, session) in self.clients_for(&asker) {
            let request = self.number();
            let packet = Packet::Change(control_messages::Change {
                request,
                session,
                ..control_messages::Change::default()
            });
            let server = self.registry.servers.get(&id);
            let sent = server.map(|server| server.connection.try_send(&packet.encode(), &[]));
            if !matches!(sent, Some(Ok(()))) {
                return self.refuse_view(&asker, "a server has too much to read to be asked");
            }
            awaited.insert(request, (id, session));
        }
        let counting = Counting {
            asker,
            awaited,
            accounts: BTreeMap::new(),
            deadline: Instant::now() + COUNTED_WITHIN,
        };
        if counting.awaited.is_empty() {
            return self.show(&counting);
        }
        let number = self.number();
        self.views.counting.insert(number, counting);
    }

    /// A server has said what a client has. Says whether that was asked for a view.
    pub(crate) fn add_to_view(&mut self, request: u64, accounts: &[DeviceAccount]) -> bool {
        let mut counting = self.views.counting.iter_mut();
        let Some((&number, counting)) =
            counting.find(|(_, counting)| counting.awaited.contains_key(&request))
        else {
            return false;
        };
        if let Some(client) = counting.awaited.remove(&request) {
            counting.accounts.insert(client, accounts.to_vec());
        }
        self.show_if_complete(number);
        true
    }

    /// A session, or with none its server, is gone, and has nothing any more.
    pub(crate) fn remove_from_views(&mut self, id: ServerId, session: Option<u64>) {
        let mut concerned = Vec::new();
        for (&number, counting) in &mut self.views.counting {
            counting.awaited.retain(|_, &mut (server, whose)| {
                server != id || session.is_some_and(|session| session != whose)
            });
            concerned.push(number);
        }
        for number in concerned {
            self.show_if_complete(number);
        }
    }

    fn show_if_complete(&mut self, number: u64) {
        let complete = |counting: &Counting| counting.awaited.is_empty();
        if self.views.counting.get(&number).is_some_and(complete)
            && let Some(counting) = self.views.counting.remove(&number)
        {
            self.show(&counting);
        }
    }

    /// Gives the answer. The daemon never waits for a reader.
    fn show(&self, counting: &Counting) {
        let view = match self.viewed(counting) {
            Ok(view) => view,
            Err(error) => return self.refuse_view(&counting.asker, &error.to_string()),
        };
        for packet in control_messages::view_packets(view) {
            if counting
                .asker
                .connection
                .try_send(&packet.encode(), &[])
                .is_err()
            {
                return;
            }
        }
    }

    fn viewed(&self, counting: &Counting) -> Result<View, LimitError> {
        let devices = self.devices_known();
        let software = devices.iter().any(|device| is_software_name(&device.name));
        let mut view = View {
            driver: if software {
                env!("CARGO_PKG_VERSION").to_owned()
            } else {
                nvidia_driver().unwrap_or_default()
            },
            time: monotonic_time(),
            ..View::default()
        };
        let granted = self.granted(&counting.asker, devices)?;
        for (ordinal, device) in (0..).zip(devices) {
            let [total, used, free] = self.memory_of(counting, device, ordinal, &granted);
            let is_software = is_software_name(&device.name);
            view.devices.push(ViewedDevice {
                device: device.clone(),
                software: is_software,
                mode: is_software.then(|| SoftwareModes::new(Vec::new()).in_force(device.pci[2])),
                total,
                used,
                free,
                account: self.account_of_device(counting, ordinal),
                still_since: self.still_since(counting, ordinal),
            });
        }
        view.processes = self.processes(counting, devices.len());
        let asker = &counting.asker;
        if asker.request.all && self.may_change(asker.caller) {
            view.faults = self.registry.faults.counts();
            view.takeovers = self.registry.takeovers;
        }
        Ok(view)
    }

    /// What a client would get of each device that came from where the asker is.
    fn granted(
        &self,
        asker: &Asker,
        devices: &[ListedDevice],
    ) -> Result<BTreeMap<u32, u64>, LimitError> {
        let named = asker.caller.group;
        let named = named.and_then(|number| self.groups.by_number.get(&number));
        let who = Requester {
            uid: asker.caller.uid,
            group: named.map(|group| &*group.name),
            session: 0,
        };
        let settings = self.settings_for(&server_for(who, self.isolation));
        let wishes = ClientFields {
            memory_limit: asker.request.memory_limit.clone(),
            ..ClientFields::default()
        };
        let fields = settings.limits_for_client(&wishes, self.default_priority)?;
        Ok(limits_of(&fields, devices).memory)
    }

    /// What there is of a device's memory for the asker, what of it is taken, and what is left.
    fn memory_of(
        &self,
        counting: &Counting,
        device: &ListedDevice,
        ordinal: u32,
        granted: &BTreeMap<u32, u64>,
    ) -> [u64; 3] {
        let asker = &counting.asker;
        let most = device.total_memory;
        let client =
            |&(id, session): &ClientId| self.registry.servers.get(&id)?.clients.get(&session);
        let mut counted: Vec<(&Client, u64)> = Vec::new();
        for (id, accounts) in &counting.accounts {
            if let Some(client) = client(id) {
                let account = accounts.get(ordinal as usize);
                counted.push((client, account.map_or(0, |account| account.memory)));
            }
        }
        if asker.request.all {
            let used = sum(counted.iter().map(|(_, used)| *used));
            return [most, used, most.saturating_sub(used)];
        }
        // A client is shown its own budget; who only watches, the budgets of those that it sees.
        let is_client = counted.iter().any(|(client, _)| asker.is(client));
        if is_client {
            counted.retain(|(client, _)| asker.is(client));
        }
        let limit_of = |client: &Client| {
            let limit = client.limits.memory.get(&ordinal).copied();
            limit.unwrap_or(most).min(most)
        };
        let total = match &*counted {
            [] => granted.get(&ordinal).copied().unwrap_or(most),
            counted => sum(counted.iter().map(|(client, _)| limit_of(client))),
        };
        let own = Budget {
            total: total.min(most),
            used: sum(counted.iter().map(|(_, used)| *used)),
        };
        let group = asker.caller.group;
        let group = group.and_then(|number| self.groups.by_number.get(&number));
        let Some(group) = group else {
            return own.total_used_free();
        };
        let limit = limit_of_group(group, self.devices_known(), ordinal);
        let group = Budget {
            total: limit.unwrap_or(most).min(most),
            used: group.usage.used(ordinal),
        };
        if is_client && own.total < group.total {
            let [total, used, free] = own.total_used_free();
            return [total, used, free.min(group.total_used_free()[2])];
        }
        group.total_used_free()
    }

    /// Since when nothing has ended on a device of what some server has there, for an operator.
    fn still_since(&self, counting: &Counting, ordinal: u32) -> Option<u64> {
        if !self.may_change(counting.asker.caller) {
            return None;
        }
        let servers = self.registry.servers.values();
        servers
            .filter_map(|server| server.still.get(&ordinal).copied())
            .min()
    }

    /// What of a device has been had.
    fn account_of_device(&self, counting: &Counting, ordinal: u32) -> DeviceAccount {
        let mut sum = DeviceAccount::default();
        let departed = counting
            .asker
            .request
            .all
            .then_some(&self.registry.departed);
        for accounts in counting.accounts.values().chain(departed) {
            if let Some(account) = accounts.get(ordinal as usize) {
                sum.add(account);
            }
        }
        sum
    }

    fn group_name(&self, group: Option<u32>) -> Option<String> {
        let group = self.groups.by_number.get(&group?)?;
        Some(group.name.clone())
    }

    /// The processes that the asker is shown: one entry for each and each device that it has memory of, or
    /// for all devices as long as it has none.
    fn processes(&self, counting: &Counting, devices: usize) -> Vec<ViewedProcess> {
        let asker = &counting.asker;
        let own_namespace = namespace_of(std::process::id().cast_signed());
        let mut list: Vec<ViewedProcess> = Vec::new();
        for (&(id, session), accounts) in &counting.accounts {
            let server = self.registry.servers.get(&id);
            let Some(client) = server.and_then(|server| server.clients.get(&session)) else {
                continue;
            };
            let (is_asker, pid) = (asker.is(client), asker.pid_of(client, own_namespace));
            // Whom the asker cannot name it is not shown.
            if !asker.request.all && !is_asker && pid == 0 {
                continue;
            }
            let most = |device: u32| {
                let device = self.devices_known().get(device as usize);
                device.map_or(0, |device| device.total_memory)
            };
            let has_none = accounts.iter().all(|account| account.memory == 0);
            for device in 0..devices {
                let account = accounts.get(device).copied().unwrap_or_default();
                if account.memory == 0 && !has_none && !asker.request.all {
                    continue;
                }
                let device = device as u32;
                let same = |entry: &&mut ViewedProcess| {
                    entry.device == device
                        && entry.is_asker == is_asker
                        && (is_asker || pid != 0 && entry.pid == pid)
                };
                if let Some(entry) = list.iter_mut().find(same) {
                    entry.account.add(&account);
                    entry.takeovers.add(&client.takeovers);
                    entry.used = Some(entry.account.memory);
                    continue;
                }
                list.push(ViewedProcess {
                    device,
                    pid,
                    is_asker,
                    is_server: false,
                    used: Some(account.memory),
                    name: client.program.clone(),
                    uid: client.uid,
                    group: self.group_name(client.group),
                    limit: client
                        .limits
                        .memory
                        .get(&device)
                        .copied()
                        .unwrap_or(most(device)),
                    account,
                    session,
                    server: server.map_or(0, |server| server.pid().cast_signed()),
                    label: client.label.clone(),
                    container: client.container.id.clone(),
                    pod: client.container.pod.clone(),
                    takeovers: client.takeovers,
                });
            }
        }
        if asker.request.all {
            list.extend(self.servers_for(asker, devices));
        }
        list.sort_by_key(|process| (process.device, !process.is_server));
        list
    }

    /// The servers that an operator sees, on all devices.
    fn servers_for(&self, asker: &Asker, devices: usize) -> Vec<ViewedProcess> {
        let seen = self.registry.servers.iter();
        let seen = seen.filter(|(id, _)| self.may_see_server(asker.caller, **id));
        let servers: BTreeMap<u32, (Takeovers, bool)> = seen
            .map(|(_, server)| (server.pid(), (server.takeovers, server.key.is_standby())))
            .collect();
        let entry = |(pid, (takeovers, stands_by)): (u32, (Takeovers, bool)), device: usize| {
            ViewedProcess {
                device: device as u32,
                pid: pid.cast_signed(),
                is_asker: false,
                is_server: true,
                used: None,
                name: SERVER_NAME.to_owned(),
                label: stands_by.then(|| STANDBY_LABEL.to_owned()),
                takeovers,
                ..ViewedProcess::default()
            }
        };
        let each = servers.into_iter();
        each.flat_map(|server| (0..devices).map(move |device| entry(server, device)))
            .collect()
    }

    pub(crate) fn act_on_deadlines_of_views(&mut self, now: Instant) {
        let late = |_: &u64, counting: &mut Counting| counting.deadline <= now;
        let late: Vec<_> = self.views.counting.extract_if(.., late).collect();
        for (_, counting) in late {
            self.refuse_view(
                &counting.asker,
                "a server has not said in time what its clients have",
            );
        }
        self.end_late_scan(now);
    }
}

/// Nanoseconds of CLOCK_MONOTONIC.
fn monotonic_time() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // The clock counts from the machine's start and is never negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
