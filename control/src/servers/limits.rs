//! The limits that the daemon gives to servers, and what becomes of a client's own.
//!
//! A client can only narrow what its server allows. Whatever does not parse is refused with a reason.
//!
//! Called by commands, by `admission` and where servers start. Must not know how a server enforces them.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::control_messages::{ClientFields, ListedDevice};
use protocol::limits::{self, LimitError};

use crate::files::directories::{VariableError, text_variable};

/// Limits: the daemon's defaults for later servers, or one server's for its later clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerLimits {
    /// Active thread percentage.
    pub percentage: f32,
    /// Pinned memory limits as they were set, by device as it was named.
    pub memory: BTreeMap<String, String>,
    /// How long a kernel may run.
    pub kernel_time: Option<Duration>,
    /// Whether kernels of all clients are fenced.
    pub fenced: bool,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            percentage: 100.0,
            memory: BTreeMap::new(),
            kernel_time: None,
            fenced: false,
        }
    }
}

/// A percentage with the digits that were given, not those of the nearest binary fraction.
#[must_use]
pub fn as_given(percentage: f32) -> f64 {
    percentage.to_string().parse().unwrap_or(0.0)
}

impl ServerLimits {
    /// The defaults that the daemon's environment gives.
    ///
    /// # Errors
    /// When one does not parse.
    pub fn from_environment(
        percentage: Option<&str>,
        memory: Option<&str>,
        kernel_time: Option<&str>,
    ) -> Result<Self, LimitError> {
        let mut settings = Self {
            kernel_time: kernel_time.map(limits::kernel_time).transpose()?,
            ..Self::default()
        };
        if let Some(text) = percentage {
            settings.percentage = limits::percentage(text)?;
        }
        if let Some(text) = memory {
            limits::memory_limits(text)?;
            for entry in text.split(',').filter(|entry| !entry.trim().is_empty()) {
                if let Some((device, size)) = entry.split_once('=') {
                    settings.set_memory(device.trim(), size.trim())?;
                }
            }
        }
        Ok(settings)
    }

    /// Sets the limit of a device.
    ///
    /// # Errors
    /// When it does not parse; then nothing has changed.
    pub fn set_memory(&mut self, device: &str, size: &str) -> Result<(), LimitError> {
        if !limits::is_device(device) {
            return Err(LimitError::Entry(format!("{device}={size}")));
        }
        limits::size_in_bytes(size)?;
        self.memory.insert(device.to_owned(), size.to_owned());
        Ok(())
    }

    /// What a client of a server with these settings gets: its own wishes, checked, and narrowed by
    /// what the server allows. Of several limits for a device the lowest holds, which is for the
    /// server to find, since it alone knows which names mean the same device.
    ///
    /// # Errors
    /// When a wish does not parse.
    pub fn limits_for_client(
        &self,
        client: &ClientFields,
        default_priority: u32,
    ) -> Result<ClientFields, LimitError> {
        let mut percentage = self.percentage;
        if let Some(text) = &client.percentage {
            percentage = limits::percentage(text)?.min(percentage);
        }
        let mut memory: Vec<String> = self
            .memory
            .iter()
            .map(|(device, size)| format!("{device}={size}"))
            .collect();
        if let Some(text) = &client.memory_limit
            && !limits::memory_limits(text)?.is_empty()
        {
            memory.push(text.clone());
        }
        let priority = match &client.priority {
            Some(text) => limits::priority(text)?,
            None => default_priority,
        };
        let kernel_time = match client.kernel_time.as_deref().map(limits::kernel_time) {
            Some(own) => Some(own?.min(self.kernel_time.unwrap_or(Duration::MAX))),
            None => self.kernel_time,
        };
        // Read in any case: what makes no sense is refused.
        let asks = client.isolation.as_deref().map(limits::is_fenced);
        let asks = asks.transpose()?.unwrap_or(false);
        let fenced = self.fenced || asks;
        Ok(ClientFields {
            kernel_time: kernel_time.map(limits::kernel_time_text),
            isolation: fenced.then(|| limits::FENCED.to_owned()),
            percentage: Some(percentage.to_string()),
            memory_limit: (!memory.is_empty()).then(|| memory.join(",")),
            priority: Some(priority.to_string()),
            ..client.clone()
        })
    }
}

