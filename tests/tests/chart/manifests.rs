//! Parses objects from YAML.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// The kind, namespace and name, which identify an object in both sources.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) kind: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

/// Objects by their identity.
pub(crate) type Objects = BTreeMap<Identity, Value>;

/// Parses the objects in `text`, any number of YAML documents.
pub(crate) fn parse(text: &str) -> Result<Objects> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)?;
    let objects = documents.into_iter().filter(|document| !document.is_null());
    let objects = objects.map(|object| Ok((identity(&object)?, object)));
    objects.collect()
}

/// Parses the objects in the YAML files of a folder.
pub(crate) fn read_folder(folder: &Path) -> Result<Objects> {
    let mut objects = Objects::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            let text = fs::read_to_string(&path)?;
            objects.extend(parse(&text).with_context(|| path.display().to_string())?);
        }
    }
    Ok(objects)
}

fn identity(object: &Value) -> Result<Identity> {
    let text = |pointer: &str| {
        let value = object.pointer(pointer).and_then(Value::as_str);
        value.map(str::to_owned)
    };
    Ok(Identity {
        kind: text("/kind").context("an object has a kind")?,
        namespace: text("/metadata/namespace"),
        name: text("/metadata/name").context("an object has a name")?,
    })
}

/// Returns the only object of this kind and name.
pub(crate) fn find<'a>(objects: &'a Objects, kind: &str, name: &str) -> Result<&'a Value> {
    let mut found = objects
        .iter()
        .filter(|(identity, _)| identity.kind == kind && identity.name == name);
    let object = found.next().map(|(_, object)| object);
    object.with_context(|| format!("there is no {kind} {name}"))
}

/// Returns the value of an environment variable in the first container of a Deployment or
/// DaemonSet.
pub(crate) fn variable<'a>(workload: &'a Value, name: &str) -> Option<&'a str> {
    let environment = workload.pointer("/spec/template/spec/containers/0/env")?;
    let mut variables = environment.as_array()?.iter();
    variables.find(|variable| variable["name"] == name)?["value"].as_str()
}
