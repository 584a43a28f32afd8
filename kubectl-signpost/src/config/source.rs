//! Finds a KubeProxyConfiguration and reads it field by field, so that no field is overlooked.

use serde_json::{Map, Value};
use serde_saphyr::UserMessageFormatter;

use crate::advice::{Problem, problem};

/// A configuration from which each field is taken once.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    root: Map<String, Value>,
}

const KIND: &str = "KubeProxyConfiguration";
const VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";

/// Finds the one configuration in `documents`: one of them, the content of a ConfigMap, or the output
/// of kube-proxy's /configz.
pub(crate) fn find_configuration(documents: &[Value]) -> Result<Source, Problem> {
    let (mut found, mut broken) = (Vec::new(), Vec::new());
    for document in documents {
        found.push(document.clone());
        found.push(document["kubeproxy.config.k8s.io"].clone());
        let embedded = document["data"].as_object();
        for (key, text) in embedded.into_iter().flatten() {
            let Some(text) = text.as_str() else { continue };
            match serde_saphyr::from_multiple::<Value>(text) {
                Ok(parsed) => found.extend(parsed),
                Err(error) => broken.push((key, text, error)),
            }
        }
    }
    found.retain(|candidate| candidate["kind"] == KIND);
    // Other keys may have any text.
    broken.retain(|(_, text, _)| text.contains(KIND));
    if let Some((key, _, error)) = broken.first() {
        let why = error.render_with_formatter(&UserMessageFormatter);
        let what = format!("the text of its key {key} is neither YAML nor JSON: {why}");
        return Err(problem(
            what,
            "correct the line that the message names, counted within that text",
        ));
    }
    let root = match (found.len(), found.pop()) {
        (1, Some(Value::Object(root))) => root,
        (0, _) => {
            let next = "give the file with --file, or the name of the ConfigMap with --config-map (EKS: kube-proxy-config)";
            return Err(problem("there is no KubeProxyConfiguration in it", next));
        }
        (several, _) => {
            let what = format!("there are {several} KubeProxyConfigurations in it");
            return Err(problem(
                what,
                "give a file with one of them: each becomes a profile of its own",
            ));
        }
    };
    match root.get("apiVersion").and_then(Value::as_str) {
        Some(VERSION) => Ok(Source { root }),
        other => {
            let version = other.unwrap_or("no version");
            let next = format!("give one of {VERSION}, the version that kube-proxy serves");
            Err(problem(
                format!("it is a KubeProxyConfiguration of {version}"),
                next,
            ))
        }
    }
}

// === impl Source ===

impl Source {
    /// Removes and returns the value at `path`, such as `conntrack.min`. Returns `None` if it is
    /// absent, or null as kubeadm writes for an unset field.
    pub(crate) fn take(&mut self, path: &str) -> Option<Value> {
        let (section, name) = match path.split_once('.') {
            None => (&mut self.root, path),
            Some((section, name)) => (self.root.get_mut(section)?.as_object_mut()?, name),
        };
        section.remove(name).filter(|value| !value.is_null())
    }

    /// Like [`Source::take`] for a text that is not empty. Returns other values as JSON, so that
    /// they are rejected with their name.
    pub(crate) fn take_text(&mut self, path: &str) -> Option<String> {
        let value = self.take(path)?;
        let text = value.as_str().map(|text| text.trim().to_owned());
        let text = text.unwrap_or_else(|| value.to_string());
        (!text.is_empty()).then_some(text)
    }

    /// Returns the paths of all fields with a value that have not been taken.
    pub(crate) fn rest(&self) -> Vec<String> {
        let mut paths = Vec::new();
        for (name, value) in &self.root {
            match value {
                Value::Object(fields) => {
                    let set = fields.iter().filter(|(_, value)| is_set(value));
                    paths.extend(set.map(|(field, _)| format!("{name}.{field}")));
                }
                value if is_set(value) => paths.push(name.clone()),
                _ => {}
            }
        }
        paths.retain(|path| !["kind", "apiVersion"].contains(&path.as_str()));
        paths
    }
}

/// Whether `value` is set explicitly. A generated file contains zero values for unset fields.
pub(crate) fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !["", "0", "0s"].contains(&text.as_str()),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => fields.values().any(is_set),
    }
}
