use super::*;

/// What was posted and not received, `?` where it is unknown and otherwise how many addresses the
/// node has.
fn steps(feed: &Feed, family: Family) -> Vec<String> {
    let Received::Steps(mut steps) = feed.receive(Some(Duration::ZERO)) else {
        panic!("the feed is open");
    };
    let steps = steps.remove(&family).unwrap_or_default().into_iter();
    steps.map(|step| text(&step)).collect()
}

fn text(knowledge: &Knowledge) -> String {
    match knowledge {
        Knowledge::Programmed(dataplane) => dataplane.node().local_addresses.len().to_string(),
        Knowledge::Unknown => "?".to_owned(),
    }
}

fn step(number: usize) -> Knowledge {
    let node = dataplane::Node {
        local_addresses: (0..number)
            .map(|address| std::net::Ipv6Addr::from_bits(address as u128).into())
            .collect(),
        ..dataplane::Node::default()
    };
    Knowledge::Programmed(Dataplane::new(node.into(), Arc::default()))
}

#[test]
fn a_step_that_is_followed_by_another_before_anybody_has_looked_is_not_lost() {
    let feed = Feed::default();
    feed.post(Family::Ipv4, step(1));
    feed.post(Family::Ipv6, step(7));
    feed.post(Family::Ipv4, Knowledge::Unknown);
    feed.post(Family::Ipv4, step(2));
    let newest = feed.newest(Family::Ipv4).map(|newest| text(&newest));
    assert_eq!(newest.as_deref(), Some("2"));
    assert_eq!(steps(&feed, Family::Ipv4), ["1", "?", "2"]);
    assert!(feed.newest(Family::Ipv4).is_none());
}

#[test]
fn of_more_steps_than_are_kept_the_last_is_and_that_there_were_others() {
    let feed = Feed::default();
    for number in 0..=MOST_STEPS {
        feed.post(Family::Ipv4, step(number));
    }
    let last = MOST_STEPS.to_string();
    assert_eq!(steps(&feed, Family::Ipv4), ["?", &last]);
}
