//! Changes that the kernel rejects.

use anyhow::{Result, bail, ensure};
use xtables::{CommitError, Fault, Rule, TableChange, TableName, Tables, Target};

use crate::ground::{Ground, chains};

const TABLE: TableName = TableName::Nat;

fn jump(chain: &str) -> Rule {
    Rule::always(Target::Jump(chain.into()))
}

fn refused(tables: &mut Tables, changes: &[TableChange]) -> Result<CommitError> {
    match tables.commit(changes) {
        Ok(_) => bail!("the kernel took it"),
        Err(error) => Ok(error),
    }
}

pub(crate) fn what_the_kernel_lacks_is_distinguished_from_what_was_changed(
    ground: &Ground,
) -> Result<()> {
    let mut tables = ground.open()?;
    let both: [(&str, &[Rule]); 2] = [("SIGNPOST-A", &[jump("SIGNPOST-B")]), ("SIGNPOST-B", &[])];
    tables.commit(&[chains(TABLE, &both)])?;
    tables.observe(TABLE)?;
    // The chain does not exist and never did: the change is wrong.
    let wrong = chains(TABLE, &[("SIGNPOST-A", &[jump("SIGNPOST-NEVER")])]);
    let error = refused(&mut tables, &[wrong])?;
    ensure!(error.fault == Fault::Refused, "{error:?}");
    // The chain existed until another program removed it: the observed state is outdated.
    ground.iptables(TABLE, "-F SIGNPOST-A")?;
    ground.iptables(TABLE, "-X SIGNPOST-B")?;
    let right = chains(TABLE, &[("SIGNPOST-C", &[jump("SIGNPOST-B")])]);
    let error = refused(&mut tables, &[right])?;
    ensure!(error.fault == Fault::Changed, "{error:?}");
    let removal = TableChange {
        removed: vec!["SIGNPOST-B".into()],
        ..TableChange::new(TABLE)
    };
    let error = refused(&mut tables, &[removal])?;
    ensure!(error.fault == Fault::Changed, "{error:?}");
    Ok(())
}

pub(crate) fn a_refused_step_changes_nothing_and_the_steps_before_it_stand(
    ground: &Ground,
) -> Result<()> {
    let mut tables = ground.open()?;
    // In the other table: consecutive steps for one table may be combined.
    let good = chains(
        TableName::Filter,
        &[("SIGNPOST-A", &[Rule::always(Target::Reject)])],
    );
    let bad = chains(
        TABLE,
        &[
            ("SIGNPOST-B", &[Rule::always(Target::Masquerade)]),
            ("SIGNPOST-C", &[jump("SIGNPOST-NEVER")]),
        ],
    );
    let error = refused(&mut tables, &[good, bad])?;
    ensure!(error.done == 1 && error.table == TABLE, "{error:?}");
    let kept = ground.observe(TableName::Filter)?;
    ensure!(kept.chains.contains_key("SIGNPOST-A"), "{kept:?}");
    let untouched = ground.observe(TABLE)?;
    ensure!(untouched.chains.is_empty(), "{untouched:?}");
    Ok(())
}
