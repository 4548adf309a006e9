//! `host.conf` and `host_container_device.yml`.
//!
//! Called by `openmps cloudpods` and `plan`. Must not know devices: whether there is one is `plan`'s to say.

use std::path::{Path, PathBuf};

use crate::gpus::MOST_SLICES;
use crate::yaml::{BadFile, File, Node, Value, get};

/// Where Cloudpods has its host's configuration.
pub const HOST_CONF: &str = "/etc/yunion/host.conf";

/// Longest path of a pipe directory: the names of the sockets in it make it 107 bytes at most.
const LONGEST_PIPE: usize = 107 - "/control_privileged".len();

/// The kind of device that this is about.
const OURS: &str = "NVIDIA_MPS";

/// Kinds of device that are other programs' business.
const OTHERS: &[&str] = &[
    "CPH_AMD_GPU",
    "CPH_AOSP_BINDER",
    "NETINT_CA_ASIC",
    "NETINT_CA_QUADRA",
    "NVIDIA_GPU",
    "NVIDIA_GPU_SHARE",
    "NVIDIA_HAMI",
    "ASCEND_NPU",
    "VASTAITECH_GPU",
];

/// What `host.conf` says of MPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostConf {
    /// The file.
    pub path: PathBuf,
    /// `enable_cuda_mps`
    pub enabled: bool,
    /// The line that says so, or 1.
    pub enabled_line: u64,
    /// `cuda_mps_pipe_directory`
    pub pipe: PathBuf,
    /// The line that says so.
    pub pipe_line: Option<u64>,
    /// `cuda_mps_log_directory`
    pub log: PathBuf,
    /// The line that says so.
    pub log_line: Option<u64>,
    /// `cuda_mps_replicas`
    pub replicas: u32,
    /// `container_device_config_file`, and its line.
    pub device_file: Option<(PathBuf, u64)>,
}

impl HostConf {
    /// Reads the file.
    ///
    /// # Errors
    /// When it cannot be read, or what it says of MPS makes no sense.
    pub fn read(path: &Path) -> Result<Self, BadFile> {
        Self::of(&File::read(path)?)
    }

    /// What a file that has been read says.
    ///
    /// # Errors
    /// When it makes no sense.
    pub fn of(file: &File) -> Result<Self, BadFile> {
        let root = file.map(&file.root, "the file")?;
        let mut conf = Self {
            path: file.path().to_owned(),
            enabled: false,
            enabled_line: 1,
            pipe: "/tmp/nvidia-mps/pipe".into(),
            pipe_line: None,
            log: "/tmp/nvidia-mps/log".into(),
            log_line: None,
            replicas: 10,
            device_file: None,
        };
        let said = |key: &str| get(root, key).filter(|node| node.value != Value::Null);
        if let Some(node) = said("enable_cuda_mps") {
            conf.enabled = file.bool(node, "enable_cuda_mps")?;
            conf.enabled_line = node.line;
        }
        if let Some(node) = said("cuda_mps_pipe_directory") {
            conf.pipe_line = Some(node.line);
            conf.pipe = directory(
                file,
                node,
                "cuda_mps_pipe_directory",
                "/tmp/nvidia-mps/pipe",
            )?;
            let length = conf.pipe.as_os_str().len();
            if length > LONGEST_PIPE {
                return Err(file.bad(
                    node.line,
                    format!("cuda_mps_pipe_directory has {length} bytes, and a socket's path has 107 at most"),
                    format!("name a directory of at most {LONGEST_PIPE} bytes"),
                ));
            }
        }
        if let Some(node) = said("cuda_mps_log_directory") {
            conf.log_line = Some(node.line);
            conf.log = directory(file, node, "cuda_mps_log_directory", "/tmp/nvidia-mps/log")?;
        }
        if let Some(node) = said("cuda_mps_replicas") {
            conf.replicas = count(file, node, "cuda_mps_replicas")?;
        }
        if let Some(node) = said("container_device_config_file") {
            let key = "container_device_config_file";
            let example = "/etc/yunion/host_container_device.yml";
            if node.value != Value::Text(String::new()) {
                conf.device_file = Some((directory(file, node, key, example)?, node.line));
            }
        }
        Ok(conf)
    }

