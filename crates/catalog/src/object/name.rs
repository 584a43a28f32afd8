//! Names that the API server accepts. An object with any other name is never programmed: names
//! appear in the kernel's rules, in status and in log lines.

use std::sync::Arc;

use dataplane::ObjectKind;
use thiserror::Error;

use super::Object;
use super::field::quoted;
use crate::{Event, ObjectKey};

/// The maximum length of an RFC 1123 label, in bytes.
const LONGEST_LABEL: usize = 63;
/// The maximum length of an RFC 1123 host name, in bytes.
const LONGEST_SUBDOMAIN: usize = 253;

/// A name that no API server accepts.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{} is not {form}", quoted(name))]
pub struct BadName {
    /// The field with the name.
    pub field: &'static str,
    name: Arc<str>,
    form: &'static str,
}

/// Checks whether an API server accepts `key` for an object of `kind`.
///
/// # Errors
///
/// Returns the field that it would refuse.
pub fn check_key(kind: ObjectKind, key: &ObjectKey) -> Result<(), BadName> {
    let bad = |field, name: &Arc<str>, form| {
        Err(BadName {
            field,
            name: Arc::clone(name),
            form,
        })
    };
    let is_namespaced = match kind {
        ObjectKind::Service | ObjectKind::EndpointSlice => true,
        ObjectKind::Node | ObjectKind::ServiceCidr | ObjectKind::ProxyProfile => false,
    };
    if is_namespaced && !is_label(&key.namespace) {
        return bad("metadata.namespace", &key.namespace, LABEL);
    }
    match kind {
        // Before Kubernetes 1.36 the first character has to be a letter (KEP-5311).
        ObjectKind::Service if !is_label(&key.name) => bad("metadata.name", &key.name, LABEL),
        _ if !is_subdomain(&key.name) => bad("metadata.name", &key.name, SUBDOMAIN),
        _ => Ok(()),
    }
}

/// The error text for a name that is not a label.
pub(crate) const LABEL: &str = "an RFC 1123 label (1 to 63 of a-z, 0-9 and -, with - only inside)";
const SUBDOMAIN: &str =
    "an RFC 1123 subdomain (1 to 253 of a-z, 0-9, - and ., with - and . only inside)";

/// Whether `text` is an RFC 1123 label, in lower case.
pub(crate) fn is_label(text: &str) -> bool {
    text.len() <= LONGEST_LABEL && is_part(text)
}

/// Whether `text` is a label of any length.
fn is_part(text: &str) -> bool {
    let outer = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = text.bytes().next().into_iter().chain(text.bytes().last());
    !text.is_empty()
        && ends.into_iter().all(outer)
        && text.bytes().all(|byte| outer(byte) || byte == b'-')
}

/// Labels separated by dots. Only the total length is limited, as in the API server.
fn is_subdomain(text: &str) -> bool {
    text.len() <= LONGEST_SUBDOMAIN && text.split('.').all(is_part)
}

/// Returns `event`; an object whose name no API server accepts is treated as one that cannot be
/// decoded: the name is reported in a form that fits a line, and the object is not kept.
pub(crate) fn admit<T: Object>(event: Event<T>) -> Event<T> {
    let (object, admitted): (T, fn(T) -> Event<T>) = match event {
        Event::Apply(object) => (object, Event::Apply),
        Event::InitApply(object) => (object, Event::InitApply),
        Event::Delete(key) => return Event::Delete(presentable(T::KIND, key)),
        Event::Undecodable {
            key,
            field,
            message,
        } => {
            return Event::Undecodable {
                key: presentable(T::KIND, key),
                field,
                message,
            };
        }
        Event::Init | Event::InitDone => return event,
    };
    let key = object.key();
    match check_key(T::KIND, &key) {
        Ok(()) => admitted(object),
        Err(bad) => Event::Undecodable {
            key: presentable(T::KIND, key),
            field: bad.field.to_owned(),
            message: format!("{bad}; the object is left out"),
        },
    }
}

/// Returns the key unchanged if an API server accepts it, otherwise truncated and escaped.
fn presentable(kind: ObjectKind, key: ObjectKey) -> ObjectKey {
    if check_key(kind, &key).is_ok() {
        return key;
    }
    let shown = |text: &str| -> String {
        let start = text.chars().take(LONGEST_LABEL);
        start.flat_map(char::escape_debug).collect()
    };
    ObjectKey::namespaced(shown(&key.namespace), shown(&key.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_as_the_api_server_takes_them() {
        let label = "a".repeat(LONGEST_LABEL);
        let long = format!("{}.{}", "a".repeat(200), "b".repeat(52));
        for (name, as_label, as_subdomain) in [
            ("cart", true, true),
            ("7-cart", true, true),
            (&label, true, true),
            (&format!("{label}a"), false, true),
            ("a.b-c.d", false, true),
            (&long, false, true),
            (&format!("{long}b"), false, false),
            ("", false, false),
            ("Cart", false, false),
            ("cart\n", false, false),
            ("a\nCOMMIT", false, false),
            ("a b", false, false),
            ("a/b", false, false),
            ("a\"b", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("a..b", false, false),
            ("a.-b", false, false),
            ("ä", false, false),
            ("a\0", false, false),
        ] {
            let of = |kind, namespace: &str| {
                check_key(kind, &ObjectKey::namespaced(namespace, name)).is_ok()
            };
            assert_eq!(of(ObjectKind::Service, "shop"), as_label, "{name:?}");
            for (kind, namespace) in [
                (ObjectKind::EndpointSlice, "shop"),
                (ObjectKind::Node, ""),
                (ObjectKind::ServiceCidr, ""),
                (ObjectKind::ProxyProfile, ""),
            ] {
                assert_eq!(of(kind, namespace), as_subdomain, "{kind} {name:?}");
            }
            let key = ObjectKey::namespaced(name, "cart");
            assert_eq!(check_key(ObjectKind::Service, &key).is_ok(), as_label);
        }
    }

    #[test]
    fn what_is_shown_of_a_bad_name_is_short_and_one_line() {
        let key = ObjectKey::namespaced("x".repeat(1 << 20), "a\n* COMMIT");
        let bad = check_key(ObjectKind::Service, &key).expect_err("it is bad");
        assert_eq!(bad.field, "metadata.namespace");
        assert!(bad.to_string().len() < 300);
        let shown = presentable(ObjectKind::Service, key);
        assert_eq!(&*shown.name, "a\\n* COMMIT");
        assert_eq!(shown.namespace.len(), LONGEST_LABEL);
    }
}
