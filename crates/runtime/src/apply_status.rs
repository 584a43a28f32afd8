//! Writes of a status to an API server whose definition of the kind may be older than the program.
//!
//! A server-side apply with a field that the definition does not have is refused as a whole: nothing
//! at all would be known of the object. Other writes drop such a field.

use std::collections::BTreeSet;

use kube::api::{Api, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Client, Error};
use serde_json::Value;

/// A status as the API server took it.
#[derive(Clone, Debug)]
pub struct AppliedStatus {
    /// The object as it is now.
    pub object: DynamicObject,
    /// The fields of the status that the API server's definition does not have, such as
    /// `history[].phase`. They were left out.
    pub left_out: BTreeSet<String>,
}

/// Applies `object`, whose status the field manager `manager` owns, without the fields that the API
/// server does not know.
///
/// A rehearsal as a merge patch shows which they are, whatever the words of the refusal. The write
/// itself is always an apply: fields written in another way have another owner, and no later apply
/// would remove them.
///
/// # Errors
///
/// What the API server answers; the refusal of the apply if it is about something else.
pub async fn apply_status(
    client: &Client,
    resource: &ApiResource,
    name: &str,
    manager: &str,
    mut object: Value,
) -> Result<AppliedStatus, Error> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    let parameters = PatchParams::apply(manager).force();
    let refusal = match api
        .patch_status(name, &parameters, &Patch::Apply(&object))
        .await
    {
        Ok(object) => {
            return Ok(AppliedStatus {
                object,
                left_out: BTreeSet::new(),
            });
        }
        Err(error) if may_be_about_a_field(&error) => error,
        Err(error) => return Err(error),
    };
    let rehearsal = PatchParams {
        dry_run: true,
        field_manager: Some(manager.to_owned()),
        ..PatchParams::default()
    };
    // Its own refusal is about what is wrong besides unknown fields.
    let taken = api
        .patch_status(name, &rehearsal, &Patch::Merge(&object))
        .await?;
    let mut left_out = BTreeSet::new();
    if let Some(status) = object.get_mut("status")
        && let Some(taken) = taken.data.get("status")
    {
        leave_out(status, taken, "", &mut left_out);
    }
    if left_out.is_empty() {
        return Err(refusal);
    }
    let object = api
        .patch_status(name, &parameters, &Patch::Apply(&object))
        .await?;
    Ok(AppliedStatus { object, left_out })
}

/// Whether `error` may say that a field is not in the definition: the API server answers 500
/// (kubernetes#139253), which it may correct to 400 or 422.
fn may_be_about_a_field(error: &Error) -> bool {
    matches!(error, Error::Api(status) if matches!(status.code, 400 | 422 | 500))
}

/// Removes from `sent` what `taken` does not have, and adds the paths to `left_out`.
fn leave_out(sent: &mut Value, taken: &Value, path: &str, left_out: &mut BTreeSet<String>) {
    match (sent, taken) {
        (Value::Object(sent), Value::Object(taken)) => sent.retain(|name, sent| {
            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            match taken.get(name) {
                Some(taken) => leave_out(sent, taken, &path, left_out),
                // A merge patch removes such a field.
                None if sent.is_null() => {}
                None => {
                    left_out.insert(path);
                    return false;
                }
            }
            true
        }),
        (Value::Array(sent), Value::Array(taken)) => {
            for (sent, taken) in sent.iter_mut().zip(taken) {
                leave_out(sent, taken, &format!("{path}[]"), left_out);
            }
        }
        _ => {}
    }
}

/// Returns `status` without these fields, as [`AppliedStatus::left_out`] names them.
#[must_use]
pub fn without_fields(mut status: Value, fields: &BTreeSet<String>) -> Value {
    for field in fields {
        let path: Vec<&str> = field.split('.').collect();
        remove(&mut status, &path);
    }
    status
}

