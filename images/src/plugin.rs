//! The download of `kubectl signpost` for krew: an archive, and a manifest that refers to it.

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
    /// The target architecture.
    pub architecture: Architecture,
    /// The timestamp of everything in the archive.
    pub created: Timestamp,
    /// The statically linked program.
    pub program: Vec<u8>,
    /// The text of the licence. krew's index rejects archives without one.
    pub license: Vec<u8>,
}

// === impl Plugin ===

impl Plugin {
    /// Returns the file name of the archive.
    pub fn archive_name(&self) -> String {
        let Plugin {
            version,
            architecture,
            ..
        } = self;
        format!("{PROGRAM}-{version}-linux-{architecture}.tar.gz")
    }

    /// Renders an archive with the program and the licence at its root. The same input gives the
    /// same bytes.
    pub fn archive(&self) -> Vec<u8> {
        let mut tree = Tree::default();
        for (path, mode, content) in [
            (format!("/{PROGRAM}"), 0o755, &self.program),
            ("/LICENSE".to_owned(), 0o644, &self.license),
        ] {
            let path = path.parse().expect("the paths are short and plain");
            let content = content.clone();
            let inserted = tree.insert(path, File { mode, content });
            inserted.expect("the paths differ");
        }
        gzip(&tree.render(self.created))
    }

    /// Returns krew's manifest of `archive`, in the format of
    /// <https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest>. krew requires the file to
    /// have the name of the plugin: `signpost.yaml`.
    pub fn manifest(&self, archive: &[u8]) -> String {
        let Plugin {
            version,
            architecture,
            ..
        } = self;
        let digest = digest(archive);
        let sha256 = digest.trim_start_matches("sha256:");
        let name = self.archive_name();
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
  - selector:
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
