//! This node's NodeProxy as its configuration.

use std::time::SystemTime;

use catalog::Event;
use crds::NodeProxySpec;
use crds::readable::{UnreadableField, readable};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::follow::Recipient;
use super::freshness::WatchHealth;
use super::wire::Watched;
use crate::{Assignment, Delivery, EngineGone, deliver};

/// The fields of a NodeProxy that its node reads. The node itself writes the status, and only
/// compares what is there with what it wrote.
#[derive(Debug, Deserialize)]
pub(super) struct OwnNodeProxy {
    metadata: Metadata,
    spec: Value,
    #[serde(default)]
    status: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    generation: Option<i64>,
    resource_version: Option<String>,
}

/// Turns the events of the node's NodeProxy into configurations.
#[derive(Debug)]
pub(super) struct Assignments {
    deliveries: mpsc::Sender<Delivery>,
    own_status: watch::Sender<Value>,
    /// Stale while the object exists but cannot be read.
    watch_health: WatchHealth,
    /// The last delivered configuration; the outer `None` before the first list ended.
    reported: Option<Option<Assignment>>,
    /// Whether the current list contains the object.
    listed: Listed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listed {
    NotYet,
    Seen,
}

// === impl Watched ===

impl Watched for OwnNodeProxy {
    fn resource_version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }
}

// === impl Assignments ===

impl Assignments {
    pub(super) fn new(
        deliveries: mpsc::Sender<Delivery>,
        own_status: watch::Sender<Value>,
        watch_health: WatchHealth,
    ) -> Assignments {
        watch_health.fresh();
        Assignments {
            deliveries,
            own_status,
            watch_health,
            reported: None,
            listed: Listed::NotYet,
        }
    }

    fn post_status(&self, status: Value) {
        self.own_status.send_if_modified(|known| {
            let is_other = *known != status;
            *known = status;
            is_other
        });
    }

    /// Delivers the configuration if it differs from the last one: the agent's own status updates
    /// arrive as changes, too.
    async fn send(&mut self, assignment: Option<Assignment>) -> Result<(), EngineGone> {
        self.watch_health.fresh();
        if self.reported.as_ref() == Some(&assignment) {
            return Ok(());
        }
        self.reported = Some(assignment.clone());
        deliver(&self.deliveries, Delivery::Configuration(assignment)).await
    }
}

impl Recipient<OwnNodeProxy> for Assignments {
    async fn deliver(&mut self, event: Event<OwnNodeProxy>) -> Result<(), EngineGone> {
        match event {
            Event::Init => {
                self.listed = Listed::NotYet;
                Ok(())
            }
            Event::InitDone if self.listed == Listed::Seen => Ok(()),
            Event::InitDone | Event::Delete(_) => {
                self.post_status(Value::Null);
                self.send(None).await
            }
            Event::InitApply(mut object) | Event::Apply(mut object) => {
                self.listed = Listed::Seen;
                self.post_status(object.status.take());
                match Assignment::try_from(object) {
                    Ok(assignment) => self.send(Some(assignment)).await,
                    Err(message) => {
                        self.watch_health.stale(SystemTime::now(), &message);
                        Ok(())
                    }
                }
            }
            Event::Undecodable {
                key,
                field,
                message,
            } => {
                self.listed = Listed::Seen;
                let message = format!("{key} cannot be read: {field}: {message}");
                self.watch_health.stale(SystemTime::now(), &message);
                Ok(())
            }
        }
    }
}

impl TryFrom<OwnNodeProxy> for Assignment {
    type Error = String;

    /// Values in the configuration that this version does not know cost their fields only. Without
    /// the rest, such as the hash, the configuration could not be reported.
    fn try_from(object: OwnNodeProxy) -> Result<Assignment, String> {
        let OwnNodeProxy { metadata, spec, .. } = object;
        let refuse = |field: String, message: &str| {
            let name = &metadata.name;
            format!("NodeProxy {name} cannot be read: {field}: {message}")
        };
        let (spec, unreadable) = readable::<NodeProxySpec>(&spec)
            .ok_or_else(|| refuse("spec".to_owned(), "it is no object"))?;
        let is_of_config = |field: &&UnreadableField| field.field().starts_with("config.");
        if let Some(other) = unreadable.iter().find(|field| !is_of_config(field)) {
            return Err(refuse(format!("spec.{}", other.field()), &other.message));
        }
        Ok(Assignment {
            generation: metadata.generation,
            reason: format!(
                "NodeProxy {}, from profile {} at generation {}",
                metadata.name, spec.profile_name, spec.profile_generation
            ),
            spec,
            unreadable,
        })
    }
}
