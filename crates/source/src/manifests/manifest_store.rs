//! The objects of all files together, and what changed in them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use catalog::{Change, Event, ObjectKey, object};
use crds::{NodeFacts, ProxyProfile, resolve};
use dataplane::{ObjectKind, ObjectName};
use tracing::debug;

use super::UnreadableManifest;
use super::directory::FileCheck;
use super::document::{Entry, Fault, Format, Manifest, parse};
use crate::{Assignment, Delivery};

/// The kinds in the order in which they are delivered: a Service before its endpoints.
const LISTED: [ObjectKind; 4] = [
    ObjectKind::Node,
    ObjectKind::ServiceCidr,
    ObjectKind::Service,
    ObjectKind::EndpointSlice,
];

/// The maximum length of a message in characters: a few lines of a terminal.
const LONGEST_MESSAGE: usize = 500;

/// The objects of every file, and what was delivered of them.
#[derive(Debug)]
pub(super) struct ManifestStore {
    node: String,
    files: BTreeMap<PathBuf, ManifestFile>,
    served: Served,
    assignment: Option<Assignment>,
    load_state: LoadState,
    duplicates: Vec<UnreadableManifest>,
}

/// The objects by name, over all files.
type Served = BTreeMap<ObjectName, Arc<Manifest>>;

/// The objects of one file, or their last valid versions.
#[derive(Debug, Default)]
struct ManifestFile {
    volumes: Vec<ManifestObject>,
    faults: Vec<Fault>,
}

/// One object of a file.
#[derive(Debug, Clone)]
struct ManifestObject {
    name: ObjectName,
    line: Option<u64>,
    manifest: Arc<Manifest>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoadState {
    Nothing,
    Everything,
}

// === impl ManifestStore ===

impl ManifestStore {
    /// An empty store for the node called `node`.
    pub(super) fn new(node: String) -> ManifestStore {
        ManifestStore {
            node,
            files: BTreeMap::new(),
            served: Served::new(),
            assignment: None,
            load_state: LoadState::Nothing,
            duplicates: Vec::new(),
        }
    }

    /// Takes the results of a scan of all files, in the order of their paths, and returns what is
    /// new: everything the first time, changes after that.
    pub(super) fn take_in(&mut self, checks: Vec<(PathBuf, FileCheck)>) -> Vec<Delivery> {
        let mut files = BTreeMap::new();
        for (path, check) in checks {
            if matches!(check, FileCheck::Unreadable(_)) {
                // A directory that cannot be read: its files are not visible, but not necessarily
                // deleted.
                let inside = |known: &Path| known.starts_with(&path) && known != path;
                files.extend(self.files.extract_if(.., |known, _| inside(known)));
            }
            // Or moved already, if listing its directory failed after it was seen.
            let before = self.files.remove(&path).or_else(|| files.remove(&path));
            let before = before.unwrap_or_default();
            let manifest_file = before.after(&path, check);
            files.insert(path, manifest_file);
        }
        self.files = files;
        let served = self.merge();
        let first = self.load_state == LoadState::Nothing;
        let mut deliveries = Vec::new();
        let assignment = self.resolve(&served);
        if first || assignment != self.assignment {
            deliveries.push(Delivery::Configuration(assignment.clone()));
        }
        if first {
            list(&served, &mut deliveries);
        } else {
            differ(&self.served, &served, &mut deliveries);
        }
        self.assignment = assignment;
        self.served = served;
        self.load_state = LoadState::Everything;
        deliveries
    }

    /// Everything that is not used as written, file by file.
    pub(super) fn unreadable(&self) -> Vec<UnreadableManifest> {
        let faults = self.files.iter().flat_map(|(path, manifest_file)| {
            manifest_file.faults.iter().map(|fault| UnreadableManifest {
                file: path.clone(),
                line: fault.line,
                object: fault.object.clone(),
                message: shortened(&fault.message),
            })
        });
        let mut all: Vec<UnreadableManifest> =
            faults.chain(self.duplicates.iter().cloned()).collect();
        all.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        all
    }

