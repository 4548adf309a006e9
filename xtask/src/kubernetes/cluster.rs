//! One node of Kubernetes, from Debian's packages and what `tests/platforms/kubernetes/build.sh` builds.
//!
//! Everything of it is in a folder of its own but what cannot be: `/var/lib/kubelet` and `/var/log/pods`.
//!
//! Used by `kubernetes` and its tests. Must not know OpenMPS: what runs on the node is theirs.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::shell::root;

/// How long anything may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Where the kubelet has its own; device plugins' sockets are there wherever its root is.
pub const KUBELET: &str = "/var/lib/kubelet";

/// The node's name.
pub const NODE: &str = "node1";

/// The bridge of its pods.
pub const BRIDGE: &str = "openmps0";

/// Between looks.
const LOOK: Duration = Duration::from_millis(300);

/// Waits until something holds.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !holds()? {
        ensure!(
            start.elapsed() < PATIENCE,
            "still not after {} s: {what}",
            PATIENCE.as_secs()
        );
        std::thread::sleep(LOOK);
    }
    println!(
        "kubernetes: {what}, after {:.1} s",
        start.elapsed().as_secs_f32()
    );
    Ok(())
}

/// A running cluster; dropping it ends it.
#[derive(Debug)]
pub struct Cluster {
    folder: PathBuf,
    programs: PathBuf,
    /// In the order of their start; the kubelet apart, because it is started anew.
    children: Vec<(&'static str, Child)>,
    kubelet: Option<Child>,
    /// Whether the kubelet's folder is ours alone.
    is_kubelets_folder_new: bool,
}

const CONTAINERD: &str = r#"version = 2
root = "@/containerd"
state = "@/containerd-state"
[grpc]
  address = "@/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:latest"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "@/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"#;

const CNI: &str = r#"{
  "cniVersion": "0.4.0", "name": "openmps",
  "plugins": [{
    "type": "bridge", "bridge": "openmps0", "isGateway": true, "ipMasq": false,
    "ipam": {"type": "host-local", "dataDir": "@/addresses", "ranges": [[{"subnet": "10.213.77.0/24"}]]}
  }]
}"#;

const KUBELET_CONFIG: &str = r"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
maxOpenFiles: 20000
oomScoreAdj: 0
failSwapOn: false
evictionHard: {}
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
";

const KUBECONFIG: &str = "apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: 'https://127.0.0.1:16443', insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: admintoken}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
";

impl Cluster {
    /// Starts a cluster whose node is ready and has these labels.
    pub fn start(labels: &str) -> Result<Self> {
        ensure!(
            std::os::unix::net::UnixStream::connect(
                Path::new(KUBELET).join("device-plugins/kubelet.sock")
            )
            .is_err(),
            "another kubelet runs on this machine"
        );
        // Not under target/: a socket's path may have 107 bytes.
        let folder = std::env::temp_dir().join("k8s");
        let mut cluster = Self {
            programs: root().join("target/kubernetes/bin"),
            children: Vec::new(),
            kubelet: None,
            is_kubelets_folder_new: !Path::new(KUBELET).exists(),
            folder,
        };
        for folder in ["cni", "etcd", "certs", "log"] {
            fs::create_dir_all(cluster.path(folder))?;
        }
        cluster.write("containerd.toml", CONTAINERD)?;
        cluster.write("cni/10-openmps.conflist", CNI)?;
        cluster.write("kubelet.yaml", KUBELET_CONFIG)?;
        cluster.write("kubeconfig", KUBECONFIG)?;
        cluster.write("tokens.csv", "admintoken,admin,admin,system:masters\n")?;
        let key = cluster.path("sa.key");
        let made = Command::new("openssl")
            .args(["genrsa", "-out"])
            .arg(&key)
            .arg("2048")
            .stderr(Stdio::null())
            .status()
            .context("openssl")?;
        ensure!(made.success(), "openssl: {made}");
        let started = cluster
            .start_control_plane()
            .and_then(|()| cluster.start_kubelet(labels))
            .and_then(|()| cluster.wait_for_node());
        if started.is_err() {
            cluster.print_logs();
        }
        started.map(|()| cluster)
    }

