//! Requests from inside a namespace.

use std::time::Duration;

use anyhow::{Context, Result};
use ureq::http::Response;

use super::Namespace;
use crate::deadline::patience;

impl Namespace {
    /// Requests `url` from inside the namespace; returns the response with any status. Fails
    /// without a response within [`patience`] with `deadline`.
    pub fn get(&self, url: &str, deadline: Duration) -> Result<Response<String>> {
        let answered = self.enter(|| -> Result<Response<String>> {
            let client = ureq::Agent::config_builder()
                // A proxy in the user's environment variables is not reachable from this namespace.
                .proxy(None)
                .http_status_as_error(false)
                .timeout_global(Some(patience(deadline)))
                .build()
                .new_agent();
            let (head, mut body) = client.get(url).call()?.into_parts();
            Ok(Response::from_parts(head, body.read_to_string()?))
        })?;
        answered.with_context(|| format!("no answer at {url}"))
    }
}