    /// Selects one object for each name, the first in the order of paths and lines; records the
    /// duplicates.
    fn merge(&mut self) -> Served {
        let mut served = Served::new();
        let mut owners: BTreeMap<&ObjectName, &Path> = BTreeMap::new();
        self.duplicates.clear();
        for (path, manifest_file) in &self.files {
            for volume in &manifest_file.volumes {
                if let Some(owner) = owners.get(&volume.name) {
                    self.duplicates.push(UnreadableManifest {
                        file: path.clone(),
                        line: volume.line,
                        object: Some(volume.name.clone()),
                        message: format!("already in {}, which counts", owner.display()),
                    });
                } else {
                    owners.insert(&volume.name, path);
                    served.insert(volume.name.clone(), Arc::clone(&volume.manifest));
                }
            }
        }
        served
    }

    /// Resolves the profiles to this node's configuration.
    fn resolve(&self, served: &Served) -> Option<Assignment> {
        let profiles: Vec<&ProxyProfile> = served
            .values()
            .filter_map(|manifest| match &**manifest {
                Manifest::Profile(profile) => Some(&**profile),
                _ => None,
            })
            .collect();
        let node = ObjectName {
            kind: ObjectKind::Node,
            namespace: "".into(),
            name: self.node.as_str().into(),
        };
        let labels = match served.get(&node).map(|manifest| &**manifest) {
            Some(Manifest::Node(node)) => node.metadata.labels.clone(),
            _ => BTreeMap::new(),
        };
        let facts = NodeFacts {
            name: self.node.clone(),
            labels: labels.into(),
            current: self
                .assignment
                .as_ref()
                .map(|known| known.spec.clone().into()),
        };
        let resolution = resolve(profiles, &facts);
        let reason = resolution.reason;
        resolution.effective.map(|spec| Assignment {
            generation: None,
            spec: Arc::unwrap_or_clone(spec),
            reason,
            unreadable: Vec::new(),
        })
    }
}

/// Appends a list of every kind.
fn list(served: &Served, deliveries: &mut Vec<Delivery>) {
    for kind in LISTED {
        deliveries.extend(Marker::Begin.about(kind));
        for (_, manifest) in served.iter().filter(|(name, _)| name.kind == kind) {
            deliveries.extend(DeliveryKind::Listed.delivery(manifest));
        }
        deliveries.extend(Marker::End.about(kind));
    }
}

/// Appends the deliveries that turn `before` into `after`. Deletions come last, so that an endpoint
/// that moves to another slice is briefly in both, and never in neither.
fn differ(before: &Served, after: &Served, deliveries: &mut Vec<Delivery>) {
    let same = |name: &ObjectName, manifest: &Arc<Manifest>| {
        before
            .get(name)
            .is_some_and(|known| Arc::ptr_eq(known, manifest) || known == manifest)
    };
    for kind in LISTED {
        for (name, manifest) in after.iter().filter(|(name, _)| name.kind == kind) {
            if !same(name, manifest) {
                deliveries.extend(DeliveryKind::Changed.delivery(manifest));
            }
        }
    }
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        let key = ObjectKey::namespaced(Arc::clone(&name.namespace), Arc::clone(&name.name));
        deliveries.extend(Marker::Gone(key).about(name.kind));
    }
}

/// A delivery without an object.
#[derive(Debug, Clone)]
enum Marker {
    Begin,
    End,
    Gone(ObjectKey),
}

/// How an object is delivered.
#[derive(Debug, Clone, Copy)]
enum DeliveryKind {
    Listed,
    Changed,
}

/// Truncates a message: it repeats the invalid value, which may be a megabyte long.
fn shortened(message: &str) -> String {
    match message.char_indices().nth(LONGEST_MESSAGE) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}

// === impl Marker ===

impl Marker {
    /// Returns the delivery for objects of `kind`; `None` for profiles, which are delivered as a
    /// configuration.
    fn about(&self, kind: ObjectKind) -> Option<Delivery> {
        let change: Change = match kind {
            ObjectKind::Service => self.event::<object::Service>().into(),
            ObjectKind::EndpointSlice => self.event::<object::EndpointSlice>().into(),
            ObjectKind::Node => self.event::<object::Node>().into(),
            ObjectKind::ServiceCidr => self.event::<object::ServiceCidr>().into(),
            ObjectKind::ProxyProfile => return None,
        };
        Some(Delivery::Objects(change))
    }

