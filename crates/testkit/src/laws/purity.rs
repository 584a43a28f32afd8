//! Laws about `render` alone.

use std::sync::Arc;

use backend::{Backend, Rendered};
use dataplane::Dataplane;

use super::Subject;
use crate::seeded::Seeded;

/// Equal dataplanes render to equal rules, independent of the order in which Services were added
/// and of others that were removed again.
pub fn render_depends_on_content_only<S: Subject>(subject: &S, history: &[Dataplane], seed: u64) {
    let backend = subject.fresh();
    let mut seeded = Seeded::new(seed);
    for desired in history {
        let again = put_together_anew(desired, history, &mut seeded);
        let (one, other) = (
            backend.render(desired, &Rendered::default()),
            backend.render(&again, &Rendered::default()),
        );
        assert_eq!(
            one, other,
            "the same Services, put together in another order"
        );
    }
}

/// Rendering from the observed state gives the same as rendering from nothing, except for
/// arrangement, whether that state was rendered or read from the kernel.
pub fn render_from_anything_is_the_same<S: Subject>(subject: &S, history: &[Dataplane]) {
    let backend = subject.fresh();
    let mut observed = Rendered::default();
    for desired in history {
        let anew = backend.render(desired, &Rendered::default());
        let read_back = Rendered {
            dataplane: Dataplane::default(),
            rules: Clone::clone(&observed.rules),
        };
        for from in [&observed, &read_back] {
            let rules = backend.render(desired, from);
            assert_eq!(
                subject.canonical(&rules),
                subject.canonical(&anew),
                "left is rendered from what is believed, right from nothing"
            );
        }
        observed = Rendered {
            rules: backend.render(desired, &observed),
            dataplane: desired.clone(),
        };
    }
}

/// `desired`, rebuilt with all Services of `history` added and removed on the way.
fn put_together_anew(desired: &Dataplane, history: &[Dataplane], seeded: &mut Seeded) -> Dataplane {
    let mut again = Dataplane::new(Arc::clone(desired.node()), Arc::clone(desired.config()));
    for (_, rules) in history.iter().flat_map(|other| other.services().iter()) {
        again.set(Arc::clone(rules));
    }
    let mut services: Vec<_> = again
        .services()
        .iter()
        .map(|(key, _)| key.clone())
        .collect();
    seeded.shuffle(&mut services);
    for service in services {
        match desired.services().get(&service) {
            Some(rules) => again.set(Arc::clone(rules)),
            None => again.remove(&service),
        };
    }
    again
}