/// The device that a limit names: by its ordinal, or by a UUID that begins so.
#[must_use]
pub fn device_named(devices: &[ListedDevice], name: &str) -> Option<u32> {
    if let Ok(ordinal) = name.parse::<u32>() {
        return ((ordinal as usize) < devices.len()).then_some(ordinal);
    }
    let name = name.to_ascii_lowercase();
    let begins = |device: &ListedDevice| device.uuid.to_ascii_lowercase().starts_with(&name);
    let mut found = (0..).zip(devices).filter(|(_, device)| begins(device));
    let (ordinal, _) = found.next()?;
    found.next().is_none().then_some(ordinal)
}

/// What a client that was handed to a server may have. What the server cannot read it refuses.
#[must_use]
pub fn limits_of(fields: &ClientFields, devices: &[ListedDevice]) -> ClientLimits {
    let mut memory = BTreeMap::new();
    let text = fields.memory_limit.as_deref().unwrap_or("");
    for limit in limits::memory_limits(text).unwrap_or_default() {
        if let Some(device) = device_named(devices, &limit.device) {
            let bytes = memory.entry(device).or_insert(u64::MAX);
            *bytes = limit.bytes.min(*bytes);
        }
    }
    ClientLimits {
        percentage: percentage_of(fields),
        reserved: false,
        priority: priority_of(fields),
        fenced: fields.isolation.is_some(),
        memory,
        kernel_time: kernel_time_of(fields),
    }
}

/// How long a kernel may run, by fields.
fn kernel_time_of(fields: &ClientFields) -> Option<Duration> {
    let text = fields.kernel_time.as_deref()?;
    limits::kernel_time(text).ok()
}

/// Has fields say what a client may have now. `false` if they cannot: nothing in them keeps a part free.
#[must_use]
pub fn set_limits(fields: &mut ClientFields, limits: &ClientLimits) -> bool {
    let ClientLimits {
        percentage,
        reserved,
        priority,
        memory,
        kernel_time,
        // It is decided when a client comes, and stands in its fields.
        fenced: _,
    } = limits;
    let memory: Vec<String> = memory
        .iter()
        .map(|(device, bytes)| format!("{device}={bytes}"))
        .collect();
    fields.percentage = Some(percentage.to_string());
    fields.priority = Some(priority.to_string());
    fields.memory_limit = (!memory.is_empty()).then(|| memory.join(","));
    fields.kernel_time = kernel_time.map(limits::kernel_time_text);
    !reserved
}

/// The active thread percentage in fields.
#[must_use]
pub fn percentage_of(fields: &ClientFields) -> f32 {
    let percentage = fields.percentage.as_deref().map(limits::percentage);
    percentage.and_then(Result::ok).unwrap_or(100.0)
}

/// The priority in fields: 0 normal, 1 below normal.
#[must_use]
pub fn priority_of(fields: &ClientFields) -> u32 {
    let priority = fields.priority.as_deref().map(limits::priority);
    priority.and_then(Result::ok).unwrap_or(0)
}

/// Why a limit in the environment cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// It is no text.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// It is no limit.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// The limits that the environment gives, and the priority.
///
/// # Errors
/// When one does not parse.
pub fn limits_in_environment() -> Result<(ServerLimits, u32), SettingError> {
    let percentage = text_variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")?;
    let memory = text_variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")?;
    let kernel_time = text_variable("OPENMPS_KERNEL_TIME_LIMIT")?;
    let settings = ServerLimits::from_environment(
        percentage.as_deref(),
        memory.as_deref(),
        kernel_time.as_deref(),
    )?;
    let priority = match text_variable("CUDA_MPS_CLIENT_PRIORITY")? {
        Some(text) => limits::priority(&text)?,
        None => 0,
    };
    Ok((settings, priority))
}

