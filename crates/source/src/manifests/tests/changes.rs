//! Changes to a directory while it is watched.

use super::*;

#[tokio::test]
async fn changes_are_delivered_and_nothing_else_is() {
    let directory = directory();
    write(&directory, "a.yaml", &service("a", "80"));
    write(&directory, "b.yaml", &service("b", "81"));
    let mut watched = Watched::start(directory.path());
    watched.until_synced().await;
    assert_eq!(watched.seen.services(), "a:80 b:81");
    watched.seen.changes.clear();

    write(&directory, "b.yaml", &service("b", "82"));
    watched.until_services("a:80 b:82").await;
    assert_eq!(watched.seen.changes.len(), 1, "{:?}", watched.seen.changes);
    write(&directory, "new/c.yaml", &service("c", "83"));
    watched.until_services("a:80 b:82 c:83").await;
    fs::remove_file(directory.path().join("a.yaml")).expect("it was there");
    watched.until_services("b:82 c:83").await;
    let gone = ObjectKey::namespaced("default", "a");
    let last = watched.seen.changes.last();
    assert_eq!(
        last,
        Some(&Change::from(Event::<catalog::object::Service>::Delete(
            gone
        )))
    );

    watched.stopper.cancel();
    assert_eq!(watched.source.await.expect("no panic"), Ok(()));
}

#[tokio::test]
async fn a_file_that_no_longer_parses_keeps_its_last_good_objects() {
    let directory = directory();
    write(
        &directory,
        "a.yaml",
        &format!("{}---\n{}", service("a", "80"), service("b", "81")),
    );
    let mut watched = Watched::start(directory.path());
    watched.until_synced().await;
    assert_eq!(watched.seen.unreadable, Some(Vec::new()));

    write(
        &directory,
        "a.yaml",
        &format!("{}---\nkind: [\n", service("a", "90")),
    );
    watched
        .until("the file is named", |seen| seen.unreadable().len() == 1)
        .await;
    assert!(
        watched.seen.unreadable()[0].starts_with("a.yaml:10: "),
        "{:?}",
        watched.seen.unreadable
    );
    assert_eq!(watched.seen.services(), "a:80 b:81");

    // One object is invalid: only that one stays as it was.
    let wrong = service("b", "91").replace("  - port: 91", "    web");
    write(
        &directory,
        "a.yaml",
        &format!("{}---\n{wrong}", service("a", "90")),
    );
    watched.until_services("a:90 b:81").await;
    watched
        .until("the object is named", |seen| {
            seen.unreadable()
                .iter()
                .any(|text| text.contains("Service default/b"))
        })
        .await;

    // A program is about to write the file.
    write(&directory, "a.yaml", "");
    watched
        .until("the empty file is named", |seen| {
            seen.unreadable()
                .iter()
                .any(|text| text.starts_with("a.yaml: is empty"))
        })
        .await;
    assert_eq!(watched.seen.services(), "a:90 b:81");

    write(&directory, "a.yaml", &service("b", "92"));
    watched.until_services("b:92").await;
    watched
        .until("nothing is wrong", |seen| seen.unreadable().is_empty())
        .await;
}

#[tokio::test]
async fn a_file_that_is_replaced_by_a_rename_is_read_once_it_is_whole() {
    let directory = directory();
    write(&directory, "a.yaml", &service("a", "80"));
    let mut watched = Watched::start(directory.path());
    watched.until_synced().await;
    for port in 81..91 {
        write(&directory, ".a.yaml.swp", "kind: [");
        write(&directory, ".a.yaml.swp", &service("a", &port.to_string()));
        let (from, to) = (
            directory.path().join(".a.yaml.swp"),
            directory.path().join("a.yaml"),
        );
        fs::rename(from, to).expect("a rename");
        watched.until_services(&format!("a:{port}")).await;
    }
    assert_eq!(watched.seen.unreadable(), &[] as &[String]);
}

#[tokio::test]
async fn a_config_map_as_kubernetes_mounts_it_is_followed_through_its_links() {
    let directory = directory();
    let root = directory.path();
    write(&directory, "..1/a.yaml", &service("a", "80"));
    symlink("..1", root.join("..data")).expect("a link");
    symlink("..data/a.yaml", root.join("a.yaml")).expect("a link");
    let mut watched = Watched::start(root);
    watched.until_synced().await;
    assert_eq!(watched.seen.services(), "a:80");
    write(&directory, "..2/a.yaml", &service("a", "81"));
    symlink("..2", root.join("..data_tmp")).expect("a link");
    fs::rename(root.join("..data_tmp"), root.join("..data")).expect("a rename");
    watched.until_services("a:81").await;
}

