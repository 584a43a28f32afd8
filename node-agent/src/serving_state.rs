//! Whether Signpost serves this node's Services, and how that outlives the agent.

use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::kept_file::{KeptFile, KeptFileError};

/// The file, within the state directory.
pub(crate) const FILE: &str = "handed-back.json";

/// Which proxy serves the node's Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ServingState {
    /// Signpost: it keeps the kernel at the desired state.
    #[default]
    Serving,
    /// Signpost, but the health and metrics ports of a proxy are free: another proxy that takes them
    /// shows that it runs.
    ReleasingPorts,
    /// Another proxy: no rules of Signpost are in the kernel.
    HandedBack,
}

/// The file that says across restarts that the node was handed back. Where there is none, it was not.
#[derive(Debug, Clone)]
pub(crate) struct HandbackMark {
    file: KeptFile,
    node: String,
}

/// What is in the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    node: String,
    since: Timestamp,
}

// === impl HandbackMark ===

impl HandbackMark {
    /// That of `node`, in this directory.
    pub(crate) fn within(directory: &Path, node: &str) -> HandbackMark {
        HandbackMark {
            file: KeptFile::within(directory, FILE),
            node: node.to_owned(),
        }
    }

    /// What it says. A mark of another node says nothing of this one: state directories are copied
    /// with disk images.
    pub(crate) fn observe(&self) -> Result<ServingState, KeptFileError> {
        let mark: Option<Mark> = self.file.observe()?;
        Ok(match mark {
            Some(mark) if mark.node == self.node => ServingState::HandedBack,
            _ => ServingState::Serving,
        })
    }

    /// Makes it.
    pub(crate) fn commit(&self, since: Timestamp) -> Result<(), KeptFileError> {
        self.file.commit(&Mark {
            node: self.node.clone(),
            since,
        })
    }

    /// Takes it away. One that came back with the power would leave the node to a kube-proxy that has
    /// been stopped meanwhile.
    pub(crate) fn commit_removal(&self) -> Result<(), KeptFileError> {
        self.file.commit_removal()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_outlives_the_agent_and_is_about_one_node_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let mark = || HandbackMark::within(directory.path(), "node-1");
        let serving_state = |mark: HandbackMark| mark.observe().expect("it can be read");
        assert_eq!(serving_state(mark()), ServingState::Serving);
        mark().commit(Timestamp::UNIX_EPOCH).expect("it is written");
        assert_eq!(serving_state(mark()), ServingState::HandedBack);
        let other = HandbackMark::within(directory.path(), "node-2");
        assert_eq!(serving_state(other), ServingState::Serving);
        mark().commit_removal().expect("it is removed");
        assert_eq!(serving_state(mark()), ServingState::Serving);
    }
}
