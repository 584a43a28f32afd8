//! A container image and the files that container runtimes read.

use std::collections::BTreeMap;
use std::env::consts;
use std::fmt;
use std::io::Write;
use std::str::FromStr;

use clap::ValueEnum;
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{File, Reference, Tree};

/// A container image for Linux with one layer.
#[derive(Debug, Clone)]
pub struct Image {
    /// The full name of the image.
    pub reference: Reference,
    /// The target architecture.
    pub architecture: Architecture,
    /// The timestamp of everything in the image. With the time of the build, each build would
    /// produce a different image.
    pub created: Timestamp,
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// Environment variables by name.
    pub environment: BTreeMap<String, String>,
    /// The user that the program runs as.
    pub user: User,
    /// Information for users; the names are those of
    /// <https://github.com/opencontainers/image-spec/blob/main/annotations.md>.
    pub labels: BTreeMap<String, String>,
    /// Its files.
    pub tree: Tree,
}

/// An image as one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// A tar that `ctr images import`, `podman load`, `docker load` and skopeo read.
    pub bytes: Vec<u8>,
    /// The digest of the image's manifest, which identifies the image in registries and container
    /// runtimes.
    pub manifest: String,
}

/// A processor, in Go's words, which images use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Architecture {
    /// `x86_64`.
    Amd64,
    /// `aarch64`.
    Arm64,
}

/// A numeric user and group: an image without `/etc/passwd` has no names, and a kubelet cannot
/// verify that a named user is not root. Written as `65532:65532`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIGURATION: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Returns `sha256:` and the SHA-256 of `content`, the form in which the parts of an image refer to
/// one another.
pub fn digest(content: &[u8]) -> String {
    let bytes = Sha256::digest(content);
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

// === impl Image ===

impl Image {
    /// Renders an OCI image layout
    /// (<https://github.com/opencontainers/image-spec/blob/main/image-layout.md>) as a tar. It also
    /// contains `manifest.json`, which refers to the same blobs, for Docker releases that do not
    /// support the layout. Takes some seconds for 10 MB.
    ///
    /// The JSON documents are formatted by hand because the order of their fields determines their
    /// digest, and because the types of oci-spec store labels and annotations in hash maps.
    pub fn archive(&self) -> Archive {
        let (created, architecture) = (self.created, self.architecture);
        let platform = format!(r#""architecture":"{architecture}","os":"linux""#);
        let tar = self.tree.render(created);
        let mut layout = Tree::default();
        let layer = insert_blob(&mut layout, gzip(&tar));

        let (user, diff) = (self.user, digest(&tar));
        let environment = self.environment.iter();
        let environment: Vec<_> = environment.map(|(k, v)| format!("{k}={v}")).collect();
        let (environment, labels) = (json(&environment), json(&self.labels));
        let entrypoint = json(&self.entrypoint);
        let configuration = format!(
            r#"{{"created":"{created}",{platform},"config":{{"User":"{user}","Env":{environment},"Entrypoint":{entrypoint},"WorkingDir":"/","Labels":{labels}}},"rootfs":{{"type":"layers","diff_ids":["{diff}"]}},"history":[{{"created":"{created}","created_by":"write-image"}}]}}"#
        );
        let configuration = insert_blob(&mut layout, configuration.into());

        let (config, content) = (configuration.describe(CONFIGURATION), layer.describe(LAYER));
        let manifest = format!(
            r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{{{config}}},"layers":[{{{content}}}]}}"#
        );
        let manifest = insert_blob(&mut layout, manifest.into());

        // containerd and podman read the whole name from the first annotation, skopeo reads the tag
        // from the second.
        let (name, tag) = (
            json(&self.reference.to_string()),
            json(self.reference.tag()),
        );
        let described = manifest.describe(MANIFEST);
        let index = format!(
            r#"{{"schemaVersion":2,"mediaType":"{INDEX}","manifests":[{{{described},"platform":{{{platform}}},"annotations":{{"io.containerd.image.name":{name},"org.opencontainers.image.ref.name":{tag}}}}}]}}"#
        );
        insert(&mut layout, "/index.json", index.into());
        let (config, content) = (&configuration.path, &layer.path);
        let docker =
            format!(r#"[{{"Config":"{config}","RepoTags":[{name}],"Layers":["{content}"]}}]"#);
        insert(&mut layout, "/manifest.json", docker.into());
        let marker = r#"{"imageLayoutVersion":"1.0.0"}"#;
        insert(&mut layout, "/oci-layout", marker.into());
        Archive {
            bytes: layout.render(created),
            manifest: manifest.digest,
        }
    }
}

/// A file of a layout to which other files refer.
struct Blob {
    /// The path without a leading slash.
    path: String,
    digest: String,
    size: usize,
}

// === impl Blob ===

impl Blob {
    /// Returns the fields of a descriptor
    /// (<https://github.com/opencontainers/image-spec/blob/main/descriptor.md>).
    fn describe(&self, media_type: &str) -> String {
        let Blob { digest, size, .. } = self;
        format!(r#""mediaType":"{media_type}","digest":"{digest}","size":{size}"#)
    }
}

fn insert_blob(layout: &mut Tree, content: Vec<u8>) -> Blob {
    let (digest, size) = (digest(&content), content.len());
    let path = format!("blobs/{}", digest.replace(':', "/"));
    insert(layout, &format!("/{path}"), content);
    Blob { path, digest, size }
}

fn insert(layout: &mut Tree, path: &str, content: Vec<u8>) {
    let path = path.parse().expect("a layout's paths are short and plain");
    let inserted = layout.insert(
        path,
        File {
            mode: 0o644,
            content,
        },
    );
    inserted.expect("a layout's paths differ: its blobs are of different kinds");
}

pub(crate) fn gzip(content: &[u8]) -> Vec<u8> {
    // The header contains neither a name nor a time, as with `gzip --no-name`.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let written = encoder.write_all(content).and_then(|()| encoder.finish());
    written.expect("writing to memory does not fail")
}

fn json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("text, lists of it and maps from text to text are JSON")
}

// === impl Architecture ===

impl Architecture {
    /// Returns the architecture of this machine, if it is supported.
    pub(crate) fn own() -> Option<Architecture> {
        match consts::ARCH {
            "x86_64" => Some(Architecture::Amd64),
            "aarch64" => Some(Architecture::Arm64),
            _ => None,
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Architecture::Amd64 => "amd64",
            Architecture::Arm64 => "arm64",
        })
    }
}

// === impl User ===

impl FromStr for User {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text.split_once(':');
        let user = numbers.and_then(|(uid, gid)| {
            let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
            Some(User { uid, gid })
        });
        user.ok_or("it has to be the numbers of a user and a group, such as 65532:65532")
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}
