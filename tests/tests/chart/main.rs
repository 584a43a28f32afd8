//! The Helm chart: what it refuses, what it renders, that an API server takes that, and that it and
//! the plain manifests in `deploy` are two ways to the same objects.

mod agreement;
mod api_server;
mod examples;
mod helm;
mod k3s;
mod manifests;
mod release;
mod sources;
mod values;
