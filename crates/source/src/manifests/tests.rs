//! Directories as people and programs write them.

mod changes;
mod files;
mod hostile;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use catalog::{Catalog, Change, Event, ObjectKey};
use dataplane::ServiceKey;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::*;
use crate::Assignment;

const DEADLINE: Duration = Duration::from_secs(10);

fn service(name: &str, port: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  clusterIP: 10.96.0.10\n  ports:\n  - port: {port}\n"
    )
}

fn profile(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: signpost.dev/v1alpha1\nkind: ProxyProfile\nmetadata:\n  name: {name}\nspec: {spec}\n"
    )
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory for the test")
}

fn write(directory: &TempDir, file: &str, text: &str) {
    let path = directory.path().join(file);
    fs::create_dir_all(path.parent().expect("in the directory")).expect("a directory");
    fs::write(path, text).expect("a file");
}

/// A source that watches a directory, and what it has delivered so far.
struct Watched {
    deliveries: mpsc::Receiver<Delivery>,
    stopper: runtime::CancellationToken,
    source: JoinHandle<Result<(), EngineGone>>,
    seen: Seen,
}

/// The state of a receiver that takes every delivery.
struct Seen {
    catalog: Catalog,
    assignment: Option<Option<Assignment>>,
    unreadable: Option<Vec<String>>,
    stale: Option<String>,
    fresh: bool,
    changes: Vec<Change>,
}

impl Seen {
    fn nothing() -> Seen {
        Seen {
            catalog: Catalog::new("node-1"),
            assignment: None,
            unreadable: None,
            stale: None,
            fresh: false,
            changes: Vec::new(),
        }
    }

    fn take(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Objects(change) => {
                self.changes.push(change.clone());
                self.catalog.apply(change);
            }
            Delivery::Configuration(assignment) => self.assignment = Some(assignment),
            Delivery::Condition(SourceCondition::Fresh) => {
                (self.stale, self.fresh) = (None, true);
            }
            Delivery::Condition(SourceCondition::Stale { message, .. }) => {
                self.stale = Some(message);
            }
            Delivery::Condition(SourceCondition::Manifests(unreadable)) => {
                self.unreadable = Some(unreadable.iter().map(ToString::to_string).collect());
            }
            Delivery::Addresses(_) | Delivery::Interfaces(_) => {
                panic!("manifests say nothing of the kernel")
            }
        }
    }

    /// The names of the served Services, each with its ports.
    fn services(&self) -> String {
        let served = self.catalog.services().map(|key| {
            let view = self.catalog.service(key).expect("it was listed");
            let ports = view.service.ports.iter().map(|port| port.port.to_string());
            format!("{}:{}", key.name, ports.collect::<Vec<_>>().join("+"))
        });
        served.collect::<Vec<_>>().join(" ")
    }

    fn unreadable(&self) -> &[String] {
        self.unreadable.as_deref().unwrap_or_default()
    }
}

impl Watched {
    fn start(directory: &Path) -> Watched {
        let (sender, deliveries) = mpsc::channel(64);
        let stop = CancellationToken::new();
        let stopper = stop.clone();
        let source = watch(directory.to_owned(), "node-1".to_owned(), sender, stop);
        Watched {
            deliveries,
            stopper,
            source: tokio::spawn(source),
            seen: Seen::nothing(),
        }
    }

    /// Takes deliveries until the state satisfies `is`.
    async fn until(&mut self, what: &str, is: impl Fn(&Seen) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !is(&self.seen) {
            match timeout_at(deadline, self.deliveries.recv()).await {
                Ok(Some(delivery)) => self.seen.take(delivery),
                Ok(None) => panic!("the source ended before {what}"),
                Err(_) => panic!(
                    "not seen in time: {what}; services {:?}, unreadable {:?}, stale {:?}",
                    self.seen.services(),
                    self.seen.unreadable(),
                    self.seen.stale,
                ),
            }
        }
    }

    async fn until_services(&mut self, services: &str) {
        let what = format!("services {services:?}");
        self.until(&what, |seen| seen.services() == services).await;
    }

    async fn until_synced(&mut self) {
        self.until("everything was read once", |seen| seen.fresh)
            .await;
    }
}

fn loaded(directory: &TempDir) -> (Seen, Vec<String>) {
    let (deliveries, unreadable) = load(directory.path(), "node-1").expect("it can be read");
    let mut seen = Seen::nothing();
    for delivery in deliveries {
        seen.take(delivery);
    }
    (seen, unreadable.iter().map(ToString::to_string).collect())
}

