//! Manifests: text in, objects and errors out.

use std::cell::OnceCell;
use std::sync::Arc;

use catalog::ObjectKey;
use catalog::object::{EndpointSlice, Node, Object, Service, ServiceCidr, check_key};
use crds::ProxyProfile;
use dataplane::{ObjectKind, ObjectName};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::UserMessageFormatter;

use super::line::Located;

/// An object of a supported kind.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Manifest {
    /// v1 Service.
    Service(Box<Service>),
    /// discovery.k8s.io/v1 EndpointSlice.
    EndpointSlice(EndpointSlice),
    /// v1 Node.
    Node(Node),
    /// networking.k8s.io/v1 ServiceCIDR.
    ServiceCidr(ServiceCidr),
    /// signpost.dev/v1alpha1 ProxyProfile.
    Profile(Box<ProxyProfile>),
}

/// An entry of a file; a file's entries are in order.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Entry {
    /// An object.
    Good {
        /// Its name.
        name: ObjectName,
        /// The line it begins at.
        line: Option<u64>,
        /// The object.
        manifest: Box<Manifest>,
    },
    /// Something meant as an object that cannot be used.
    Bad(Fault),
    /// An object of an unsupported kind.
    Ignored {
        /// Its kind.
        kind: String,
    },
}

/// An error in an object, or in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// The line, counted from one.
    pub(super) line: Option<u64>,
    /// The object, if it can be identified.
    pub(super) object: Option<ObjectName>,
    /// The error.
    pub(super) message: String,
}

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// YAML documents, separated by `---`.
    Yaml,
    /// JSON values, one after the other.
    Json,
}

/// One document of a file.
struct Document<'a> {
    text: &'a str,
    /// The lines before it.
    lines_before: usize,
    value: Value,
    /// Computed on first use.
    places: OnceCell<Option<Located>>,
}

/// An object within a document.
struct ObjectPosition<'a> {
    document: &'a Document<'a>,
    /// Its path in the document: empty, or `items[3]`.
    path: String,
    value: &'a Value,
}

/// The maximum nesting depth. The supported objects nest a dozen levels, in a list two more. The
/// parser would allow 255, which overflow a thread's stack. Finding lines needs the most stack; in
/// a build without optimisation 64 levels are already too many.
const MAX_DEPTH: usize = 32;
/// The maximum number of events that a document's aliases may expand to.
const ALIASED_EVENTS: usize = 100_000;
/// The maximum amount of text that aliases may expand to in a short document.
const ALIASED_BYTES: usize = 1 << 20;

/// Parses all entries of a file.
///
/// # Errors
///
/// Fails if the file as a whole is invalid, so that no object in it can be identified.
pub(super) fn parse(text: &str, format: Format) -> Result<Vec<Entry>, Fault> {
    let documents = match format {
        Format::Yaml => parse_yaml(text)?,
        Format::Json => parse_json(text)?,
    };
    let mut entries = Vec::new();
    for document in &documents {
        let place = ObjectPosition {
            document,
            path: String::new(),
            value: &document.value,
        };
        place.read(None, &mut entries);
    }
    Ok(entries)
}

fn parse_yaml(text: &str) -> Result<Vec<Document<'_>>, Fault> {
    let mut documents = Vec::new();
    for (lines_before, text) in split_yaml(text) {
        let value = parse_value(text).map_err(|error| {
            // The error's location is relative to the parsed text: prepend the lines before it.
            let shifted = "\n".repeat(lines_before) + text;
            let error = parse_value(&shifted).err().unwrap_or(error);
            Fault {
                line: error.location().map(|location| location.line()),
                object: None,
                message: error.render_with_formatter(&UserMessageFormatter),
            }
        })?;
        documents.push(Document {
            text,
            lines_before,
            value,
            places: OnceCell::new(),
        });
    }
    Ok(documents)
}

fn parse_value(text: &str) -> Result<Value, serde_saphyr::Error> {
    serde_saphyr::from_str_with_options(text, options(text))
}

