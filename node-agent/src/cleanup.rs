//! `cleanup`: after it, nothing of ours is in this network namespace, nor in the state directory.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context;
use backend::Backend;

use crate::arguments::Cleanup;
use crate::kept_file::KeptFile;
use crate::mechanism::{Variants, lock_at, open_unheard};
use crate::metrics::lock_waits;
use crate::{duty, handover, last_good};

/// Removes our tables and chains, and what agents keep in the state directory; returns what to tell
/// the person. What is not there any more, or never was, is no failure.
pub(crate) fn commit_removal(arguments: &Cleanup) -> anyhow::Result<String> {
    let state = &arguments.state;
    let (variants, _) = Variants::new(lock_at(&arguments.xtables_lock), lock_waits());
    for mut family in open_unheard(variants)? {
        family.commit_removal().map(drop)?;
    }
    remove_kept(state)?;
    let state = state.display();
    Ok(format!(
        "nothing of Signpost is left in this network namespace, nor in {state}\n"
    ))
}

fn remove_kept(state: &Path) -> anyhow::Result<()> {
    for name in [last_good::FILE, duty::FILE] {
        KeptFile::within(state, name).commit_removal()?;
    }
    let socket = state.join(handover::SOCKET);
    match fs::remove_file(&socket) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        removed => removed.with_context(|| format!("failed to remove {}", socket.display()))?,
    }
    match fs::remove_dir(state) {
        // Somebody else's files, or a container's mount, are not for us to remove.
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
    fn what_was_kept_goes_and_what_is_not_ours_stays() {
        let above = tempfile::tempdir().expect("a directory");
        let state = above.path().join("state");
        remove_kept(&state).expect("nothing is there");
        fs::create_dir(&state).expect("it is made");
        let ours = [last_good::FILE, duty::FILE, handover::SOCKET];
        for name in ours.into_iter().chain(["somebody-elses"]) {
            fs::write(state.join(name), "").expect("it is written");
        }
        remove_kept(&state).expect("ours can be removed");
        let left = fs::read_dir(&state).expect("it is still there").flatten();
        let left: Vec<_> = left.map(|file| file.file_name()).collect();
        assert_eq!(left, ["somebody-elses"]);
        fs::remove_file(state.join("somebody-elses")).expect("it goes");
        remove_kept(&state).expect("it is empty");
        assert!(!state.exists());
    }
}