    /// A message about the line that switches MPS on.
    pub(super) fn bad(&self, what: String, mend: &str) -> BadFile {
        BadFile {
            file: self.path.clone(),
            line: Some(self.enabled_line),
            what,
            mend: mend.to_owned(),
        }
    }

    /// A message about a machine on which MPS is wanted and that has no GPU, or none that can be used.
    #[must_use]
    pub fn no_gpu(&self, why: &str) -> BadFile {
        self.bad(
            format!("MPS is wanted, but this machine has no GPU: {why}"),
            "install the GPU's driver, or write `enable_cuda_mps: false`; OPENMPS_ENGINE=soft in the \
             environment takes the software GPU",
        )
    }

    /// A message about the pipe or log directory, which cannot be used: about the line that names it, or
    /// that switches MPS on.
    #[must_use]
    pub fn bad_directory(&self, directory: &Path, what: String) -> BadFile {
        let (key, line) = match directory == self.pipe {
            true => ("cuda_mps_pipe_directory", self.pipe_line),
            false => ("cuda_mps_log_directory", self.log_line),
        };
        let what = format!("{key} is {}: {what}", directory.display());
        BadFile {
            line: line.or(Some(self.enabled_line)),
            ..self.bad(
                what,
                &format!("look at what is there and remove it, or name another with `{key}:`"),
            )
        }
    }

    /// The devices that the file of devices lists for MPS. Without such a file, none.
    ///
    /// # Errors
    /// When there should be one and it cannot be read, or it makes no sense.
    pub fn entries(&self) -> Result<Vec<SharedDeviceLine>, BadFile> {
        let Some((path, line)) = &self.device_file else {
            return Ok(Vec::new());
        };
        if !path.exists() {
            return Err(BadFile {
                file: self.path.clone(),
                line: Some(*line),
                what: format!(
                    "container_device_config_file is {}, which is not there",
                    path.display()
                ),
                mend:
                    "make the file (`devices: []` is enough to share every GPU), or mend the path"
                        .into(),
            });
        }
        device_entries(&File::read(path)?)
    }
}

/// A device that is to be shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedDeviceLine {
    /// The file.
    pub file: PathBuf,
    /// The line of its path.
    pub line: u64,
    /// Its render node.
    pub path: PathBuf,
    /// Into how many parts it is divided.
    pub parts: u32,
}

fn count(file: &File, node: &Node, key: &str) -> Result<u32, BadFile> {
    let why = format!("a device can be divided into {MOST_SLICES} parts of one percent, no more");
    file.count(node, key, MOST_SLICES, &why)
}

fn directory(file: &File, node: &Node, key: &str, example: &str) -> Result<PathBuf, BadFile> {
    let text = file.text(node, key, example)?;
    let whole = text.starts_with('/') && !text.contains('\0');
    match whole {
        true => Ok(PathBuf::from(text)),
        false => Err(file.bad(
            node.line,
            format!("{key} is {text:?}, which is not an absolute path"),
            format!("write it as in `{key}: {example}`"),
        )),
    }
}

