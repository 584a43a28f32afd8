//! Creates the profile of the first installation once the API server serves its kind.
//!
//! ```text
//!   helm install --> ConfigMap signpost-initial-profile --> operator: create the ProxyProfile, delete the ConfigMap
//! ```
//!
//! Helm cannot create it: it looks up the kind of each object in the API server and fails the
//! installation if the CustomResourceDefinition of the same release is not served yet. With
//! `--apiserver-count` above 1 an API server serves a new kind 5 seconds after its definition
//! (apiextensions-apiserver, the establishing controller).

use std::time::Duration;

use crds::profile::ProxyProfile;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams, Preconditions},
    core::{ApiResource, DynamicObject},
};
use runtime::chain;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// The ConfigMap in the operator's namespace, as the chart names it.
const CONFIG_MAP: &str = "signpost-initial-profile";
/// Its key: a ProxyProfile as JSON.
const KEY: &str = "profile.json";
/// The interval between two tries.
const PAUSE: Duration = Duration::from_secs(1);
/// The request timeout, the same as for the operator's other requests.
const LIMIT: Duration = Duration::from_secs(10);

/// Creates the profile of the ConfigMap.
#[derive(Debug)]
pub(crate) struct InitialProfile {
    config_maps: Api<ConfigMap>,
    profiles: Api<DynamicObject>,
}

/// Why the profile of the ConfigMap was not created.
#[derive(Debug, thiserror::Error)]
enum InitialProfileError {
    /// The request failed; another try may succeed.
    #[error("failed to {verb} {object}")]
    Request {
        verb: &'static str,
        object: String,
        source: kube::Error,
    },
    /// The request timed out; another try may succeed.
    #[error("no answer from the API server within {0:?}")]
    NoAnswer(Duration),
    /// The value in the ConfigMap is not a JSON object.
    #[error("ConfigMap {CONFIG_MAP}, {KEY}: no ProxyProfile in JSON")]
    Unreadable(#[source] serde_json::Error),
    /// The ConfigMap lacks its key.
    #[error("ConfigMap {CONFIG_MAP} has no key {KEY}")]
    Missing,
    /// The API server rejects the content of the profile.
    #[error("the API server refuses ProxyProfile {name} of ConfigMap {CONFIG_MAP}")]
    Refused { name: String, source: kube::Error },
}

// === impl InitialProfile ===

impl InitialProfile {
    pub(crate) fn new(client: &Client, namespace: &str) -> Self {
        Self {
            config_maps: Api::namespaced(client.clone(), namespace),
            profiles: Api::all_with(client.clone(), &ApiResource::erase::<ProxyProfile>(&())),
        }
    }

    /// Retries until the profile exists, the API server rejects it for good, or the ConfigMap does
    /// not exist. May be dropped at any point: the next operator finds the ConfigMap and continues.
    pub(crate) async fn create(&self) {
        let mut shown = String::new();
        loop {
            let tried = timeout(LIMIT, self.request()).await;
            let error = match tried.unwrap_or(Err(InitialProfileError::NoAnswer(LIMIT))) {
                Ok(()) => return,
                Err(error) => error,
            };
            let text = chain(&error).to_string();
            if !error.is_temporary() {
                warn!(
                    error = text,
                    "unable to create the initial profile; correct the ConfigMap and restart the operator, or apply a ProxyProfile"
                );
                return;
            }
            if shown != text {
                warn!(
                    error = text,
                    "unable to create the initial profile; trying again"
                );
                shown = text;
            }
            sleep(PAUSE).await;
        }
    }

    async fn request(&self) -> Result<(), InitialProfileError> {
        let read = self.config_maps.get_opt(CONFIG_MAP).await;
        let Some(config_map) = read.map_err(|source| config_map_error("read", source))? else {
            return Ok(());
        };
        // A release without a profile empties what an earlier one has left.
        if let Some(data) = &config_map.data {
            let text = data.get(KEY).ok_or(InitialProfileError::Missing)?;
            self.create_from(text).await?;
        }
        let preconditions = Preconditions {
            uid: config_map.metadata.uid,
            resource_version: None,
        };
        let parameters = DeleteParams {
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        match self.config_maps.delete(CONFIG_MAP, &parameters).await {
            // Another installation replaced it: the next try reads that one.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            deleted => deleted
                .map(drop)
                .map_err(|source| config_map_error("delete", source)),
        }
    }

    async fn create_from(&self, text: &str) -> Result<(), InitialProfileError> {
        let profile: DynamicObject =
            serde_json::from_str(text).map_err(InitialProfileError::Unreadable)?;
        let name = profile.metadata.name.clone().unwrap_or_default();
        match self.profiles.create(&PostParams::default(), &profile).await {
            Ok(_) => info!(profile = name, "created the initial profile"),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                info!(
                    profile = name,
                    "the initial profile exists already; it was left unchanged"
                );
            }
            Err(source) => return Err(refusal(name, source)),
        }
        Ok(())
    }
}

// === impl InitialProfileError ===

impl InitialProfileError {
    fn is_temporary(&self) -> bool {
        match self {
            Self::Request { .. } | Self::NoAnswer(_) => true,
            Self::Unreadable(_) | Self::Missing | Self::Refused { .. } => false,
        }
    }
}

fn config_map_error(verb: &'static str, source: kube::Error) -> InitialProfileError {
    InitialProfileError::Request {
        verb,
        object: format!("ConfigMap {CONFIG_MAP}"),
        source,
    }
}

/// Classifies a failed creation: 400 and 422 are about the object, and 404 means that its kind is
/// not served yet.
fn refusal(name: String, source: kube::Error) -> InitialProfileError {
    match &source {
        kube::Error::Api(status) if matches!(status.code, 400 | 422) => {
            InitialProfileError::Refused { name, source }
        }
        _ => InitialProfileError::Request {
            verb: "create",
            object: format!("ProxyProfile {name}"),
            source,
        },
    }
}
