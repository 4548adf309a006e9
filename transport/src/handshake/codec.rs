//! The packets' bytes: little-endian, texts and runs of bytes behind their length. No count is
//! trusted: a reader takes from the bytes that are left, and ends when they do.

use super::{
    Admit, Change, ClientFields, Ending, Group, Hello, ListedDevice, Membership, Packet, Purpose,
    Unreadable, VERSION, Version, View, ViewRequest, ViewedDevice, ViewedProcess, Welcome,
    negotiate,
};

/// "OMPS", as bytes.
const MAGIC: u32 = u32::from_le_bytes(*b"OMPS");

const REFUSED: u16 = 4;

impl Packet {
    const fn kind(&self) -> u16 {
        match self {
            Self::Hello(_) => 1,
            Self::CommandOutput { .. } => 2,
            Self::Welcome(_) => 3,
            Self::Refused { .. } => REFUSED,
            Self::Admit(_) => 5,
            Self::Shutdown { .. } => 6,
            Self::Ready { .. } => 7,
            Self::Attached { .. } => 8,
            Self::Gone { .. } => 9,
            Self::Fault { .. } => 10,
            Self::Lost { .. } => 11,
            Self::Terminate { .. } => 12,
            Self::Queued { .. } => 13,
            Self::Group(_) => 14,
            Self::GroupGone { .. } => 15,
            Self::Change(_) => 16,
            Self::Changed { .. } => 17,
            Self::Remark { .. } => 18,
            Self::View { .. } => 19,
            Self::Underlay { .. } => 20,
        }
    }

    /// The version in the prefix: what a Hello or Welcome states, else this build's.
    const fn version(&self) -> Version {
        match self {
            Self::Hello(hello) => hello.version,
            Self::Welcome(welcome) => welcome.version,
            _ => VERSION,
        }
    }