/// What a client may have, by the daemon's word.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientLimits {
    /// Active thread percentage.
    pub percentage: f32,
    /// Whether that is kept free for it.
    pub reserved: bool,
    /// 0 normal, 1 below normal.
    pub priority: u32,
    /// Whether its kernels reach nothing but its own memory.
    pub fenced: bool,
    /// Bytes of devices, by ordinal, where there is a limit.
    pub memory: BTreeMap<u32, u64>,
    /// How long a kernel may run.
    pub kernel_time: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_only_narrows() {
        let mut settings = ServerLimits {
            percentage: 50.0,
            ..ServerLimits::default()
        };
        settings.set_memory("0", "2G").unwrap();
        let ask = |percentage: &str, memory: &str| {
            let client = ClientFields {
                percentage: Some(percentage.into()),
                memory_limit: Some(memory.into()),
                ..ClientFields::default()
            };
            settings.limits_for_client(&client, 1)
        };
        let got = ask("80", "0=1G").unwrap();
        assert_eq!(got.percentage.as_deref(), Some("50"));
        assert_eq!(got.memory_limit.as_deref(), Some("0=2G,0=1G"));
        assert_eq!(got.priority.as_deref(), Some("1"));
        assert_eq!(ask("33.3", "").unwrap().percentage.as_deref(), Some("33.3"));
        let mut settings = settings.clone();
        for (asked, of_server, fenced) in [
            (None, false, false),
            (Some("fenced"), false, true),
            (Some("user"), false, false),
            (None, true, true),
            (Some("client"), true, true),
        ] {
            settings.fenced = of_server;
            let client = ClientFields {
                isolation: asked.map(str::to_owned),
                ..ClientFields::default()
            };
            let got = settings.limits_for_client(&client, 0).unwrap();
            assert_eq!(got.isolation.as_deref(), fenced.then_some("fenced"));
            assert_eq!(limits_of(&got, &[]).fenced, fenced);
        }
        let wrong = ClientFields {
            isolation: Some("fense".to_owned()),
            ..ClientFields::default()
        };
        assert!(settings.limits_for_client(&wrong, 0).is_err());
        assert!(ask("abc", "").is_err());
        assert!(ask("50", "junk").is_err());
    }

    #[test]
    fn a_client_only_shortens_its_kernels() {
        let asked = |server: Option<u64>, client: Option<&str>| {
            let settings = ServerLimits {
                kernel_time: server.map(Duration::from_secs),
                ..ServerLimits::default()
            };
            let client = ClientFields {
                kernel_time: client.map(str::to_owned),
                ..ClientFields::default()
            };
            let fields = settings.limits_for_client(&client, 0);
            fields.map(|fields| fields.kernel_time)
        };
        assert_eq!(asked(None, None), Ok(None));
        assert_eq!(asked(Some(2), None), Ok(Some("2s".into())));
        assert_eq!(asked(None, Some("500ms")), Ok(Some("500ms".into())));
        assert_eq!(asked(Some(2), Some("500ms")), Ok(Some("500ms".into())));
        assert_eq!(asked(Some(2), Some("5s")), Ok(Some("2s".into())));
        assert!(asked(Some(2), Some("5")).is_err());
    }

    #[test]
    fn what_a_client_may_have_stands_in_its_fields_again() {
        let mut fields = ClientFields {
            percentage: Some("90".into()),
            memory_limit: Some("0=1M,1=2M".into()),
            ..ClientFields::default()
        };
        let limits = ClientLimits {
            percentage: 33.3,
            reserved: false,
            priority: 1,
            fenced: false,
            memory: BTreeMap::from([(0, 5 << 20)]),
            kernel_time: Some(Duration::from_millis(1500)),
        };
        let device = ListedDevice::default();
        assert!(set_limits(&mut fields, &limits));
        assert_eq!(limits_of(&fields, &[device]), limits);
        let reserved = ClientLimits {
            reserved: true,
            ..limits
        };
        assert!(!set_limits(&mut fields, &reserved));
    }

    #[test]
    fn percentages_keep_their_digits() {
        assert_eq!(as_given(33.3), 33.3);
        assert_eq!(as_given(100.0), 100.0);
    }

    #[test]
    fn a_refused_limit_changes_nothing() {
        let mut settings = ServerLimits::default();
        settings.set_memory("0", "512M").unwrap();
        for wrong in ["xyz", "0G", "-1M", "1.5G"] {
            assert!(settings.set_memory("0", wrong).is_err());
        }
        assert_eq!(settings.memory["0"], "512M");
        assert!(settings.set_memory("zero", "1G").is_err());
        assert!(ServerLimits::from_environment(Some("0"), None, None).is_err());
        assert!(ServerLimits::from_environment(None, Some("junk"), None).is_err());
        assert!(ServerLimits::from_environment(None, None, Some("junk")).is_err());
        let settings =
            ServerLimits::from_environment(Some("25"), Some("0=1G,1=512MB"), Some("30s")).unwrap();
        assert_eq!(settings.percentage, 25.0);
        assert_eq!(settings.memory.len(), 2);
        assert_eq!(settings.kernel_time, Some(Duration::from_secs(30)));
    }
}
