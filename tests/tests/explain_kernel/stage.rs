//! An agent in a namespace of its own, that follows the example.

use std::time::Duration;

use anyhow::Result;
use tempfile::TempDir;
use tests::lone_agent::{LoneAgent, Source, Sysctls, Workplace};
use tests::network::{Namespace, Network};

/// What the agent follows.
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/demo");

/// How long the agent may take for anything it is waited for.
const PROMPTLY: Duration = Duration::from_secs(20);

/// The key of an endpoint of Service `demo/web`.
pub(crate) const SECOND_ENDPOINT: &str = "10.96.0.10 . tcp . 80 . 0x00000001";

/// A node with a running agent that has programmed everything.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) agent: LoneAgent,
    node: Namespace,
    #[expect(dead_code, reason = "held for the sake of its end")]
    folder: TempDir,
    // Goes last: whatever else holds the namespace only holds its name.
    #[expect(dead_code, reason = "held for the sake of its end")]
    network: Network,
}

// === impl Stage ===

impl Stage {
    /// Starts the agent and waits until it is ready.
    pub(crate) fn build() -> Result<Stage> {
        let mut network = Network::new()?;
        let [node] = network.add_namespaces(["node-1"])?;
        node.configure("addr add 192.168.0.1/32 dev lo\naddr add fd00:192:168::1/128 dev lo\n")?;
        let folder = tempfile::tempdir()?;
        let agent = LoneAgent::start(&Workplace {
            node: node.clone(),
            source: Source::Manifests(EXAMPLE.into()),
            folder: folder.path().to_owned(),
            sysctls: Sysctls::Writable,
            deadline: PROMPTLY,
        })?;
        agent.wait_until_ready()?;
        Ok(Stage {
            agent,
            node,
            folder,
            network,
        })
    }

    /// Takes an element out of the kernel that the agent has put there, unless it is gone from the
    /// last time.
    pub(crate) fn delete_second_endpoint(&self) {
        let command = format!("delete element ip signpost endpoints {{ {SECOND_ENDPOINT} }}");
        let _ = self.node.nft(&[&command]);
    }
}