    /// The packet's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(256));
        out.u32(MAGIC);
        out.u16(self.kind());
        out.version(self.version());
        match self {
            Self::Hello(hello) => {
                out.u64(hello.fingerprint);
                out.u64(hello.features);
                match &hello.purpose {
                    Purpose::Client(client) => {
                        out.u8(0);
                        out.client(client);
                        // A later field: who has none says nothing, as before there was one.
                        if let Some(partition) = &client.partition {
                            out.optional(Some(partition));
                        }
                    }
                    Purpose::Command { line } => {
                        out.u8(1);
                        out.text(line);
                    }
                    Purpose::View(request) => {
                        out.u8(2);
                        out.u8(u8::from(request.all));
                        out.optional(request.memory_limit.as_deref());
                    }
                }
            }
            Self::CommandOutput { exit, last, text } => {
                out.u8(*exit);
                out.u8(u8::from(*last));
                out.text(text);
            }
            Self::Welcome(welcome) => {
                out.u64(welcome.session);
                out.u32(welcome.server_pid.cast_unsigned());
                out.bytes(&welcome.facts);
                out.u64(welcome.host_base);
                out.u64(welcome.host_bytes);
            }
            Self::Refused { code, text } => {
                out.u32(*code);
                out.text(text);
            }
            Self::Admit(admit) => {
                out.u64(admit.session);
                out.u32(admit.pid.cast_unsigned());
                out.u32(admit.uid);
                out.u32(admit.gid);
                out.u64(admit.namespace);
                out.version(admit.version);
                out.u64(admit.fingerprint);
                out.u64(admit.features);
                out.client(&admit.client);
                // As above.
                if admit.member != Membership::default() {
                    out.optional_u32(admit.member.group);
                    out.optional_u32(admit.member.partition);
                }
            }
            Self::Shutdown { force, grace } => {
                out.u8(u8::from(*force));
                out.u32(*grace);
            }
            Self::Ready { pid, devices } => {
                out.u32(pid.cast_unsigned());
                out.u32(devices.len() as u32);
                devices.iter().for_each(|device| out.device(device));
                // As above; a later field needs those before it.
                let capability = devices.iter().any(|device| device.capability != [0, 0]);
                let chunks = capability || devices.iter().any(|device| device.chunks != 0);
                let chunk = chunks || devices.iter().any(|device| device.chunk != 0);
                if chunk {
                    devices.iter().for_each(|device| out.u32(device.chunk));
                }
                if chunks {
                    devices.iter().for_each(|device| out.u32(device.chunks));
                }
                if capability {
                    devices
                        .iter()
                        .for_each(|device| out.pair(device.capability));
                }
            }
            Self::Attached { session } => out.u64(*session),
            Self::Gone { session, how } => {
                out.u64(*session);
                out.u8(*how as u8);
            }
            Self::Fault {
                session,
                code,
                text,
            } => {
                out.u64(*session);
                out.u32(*code);
                out.text(text);
            }
            Self::Lost { code } => out.u32(*code),
            Self::Terminate { session } => out.u64(*session),
            Self::Queued { text } | Self::Remark { text } | Self::Underlay { text } => {
                out.text(text);
            }
            Self::Group(group) => {
                out.u32(group.group);
                out.u32(group.slot);
                out.u64(group.request);
                out.text(&group.name);
                out.text(&group.memory);
                out.optional(group.percentage.as_deref());
                out.u8(u8::from(group.reserved));
                out.optional_u32(group.device);
            }
            Self::GroupGone { group } => out.u32(*group),
            Self::Change(change) => {
                out.u64(change.request);
                out.u64(change.session);
                out.u32(change.memory.len() as u32);
                for (device, bytes) in &change.memory {
                    out.u32(*device);
                    out.u64(*bytes);
                }
                out.optional(change.percentage.as_deref());
                out.optional_u32(change.reserved.map(u32::from));
                out.optional_u32(change.priority);
            }
            Self::Changed {
                request,
                code,
                text,
                used,
            } => {
                out.u64(*request);
                out.u32(*code);
                out.text(text);
                out.u32(used.len() as u32);
                used.iter().for_each(|bytes| out.u64(*bytes));
            }
            Self::View { last, view } => {
                out.u8(u8::from(*last));
                out.view(view);
            }
        }
        out.0
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// When it is not one, not of this major version, or damaged. A Refused is read whatever its
    /// version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut from = Reader(bytes);
        if from.u32().ok() != Some(MAGIC) {
            return Err(Unreadable::Magic);
        }
        let kind = from.u16()?;
        let version = from.version()?;
        if kind != REFUSED {
            negotiate(version).map_err(Unreadable::Version)?;
        }
        Ok(match kind {
            1 => Self::Hello(Hello {
                version,
                fingerprint: from.u64()?,
                features: from.u64()?,
                purpose: match from.u8()? {
                    0 => {
                        let client = from.client()?;
                        Purpose::Client(ClientFields {
                            partition: from.optional().ok().flatten(),
                            ..client
                        })
                    }
                    1 => Purpose::Command { line: from.text()? },
                    2 => Purpose::View(ViewRequest {
                        all: from.bool()?,
                        memory_limit: from.optional()?,
                    }),
                    _ => return Err(Unreadable::Damaged),
                },
            }),
            2 => Self::CommandOutput {
                exit: from.u8()?,
                last: from.bool()?,
                text: from.text()?,
            },
            3 => Self::Welcome(Welcome {
                version,
                session: from.u64()?,
                server_pid: from.u32()?.cast_signed(),
                facts: from.bytes()?.to_vec(),
                host_base: from.u64()?,
                host_bytes: from.u64()?,
            }),
            REFUSED => Self::Refused {
                code: from.u32()?,
                text: from.text()?,
            },
            5 => Self::Admit(Admit {
                session: from.u64()?,
                pid: from.u32()?.cast_signed(),
                uid: from.u32()?,
                gid: from.u32()?,
                namespace: from.u64()?,
                version: from.version()?,
                fingerprint: from.u64()?,
                features: from.u64()?,
                client: from.client()?,
                member: from.membership().unwrap_or_default(),
            }),
            6 => Self::Shutdown {
                force: from.bool()?,
                grace: from.u32()?,
            },
            7 => {
                let pid = from.u32()?.cast_signed();
                let mut devices = Vec::new();
                // The count is not trusted: the loop ends when the bytes do.
                for _ in 0..from.u32()? {
                    devices.push(from.device()?);
                }
                for device in &mut devices {
                    device.chunk = from.u32().unwrap_or(0);
                }
                for device in &mut devices {
                    device.chunks = from.u32().unwrap_or(0);
                }
                for device in &mut devices {
                    device.capability = from.pair().unwrap_or_default();
                }
                Self::Ready { pid, devices }
            }
            8 => Self::Attached {
                session: from.u64()?,
            },
            9 => {
                let session = from.u64()?;
                let number = usize::from(from.u8()?);
                let how = *Ending::ALL.get(number).ok_or(Unreadable::Damaged)?;
                Self::Gone { session, how }
            }
            10 => Self::Fault {
                session: from.u64()?,
                code: from.u32()?,
                text: from.text()?,
            },
            11 => Self::Lost { code: from.u32()? },
            12 => Self::Terminate {
                session: from.u64()?,
            },
            13 => Self::Queued { text: from.text()? },
            14 => Self::Group(Group {
                group: from.u32()?,
                slot: from.u32()?,
                request: from.u64()?,
                name: from.text()?,
                memory: from.text()?,
                percentage: from.optional()?,
                reserved: from.bool()?,
                device: from.optional_u32()?,
            }),
            18 => Self::Remark { text: from.text()? },
            15 => Self::GroupGone { group: from.u32()? },
            16 => Self::Change(Change {
                request: from.u64()?,
                session: from.u64()?,
                memory: {
                    let mut memory = Vec::new();
                    for _ in 0..from.u32()? {
                        memory.push((from.u32()?, from.u64()?));
                    }
                    memory
                },
                percentage: from.optional()?,
                reserved: from.optional_u32()?.map(|reserved| reserved != 0),
                priority: from.optional_u32()?,
            }),
            17 => Self::Changed {
                request: from.u64()?,
                code: from.u32()?,
                text: from.text()?,
                used: {
                    let mut used = Vec::new();
                    for _ in 0..from.u32()? {
                        used.push(from.u64()?);
                    }
                    used
                },
            },
            19 => Self::View {
                last: from.bool()?,
                view: from.view()?,
            },
            20 => Self::Underlay { text: from.text()? },
            other => return Err(Unreadable::Kind(other)),
        })
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }
    fn version(&mut self, value: Version) {
        self.u16(value.major);
        self.u16(value.minor);
    }
    fn bytes(&mut self, value: &[u8]) {
        // What is longer than a packet does not leave the process; sending it fails.
        self.u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        self.0.extend(value);
    }
    fn text(&mut self, value: &str) {
        self.bytes(value.as_bytes());
    }
    fn optional(&mut self, value: Option<&str>) {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            self.text(value);
        }
    }
    fn optional_u32(&mut self, value: Option<u32>) {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            self.u32(value);
        }
    }
    fn pair(&mut self, value: [u32; 2]) {
        value.iter().for_each(|part| self.u32(*part));
    }
    fn optional_u64(&mut self, value: Option<u64>) {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            self.u64(value);
        }
    }
    /// What every version says of a device.
    fn device(&mut self, device: &ListedDevice) {
        self.text(&device.uuid);
        self.text(&device.name);
        device.pci.iter().for_each(|part| self.u32(*part));
        self.u64(device.total_memory);
        self.u32(device.multiprocessors);
    }
    fn view(&mut self, view: &View) {
        self.text(&view.driver);
        self.u32(view.devices.len() as u32);
        for viewed in &view.devices {
            self.device(&viewed.device);
            self.pair(viewed.device.capability);
            self.u8(u8::from(viewed.software));
            self.optional_u32(viewed.mode);
            self.u64(viewed.total);
            self.u64(viewed.used);
            self.u64(viewed.free);
        }
        self.u32(view.processes.len() as u32);
        for process in &view.processes {
            self.u32(process.device);
            self.u32(process.pid.cast_unsigned());
            self.u8(u8::from(process.is_asker));
            self.u8(u8::from(process.is_server));
            self.optional_u64(process.used);
            self.text(&process.name);
        }
    }
    fn client(&mut self, value: &ClientFields) {
        self.text(&value.program);
        self.optional(value.percentage.as_deref());
        self.optional(value.memory_limit.as_deref());
        self.optional(value.priority.as_deref());
        self.u32(value.context);
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Unreadable::Damaged)?;
        self.0 = rest;
        Ok(*head)
    }
    fn u8(&mut self) -> Result<u8, Unreadable> {
        Ok(self.array::<1>()?[0])
    }
    fn u16(&mut self) -> Result<u16, Unreadable> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    fn u32(&mut self) -> Result<u32, Unreadable> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    fn u64(&mut self) -> Result<u64, Unreadable> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    fn bool(&mut self) -> Result<bool, Unreadable> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Unreadable::Damaged),
        }
    }
    fn version(&mut self) -> Result<Version, Unreadable> {
        Ok(Version {
            major: self.u16()?,
            minor: self.u16()?,
        })
    }
    fn bytes(&mut self) -> Result<&'a [u8], Unreadable> {
        let count = self.u32()? as usize;
        let (head, rest) = self.0.split_at_checked(count).ok_or(Unreadable::Damaged)?;
        self.0 = rest;
        Ok(head)
    }
    fn text(&mut self) -> Result<String, Unreadable> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| Unreadable::Damaged)?;
        Ok(text.to_owned())
    }
    fn optional(&mut self) -> Result<Option<String>, Unreadable> {
        if self.bool()? {
            self.text().map(Some)
        } else {
            Ok(None)
        }
    }
    fn optional_u32(&mut self) -> Result<Option<u32>, Unreadable> {
        if self.bool()? {
            self.u32().map(Some)
        } else {
            Ok(None)
        }
    }
    fn pair(&mut self) -> Result<[u32; 2], Unreadable> {
        Ok([self.u32()?, self.u32()?])
    }
    fn optional_u64(&mut self) -> Result<Option<u64>, Unreadable> {
        if self.bool()? {
            self.u64().map(Some)
        } else {
            Ok(None)
        }
    }
    fn device(&mut self) -> Result<ListedDevice, Unreadable> {
        Ok(ListedDevice {
            uuid: self.text()?,
            name: self.text()?,
            pci: [self.u32()?, self.u32()?, self.u32()?],
            total_memory: self.u64()?,
            multiprocessors: self.u32()?,
            ..ListedDevice::default()
        })
    }
    fn view(&mut self) -> Result<View, Unreadable> {
        let mut view = View {
            driver: self.text()?,
            ..View::default()
        };
        for _ in 0..self.u32()? {
            let device = self.device()?;
            view.devices.push(ViewedDevice {
                device: ListedDevice {
                    capability: self.pair()?,
                    ..device
                },
                software: self.bool()?,
                mode: self.optional_u32()?,
                total: self.u64()?,
                used: self.u64()?,
                free: self.u64()?,
            });
        }
        for _ in 0..self.u32()? {
            view.processes.push(ViewedProcess {
                device: self.u32()?,
                pid: self.u32()?.cast_signed(),
                is_asker: self.bool()?,
                is_server: self.bool()?,
                used: self.optional_u64()?,
                name: self.text()?,
            });
        }
        Ok(view)
    }
    fn membership(&mut self) -> Result<Membership, Unreadable> {
        Ok(Membership {
            group: self.optional_u32()?,
            partition: self.optional_u32()?,
        })
    }
    fn client(&mut self) -> Result<ClientFields, Unreadable> {
        Ok(ClientFields {
            program: self.text()?,
            percentage: self.optional()?,
            memory_limit: self.optional()?,
            priority: self.optional()?,
            context: self.u32()?,
            partition: None,
        })
    }
}
