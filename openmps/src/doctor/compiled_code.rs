//! Where the software GPU keeps compiled code on disk, how much of it there is, and what the clients of a daemon that runs found there.
//!
//! Called by `doctor::checks`. Must not open the files, nor know what is in them.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use protocol::control_messages::DeviceAccount;

use super::finding::Finding;
use crate::{confinement, machine};

const SUBJECT: &str = "compiled code";
/// How long a daemon may take to say what its clients had.
const WITHIN: Duration = Duration::from_secs(2);

/// What there is, with this user's environment: a daemon's servers of other users have theirs in its state directory.
pub(super) fn kept() -> Finding {
    let Some(folder) = confinement::code_folder() else {
        return Finding::ok(
            SUBJECT,
            "the software GPU keeps none on disk: CUDA_CACHE_DISABLE is 1, or there is no absolute CUDA_CACHE_PATH or HOME",
        );
    };
    let account = machine::view(WITHIN).ok().map(|view| {
        let mut sum = DeviceAccount::default();
        let software = view.devices.iter().filter(|device| device.software);
        software.for_each(|device| sum.add(&device.account));
        sum
    });
    said(&folder.join(engine_soft::FOLDER), account.as_ref())
}

fn said(folder: &Path, account: Option<&DeviceAccount>) -> Finding {
    let shown = folder.display();
    let metadata = match std::fs::metadata(folder) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Finding::ok(
                SUBJECT,
                format!("{shown}, which the first server on the software GPU will make"),
            );
        }
        Err(error) => return Finding::warning(SUBJECT, format!("{shown}: {error}"), MEND),
    };
    if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
        return Finding::warning(
            SUBJECT,
            format!("{shown} is not this user's own and closed to others, so no server reads it"),
            MEND,
        );
    }
    let (mut files, mut bytes) = (0, 0);
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let ours = Path::new(&entry.file_name()).extension() == Some(OsStr::new("kept"));
        if let Ok(metadata) = entry.metadata()
            && ours
        {
            files += 1;
            bytes += metadata.len();
        }
    }
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    let found = account.map_or_else(String::new, |account| {
        let (hits, misses) = (account.code_from_disk, account.code_compiled);
        format!(
            "; clients that this user sees had {hits} hits and {misses} misses (images and kernels)"
        )
    });
    Finding::ok(
        SUBJECT,
        format!("{shown}: {mebibytes:.1} MiB in {files} files{found}"),
    )
}

const MEND: &str = "chmod 700 and chown it to the user of the servers, or name another CUDA_CACHE_PATH; \
     without it everything is compiled again by each server";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::CheckOutcome;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn where_code_is_kept_and_how_much_is_said() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("compiled");
        let none = said(&folder, None);
        assert!(none.text.contains("will make"), "{}", none.text);
        std::fs::create_dir(&folder).unwrap();
        let set = |mode| std::fs::set_permissions(&folder, PermissionsExt::from_mode(mode));
        set(0o700).unwrap();
        std::fs::write(folder.join("a.kept"), vec![0; 3 << 19]).unwrap();
        std::fs::write(folder.join("b.kept"), vec![0; 1 << 20]).unwrap();
        std::fs::write(folder.join("other"), vec![0; 1 << 20]).unwrap();
        let account = DeviceAccount {
            code_from_disk: 7,
            code_compiled: 3,
            ..DeviceAccount::default()
        };
        let finding = said(&folder, Some(&account));
        assert_eq!(finding.state, CheckOutcome::Ok);
        for part in ["2.5 MiB in 2 files", "7 hits and 3 misses"] {
            assert!(finding.text.contains(part), "{}", finding.text);
        }
        assert!(!said(&folder, None).text.contains("hits"));
        set(0o755).unwrap();
        assert_eq!(said(&folder, None).state, CheckOutcome::Warning);
    }
}
