//! The JSON in a layout.
//!
//! These types are ours for the order they are written in: it follows from them alone, while maps of
//! a hash would make other bytes, and another digest, at each run.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{Digest, SourceDate};

/// `index.json`: which images are here
/// (<https://github.com/opencontainers/image-spec/blob/main/image-index.md>).
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Index {
    pub(super) schema_version: u8,
    pub(super) media_type: MediaType,
    pub(super) manifests: Vec<Descriptor>,
}

/// What an image consists of
/// (<https://github.com/opencontainers/image-spec/blob/main/manifest.md>).
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifest {
    pub(super) schema_version: u8,
    pub(super) media_type: MediaType,
    pub(super) config: Descriptor,
    pub(super) layers: Vec<Descriptor>,
}

/// Where something is, and how to know that it is the right thing
/// (<https://github.com/opencontainers/image-spec/blob/main/descriptor.md>).
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    pub(super) media_type: MediaType,
    pub(super) digest: Digest,
    /// Bytes.
    pub(super) size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) platform: Option<Platform>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) annotations: BTreeMap<&'static str, String>,
}

/// What is behind a descriptor.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) enum MediaType {
    #[serde(rename = "application/vnd.oci.image.index.v1+json")]
    Index,
    #[serde(rename = "application/vnd.oci.image.manifest.v1+json")]
    Manifest,
    #[serde(rename = "application/vnd.oci.image.config.v1+json")]
    Configuration,
    #[serde(rename = "application/vnd.oci.image.layer.v1.tar+gzip")]
    Layer,
}

/// What an image runs on.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Platform {
    pub(super) architecture: String,
    pub(super) os: &'static str,
}

/// What a container runtime is told
/// (<https://github.com/opencontainers/image-spec/blob/main/config.md>).
#[derive(Debug, Serialize)]
pub(super) struct Configuration<'a> {
    pub(super) created: SourceDate,
    #[serde(flatten)]
    pub(super) platform: Platform,
    pub(super) config: Execution<'a>,
    pub(super) rootfs: Rootfs<'a>,
    pub(super) history: Vec<Step>,
}

/// How a container of an image is run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Execution<'a> {
    pub(super) user: String,
    /// `NAME=value`.
    pub(super) env: Vec<String>,
    pub(super) entrypoint: &'a [String],
    pub(super) working_dir: &'static str,
    pub(super) labels: &'a BTreeMap<String, String>,
}

/// The layers of an image by what is inside them.
#[derive(Debug, Serialize)]
pub(super) struct Rootfs<'a> {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) diff_ids: Vec<&'a Digest>,
}

/// What made a layer.
#[derive(Debug, Serialize)]
pub(super) struct Step {
    pub(super) created: SourceDate,
    pub(super) created_by: &'static str,
}

/// An entry of `manifest.json`, which only Docker reads
/// (<https://github.com/moby/docker-image-spec/blob/main/spec.md>).
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct DockerManifest {
    /// Files of the layout, as are the layers.
    pub(super) config: String,
    pub(super) repo_tags: Vec<String>,
    pub(super) layers: Vec<String>,
}

/// `oci-layout`: that this is one.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Marker {
    pub(super) image_layout_version: &'static str,
}
