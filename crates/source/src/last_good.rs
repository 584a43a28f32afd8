//! The last assignment of this node, kept on disk: a restarted agent needs neither operator nor API
//! server to continue with it.

use std::path::Path;

use crds::NodeProxySpec;
use crds::readable::{UnreadableField, readable};
use runtime::{KeptFile, KeptFileError};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::Assignment;

/// The file, within the state directory.
pub const FILE: &str = "last-good.json";

/// The file with the last assignment. Without it, an agent that restarts without the operator
/// starts from the defaults.
#[derive(Debug, Clone)]
pub struct LastGood(KeptFile);

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept<S> {
    node: String,
    generation: Option<i64>,
    reason: String,
    spec: S,
}

/// A spec without the fields that cannot be read.
struct ReadSpec {
    spec: NodeProxySpec,
    unreadable: Vec<UnreadableField>,
}

// === impl ReadSpec ===

impl<'de> Deserialize<'de> for ReadSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ReadSpec, D::Error> {
        let written = Value::deserialize(deserializer)?;
        let (spec, unreadable) =
            readable(&written).ok_or_else(|| D::Error::custom("nothing of it can be read"))?;
        Ok(ReadSpec { spec, unreadable })
    }
}

// === impl LastGood ===

impl LastGood {
    /// The file in this directory. The first write creates the directory.
    pub fn within(directory: &Path) -> LastGood {
        LastGood(KeptFile::within(directory, FILE))
    }

    /// Reads the assignment of `node`, if the file has one. Ignores a file for another node,
    /// because state directories are copied with disk images. A newer version may have written values
    /// that this one cannot read.
    pub fn observe(&self, node: &str) -> Result<Option<Assignment>, KeptFileError> {
        let kept: Option<Kept<ReadSpec>> = self.0.observe()?;
        let kept = kept.filter(|kept| kept.node == node);
        Ok(kept.map(|kept| Assignment {
            generation: kept.generation,
            spec: kept.spec.spec,
            reason: kept.reason,
            unreadable: kept.spec.unreadable,
        }))
    }

    /// Replaces the assignment in the file with `assignment`, for `node`.
    pub fn commit(&self, node: &str, assignment: &Assignment) -> Result<(), KeptFileError> {
        self.0.commit(&Kept {
            node: node.to_owned(),
            generation: assignment.generation,
            reason: assignment.reason.clone(),
            spec: &assignment.spec,
        })
    }
}

#[cfg(test)]
mod tests {
    use crds::profile::mode::Mode;
    use serde_json::json;

    use super::*;

    fn assignment() -> Assignment {
        Assignment {
            generation: Some(7),
            spec: NodeProxySpec {
                profile_name: "default".to_owned(),
                ..NodeProxySpec::default()
            },
            reason: "it is the only one".to_owned(),
            unreadable: Vec::new(),
        }
    }

    #[test]
    fn what_was_kept_is_there_after_a_restart_for_the_same_node_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let kept = LastGood::within(directory.path());
        assert!(
            kept.observe("node-1")
                .expect("no file is no failure")
                .is_none()
        );
        kept.commit("node-1", &assignment()).expect("it is written");
        let again = LastGood::within(directory.path());
        let read = again
            .observe("node-1")
            .expect("it is read")
            .expect("it is there");
        assert_eq!((read.generation, read.spec), (Some(7), assignment().spec));
        assert!(again.observe("node-2").expect("it is read").is_none());
    }

    /// Failure story T445: after a rollback of the agents one such value lost all others, and a restart
    /// without the operator began from the defaults.
    #[test]
    fn t445_what_a_newer_agent_kept_is_read_except_for_what_only_that_one_knows() {
        let directory = tempfile::tempdir().expect("a directory");
        let kept = LastGood::within(directory.path());
        kept.commit("node-1", &assignment()).expect("it is written");
        let file = directory.path().join(FILE);
        let written = std::fs::read(&file).expect("it is there");
        let mut written: Value = serde_json::from_slice(&written).expect("JSON");
        written["spec"]["config"]["mode"] = json!("iptables");
        written["spec"]["config"]["masquerade"] = json!({"all": "sometimes"});
        std::fs::write(&file, written.to_string()).expect("it is written");

        let read = kept.observe("node-1").expect("it is read");
        let read = read.expect("it is there");
        assert_eq!(read.spec.config.mode, Mode::Iptables);
        let fields: Vec<String> = read.unreadable.iter().map(|it| it.field()).collect();
        assert_eq!(fields, ["config.masquerade.all"]);

        written["spec"] = json!("another format");
        std::fs::write(&file, written.to_string()).expect("it is written");
        assert!(kept.observe("node-1").is_err(), "it is not lost silently");
    }
}
