//! A directory of manifests as a source: the embedded mode, without a cluster.
//!
//! ```text
//! Directory::observe --Look per file--> Library::take_in --changes only--> Delivery
//!   (reads what changed)                 parse, keep the last good, merge, resolve profiles
//! ```

mod directory;
mod document;
mod line;
mod manifest_store;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use dataplane::ObjectName;
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use runtime::{CancellationToken, chain, run_blocking};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{info, warn};

use crate::{Delivery, EngineGone, SourceCondition, deliver};
use directory::Directory;
use manifest_store::ManifestStore;

/// How often the directory is scanned without a notification: some file systems (network, overlay,
/// a volume of a virtual machine) send none, and neither do files behind a link. Costs a `stat` for
/// each file.
const POLL: Duration = Duration::from_secs(2);
/// A series of changes is over after this long without one: the steps of truncating, writing and
/// renaming a file are microseconds apart.
const QUIET: Duration = Duration::from_millis(10);
/// Changes that never stop are read after this time.
const PATIENCE: Duration = Duration::from_millis(200);

/// A manifest, or a part of one, that is not used as written. Its last valid content is served
/// instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableManifest {
    /// The file, relative to the directory.
    pub file: PathBuf,
    /// The line in it, counted from one, if it is known.
    pub line: Option<u64>,
    /// The object concerned; absent if it is the whole file.
    pub object: Option<ObjectName>,
    /// The error, and the path of the field if it concerns one field.
    pub message: String,
}

/// Reads everything in `directory` once, for the node called `node`: lists of every kind, its
/// configuration, and what is not used as written.
///
/// # Errors
///
/// Fails if the directory itself cannot be read. Files that cannot be read are returned as
/// unreadable.
pub fn load(directory: &Path, node: &str) -> io::Result<(Vec<Delivery>, Vec<UnreadableManifest>)> {
    let files = Directory::new(directory.to_owned()).observe()?;
    let mut manifest_store = ManifestStore::new(node.to_owned());
    let deliveries = manifest_store.take_in(files);
    Ok((deliveries, manifest_store.unreadable()))
}

/// Delivers the content of the manifests in `directory` for the node called `node`, and then every
/// change, until `stop`.
///
/// Every kind starts with a list; after that only changed objects are delivered. While the
/// directory itself cannot be read, the condition is stale and everything stays as it was.
///
/// # Errors
///
/// Fails only if the engine has ended.
pub async fn watch(
    directory: PathBuf,
    node: String,
    deliveries: mpsc::Sender<Delivery>,
    stop: CancellationToken,
) -> Result<(), EngineGone> {
    let (ring, mut bell) = mpsc::channel(1);
    let mut state = State {
        notifier: Notifier::new(directory.clone(), ring),
        directory: Directory::new(directory),
        manifest_store: ManifestStore::new(node),
        reported: None,
        freshness: Freshness::Unknown,
    };
    let mut checked = SystemTime::now();
    loop {
        let looked = SystemTime::now();
        let reading = run_blocking(move || {
            let read = state.observe();
            (state, read)
        });
        let read;
        (state, read) = reading.await;
        for delivery in state.settle(read, checked) {
            deliver(&deliveries, delivery).await?;
        }
        if state.freshness == Freshness::Fresh {
            checked = looked;
        }
        // Both arms are cancel safe; a notification that arrives while no task waits is kept.
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            () = next_change(&mut bell) => {}
        }
    }
}

/// Returns after a series of changes has ended, or when the periodic scan is due.
async fn next_change(bell: &mut mpsc::Receiver<()>) {
    tokio::select! {
        () = sleep(POLL) => return,
        // The notifier keeps a sender, so this never ends early.
        _ = bell.recv() => {}
    }
    let latest = Instant::now() + PATIENCE;
    loop {
        let quiet = (Instant::now() + QUIET).min(latest);
        if timeout_at(quiet, bell.recv()).await.is_err() {
            return;
        }
    }
}