    fn wait_for_node(&mut self) -> Result<()> {
        wait_for("the node is ready", || {
            self.still_run()?;
            let kubelet = self.kubelet.as_mut().context("a kubelet")?;
            if let Some(status) = kubelet.try_wait()? {
                bail!("kubelet: {status}, {}", self.last_line("kubelet"));
            }
            let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
            let asked = self.kubectl(&["get", "node", NODE, "-o", ready]);
            Ok(asked.is_ok_and(|text| text == "True"))
        })
    }

    /// What a program said last.
    fn last_line(&self, name: &str) -> String {
        let log = self.path("log").join(format!("{name}.log"));
        let text = fs::read_to_string(log).unwrap_or_default();
        text.lines().next_back().unwrap_or_default().to_owned()
    }

    /// A path in the cluster's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let text = text.replace('@', &self.folder.to_string_lossy());
        Ok(fs::write(self.path(name), text)?)
    }

    fn spawn(&self, name: &str, program: &Path, arguments: &str) -> Result<Child> {
        let log = self.path("log").join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(log)?;
        let arguments = arguments.replace('@', &self.folder.to_string_lossy());
        Command::new(program)
            .args(arguments.split_whitespace())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))
    }

    fn start_control_plane(&mut self) -> Result<()> {
        let of_ours = |name: &str| self.programs.join(name);
        let all = [
            (
                "etcd",
                PathBuf::from("etcd"),
                "--data-dir @/etcd --listen-client-urls http://127.0.0.1:12379 \
                 --advertise-client-urls http://127.0.0.1:12379 --listen-peer-urls \
                 http://127.0.0.1:12380 --initial-advertise-peer-urls http://127.0.0.1:12380 \
                 --initial-cluster default=http://127.0.0.1:12380",
            ),
            (
                "containerd",
                PathBuf::from("containerd"),
                "--config @/containerd.toml",
            ),
            (
                "kube-apiserver",
                of_ours("kube-apiserver"),
                "--etcd-servers http://127.0.0.1:12379 --cert-dir @/certs --secure-port=16443 \
                 --bind-address=127.0.0.1 --service-cluster-ip-range=10.96.0.0/24 \
                 --service-account-issuer=https://localhost --service-account-signing-key-file=@/sa.key \
                 --service-account-key-file=@/sa.key --token-auth-file=@/tokens.csv \
                 --authorization-mode=RBAC --allow-privileged=true \
                 --disable-admission-plugins=ServiceAccount",
            ),
            (
                "kube-scheduler",
                of_ours("kube-scheduler"),
                "--kubeconfig @/kubeconfig --leader-elect=false --port=0 --secure-port=16259 \
                 --cert-dir @/certs/scheduler",
            ),
            (
                "kube-controller-manager",
                of_ours("kube-controller-manager"),
                "--kubeconfig @/kubeconfig --leader-elect=false --port=0 --secure-port=16257 \
                 --cert-dir @/certs/manager --service-account-private-key-file=@/sa.key \
                 --use-service-account-credentials=true",
            ),
        ];
        for (name, program, arguments) in all {
            let child = self.spawn(name, &program, arguments)?;
            self.children.push((name, child));
            if name == "kube-apiserver" {
                wait_for("the API server answers", || {
                    self.still_run()?;
                    Ok(self.kubectl(&["get", "--raw", "/readyz"]).is_ok())
                })?;
            }
        }
        Ok(())
    }

    fn still_run(&mut self) -> Result<()> {
        let ended = self.children.iter_mut().find_map(|(name, child)| {
            let status = child.try_wait().ok()??;
            Some((*name, status))
        });
        match ended {
            Some((name, status)) => bail!("{name}: {status}, {}", self.last_line(name)),
            None => Ok(()),
        }
    }

    /// Starts the kubelet; the node gets these labels when it is new.
    pub fn start_kubelet(&mut self, labels: &str) -> Result<()> {
        let child = self.spawn(
            "kubelet",
            &self.programs.join("kubelet"),
            &format!(
                "--kubeconfig @/kubeconfig --config @/kubelet.yaml --container-runtime=remote \
                 --container-runtime-endpoint=unix://@/containerd.sock --cert-dir @/certs/kubelet \
                 --hostname-override={NODE} --node-ip=127.0.0.1 --node-labels={labels}"
            ),
        )?;
        self.kubelet = Some(child);
        Ok(())
    }

    /// Ends the kubelet as a crash would; what runs goes on.
    pub fn kill_kubelet(&mut self) -> Result<()> {
        if let Some(mut kubelet) = self.kubelet.take() {
            kubelet.kill()?;
            kubelet.wait()?;
        }
        Ok(())
    }

    /// Starts kubectl, for something that goes on.
    pub fn start_kubectl(&mut self, arguments: &str) -> Result<()> {
        let arguments = format!("--kubeconfig @/kubeconfig {arguments}");
        let child = self.spawn("kubectl", Path::new("kubectl"), &arguments)?;
        self.children.push(("kubectl", child));
        Ok(())
    }

    /// Runs kubectl; gives what it printed.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_with(arguments, "")
    }

    /// Makes what a text says.
    pub fn apply(&self, text: &str) -> Result<()> {
        self.kubectl_with(&["apply", "--validate=false", "-f", "-"], text)
            .map(drop)
    }

    fn kubectl_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        let mut child = Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(self.path("kubeconfig"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("kubectl")?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        ensure!(
            output.status.success(),
            "kubectl {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs containerd's client among the cluster's containers.
    fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new("ctr")
            .arg("--address")
            .arg(self.path("containerd.sock"))
            .args(["--namespace", "k8s.io"])
            .args(arguments)
            .output()
            .context("ctr")?;
        ensure!(
            output.status.success(),
            "ctr {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Loads an image's archive.
    pub fn load(&self, archive: &Path) -> Result<()> {
        let path = archive.to_string_lossy();
        self.ctr(&["images", "import", &path]).map(drop)
    }

    /// The last lines of each program's log, for whoever must find out what went wrong.
    pub fn print_logs(&self) {
        for entry in fs::read_dir(self.path("log"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            println!("--- {}", entry.path().display());
            for line in &lines[lines.len().saturating_sub(15)..] {
                println!("{line}");
            }
        }
    }

    /// Ends all pods in the way that gives everything back; then what is left all the same.
    fn end_pods(&mut self) {
        let all = "--all-namespaces";
        self.kubectl(&["delete", "daemonsets", all, "--all", "--wait=false"])
            .ok();
        self.kubectl(&[
            "delete",
            "pods",
            all,
            "--all",
            "--grace-period=1",
            "--wait=false",
        ])
        .ok();
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            match self.ctr(&["containers", "ls", "-q"]) {
                Ok(list) if !list.trim().is_empty() => std::thread::sleep(LOOK),
                _ => break,
            }
        }
        self.kill_kubelet().ok();
        for task in self.ctr(&["tasks", "ls", "-q"]).unwrap_or_default().lines() {
            self.ctr(&["tasks", "rm", "-f", task]).ok();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end_pods();
        for (_, child) in self.children.iter_mut().rev() {
            child.kill().ok();
            child.wait().ok();
        }
        // What was mounted for pods that could not be ended well.
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let mut points: Vec<&str> = mounts
            .lines()
            .filter_map(|line| line.split(' ').nth(1))
            .collect();
        let ours = self.folder.to_string_lossy().into_owned();
        points.retain(|point| {
            point.starts_with(&*ours) || self.is_kubelets_folder_new && point.starts_with(KUBELET)
        });
        for point in points.iter().rev() {
            Command::new("umount").arg(point).status().ok();
        }
        Command::new("ip")
            .args(["link", "delete", BRIDGE])
            .stderr(Stdio::null())
            .status()
            .ok();
        fs::remove_dir_all(&self.folder).ok();
        if self.is_kubelets_folder_new {
            fs::remove_dir_all(KUBELET).ok();
        }
    }
}
