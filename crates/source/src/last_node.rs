//! The last known addresses and Pod ranges of the Node object, kept on disk: an agent that starts
//! while the object lacks them continues with these, as a running agent does.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use catalog::{LastKnownAddresses, NodeLifecycle, OwnNode};
use ipnet::IpNet;
use runtime::{KeptFile, KeptFileError};
use serde::{Deserialize, Serialize};

/// The file, within the state directory.
pub const FILE: &str = "last-node.json";

/// The file, and the last known value.
#[derive(Debug)]
pub struct LastNode {
    file: KeptFile,
    kept: Option<Kept>,
}

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    node: String,
    zone: Option<String>,
    ipv4: Option<Ipv4Addr>,
    ipv6: Option<Ipv6Addr>,
    pod_cidrs: Vec<IpNet>,
}

// === impl LastNode ===

impl LastNode {
    /// The file in this directory. The first write creates the directory.
    pub fn within(directory: &Path) -> LastNode {
        LastNode {
            file: KeptFile::within(directory, FILE),
            kept: None,
        }
    }

    /// Reads the values of the Node called `name`, if the file has them. Ignores a file for another
    /// node, because state directories are copied with disk images.
    pub fn observe(&mut self, name: &str) -> Result<Option<OwnNode>, KeptFileError> {
        let kept: Option<Kept> = self.file.observe()?;
        self.kept = kept.filter(|kept| kept.node == name);
        Ok(self.kept.as_ref().map(Kept::node))
    }

    /// Writes the values of `node`, if they differ from the file's.
    pub fn commit(&mut self, node: &OwnNode) -> Result<(), KeptFileError> {
        let kept = Kept::of(node);
        if self.kept.as_ref() == Some(&kept) {
            return Ok(());
        }
        self.file.commit(&kept)?;
        self.kept = Some(kept);
        Ok(())
    }
}

// === impl Kept ===

impl Kept {
    fn of(node: &OwnNode) -> Kept {
        Kept {
            node: node.name.to_string(),
            zone: node.zone.as_deref().map(str::to_owned),
            ipv4: node.last_given.ipv4,
            ipv6: node.last_given.ipv6,
            pod_cidrs: node.pod_cidrs.clone(),
        }
    }

    fn node(&self) -> OwnNode {
        OwnNode {
            name: self.node.as_str().into(),
            labels: BTreeMap::new(),
            zone: self.zone.as_deref().map(Into::into),
            ipv4: self.ipv4,
            ipv6: self.ipv6,
            last_given: LastKnownAddresses {
                ipv4: self.ipv4,
                ipv6: self.ipv6,
            },
            pod_cidrs: self.pod_cidrs.clone(),
            lifecycle: NodeLifecycle::Gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn node(address: &str) -> OwnNode {
        Kept {
            node: "node-1".to_owned(),
            zone: Some("a".to_owned()),
            ipv4: Some(address.parse().expect("an address")),
            ipv6: None,
            pod_cidrs: vec!["10.0.1.0/24".parse().expect("a range")],
        }
        .node()
    }

    #[test]
    fn what_was_kept_is_there_after_a_restart_for_the_same_node_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut kept = LastNode::within(directory.path());
        let none = kept.observe("node-1").expect("no file is no failure");
        assert_eq!(none, None);
        kept.commit(&node("192.168.0.1")).expect("it is written");
        kept.commit(&node("192.168.0.2")).expect("it is replaced");
        let mut again = LastNode::within(directory.path());
        let read = again.observe("node-1").expect("it is read");
        assert_eq!(read, Some(node("192.168.0.2")));
        assert_eq!(again.observe("node-2").expect("it is read"), None);
    }

    /// The kubelet writes the object every few seconds.
    #[test]
    fn what_has_not_changed_is_not_written_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut kept = LastNode::within(directory.path());
        kept.commit(&node("192.168.0.1")).expect("it is written");
        fs::remove_file(directory.path().join(FILE)).expect("it is there");
        kept.commit(&node("192.168.0.1")).expect("nothing to do");
        assert!(!directory.path().join(FILE).exists());
    }
}
