//! Transactions that are too large for the kernel.

use std::io;

use backend::{Backend, Rendered};
use dataplane::{Dataplane, Family, compile};
use netlink::nf_tables::Transaction;
use netlink::{CommitError, Refusal};
use nftables_model::commit_in_parts;
use rustix::io::Errno;
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

use crate::Nftables;
use crate::diff::halves;
use crate::table::Table;

/// Services with three endpoints each, one of them on the node, in one transaction.
fn cold_start() -> (Dataplane, Table, Transaction) {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(node.clone(), config.clone());
    for number in 0..500_u16 {
        let [high, low] = number.to_be_bytes();
        let service = mk_service(&format!("shop/cart-{number}"))
            .cluster_ip(&format!("10.96.{high}.{low}"))
            .port("http", 80);
        let endpoints = mk_endpoints()
            .tcp("http")
            .ready(&format!("10.0.1.{}:8080", low / 2 + 1), "node-1")
            .ready(&format!("10.0.2.{}:8080", low / 2 + 1), "node-2")
            .ready(&format!("10.0.3.{}:8080", low / 2 + 1), "node-3");
        let rules = compile(&service.build(), &endpoints.build(), &node, &config);
        dataplane.set(rules.into());
    }
    let backend = Nftables::detached(Family::Ipv4);
    let desired = backend.render(&dataplane, &Rendered::default());
    let change = backend.diff(&Table::default(), &desired);
    let [transaction] = change.transactions() else {
        panic!("it takes several");
    };
    (dataplane, desired, transaction.clone())
}

fn in_parts(
    transaction: Transaction,
    commit: impl FnMut(&Transaction) -> Result<(), CommitError>,
) -> (usize, Result<(), CommitError>) {
    commit_in_parts(transaction, |part| halves(Family::Ipv4, part), commit)
}

fn refusal(errno: Errno) -> CommitError {
    CommitError::Refused {
        at: Refusal::Commit,
        source: io::Error::from(errno),
    }
}

#[test]
fn what_is_more_than_the_kernel_takes_goes_in_halves_and_no_frontend_is_cut() {
    let (dataplane, desired, transaction) = cold_start();
    for errno in [Errno::NOMEM, Errno::NOBUFS, Errno::MSGSIZE] {
        for most in [1_000, 10, 6] {
            let mut held = Table::default();
            let (done, result) = in_parts(transaction.clone(), |part| {
                if part.elements() > most {
                    return Err(refusal(errno));
                }
                held.replay(part).expect("the kernel takes it");
                for (key, claims) in dataplane.frontends().iter() {
                    let targets = held.targets(key).len();
                    let (_, frontend) = claims.winner();
                    let is_whole = targets == 0 || targets == frontend.cluster.len();
                    assert!(is_whole, "{key} has {targets} endpoints");
                }
                Ok(())
            });
            result.expect("it fits in parts");
            assert_eq!(held, desired, "{errno:?}, {most}");
            assert!(done >= transaction.elements() / most, "{done} transactions");
        }
    }
}

#[test]
fn a_kernel_without_any_memory_is_asked_a_few_times_and_no_more() {
    let (_, _, transaction) = cold_start();
    let mut asked = 0;
    let (done, result) = in_parts(transaction, |_| {
        asked += 1;
        Err(refusal(Errno::NOMEM))
    });
    assert!(result.is_err());
    assert_eq!(done, 0);
    assert!((2..20).contains(&asked), "{asked} times");
}

#[test]
fn what_is_refused_for_another_reason_is_not_tried_again() {
    let (_, _, transaction) = cold_start();
    let mut asked = 0;
    let (_, result) = in_parts(transaction, |_| {
        asked += 1;
        Err(refusal(Errno::INVAL))
    });
    assert!(result.is_err());
    assert_eq!(asked, 1);
}
