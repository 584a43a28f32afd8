//! Whether this node's Services are ours to serve, and how that outlives the agent.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The file, within the state directory.
pub(crate) const FILE: &str = "handed-back.json";

/// Whose the node's Services are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Duty {
    /// Ours: the kernel is kept at what is wanted.
    #[default]
    Serving,
    /// Still ours, but for the ports on which monitors ask after a proxy: those are free for another
    /// one, which shows by taking them that it runs.
    Yielding,
    /// Another proxy's: nothing of ours is in the kernel.
    HandedBack,
}

/// The file that says across restarts that the node was handed back. Where there is none, it was not.
#[derive(Debug, Clone)]
pub(crate) struct HandbackMark {
    file: PathBuf,
    node: String,
}

/// What is in the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    node: String,
    since: Timestamp,
}

/// Why the mark could not be read, made or removed.
#[derive(Debug, Error)]
#[error("failed to {step} {}", file.display())]
pub(crate) struct MarkError {
    step: &'static str,
    file: PathBuf,
    source: io::Error,
}

// === impl HandbackMark ===

impl HandbackMark {
    /// That of `node`, in this directory.
    pub(crate) fn within(directory: &Path, node: &str) -> HandbackMark {
        HandbackMark {
            file: directory.join(FILE),
            node: node.to_owned(),
        }
    }

    /// What it says. A mark of another node says nothing of this one: state directories are copied
    /// with disk images.
    pub(crate) fn observe(&self) -> Result<Duty, MarkError> {
        let bytes = match fs::read(&self.file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Duty::Serving),
            read => read.map_err(|source| self.failed("read", source))?,
        };
        let mark: Mark = serde_json::from_slice(&bytes)
            .map_err(|source| self.failed("understand", source.into()))?;
        Ok(match mark.node == self.node {
            true => Duty::HandedBack,
            false => Duty::Serving,
        })
    }

    /// Makes it: after a crash it is there whole, or not at all.
    pub(crate) fn commit(&self, since: Timestamp) -> Result<(), MarkError> {
        let mark = Mark {
            node: self.node.clone(),
            since,
        };
        let write = || -> io::Result<()> {
            let bytes = serde_json::to_vec_pretty(&mark)?;
            let temporary = self.file.with_extension("new");
            let mut file = fs::File::create(&temporary)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&temporary, &self.file)?;
            self.sync_directory()
        };
        write().map_err(|source| self.failed("write", source))
    }

    /// Takes it away, also for after a power cut. That there is none is no failure.
    pub(crate) fn commit_removal(&self) -> Result<(), MarkError> {
        let removed = match fs::remove_file(&self.file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.and_then(|()| self.sync_directory()),
        };
        removed.map_err(|source| self.failed("remove", source))
    }

    /// A name is in the directory for good only after this: a mark that came back with the power would
    /// leave the node to a kube-proxy that has been stopped meanwhile.
    fn sync_directory(&self) -> io::Result<()> {
        let directory = self.file.parent().unwrap_or(Path::new("/"));
        fs::File::open(directory)?.sync_all()
    }

    fn failed(&self, step: &'static str, source: io::Error) -> MarkError {
        MarkError {
            step,
            file: self.file.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_outlives_the_agent_and_is_about_one_node_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let mark = || HandbackMark::within(directory.path(), "node-1");
        let duty = |mark: HandbackMark| mark.observe().expect("it can be read");
        assert_eq!(duty(mark()), Duty::Serving);
        mark().commit(Timestamp::UNIX_EPOCH).expect("it is written");
        assert_eq!(duty(mark()), Duty::HandedBack);
        let other = HandbackMark::within(directory.path(), "node-2");
        assert_eq!(duty(other), Duty::Serving);
        for _ in 0..2 {
            mark().commit_removal().expect("twice is no failure");
        }
        assert_eq!(duty(mark()), Duty::Serving);
    }

    #[test]
    fn a_mark_that_makes_no_sense_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join(FILE), "{").expect("it is written");
        let error = HandbackMark::within(directory.path(), "node-1").observe();
        let error = error.expect_err("half a file");
        assert!(error.to_string().contains(FILE), "{error}");
    }
}
