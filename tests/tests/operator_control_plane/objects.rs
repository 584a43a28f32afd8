//! Reads of objects. A test that waits reads twenty times a second, and a kubectl for each read
//! would take most of the processor.

use std::cell::RefCell;
use std::path::PathBuf;

use anyhow::{Context, Result};
use http::Request;
use kube::Client;
use serde_json::Value;
use tests::control_plane::{ADMINISTRATOR, ControlPlane, client};
use tokio::runtime::{Builder, Runtime};

/// The administrator's connection to the API server.
pub(crate) struct Objects {
    kubeconfig: PathBuf,
    runtime: Runtime,
    client: RefCell<Option<Client>>,
}

// === impl Objects ===

impl Objects {
    /// Reads from this control plane, in the network namespace of the test.
    pub(crate) fn of(control_plane: &ControlPlane) -> Result<Objects> {
        Ok(Objects {
            kubeconfig: control_plane.kubeconfig(ADMINISTRATOR)?,
            runtime: Builder::new_current_thread().enable_all().build()?,
            client: RefCell::default(),
        })
    }

    /// Returns the object at this path of the API; `None` if it does not exist.
    pub(crate) fn get(&self, path: &str) -> Result<Option<Value>> {
        let read = || self.runtime.block_on(self.request(path));
        // The API server may have restarted since the last read.
        read().or_else(|_| {
            self.client.take();
            read()
        })
    }

    async fn request(&self, path: &str) -> Result<Option<Value>> {
        let known = self.client.borrow().clone();
        let client = match known {
            Some(client) => client,
            None => client(&self.kubeconfig).await?,
        };
        self.client.replace(Some(client.clone()));
        let request = Request::get(path).body(Vec::new())?;
        match client.request::<Value>(request).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error).with_context(|| format!("failed to read {path}")),
        }
    }
}
