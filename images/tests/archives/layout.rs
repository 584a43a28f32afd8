//! The content of an archive, and that it depends on nothing but the input.

use std::collections::BTreeMap;

use images::{Architecture, File, Image, Tree, User, digest};
use jiff::Timestamp;
use oci_spec::image::{Arch, MediaType, Os};
use serde_json::json;

use crate::opened::{Opened, Packed};

const REFERENCE: &str = "registry.example/team/program:1.2.3";
const DATE: u32 = 1_767_225_600;

/// Creates a tree with these files in this order.
fn tree(paths: &[&str]) -> Tree {
    let mut tree = Tree::default();
    for path in paths {
        let file = File {
            mode: 0o755,
            content: path.repeat(1000).into(),
        };
        let path = path.parse().expect("a path");
        tree.insert(path, file).expect("different paths");
    }
    tree
}

fn image(tree: &Tree) -> Image {
    let variables = ["PATH", "HOME", "LANG", "TZ"].map(|name| (name.to_owned(), "/x".to_owned()));
    let labels = ["a", "b", "c", "d", "e"].map(|name| (name.to_owned(), format!("\"{name}\"")));
    Image {
        reference: REFERENCE.parse().expect("a name"),
        architecture: Architecture::Arm64,
        created: Timestamp::from_second(DATE.into()).expect("a date"),
        entrypoint: vec!["/bin/program".to_owned(), "--flag".to_owned()],
        environment: BTreeMap::from(variables),
        user: User { uid: 7, gid: 8 },
        labels: BTreeMap::from(labels),
        tree: tree.clone(),
    }
}

#[test]
fn others_read_what_was_put_in() {
    let archive = image(&tree(&["/bin/program", "/etc/settings"])).archive();
    let opened = Opened::new(&archive.bytes);

    let listed = &opened.index.manifests()[0];
    assert_eq!(listed.digest().to_string(), archive.manifest);
    assert_eq!(*listed.media_type(), MediaType::ImageManifest);
    let platform = listed.platform().as_ref().expect("a platform");
    assert_eq!(
        (platform.architecture(), platform.os()),
        (&Arch::ARM64, &Os::Linux)
    );
    let names = listed.annotations().as_ref().expect("names");
    assert_eq!(names["io.containerd.image.name"], REFERENCE);
    assert_eq!(names["org.opencontainers.image.ref.name"], "1.2.3");

    let configuration = &opened.configuration;
    assert_eq!(*configuration.architecture(), Arch::ARM64);
    assert_eq!(
        configuration.created().as_deref(),
        Some("2026-01-01T00:00:00Z")
    );
    let run = configuration.config().as_ref().expect("how it is run");
    assert_eq!(run.user().as_deref(), Some("7:8"));
    let entrypoint = ["/bin/program", "--flag"].map(str::to_owned);
    assert_eq!(run.entrypoint().as_deref(), Some(&entrypoint[..]));
    let environment = ["HOME=/x", "LANG=/x", "PATH=/x", "TZ=/x"].map(str::to_owned);
    assert_eq!(run.env().as_deref(), Some(&environment[..]));
    assert_eq!(run.labels().as_ref().expect("labels")["e"], "\"e\"");

    let packed = |path: &str, content: Option<&str>| Packed {
        path: path.to_owned(),
        mode: 0o755,
        owner: (0, 0),
        changed: DATE.into(),
        content: content.map(|text| text.repeat(1000).into()),
    };
    let expected = [
        packed("bin/", None),
        packed("bin/program", Some("/bin/program")),
        packed("etc/", None),
        packed("etc/settings", Some("/etc/settings")),
    ];
    assert_eq!(opened.layer, expected);
}

#[test]
fn docker_finds_the_same_blobs() {
    let opened = Opened::new(&image(&tree(&["/program"])).archive().bytes);
    let expected = json!([{
        "Config": Opened::path(opened.manifest.config()),
        "RepoTags": [REFERENCE],
        "Layers": [Opened::path(&opened.manifest.layers()[0])],
    }]);
    assert_eq!(opened.docker(), expected);
}

#[test]
fn the_order_in_which_files_are_named_changes_no_byte() {
    let archive = |paths: &[&str]| image(&tree(paths)).archive();
    let first = archive(&["/bin/b", "/bin/a", "/etc/c"]);
    assert!(first == archive(&["/etc/c", "/bin/a", "/bin/b"]));
    assert!(
        first != archive(&["/etc/c", "/bin/a"]),
        "nothing is compared"
    );
}

/// Detects what two runs in one process cannot: an order that depends on a random seed, or a
/// compressor changed by another version of its crate. Archives of a release must be reproducible
/// years later; if an update of `flate2` or `tar` changes this digest, its commit must say so.
#[test]
fn the_bytes_are_those_of_every_other_run() {
    let archive = image(&tree(&["/bin/program"])).archive();
    assert_eq!(
        digest(&archive.bytes),
        "sha256:42b8c7232d21b8d1582bc621d050da9a58a0f8c7e4cb53c89c36c53bb3b5e72a"
    );
}

#[test]
fn folders_come_before_what_is_in_them() {
    let archive = image(&tree(&["/usr/bin/b", "/usr/bin-old", "/etc/a"])).archive();
    let opened = Opened::new(&archive.bytes);
    let paths: Vec<&str> = opened.layer.iter().map(|file| file.path.as_str()).collect();
    let expected = [
        "etc/",
        "etc/a",
        "usr/",
        "usr/bin-old",
        "usr/bin/",
        "usr/bin/b",
    ];
    assert_eq!(paths, expected);
}

#[test]
fn empty_content_has_the_well_known_digest() {
    let known = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(digest(b""), known);
}