    fn event<T>(&self) -> Event<T> {
        match self {
            Marker::Begin => Event::Init,
            Marker::End => Event::InitDone,
            Marker::Gone(key) => Event::Delete(key.clone()),
        }
    }
}

// === impl DeliveryKind ===

impl DeliveryKind {
    /// Returns the delivery of `manifest`; `None` for profiles, which are delivered as a
    /// configuration.
    fn delivery(self, manifest: &Manifest) -> Option<Delivery> {
        let change: Change = match manifest {
            Manifest::Service(service) => self.event(&**service).into(),
            Manifest::EndpointSlice(slice) => self.event(slice).into(),
            Manifest::Node(node) => self.event(node).into(),
            Manifest::ServiceCidr(cidr) => self.event(cidr).into(),
            Manifest::Profile(_) => return None,
        };
        Some(Delivery::Objects(change))
    }

    fn event<T: Clone>(self, object: &T) -> Event<T> {
        match self {
            DeliveryKind::Listed => Event::InitApply(object.clone()),
            DeliveryKind::Changed => Event::Apply(object.clone()),
        }
    }
}

// === impl ManifestFile ===

impl ManifestFile {
    /// Returns the file's content after a new scan.
    fn after(self, path: &Path, check: FileCheck) -> ManifestFile {
        let text = match check {
            FileCheck::Same => return self,
            FileCheck::Unreadable(message) => {
                return self.with_fault(Fault {
                    line: None,
                    object: None,
                    message,
                });
            }
            FileCheck::Text(text) => text,
        };
        // A program is probably about to write it: editors and shell redirections empty a file
        // first.
        if text.is_empty() && !self.volumes.is_empty() {
            return self.with_fault(Fault {
                line: None,
                object: None,
                message: "is empty; remove the file to remove its objects".to_owned(),
            });
        }
        let format = match path.extension() {
            Some(extension) if extension == "json" => Format::Json,
            _ => Format::Yaml,
        };
        match parse(&text, format) {
            Ok(entries) => self.with(path, entries),
            Err(fault) => self.with_fault(fault),
        }
    }

    /// Keeps all objects and records `fault`.
    fn with_fault(self, fault: Fault) -> ManifestFile {
        ManifestFile {
            faults: vec![fault],
            ..self
        }
    }

    /// Takes `entries`, and the last valid version of those that are invalid. If it is not known which
    /// object one of these is, as without a kind, all earlier objects stay.
    fn with(self, path: &Path, entries: Vec<Entry>) -> ManifestFile {
        let before: BTreeMap<&ObjectName, &ManifestObject> = self
            .volumes
            .iter()
            .map(|volume| (&volume.name, volume))
            .collect();
        let mut after = ManifestFile::default();
        for entry in entries {
            match entry {
                Entry::Good {
                    name,
                    line,
                    manifest,
                } => {
                    // An unchanged object keeps its allocation, which makes the comparison fast.
                    let manifest = match before.get(&name) {
                        Some(known) if *known.manifest == *manifest => Arc::clone(&known.manifest),
                        _ => Arc::from(manifest),
                    };
                    after.volumes.push(ManifestObject {
                        name,
                        line,
                        manifest,
                    });
                }
                Entry::Bad(fault) => {
                    let known = fault.object.as_ref().and_then(|name| before.get(name));
                    after.volumes.extend(known.map(|volume| (*volume).clone()));
                    after.faults.push(fault);
                }
                Entry::Ignored { kind } => {
                    debug!(file = %path.display(), kind, "skipped an object of an unsupported kind");
                }
            }
        }
        if after.faults.iter().any(|fault| fault.object.is_none()) {
            let named: BTreeSet<ObjectName> =
                after.volumes.iter().map(|v| v.name.clone()).collect();
            let others = self.volumes.iter().filter(|v| !named.contains(&v.name));
            after.volumes.extend(others.cloned());
        }
        after
    }
}
