//! Properties that hold after, and during, every generated history.

use catalog::object::{EndpointSlice, Service};
use catalog::{Catalog, Event};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::generated_world::{World, decoded, endpoint, history};
use crate::world::snapshot;

proptest! {
    /// T22: events in any order, slices split, merged and moved between objects, endpoints in two
    /// slices at once (cilium#45441; the EndpointSlice documentation tells consumers to expect
    /// duplicates) lead to the same state as a sorted replay of the final objects.
    #[test]
    fn t22_any_history_ends_where_a_sorted_replay_does(
        history in history(),
        ranks in vec(any::<u32>(), 7),
    ) {
        let mut world = World::default();
        let mut catalog = Catalog::new("node-1");
        for happening in &history {
            for change in world.live(happening) {
                catalog.apply(change);
            }
        }
        let expected = snapshot(&world.replay());
        prop_assert_eq!(&snapshot(&catalog), &expected);
        prop_assert_eq!(&snapshot(&world.shuffled_replay(&ranks)), &expected);
    }

    /// Each single event marks exactly what it changed.
    #[test]
    fn each_event_marks_exactly_what_it_changed(history in history()) {
        let mut world = World::default();
        let mut catalog = Catalog::new("node-1");
        let mut before = snapshot(&catalog);
        for happening in &history {
            for change in world.live(happening) {
                catalog.apply(change.clone());
                let after = snapshot(&catalog);
                let dirty = catalog.take_dirty();
                let marked = dirty.services.into_keys().collect();
                prop_assert_eq!(before.changed(&after), marked, "{:?}", change);
                prop_assert_eq!(before.service_cidrs != after.service_cidrs, dirty.service_cidrs);
                prop_assert_eq!(before.rejections != after.rejections, dirty.rejections);
                before = after;
            }
        }
    }

    /// However many events are taken at once, no change is missing.
    #[test]
    fn several_events_together_mark_everything_that_changed(
        history in history(),
        batch in 1..10_usize,
    ) {
        let mut world = World::default();
        let mut catalog = Catalog::new("node-1");
        for happenings in history.chunks(batch) {
            let before = snapshot(&catalog);
            for happening in happenings {
                for change in world.live(happening) {
                    catalog.apply(change);
                }
            }
            let changed = before.changed(&snapshot(&catalog));
            let dirty = catalog.take_dirty();
            for service in changed {
                prop_assert!(dirty.services.contains_key(&service), "{service}");
            }
        }
    }

    /// The result does not depend on how a controller spreads endpoints over slices.
    #[test]
    fn endpoints_may_be_spread_over_slices_in_any_way(
        endpoints in vec((endpoint(), 0..3_usize, 0..3_usize), 0..12),
    ) {
        let spread = |place: fn(&(Value, usize, usize)) -> usize| {
            let mut catalog = Catalog::new("node-1");
            for n in 0..3 {
                let part: Vec<&Value> = endpoints
                    .iter()
                    .filter(|entry| place(entry) == n)
                    .map(|(endpoint, ..)| endpoint)
                    .collect();
                catalog.apply(Event::Apply(decoded::<EndpointSlice>(json!({
                    "metadata": {
                        "namespace": "shop",
                        "name": format!("slice-{n}"),
                        "labels": {"kubernetes.io/service-name": "cart"},
                    },
                    "addressType": "IPv4",
                    "ports": [{"name": "http", "port": 8080}],
                    "endpoints": part,
                }))));
            }
            catalog.apply(Event::Apply(decoded::<Service>(json!({
                "metadata": {"namespace": "shop", "name": "cart"},
                "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "http", "port": 80}]},
            }))));
            snapshot(&catalog)
        };
        prop_assert_eq!(spread(|(_, one, _)| *one), spread(|(_, _, other)| *other));
    }
}
