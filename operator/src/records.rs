//! The parts of Kubernetes objects the fleet is steered by, read leniently: an object of which a part cannot be read
//! is still known by name, and never stops the watch it came by.

use std::{borrow::Cow, collections::BTreeMap};

use crds::{
    check::{self, FieldError},
    condition::{READY, reason::AGENT_SILENT},
    node_proxy::{Heartbeat, NodeProxySpec, NodeProxyStatus},
    profile::{ProxyProfile, ProxyProfileSpec, status::ProxyProfileStatus},
    span::Span,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::{
    Resource,
    core::{ClusterResourceScope, DynamicObject},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::baseline::Baseline;

/// Who writes `NodeProxy.spec`, as its managed fields name it.
pub(crate) const STAMP_MANAGER: &str = "signpost-operator";
/// Who writes `ProxyProfile.status`, and in `NodeProxy.status` that the agent is silent.
pub(crate) const STATUS_MANAGER: &str = "signpost-operator-status";
/// The label of a `NodeProxy` that names the profile.
pub(crate) const PROFILE_LABEL: &str = "signpost.dev/profile";
/// The label of a `NodeProxy` that names the node.
pub(crate) const NODE_LABEL: &str = "signpost.dev/node";
/// The label with which a kubelet names its operating system. Agents are for Linux.
const OS_LABEL: &str = "kubernetes.io/os";
/// The label that names the zone of a node.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// The labels of nodes that run the control plane: the present one, and the one of clusters from before 1.24.
const CONTROL_PLANE_LABELS: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];
/// The annotation of a `NodeProxy` that holds, as JSON, the last spec before this one that the node was ready with: what
/// it goes back to. On the node's own object, because then nothing is needed but that object to take a change back,
/// also for an operator that was started a second ago.
pub(crate) const PREVIOUS_ANNOTATION: &str = "signpost.dev/previous";

/// The annotation of a `NodeProxy` that holds, as JSON, what the node was like when it was given this spec.
pub(crate) const BASELINE_ANNOTATION: &str = "signpost.dev/baseline";

/// Which of two versions of one object is the newer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version {
    uid: String,
    resource: Option<u64>,
}

/// Something the fleet keeps by name.
pub(crate) trait Record {
    /// The object's name.
    fn name(&self) -> &str;
    /// Which version of it this is.
    fn version(&self) -> &Version;
    /// Whether whatever is decided by this one is decided by `other` as well.
    fn decides_as(&self, other: &Self) -> bool;
}

/// One profile.
#[derive(Clone, Debug)]
pub(crate) struct ProfileRecord {
    /// The profile; a stand-in that the ranking refuses, with the name, age and priority of the object, when its spec cannot be read.
    pub(crate) profile: ProxyProfile,
    /// Why it cannot be read.
    pub(crate) unreadable: Vec<FieldError>,
    version: Version,
}

/// One node of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeRecord {
    /// Its name.
    pub(crate) name: String,
    /// Its identity: a node of the same name may come back as another one.
    pub(crate) uid: String,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Whether its kubelet is heard from.
    pub(crate) reach: Reach,
    version: Version,
}

/// Whether a node's kubelet is heard from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reach {
    /// It is, or nobody has said anything yet.
    Reachable,
    /// The node controller says it is not: what its agent last said need not be true any more.
    Unreachable,
}

/// What one node was given and what its agent says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeProxyRecord {
    /// Its name, which is that of its node.
    pub(crate) name: String,
    /// Its identity.
    pub(crate) uid: String,
    /// The generation of its spec.
    pub(crate) generation: i64,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// The identities of the objects that own it.
    pub(crate) owners: Vec<String>,
    /// What was stamped; absent when it cannot be read, which is as good as nothing.
    pub(crate) spec: Option<NodeProxySpec>,
    /// The last configuration before this one the node was ready with.
    pub(crate) previous: Option<NodeProxySpec>,
    /// What the node was like when it was given this one.
    pub(crate) baseline: Option<Baseline>,
    /// When the operator last changed it, on the API server's clock and in whole seconds.
    pub(crate) stamped_at: Option<Timestamp>,
    /// What the agent says; absent before it has said anything, or when it cannot be read.
    pub(crate) status: Option<NodeProxyStatus>,
    version: Version,
}

