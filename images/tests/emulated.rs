//! Runs the programs in the archives for arm64 with qemu's emulation. Skipped if
//! `make image ARCHS=arm64` has not written the archives, or if qemu-user-static is missing.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use flate2::read::GzDecoder;
use libtest_mimic::{Arguments, Failed, Trial};
use tar::Archive;

/// The emulator from Debian's package qemu-user-static.
const EMULATOR: &str = "/usr/bin/qemu-aarch64-static";

fn main() -> ExitCode {
    let programs = ["signpost-agent", "signpost-operator"];
    let trials = programs.map(|program| {
        let name = format!("{program}_runs_on_arm64");
        let archive = archive(program);
        if !archive.exists() || !Path::new(EMULATOR).exists() {
            println!(
                "SKIPPED: {program} on arm64: it takes {} (make image ARCHS=arm64) and {EMULATOR}",
                archive.display()
            );
            return Trial::test(format!("SKIPPED_{name}"), || Ok(())).with_ignored_flag(true);
        }
        Trial::test(name, move || {
            run(program, &archive).map_err(|error| Failed::from(format!("{error:#}")))
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
}

fn archive(program: &str) -> PathBuf {
    let version = env!("CARGO_PKG_VERSION");
    let file = format!("../dist/{program}-{version}-linux-arm64.tar");
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// Extracts the program from the image and runs it with `--version`; the agent also computes what
/// it would program.
fn run(program: &str, archive: &Path) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join(program);
    fs::write(&file, find(program, &fs::read(archive)?)?)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    let run = |arguments: &[&str]| -> Result<String> {
        let output = Command::new(EMULATOR).arg(&file).args(arguments).output();
        let output = output.context("the emulator runs")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{arguments:?}: {said}");
        Ok(String::from_utf8(output.stdout)?)
    };
    let version = run(&["--version"])?;
    let expected = format!("{program} {}\n", env!("CARGO_PKG_VERSION"));
    ensure!(version == expected, "it says {version:?}");
    if program == "signpost-agent" {
        let manifests = folder.path().join("manifests");
        fs::create_dir(&manifests)?;
        fs::write(manifests.join("service.json"), SERVICE)?;
        let manifests = manifests.to_str().context("a path of text")?;
        let rules = run(&["render", "--manifests", manifests, "--node", "n1"])?;
        ensure!(rules.contains("10.96.0.10"), "it renders {rules}");
    }
    Ok(())
}

const SERVICE: &str = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
    "spec": {"clusterIPs": ["10.96.0.10"], "ports": [{"port": 80}]}}"#;

/// Returns the program from the layer of an image.
fn find(program: &str, archive: &[u8]) -> Result<Vec<u8>> {
    let mut archive = Archive::new(archive);
    for blob in archive.entries()? {
        let mut content = Vec::new();
        blob?.read_to_end(&mut content)?;
        // The layer is the only compressed blob.
        if !content.starts_with(&[0x1f, 0x8b]) {
            continue;
        }
        let mut layer = Archive::new(GzDecoder::new(content.as_slice()));
        for entry in layer.entries()? {
            let mut entry = entry?;
            if entry.path()?.ends_with(program) {
                let mut content = Vec::new();
                entry.read_to_end(&mut content)?;
                return Ok(content);
            }
        }
    }
    bail!("no layer has {program}")
}
