//! Reads what another version wrote, which may have values that this one does not know.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, map::Map};
use serde_path_to_error::{Path, Segment};

/// A field that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableField {
    /// The names of the members that lead to it.
    path: Vec<String>,
    /// Why not.
    pub message: String,
}

/// Reads `written` without the fields that cannot be read, which are as in an object that does not
/// have them. `None` if nothing can be read. A field of a list counts as the whole list.
#[must_use]
pub fn readable<T: DeserializeOwned>(written: &Value) -> Option<(T, Vec<UnreadableField>)> {
    let mut rest = written.clone();
    let mut unreadable = Vec::new();
    loop {
        let error = match serde_path_to_error::deserialize(&rest) {
            Ok(read) => return Some((read, unreadable)),
            Err(error) => error,
        };
        let field = UnreadableField {
            path: members(error.path()),
            message: error.inner().to_string(),
        };
        // Each turn removes a member, so that this ends.
        field.take_from(&mut rest)?;
        unreadable.push(field);
    }
}

/// Whether `read` has all that was written. An empty list may be left out.
#[must_use]
pub fn has_all(read: &Value, written: &Value) -> bool {
    match (read, written) {
        (Value::Object(read), Value::Object(written)) => written
            .iter()
            .all(|(name, written)| has_all(read.get(name).unwrap_or(&Value::Null), written)),
        (Value::Null, Value::Array(items)) => items.is_empty(),
        _ => read == written,
    }
}

/// Returns `value` with the `unreadable` fields as they are in `before`.
#[must_use]
pub fn with_fields_of<T>(value: T, before: &T, unreadable: &[UnreadableField]) -> T
where
    T: Serialize + DeserializeOwned,
{
    let (Ok(mut merged), Ok(before)) = (serde_json::to_value(&value), serde_json::to_value(before))
    else {
        return value;
    };
    for field in unreadable {
        let found = field.parent(&before).zip(field.path.last());
        let found = found.and_then(|(parent, name)| parent.get(name));
        if let Some(parent) = field.parent_of(&mut merged)
            && let Some(name) = field.path.last()
        {
            match found {
                Some(found) => parent.insert(name.clone(), found.clone()),
                None => parent.remove(name),
            };
        }
    }
    serde_json::from_value(merged).unwrap_or(value)
}

fn members(path: &Path) -> Vec<String> {
    let names = path.iter().map_while(|segment| match segment {
        Segment::Map { key } => Some(key.clone()),
        Segment::Seq { .. } | Segment::Enum { .. } | Segment::Unknown => None,
    });
    names.collect()
}

// === impl UnreadableField ===

impl UnreadableField {
    /// The path with dots between the names, such as `config.mode`.
    #[must_use]
    pub fn field(&self) -> String {
        self.path.join(".")
    }

    fn parent<'a>(&self, object: &'a Value) -> Option<&'a Map<String, Value>> {
        let (_, leading) = self.path.split_last()?;
        let parent = leading
            .iter()
            .try_fold(object, |value, name| value.get(name));
        parent?.as_object()
    }

    fn parent_of<'a>(&self, object: &'a mut Value) -> Option<&'a mut Map<String, Value>> {
        let (_, leading) = self.path.split_last()?;
        let parent = leading
            .iter()
            .try_fold(object, |value, name| value.get_mut(name));
        parent?.as_object_mut()
    }

    fn take_from(&self, object: &mut Value) -> Option<Value> {
        self.parent_of(object)?.remove(self.path.last()?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{NodeProxySpec, NodeProxyStatus, profile::mode::Mode};

    /// Failure story T264.
    #[test]
    fn t264_an_unknown_value_costs_its_field_and_no_other() {
        let mut written = serde_json::to_value(NodeProxyStatus::default()).expect("JSON");
        written["mode"] = json!("teleport");
        written["iptables"] = json!({"variant": "paper", "longestLockWait": "0s"});
        written["appliedHash"] = json!("abc");
        written["counts"] = json!({"services": 7});
        let (status, unreadable) = readable::<NodeProxyStatus>(&written).expect("the rest");
        assert_eq!(status.counts.services, 7);
        assert_eq!(status.applied_hash.expect("a hash").as_str(), "abc");
        assert_eq!((status.mode, status.iptables), (None, None));
        let mut fields: Vec<String> = unreadable.iter().map(UnreadableField::field).collect();
        fields.sort();
        // What lacks a required member is left out with it.
        assert_eq!(fields, ["iptables", "iptables.variant", "mode"]);
        assert!(readable::<NodeProxyStatus>(&json!("nothing")).is_none());
    }

    /// Failure story T264.
    #[test]
    fn t264_a_value_in_force_stays_where_the_next_is_unknown() {
        let mut before = NodeProxySpec::default();
        before.config.mode = Mode::Ipvs;
        let mut written = serde_json::to_value(NodeProxySpec::default()).expect("JSON");
        written["config"]["mode"] = json!("teleport");
        written["config"]["masquerade"]["all"] = json!(true);
        let (read, unreadable) = readable::<NodeProxySpec>(&written).expect("the rest");
        assert_ne!(read.config.mode, Mode::Ipvs);
        let merged = with_fields_of(read, &before, &unreadable);
        assert_eq!(merged.config.mode, Mode::Ipvs);
        assert!(merged.config.masquerade.all);
    }
}
