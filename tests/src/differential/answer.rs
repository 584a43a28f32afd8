//! The answer of an HTTP server.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

/// The timeout of a request.
const ANSWERS_WITHIN: Duration = Duration::from_secs(15);

/// The parts of an answer that both proxies have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The headers that clients evaluate.
    pub headers: Vec<(&'static str, Option<String>)>,
    /// The body.
    pub body: String,
}

/// The headers that clients evaluate.
const HEADERS: [&str; 3] = [
    "content-type",
    "x-content-type-options",
    "x-load-balancing-endpoint-weight",
];

// === impl Answer ===

impl Answer {
    /// Makes a request from the network namespace of the calling thread.
    pub(super) fn get(url: &str) -> Result<Answer> {
        let client = ureq::Agent::config_builder()
            // A proxy in the user's environment variables is not reachable from this namespace.
            .proxy(None)
            .http_status_as_error(false)
            .timeout_global(Some(ANSWERS_WITHIN))
            .build()
            .new_agent();
        let mut answer = client.get(url).call()?;
        let header = |name| {
            let value = answer.headers().get(name).and_then(|v| v.to_str().ok());
            (name, value.map(str::to_owned))
        };
        Ok(Answer {
            status: answer.status().as_u16(),
            headers: HEADERS.map(header).into(),
            body: answer.body_mut().read_to_string()?,
        })
    }

    /// Returns the paths of all fields of the JSON body, without their values.
    pub fn fields(&self) -> Result<BTreeSet<String>> {
        let mut fields = BTreeSet::new();
        collect(&serde_json::from_str(&self.body)?, "", &mut fields);
        Ok(fields)
    }
}

fn collect(value: &Value, path: &str, fields: &mut BTreeSet<String>) {
    let Value::Object(object) = value else {
        fields.insert(path.to_owned());
        return;
    };
    for (name, value) in object {
        collect(value, &format!("{path}.{name}"), fields);
    }
}
