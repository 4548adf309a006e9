//! The file of NVIDIA's device plugin, as far as it is about MPS.
//!
//! The same file drives ours. Keys that are no business of ours are not looked at; what would mean
//! another way of sharing is refused, because a node would offer something else than was asked for.
//!
//! Called by `openmps kubernetes plugin`; `resources` offers what it says. Must not know devices.

use std::path::Path;

use crate::yaml::{BadFile, File, Node, get};

/// The resource that is shared.
const GPU: &str = "nvidia.com/gpu";

/// The most parts of a GPU: NVIDIA's 48 are its server's limit, not ours.
pub const MOST_REPLICAS: u32 = 1000;

/// How GPUs are shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// The resource's name.
    pub resource: String,
    /// Parts of each GPU.
    pub replicas: u32,
    /// Whether a container may have but one.
    pub only_one: bool,
}

impl Sharing {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or asks for what there is not.
    pub fn read(path: &Path) -> Result<Self, BadFile> {
        Self::from_file(&File::read(path)?)
    }

    /// What a file that has been read says.
    ///
    /// # Errors
    /// As [`Sharing::read`].
    pub fn from_file(file: &File) -> Result<Self, BadFile> {
        let root = file.map(&file.root, "the file")?;
        match get(root, "version") {
            Some(version) if file.text(version, "version", "v1")? != "v1" => {
                return Err(file.bad(
                    version.line,
                    "a version that is not v1",
                    "write `version: v1`",
                ));
            }
            Some(_) => {}
            None => return Err(file.bad(1, "version is missing", "begin with `version: v1`")),
        }
        let empty = [];
        let flags = match get(root, "flags") {
            Some(flags) => file.map(flags, "flags")?,
            None => &empty,
        };
        if let Some(strategy) = get(flags, "migStrategy") {
            let word = file.text(strategy, "migStrategy", "none")?;
            if word != "none" {
                return Err(file.bad(
                    strategy.line,
                    format!("migStrategy is {word}: parts of a GPU are not shared again"),
                    "write `migStrategy: none`",
                ));
            }
        }
        sharing(file, root)
    }
}

