//! The download of `kubectl signpost` for krew: an archive for each processor, and a manifest that
//! refers to them.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::image::gzip;
use crate::{Architecture, File, Tree, digest};

/// The name of the program in the archive, to which krew creates a link.
const PROGRAM: &str = "kubectl-signpost";

/// The address of the archives of a release. Nothing is published there yet.
const RELEASES: &str = "https://github.com/signpost/signpost/releases/download";

/// The plugin of one release for Linux.
#[derive(Debug, Clone)]
pub struct Plugin {
    /// The version of the release without a `v`: `0.1.0`.
    pub version: String,
    /// The timestamp of everything in the archives.
    pub created: Timestamp,
    /// The statically linked program for each processor.
    pub programs: BTreeMap<Architecture, Vec<u8>>,
    /// The text of the licence. krew's index rejects archives without one.
    pub license: Vec<u8>,
}

// === impl Plugin ===

impl Plugin {
    /// Returns the file name of the archive for a processor.
    pub fn archive_name(&self, architecture: Architecture) -> String {
        let version = &self.version;
        format!("{PROGRAM}-{version}-linux-{architecture}.tar.gz")
    }

    /// Renders an archive for each processor, with the program and the licence at its root. The
    /// same input gives the same bytes.
    pub fn archives(&self) -> BTreeMap<Architecture, Vec<u8>> {
        let programs = self.programs.iter();
        let archives =
            programs.map(|(architecture, program)| (*architecture, self.archive(program)));
        archives.collect()
    }

    fn archive(&self, program: &[u8]) -> Vec<u8> {
        let mut tree = Tree::default();
        for (path, mode, content) in [
            (format!("/{PROGRAM}"), 0o755, program),
            ("/LICENSE".to_owned(), 0o644, &self.license),
        ] {
            let path = path.parse().expect("the paths are short and plain");
            let content = content.to_vec();
            let inserted = tree.insert(path, File { mode, content });
            inserted.expect("the paths differ");
        }
        gzip(&tree.render(self.created))
    }

    /// Returns krew's manifest of `archives`, in the format of
    /// <https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest>. krew requires the file to
    /// have the name of the plugin: `signpost.yaml`.
    pub fn manifest(&self, archives: &BTreeMap<Architecture, Vec<u8>>) -> String {
        let version = &self.version;
        let platforms = archives
            .iter()
            .map(|(architecture, archive)| self.platform(*architecture, archive));
        let platforms: String = platforms.collect();
        format!(
            r#"apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: signpost
spec:
  version: "v{version}"
  homepage: https://github.com/signpost/signpost
  shortDescription: Inspect and steer the service proxy Signpost
  description: |
    Shows what Signpost's profiles and nodes do and what to do where something
    is wrong, explains Services and traces packets on any node, follows
    rollouts, and makes a profile of kube-proxy's configuration. It uses the
    rights of your kubeconfig, and runs nothing in the cluster.
  platforms:
{platforms}"#
        )
    }

    fn platform(&self, architecture: Architecture, archive: &[u8]) -> String {
        let (version, name) = (&self.version, self.archive_name(architecture));
        let digest = digest(archive);
        let sha256 = digest.trim_start_matches("sha256:");
        format!(
            r#"  - selector:
      matchLabels:
        os: linux
        arch: {architecture}
    uri: {RELEASES}/v{version}/{name}
    sha256: {sha256}
    bin: {PROGRAM}
"#
        )
    }
}
