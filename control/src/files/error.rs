//! Why a file or directory of the daemon's cannot be had: what is there, whose it is, and what to do about it. Everything
//! that reads, writes or makes files of the daemon's gives these errors. Given by `safe_fs` and `safe_path`. Must not
//! look at files itself.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// What is wrong with a file or directory.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It is not there, or the way to it is closed.
    #[error("{}: {source}", path.display())]
    Unreachable {
        /// What was looked at.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A directory, FIFO or file cannot be made.
    #[error("cannot make {}: {source}", path.display())]
    Make {
        /// What was to be made.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file cannot be removed.
    #[error("cannot remove {}: {source}", path.display())]
    Remove {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A directory cannot be opened to all users.
    #[error("cannot open {} to all users: {source}", path.display())]
    OpenToAll {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// It has no directory above it, or no name.
    #[error("{} is not a directory of its own", .0.display())]
    NoName(PathBuf),
    /// Something else has the name.
    #[error("{} is not a directory", .0.display())]
    NotDirectory(PathBuf),
    /// Links lead to links.
    #[error("{}: too many links", .0.display())]
    TooManyLinks(PathBuf),
    /// It is not only the daemon's user who may change it.
    #[error(
        "{} is not a directory of user {user} that nobody else may change; look at what it is, and remove it",
        path.display()
    )]
    NotOwnDirectory {
        /// The directory.
        path: PathBuf,
        /// The daemon's user.
        user: u32,
    },
    /// Another user has a directory or link on the way.
    #[error("{} belongs to user {owner}, who could put other files in the place of the daemon's", path.display())]
    OthersDirectory {
        /// The directory or link.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// Everybody may replace what is in a directory.
    #[error(
        "every user may write to {}, and could put other files in the place of the daemon's",
        .0.display()
    )]
    WorldWritable(PathBuf),
    /// Another user has a file of the daemon's.
    #[error("{} belongs to user {owner}, {harm}: remove it", path.display())]
    OthersFile {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// What that user could do.
        harm: &'static str,
    },
    /// A file is not as a daemon of this user's writes it.
    #[error("{} is not what a daemon of user {user} wrote; look at what it is, and remove it", path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// The daemon's user.
        user: u32,
    },
}

impl FileError {
    /// What the system says of a path.
    pub(crate) fn unreachable(path: &Path, source: impl Into<std::io::Error>) -> Self {
        Self::Unreachable {
            path: path.to_owned(),
            source: source.into(),
        }
    }

    /// What the system says of something that was to be made.
    pub(crate) fn make(path: &Path, source: impl Into<std::io::Error>) -> Self {
        Self::Make {
            path: path.to_owned(),
            source: source.into(),
        }
    }

    /// What the system says of a file that was to be read.
    pub(crate) fn read(path: &Path, source: std::io::Error) -> Self {
        Self::Read {
            path: path.to_owned(),
            source,
        }
    }

    /// What the system says of a file that was to be written.
    pub(crate) fn write(path: &Path, source: std::io::Error) -> Self {
        Self::Write {
            path: path.to_owned(),
            source,
        }
    }

    /// What the system says of a file that was to be removed.
    pub(crate) fn remove(path: &Path, source: std::io::Error) -> Self {
        Self::Remove {
            path: path.to_owned(),
            source,
        }
    }
}

/// Why a program is not run with this process's rights.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// A relative path means something else in each directory.
    #[error("{}: it is not an absolute path", .0.display())]
    NotAbsolute(PathBuf),
    /// Another user has it, or a directory on the way.
    #[error("{}: it belongs to user {owner}, who could put another program there", path.display())]
    OthersFile {
        /// The program or directory.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// It is no file.
    #[error("{}: it is not a program", .0.display())]
    NotFile(PathBuf),
    /// Everybody may change it.
    #[error("{}: every user may write to it", .0.display())]
    WorldWritable(PathBuf),
    /// It lacks a right to be run.
    #[error("{}: this user cannot run it: {source}", path.display())]
    NotExecutable {
        /// The program.
        path: PathBuf,
        /// What the system says.
        source: Errno,
    },
    /// It is not there, or a directory on the way lets everybody replace it.
    #[error(transparent)]
    File(#[from] FileError),
}
