use std::path::Path;

use super::run;
use crate::scenario::{Goldens, Oracle, Script, Update};

const SECTIONS: &str = "
-- web --
kind: Service
metadata: {namespace: shop, name: web}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
-- slice --
kind: EndpointSlice
metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: \"\", port: 8080}]
endpoints: [{addresses: [10.0.1.5], nodeName: node-1}]
-- policy --
kind: NetworkPolicy
metadata: {namespace: shop, name: web}
";

/// Returns the unmet expectations of a scenario at the oracle, or the error that stopped it.
fn failures_of(story: &str) -> Vec<String> {
    let script = Script::parse(&format!("{story}{SECTIONS}")).expect("the story parses");
    let mut goldens = Goldens::new(Path::new("story.txt"), Update::Never);
    match run(&script, &mut Oracle::default(), &mut goldens) {
        Ok(failures) => failures,
        Err(error) => vec![format!("stopped: {error:#}")],
    }
}

#[test]
fn what_is_as_it_should_be_is_not_mentioned() {
    let story = "apply web slice
packet pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.1.5:8080
restart
expect no change
delete slice
packet pod 10.0.1.9 -> 10.96.0.10:80/tcp = reject
";
    assert_eq!(failures_of(story), Vec::<String>::new());
}

#[test]
fn every_expectation_that_is_not_met_is_reported_with_its_line() {
    let story = "apply web slice
packet pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.1.6:8080
packet node 192.168.0.1 -> 10.96.0.10:80/tcp = 10.0.1.5:8080
expect no change
expect dataplane
";
    let failures = failures_of(story);
    assert_eq!(
        failures[..3],
        [
            "line 2: packet pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.1.6:8080: \
             but it is 10.0.1.5:8080",
            "line 3: packet node 192.168.0.1 -> 10.96.0.10:80/tcp = 10.0.1.5:8080: \
             but it is 10.0.1.5:8080 masqueraded",
            "line 4: expect no change: but 1 elements and 0 objects were written",
        ]
    );
    let dump = failures[3].lines().next();
    let expected = "line 5: expect dataplane: differs from line 1 on (UPDATE=1 writes it)";
    assert_eq!(dump, Some(expected));
}

#[test]
fn a_story_that_cannot_go_on_says_where_it_stopped() {
    assert_eq!(
        failures_of("delete web\n"),
        ["stopped: line 1: delete web: section \"web\": Service shop/web does not exist"]
    );
    let policy = failures_of("apply policy\n").join("\n");
    let expected = "stopped: line 1: apply policy: section \"policy\": \
                  no scenario has objects of kind \"NetworkPolicy\"";
    assert!(policy.starts_with(expected), "{policy}");
}