/// The few fields of a Node that matter here. A whole one carries every image on its disk.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct SlimNode {
    /// Name, identity, labels.
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    /// What the node controller says.
    #[serde(default)]
    pub(crate) status: SlimNodeStatus,
}

/// What the node controller says about a node.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct SlimNodeStatus {
    /// Its conditions.
    #[serde(default)]
    pub(crate) conditions: Vec<SlimCondition>,
}

/// A condition, as far as it is read.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SlimCondition {
    /// Which.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// True, False or Unknown.
    pub(crate) status: String,
}

// === impl Version ===

impl Version {
    fn of(metadata: &ObjectMeta) -> Self {
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            resource: metadata
                .resource_version
                .as_deref()
                .and_then(|version| version.parse().ok()),
        }
    }

    /// Whether this is an older version of the same object: what a watch may still bring after the answer to a write of
    /// ours has brought the newer one.
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
    /// Reads `object`. Fields this version does not know are passed over, so that a newer CustomResourceDefinition does
    /// not take the profile away; what is wrong with the fields it knows is for the ranking to say.
    pub(crate) fn parse(object: DynamicObject) -> Self {
        let version = Version::of(&object.metadata);
        let field = |name: &str| object.data.get(name).cloned().unwrap_or(Value::Null);
        let status = serde_json::from_value::<ProxyProfileStatus>(field("status")).ok();
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
            version,
        }
    }

    /// The generation of its spec.
    pub(crate) fn generation(&self) -> i64 {
        self.profile.metadata.generation.unwrap_or_default()
    }

    /// What was last said about it.
    pub(crate) fn status(&self) -> ProxyProfileStatus {
        self.profile.status.clone().unwrap_or_default()
    }

    /// Everything that keeps it from deciding; empty when nothing does.
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

    fn version(&self) -> &Version {
        &self.version
    }

    fn decides_as(&self, other: &Self) -> bool {
        self.version == other.version
    }
}

/// A spec no check accepts, since a syncPeriod is at least a second, so that the ranking holds the nodes of an unreadable
/// profile as it holds those of an invalid one.
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

// === impl SlimNode ===

impl Resource for SlimNode {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        "Node".into()
    }

    fn group(_: &()) -> Cow<'_, str> {
        "".into()
    }

    fn version(_: &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural(_: &()) -> Cow<'_, str> {
        "nodes".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

// === impl NodeRecord ===

impl NodeRecord {
    /// Reads `node`.
    pub(crate) fn parse(node: SlimNode) -> Self {
        let version = Version::of(&node.metadata);
        let ready = node
            .status
            .conditions
            .iter()
            .find(|condition| condition.kind == "Ready");
        Self {
            name: node.metadata.name.unwrap_or_default(),
            uid: node.metadata.uid.unwrap_or_default(),
            labels: node.metadata.labels.unwrap_or_default(),
            reach: match ready {
                Some(ready) if ready.status != "True" => Reach::Unreachable,
                _ => Reach::Reachable,
            },
            version,
        }
    }
}

/// What a node is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Pods.
    Worker,
    /// The control plane, and perhaps Pods.
    ControlPlane,
}

impl NodeRecord {
    /// The zone it is in; empty where nothing says so.
    pub(crate) fn zone(&self) -> &str {
        self.labels.get(ZONE_LABEL).map_or("", String::as_str)
    }

    /// What it is for.
    pub(crate) fn role(&self) -> Role {
        let runs_it = CONTROL_PLANE_LABELS
            .iter()
            .any(|label| self.labels.contains_key(*label));
        if runs_it {
            Role::ControlPlane
        } else {
            Role::Worker
        }
    }