#[test]
fn every_kind_is_read_from_any_file_below_the_directory() {
    let directory = directory();
    let list = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata: {name: node-1, labels: {rack: a}}\n- apiVersion: networking.k8s.io/v1\n  kind: ServiceCIDR\n  metadata: {name: kubernetes}\n  spec: {cidrs: [10.96.0.0/16]}\n";
    write(&directory, "list.yaml", list);
    let two = format!(
        "# Two of them.\n---\n{}---\n{}",
        service("a", "80"),
        service("b", "81")
    );
    write(&directory, "deep/er/two.yml", &two);
    write(
        &directory,
        "slices.json",
        r#"{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList", "items": [
            {"metadata": {"name": "a-1", "labels": {"kubernetes.io/service-name": "a"}},
             "addressType": "IPv4", "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
             "endpoints": [{"addresses": ["10.0.1.5"]}]}]}"#,
    );
    write(
        &directory,
        "profile.yaml",
        &profile("racks", "{nodeSelector: {matchLabels: {rack: a}}}"),
    );
    write(
        &directory,
        "other.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n---\n",
    );
    write(&directory, "notes.txt", "not: [a manifest");
    write(&directory, ".hidden.yaml", "not: [a manifest");
    let (seen, unreadable) = loaded(&directory);
    assert_eq!(unreadable, Vec::<String>::new());
    assert!(seen.catalog.synced());
    assert_eq!(seen.services(), "a:80 b:81");
    let a = seen
        .catalog
        .service(&ServiceKey::new("default", "a"))
        .expect("served");
    assert_eq!(a.endpoints.by_port.len(), 1);
    assert_eq!(seen.catalog.service_cidrs().len(), 1);
    assert!(seen.catalog.node().is_some());
    let assignment = seen
        .assignment
        .flatten()
        .expect("the profile selects the node");
    assert_eq!(assignment.spec.profile_name, "racks");
    assert_eq!(assignment.generation, None);
    assert!(assignment.reason.contains("racks"), "{}", assignment.reason);
}

#[test]
fn the_first_load_lists_every_kind_even_when_there_is_nothing() {
    let (seen, unreadable) = loaded(&directory());
    assert_eq!(unreadable, Vec::<String>::new());
    assert!(seen.catalog.synced());
    assert_eq!(seen.assignment, Some(None));
    assert!(load(Path::new("does-not-exist"), "node-1").is_err());
}

#[test]
fn what_is_wrong_is_named_with_file_line_object_and_field() {
    for (file, text, expected) in [
        (
            "syntax.yaml",
            format!("{}---\nkind: [\n", service("a", "80")),
            "syntax.yaml:10: ",
        ),
        (
            "shape.yaml",
            format!("{}---\n{}", service("a", "80"), service("b", "1\n  ports: x")),
            "shape.yaml:18: duplicate mapping key: ports",
        ),
        (
            "field.yaml",
            format!("---\n{}", service("b", "80").replace("  - port: 80", "    web")),
            "field.yaml:9: Service default/b: spec.ports: invalid type: string \"web\"",
        ),
        (
            "item.yaml",
            "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: a}\n- apiVersion: v1\n  kind: Service\n  metadata: {name: b}\n  spec: 3\n".to_owned(),
            "item.yaml:10: Service default/b: spec: ",
        ),
        (
            "profile.yaml",
            profile("p", "\n  mode: nftables\n  minSyncPeriod: 2m\n"),
            "profile.yaml:7: ProxyProfile p: spec.minSyncPeriod: ",
        ),
        (
            "unknown.yaml",
            profile("p", "{mod: nftables}"),
            "unknown.yaml:5: ProxyProfile p: spec.mod: ",
        ),
        (
            "version.yaml",
            "kind: EndpointSlice\napiVersion: discovery.k8s.io/v1beta1\nmetadata: {name: x}\n".to_owned(),
            "version.yaml:2: apiVersion discovery.k8s.io/v1beta1 of EndpointSlice is not read; write discovery.k8s.io/v1",
        ),
        (
            "nameless.yaml",
            "apiVersion: v1\nkind: Service\nmetadata: {namespace: x}\n".to_owned(),
            "nameless.yaml:3: metadata: missing field `name`",
        ),
        (
            "kindless.yaml",
            "\n# What is this?\nname: x\n".to_owned(),
            "kindless.yaml:3: apiVersion and kind have to be given",
        ),
        ("cut.json", "{\"kind\":\n\"Servi".to_owned(), "cut.json:2: "),
        (
            "json.json",
            "{\"apiVersion\": \"v1\", \"kind\": \"Service\",\n \"metadata\": {\"name\": \"a\"},\n \"spec\": []}\n".to_owned(),
            "json.json:3: Service default/a: spec: ",
        ),
    ] {
        let directory = directory();
        write(&directory, file, &text);
        write(&directory, "good.yaml", &service("good", "1"));
        let (seen, unreadable) = loaded(&directory);
        assert_eq!(unreadable.len(), 1, "{file}: {unreadable:?}");
        assert!(unreadable[0].starts_with(expected), "{}", unreadable[0]);
        assert!(seen.services().contains("good:1"), "{file}: {}", seen.services());
    }
}

#[test]
fn an_object_in_two_files_is_taken_from_the_first_and_the_other_is_named() {
    let directory = directory();
    write(
        &directory,
        "b.yaml",
        &format!("---\n{}", service("a", "81")),
    );
    write(&directory, "a.yaml", &service("a", "80"));
    let (seen, unreadable) = loaded(&directory);
    assert_eq!(seen.services(), "a:80");
    assert_eq!(
        unreadable,
        ["b.yaml:2: Service default/a: already in a.yaml, which counts"]
    );
}

#[test]
fn a_large_document_is_no_reason_to_refuse_a_file() {
    let directory = directory();
    let values = "1, ".repeat(300_000);
    let large =
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: x}}\ndata: [{values}]\n");
    write(
        &directory,
        "all.yaml",
        &format!("{large}---\n{}", service("a", "80")),
    );
    let (seen, unreadable) = loaded(&directory);
    assert_eq!(unreadable, Vec::<String>::new());
    assert_eq!(seen.services(), "a:80");
}
