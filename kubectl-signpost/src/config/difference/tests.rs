use std::sync::Arc;

use serde_json::json;

use super::*;

fn profile(name: &str, spec: Value) -> ProxyProfile {
    serde_json::from_value(json!({
        "apiVersion": "signpost.dev/v1alpha1", "kind": "ProxyProfile",
        "metadata": {"name": name}, "spec": spec,
    }))
    .expect("a profile")
}

fn node(name: &str, current: Option<&ProxyProfile>) -> NodeFacts {
    let facts = NodeFacts {
        name: name.to_owned(),
        ..NodeFacts::default()
    };
    let current = current.and_then(|profile| crds::resolve([profile], &facts).effective);
    NodeFacts { current, ..facts }
}

#[test]
fn t147_a_change_is_shown_once_with_all_nodes_that_get_it() {
    let old = profile("default", json!({}));
    let new = profile(
        "default",
        json!({"mode": "iptables", "conntrack": {"min": 7}}),
    );
    let nodes = [
        node("n1", Some(&old)),
        node("n2", Some(&old)),
        node("n3", None),
        node("n4", Some(&new)),
    ];
    let groups = compare(&[new], "default", &nodes);
    assert_eq!(
        render("default", &groups),
        "n1, n2\n\
        \x20 conntrack.min: 131072 -> 7\n\
        \x20 localhostNodePorts: \"none\" -> \"userspace\"\n\
        \x20 mode: \"nftables\" -> \"iptables\"\n\
        \x20 nodePortAddresses: [\"primary\"] -> [\"0.0.0.0/0\",\"::/0\"]\n\
         n3\n\
        \x20 the first configuration, mode iptables\n"
    );
}

#[test]
fn nodes_of_other_profiles_are_left_out_and_those_that_leave_are_not() {
    let edge = profile("edge", json!({"priority": 1}));
    let default = profile(
        "default",
        json!({"nodeSelector": {"matchLabels": {"a": "b"}}}),
    );
    let mut leaving = node("n2", Some(&profile("default", json!({}))));
    Arc::make_mut(&mut leaving.labels).insert("a".to_owned(), "c".to_owned());
    let nodes = [node("n1", Some(&edge)), leaving];
    let groups = compare(&[edge], "default", &nodes);
    assert!(
        groups.is_empty(),
        "both have the same configuration: {groups:?}"
    );
    let groups = compare(&[default], "default", &nodes[1..]);
    assert_eq!(groups.keys().collect::<Vec<_>>(), [&Change::Last]);
    assert_eq!(
        render("default", &Groups::new()),
        "ProxyProfile default changes nothing on any node\n"
    );
}
