//! Checks that the manifests in `examples` work.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use tests::binaries;

#[test]
fn the_demo_renders_and_nothing_of_it_is_rejected() -> Result<()> {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/demo");
    let output = Command::new(binaries::find("signpost-agent")?)
        .args(["render", "--node", "node-1", "--manifests"])
        .arg(&example)
        .output()?;
    let (printed, complaints) = (
        String::from_utf8(output.stdout)?,
        String::from_utf8(output.stderr)?,
    );
    ensure!(output.status.success(), "{}: {complaints}", output.status);
    ensure!(complaints.is_empty(), "it complains: {complaints}");
    // Unsupported settings are listed as comments before the tables.
    let remarks: Vec<&str> = printed.lines().filter(|l| l.starts_with('#')).collect();
    ensure!(
        remarks.is_empty(),
        "not everything is honoured: {remarks:#?}"
    );
    for (service, endpoints) in [
        (
            "10.96.0.10 . tcp . 80",
            ["10.0.1.5", "10.0.1.6", "10.0.1.7"],
        ),
        (
            "fd00:10:96::10 . tcp . 80",
            ["fd00:10:0:1::5", "fd00:10:0:1::6", "fd00:10:0:1::7"],
        ),
        (
            "10.96.0.53 . udp . 53",
            ["10.0.1.5", "10.0.1.6", "10.0.1.7"],
        ),
        (
            "fd00:10:96::53 . udp . 53",
            ["fd00:10:0:1::5", "fd00:10:0:1::6", "fd00:10:0:1::7"],
        ),
    ] {
        for endpoint in endpoints {
            let found = printed
                .lines()
                .any(|line| line.contains(service) && line.contains(&format!(": {endpoint} ")));
            ensure!(found, "{service} does not lead to {endpoint}:\n{printed}");
        }
    }
    ensure!(
        printed.contains("30080"),
        "nothing serves the node port:\n{printed}"
    );
    Ok(())
}
