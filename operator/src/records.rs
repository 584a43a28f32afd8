//! The parts of Kubernetes objects that the fleet uses, parsed leniently: an object with an
//! unreadable part is still known by name and never stops its watch.

mod node;
mod report;
mod shared_specs;

use std::{collections::BTreeMap, sync::Arc};

use crds::{
    check::{self, FieldError},
    condition::{READY, reason::AGENT_SILENT},
    node_proxy::{Heartbeat, NodeProxySpec, NodeProxyStatus},
    profile::{ProxyProfile, ProxyProfileSpec, status::ProxyProfileStatus},
    span::Span,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use kube::core::DynamicObject;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

pub(crate) use self::{
    node::{KubeletHeartbeat, NodeRecord, Role, SlimNode},
    report::{Latency, Report},
    shared_specs::SharedSpecs,
};
use crate::{
    baseline::Baseline,
    clock_offset::{ClockOffset, ServerTime},
};

/// The field manager of `NodeProxy.spec`.
pub(crate) const SPEC_FIELD_MANAGER: &str = "signpost-operator";
/// The field manager of the agents' statuses.
const AGENT_FIELD_MANAGER: &str = "signpost-agent";
/// The field manager of `ProxyProfile.status`, and of the silence of an agent in
/// `NodeProxy.status`.
pub(crate) const STATUS_FIELD_MANAGER: &str = "signpost-operator-status";
/// The label of a `NodeProxy` that names the profile.
pub(crate) const PROFILE_LABEL: &str = "signpost.dev/profile";
/// The label of a `NodeProxy` that names the node.
pub(crate) const NODE_LABEL: &str = "signpost.dev/node";
/// The annotation of a `NodeProxy` that holds, as JSON, the last spec before this one with which
/// the node was ready. A rollback restores it. It is stored on the node's own object, so that a
/// rollback needs no other object, even right after the operator has started.
pub(crate) const PREVIOUS_ANNOTATION: &str = "signpost.dev/previous";

/// The annotation of a `NodeProxy` that holds, as JSON, the state of the node when it was assigned
/// this spec.
pub(crate) const BASELINE_ANNOTATION: &str = "signpost.dev/baseline";

/// The version of an object, to find the newer of two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectVersion {
    uid: String,
    resource: Option<u64>,
}

/// An object that the fleet keeps by name.
pub(crate) trait Record {
    /// The object's name.
    fn name(&self) -> &str;
    /// The version of the object.
    fn version(&self) -> &ObjectVersion;
    /// Whether this object leads to the same decisions as `other`.
    fn is_equivalent_to(&self, other: &Self) -> bool;
}

/// One profile.
#[derive(Clone, Debug)]
pub(crate) struct ProfileRecord {
    /// The profile. If its spec cannot be read: a stand-in that the ranking rejects, with the name,
    /// age and priority of the object.
    pub(crate) profile: ProxyProfile,
    /// Why the spec cannot be read.
    pub(crate) unreadable: Vec<FieldError>,
    /// Whether the whole status can be read; if not, it is written anew.
    pub(crate) is_status_whole: bool,
    version: ObjectVersion,
}

/// The `NodeProxy` of one node: its assigned configuration and the agent's report.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeProxyRecord {
    /// Its name, which is that of its node.
    pub(crate) name: String,
    /// Its UID.
    pub(crate) uid: String,
    /// The generation of its spec.
    pub(crate) generation: i64,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// The UIDs of its owners.
    pub(crate) owners: Vec<String>,
    /// The assigned spec, or those of its fields that can be read; absent if there is none.
    pub(crate) spec: Option<Arc<NodeProxySpec>>,
    /// Whether that is the whole spec. If another version wrote more, the operator may replace it,
    /// but never writes it: the node would lose the rest.
    pub(crate) is_spec_whole: bool,
    /// The last spec before this one with which the node was ready.
    pub(crate) previous: Option<Arc<NodeProxySpec>>,
    /// The state of the node when it was assigned this spec.
    pub(crate) baseline: Option<Baseline>,
    /// When the operator last changed the spec, in whole seconds.
    pub(crate) assigned_at: Option<ServerTime>,
    /// When the agent last wrote its status, likewise.
    pub(crate) reported_at: Option<ServerTime>,
    /// The agent's status; absent before the first report, or if it cannot be read.
    pub(crate) status: Option<Report>,
    /// Whether there is a status, also one that cannot be read.
    pub(crate) has_status: bool,
    /// The finalizers that its deletion waits for; none unless it was deleted.
    pub(crate) pending_finalizers: Vec<String>,
    version: ObjectVersion,
}

// === impl ObjectVersion ===

