//! Which values the chart rejects, and that the schema covers all values.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use tests::scenario::Update;

use crate::helm::{Cluster, Helm, chart, fixtures};
use crate::manifests::{find, parse};

/// The keywords of a definition's schema that a schema of values repeats unchanged.
const SHARED: [&str; 10] = [
    "enum",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "pattern",
    "required",
];

/// The comment in a file of invalid values that states Helm's error message.
const SAYS: &str = "# says: ";

#[test]
fn the_chart_is_free_of_complaints() -> Result<()> {
    let helm = Helm::new(Cluster::None)?;
    let chart = chart();
    let chart = chart.to_str().context("the path of the chart is text")?;
    helm.run(&["lint", "--strict", chart])?;
    for example in fs::read_dir(crate::helm::chart().join("examples"))? {
        let values = format!("--values={}", example?.path().display());
        helm.run(&["lint", "--strict", chart, &values])?;
    }
    Ok(())
}

#[test]
fn bad_values_are_refused_by_their_names() -> Result<()> {
    let helm = Helm::new(Cluster::None)?;
    let mut found = 0;
    for entry in fs::read_dir(fixtures("bad-values"))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        let expected = text.lines().find_map(|line| line.strip_prefix(SAYS));
        let expected = expected.with_context(|| format!("{} says nothing", path.display()))?;
        let Err(error) = helm.render(&[format!("--values={}", path.display())]) else {
            bail!("{} is taken", path.display());
        };
        let said = error.to_string();
        ensure!(
            said.contains(expected),
            "{}: not {expected:?} but {said}",
            path.display()
        );
        found += 1;
    }
    ensure!(found > 0, "there are no bad values");
    Ok(())
}

#[test]
fn what_a_cluster_wants_of_pods_reaches_them() -> Result<()> {
    let helm = Helm::new(Cluster::None)?;
    let zone = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}],
    }}});
    let (volume, mount) = (
        json!({"name": "more", "emptyDir": {}}),
        json!({"name": "more", "mountPath": "/more"}),
    );
    let labels = json!({"type": "spc_t", "level": "s0"});
    let mut values = json!({
        "affinity": zone,
        "priorityClassName": "important",
        "extraVolumes": [volume],
        "extraVolumeMounts": [mount],
    });
    let operator = format!("--set-json=operator={values}");
    values["seLinuxOptions"] = labels.clone();
    let agent = format!("--set-json=agent={values}");
    let host = "--set=apiServer.host=api.example".to_owned();
    let objects = parse(&helm.render(&[operator, agent, host])?)?;
    for (kind, name) in [
        ("DaemonSet", "signpost-agent"),
        ("Deployment", "signpost-operator"),
    ] {
        let pod = &find(&objects, kind, name)?["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        ensure!(pod["affinity"] == zone, "{name}: {}", pod["affinity"]);
        ensure!(pod["priorityClassName"] == "important", "{name}");
        let has = |list: &Value, entry: &Value| {
            let mut list = list.as_array().into_iter().flatten();
            list.any(|other| other == entry)
        };
        ensure!(has(&pod["volumes"], &volume), "{name}: {}", pod["volumes"]);
        ensure!(has(&container["volumeMounts"], &mount), "{name}");
        let given = &container["securityContext"]["seLinuxOptions"];
        let expected = match kind {
            "DaemonSet" => &labels,
            _ => &Value::Null,
        };
        ensure!(given == expected, "{name}: {given}");
    }
    Ok(())
}

fn schema() -> Result<Value> {
    let text = fs::read_to_string(chart().join("values.schema.json"))?;
    serde_json::from_str(&text).context("the schema is JSON")
}

/// Finds the paths at which a schema accepts unknown fields.
fn open_places(schema: &Value, path: &str, found: &mut Vec<String>) {
    let Some(schema) = schema.as_object() else {
        return;
    };
    if schema.contains_key("properties")
        && schema.get("additionalProperties") != Some(&false.into())
    {
        found.push(path.to_owned());
    }
    for key in ["properties", "definitions"] {
        let inner = schema.get(key).and_then(Value::as_object);
        for (name, inner) in inner.into_iter().flatten() {
            open_places(inner, &format!("{path}.{name}"), found);
        }
    }
    for key in ["items", "additionalProperties"] {
        let inner = schema.get(key).unwrap_or(&Value::Null);
        open_places(inner, &format!("{path}[]"), found);
    }
}

#[test]
fn what_the_schema_does_not_know_is_refused_everywhere() -> Result<()> {
    let mut found = Vec::new();
    open_places(&schema()?, "", &mut found);
    ensure!(found.is_empty(), "anything passes at {found:?}");
    Ok(())
}

#[test]
fn every_value_has_its_default_in_the_file_of_values() -> Result<()> {
    let values: Value = serde_saphyr::from_str(&fs::read_to_string(chart().join("values.yaml"))?)?;
    let schema = schema()?;
    let sections = schema["properties"].as_object().context("sections")?;
    // `global` is Helm's own, for parent charts.
    for (section, schema) in sections.iter().filter(|(name, _)| *name != "global") {
        ensure!(
            values.get(section).is_some(),
            "{section} is not in values.yaml"
        );
        let fields = schema["properties"].as_object();
        for field in fields.into_iter().flat_map(Map::keys) {
            let value = values[section].get(field);
            ensure!(value.is_some(), "{section}.{field} is not in values.yaml");
        }
    }
    Ok(())
}

/// Returns the schema of values that corresponds to a definition's schema, without CEL rules, which
/// only the API server can evaluate.
fn schema_of_values(definition: &Value) -> Value {
    let mut schema = Map::new();
    if definition["x-kubernetes-int-or-string"] == true {
        schema.insert("type".to_owned(), serde_json::json!(["integer", "string"]));
    } else if let Some(name) = definition.get("type") {
        schema.insert("type".to_owned(), name.clone());
    }
    for key in SHARED {
        if let Some(value) = definition.get(key) {
            schema.insert(key.to_owned(), value.clone());
        }
    }
    if let Some(properties) = definition["properties"].as_object() {
        let properties = properties.iter();
        let properties = properties.map(|(name, inner)| (name.clone(), schema_of_values(inner)));
        schema.insert("properties".to_owned(), properties.collect());
        schema.insert("additionalProperties".to_owned(), false.into());
    }
    for key in ["additionalProperties", "items"] {
        if let Some(inner) = definition.get(key).filter(|inner| inner.is_object()) {
            schema.insert(key.to_owned(), schema_of_values(inner));
        }
    }
    Value::Object(schema)
}

#[test]
fn a_profile_in_the_values_is_held_to_the_schema_of_profiles() -> Result<()> {
    let kind = fs::read_to_string(chart().join("files/crds/proxyprofiles.yaml"))?;
    let kind: Value = serde_saphyr::from_str(&kind)?;
    let version = &kind["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut expected = schema_of_values(&version["properties"]["spec"]);

    let mut schema = schema()?;
    let place = "/properties/profile/properties/spec";
    let spec = schema.pointer_mut(place).context("profile.spec")?;
    expected["description"] = spec["description"].clone();
    if *spec == expected {
        return Ok(());
    }
    ensure!(
        Update::from_environment()? == Update::Differing,
        "profile.spec in values.schema.json is not what ProxyProfile takes (UPDATE=1 writes it)"
    );
    *spec = expected;
    let text = serde_json::to_string_pretty(&schema)? + "\n";
    fs::write(chart().join("values.schema.json"), text)?;
    Ok(())
}
