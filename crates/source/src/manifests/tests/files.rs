//! What a directory may contain other than regular files.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::super::directory::LARGEST;
use super::*;

fn make_fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
}

/// The messages about a directory, without its path.
fn said(directory: &TempDir) -> Vec<String> {
    let start = std::time::Instant::now();
    let (seen, said) = loaded(directory);
    assert!(start.elapsed() < DEADLINE, "{:?}", start.elapsed());
    assert_eq!(seen.services(), "a:80", "the good one beside them");
    said
}

#[tokio::test]
async fn t89_a_fifo_among_manifests_is_named_until_it_goes_and_stops_nothing() {
    let directory = directory();
    write(&directory, "a.yaml", &service("a", "80"));
    let fifo = directory.path().join("fifo.yaml");
    make_fifo(&fifo);
    let mut watched = Watched::start(directory.path());
    watched.until_synced().await;
    assert_eq!(watched.seen.services(), "a:80");
    let named = "fifo.yaml: is a FIFO; only regular files are read";
    assert_eq!(watched.seen.unreadable(), [named]);

    write(&directory, "a.yaml", &service("a", "81"));
    watched.until_services("a:81").await;
    fs::remove_file(&fifo).expect("it was there");
    watched
        .until("it is not named any more", |seen| {
            seen.unreadable().is_empty()
        })
        .await;

    // In place of a file that was read before: its content stays in force.
    let file = directory.path().join("a.yaml");
    let beside = directory.path().join(".new");
    make_fifo(&beside);
    fs::rename(&beside, &file).expect("it takes its place");
    watched
        .until("it is named", |seen| !seen.unreadable().is_empty())
        .await;
    assert_eq!(watched.seen.services(), "a:81");
    fs::remove_file(&file).expect("it was there");
    watched.until_services("").await;
    watched
        .until("it is not named any more", |seen| {
            seen.unreadable().is_empty()
        })
        .await;
}

#[test]
fn t89_what_is_no_regular_file_is_named_and_not_opened() {
    let directory = directory();
    write(&directory, "a.yaml", &service("a", "80"));
    let path = |name: &str| directory.path().join(name);
    make_fifo(&path("fifo.yaml"));
    symlink("fifo.yaml", path("fifo-link.yaml")).expect("a link");
    symlink("/dev/zero", path("endless.yaml")).expect("a link");
    symlink("/dev/tty", path("terminal.json")).expect("a link");
    let _socket = UnixListener::bind(path("socket.yml")).expect("a socket");
    // These are not manifests.
    make_fifo(&path("fifo"));
    symlink("/dev/zero", path("zero.txt")).expect("a link");
    let expected = [
        "endless.yaml: is a device; only regular files are read",
        "fifo-link.yaml: is a FIFO; only regular files are read",
        "fifo.yaml: is a FIFO; only regular files are read",
        "socket.yml: is a socket; only regular files are read",
        "terminal.json: is a device; only regular files are read",
    ];
    assert_eq!(said(&directory), expected);
}

/// Failure story T466: these links have a path for each order of the directories.
#[test]
fn t466_directories_that_link_to_one_another_are_read_once() {
    let directory = directory();
    let names: Vec<String> = (1..=12).map(|number| format!("d{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        let object = service(name, "80");
        write(&directory, &format!("{name}/a.yaml"), &object);
        let others = names
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != number);
        for (_, other) in others {
            let link = directory.path().join(name).join(format!("to-{other}"));
            symlink(format!("../{other}"), link).expect("a link");
        }
    }
    let (seen, unreadable) = loaded(&directory);
    assert_eq!(seen.services().split(' ').count(), names.len());
    assert_eq!(unreadable, [""; 0]);
}

/// Failure story T465: an editor, or a template, drops the line with the version.
#[tokio::test]
async fn t465_an_object_that_does_not_say_what_it_is_stays_as_it_was() {
    let directory = directory();
    let both = |port| [service("a", port), service("b", "81")].join("---\n");
    write(&directory, "all.yaml", &both("80"));
    let mut watched = Watched::start(directory.path());
    watched.until_synced().await;
    assert_eq!(watched.seen.services(), "a:80 b:81");
    let (first, second) = (service("a", "82"), service("b", "83"));
    let second = second.replace("apiVersion: v1\n", "");
    write(&directory, "all.yaml", &[first, second].join("---\n"));
    watched.until_services("a:82 b:81").await;
    let named = |seen: &Seen| {
        seen.unreadable()
            .iter()
            .any(|text| text.contains("apiVersion"))
    };
    watched.until("it is named", named).await;
    write(&directory, "all.yaml", &service("a", "84"));
    watched.until_services("a:84").await;
}

#[test]
fn t89_a_directory_called_like_a_manifest_is_a_directory() {
    let directory = directory();
    write(&directory, "x.yaml/y.yaml/a.yaml", &service("a", "80"));
    assert_eq!(said(&directory), [""; 0]);
}

/// Kubernetes mounts a ConfigMap as links to links.
#[test]
fn links_to_regular_files_are_read() {
    let directory = directory();
    write(&directory, "..2026/a.yaml", &service("a", "80"));
    let path = |name: &str| directory.path().join(name);
    symlink("..2026", path("..data")).expect("a link");
    symlink("..data/a.yaml", path("a.yaml")).expect("a link");
    assert_eq!(said(&directory), [""; 0]);
}

#[test]
fn t89_a_file_that_is_too_large_is_named_and_not_read() {
    let directory = directory();
    write(&directory, "a.yaml", &service("a", "80"));
    let large = fs::File::create(directory.path().join("large.yaml")).expect("a file");
    large.set_len(LARGEST + 1).expect("it has holes");
    let named = "large.yaml: is larger than 64 MiB, and is not read";
    assert_eq!(said(&directory), [named]);
}

/// Its size is 0, and reading it would wait for the kernel's next message.
#[test]
fn t89_a_file_whose_end_never_comes_is_not_waited_for() {
    let kernel_log = PathBuf::from("/proc/kmsg");
    let directory = directory();
    write(&directory, "a.yaml", &service("a", "80"));
    symlink(kernel_log, directory.path().join("log.yaml")).expect("a link");
    let said = said(&directory);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("log.yaml: "), "{said:?}");
}
