//! The files of an image, packed.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::{Digest, Size, SourceDate, Tree};

/// Files as an image holds them: a tar, compressed with gzip, which every container runtime reads.
#[derive(Clone, PartialEq, Eq)]
pub struct Layer {
    compressed: Vec<u8>,
    unpacked: Digest,
    size: Size,
}

// === impl Layer ===

impl Layer {
    /// Packs the files of `tree`, all of them last changed at `date`. Some seconds for 10 MB.
    pub fn render(tree: &Tree, date: SourceDate) -> Layer {
        let tar = tree.render(date);
        // Its header is as empty as that of `gzip --no-name`: neither a name nor a time.
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let written = encoder.write_all(&tar).and_then(|()| encoder.finish());
        let files = tree.files();
        let sizes = files.map(|(_, file)| Size::of(&file.content).bytes);
        Layer {
            compressed: written.expect("writing to memory does not fail"),
            unpacked: Digest::of(&tar),
            size: Size { bytes: sizes.sum() },
        }
    }

    /// What is stored and sent.
    pub fn compressed(&self) -> &[u8] {
        &self.compressed
    }

    /// The digest of the tar inside, which does not depend on how it is compressed.
    pub fn unpacked(&self) -> &Digest {
        &self.unpacked
    }

    /// What its files take on a node's disk.
    pub fn size(&self) -> Size {
        self.size
    }
}

impl std::fmt::Debug for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} unpacked", self.unpacked, self.size)
    }
}
