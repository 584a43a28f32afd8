//! Specs of NodeProxies that many nodes have, each read once.

use std::{collections::BTreeMap, sync::Arc};

use crds::{node_proxy::NodeProxySpec, readable::has_all};
use serde_json::Value;

use super::readable;

/// The specs by hash and generation. A fleet has a handful of them, and thousands of NodeProxies
/// have them twice: the present one and the one to return to.
#[derive(Debug, Default)]
pub(crate) struct SharedSpecs(BTreeMap<(String, i64), Shared>);

/// What could be read of a spec.
#[derive(Clone, Debug)]
pub(crate) struct ReadSpec {
    /// The spec, or those of its fields that can be read; absent if there are none.
    pub(crate) read: Option<Arc<NodeProxySpec>>,
    /// Whether that is all that was written.
    pub(crate) is_whole: bool,
}

#[derive(Debug)]
struct Shared {
    written: Value,
    spec: ReadSpec,
}

/// The number of specs above which those that no object has any more are forgotten.
const MOST_UNUSED: usize = 16;

// === impl SharedSpecs ===

impl SharedSpecs {
    /// Reads a spec, or returns the equal one that was read before.
    pub(crate) fn read(&mut self, written: &Value) -> ReadSpec {
        let hash = written["configHash"].as_str().unwrap_or_default();
        let generation = written["profileGeneration"].as_i64().unwrap_or_default();
        let key = (hash.to_owned(), generation);
        if let Some(shared) = self.0.get(&key).filter(|shared| shared.written == *written) {
            return shared.spec.clone();
        }
        let read: Option<NodeProxySpec> = readable(written);
        let spec = ReadSpec {
            is_whole: has_all(&serde_json::to_value(&read).unwrap_or_default(), written),
            read: read.map(Arc::new),
        };
        if self.0.len() >= MOST_UNUSED {
            let is_used = |spec: &Arc<NodeProxySpec>| Arc::strong_count(spec) > 1;
            self.0
                .retain(|_, shared| shared.spec.read.as_ref().is_some_and(is_used));
        }
        let shared = Shared {
            written: written.clone(),
            spec: spec.clone(),
        };
        self.0.insert(key, shared);
        spec
    }
}
