//! `cargo xtask kubernetes`: a real kubelet, the manifests of `deploy/kubernetes`, and pods with shares of
//! the software GPU. What the machine cannot do is said and skipped.
//!
//! Called by `platforms`. Must not know how the node is set up: `cluster` does that.

mod cluster;
mod extender;
mod files;
mod pods;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::development_build;
use crate::fetch::DescribedFolder;
use crate::images::Tree;
use crate::platforms::{bridges, containers, helm, install, is_there, skip, why_skipped};
use crate::shell::{root, run};
use crate::skipped;
pub use cluster::BRIDGE;
use cluster::{Cluster, NODE, wait_for};
pub use files::files;

/// The image of the pods.
const SHARE: &str = "localhost/openmps-share";

/// What Debian has of it: a program or file, and its package.
const PACKAGES: &[(&str, &str)] = &[
    ("etcd", "etcd-server"),
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("openssl", "openssl"),
    ("ip", "iproute2"),
    ("kubectl", "kubernetes-client"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("/bin/busybox", "busybox-static"),
];

/// What the build needs besides.
const BUILD_PACKAGES: &[(&str, &str)] = &[("go", "golang-go"), ("dpkg-source", "dpkg-dev")];

/// Seconds that the build may take.
const BUILD_LIMIT: &str = "900";

/// Bytes of the disk that the build takes for a while.
const BUILD_SPACE: u64 = 6 << 30;

/// Labels of the node: of all three modes, one of which is deployed at a time.
const LABELS: &str =
    "ack.node.gpu.schedule=mps,nvidia.com/mps.capable=true,openmps.org/schedule=true";

/// How long this takes on two cores; the first time Kubernetes is built.
pub fn usual() -> Duration {
    Duration::from_secs(if is_built() { 300 } else { 660 })
}

/// Runs everything, or says why this machine cannot.
pub fn kubernetes() -> Result<()> {
    containers()?;
    let mut wanted = PACKAGES.to_vec();
    if !is_built() {
        wanted.extend(BUILD_PACKAGES);
    }
    wanted.retain(|(program, _)| !is_there(program));
    if !wanted.is_empty() {
        let (programs, packages): (Vec<&str>, Vec<&str>) = wanted.into_iter().unzip();
        install(&programs.join(", "), &packages)?;
    }
    bridges()?;
    build()?;
    let archives = archives()?;
    let cluster = match Cluster::start(LABELS) {
        Ok(cluster) => cluster,
        // Nothing of ours has run yet.
        Err(error) => return skip(format!("Kubernetes itself does not run here: {error:#}")),
    };
    let mut test = Test { cluster };
    test.runs_pods(&archives)?;
    let done = test.all();
    if done.is_err() {
        test.cluster.print_logs();
        test.print_pods();
    }
    done
}

/// Kubernetes as the script builds it.
fn built() -> DescribedFolder {
    let script = include_str!("../../tests/platforms/kubernetes/build.sh");
    DescribedFolder::new("kubernetes", script)
}

fn is_built() -> bool {
    built().is_whole()
}

/// Builds Kubernetes, once; what an earlier try has built is not built again.
fn build() -> Result<()> {
    let built = built().resume(|folder| {
        let disk = rustix::fs::statvfs(folder)?;
        let free = disk.f_bavail * disk.f_frsize;
        if free < BUILD_SPACE {
            return skip(format!(
                "to build Kubernetes takes {} GiB of the disk, and {} are free",
                BUILD_SPACE >> 30,
                free >> 30
            ));
        }
        run(Command::new("timeout")
            .args([BUILD_LIMIT, "tests/platforms/kubernetes/build.sh"])
            .arg(folder))
    });
    match built {
        Err(error) if why_skipped(&error).is_none() => {
            skip(format!("Kubernetes cannot be built here: {error}"))
        }
        built => built.map(drop),
    }
}

/// The images: ours, one whose program takes its share, and the one that holds a pod.
fn archives() -> Result<Vec<PathBuf>> {
    // Made before any of the tests.
    let openmps = root().join("target/images/openmps.tar");
    let program = development_build::program("share", &["--package", "tests", "--bin", "share"])?;
    let share = Tree::new("openmps-share")?;
    share.program(&program, "share")?;
    // The library comes by a mount; what it loads is the image's.
    share.loaded_by(&root().join("target/embedded/release/libcuda.so"))?;
    let share = share.pack(SHARE, &json!({"Entrypoint": ["/usr/bin/share"]}))?;
    let pause = Tree::new("pause")?;
    pause.program(&PathBuf::from("/bin/busybox"), "busybox")?;
    let pause = pause.pack(
        "localhost/pause",
        &json!({"Cmd": ["/usr/bin/busybox", "sleep", "2147483647"]}),
    )?;
    Ok(vec![openmps, share, pause])
}

struct Test {
    cluster: Cluster,
}

impl Test {
    /// Loads the images, and sees whether this machine can run a pod that has nothing of ours.
    fn runs_pods(&self, archives: &[PathBuf]) -> Result<()> {
        for archive in archives {
            self.cluster.load(archive)?;
        }
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "canary"},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "main", "image": "localhost/pause:latest",
                    "imagePullPolicy": "Never", "command": ["/usr/bin/busybox", "true"]
                }]
            }
        });
        self.cluster.apply(&pod.to_string())?;
        let ran = wait_for("a pod ran", || Ok(self.phase("canary")? == "Succeeded"));
        if ran.is_err() {
            let events = self.kubectl(&["get", "events", "-o", "jsonpath={.items[*].message}"])?;
            return skip(format!("Kubernetes runs no pod here: {events}"));
        }
        self.kubectl(&["delete", "pod", "canary"]).map(drop)
    }

    fn all(&mut self) -> Result<()> {
        println!("kubernetes: --- aliyun.com/gpu-mem");
        self.deploy("aliyun")?;
        self.offers("aliyun.com/gpu-mem", "15")?;
        self.aliyun()?;
        self.restarts()?;
        self.nobody_fills_the_log()?;
        self.undeploy("aliyun")?;

        println!("kubernetes: --- aliyun.com/gpu-mem, as gpushare's extender chose");
        extender::extender(self)?;
        self.undeploy("aliyun")?;

        println!("kubernetes: --- nvidia.com/gpu, from the chart");
        self.deploy_chart("nvidia")?;
        self.offers("nvidia.com/gpu", "10")?;
        self.pod("replica", "1536", &json!({"nvidia.com/gpu": 1}))?;
        self.ends_well("replica")?;
        self.undeploy("nvidia")?;

        println!("kubernetes: --- openmps.org/gpu-memory and openmps.org/gpu-share");
        self.deploy("openmps")?;
        self.offers("openmps.org/gpu-memory", "15")?;
        self.offers("openmps.org/gpu-share", "100")?;
        self.pod(
            "both",
            "3072",
            &json!({"openmps.org/gpu-memory": 3, "openmps.org/gpu-share": 25}),
        )?;
        self.ends_well("both")?;
        let group = self.control(&["group", "list"])?;
        ensure!(
            group.contains("25.0"),
            "the group has no share of the compute: {group}"
        );
        self.undeploy("openmps")
    }

    /// Applies a manifest of ours, with the software GPU, and with its folders in the cluster's.
    fn deploy(&self, mode: &str) -> Result<()> {
        self.deploy_with(mode, 1, "")
    }

    /// As [`Self::deploy`], with so many devices and more arguments of the plugin's.
    fn deploy_with(&self, mode: &str, devices: u32, arguments: &str) -> Result<()> {
        let file = root()
            .join("deploy/kubernetes")
            .join(format!("{mode}.yaml"));
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let folder = |name: &str| self.cluster.path(name).to_string_lossy().into_owned();
        let state = folder("state");
        let text = text
            .replace("/run/openmps", &folder("pipe"))
            .replace("/var/log/openmps", &folder("mps-log"))
            .replace("/var/lib/openmps", &state)
            .replace(
                &format!("--mode={mode}"),
                &format!(
                    "--mode={mode}, --probe-interval=1, --state={state}/allocations.json, \
                     --library-directory={state}/lib{arguments}"
                ),
            )
            .replace(
                "{name: OPENMPS_ENGINE, value: nvidia}",
                &format!(
                    "{{name: OPENMPS_ENGINE, value: soft}}\n            \
                     - {{name: OPENMPS_SOFT_DEVICES, value: \"{devices}\"}}\n            \
                     - {{name: OPENMPS_SOFT_MEMORY, value: 15G}}"
                ),
            );
        ensure!(
            text.contains("value: soft"),
            "the manifest is not what this test knows"
        );
        self.cluster.apply(&text)
    }

    /// As [`Self::deploy`], from the chart: the names are the same.
    fn deploy_chart(&self, mode: &str) -> Result<()> {
        let folder = |name: &str| self.cluster.path(name);
        let values = json!({
            "mode": mode,
            "engine": "soft",
            "daemonEnv": [{"name": "OPENMPS_SOFT_MEMORY", "value": "15G"}],
            "image": {"pullPolicy": "Never"},
            "directories": {
                "pipe": folder("pipe"), "log": folder("mps-log"), "state": folder("state"),
            },
        });
        match helm::rendered(&values) {
            Ok(text) => self.cluster.apply(&text),
            Err(error) => match why_skipped(&error) {
                Some(why) => {
                    println!("skipped: kubernetes: the chart: {why}");
                    skipped::record("kubernetes: the chart", why)?;
                    self.deploy(mode)
                }
                None => Err(error),
            },
        }
    }

    /// Ends a mode's pods, and what it has written.
    fn undeploy(&self, mode: &str) -> Result<()> {
        let file = root()
            .join("deploy/kubernetes")
            .join(format!("{mode}.yaml"));
        self.kubectl(&["delete", "pods", "--all", "--grace-period=1"])?;
        self.kubectl(&["delete", "-f", &file.to_string_lossy()])?;
        wait_for("the DaemonSets' pods are gone", || {
            let list = self.kubectl(&["get", "pods", "-A", "-o", "name"])?;
            Ok(list.trim().is_empty())
        })
    }

    fn aliyun(&self) -> Result<()> {
        let units = |count: u32| json!({"aliyun.com/gpu-mem": count});
        self.pod("two", "2048", &units(2))?;
        self.ends_well("two")?;
        self.kubectl(&["delete", "pod", "two"])?;

        // Two share the device, a third has no room until one is gone.
        self.pod("first", "2048 hold", &units(2))?;
        self.pod("second", "2048 hold", &units(2))?;
        self.holds("first")?;
        self.holds("second")?;
        self.pod("third", "12288", &units(12))?;
        self.waits_for("third", "Insufficient aliyun.com/gpu-mem")?;
        self.kubectl(&["delete", "pod", "second"])?;
        self.ends_well("third")?;
        self.kubectl(&["delete", "pod", "third"])?;

        let fraction = self.pod("fraction", "1", &json!({"aliyun.com/gpu-mem": "1500m"}));
        let refused = fraction
            .err()
            .context("a fraction of a unit was taken")?
            .to_string();
        ensure!(refused.contains("must be an integer"), "{refused}");

        self.pod(
            "core",
            "1024",
            &json!({"aliyun.com/gpu-mem": 1, "aliyun.com/gpu-core.percentage": 30}),
        )?;
        self.waits_for("core", "Insufficient aliyun.com/gpu-core.percentage")?;
        self.kubectl(&["delete", "pod", "core"])?;

        let list = self.kubectl(&["get", "nodes,pods", "--all-namespaces", "-o", "json"])?;
        let file = self.cluster.path("list.json");
        fs::write(&file, list)?;
        let output = Command::new(root().join("target/debug/openmps"))
            .args(["kubernetes", "inspect", "--file"])
            .arg(&file)
            .output()?;
        let table = String::from_utf8_lossy(&output.stdout);
        println!("{table}");
        ensure!(
            table.contains("2/15 (13%)") && table.contains("GPU Memory(GiB)"),
            "inspect does not show pod first"
        );
        Ok(())
    }

    /// Plugin and kubelet look at the daemon every second and every half minute.
    fn nobody_fills_the_log(&self) -> Result<()> {
        let log = fs::read_to_string(self.cluster.path("mps-log/control.log"))?;
        let commands = log.lines().filter_map(|line| line.split_once("Cmd:"));
        let commands: Vec<&str> = commands.map(|(_, command)| command).collect();
        let probes = ["ping", "get_"];
        let probe = commands
            .iter()
            .find(|command| probes.iter().any(|probe| command.starts_with(probe)));
        ensure!(probe.is_none() && !commands.is_empty(), "{commands:?}");
        Ok(())
    }

    /// When the plugin's socket was made.
    fn known_since() -> Option<SystemTime> {
        Self::written("aliyungpushare.sock")
    }

    fn written(name: &str) -> Option<SystemTime> {
        let file = PathBuf::from(cluster::KUBELET)
            .join("device-plugins")
            .join(name);
        fs::metadata(file).and_then(|facts| facts.modified()).ok()
    }

    /// Waits until the kubelet knows the devices of a plugin that has made its socket since. The node's
    /// status says so much later; the kubelet's checkpoint is written at once.
    fn known_anew(before: Option<SystemTime>) -> Result<()> {
        wait_for("the kubelet knows the plugin's devices anew", || {
            let socket = Self::known_since();
            Ok(socket > before && Self::written("kubelet_internal_checkpoint") > socket)
        })
    }

    /// Deletes the pods of a DaemonSet of ours, which makes new ones.
    fn end_component(&self, name: &str, how: &str) -> Result<()> {
        let label = format!("app.kubernetes.io/component={name}");
        self.kubectl(&["delete", "pods", "-n", "kube-system", "-l", &label, how])
            .map(drop)
    }

    /// Plugin, kubelet and daemon are started anew, while pod `first` runs.
    fn restarts(&mut self) -> Result<()> {
        let units = |count: u32| json!({"aliyun.com/gpu-mem": count});
        self.end_component("device-plugin", "--grace-period=1")?;
        self.offers("aliyun.com/gpu-mem", "15")?;
        self.pod("after-plugin", "2048", &units(2))?;
        self.ends_well("after-plugin")?;

        let before = Self::known_since();
        self.cluster.kill_kubelet()?;
        self.cluster.start_kubelet(LABELS)?;
        Self::known_anew(before)?;
        self.offers("aliyun.com/gpu-mem", "15")?;
        self.pod("after-kubelet", "2048", &units(2))?;
        self.ends_well("after-kubelet")?;

        ensure!(
            self.phase("first")? == "Running",
            "pod first ended:\n{}",
            self.log("first")
        );
        let restarts = "jsonpath={.status.containerStatuses[0].restartCount}";
        let restarts = self.kubectl(&["get", "pod", "first", "-o", restarts])?;
        ensure!(
            restarts == "0",
            "pod first was started {restarts} times anew"
        );
        println!("kubernetes: pod first ran through both");

        // The daemon goes, and with it its clients; its devices are sick until the next one is there.
        let before = Self::known_since();
        self.end_component("daemon", "--wait=false")?;
        // The software GPU of another container is another GPU, so it is offered anew.
        Self::known_anew(before)?;
        self.offers("aliyun.com/gpu-mem", "15")?;
        self.pod("after-daemon", "2048", &units(2))?;
        self.ends_well("after-daemon")
    }

    fn print_pods(&self) {
        for arguments in [
            &["get", "pods", "-A", "-o", "wide"][..],
            &["describe", "node", NODE],
            &["get", "events", "-A"],
        ] {
            println!("{}", self.kubectl(arguments).unwrap_or_default());
        }
        let logs = fs::read_dir("/var/log/pods")
            .into_iter()
            .flatten()
            .flatten();
        for folder in logs {
            for container in fs::read_dir(folder.path()).into_iter().flatten().flatten() {
                for log in fs::read_dir(container.path())
                    .into_iter()
                    .flatten()
                    .flatten()
                {
                    let text = fs::read_to_string(log.path()).unwrap_or_default();
                    println!("--- {}\n{text}", log.path().display());
                }
            }
        }
    }
}
