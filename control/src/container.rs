//! Which container and pod a process is in, by the paths of its cgroups.
//!
//! Docker, containerd, CRI-O, podman and kubelets with either cgroup driver are known by how they name cgroups; nothing of theirs is
//! asked. A process that may make cgroups of its own can name them so too: what is found is for lists, and decides nothing.
//!
//! Called by `daemon::admission` for each client. Must not be asked whether something is allowed.

use std::fs::File;
use std::io::Read;

/// Bytes of a /proc/PID/cgroup that are read: a dozen paths.
const MOST: u64 = 64 << 10;

/// Hexadecimal digits of a container's id.
const ID: usize = 64;

/// Where a process is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// The container's id, of 64 hexadecimal digits.
    pub id: Option<String>,
    /// The pod's uid, as the kubelet knows it: a UUID, or 32 hexadecimal digits of a static pod.
    pub pod: Option<String>,
}

impl Container {
    /// Where a process is, by its number; nowhere if that cannot be seen.
    #[must_use]
    pub fn of(pid: i32) -> Self {
        let mut text = String::new();
        if pid != 0
            && let Ok(file) = File::open(format!("/proc/{pid}/cgroup"))
            // What is no text is no path that is known.
            && file.take(MOST).read_to_string(&mut text).is_err()
        {
            text.clear();
        }
        Self::parse(&text)
    }

    /// Where a process is whose /proc/PID/cgroup is `text`. With cgroup v1 there is a line for each hierarchy, and not all of them
    /// need know of containers.
    fn parse(text: &str) -> Self {
        let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        let found = paths.map(Self::in_path);
        found.fold(Self::default(), |all, one| Self {
            id: all.id.or(one.id),
            pod: all.pod.or(one.pod),
        })
    }

    /// The innermost of a path: containers may have containers within.
    fn in_path(path: &str) -> Self {
        let mut found = Self::default();
        // containerd's name for a cgroup of systemd's, `slice:cri-containerd:id`, is a path's name where the two do not agree.
        for name in path.split(['/', ':']) {
            if let Some(uid) = pod(name) {
                // Of a pod within a container.
                found = Self {
                    id: None,
                    pod: Some(uid),
                };
            } else if let Some(id) = id(name) {
                found.id = Some(id.to_owned());
            }
        }
        found
    }
}

/// The id in the name of a container's cgroup: `ID`, `docker-ID.scope`, `cri-containerd-ID.scope`, `libpod-ID`.
fn id(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let (runtime, id) = name.rsplit_once('-').unwrap_or(("", name));
    // The process that watches a container is not in it.
    let is_id = id.len() == ID && id.bytes().all(is_hexadecimal) && !runtime.ends_with("conmon");
    is_id.then_some(id)
}

/// The uid in the name of a pod's cgroup: `podUID`, or with systemd `kubepods-burstable-podUID.slice`, whose `-` are `_`.
fn pod(name: &str) -> Option<String> {
    let uid = match name.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("-pod")?.1.replace('_', "-"),
        None => name.strip_prefix("pod")?.to_owned(),
    };
    let digits = uid.bytes().filter(|byte| *byte != b'-');
    let is_uid = matches!(uid.len(), 32 | 36)
        && digits.clone().count() == 32
        && digits.clone().all(is_hexadecimal);
    is_uid.then_some(uid)
}

