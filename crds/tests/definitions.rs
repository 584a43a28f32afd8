//! The two definitions as an API server and `kubectl` read them.

use crds::{
    EffectiveConfig, NodeProxySpec, NodeProxyStatus, ProxyProfileSpec, ProxyProfileStatus,
    condition::TYPES, manifest,
};
use serde_json::Value;

fn definitions() -> [Value; 2] {
    let manifests = manifest::manifests().expect("the definitions");
    manifests.map(|manifest| serde_saphyr::from_str(&manifest.text).expect("a YAML document"))
}

fn version(definition: &Value) -> &Value {
    &definition["spec"]["versions"][0]
}

/// Visits `schema` and the schemas inside it, each with its path.
fn each<'a>(schema: &'a Value, path: &str, visit: &mut impl FnMut(&str, &'a Value)) {
    visit(path, schema);
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        each(inner, &format!("{path}.{name}"), visit);
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(inner) {
            each(inner, &format!("{path}[]"), visit);
        }
    }
}

fn columns(definition: &Value, priority: i64) -> String {
    let columns = version(definition)["additionalPrinterColumns"]
        .as_array()
        .into_iter()
        .flatten();
    let shown = columns.filter(|column| column["priority"].as_i64().unwrap_or(0) == priority);
    shown
        .filter_map(|column| column["name"].as_str())
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn tables_show_the_columns_people_look_for() {
    let [profile, node] = definitions();
    assert_eq!(
        columns(&profile, 0),
        "Mode Priority Nodes Updated Ready-Nodes Degraded-Nodes Available Progressing Ready Reason Sync-P99 Age"
    );
    assert_eq!(columns(&profile, 1), "Scheduler Paused Rollout Wave");
    assert_eq!(
        columns(&node, 0),
        "Profile Mode Ready Reason Degraded Services Sync-P99 Age"
    );
    assert_eq!(columns(&node, 1), "Applied Rejected Agent Kernel");
}

#[test]
fn every_column_and_selectable_field_is_a_field_of_the_schema() {
    for definition in definitions() {
        let mut paths = Vec::new();
        each(
            &version(&definition)["schema"]["openAPIV3Schema"],
            "",
            &mut |path, _| paths.push(path.to_owned()),
        );
        let columns = version(&definition)["additionalPrinterColumns"]
            .as_array()
            .into_iter()
            .flatten();
        let selectable = version(&definition)["selectableFields"]
            .as_array()
            .into_iter()
            .flatten();
        for field in columns.chain(selectable) {
            let path = field["jsonPath"].as_str().expect("a path");
            let known = path
                .split_once("[?(@.type==")
                .map_or(path, |(list, _)| list);
            assert!(
                known.starts_with(".metadata.") || paths.iter().any(|path| path == known),
                "{path}"
            );
        }
    }
}

#[test]
fn nodes_can_be_selected_by_profile_and_both_kinds_have_short_names() {
    let [profile, node] = definitions();
    assert_eq!(
        version(&node)["selectableFields"][0]["jsonPath"],
        ".spec.profileName"
    );
    for (definition, short) in [(profile, "pxp"), (node, "npx")] {
        assert_eq!(definition["spec"]["scope"], "Cluster");
        assert_eq!(definition["spec"]["names"]["shortNames"][0], short);
        assert_eq!(definition["spec"]["names"]["categories"][0], "proxy");
        assert!(version(&definition)["subresources"]["status"].is_object());
    }
}

#[test]
fn every_field_is_documented_and_bounded_and_none_may_be_null() {
    for definition in definitions() {
        each(
            &version(&definition)["schema"]["openAPIV3Schema"],
            "",
            &mut |path, schema| {
                let item = path.is_empty() || path.ends_with("[]");
                assert!(
                    item || schema["description"].is_string(),
                    "{path} says nothing about itself"
                );
                assert!(schema.get("nullable").is_none(), "{path} may be null");
                let bound = match schema["type"].as_str() {
                    // Kubernetes' own fields, and times, whose format limits them.
                    _ if path == ".apiVersion"
                        || path == ".kind"
                        || schema["format"] == "date-time" =>
                    {
                        return;
                    }
                    Some("string") if schema.get("enum").is_some() => "enum",
                    Some("string") => "maxLength",
                    Some("array") => "maxItems",
                    Some("object") if schema.get("additionalProperties").is_some() => {
                        "maxProperties"
                    }
                    _ => return,
                };
                assert!(schema.get(bound).is_some(), "{path} has no {bound}");
            },
        );
    }
}

#[test]
fn nothing_is_ever_written_as_null() {
    fn nulls(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Array(items) => items.iter().any(nulls),
            Value::Object(fields) => fields.values().any(nulls),
            _ => false,
        }
    }
    let written = [
        serde_json::to_value(ProxyProfileSpec::default()),
        serde_json::to_value(ProxyProfileStatus::default()),
        serde_json::to_value(NodeProxySpec::default()),
        serde_json::to_value(NodeProxyStatus::default()),
        serde_json::to_value(EffectiveConfig::default()),
    ];
    for value in written {
        let value = value.expect("JSON");
        assert!(!nulls(&value), "{value}");
    }
}

#[test]
fn what_the_api_server_fills_in_is_what_an_agent_without_one_assumes() {
    fn defaults(schema: &Value, value: &Value, path: &str, found: &mut u32) {
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            if let Some(default) = inner.get("default") {
                assert_eq!(value.get(name), Some(default), "{path}");
                *found += 1;
            }
            defaults(inner, &value[name], &path, found);
        }
    }
    let [profile, _] = definitions();
    let spec = &version(&profile)["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let assumed = serde_json::to_value(ProxyProfileSpec::default()).expect("JSON");
    let mut found = 0;
    defaults(spec, &assumed, "spec", &mut found);
    assert!(found >= 11, "only {found} defaults in the schema");
}

#[test]
fn what_the_operator_stamps_is_kept_as_it_is() {
    let [_, node] = definitions();
    each(
        &version(&node)["schema"]["openAPIV3Schema"]["properties"]["spec"],
        "spec",
        &mut |path, schema| {
            assert!(schema.get("default").is_none(), "{path} would be filled in");
            assert!(
                schema.get("x-kubernetes-validations").is_none(),
                "{path} could be refused"
            );
        },
    );
}

#[test]
fn the_description_of_conditions_names_each_type_of_the_kind_and_no_other() {
    for definition in definitions() {
        let kind = definition["spec"]["names"]["kind"].as_str();
        let schema = &version(&definition)["schema"]["openAPIV3Schema"];
        let conditions = &schema["properties"]["status"]["properties"]["conditions"];
        let description = conditions["description"].as_str().expect("a description");
        let words = description.split(|character: char| !character.is_ascii_alphanumeric());
        let mut named: Vec<&str> = words
            .filter(|word| word.starts_with(|first: char| first.is_ascii_uppercase()))
            .collect();
        let mut of_kind: Vec<&str> = TYPES
            .iter()
            .filter(|known| known.kinds.iter().any(|of| Some(*of) == kind))
            .map(|known| known.name)
            .collect();
        named.sort_unstable();
        of_kind.sort_unstable();
        assert_eq!(named, of_kind, "{kind:?}: {description}");
    }
}