    /// Why no agent can run on it, as the label that says so; absent where one can.
    pub(crate) fn without_agent(&self) -> Option<String> {
        let os = self.labels.get(OS_LABEL).filter(|os| *os != "linux");
        let os = os.map(|os| format!("{OS_LABEL}={os}"));
        os.or_else(|| {
            let is_virtual = self
                .labels
                .get("type")
                .is_some_and(|kind| kind == "virtual-kubelet");
            is_virtual.then(|| "type=virtual-kubelet".to_owned())
        })
    }
}

impl Record for NodeRecord {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> &Version {
        &self.version
    }

    /// A kubelet writes the status of its Node every five minutes, and mostly the same.
    fn decides_as(&self, other: &Self) -> bool {
        let version = other.version.clone();
        *other
            == Self {
                version,
                ..self.clone()
            }
    }
}

// === impl NodeProxyRecord ===

impl NodeProxyRecord {
    /// Reads `object`.
    pub(crate) fn parse(object: DynamicObject) -> Self {
        let DynamicObject { metadata, data, .. } = object;
        let version = Version::of(&metadata);
        let annotation = |key: &str| metadata.annotations.as_ref()?.get(key);
        let previous = annotation(PREVIOUS_ANNOTATION);
        let baseline = annotation(BASELINE_ANNOTATION);
        let stamps = metadata.managed_fields.iter().flatten().filter(|entry| {
            entry.manager.as_deref() == Some(STAMP_MANAGER)
                && entry.subresource.as_deref().unwrap_or_default().is_empty()
        });
        let created = metadata.creation_timestamp.as_ref();
        Self {
            spec: data
                .get("spec")
                .and_then(|spec| NodeProxySpec::deserialize(spec).ok()),
            previous: previous.and_then(|text| serde_json::from_str(text).ok()),
            baseline: baseline.and_then(|text| serde_json::from_str(text).ok()),
            stamped_at: stamps
                .filter_map(|entry| entry.time.as_ref())
                .max()
                .or(created)
                .map(|time| time.0),
            status: data
                .get("status")
                .and_then(|status| NodeProxyStatus::deserialize(status).ok()),
            owners: metadata
                .owner_references
                .into_iter()
                .flatten()
                .map(|owner| owner.uid)
                .collect(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
            version,
        }
    }
}

impl NodeProxyRecord {
    /// A condition the node's agent reports.
    pub(crate) fn condition(&self, kind: &str) -> Option<&Condition> {
        let mut conditions = self.status.as_ref()?.conditions.iter();
        conditions.find(|condition| condition.type_ == kind)
    }

    /// Whether the node's agent renews a Lease.
    pub(crate) fn has_promised_lease(&self) -> bool {
        let status = self.status.as_ref();
        status.is_some_and(|status| status.heartbeat == Some(Heartbeat::Lease))
    }

    /// Whether its condition Ready says that the agent is silent.
    pub(crate) fn is_called_silent(&self) -> bool {
        self.condition(READY)
            .is_some_and(|ready| ready.reason == AGENT_SILENT.name)
    }

    /// The version of the object, as the API server counts.
    pub(crate) fn resource_version(&self) -> Option<String> {
        self.version.resource.map(|version| version.to_string())
    }
}

impl Record for NodeProxyRecord {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> &Version {
        &self.version
    }

    /// An agent writes its status every five minutes, and at rest nothing differs but the time of the last sync, by which
    /// only an agent without a Lease is found silent.
    fn decides_as(&self, other: &Self) -> bool {
        let mut renewed = Self {
            version: other.version.clone(),
            ..self.clone()
        };
        let reports = renewed.status.as_mut().zip(other.status.as_ref());
        if let Some((status, other)) = reports
            && status.heartbeat.is_some()
        {
            status.last_sync_time.clone_from(&other.last_sync_time);
        }
        renewed == *other
    }
}
