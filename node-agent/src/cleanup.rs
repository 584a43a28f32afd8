//! `cleanup`: removes Signpost's rules from this network namespace, and the agent's files from the
//! state directory.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use agent_metrics::lock_waits;
use anyhow::Context;
use modes::{Variants, lock_at, open_without_listener};
use reconciler::SystemClock;
use runtime::KeptFile;
use source::{last_good, last_node};

use crate::arguments::Cleanup;

/// Removes Signpost's tables and chains, and the agent's files in the state directory. Returns the
/// text to print. Succeeds if there is nothing to remove.
pub(crate) fn commit_removal(arguments: &Cleanup) -> anyhow::Result<String> {
    let state = &arguments.state;
    let (variants, _) = Variants::new(lock_at(&arguments.xtables_lock), lock_waits());
    for mut family in open_without_listener(variants)?.reconcilers {
        family.commit_removal(&SystemClock).map(drop)?;
    }
    remove_kept(state)?;
    let state = state.display();
    Ok(format!(
        "no rules of Signpost are left in this network namespace, and no files of the agent in {state}\n"
    ))
}

fn remove_kept(state: &Path) -> anyhow::Result<()> {
    for name in [last_good::FILE, last_node::FILE, handover::HANDBACK_FILE] {
        KeptFile::within(state, name).commit_removal()?;
    }
    let socket = state.join(handover::SOCKET);
    match fs::remove_file(&socket) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        removed => removed.with_context(|| format!("failed to remove {}", socket.display()))?,
    }
    match fs::remove_dir(state) {
        // Files of other programs stay, and so does a container's mount.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty | ErrorKind::ResourceBusy
            ) =>
        {
            Ok(())
        }
        removed => removed.with_context(|| format!("failed to remove {}", state.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_files_are_removed_and_other_files_stay() {
        let above = tempfile::tempdir().expect("a directory");
        let state = above.path().join("state");
        remove_kept(&state).expect("nothing is there");
        fs::create_dir(&state).expect("it is made");
        let files = [
            last_good::FILE,
            last_node::FILE,
            handover::HANDBACK_FILE,
            handover::SOCKET,
        ];
        for name in files.into_iter().chain(["of-another-program"]) {
            fs::write(state.join(name), "").expect("it is written");
        }
        remove_kept(&state).expect("the agent's files can be removed");
        let left = fs::read_dir(&state).expect("it is still there").flatten();
        let left: Vec<_> = left.map(|file| file.file_name()).collect();
        assert_eq!(left, ["of-another-program"]);
        fs::remove_file(state.join("of-another-program")).expect("it goes");
        remove_kept(&state).expect("it is empty");
        assert!(!state.exists());
    }
}