impl ObjectVersion {
    /// Returns the version of an object.
    pub(crate) fn of(metadata: &ObjectMeta) -> Self {
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            resource: metadata
                .resource_version
                .as_deref()
                .and_then(|version| version.parse().ok()),
        }
    }

    fn text(&self) -> Option<String> {
        self.resource.map(|version| version.to_string())
    }

    /// Whether this is an older version of the same object. A watch may deliver one after the
    /// answer to the operator's own write has brought the newer one.
    pub(crate) fn is_before(&self, known: &Self) -> bool {
        self.uid == known.uid
            && self
                .resource
                .zip(known.resource)
                .is_some_and(|(this, known)| this < known)
    }
}

// === impl ProfileRecord ===

impl ProfileRecord {
    /// Parses `object`. Unknown fields are ignored, so that a newer CustomResourceDefinition does
    /// not invalidate the profile; the ranking checks the known fields.
    pub(crate) fn parse(object: DynamicObject) -> Self {
        let version = ObjectVersion::of(&object.metadata);
        let field = |name: &str| object.data.get(name).cloned().unwrap_or(Value::Null);
        let written = object.data.get("status");
        let is_status_whole =
            written.is_none_or(|status| ProxyProfileStatus::deserialize(status).is_ok());
        let status = written.and_then(readable);
        let spec = match field("spec") {
            Value::Null => Ok(ProxyProfileSpec::default()),
            spec => serde_json::from_value::<ProxyProfileSpec>(spec),
        };
        let (spec, unreadable) = match spec {
            Ok(spec) => (spec, Vec::new()),
            Err(error) => (refused_stand_in(&object.data), explain(&object, &error)),
        };
        let profile = ProxyProfile {
            metadata: object.metadata,
            spec,
            status,
        };
        Self {
            profile,
            unreadable,
            is_status_whole,
            version,
        }
    }

    /// The generation of its spec.
    pub(crate) fn generation(&self) -> i64 {
        self.profile.metadata.generation.unwrap_or_default()
    }

    /// Returns the resource version of the object.
    pub(crate) fn resource_version(&self) -> Option<String> {
        self.version.text()
    }

    /// Returns the last written status.
    pub(crate) fn status(&self) -> ProxyProfileStatus {
        self.profile.status.clone().unwrap_or_default()
    }

    /// Returns all errors that invalidate the profile; empty if it is valid.
    pub(crate) fn errors(&self) -> Vec<FieldError> {
        if self.unreadable.is_empty() {
            check::check(&self.profile.spec)
        } else {
            self.unreadable.clone()
        }
    }
}

impl Record for ProfileRecord {
    fn name(&self) -> &str {
        self.profile.metadata.name.as_deref().unwrap_or_default()
    }

    fn version(&self) -> &ObjectVersion {
        &self.version
    }

    fn is_equivalent_to(&self, other: &Self) -> bool {
        self.version == other.version
    }
}

/// Reads a status or a spec, or of one that another version wrote the fields that can be read.
/// Without them the operator would forget verdicts, judge healthy nodes, and change all nodes at
/// once.
pub(crate) fn readable<T: DeserializeOwned>(written: &Value) -> Option<T> {
    let whole = T::deserialize(written).ok();
    whole.or_else(|| {
        let mut fields = written.as_object()?.clone();
        fields.retain(|name, value| {
            let alone = serde_json::Map::from_iter([(name.clone(), value.clone())]);
            T::deserialize(&Value::Object(alone)).is_ok()
        });
        T::deserialize(&Value::Object(fields)).ok()
    })
}

/// Returns a spec that no check accepts, because a `syncPeriod` is at least a second. The ranking
/// therefore holds the nodes of an unreadable profile like those of an invalid one.
fn refused_stand_in(data: &Value) -> ProxyProfileSpec {
    let priority = data
        .pointer("/spec/priority")
        .and_then(Value::as_i64)
        .and_then(|number| i32::try_from(number).ok());
    ProxyProfileSpec {
        priority: priority.unwrap_or(ProxyProfileSpec::DEFAULT_PRIORITY),
        sync_period: Span::ZERO,
        min_sync_period: Span::ZERO,
        ..ProxyProfileSpec::default()
    }
}

fn explain(object: &DynamicObject, error: &serde_json::Error) -> Vec<FieldError> {
    let plain = || {
        vec![FieldError {
            field: "spec".to_owned(),
            message: error.to_string(),
        }]
    };
    let Ok(whole) = serde_json::to_value(object) else {
        return plain();
    };
    match check::parse(&whole) {
        Err(errors) if !errors.is_empty() => errors,
        _ => plain(),
    }
}