/// The entries of a file of devices that are for MPS.
///
/// # Errors
/// When the file makes no sense.
pub fn device_entries(file: &File) -> Result<Vec<SharedDeviceLine>, BadFile> {
    const EXAMPLE: &str = "{path: /dev/dri/renderD128, type: NVIDIA_MPS, virtual_number: 4}";
    let root = file.map(&file.root, "the file")?;
    if let (Some((key, node)), None) = (root.first(), get(root, "devices")) {
        return Err(file.bad(
            node.line,
            format!("there is no `devices:`, but {key:?}"),
            format!("begin with `devices:`, and below it `- {EXAMPLE}`"),
        ));
    }
    let Some(devices) = get(root, "devices") else {
        return Ok(Vec::new());
    };
    let mut entries: Vec<SharedDeviceLine> = Vec::new();
    let mut others = Vec::new();
    for item in file.list(devices, "devices")? {
        let fields = match &item.value {
            Value::Map(fields) => fields.as_slice(),
            _ => {
                return Err(file.bad(
                    item.line,
                    "an item of devices is no map of path, type and virtual_number",
                    format!("write it as in `- {EXAMPLE}`"),
                ));
            }
        };
        let field = |key: &str| {
            get(fields, key).ok_or_else(|| {
                file.bad(
                    item.line,
                    format!("this device has no {key}"),
                    format!("write it as in `- {EXAMPLE}`"),
                )
            })
        };
        let kind_node = field("type")?;
        let kind = file.text(kind_node, "type", OURS)?;
        if OTHERS.contains(&kind) {
            // Its other fields are others' business, but a device that is somebody's alone is not shared.
            if let Some(node) = get(fields, "path")
                && let Value::Text(path) = &node.value
            {
                others.push((PathBuf::from(path), node.line));
            }
            continue;
        }
        if kind != OURS {
            let near = kind.to_uppercase().replace(['-', ' '], "_");
            return Err(file.bad(
                kind_node.line,
                format!("type {kind:?} is not known"),
                match near.contains("MPS") {
                    true => format!("write `type: {OURS}`"),
                    false => format!("it is one of {OURS}, {}", OTHERS.join(", ")),
                },
            ));
        }
        let path_node = field("path")?;
        let path = directory(file, path_node, "path", "/dev/dri/renderD128")?;
        let parts = count(file, field("virtual_number")?, "virtual_number")?;
        entries.push(SharedDeviceLine {
            file: file.path().to_owned(),
            line: path_node.line,
            path,
            parts,
        });
    }
    for (place, entry) in entries.iter().enumerate() {
        let ours = entries[..place].iter().map(|one| (&one.path, one.line));
        let others = others.iter().map(|(path, line)| (path, *line));
        if let Some((path, line)) = ours.chain(others).find(|(path, _)| **path == entry.path) {
            let (first, second) = (line.min(entry.line), line.max(entry.line));
            return Err(file.bad(
                second,
                format!("{} is in line {first} already", path.display()),
                "keep one entry for each device",
            ));
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(text: &str) -> Result<HostConf, BadFile> {
        HostConf::of(&File::parse(Path::new("host.conf"), text)?)
    }

    fn devices(text: &str) -> Result<Vec<SharedDeviceLine>, BadFile> {
        device_entries(&File::parse(Path::new("devices.yml"), text)?)
    }

    #[test]
    fn the_documented_files_are_read() {
        let conf = conf(
            "hostname: node1\nnetworks: [eth0/br0/10.0.0.1]\nenable_cuda_mps: true\n\
             cuda_mps_pipe_directory: /tmp/mps/pipe\ncuda_mps_log_directory: /tmp/mps/log\n\
             cuda_mps_replicas: 8\n\
             container_device_config_file: /etc/yunion/host_container_device.yml\n",
        )
        .unwrap();
        assert!(conf.enabled);
        assert_eq!(conf.enabled_line, 3);
        assert_eq!(conf.pipe, Path::new("/tmp/mps/pipe"));
        assert_eq!(conf.replicas, 8);
        let told = conf.bad_directory(&conf.log, "somebody else's".into());
        assert_eq!(
            told.to_string(),
            "host.conf:5: cuda_mps_log_directory is /tmp/mps/log: somebody else's\n  -> look at what is \
             there and remove it, or name another with `cuda_mps_log_directory:`"
        );
        let file = "/etc/yunion/host_container_device.yml";
        assert_eq!(conf.device_file, Some((file.into(), 7)));

        let entries = devices(
            "devices:\n- path: \"/dev/dri/renderD128\"\n  type: \"NVIDIA_MPS\"\n  virtual_number: 4\n\
             - path: /dev/dri/renderD129\n  type: CPH_AMD_GPU\n  virtual_number: 0\n",
        )
        .unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].line, entries[0].parts), (2, 4));
    }

    #[test]
    fn what_is_not_said_is_cloudpods_default() {
        for text in ["", "hostname: node1\n", "enable_cuda_mps:\n"] {
            let conf = conf(text).unwrap();
            assert!(!conf.enabled);
            assert_eq!(conf.pipe, Path::new("/tmp/nvidia-mps/pipe"));
            assert_eq!(conf.log, Path::new("/tmp/nvidia-mps/log"));
            assert_eq!(conf.bad_directory(&conf.pipe, String::new()).line, Some(1));
            assert_eq!((conf.replicas, conf.device_file), (10, None));
        }
        assert_eq!(
            conf("container_device_config_file: ''")
                .unwrap()
                .device_file,
            None
        );
        for text in ["", "devices:\n", "devices: []\n"] {
            assert_eq!(devices(text).unwrap(), []);
        }
    }

    #[test]
    fn broken_files_are_told_with_line_and_mend() {
        let item = |rest: &str| format!("devices:\n- path: /dev/dri/renderD128\n{rest}\n");
        let cases = [
            (conf("- a\n").unwrap_err(), 1, "not a map"),
            (
                conf("a: 1\nenable_cuda_mps: maybe\n").unwrap_err(),
                2,
                "neither true nor false",
            ),
            (conf("cuda_mps_replicas: 0\n").unwrap_err(), 1, "above 0"),
            (
                conf("cuda_mps_replicas: 101\n").unwrap_err(),
                1,
                "100 parts",
            ),
            (
                conf("\ncuda_mps_pipe_directory: pipe\n").unwrap_err(),
                2,
                "not an absolute path",
            ),
            (
                conf("cuda_mps_pipe_directory: 4\n").unwrap_err(),
                1,
                "not text",
            ),
            (
                conf(&format!("cuda_mps_pipe_directory: /{}\n", "x".repeat(100))).unwrap_err(),
                1,
                "107",
            ),
            (
                devices("device:\n- path: x\n").unwrap_err(),
                2,
                "no `devices:`",
            ),
            (devices("devices: x\n").unwrap_err(), 1, "not a list"),
            (devices("devices:\n- x\n").unwrap_err(), 2, "no map"),
            (
                devices(&item("  virtual_number: 4")).unwrap_err(),
                2,
                "no type",
            ),
            (
                devices(&item("  type: NVIDIA_MPS")).unwrap_err(),
                2,
                "no virtual_number",
            ),
            (
                devices(&item("  type: nvidia-mps\n  virtual_number: 4")).unwrap_err(),
                3,
                "write `type: NVIDIA_MPS`",
            ),
            (
                devices(&item("  type: TPU\n  virtual_number: 4")).unwrap_err(),
                3,
                "it is one of",
            ),
            (
                devices(&item("  type: NVIDIA_MPS\n  virtual_number: 0")).unwrap_err(),
                4,
                "above 0",
            ),
            (
                devices(&item("  type: NVIDIA_MPS\n  virtual_number: 0.5")).unwrap_err(),
                4,
                "fractions",
            ),
            (
                devices(&item("  type: NVIDIA_MPS\n  virtual_number: 1000")).unwrap_err(),
                4,
                "100 parts",
            ),
            (
                devices(&item(
                    "  type: NVIDIA_MPS\n  virtual_number: 4\n- path: /dev/dri/renderD128\n  \
                     type: NVIDIA_MPS\n  virtual_number: 2",
                ))
                .unwrap_err(),
                5,
                "in line 2 already",
            ),
            (
                devices(&item(
                    "  type: NVIDIA_GPU\n- path: /dev/dri/renderD128\n  type: NVIDIA_MPS\n  \
                     virtual_number: 2",
                ))
                .unwrap_err(),
                4,
                "in line 2 already",
            ),
            (
                devices(&item(
                    "  type: NVIDIA_MPS\n  virtual_number: 2\n- path: /dev/dri/renderD128\n  \
                     type: NVIDIA_GPU_SHARE",
                ))
                .unwrap_err(),
                5,
                "in line 2 already",
            ),
            (
                devices("devices:\n- type: NVIDIA_MPS\n  path: renderD128\n  virtual_number: 4\n")
                    .unwrap_err(),
                3,
                "not an absolute path",
            ),
        ];
        for (error, line, says) in cases {
            assert_eq!(error.line, Some(line), "{error}");
            let text = error.to_string();
            assert!(
                text.contains(says) && text.contains("\n  -> "),
                "{says}: {text}"
            );
        }
    }

    #[test]
    fn a_file_of_devices_that_is_not_there_is_told_of_in_host_conf() {
        let conf = conf("a: 1\ncontainer_device_config_file: /nowhere/x.yml\n").unwrap();
        let error = conf.entries().unwrap_err().to_string();
        assert!(error.starts_with("host.conf:2: "), "{error}");
        assert!(
            error.contains("/nowhere/x.yml, which is not there"),
            "{error}"
        );
    }
}