/// The state that is kept between two scans.
#[derive(Debug)]
struct State {
    notifier: Notifier,
    directory: Directory,
    manifest_store: ManifestStore,
    /// The last report of manifests with errors.
    reported: Option<Vec<UnreadableManifest>>,
    freshness: Freshness,
}

/// Whether the directory could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Freshness {
    Unknown,
    Fresh,
    Stale(String),
}

// === impl State ===

impl State {
    /// Returns what changed since the last scan.
    fn observe(&mut self) -> io::Result<Vec<Delivery>> {
        // Before reading, so that no change in between is missed.
        self.notifier.watch();
        let files = self.directory.observe()?;
        let mut deliveries = self.manifest_store.take_in(files);
        let unreadable = self.manifest_store.unreadable();
        if self.reported.as_ref() != Some(&unreadable) {
            let before = self.reported.take().unwrap_or_default();
            for manifest in unreadable.iter().filter(|entry| !before.contains(entry)) {
                warn!(%manifest, "a manifest has an error");
            }
            self.reported = Some(unreadable.clone());
            deliveries.push(Delivery::Condition(SourceCondition::Manifests(unreadable)));
        }
        Ok(deliveries)
    }

    /// Adds the condition if it changed. `checked` is when the directory was last read.
    fn settle(&mut self, read: io::Result<Vec<Delivery>>, checked: SystemTime) -> Vec<Delivery> {
        let (mut deliveries, freshness) = match read {
            Ok(deliveries) => (deliveries, Freshness::Fresh),
            Err(error) => {
                let message = format!("the directory cannot be read: {}", chain(&error));
                (Vec::new(), Freshness::Stale(message))
            }
        };
        if self.freshness != freshness {
            let condition = match &freshness {
                Freshness::Stale(message) => {
                    warn!(
                        reason = message,
                        "unable to read the manifests: serving those last read"
                    );
                    SourceCondition::Stale {
                        since: checked,
                        message: message.clone(),
                    }
                }
                Freshness::Unknown | Freshness::Fresh => {
                    info!("watching the directory of manifests");
                    SourceCondition::Fresh
                }
            };
            deliveries.push(Delivery::Condition(condition));
            self.freshness = freshness;
        }
        deliveries
    }
}

/// Sends on `ring` when something in the directory changes, if the file system sends notifications.
#[derive(Debug)]
struct Notifier {
    directory: PathBuf,
    ring: mpsc::Sender<()>,
    watcher: Option<RecommendedWatcher>,
    /// The directory that is watched: another one may be moved into its place.
    watched: Option<directory::Identity>,
}

// === impl Notifier ===

impl Notifier {
    fn new(directory: PathBuf, ring: mpsc::Sender<()>) -> Notifier {
        Notifier {
            directory,
            ring,
            watcher: None,
            watched: None,
        }
    }

    /// Watches the directory that exists now, unless it is watched already.
    fn watch(&mut self) {
        let there = directory::identify(&self.directory);
        if there == self.watched {
            return;
        }
        self.watched = there;
        self.watcher = None;
        if there.is_none() {
            return;
        }
        let ring = self.ring.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // The scan's own reads are events, too.
            if !event.is_ok_and(|event| event.kind.is_access()) {
                // Full: a notification is already pending.
                let _ = ring.try_send(());
            }
        });
        let watching = watcher.and_then(|mut watcher| {
            watcher.watch(&self.directory, RecursiveMode::Recursive)?;
            Ok(watcher)
        });
        match watching {
            Ok(watcher) => self.watcher = Some(watcher),
            Err(error) => warn!(
                error = %chain(&error),
                "unable to receive notifications of changes: scanning the directory every {} s",
                POLL.as_secs()
            ),
        }
    }
}

// === impl UnreadableManifest ===

impl fmt::Display for UnreadableManifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(object) = &self.object {
            write!(f, ": {object}")?;
        }
        write!(f, ": {}", self.message)
    }
}
