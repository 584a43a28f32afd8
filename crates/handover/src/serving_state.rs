//! Whether Signpost serves this node's Services, and the file that keeps this across restarts.

use std::path::Path;

use jiff::Timestamp;
use runtime::{KeptFile, KeptFileError};
use serde::{Deserialize, Serialize};

/// The file, within the state directory.
pub const HANDBACK_FILE: &str = "handed-back.json";

/// Which proxy serves the node's Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServingState {
    /// Signpost: it keeps the kernel at the desired state.
    #[default]
    Serving,
    /// Signpost, but a proxy's health and metrics ports are free: another proxy that binds them
    /// shows that it runs.
    ReleasingPorts,
    /// Another proxy: the kernel has no rules of Signpost, but for what established connections need.
    HandedBack,
}

/// The file that marks a node as handed back, across restarts. Without it, the node was not handed
/// back.
#[derive(Debug, Clone)]
pub struct HandbackMark {
    file: KeptFile,
    node: String,
}

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    node: String,
    since: Timestamp,
}

// === impl HandbackMark ===

impl HandbackMark {
    /// The mark of `node`, in this directory.
    pub fn within(directory: &Path, node: &str) -> HandbackMark {
        HandbackMark {
            file: KeptFile::within(directory, HANDBACK_FILE),
            node: node.to_owned(),
        }
    }

    /// Reads the serving state. Ignores a mark of another node, because state directories are
    /// copied with disk images.
    pub fn observe(&self) -> Result<ServingState, KeptFileError> {
        let mark: Option<Mark> = self.file.observe()?;
        Ok(match mark {
            Some(mark) if mark.node == self.node => ServingState::HandedBack,
            _ => ServingState::Serving,
        })
    }

    /// Writes the mark.
    pub fn commit(&self, since: Timestamp) -> Result<(), KeptFileError> {
        self.file.commit(&Mark {
            node: self.node.clone(),
            since,
        })
    }

    /// Removes the mark durably. If it reappeared after a power cut, it would leave the node to a
    /// kube-proxy that has been stopped meanwhile.
    pub fn commit_removal(&self) -> Result<(), KeptFileError> {
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
