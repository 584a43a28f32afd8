//! What this node was last told to do, kept on disk: neither operator nor API server is needed to
//! go on with it after a restart.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crds::NodeProxySpec;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::source::Assignment;

/// The file, within the state directory.
pub(crate) const FILE: &str = "last-good.json";

/// Where the last assignment is kept. A node may go without: then a restart without operator starts
/// from the defaults.
#[derive(Debug, Clone)]
pub(crate) struct LastGood {
    file: PathBuf,
}

/// What is in the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    node: String,
    generation: Option<i64>,
    reason: String,
    spec: NodeProxySpec,
}

/// Why the last assignment could not be kept or read.
#[derive(Debug, Error)]
#[error("failed to {step} {}", file.display())]
pub(crate) struct LastGoodError {
    step: &'static str,
    file: PathBuf,
    source: io::Error,
}

// === impl LastGood ===

impl LastGood {
    /// In this directory, which is made when it is first written to.
    pub(crate) fn within(directory: &Path) -> LastGood {
        LastGood {
            file: directory.join(FILE),
        }
    }

    /// What was kept for `node`, if anything. A file for another node is not for this one: state
    /// directories are copied with disk images.
    pub(crate) fn observe(&self, node: &str) -> Result<Option<Assignment>, LastGoodError> {
        let bytes = match fs::read(&self.file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|source| self.failed("read", source))?,
        };
        let kept: Kept = serde_json::from_slice(&bytes)
            .map_err(|source| self.failed("understand", source.into()))?;
        Ok((kept.node == node).then_some(Assignment {
            generation: kept.generation,
            spec: kept.spec,
            reason: kept.reason,
        }))
    }

    /// Keeps `assignment` for `node`, in the place of whatever was kept: after a crash the file is
    /// the old one or the new one.
    pub(crate) fn commit(&self, node: &str, assignment: &Assignment) -> Result<(), LastGoodError> {
        let kept = Kept {
            node: node.to_owned(),
            generation: assignment.generation,
            reason: assignment.reason.clone(),
            spec: assignment.spec.clone(),
        };
        let write = || -> io::Result<()> {
            let bytes = serde_json::to_vec_pretty(&kept)?;
            if let Some(directory) = self.file.parent() {
                fs::create_dir_all(directory)?;
            }
            let temporary = self.file.with_extension("new");
            let mut file = fs::File::create(&temporary)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&temporary, &self.file)
        };
        write().map_err(|source| self.failed("write", source))
    }

    fn failed(&self, step: &'static str, source: io::Error) -> LastGoodError {
        LastGoodError {
            step,
            file: self.file.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment() -> Assignment {
        Assignment {
            generation: Some(7),
            spec: NodeProxySpec {
                profile_name: "default".to_owned(),
                ..NodeProxySpec::default()
            },
            reason: "it is the only one".to_owned(),
        }
    }

    #[test]
    fn what_was_kept_is_there_after_a_restart_for_the_same_node_only() {
        let directory = tempfile::tempdir().expect("a directory");
        // Made when first written to: a fresh node has none.
        let kept = LastGood::within(&directory.path().join("state"));
        assert!(
            kept.observe("node-1")
                .expect("no file is no failure")
                .is_none()
        );
        kept.commit("node-1", &assignment()).expect("it is written");
        let again = LastGood::within(&directory.path().join("state"));
        let read = again
            .observe("node-1")
            .expect("it is read")
            .expect("it is there");
        assert_eq!((read.generation, read.spec), (Some(7), assignment().spec));
        assert!(again.observe("node-2").expect("it is read").is_none());
    }

    #[test]
    fn a_file_that_makes_no_sense_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join(FILE), "{\"node\": ").expect("it is written");
        let error = LastGood::within(directory.path())
            .observe("node-1")
            .expect_err("half a file");
        assert!(error.to_string().contains(FILE), "{error}");
    }

    #[test]
    fn a_crash_while_writing_leaves_what_was_kept_before() {
        let directory = tempfile::tempdir().expect("a directory");
        let kept = LastGood::within(directory.path());
        kept.commit("node-1", &assignment()).expect("it is written");
        fs::write(directory.path().join("last-good.new"), "{\"no").expect("half a file");
        assert!(kept.observe("node-1").expect("the whole one").is_some());
        kept.commit("node-1", &assignment())
            .expect("it is written over");
    }
}
