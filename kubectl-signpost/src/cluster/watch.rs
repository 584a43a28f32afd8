//! Lists and watches all objects of a kind.

use std::convert::Infallible;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use kube::api::{
    ApiResource, DynamicObject, ListParams, ObjectList, PartialObjectMeta, WatchEvent, WatchParams,
};
use kube::{Api, Resource};
use serde_json::json;

use super::{CHUNK, Cluster, ClusterError};

/// A change to the objects of a kind.
#[derive(Debug)]
pub(crate) enum ObjectEvent {
    /// The complete list of objects.
    Listed(Vec<DynamicObject>),
    /// An object was created or changed.
    Changed(Box<DynamicObject>),
    /// The object of this name was deleted.
    Deleted(String),
    /// The API server answers, and reports changes from now on.
    Follows,
    /// The API server does not answer or denies the request. The client retries every second.
    Fails(ClusterError),
}

/// How much of each object to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// The whole object.
    Whole,
    /// Only the metadata.
    Metadata,
}

/// The objects of one kind.
struct Watched {
    api: Api<DynamicObject>,
    plural: String,
    server: String,
    depth: Depth,
}

type Events = BoxStream<'static, Result<WatchEvent<DynamicObject>, kube::Error>>;

/// The pause between two requests. The end of a watch is not a failure: the API server ends each
/// after some minutes, and the client ends an idle one after [`READ_TIMEOUT`](super::READ_TIMEOUT).
/// The next request shows whether the server answers.
const PAUSE: Duration = Duration::from_secs(1);
/// The status code if the API server no longer has the resource version from which a watch is to
/// start.
const EXPIRED: u16 = 410;

// === impl Cluster ===

impl Cluster {
    /// Calls `send` for every change to the objects of a kind. Never returns.
    pub(crate) async fn follow<K>(
        &self,
        depth: Depth,
        mut send: impl FnMut(ObjectEvent),
    ) -> Infallible
    where
        K: Resource<DynamicType = ()>,
    {
        let resource = ApiResource::erase::<K>(&());
        let watched = Watched {
            api: Api::all_with(self.client.clone(), &resource),
            plural: resource.plural,
            server: self.server.clone(),
            depth,
        };
        loop {
            match watched.list().await {
                Ok((objects, version)) => {
                    send(ObjectEvent::Listed(objects));
                    watched.follow_from(version, &mut send).await;
                }
                Err(error) => send(ObjectEvent::Fails(error)),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

// === impl Watched ===

impl Watched {
    /// Returns all objects and the resource version of the list.
    async fn list(&self) -> Result<(Vec<DynamicObject>, String), ClusterError> {
        let mut parameters = ListParams::default().limit(CHUNK);
        let mut objects = Vec::new();
        loop {
            let part = self.list_part(&parameters).await;
            let part = part.map_err(|source| self.error("list", source))?;
            objects.extend(part.items);
            match part.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => {
                    let version = part.metadata.resource_version;
                    return Ok((objects, version.unwrap_or_default()));
                }
            }
        }
    }

    async fn list_part(
        &self,
        parameters: &ListParams,
    ) -> Result<ObjectList<DynamicObject>, kube::Error> {
        match self.depth {
            Depth::Whole => self.api.list(parameters).await,
            Depth::Metadata => {
                let list = self.api.list_metadata(parameters).await?;
                Ok(ObjectList {
                    types: list.types,
                    metadata: list.metadata,
                    items: list.items.into_iter().map(without_content).collect(),
                })
            }
        }
    }

    /// Watches from `version` on, until a new list is required.
    async fn follow_from(&self, mut version: String, send: &mut impl FnMut(ObjectEvent)) {
        loop {
            match self.watch(&version).await {
                Ok(mut events) => {
                    send(ObjectEvent::Follows);
                    while let Some(Ok(event)) = events.next().await {
                        let event = match event {
                            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                                version = version_of(&object).unwrap_or(version);
                                ObjectEvent::Changed(Box::new(object))
                            }
                            WatchEvent::Deleted(object) => {
                                version = version_of(&object).unwrap_or(version);
                                ObjectEvent::Deleted(object.metadata.name.unwrap_or_default())
                            }
                            WatchEvent::Bookmark(bookmark) => {
                                version = bookmark.metadata.resource_version;
                                continue;
                            }
                            WatchEvent::Error(status) if status.code == EXPIRED => return,
                            WatchEvent::Error(status) => {
                                send(ObjectEvent::Fails(
                                    self.error("watch", kube::Error::Api(status)),
                                ));
                                break;
                            }
                        };
                        send(event);
                    }
                }
                Err(kube::Error::Api(status)) if status.code == EXPIRED => return,
                Err(error) => send(ObjectEvent::Fails(self.error("watch", error))),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn watch(&self, version: &str) -> Result<Events, kube::Error> {
        let parameters = WatchParams::default();
        Ok(match self.depth {
            Depth::Whole => self.api.watch(&parameters, version).await?.boxed(),
            Depth::Metadata => {
                let events = self.api.watch_metadata(&parameters, version).await?;
                events.map_ok(event_without_content).boxed()
            }
        })
    }

    fn error(&self, verb: &str, source: kube::Error) -> ClusterError {
        ClusterError::Request {
            doing: format!("{verb} {}", self.plural),
            server: self.server.clone(),
            source,
        }
    }
}

fn version_of(object: &DynamicObject) -> Option<String> {
    object.metadata.resource_version.clone()
}

fn without_content(object: PartialObjectMeta<DynamicObject>) -> DynamicObject {
    DynamicObject {
        types: None,
        metadata: object.metadata,
        data: json!({}),
    }
}

fn event_without_content(
    event: WatchEvent<PartialObjectMeta<DynamicObject>>,
) -> WatchEvent<DynamicObject> {
    match event {
        WatchEvent::Added(object) => WatchEvent::Added(without_content(object)),
        WatchEvent::Modified(object) => WatchEvent::Modified(without_content(object)),
        WatchEvent::Deleted(object) => WatchEvent::Deleted(without_content(object)),
        WatchEvent::Bookmark(bookmark) => WatchEvent::Bookmark(bookmark),
        WatchEvent::Error(status) => WatchEvent::Error(status),
    }
}
