//! Checks a value against the schema of the API: names, types, enums, ranges and lengths.

use std::sync::LazyLock;

use kube::CustomResourceExt;
use serde_json::Value;

use crate::{check::FieldError, manifest, profile::ProxyProfile};

/// The schema of `spec`, generated once: generating it walks every type of the API.
static SPEC: LazyLock<Value> = LazyLock::new(|| {
    let crd = manifest::render(ProxyProfile::crd());
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec")
        .cloned()
        .unwrap_or_default()
});

/// Returns the violations of a profile's schema in `spec`, in the order of field names.
pub(crate) fn check(spec: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(&SPEC, spec, "spec", &mut errors);
    errors
}

fn walk(schema: &Value, value: &Value, field: &str, errors: &mut Vec<FieldError>) {
    // The API server's own types store every bound as a floating-point number, which prints without
    // a fraction here.
    let limit = |keyword: &str| schema.get(keyword).and_then(Value::as_f64);
    let mut refuse = |message: String| errors.push(FieldError::new(field, message));

    if let Some(expected) = schema.get("type").and_then(Value::as_str)
        && !is_of_type(value, expected)
    {
        return refuse(format!("must be of type {expected}"));
    }
    if let Some(choices) = schema.get("enum").and_then(Value::as_array)
        && !choices.contains(value)
    {
        let choices: Vec<String> = choices.iter().map(ToString::to_string).collect();
        return refuse(format!(
            "Unsupported value: {value}: supported values: {}",
            choices.join(", ")
        ));
    }
    match value {
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or(f64::INFINITY);
            if let Some(least) = limit("minimum").filter(|least| number < *least) {
                refuse(format!("should be greater than or equal to {least}"));
            }
            if let Some(most) = limit("maximum").filter(|most| number > *most) {
                refuse(format!("should be less than or equal to {most}"));
            }
        }
        Value::String(text) => {
            let letters = length(text.chars().count());
            if let Some(least) = limit("minLength").filter(|least| letters < *least) {
                refuse(format!("should be at least {least} chars long"));
            }
            if let Some(most) = limit("maxLength").filter(|most| letters > *most) {
                refuse(format!("may not be more than {most} bytes"));
            }
        }
        Value::Array(items) => {
            if let Some(most) = limit("maxItems").filter(|most| length(items.len()) > *most) {
                refuse(format!("must have at most {most} items"));
            }
            for (index, item) in items.iter().enumerate() {
                walk(&schema["items"], item, &format!("{field}[{index}]"), errors);
            }
        }
        Value::Object(fields) => {
            if let Some(most) = limit("maxProperties").filter(|most| length(fields.len()) > *most) {
                refuse(format!("must have at most {most} items"));
            }
            for (name, value) in fields {
                let field = format!("{field}.{name}");
                match schema["properties"]
                    .get(name)
                    .or_else(|| schema.get("additionalProperties"))
                {
                    Some(schema) => walk(schema, value, &field, errors),
                    None => errors.push(FieldError::new(field, "unknown field")),
                }
            }
            for name in schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
            {
                if !fields.contains_key(name) {
                    errors.push(FieldError::new(format!("{field}.{name}"), "Required value"));
                }
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

fn is_of_type(value: &Value, expected: &str) -> bool {
    match expected {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        _ => true,
    }
}

fn length(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}
