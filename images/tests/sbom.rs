//! The documents that `write-sbom` writes about this repository's programs.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use images::{Metadata, Subject, sbom};
use jiff::Timestamp;
use serde_json::Value;

/// Returns the names of the components in the program of `package`.
fn components(package: &str) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version=1"])
        .arg("--filter-platform=x86_64-unknown-linux-gnu")
        .current_dir(root)
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let metadata: Metadata = serde_json::from_slice(&output.stdout).expect("metadata");
    let subject = Subject {
        program: "program".to_owned(),
        package: package.to_owned(),
        created: Timestamp::UNIX_EPOCH,
        rust: "1.0.0".to_owned(),
        glibc: "2.36".to_owned(),
    };
    let document = sbom(&metadata, &subject).expect("a document");
    assert_eq!(document["bomFormat"], "CycloneDX");
    assert_eq!(document["metadata"]["timestamp"], "1970-01-01T00:00:00Z");
    let components = document["components"].as_array().expect("components");
    for component in components {
        assert!(component["version"].is_string(), "{component}");
        let licenses = component["licenses"].as_array().expect("licences");
        assert!(!licenses.is_empty(), "{component}");
        let is_own = component["purl"] == Value::Null;
        let name = component["name"].as_str().expect("a name");
        let purl = format!(
            "pkg:cargo/{name}@{}",
            component["version"].as_str().unwrap_or_default()
        );
        assert!(is_own || component["purl"] == purl.as_str(), "{component}");
    }
    let names = components.iter().filter_map(|c| c["name"].as_str());
    names.map(str::to_owned).collect()
}

#[test]
fn what_is_linked_is_listed_and_what_only_tests_use_is_not() {
    let agent = components("node-agent");
    for linked in ["netlink", "rustls", "ring", "glibc", "rust-std"] {
        assert!(agent.contains(linked), "{linked}: {agent:?}");
    }
    for absent in ["node-agent", "proptest", "operator", "testkit"] {
        assert!(!agent.contains(absent), "{absent}");
    }
    assert!(!components("operator").contains("netlink"));
}
