//! The two CustomResourceDefinitions, as given to an API server.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Map, Value};

use crate::{node_proxy::NodeProxy, profile::ProxyProfile};

/// One generated file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The name of the file in `generated/`.
    pub file: &'static str,
    /// The whole text of the file.
    pub text: String,
}

/// The generated files. The types of this crate are their only source.
///
/// # Errors
///
/// Fails if YAML cannot represent a schema, which would be a defect of the types.
pub fn manifests() -> Result<[Manifest; 2], serde_saphyr::ser::Error> {
    Ok([
        Manifest {
            file: "proxyprofiles.yaml",
            text: document(&render(ProxyProfile::crd()))?,
        },
        Manifest {
            file: "nodeproxies.yaml",
            text: document(&render_stamped(NodeProxy::crd()))?,
        },
    ])
}

fn document(crd: &Value) -> Result<String, serde_saphyr::ser::Error> {
    let yaml = serde_saphyr::to_string(crd)?;
    Ok(format!(
        "# Written from the types in crds/ by `cargo run -p crds --bin generate-crds`; not to be edited.\n{yaml}"
    ))
}

/// Returns the definition as JSON, without parts that an API server warns about or interprets
/// differently from the types.
pub(crate) fn render(crd: CustomResourceDefinition) -> Value {
    let mut value = serde_json::to_value(crd).unwrap_or_default();
    if let Some(schema) = value.pointer_mut("/spec/versions/0/schema/openAPIV3Schema") {
        tidy(schema);
    }
    value
}

/// Like [`render`], without defaults and rules in the spec. The spec that the operator assigns is
/// complete and checked: a default added by the API server would not match the assigned hash, and a
/// rule of a later version would refuse the configuration that a node should keep.
pub(crate) fn render_stamped(crd: CustomResourceDefinition) -> Value {
    let mut value = render(crd);
    if let Some(spec) = value.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec")
    {
        each_schema(spec, &mut |fields| {
            fields.remove("default");
            fields.remove("x-kubernetes-validations");
        });
    }
    value
}

fn tidy(schema: &mut Value) {
    each_schema(schema, &mut |fields| {
        // Null has no meaning here: a field is written or left out.
        fields.remove("nullable");
        fields.remove("title");
        // Joins the lines of a paragraph; `kubectl explain` wraps them to its own width.
        if let Some(Value::String(text)) = fields.get_mut("description") {
            let paragraphs: Vec<String> = text
                .split("\n\n")
                .map(|paragraph| paragraph.replace('\n', " "))
                .collect();
            *text = paragraphs.join("\n\n");
        }
        // schemars' name for the width of a Rust integer; bounds are given as minimum and maximum.
        if fields
            .get("format")
            .and_then(Value::as_str)
            .is_some_and(|format| format.starts_with("uint"))
        {
            fields.remove("format");
        }
    });
}

/// Visits `schema` and every schema inside it.
fn each_schema(schema: &mut Value, visit: &mut impl FnMut(&mut Map<String, Value>)) {
    let Value::Object(fields) = schema else {
        return;
    };
    visit(fields);
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties
            .values_mut()
            .for_each(|property| each_schema(property, visit));
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(inner) {
            each_schema(inner, visit);
        }
    }
}