/// Splits a YAML file into documents, each with the number of lines before it. A line that starts
/// with `---` separates documents everywhere, even within a block of text.
fn split_yaml(text: &str) -> Vec<(usize, &str)> {
    let mut documents = Vec::new();
    let (mut begin, mut first_line) = (0, 0);
    let mut offset = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let separates = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        if separates && offset > begin {
            documents.push((first_line, &text[begin..offset]));
            (begin, first_line) = (offset, number);
        }
        offset += line.len();
    }
    documents.push((first_line, &text[begin..]));
    documents
}

fn parse_json(text: &str) -> Result<Vec<Document<'_>>, Fault> {
    let mut documents = Vec::new();
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let (mut begin, mut lines_before) = (0, 0);
    while let Some(value) = values.next() {
        let value = value.map_err(|error| Fault {
            line: u64::try_from(error.line()).ok(),
            object: None,
            message: error.to_string(),
        })?;
        let end = values.byte_offset();
        documents.push(Document {
            text: &text[begin..end],
            lines_before,
            value,
            places: OnceCell::new(),
        });
        lines_before += text[begin..end].matches('\n').count();
        begin = end;
    }
    Ok(documents)
}

/// The size of `text` is not limited: a cluster's Services in one List are well over the default.
/// What it expands to is limited: aliases make a small file large, and each level of nesting uses
/// stack.
pub(super) fn options(text: &str) -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_reader_input_bytes: None,
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            // Without aliases this cannot exceed the length of the text: no escape is shorter than
            // two thirds of what it expands to.
            max_total_scalar_bytes: text.len().saturating_mul(4).saturating_add(ALIASED_BYTES),
            // One anchor that many Services refer to is the purpose of aliases.
            enforce_alias_anchor_ratio: false,
            max_depth: MAX_DEPTH,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: ALIASED_EVENTS },
        with_snippet: false,
    }
}

// === impl Document ===

impl Document<'_> {
    /// The line at which the value at `path` begins.
    fn line_of(&self, path: &str) -> Option<u64> {
        let places = self.places.get_or_init(|| Located::parse(self.text));
        let within = places.as_ref()?.line_of(path)?;
        Some(within + u64::try_from(self.lines_before).ok()?)
    }

    /// The line at which the first content other than comments begins.
    fn first_line(&self) -> Option<u64> {
        let blank = |line: &str| line.is_empty() || line.starts_with('#') || line == "---";
        let within = self.text.lines().position(|line| !blank(line.trim()))?;
        u64::try_from(self.lines_before + within + 1).ok()
    }
}

// === impl ObjectPosition ===

