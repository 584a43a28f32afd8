//! The Helm chart: which values it rejects, what it renders, that an API server accepts the result,
//! and that it describes the same objects as the plain manifests in `deploy`.

mod agreement;
mod api_server;
mod examples;
mod helm;
mod k3s;
mod manifests;
mod release;
mod sources;
mod values;