fn remove(value: &mut Value, path: &[&str]) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    let name = first.trim_end_matches("[]");
    if rest.is_empty() {
        value.as_object_mut().and_then(|object| object.remove(name));
        return;
    }
    match value.get_mut(name) {
        Some(Value::Array(items)) => items.iter_mut().for_each(|item| remove(item, rest)),
        Some(value) => remove(value, rest),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response, header};
    use kube::client::Body;
    use serde_json::json;
    use tower::{BoxError, service_fn};

    use super::*;

    /// An API server whose definition has only these fields in the status and in its list: it
    /// answers an apply with others as kube-apiserver 1.36 does.
    async fn answer(request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let kind = request.headers()[header::CONTENT_TYPE].to_str()?.to_owned();
        let is_rehearsal = request
            .uri()
            .query()
            .unwrap_or_default()
            .contains("dryRun=All");
        let body = request.into_body().collect_bytes().await?;
        let sent: Value = serde_json::from_slice(&body)?;
        let mut known = sent.clone();
        if let Some(status) = known["status"].as_object_mut() {
            status.retain(|name, _| ["phase", "history", "old"].contains(&name.as_str()));
            for item in status["history"].as_array_mut().into_iter().flatten() {
                if let Some(item) = item.as_object_mut() {
                    item.retain(|name, _| name == "hash");
                }
            }
        }
        let is_apply = kind.contains("apply");
        assert_ne!(is_apply, is_rehearsal, "only applies are written");
        let (code, answer) = if is_apply && known != sent {
            let message = "failed to create typed patch object (/n1; signpost.dev/v1alpha1, Kind=NodeProxy): .status.wave: field not declared in schema";
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": message, "code": 500,
            });
            (500, status)
        } else {
            known["status"]["old"] = "of another manager".into();
            (200, known)
        };
        let response = Response::builder().status(code);
        Ok(response.body(Body::from(answer.to_string().into_bytes()))?)
    }

    async fn apply(status: Value) -> Result<(Value, Vec<String>), Error> {
        let client = Client::new(service_fn(answer), "default");
        let resource = ApiResource {
            group: "signpost.dev".to_owned(),
            version: "v1alpha1".to_owned(),
            api_version: "signpost.dev/v1alpha1".to_owned(),
            kind: "NodeProxy".to_owned(),
            plural: "nodeproxies".to_owned(),
        };
        let object = json!({
            "apiVersion": "signpost.dev/v1alpha1", "kind": "NodeProxy",
            "metadata": {"name": "n1", "resourceVersion": "7"}, "status": status,
        });
        let applied = apply_status(&client, &resource, "n1", "tests", object).await?;
        let left_out = applied.left_out.into_iter().collect();
        Ok((applied.object.data["status"].clone(), left_out))
    }

    /// Failure story T220. Nothing at all was written.
    #[tokio::test]
    async fn t220_a_status_is_written_without_the_fields_of_a_newer_definition()
    -> Result<(), Box<dyn std::error::Error>> {
        let history = json!([{"hash": "a", "until": 1}, {"hash": "b"}]);
        let (written, left_out) =
            apply(json!({"phase": "a", "wave": 2, "history": history})).await?;
        let known = json!([{"hash": "a"}, {"hash": "b"}]);
        let other = "of another manager";
        assert_eq!(
            written,
            json!({"phase": "a", "history": known, "old": other})
        );
        assert_eq!(left_out, ["history[].until", "wave"]);

        let (_, left_out) = apply(json!({"phase": "a", "history": []})).await?;
        assert!(left_out.is_empty());
        Ok(())
    }

    #[test]
    fn the_fields_that_were_left_out_can_be_left_out_again() {
        let status = json!({"phase": "a", "wave": 2, "history": [{"hash": "a", "until": 1}]});
        let fields = ["history[].until", "wave", "absent.field"].map(str::to_owned);
        let rest = without_fields(status, &fields.into());
        assert_eq!(rest, json!({"phase": "a", "history": [{"hash": "a"}]}));
    }
}