impl ObjectPosition<'_> {
    /// Reads an object, or a list of objects. Objects in a list may omit their apiVersion and kind
    /// if the list's own kind implies them (`typed`).
    fn read(&self, typed: Option<(&str, &str)>, entries: &mut Vec<Entry>) {
        // An empty document, or one with comments only.
        if self.value.is_null() {
            return;
        }
        let text = |field: &str| self.value.get(field).and_then(Value::as_str);
        let (version, kind) = match (text("apiVersion"), text("kind"), typed) {
            (Some(version), Some(kind), _) | (None, None, Some((version, kind))) => (version, kind),
            _ => {
                entries.push(self.bad(None, "", "apiVersion and kind have to be given"));
                return;
            }
        };
        match (kind.strip_suffix("List"), self.value.get("items")) {
            (Some(kind), Some(Value::Array(items))) => {
                let typed = (!kind.is_empty()).then_some((version, kind));
                for (index, value) in items.iter().enumerate() {
                    let item = ObjectPosition {
                        document: self.document,
                        path: format!("items[{index}]"),
                        value,
                    };
                    item.read(typed, entries);
                }
            }
            _ => entries.push(self.object(version, kind)),
        }
    }

    fn object(&self, version: &str, kind: &str) -> Entry {
        match (version, kind) {
            ("v1", "Service") => self.decode(|service| Manifest::Service(Box::new(service))),
            ("discovery.k8s.io/v1", "EndpointSlice") => self.decode(Manifest::EndpointSlice),
            ("v1", "Node") => self.decode(Manifest::Node),
            ("networking.k8s.io/v1", "ServiceCIDR") => self.decode(Manifest::ServiceCidr),
            ("signpost.dev/v1alpha1", "ProxyProfile") => self.profile(),
            _ => match known_version(version, kind) {
                Some(known) => {
                    let message =
                        format!("apiVersion {version} of {kind} is not read; write {known}");
                    self.bad(None, "apiVersion", &message)
                }
                None => Entry::Ignored {
                    kind: format!("{version} {kind}"),
                },
            },
        }
    }

    fn decode<T>(&self, manifest: fn(T) -> Manifest) -> Entry
    where
        T: Object + DeserializeOwned,
    {
        match serde_path_to_error::deserialize::<_, T>(self.value) {
            Ok(object) => match check(object.key().of_kind(T::KIND)) {
                Ok(name) => Entry::Good {
                    name,
                    line: self.line(""),
                    manifest: Box::new(manifest(object)),
                },
                Err((field, message)) => self.bad(None, field, &message),
            },
            Err(error) => {
                let field = error.path().to_string();
                let message = format!("{field}: {}", error.inner());
                self.bad(self.name(T::KIND), &field, &message)
            }
        }
    }

    fn profile(&self) -> Entry {
        let name = check(self.claimed_name(ObjectKind::ProxyProfile));
        match (crds::parse_profile(self.value), name) {
            (Ok(profile), Ok(name)) => Entry::Good {
                name,
                line: self.line(""),
                manifest: Box::new(Manifest::Profile(Box::new(profile))),
            },
            (_, Err((field, message))) => self.bad(None, field, &message),
            (Err(errors), Ok(name)) => {
                let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
                let field = errors.first().map_or("", |error| error.field.as_str());
                self.bad(Some(name), field, &messages.join("; "))
            }
        }
    }

    /// The object's name, if it has a valid one.
    fn name(&self, kind: ObjectKind) -> Option<ObjectName> {
        check(self.claimed_name(kind)).ok()
    }

    /// The name that the object gives for itself; empty if it gives none.
    fn claimed_name(&self, kind: ObjectKind) -> ObjectName {
        let metadata = self.value.get("metadata");
        let text = |field: &str| metadata?.get(field)?.as_str();
        let namespace = match kind {
            ObjectKind::Service | ObjectKind::EndpointSlice => text("namespace")
                .filter(|namespace| !namespace.is_empty())
                .unwrap_or("default"),
            ObjectKind::Node | ObjectKind::ServiceCidr | ObjectKind::ProxyProfile => "",
        };
        ObjectName {
            kind,
            namespace: namespace.into(),
            name: text("name").unwrap_or_default().into(),
        }
    }

    fn bad(&self, object: Option<ObjectName>, field: &str, message: &str) -> Entry {
        Entry::Bad(Fault {
            line: self.line(field),
            object,
            message: message.to_owned(),
        })
    }

    /// The line of a field of this object, or of the object itself if the field is empty.
    fn line(&self, field: &str) -> Option<u64> {
        if self.path.is_empty() && field.is_empty() {
            return self.document.first_line();
        }
        let found = self.document.line_of(&format!("{}.{field}", self.path));
        found.or_else(|| self.document.first_line())
    }
}

/// Returns `name` if an API server would accept it; otherwise the field that it would refuse, and
/// why.
fn check(name: ObjectName) -> Result<ObjectName, (&'static str, String)> {
    if name.name.is_empty() {
        let field = "metadata.name";
        return Err((field, format!("{field}: Required value")));
    }
    let key = ObjectKey::namespaced(Arc::clone(&name.namespace), Arc::clone(&name.name));
    match check_key(name.kind, &key) {
        Ok(()) => Ok(name),
        Err(bad) => Err((bad.field, format!("{}: {bad}", bad.field))),
    }
}

/// The supported apiVersion of a supported kind, if this is another version of it.
fn known_version(version: &str, kind: &str) -> Option<&'static str> {
    let group = version.rsplit_once('/').map_or("", |(group, _)| group);
    match (group, kind) {
        ("", "Service" | "Node") => Some("v1"),
        ("discovery.k8s.io", "EndpointSlice") => Some("discovery.k8s.io/v1"),
        ("networking.k8s.io", "ServiceCIDR") => Some("networking.k8s.io/v1"),
        ("signpost.dev", "ProxyProfile") => Some("signpost.dev/v1alpha1"),
        _ => None,
    }
}