#[tokio::test]
async fn a_directory_that_goes_away_takes_nothing_with_it() {
    let parent = directory();
    let root = parent.path().join("manifests");
    let aside = parent.path().join("aside");
    write(&parent, "manifests/a.yaml", &service("a", "80"));
    let mut watched = Watched::start(&root);
    watched.until_synced().await;
    fs::rename(&root, &aside).expect("a rename");
    watched
        .until("it is stale", |seen| seen.stale.is_some())
        .await;
    assert_eq!(watched.seen.services(), "a:80");
    fs::rename(&aside, &root).expect("a rename");
    watched
        .until("it is fresh", |seen| seen.stale.is_none())
        .await;
    write(&parent, "manifests/a.yaml", &service("a", "81"));
    watched.until_services("a:81").await;
}

#[tokio::test]
async fn a_directory_within_that_cannot_be_read_takes_nothing_with_it() {
    let directory = directory();
    let root = directory.path();
    write(&directory, "sub/a.yaml", &service("a", "80"));
    write(&directory, "b.yaml", &service("b", "81"));
    let mut watched = Watched::start(root);
    watched.until_synced().await;
    fs::rename(root.join("sub"), root.join(".aside")).expect("a rename");
    // A link to itself gives every reader an error, including root.
    symlink("sub", root.join("sub")).expect("a link");
    watched
        .until("it is named", |seen| {
            seen.unreadable()
                .iter()
                .any(|text| text.starts_with("sub: "))
        })
        .await;
    write(&directory, "b.yaml", &service("b", "82"));
    watched.until_services("a:80 b:82").await;
    fs::remove_file(root.join("sub")).expect("it was there");
    watched.until_services("b:82").await;
}

#[tokio::test]
async fn a_directory_that_is_not_there_yet_tells_nothing_of_what_there_is() {
    let parent = directory();
    let root = parent.path().join("manifests");
    let mut watched = Watched::start(&root);
    watched
        .until("it is stale", |seen| seen.stale.is_some())
        .await;
    assert!(!watched.seen.catalog.synced());
    assert_eq!(watched.seen.assignment, None);
    write(&parent, "manifests/a.yaml", &service("a", "80"));
    watched.until_services("a:80").await;
    watched
        .until("every file was read", |seen| {
            seen.unreadable == Some(Vec::new())
        })
        .await;
}

#[tokio::test]
async fn a_profile_that_becomes_invalid_leaves_the_node_as_it_is() {
    let directory = directory();
    write(&directory, "p.yaml", &profile("p", "{minSyncPeriod: 20ms}"));
    let mut watched = Watched::start(directory.path());
    watched.until_synced().await;
    let good = watched.seen.assignment.clone();
    assert!(matches!(good, Some(Some(_))), "{good:?}");

    write(&directory, "p.yaml", &profile("p", "{minSyncPeriod: 2h}"));
    watched
        .until("the field is named", |seen| {
            seen.unreadable()
                .iter()
                .any(|text| text.contains("spec.minSyncPeriod"))
        })
        .await;
    assert_eq!(watched.seen.assignment, good);

    write(&directory, "p.yaml", &profile("p", "{minSyncPeriod: 30ms}"));
    watched
        .until("the new one is assigned", |seen| seen.assignment != good)
        .await;
    fs::remove_file(directory.path().join("p.yaml")).expect("it was there");
    watched
        .until("no NodeProxy", |seen| seen.assignment == Some(None))
        .await;
}

#[tokio::test]
async fn a_node_that_is_relabelled_gets_another_profile() {
    let directory = directory();
    let node = |rack: &str| {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: node-1, labels: {{rack: {rack}}}}}\n"
        )
    };
    for rack in ["a", "b"] {
        let spec = format!("{{nodeSelector: {{matchLabels: {{rack: {rack}}}}}}}");
        write(&directory, &format!("{rack}.yaml"), &profile(rack, &spec));
    }
    write(&directory, "node.yaml", &node("a"));
    let mut watched = Watched::start(directory.path());
    let has = |profile: &'static str| {
        move |seen: &Seen| {
            let assignment = seen.assignment.as_ref().and_then(Option::as_ref);
            assignment.is_some_and(|known| known.spec.profile_name == profile)
        }
    };
    watched.until("profile a", has("a")).await;
    write(&directory, "node.yaml", &node("b"));
    watched.until("profile b", has("b")).await;
}
