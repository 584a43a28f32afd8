//! The demo's copy of the example, which it edits.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The folder of the example.
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/demo");

/// The directory of manifests that the agent watches.
#[derive(Debug)]
pub(super) struct Manifests {
    directory: PathBuf,
}

// === impl Manifests ===

impl Manifests {
    /// Copies the example into a new directory `manifests` in `folder`.
    pub(super) fn copy_into(folder: &Path) -> Result<Manifests> {
        let directory = folder.join("manifests");
        let failed = || format!("failed to copy {EXAMPLE}");
        fs::create_dir(&directory).with_context(failed)?;
        for entry in fs::read_dir(EXAMPLE).with_context(failed)? {
            let entry = entry.with_context(failed)?;
            fs::copy(entry.path(), directory.join(entry.file_name())).with_context(failed)?;
        }
        Ok(Manifests { directory })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Removes the pod from every EndpointSlice of `file`. The file is replaced atomically by a
    /// rename. Returns a time just before the rename, at which the change was not yet visible.
    pub(super) fn commit_without_pod(&self, file: &str, pod: &str) -> Result<Instant> {
        let path = self.directory.join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("failed to read {file}"))?;
        let edited = without_pod(&text, pod).with_context(|| format!("failed to edit {file}"))?;
        // Next to the directory: inside it, a partial file could be read as a manifest.
        let new = self.directory.with_extension("new");
        fs::write(&new, edited).with_context(|| format!("failed to write {file}"))?;
        let before = Instant::now();
        fs::rename(&new, &path).with_context(|| format!("failed to replace {file}"))?;
        Ok(before)
    }
}

/// Returns `text` without the endpoints of the pod called `pod`.
fn without_pod(text: &str, pod: &str) -> Result<String> {
    let mut slices: Vec<Value> = serde_saphyr::from_multiple(text)?;
    let mut edited = Vec::new();
    for slice in &mut slices {
        let endpoints = slice["endpoints"].as_array_mut();
        let endpoints = endpoints.context("it holds something else than EndpointSlices")?;
        let before = endpoints.len();
        endpoints.retain(|endpoint| endpoint["targetRef"]["name"] != pod);
        ensure!(
            endpoints.len() < before,
            "no endpoint of a slice is the pod {pod}"
        );
        edited.push(serde_saphyr::to_string(slice)?);
    }
    Ok(edited.join("---\n"))
}

#[cfg(test)]
mod tests {
    use super::without_pod;

    const SLICES: &str = "
metadata: {name: web-ipv4}
endpoints:
- {addresses: [10.0.1.5], targetRef: {name: web-1}}
- {addresses: [10.0.1.6], targetRef: {name: web-2}}
---
metadata: {name: web-ipv6}
endpoints:
- {addresses: ['fd00:10:0:1::5'], targetRef: {name: web-1}}
- {addresses: ['fd00:10:0:1::6'], targetRef: {name: web-2}}
";

    #[test]
    fn a_pod_is_taken_out_of_the_slices_of_both_families() {
        let edited = without_pod(SLICES, "web-2").expect("web-2 is in both");
        let slices: Vec<serde_json::Value> =
            serde_saphyr::from_multiple(&edited).expect("what was written can be read");
        let left: Vec<String> = slices
            .iter()
            .map(|slice| slice["endpoints"].to_string())
            .collect();
        assert_eq!(
            left,
            [
                r#"[{"addresses":["10.0.1.5"],"targetRef":{"name":"web-1"}}]"#,
                r#"[{"addresses":["fd00:10:0:1::5"],"targetRef":{"name":"web-1"}}]"#,
            ]
        );
        assert_eq!(slices[0]["metadata"]["name"], "web-ipv4");
    }

    #[test]
    fn a_pod_that_is_not_there_is_no_edit() {
        assert!(without_pod(SLICES, "web-9").is_err());
    }
}
