//! The pages of `docs/` about this API, generated from the types and tables here.

use std::collections::BTreeSet;
use std::fmt::Write;

use kube::{CustomResourceExt, Resource};
use serde_json::Value;

use crate::{
    condition::{TYPES, reason},
    effective::EffectiveConfig,
    event::{ANNOUNCED, REASONS, Severity},
    manifest::{Manifest, render, render_stamped},
    node_proxy::NodeProxy,
    profile::{ProxyProfile, rollout::RolloutSpec},
    rule::SPAN_TOO_LONG,
    span::SPAN_PATTERN,
};

const NOTICE: &str =
    "<!-- Written from the types in crds/ by `make generate`; not to be edited. -->\n";

/// The pages, with their names in `docs/`.
#[must_use]
pub fn pages() -> [Manifest; 2] {
    [
        Manifest {
            file: "api-reference.md",
            text: api_reference(),
        },
        Manifest {
            file: "conditions.md",
            text: conditions(),
        },
    ]
}

/// Every field of both kinds.
fn api_reference() -> String {
    let mut page = format!(
        "{NOTICE}# API reference\n\nBoth kinds belong to group `signpost.dev`, version `v1alpha1`, and have no namespace. `kubectl explain` prints the \
         same sentences. A duration is written as 1m30s, with h, m, s and ms, and is at most 99999h. A default that depends on the mode, or on a flag, is in the meaning. `[]` stands for each entry of a list, `*` for each key.\n"
    );
    // A section of a profile has no defaults in the schema: the agent fills them in.
    let mut filled_in = serde_json::to_value(EffectiveConfig::default()).unwrap_or_default();
    // Only the operator reads the rollout, so it is not in a node's configuration.
    filled_in["rollout"] =
        serde_json::to_value(RolloutSpec::default().complete()).unwrap_or_default();
    let none = Value::Null;
    for (kind, definition, defaults) in [
        (
            ProxyProfile::kind(&()),
            render(ProxyProfile::crd()),
            &filled_in,
        ),
        (
            NodeProxy::kind(&()),
            render_stamped(NodeProxy::crd()),
            &none,
        ),
    ] {
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        // Writing to a String cannot fail.
        let _ = write!(page, "\n## {kind}\n\n{}\n", text(&schema["description"]));
        for part in ["spec", "status"] {
            let schema = &schema["properties"][part];
            let about = text(&schema["description"]);
            let _ = write!(page, "\n### {kind}.{part}\n\n");
            if !about.is_empty() {
                let _ = write!(page, "{about}\n\n");
            }
            page += "| field | type | default | allowed | meaning |\n|---|---|---|---|---|\n";
            let defaults = if part == "spec" { defaults } else { &none };
            fields(schema, "", defaults, &mut page);
        }
    }
    page
}

/// One row for each field below `path`, outer ones before inner ones.
fn fields(schema: &Value, path: &str, filled_in: &Value, page: &mut String) {
    let required = schema["required"].as_array();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = match path {
            "" => name.clone(),
            path => format!("{path}.{name}"),
        };
        let mut allowed = bounds(field);
        if required.is_some_and(|names| names.iter().any(|required| required == name)) {
            allowed.insert(0, "required".to_owned());
        }
        let filled_in = &filled_in[name];
        let default = match (&field["default"], filled_in) {
            (Value::Null, Value::Object(_) | Value::Null) | (Value::Object(_), _) => String::new(),
            (Value::Null, default) | (default, _) => format!("`{default}`"),
        };
        let _ = writeln!(
            page,
            "| `{path}` | {} | {} | {} | {} |",
            type_name(field),
            cell(&default),
            cell(&allowed.join("; ")),
            cell(&text(&field["description"]))
        );
        fields(field, &path, filled_in, page);
        fields(&field["items"], &format!("{path}[]"), &Value::Null, page);
        let of_keys = &field["additionalProperties"];
        fields(of_keys, &format!("{path}.*"), &Value::Null, page);
    }
}

