//! Reads an archive with independent libraries.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::GzDecoder;
use images::digest;
use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest, OciLayout};
use serde_json::Value;
use tar::{Archive, EntryType};

/// The content of an archive.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Its files by path.
    files: BTreeMap<String, Vec<u8>>,
    pub(crate) index: ImageIndex,
    pub(crate) manifest: ImageManifest,
    pub(crate) configuration: ImageConfiguration,
    /// The files and folders of its only layer, in order.
    pub(crate) layer: Vec<Packed>,
}

/// A file or a folder in a layer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) path: String,
    pub(crate) mode: u32,
    /// The owner and group IDs.
    pub(crate) owner: (u64, u64),
    pub(crate) changed: u64,
    /// The content; `None` for a folder.
    pub(crate) content: Option<Vec<u8>>,
}

// === impl Opened ===

impl Opened {
    /// Opens an archive with one image of one layer. Verifies the size and the digest of every
    /// blob, and that every blob is referred to.
    #[track_caller]
    pub(crate) fn new(archive: &[u8]) -> Opened {
        let files = unpack(archive).into_iter();
        let mut files: BTreeMap<String, Vec<u8>> = files
            .filter_map(|file| Some((file.path, file.content?)))
            .collect();
        OciLayout::from_reader(files["oci-layout"].as_slice()).expect("a layout");
        let index = ImageIndex::from_reader(files["index.json"].as_slice()).expect("an index");
        let [image] = index.manifests().as_slice() else {
            panic!("not one image: {index:?}");
        };
        let manifest = blob(&files, image);
        let manifest = ImageManifest::from_reader(manifest.as_slice()).expect("a manifest");
        let configuration = blob(&files, manifest.config());
        let configuration = ImageConfiguration::from_reader(configuration.as_slice());
        let configuration = configuration.expect("a configuration");
        let [layer] = manifest.layers().as_slice() else {
            panic!("not one layer: {manifest:?}");
        };
        let mut unpacked = Vec::new();
        let read = GzDecoder::new(blob(&files, layer).as_slice()).read_to_end(&mut unpacked);
        read.expect("a layer is gzip");
        let ids = configuration.rootfs().diff_ids();
        assert_eq!(*ids, [digest(&unpacked)]);
        let layer = unpack(&unpacked);

        let referred = [image, manifest.config(), &manifest.layers()[0]];
        let known = referred.map(path).into_iter();
        let known = known.chain(["oci-layout", "index.json", "manifest.json"].map(str::to_owned));
        let mut known: Vec<String> = known.collect();
        known.sort();
        assert_eq!(files.keys().cloned().collect::<Vec<_>>(), known);
        files.retain(|path, _| path == "manifest.json");
        Opened {
            files,
            index,
            manifest,
            configuration,
            layer,
        }
    }

    /// Returns the document that Docker reads instead of the index.
    pub(crate) fn docker(&self) -> Value {
        serde_json::from_slice(&self.files["manifest.json"]).expect("JSON")
    }

    /// Returns the path of the blob that a descriptor refers to.
    pub(crate) fn path(descriptor: &Descriptor) -> String {
        path(descriptor)
    }

    /// Returns the files of the layer, without folders.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Packed> {
        self.layer.iter().filter(|packed| packed.content.is_some())
    }
}

fn path(descriptor: &Descriptor) -> String {
    format!("blobs/sha256/{}", descriptor.digest().digest())
}

#[track_caller]
fn blob<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Descriptor) -> &'a Vec<u8> {
    let blob = &files[&path(descriptor)];
    assert_eq!(u64::try_from(blob.len()), Ok(descriptor.size()));
    assert_eq!(digest(blob), descriptor.digest().to_string());
    blob
}

#[track_caller]
fn unpack(archive: &[u8]) -> Vec<Packed> {
    let mut archive = Archive::new(archive);
    let entries = archive.entries().expect("a tar");
    let packed = entries.map(|entry| {
        let mut entry = entry.expect("an entry");
        let header = entry.header();
        let owner = (
            header.uid().expect("a number"),
            header.gid().expect("a number"),
        );
        let (mode, changed) = (header.mode(), header.mtime());
        let folder = header.entry_type() == EntryType::Directory;
        let path = entry.path().expect("a path").display().to_string();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).expect("content");
        Packed {
            path,
            mode: mode.expect("a mode"),
            owner,
            changed: changed.expect("a time"),
            content: (!folder).then_some(content),
        }
    });
    packed.collect()
}
