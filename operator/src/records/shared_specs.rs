//! Specs of NodeProxies that many nodes have.

use std::{collections::BTreeMap, sync::Arc};

use crds::{effective::hash::ConfigHash, node_proxy::NodeProxySpec};

/// The latest spec of each configuration. A fleet has a handful of configurations, and thousands of
/// NodeProxies hold them twice: the present one and the one to return to.
#[derive(Debug, Default)]
pub(crate) struct SharedSpecs(BTreeMap<ConfigHash, Arc<NodeProxySpec>>);

/// The number of configurations above which those that no object has any more are forgotten.
const FEW: usize = 16;

// === impl SharedSpecs ===

impl SharedSpecs {
    /// Returns the shared spec that equals `spec`.
    pub(crate) fn share(&mut self, spec: NodeProxySpec) -> Arc<NodeProxySpec> {
        if let Some(shared) = self
            .0
            .get(&spec.config_hash)
            .filter(|shared| ***shared == spec)
        {
            return Arc::clone(shared);
        }
        if self.0.len() >= FEW {
            self.0.retain(|_, shared| Arc::strong_count(shared) > 1);
        }
        let spec = Arc::new(spec);
        self.0.insert(spec.config_hash.clone(), Arc::clone(&spec));
        spec
    }
}