fn type_name(schema: &Value) -> String {
    if schema["x-kubernetes-int-or-string"] == true {
        return "integer or string".to_owned();
    }
    if schema["pattern"] == SPAN_PATTERN {
        return "duration".to_owned();
    }
    match (schema["type"].as_str(), schema["format"].as_str()) {
        (Some("array"), _) => format!("list of {}", type_name(&schema["items"])),
        (Some("object"), _) if schema["additionalProperties"].is_object() => {
            format!("map to {}", type_name(&schema["additionalProperties"]))
        }
        (Some("string"), Some("date-time")) => "time".to_owned(),
        (name, _) => name.unwrap_or("any").to_owned(),
    }
}

/// The API server's checks that do not follow from the type.
fn bounds(schema: &Value) -> Vec<String> {
    let mut bounds = Vec::new();
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        bounds.push(values.join(", "));
    }
    match (schema["minimum"].as_f64(), schema["maximum"].as_f64()) {
        (None, None) => {}
        (Some(minimum), None) => bounds.push(format!("from {minimum}")),
        (None, Some(maximum)) => bounds.push(format!("up to {maximum}")),
        (Some(minimum), Some(maximum)) => bounds.push(format!("{minimum} to {maximum}")),
    }
    let is_duration = schema["pattern"] == SPAN_PATTERN;
    for (keyword, unit) in [
        ("minLength", "length from {}"),
        ("maxLength", "length up to {}"),
        ("maxItems", "at most {} entries"),
        ("maxProperties", "at most {} keys"),
        ("pattern", "`{}`"),
    ] {
        let bound = match &schema[keyword] {
            Value::Null => continue,
            Value::String(bound) => bound.clone(),
            bound => bound.to_string(),
        };
        if !is_duration {
            bounds.push(unit.replace("{}", &bound));
        }
    }
    let rules = schema["x-kubernetes-validations"].as_array();
    let messages = rules
        .into_iter()
        .flatten()
        .map(|rule| text(&rule["message"]));
    // The type of the field already implies this one.
    bounds.extend(messages.filter(|message| message != SPAN_TOO_LONG.message));
    if schema["items"].is_object() {
        let of_entries = self::bounds(&schema["items"]);
        if !of_entries.is_empty() {
            bounds.push(format!("each: {}", of_entries.join("; ")));
        }
    }
    bounds
}

/// Every condition, reason and Event.
fn conditions() -> String {
    let mut page = format!(
        "{NOTICE}# Conditions, reasons and Events\n\nThe operator writes the conditions of a ProxyProfile, the agent of a node those of its NodeProxy; when the agent is silent, \
         the operator sets Ready there. \
         A *sync* brings the rules of one address family up to date; `/debug/syncs` lists the last ones.\n\n\
         ## Conditions\n\n| condition | of | True means |\n|---|---|---|\n"
    );
    for kind in TYPES {
        let _ = writeln!(
            page,
            "| `{}` | {} | {} |",
            kind.name,
            kind.kinds.join(", "),
            cell(kind.meaning)
        );
    }
    page += "\n## Reasons\n\n| reason | with | what to do |\n|---|---|---|\n";
    let reasons: BTreeSet<(&str, String, &str)> = reason::ALL
        .iter()
        .map(|reason| (reason.name, used_with(reason), reason.advice))
        .collect();
    for (name, conditions, advice) in reasons {
        let _ = writeln!(page, "| `{name}` | {conditions} | {} |", cell(advice));
    }
    let _ = write!(
        page,
        "\n## Events\n\nOf a ProxyProfile, the operator reports each new reason of {}, with that reason. An agent reports, about its Node or a Service:\n\n\
         | reason | type | what to do |\n|---|---|---|\n",
        ANNOUNCED.join(", ")
    );
    for reason in REASONS {
        let severity = match reason.severity {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        };
        let _ = writeln!(
            page,
            "| `{}` | {severity} | {} |",
            reason.name,
            cell(reason.advice)
        );
    }
    page
}

/// The condition types that a reason is used with, or what has it instead.
fn used_with(reason: &reason::Reason) -> String {
    match reason.conditions {
        [] => "a rollout, or a node in the status of a profile".to_owned(),
        types => types.join(", "),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Escapes `text` for one cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
