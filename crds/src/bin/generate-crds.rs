//! Writes `generated/*.yaml` from the types.

use std::{error::Error, fs, path::Path};

use crds::manifest;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("generated");
    fs::create_dir_all(&directory)?;
    for manifest in manifest::manifests()? {
        fs::write(directory.join(manifest.file), manifest.text)?;
    }
    Ok(())
}
