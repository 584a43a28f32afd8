//! Checks that nothing in the tree depends on the machine on which it was written.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{expect_none, metadata};

/// Folders in which any machine may have a checkout; naming them reveals nothing about this
/// machine.
const EVERYWHERE: [&str; 5] = ["/", "/tmp", "/opt", "/srv", "/usr/src"];

/// Returns folders, with a trailing slash, that are specific to this machine or user.
fn private_folders(root: &Path, home: Option<&Path>) -> Vec<String> {
    let beside = root.parent();
    let own = [beside, home].into_iter().flatten();
    let own = own.filter(|folder| !EVERYWHERE.iter().any(|known| *folder == Path::new(known)));
    let own = own.map(|folder| format!("{}/", folder.display()));
    own.chain(["home", "Users"].map(|people| format!("/{people}/")))
        .collect()
}

/// Whether `line` contains a path in `folder` that is not the end of another path.
fn names(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-}~".contains(c))
    })
}

pub(crate) fn text_files(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).expect("the tree can be listed") {
        let path = entry.expect("the tree can be listed").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if matches!(&*name, "target" | ".git" | ".cache") || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            text_files(&path, found);
        } else if let Ok(text) = fs::read_to_string(&path) {
            // Skip files that are not text.
            found.push((path, text));
        }
    }
}

#[test]
fn no_file_names_a_folder_of_this_machine() {
    let root = metadata().workspace_root;
    let home = std::env::home_dir();
    let folders = private_folders(&root, home.as_deref());
    let mut files = Vec::new();
    text_files(&root, &mut files);
    let mut found = Vec::new();
    for (path, text) in files {
        for (number, line) in text.lines().enumerate() {
            if folders.iter().any(|folder| names(line, folder)) {
                found.push(format!("{}:{}: {line}", path.display(), number + 1));
            }
        }
    }
    expect_none("paths of this machine", &found);
}

#[test]
fn a_folder_of_this_machine_is_recognised() {
    let folders = private_folders(Path::new("/data/signpost"), Some(Path::new("/opt")));
    let home = ["/", "home", "/"].concat();
    assert_eq!(folders[..2], ["/data/".to_owned(), home]);
    assert!(names("open(\"/data/signpost/x\")", &folders[0]));
    assert!(names("/data/signpost", &folders[0]));
    assert!(!names("the folder crates/data/signpost", &folders[0]));
    assert!(!names("${ROOT}/data/x", &folders[0]));
}
