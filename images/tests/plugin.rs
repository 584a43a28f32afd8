//! The archive of `kubectl signpost` and its manifest, as krew reads them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Command;

use flate2::read::GzDecoder;
use serde_json::Value;
use tar::Archive;

const PROGRAM: &[u8] = b"\x7fELF a program";

/// Runs `write-plugin`; returns the bytes of the archive for arm64, its name, and the manifest.
fn written(epoch: &str) -> (Vec<u8>, String, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("program"), PROGRAM).expect("a file");
    let license = Path::new(env!("CARGO_MANIFEST_DIR")).join("../LICENSE");
    let output = Command::new(env!("CARGO_BIN_EXE_write-plugin"))
        .args(["--program=arm64=program", "--program=amd64=program"])
        .args(["--output", "dist", "--license"])
        .arg(license)
        .env("SOURCE_DATE_EPOCH", epoch)
        .current_dir(folder.path())
        .output()
        .expect("it can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let lines = String::from_utf8(output.stdout).expect("text");
    let paths: Vec<&str> = lines.lines().collect();
    let &[_, archive, "dist/signpost.yaml"] = paths.as_slice() else {
        panic!("{lines}")
    };
    let manifest = fs::read_to_string(folder.path().join("dist/signpost.yaml"));
    let manifest = serde_saphyr::from_str(&manifest.expect("a manifest")).expect("YAML");
    let bytes = fs::read(folder.path().join(archive)).expect("an archive");
    (bytes, archive.replace("dist/", ""), manifest)
}

/// Returns the mode and content of the files in an archive, by path.
fn files(archive: &[u8]) -> BTreeMap<String, (u32, Vec<u8>)> {
    let mut archive = Archive::new(GzDecoder::new(archive));
    let entries = archive.entries().expect("a tar");
    let files = entries.map(|entry| {
        let mut entry = entry.expect("an entry");
        let path = entry.path().expect("a path").display().to_string();
        let mode = entry.header().mode().expect("a mode");
        let mut content = Vec::new();
        entry.read_to_end(&mut content).expect("its content");
        (path, (mode, content))
    });
    files.collect()
}

#[test]
fn the_archive_holds_the_program_and_the_licence() {
    let (archive, name, _) = written("1767225600");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        name,
        format!("kubectl-signpost-{version}-linux-arm64.tar.gz")
    );
    let files = files(&archive);
    let paths: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(paths, ["LICENSE", "kubectl-signpost"]);
    assert_eq!(files["kubectl-signpost"], (0o755, PROGRAM.to_vec()));
    assert_eq!(files["LICENSE"].0, 0o644);
}

#[test]
fn the_same_program_makes_the_same_archive() {
    assert!(written("1767225600").0 == written("1767225600").0);
    assert!(written("1767225600").0 != written("0").0);
}

/// The rules are those of `ValidatePlugin` in krew's internal/index/validation.
#[test]
fn krew_accepts_the_manifest_and_finds_the_archive_it_names() {
    let (archive, name, manifest) = written("0");
    assert_eq!(
        manifest["apiVersion"],
        "krew.googlecontainertools.github.com/v1alpha2"
    );
    assert_eq!(manifest["kind"], "Plugin");
    // krew requires the name to match the file name.
    assert_eq!(manifest["metadata"]["name"], "signpost");
    let spec = &manifest["spec"];
    let version = format!("v{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(spec["version"], version.as_str());
    let short = spec["shortDescription"].as_str().expect("a sentence");
    assert!((1..=50).contains(&short.len()) && !short.contains('\n'));
    let described = spec["description"].as_str().expect("a text");
    assert!(described.lines().all(|line| line.len() <= 80));
    assert!(
        spec["homepage"]
            .as_str()
            .is_some_and(|address| address.starts_with("https://"))
    );

    let platforms = spec["platforms"].as_array().expect("platforms");
    let [amd64, platform] = platforms.as_slice() else {
        panic!("{platforms:?}")
    };
    assert_eq!(amd64["selector"]["matchLabels"]["arch"], "amd64");
    let labels = serde_json::json!({"matchLabels": {"os": "linux", "arch": "arm64"}});
    assert_eq!(platform["selector"], labels);
    let address = platform["uri"].as_str().expect("an address");
    assert!(
        address.ends_with(&format!("/{version}/{name}")),
        "{address}"
    );
    let sha256 = platform["sha256"].as_str().expect("a digest");
    assert_eq!(format!("sha256:{sha256}"), images::digest(&archive));
    // Without `files`, krew unpacks all of the archive.
    let program = platform["bin"].as_str().expect("a program");
    assert!(files(&archive).contains_key(program), "{program}");
    assert!(platform.get("files").is_none());
}