fn sharing(file: &File, root: &[(String, Node)]) -> Result<Sharing, BadFile> {
    const EXAMPLE: &str =
        "write `sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}`";
    let Some(node) = get(root, "sharing") else {
        return Err(file.bad(1, "sharing is missing", EXAMPLE));
    };
    let all = file.map(node, "sharing")?;
    if let Some(slicing) = get(all, "timeSlicing") {
        return Err(file.bad(
            slicing.line,
            "timeSlicing shares GPUs without MPS",
            "take it out; `mps:` takes the same keys",
        ));
    }
    let Some(mps) = get(all, "mps") else {
        return Err(file.bad(node.line, "sharing.mps is missing", EXAMPLE));
    };
    let entries = file.map(mps, "mps")?;
    let flag = |key: &str, otherwise: bool| match get(entries, key) {
        Some(node) => file.bool(node, key),
        None => Ok(otherwise),
    };
    let renamed = flag("renameByDefault", false)?;
    let only_one = flag("failRequestsGreaterThanOne", true)?;
    let resources = match get(entries, "resources") {
        Some(node) => file.list(node, "resources")?,
        None => &[],
    };
    let [item, others @ ..] = resources else {
        return Err(file.bad(mps.line, "sharing.mps has no resources", EXAMPLE));
    };
    if let Some(other) = others.first() {
        return Err(file.bad(
            other.line,
            "a second resource: all GPUs of a node are shared in one way",
            format!("leave one entry, for {GPU}"),
        ));
    }
    let keys = file.map(item, "an entry of resources")?;
    let Some(name) = get(keys, "name") else {
        return Err(file.bad(item.line, "a resource without a name", EXAMPLE));
    };
    let word = file.text(name, "name", GPU)?;
    if word != GPU && word != "gpu" {
        return Err(file.bad(
            name.line,
            format!("{word} is no resource that can be shared"),
            format!("write `name: {GPU}`"),
        ));
    }
    if let Some(devices) = get(keys, "devices") {
        return Err(file.bad(
            devices.line,
            "devices: all GPUs of a node are shared, as with NVIDIA's plugin",
            "take the key out",
        ));
    }
    let Some(replicas) = get(keys, "replicas") else {
        return Err(file.bad(item.line, "a resource without replicas", EXAMPLE));
    };
    let count = file.count(
        replicas,
        "replicas",
        MOST_REPLICAS,
        "no more parts than that can be",
    )?;
    if count < 2 {
        return Err(file.bad(
            replicas.line,
            format!("replicas is {count}: that shares nothing"),
            format!("write a whole number from 2 to {MOST_REPLICAS}"),
        ));
    }
    let resource = match get(keys, "rename") {
        Some(node) => {
            let word = file.text(node, "rename", "nvidia.com/gpu.shared")?;
            let valid = word.split_once('/').is_some_and(|(domain, name)| {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
                !domain.is_empty()
                    && !name.is_empty()
                    && name.len() <= 63
                    && domain.bytes().chain(name.bytes()).all(plain)
            });
            if !valid {
                return Err(file.bad(
                    node.line,
                    format!("rename is {word:?}, no name of a resource"),
                    "write it as in `rename: nvidia.com/gpu.shared`",
                ));
            }
            word.to_owned()
        }
        None if renamed => format!("{GPU}.shared"),
        None => GPU.to_owned(),
    };
    Ok(Sharing {
        resource,
        replicas: count,
        only_one,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Sharing, String> {
        File::parse(Path::new("config.yaml"), text)
            .and_then(|file| Sharing::from_file(&file))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn nvidias_example_is_read() {
        let sharing = read(
            "version: v1\nflags:\n  mpsRoot: /run/nvidia/mps\n  migStrategy: none\n  plugin:\n    \
             passDeviceSpecs: true\nsharing:\n  mps:\n    resources:\n    - name: nvidia.com/gpu\n      \
             replicas: 10\n",
        );
        let ten = Sharing {
            resource: "nvidia.com/gpu".into(),
            replicas: 10,
            only_one: true,
        };
        assert_eq!(sharing, Ok(ten));
        let shared = read(
            "version: v1\nsharing:\n  mps:\n    renameByDefault: true\n    \
             failRequestsGreaterThanOne: false\n    resources: [{name: nvidia.com/gpu, replicas: 49}]\n",
        );
        let shared = shared.unwrap();
        assert_eq!(
            (shared.resource.as_str(), shared.replicas, shared.only_one),
            ("nvidia.com/gpu.shared", 49, false)
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_the_mend() {
        let mps = |rest: &str| format!("version: v1\nsharing:\n  mps:\n    resources:\n{rest}");
        let item = |keys: &str| mps(&format!("    - {{name: nvidia.com/gpu, {keys}}}\n"));
        for (text, line, says) in [
            ("sharing: {}\n".to_owned(), 1, "version is missing"),
            ("version: v2\n".into(), 1, "not v1"),
            ("version: v1\n".into(), 1, "sharing is missing"),
            (
                "version: v1\nsharing: {}\n".into(),
                2,
                "sharing.mps is missing",
            ),
            (
                "version: v1\nsharing:\n  timeSlicing:\n    resources: []\n".into(),
                4,
                "without MPS",
            ),
            (
                "version: v1\nflags: {migStrategy: mixed}\nsharing: {}\n".into(),
                2,
                "not shared again",
            ),
            (mps("      []\n"), 4, "has no resources"),
            (mps("    - replicas: 2\n"), 5, "without a name"),
            (
                mps("    - {name: nvidia.com/mig-1g.5gb, replicas: 2}\n"),
                5,
                "can be shared",
            ),
            (item("replicas: 0"), 5, "above 0"),
            (item("replicas: 1"), 5, "shares nothing"),
            (item("replicas: 1001"), 5, "no more parts"),
            (item("replicas: 2.5"), 5, "no fractions"),
            (item("replicas: 2, rename: gpu"), 5, "no name of a resource"),
            (item("replicas: 2, devices: [0]"), 5, "all GPUs"),
            (
                mps("    - {name: nvidia.com/gpu, replicas: 2}\n    - {name: gpu, replicas: 2}\n"),
                6,
                "a second resource",
            ),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(says), "{text}\n{error}");
            assert!(error.contains("\n  -> "), "{error}");
            let at: u32 = error.split(':').nth(1).unwrap().parse().unwrap();
            assert!(
                at == line || at + 1 == line || at == line + 1,
                "{text}\n{error}"
            );
        }
    }
}
