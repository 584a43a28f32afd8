//! Writes `generated/*.yaml` and the pages of `docs/` about this API from the types.

use std::{error::Error, fs, path::Path};

use crds::{manifest, reference};

fn main() -> Result<(), Box<dyn Error>> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = package.join("generated");
    fs::create_dir_all(&directory)?;
    for manifest in manifest::manifests()? {
        fs::write(directory.join(manifest.file), manifest.text)?;
    }
    for page in reference::pages() {
        fs::write(package.join("../docs").join(page.file), page.text)?;
    }
    Ok(())
}
