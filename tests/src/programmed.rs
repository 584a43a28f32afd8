//! Programs any backend with generated clusters.

use anyhow::{Context, Result, anyhow};
use backend::{Backend, Rendered};
use dataplane::Dataplane;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use testkit::{Cluster, clusters};

/// Generates clusters, the same in every run.
pub fn generated_clusters(count: usize) -> Result<Vec<Cluster>> {
    generated(&clusters(), count)
}

/// Generates histories of five states, the same in every run.
pub fn generated_histories(count: usize) -> Result<Vec<Vec<Dataplane>>> {
    generated(&testkit::histories(5), count)
}

fn generated<S: Strategy>(strategy: &S, count: usize) -> Result<Vec<S::Value>> {
    let mut runner = TestRunner::deterministic();
    let mut value = || -> Result<S::Value> {
        let tree = strategy.new_tree(&mut runner);
        Ok(tree.map_err(|reason| anyhow!("{reason}"))?.current())
    };
    (0..count).map(|_| value()).collect()
}

/// Returns the one of two hundred clusters for which `size` of both families' rules, rendered by
/// these backends, is largest, so that it covers every feature.
pub fn richest<B: Backend>(backends: &[B], size: impl Fn(&B::Rules) -> usize) -> Result<Dataplane> {
    let clusters = generated_clusters(200)?.into_iter();
    let sizes = |dataplane: &Dataplane| {
        let rules = backends
            .iter()
            .map(|b| b.render(dataplane, &Rendered::default()));
        rules.map(|rules| size(&rules)).sum::<usize>()
    };
    let dataplanes = clusters.map(|cluster| cluster.compile());
    dataplanes.max_by_key(sizes).context("there are clusters")
}

/// Programs one family with `dataplane` and returns what it should hold afterwards.
pub fn program<B: Backend>(
    backend: &mut B,
    dataplane: &Dataplane,
    from: &Rendered<B::Rules>,
) -> Result<Rendered<B::Rules>> {
    let rules = backend.render(dataplane, from);
    let change = backend.diff(&from.rules, &rules);
    let committed = backend.commit(change.clone());
    let _ = committed.with_context(|| format!("refused:\n{change}"))?;
    Ok(Rendered {
        dataplane: dataplane.clone(),
        rules,
    })
}
