//! `write-image` run from the command line.

use std::fs::{self, FileTimes, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use images::{Reference, User};
use tempfile::TempDir;

use crate::opened::Opened;

const NAME: &str = "registry.example/program:1";

/// Creates a folder with a program and a file of settings.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, mode) in [("program", 0o700), ("settings", 0o600)] {
        let path = folder.path().join(name);
        fs::write(&path, name).expect("a file");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
    }
    folder
}

fn write_image(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_write-image"));
    command.env_remove("SOURCE_DATE_EPOCH").current_dir(folder);
    command.args(["--reference", NAME, "--entrypoint", "/program"]);
    command.args(["--user", "0:0", "--output", "new/image.tar"]);
    command.args(arguments).output().expect("it can be run")
}

#[track_caller]
fn written(output: &Output, folder: &Path) -> Vec<u8> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    fs::read(folder.join("new/image.tar")).expect("an archive")
}

#[track_caller]
fn refused(arguments: &[&str]) -> String {
    let folder = folder();
    let output = write_image(folder.path(), arguments);
    assert!(!output.status.success());
    assert!(!folder.path().join("new/image.tar").exists());
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn one_line_says_where_it_is_how_large_what_it_is_called_and_its_digest() {
    let folder = folder();
    let output = write_image(folder.path(), &["--file=program=/program"]);
    let opened = Opened::new(&written(&output, folder.path()));
    let digest = opened.index.manifests()[0].digest();
    let line = String::from_utf8(output.stdout).expect("text");
    assert_eq!(line, format!("new/image.tar  0.0 MB  {NAME}  {digest}\n"));
    let beside = fs::read_dir(folder.path().join("new")).expect("a folder");
    assert_eq!(beside.count(), 1, "something else is left");
}

#[test]
fn a_file_has_the_mode_that_is_given_or_one_for_what_it_is() {
    let folder = folder();
    let files = ["program=/a", "settings=/b", "settings=/c:0400"];
    let files = files.map(|file| format!("--file={file}"));
    let output = write_image(folder.path(), &files.each_ref().map(String::as_str));
    let opened = Opened::new(&written(&output, folder.path()));
    let modes: Vec<u32> = opened.files().map(|file| file.mode).collect();
    assert_eq!(modes, [0o755, 0o644, 0o400]);
}

#[test]
fn neither_when_nor_where_files_were_written_changes_a_byte() {
    let archive = |age: u64| {
        let folder = folder();
        let file = OpenOptions::new();
        let file = file.clone().write(true).open(folder.path().join("program"));
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(age);
        let dated = file.and_then(|file| file.set_times(FileTimes::new().set_modified(then)));
        dated.expect("a time");
        let output = write_image(folder.path(), &["--file=program=/program"]);
        written(&output, folder.path())
    };
    assert!(archive(1) == archive(1_000_000_000));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let said = refused(&["--file=program=/program", "--file=missing=/missing"]);
    assert!(
        said.starts_with("write-image: failed to read missing: No such file"),
        "{said}"
    );
}

#[test]
fn what_is_too_large_is_not_written() {
    let said = refused(&["--file=program=/program", "--max-size=6B"]);
    assert_eq!(
        said,
        format!("write-image: {NAME} takes 7 bytes unpacked, 1 more than it may\n")
    );
}

#[test]
fn what_is_given_twice_is_refused() {
    let said = refused(&["--file=program=/program", "--file=settings=/program"]);
    assert_eq!(said, "write-image: there are two files /program\n");
    for (one, other) in [("/program", "/program/a"), ("/program/a", "/program")] {
        let files = [
            format!("--file=program={one}"),
            format!("--file=settings={other}"),
        ];
        let said = refused(&files.each_ref().map(String::as_str));
        let expected = "write-image: /program is a file, and /program/a would be in it\n";
        assert_eq!(said, expected);
    }
    let said = refused(&["--file=program=/program", "--label=a=1", "--label=a=2"]);
    assert_eq!(said, "write-image: --label a is given twice\n");
}

#[test]
fn an_argument_that_makes_no_sense_is_named() {
    let long = format!("--file=program={}", "/a".repeat(51));
    for (argument, reason) in [
        ("--file=program", "an absolute path"),
        ("--file=program=/", "has to be a name"),
        ("--file=program=/a/", "has to be a name"),
        ("--file=program=/a//b", "has to be a name"),
        ("--file=program=/a/../b", "has to be a name"),
        (&long, "longer than 100"),
        ("--file=program=/a:rwx", "four octal digits"),
        ("--label=title", "an equals sign"),
        ("--created=yesterday", "seconds since 1970"),
        ("--created=-1", "seconds since 1970"),
        ("--max-size=30", "such as 30MB"),
        ("--max-size=MB", "such as 30MB"),
        ("--max-size=1.5MB", "such as 30MB"),
        ("--max-size=99999999999999999MB", "such as 30MB"),
        ("--architecture=s390x", "amd64, arm64"),
    ] {
        let said = refused(&["--file=program=/program", argument]);
        assert!(said.contains(reason), "{argument}: {said}");
    }
}

#[test]
fn what_is_no_user_in_numbers_and_no_full_name_is_refused_with_the_reason() {
    for user in ["", "root", "0", "root:root", "-1:0"] {
        let error = user.parse::<User>().expect_err("no user");
        assert!(error.contains("such as 65532:65532"), "{error}");
    }
    for (name, reason) in [
        ("agent", "no tag"),
        ("agent:1", "no registry"),
        ("signpost/agent:1", "begin with a registry"),
        ("ghcr.io/Signpost/agent:1", "lower-case"),
        ("ghcr.io//agent:1", "lower-case"),
        ("ghcr.io/agent:", "its tag"),
        ("ghcr.io/agent:a b", "its tag"),
        ("localhost:5000/agent", "no registry"),
    ] {
        let error = name.parse::<Reference>().expect_err("no name");
        assert!(error.contains(reason), "{name}: {error}");
    }
    let name: Reference = "localhost:5000/agent:dev".parse().expect("a name");
    assert_eq!(
        (name.tag(), name.to_string().as_str()),
        ("dev", "localhost:5000/agent:dev")
    );
}
