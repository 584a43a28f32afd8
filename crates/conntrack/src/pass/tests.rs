use super::*;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use dataplane::{Config, Dataplane, Node, compile};
use netlink::conntrack::{Protocol, Status, Tuple};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

use crate::StaleCandidates;

/// A table whose flows are generated one at a time, without storing them.
struct Generated {
    flows: u32,
    refuses: bool,
}

/// A fake conntrack table that deletes the flows it is asked to delete, except some.
#[derive(Default)]
struct ForeignGenerations {
    deleted: u64,
    offloaded: BTreeSet<u32>,
}

fn flow(id: u32) -> Flow {
    let client = SocketAddr::from(([10, 0, 1, 9], 4000));
    Flow {
        protocol: Protocol::Udp,
        original: Tuple {
            source: client,
            destination: ([10, 96, 0, 53], 53).into(),
        },
        reply: Tuple {
            source: ([10, 0, 1, 5], 5353).into(),
            destination: client,
        },
        status: Status::DST_NAT,
        zone: 0,
        id,
    }
}

impl FlowTable for Generated {
    fn observe_flows(
        &mut self,
        filter: &Filter,
        take: &mut dyn FnMut(&Flow) -> ControlFlow<()>,
    ) -> Result<Listed, PassError> {
        let mut listed = Listed::default();
        for flow in (0..self.flows).map(flow).filter(|f| filter.admits(f)) {
            listed.flows += 1;
            if take(&flow).is_break() {
                return Ok(listed);
            }
        }
        if self.refuses {
            return Err(PassError::Observe(ObserveError::Unsteady));
        }
        Ok(listed)
    }
}

impl FlowDeleter for ForeignGenerations {
    fn commit_deletion(&mut self, flow: &Flow) -> Result<Deletion, PassError> {
        if self.offloaded.contains(&flow.id) {
            return Err(PassError::Delete(DeleteError::Refused {
                flow: Box::new(*flow),
                source: std::io::Error::from(std::io::ErrorKind::ResourceBusy),
            }));
        }
        self.deleted += 1;
        Ok(Deletion::Deleted)
    }
}

/// A watchlist for which every generated flow is stale: it was redirected from a Service's address.
fn stale_flows() -> StaleFlows {
    let config = Config {
        service_cidrs: ["10.96.0.0/16".parse().expect("a range")].into(),
        ..Config::default()
    };
    let programmed = Dataplane::new(Node::default().into(), config.into());
    StaleFlows::compile(&StaleCandidates::everything(Family::Ipv4), &programmed)
}

fn nothing_new() -> Option<ProgrammedState> {
    None
}

/// A dataplane with the Service that every generated flow was redirected from, and its endpoint.
fn with_its_service() -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let service = mk_service("kube-system/dns")
        .cluster_ip("10.96.0.53")
        .udp("dns", 53)
        .build();
    let endpoints = mk_endpoints().udp("dns").ready("10.0.1.5:5353", "node-1");
    let rules = compile(&service, &endpoints.build(), &node, &config);
    let mut dataplane = Dataplane::new(node, config);
    dataplane.set(rules.into());
    dataplane
}

#[test]
fn a_pass_deletes_no_more_than_its_budget_and_says_so() {
    let mut table = Generated {
        flows: 1000,
        refuses: false,
    };
    let mut foreign_generations = ForeignGenerations::default();
    let pass = Pass::commit(
        &stale_flows(),
        nothing_new,
        &mut table,
        &mut foreign_generations,
        100,
    );
    assert!(matches!(pass.outcome, Outcome::BudgetSpent));
    assert_eq!((pass.deleted, foreign_generations.deleted), (100, 100));
    let pass = Pass::commit(
        &stale_flows(),
        nothing_new,
        &mut table,
        &mut foreign_generations,
        1000,
    );
    assert!(matches!(pass.outcome, Outcome::Complete));
    assert_eq!((pass.deleted, pass.listed), (1000, 1000));
}

#[test]
fn a_flow_the_kernel_does_not_let_go_keeps_no_other() {
    let mut table = Generated {
        flows: 10,
        refuses: false,
    };
    let mut foreign_generations = ForeignGenerations {
        offloaded: [3].into(),
        ..ForeignGenerations::default()
    };
    let pass = Pass::commit(
        &stale_flows(),
        nothing_new,
        &mut table,
        &mut foreign_generations,
        100,
    );
    assert_eq!(foreign_generations.deleted, 9);
    let Outcome::Failed(PassError::Delete(error)) = pass.outcome else {
        panic!("it is not said: {:?}", pass.outcome);
    };
    assert_eq!(
        error.to_string(),
        "the kernel refused to delete udp 10.0.1.9:4000 -> 10.96.0.53:53, never answered from 10.0.1.5:5353"
    );
}

/// A dump of a large table takes seconds; flows of a Service that is created meanwhile are not
/// stale.
#[test]
fn a_flow_that_is_good_by_now_is_kept_by_a_pass_that_began_before() {
    let mut table = Generated {
        flows: 10,
        refuses: false,
    };
    let mut foreign_generations = ForeignGenerations::default();
    let newest = || Some(ProgrammedState::Programmed(with_its_service()));
    let pass = Pass::commit(
        &stale_flows(),
        newest,
        &mut table,
        &mut foreign_generations,
        100,
    );
    assert_eq!(foreign_generations.deleted, 0);
    assert!(matches!(pass.outcome, Outcome::Complete));
    assert_eq!(pass.listed, 10);
}

#[test]
fn a_pass_deletes_nothing_more_once_it_is_not_known_what_is_programmed() {
    let mut table = Generated {
        flows: 10,
        refuses: false,
    };
    let mut foreign_generations = ForeignGenerations::default();
    let newest = || Some(ProgrammedState::Unknown);
    let pass = Pass::commit(
        &stale_flows(),
        newest,
        &mut table,
        &mut foreign_generations,
        100,
    );
    assert_eq!(foreign_generations.deleted, 0);
    assert!(matches!(pass.outcome, Outcome::Overtaken));
}

#[test]
fn a_spent_budget_does_not_hide_that_a_flow_was_refused() {
    let mut table = Generated {
        flows: 10,
        refuses: false,
    };
    let mut foreign_generations = ForeignGenerations {
        offloaded: [3].into(),
        ..ForeignGenerations::default()
    };
    let pass = Pass::commit(
        &stale_flows(),
        nothing_new,
        &mut table,
        &mut foreign_generations,
        5,
    );
    assert_eq!(foreign_generations.deleted, 5);
    assert!(matches!(
        pass.outcome,
        Outcome::Failed(PassError::Delete(_))
    ));
}

#[test]
fn a_list_without_an_end_is_a_failure() {
    let mut table = Generated {
        flows: 10,
        refuses: true,
    };
    let pass = Pass::commit(
        &stale_flows(),
        nothing_new,
        &mut table,
        &mut ForeignGenerations::default(),
        100,
    );
    assert!(matches!(
        pass.outcome,
        Outcome::Failed(PassError::Observe(_))
    ));
    assert_eq!(pass.deleted, 10, "what was seen is done");
}
