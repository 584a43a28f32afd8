//! Checks whether the kernel takes the table of the mode before anything else is written.
//!
//! Virtual servers, and mostly the routing rule, come before the table. Where the kernel can never take the
//! table, they would stay for nothing.

use backend::{CommitError, Effect, Recovery, Rendered};
use dataplane::{Dataplane, Family};
use netlink::nf_tables::{Expression, Operation, Register};
use nftables_model::{Address, Contents, Probe, load_address, regular, rule};

use super::recovery::of_table;
use super::{Connection, Ipvs};
use crate::diff::Change;
use crate::missing_schedulers::MissingSchedulers;
use crate::render::render;
use crate::table_diff;

/// A table without Services.
fn probe(family: Family) -> Probe {
    let (nothing, missing) = (Rendered::default(), MissingSchedulers::default());
    let rules = render(family, &Dataplane::default(), &nothing, &missing);
    let transactions = table_diff::diff(family, &Contents::default(), &rules.table).into_iter();
    Probe::new(family, transactions.flat_map(|t| t.operations))
}

/// A table with no more than a rule that hashes.
fn hashing_probe(family: Family) -> Probe {
    let chain = regular("probe", Vec::new()).chain;
    let hash = rule(vec![
        load_address(family, Address::Source, Register(0)),
        Expression::Hash {
            from: Register(0),
            length: 4,
            modulus: 2,
            seed: 0,
            offset: 0,
            to: Register(0),
        },
    ]);
    let rule = Operation::AddRule {
        chain: chain.name.clone(),
        rule: hash,
    };
    Probe::new(
        family,
        [Operation::AddTable, Operation::AddChain(chain), rule],
    )
}

impl Ipvs {
    /// Checks, before anything is written, whether the kernel supports what every table needs and
    /// what only the Services of the change need, and whether it lets this process write the table
    /// that a change begins with. Ignores what passes, such as a lack of memory.
    pub(super) fn check_table(
        &mut self,
        connection: &mut Connection,
        change: &Change,
    ) -> Result<(), CommitError> {
        if !change.begins() && !change.adds_rules() {
            return Ok(());
        }
        let (family, nothing) = (self.family, (Recovery::Halt, Effect::None));
        let socket = connection.tables.socket();
        if let Some(missing) = self.support.observe_missing(socket, || probe(family)) {
            return Err(self.uncommitted(nothing, missing));
        }
        if change.adds_hashes() {
            let hashes = &mut self.hashes;
            if let Some(missing) = hashes.observe_missing(socket, || hashing_probe(family)) {
                let those_services = (Recovery::Isolate, Effect::None);
                return Err(self.uncommitted(those_services, missing));
            }
        }
        let first = change.transactions().next();
        let Some(first) = first.filter(|_| change.begins()) else {
            return Ok(());
        };
        match socket.check(first) {
            Err(error) if of_table(&error, true).0 == Recovery::Halt => {
                Err(self.uncommitted(nothing, error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use netlink::nf_tables::ChainKind;
    use netlink::{CommitError, Refusal};
    use rustix::io::Errno;

    use super::*;

    /// The error message for a kernel that refuses the first operation that `is_it` accepts, with
    /// this errno.
    fn reported(family: Family, errno: Errno, is_it: fn(&Operation) -> bool) -> Option<String> {
        let probe = probe(family);
        let at = probe.operations().iter().position(is_it);
        let at = at.expect("it is always there") + 1;
        let error = CommitError::Refused {
            at: Refusal::Message(u32::try_from(at).expect("there are few")),
            source: io::Error::from(errno),
        };
        probe.missing(error).map(|missing| missing.to_string())
    }

    fn is_nat(operation: &Operation) -> bool {
        let Operation::AddChain(chain) = operation else {
            return false;
        };
        let hook = chain.hook.as_ref();
        hook.is_some_and(|hook| hook.kind == ChainKind::Nat)
    }

    fn has(operation: &Operation, is_it: fn(&Expression) -> bool) -> bool {
        matches!(operation, Operation::AddRule { rule, .. } if rule.expressions.iter().any(is_it))
    }

    /// Failure story T316.
    #[test]
    fn t316_a_hash_that_the_kernel_lacks_is_named_with_its_module() {
        for family in Family::ALL {
            let probe = hashing_probe(family);
            let error = CommitError::Refused {
                at: Refusal::Message(u32::try_from(probe.operations().len()).expect("three")),
                source: io::Error::from(Errno::NOENT),
            };
            let missing = probe.missing(error).expect("it is missing").to_string();
            assert!(missing.contains("(module nft_hash)"), "{missing}");
            assert!(missing.ends_with(&format!(" for {family}")), "{missing}");
        }
    }

    /// Failure story T340.
    #[test]
    fn t340_what_the_table_of_mode_ipvs_needs_and_the_kernel_lacks_is_named_with_its_module() {
        let nat = reported(Family::Ipv6, Errno::NOENT, is_nat);
        let expected = "this kernel lacks chains of type nat (module nft_chain_nat) for IPv6";
        assert_eq!(nat.as_deref(), Some(expected));
        let fib = reported(Family::Ipv6, Errno::NOENT, |operation| {
            has(operation, |e| matches!(e, Expression::FibType { .. }))
        });
        let fib = fib.expect("it is missing");
        assert!(fib.contains("nft_fib_ipv6"), "{fib}");
        // A kernel may be built without labels of connections, which mode nftables does not need.
        let labels = reported(Family::Ipv4, Errno::OPNOTSUPP, |operation| {
            has(operation, |e| matches!(e, Expression::SetCt { .. }))
        });
        let labels = labels.expect("they are missing");
        assert!(labels.contains("module nft_ct"), "{labels}");
        for errno in [Errno::NOMEM, Errno::BUSY, Errno::PERM] {
            assert_eq!(reported(Family::Ipv6, errno, is_nat), None, "{errno}");
        }
    }
}
