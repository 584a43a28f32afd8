use serde_json::json;

use super::*;

fn refused(object: &Value) -> Vec<String> {
    parse(object)
        .expect_err("a bad profile")
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn a_profile_that_says_nothing_is_the_default_one() {
    let profile =
        parse(&json!({"metadata": {"name": "default"}, "spec": {}})).expect("a good profile");
    assert_eq!(profile.spec, ProxyProfileSpec::default());
    assert_eq!(check(&profile.spec), []);
}

#[test]
fn a_misspelt_field_is_named() {
    let object =
        json!({"metadata": {"name": "p"}, "spec": {"syncPeroid": "1s", "masquerade": {"bit": 1}}});
    assert_eq!(
        refused(&object),
        [
            "spec.masquerade.bit: unknown field",
            "spec.syncPeroid: unknown field"
        ]
    );
}

#[test]
fn everything_that_is_wrong_is_reported_at_once() {
    let object = json!({
        "metadata": {"name": "p"},
        "spec": {"priority": 20_000, "minSyncPeriod": "2m", "masquerade": {"markBit": 32}},
    });
    assert_eq!(
        refused(&object),
        [
            "spec.masquerade.markBit: should be less than or equal to 31",
            "spec.priority: should be less than or equal to 10000",
            "spec.minSyncPeriod: minSyncPeriod must not be longer than syncPeriod",
        ]
    );
}

#[test]
fn a_value_of_another_type_is_named_once() {
    let object = json!({"metadata": {"name": "p"}, "spec": {"priority": "high"}});
    assert_eq!(refused(&object), ["spec.priority: must be of type integer"]);
}

#[test]
fn a_profile_needs_a_name() {
    assert_eq!(
        refused(&json!({"metadata": {}, "spec": {}})),
        ["metadata.name: Required value"]
    );
}

#[test]
fn hidden_metrics_are_asked_for_by_minor_release() {
    assert!(is_minor_version("") && is_minor_version("1.36"));
    assert!(!is_minor_version("1") && !is_minor_version("v1.36") && !is_minor_version("1.36.2"));
}
