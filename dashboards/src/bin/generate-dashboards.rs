//! Writes `charts/signpost/files/dashboards/*.json` and `charts/signpost/files/alerts.json`.

use std::{error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/signpost/files");
    fs::create_dir_all(chart.join("dashboards"))?;
    for file in dashboards::files() {
        fs::write(chart.join(file.path), file.text)?;
    }
    Ok(())
}
