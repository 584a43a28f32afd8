//! An image as the files that others read.

mod documents;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::layout::documents::{
    Configuration, Descriptor, DockerManifest, Execution, Index, Manifest, Marker, MediaType,
    Platform, Rootfs, Step,
};
use crate::{Digest, File, Image, Size, SourceDate, Tree};

/// An OCI image layout
/// (<https://github.com/opencontainers/image-spec/blob/main/image-layout.md>), in which Docker
/// releases that do not know one also find what they need: `manifest.json`, about the same blobs.
#[derive(Debug, Clone)]
pub struct Layout {
    manifest: Digest,
    created: SourceDate,
    tree: Tree,
}

const SCHEMA: u8 = 2;

// === impl Layout ===

impl Layout {
    /// The layout with `image` in it, and nothing else.
    pub fn render(image: &Image) -> Layout {
        let mut tree = Tree::default();
        let layer = insert_blob(&mut tree, MediaType::Layer, image.layer.compressed().into());
        let configuration = render_json(&configuration(image));
        let configuration = insert_blob(&mut tree, MediaType::Configuration, configuration);
        let docker = DockerManifest {
            config: blob_path(&configuration.digest),
            repo_tags: vec![image.reference.to_string()],
            layers: vec![blob_path(&layer.digest)],
        };
        let manifest = render_json(&Manifest {
            schema_version: SCHEMA,
            media_type: MediaType::Manifest,
            config: configuration,
            layers: vec![layer],
        });
        let mut manifest = insert_blob(&mut tree, MediaType::Manifest, manifest);
        let digest = manifest.digest.clone();
        manifest.platform = Some(platform(image));
        manifest.annotations = BTreeMap::from([
            // containerd and podman take the whole name from the first, skopeo the tag from the second.
            ("io.containerd.image.name", image.reference.to_string()),
            (
                "org.opencontainers.image.ref.name",
                image.reference.tag().to_owned(),
            ),
        ]);
        let index = Index {
            schema_version: SCHEMA,
            media_type: MediaType::Index,
            manifests: vec![manifest],
        };
        let marker = Marker {
            image_layout_version: "1.0.0",
        };
        insert(&mut tree, "index.json", render_json(&index));
        insert(&mut tree, "manifest.json", render_json(&[docker]));
        insert(&mut tree, "oci-layout", render_json(&marker));
        Layout {
            manifest: digest,
            created: image.created,
            tree,
        }
    }

    /// The digest of the image's manifest, by which registries and container runtimes know it.
    pub fn manifest(&self) -> &Digest {
        &self.manifest
    }

    /// Its files.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// All of it as one tar, which `ctr images import`, `podman load`, `docker load` and skopeo read.
    pub fn archive(&self) -> Vec<u8> {
        self.tree.render(self.created)
    }
}

fn configuration(image: &Image) -> Configuration<'_> {
    let process = &image.process;
    let environment = process.environment.iter();
    Configuration {
        created: image.created,
        platform: platform(image),
        config: Execution {
            user: process.user.to_string(),
            env: environment.map(|(k, v)| format!("{k}={v}")).collect(),
            entrypoint: &process.entrypoint,
            working_dir: "/",
            labels: &image.labels,
        },
        rootfs: Rootfs {
            kind: "layers",
            diff_ids: vec![image.layer.unpacked()],
        },
        history: vec![Step {
            created: image.created,
            created_by: "write-image",
        }],
    }
}

fn platform(image: &Image) -> Platform {
    Platform {
        architecture: image.architecture.to_string(),
        os: "linux",
    }
}

fn insert_blob(tree: &mut Tree, media_type: MediaType, content: Vec<u8>) -> Descriptor {
    let digest = Digest::of(&content);
    let size = Size::of(&content).bytes;
    insert(tree, &blob_path(&digest), content);
    Descriptor {
        media_type,
        digest,
        size,
        platform: None,
        annotations: BTreeMap::new(),
    }
}

fn insert(tree: &mut Tree, path: &str, content: Vec<u8>) {
    let path = format!("/{path}").parse();
    let path = path.expect("a layout's paths are short and plain");
    let mode = 0o644;
    let inserted = tree.insert(path, File { mode, content });
    inserted.expect("a layout's paths differ: its blobs are of different kinds");
}

fn blob_path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn render_json(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("documents have text for keys, and nothing else can fail")
}