// === impl NodeProxyRecord ===

impl NodeProxyRecord {
    /// Parses `object`. Its specs are those of `shared` where they are equal.
    pub(crate) fn parse(object: DynamicObject, shared: &mut SharedSpecs) -> Self {
        let DynamicObject { metadata, data, .. } = object;
        let version = ObjectVersion::of(&metadata);
        let annotation = |key: &str| metadata.annotations.as_ref()?.get(key);
        let previous = annotation(PREVIOUS_ANNOTATION);
        let baseline = annotation(BASELINE_ANNOTATION);
        let written = |manager: &'static str, subresource: &'static str| {
            let entries = metadata.managed_fields.iter().flatten();
            let entries = entries.filter(move |entry| {
                entry.manager.as_deref() == Some(manager)
                    && entry.subresource.as_deref().unwrap_or_default() == subresource
            });
            entries.filter_map(|entry| entry.time.as_ref()).max()
        };
        let created = metadata.creation_timestamp.as_ref();
        let server_time = |time: &Time| ServerTime::new(time.0);
        let spec = data.get("spec").map(|spec| shared.read(spec));
        let previous = previous.and_then(|text| serde_json::from_str(text).ok());
        let previous = previous.map(|previous: Value| shared.read(&previous));
        Self {
            is_spec_whole: spec.as_ref().is_none_or(|spec| spec.is_whole),
            spec: spec.and_then(|spec| spec.read),
            // The next change of the node removes one that cannot be read.
            previous: previous
                .filter(|previous| previous.is_whole)
                .and_then(|previous| previous.read),
            baseline: baseline.and_then(|text| serde_json::from_str(text).ok()),
            assigned_at: written(SPEC_FIELD_MANAGER, "").or(created).map(server_time),
            reported_at: written(AGENT_FIELD_MANAGER, "status").map(server_time),
            has_status: data.get("status").is_some_and(|status| !status.is_null()),
            status: data
                .get("status")
                .and_then(readable)
                .map(|status: NodeProxyStatus| status.into()),
            owners: metadata
                .owner_references
                .into_iter()
                .flatten()
                .map(|owner| owner.uid)
                .collect(),
            pending_finalizers: metadata
                .deletion_timestamp
                .and(metadata.finalizers)
                .unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
            version,
        }
    }
}

impl NodeProxyRecord {
    /// Reads the times of the API server's clock by that of the operator's; those of `known`, this
    /// object as it was read before, remain.
    pub(crate) fn correct_times(&mut self, offset: ClockOffset, known: Option<&Self>) {
        let (assigned, reported) =
            known.map_or((None, None), |known| (known.assigned_at, known.reported_at));
        self.assigned_at = self.assigned_at.map(|time| time.correct(offset, assigned));
        self.reported_at = self.reported_at.map(|time| time.correct(offset, reported));
    }

    /// Returns a condition that the agent reported.
    pub(crate) fn condition(&self, kind: &str) -> Option<&Condition> {
        let mut conditions = self.status.as_ref()?.conditions.iter();
        conditions.find(|condition| condition.type_ == kind)
    }

    /// Whether the node's agent renews a Lease.
    pub(crate) fn renews_lease(&self) -> bool {
        let status = self.status.as_ref();
        status.is_some_and(|status| status.heartbeat == Some(Heartbeat::Lease))
    }

    /// Whether its condition Ready states that the agent is silent.
    pub(crate) fn is_marked_silent(&self) -> bool {
        self.condition(READY)
            .is_some_and(|ready| ready.reason == AGENT_SILENT.name)
    }

    /// Returns the assigned spec if the whole of it can be read: only then may another object have
    /// it.
    pub(crate) fn whole_spec(&self) -> Option<&Arc<NodeProxySpec>> {
        self.spec.as_ref().filter(|_| self.is_spec_whole)
    }

    /// Returns the resource version of the object.
    pub(crate) fn resource_version(&self) -> Option<String> {
        self.version.text()
    }
}

impl Record for NodeProxyRecord {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> &ObjectVersion {
        &self.version
    }

    /// Statuses that differ in the time of the last sync only, which agents up to version 0.1 write every
    /// five minutes: it is used only to detect a silent agent without a Lease.
    fn is_equivalent_to(&self, other: &Self) -> bool {
        let mut renewed = Self {
            version: other.version.clone(),
            ..self.clone()
        };
        if let (Some(status), Some(latest)) = (&mut renewed.status, &other.status)
            && status.heartbeat.is_some()
        {
            status.last_sync_time.clone_from(&latest.last_sync_time);
            renewed.reported_at = other.reported_at;
        }
        renewed == *other
    }
}
