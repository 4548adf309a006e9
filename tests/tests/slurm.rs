//! Slurm's prolog, task prolog and epilog, run as Slurm runs them.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tests::daemon::{control_at, eventually, openmps, probe};

/// A node with one GPU, in a folder.
struct Node(tempfile::TempDir);

impl Node {
    fn script(&self, name: &str, job: u32, percentage: Option<&str>) -> Command {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/slurm");
        let mut command = Command::new(scripts.join(name));
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("OPENMPS", openmps())
            .env("OPENMPS_ENGINE", "soft")
            .env("OPENMPS_SLURM_DIRECTORY", self.0.path())
            .env("OPENMPS_LIBRARY_DIRECTORY", self.library())
            .env("CUDA_VISIBLE_DEVICES", "0")
            .env("SLURM_JOB_ID", job.to_string())
            .env("SLURM_JOB_UID", "1000")
            .stdin(Stdio::null());
        if let Some(percentage) = percentage {
            command.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage);
        }
        command
    }

    fn run(&self, name: &str, job: u32, percentage: Option<&str>) -> Output {
        let output = self.script(name, job, percentage).output().unwrap();
        assert!(
            output.status.success(),
            "{name} of job {job}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        output
    }

    /// With what passes for the library.
    fn library(&self) -> PathBuf {
        self.0.path().join("lib")
    }

    /// What a script that fails says.
    fn refused(&self, command: &mut Command) -> String {
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        errors
    }

    fn pipe(&self) -> PathBuf {
        self.0.path().join("mps_0")
    }

    fn control(&self, arguments: &[&str]) -> Output {
        control_at(&self.pipe(), arguments)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.control(&["quit", "-t", "1"]);
    }
}

#[test]
fn a_job_is_a_group_and_the_last_one_ends_the_daemon() {
    let folder = tempfile::Builder::new().prefix("mps").tempdir().unwrap();
    let node = Node(folder);
    std::fs::create_dir(node.library()).unwrap();
    std::fs::write(node.library().join("libcuda.so.1"), "").unwrap();
    node.run("prolog.sh", 7, Some("33"));
    node.run("prolog.sh", 8, Some("15"));
    let group = node.pipe().join("groups/slurm-7");
    let text = node.run("task_prolog.sh", 7, Some("33")).stdout;
    let text = String::from_utf8(text).unwrap();
    let exports = [
        format!("export CUDA_MPS_PIPE_DIRECTORY={}", group.display()),
        "export CUDA_VISIBLE_DEVICES=0".to_owned(),
        format!("export LD_LIBRARY_PATH={}", node.library().display()),
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), exports);
    let shown = node.control(&["group", "show", "slurm-7"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("33.0 %"), "{shown}");

    // What the job runs is of its group, and the job's end does not go past it.
    let mut program = Command::new(openmps())
        .args(["run", "--"])
        .arg(probe())
        .arg("forever")
        .env("CUDA_MPS_PIPE_DIRECTORY", &group)
        .env("HOME", node.0.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the program is of the job's group", || {
        let shown = node.control(&["group", "show", "slurm-7"]);
        String::from_utf8_lossy(&shown.stdout).contains("  client ")
    });
    let still = node.control(&["group", "remove", "slurm-7"]);
    assert!(!still.status.success());
    program.kill().unwrap();
    program.wait().unwrap();
    node.run("epilog.sh", 7, Some("33"));
    assert!(!group.exists());
    assert!(
        node.control(&["get_server_list"]).status.success(),
        "job 8 goes on"
    );
    node.run("epilog.sh", 8, Some("15"));
    assert!(!node.control(&["get_server_list"]).status.success());
    // An epilog that comes twice, and a job with the whole GPU.
    node.run("epilog.sh", 8, Some("15"));
    node.run("prolog.sh", 9, None);
    assert!(!node.control(&["get_server_list"]).status.success());
}

#[test]
fn a_node_that_cannot_serve_a_job_says_why_and_what_to_do() {
    let folder = tempfile::Builder::new().prefix("mps").tempdir().unwrap();
    let node = Node(folder);
    let told = node.refused(&mut node.script("prolog.sh", 7, Some("33")));
    assert!(
        told.contains("no libcuda.so.1 in ") && told.contains("-> put it there: "),
        "{told}"
    );
    std::fs::create_dir(node.library()).unwrap();
    std::fs::write(node.library().join("libcuda.so.1"), "").unwrap();
    let told = node.refused(&mut node.script("prolog.sh", 7, Some("133")));
    assert!(
        told.contains("group add slurm-7 --percentage 133") && told.contains("(0.0, 100.0]"),
        "{told}"
    );
    node.control(&["quit"]);
    if Path::new("/dev/nvidiactl").exists() {
        eprintln!("skipped: this machine has a GPU");
        return;
    }
    // Nobody said that the software GPU will do.
    let told = node.refused(
        node.script("prolog.sh", 7, Some("33"))
            .env_remove("OPENMPS_ENGINE"),
    );
    assert!(
        told.contains("GPU 0: control start_server -uid 1000") && told.contains("server.log"),
        "{told}"
    );
}