const fn is_hexadecimal(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "3f4e1a0c7b5d9e8f00112233445566778899aabbccddeeff0123456789abcdef";
    const OTHER: &str = "a0b1c2d3e4f5061728394a5b6c7d8e9f00112233445566778899aabbccddeeff";
    const POD: &str = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
    const STATIC_POD: &str = "5c12d89d4f3c9a7e6b1a0d2f4e6c8a0b";

    /// `{1}` and `{2}` are containers, `{p}` and `{_}` a pod with either driver, `{s}` a static pod.
    fn filled(text: &str) -> String {
        text.replace("{1}", ONE)
            .replace("{2}", OTHER)
            .replace("{p}", POD)
            .replace("{_}", &POD.replace('-', "_"))
            .replace("{s}", STATIC_POD)
    }

    #[test]
    fn containers_are_known_by_their_cgroups() {
        let cases: &[(&str, Option<&str>, Option<&str>)] = &[
            // Docker: cgroup v1, v2 with systemd, v2 with cgroupfs.
            (
                "13:memory:/docker/{1}\n12:cpu,cpuacct:/docker/{1}\n0::/system.slice/containerd.service\n",
                Some(ONE),
                None,
            ),
            ("0::/system.slice/docker-{1}.scope\n", Some(ONE), None),
            ("0::/docker/{1}\n", Some(ONE), None),
            // Rootless.
            (
                "0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{1}.scope\n",
                Some(ONE),
                None,
            ),
            // Podman: root's, a user's, with cgroupfs, and what watches one.
            (
                "0::/machine.slice/libpod-{1}.scope/container\n",
                Some(ONE),
                None,
            ),
            (
                "0::/user.slice/user-1000.slice/user@1000.service/user.slice/user-libpod_pod_{2}.slice/libpod-{1}.scope/container\n",
                Some(ONE),
                None,
            ),
            ("0::/libpod_parent/libpod-{1}\n", Some(ONE), None),
            ("0::/machine.slice/libpod-conmon-{1}.scope\n", None, None),
            // A kubelet with cgroupfs: v1, v2, a pod of no class, a static one.
            (
                "11:devices:/kubepods/burstable/pod{p}/{1}\n1:name=systemd:/kubepods/burstable/pod{p}/{1}\n",
                Some(ONE),
                Some(POD),
            ),
            ("0::/kubepods/besteffort/pod{p}/{1}\n", Some(ONE), Some(POD)),
            ("0::/kubepods/pod{p}/{1}\n", Some(ONE), Some(POD)),
            (
                "0::/kubepods/burstable/pod{s}/{1}\n",
                Some(ONE),
                Some(STATIC_POD),
            ),
            // A kubelet with systemd, and Docker, containerd or CRI-O below it.
            (
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_}.slice/docker-{1}.scope\n",
                Some(ONE),
                Some(POD),
            ),
            (
                "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{_}.slice/cri-containerd-{1}.scope\n",
                Some(ONE),
                Some(POD),
            ),
            (
                "0::/kubepods.slice/kubepods-pod{_}.slice/crio-{1}.scope/container\n",
                Some(ONE),
                Some(POD),
            ),
            (
                "0::/kubepods.slice/kubepods-pod{_}.slice/crio-conmon-{1}.scope\n",
                None,
                Some(POD),
            ),
            // containerd with cgroupfs below a kubelet with systemd.
            (
                "9:pids:/system.slice/containerd.service/kubepods-burstable-pod{_}.slice:cri-containerd:{1}\n",
                Some(ONE),
                Some(POD),
            ),
            // A node in a container.
            (
                "0::/system.slice/docker-{2}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{_}.slice/cri-containerd-{1}.scope\n",
                Some(ONE),
                Some(POD),
            ),
            ("4:memory:/docker/{2}/docker/{1}\n", Some(ONE), None),
            // Seen from a cgroup namespace beside it.
            ("0::/../../pod{p}/{1}\n", Some(ONE), Some(POD)),
            // No containers.
            ("0::/\n", None, None),
            (
                "0::/user.slice/user-1000.slice/session-2.scope\n",
                None,
                None,
            ),
            ("0::/system.slice/podinfo.service\n", None, None),
            ("0::/pods/pod1/podabc.slice\n", None, None),
            ("", None, None),
        ];
        for (text, id, pod) in cases {
            let found = Container::parse(&filled(text));
            assert_eq!(
                (found.id.as_deref(), found.pod.as_deref()),
                (*id, *pod),
                "{text}"
            );
        }
    }

    #[test]
    fn names_that_nobody_gave_are_none() {
        for text in [
            "rubbish",
            ":::::",
            "0::/docker/{1}0",
            "0::/pod------------------------------------",
            "0::/x-pod-.slice",
            "0::/docker-\u{1f980}.scope",
            "0::/docker/3F4E1A0C7B5D9E8F00112233445566778899AABBCCDDEEFF0123456789ABCDEF",
        ] {
            let found = Container::parse(&filled(text));
            assert_eq!(found, Container::default(), "{text}");
        }
        assert_eq!(Container::of(0), Container::default());
        assert_eq!(Container::of(i32::MAX), Container::default());
    }
}
