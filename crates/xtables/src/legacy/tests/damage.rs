//! Changes by other programs between Signpost's reads of a table and its changes.

use super::*;

fn table_summary(made: &Made) -> TableSummary {
    TableSummary::of(&made.parse().expect("it can be read"), SIGNPOST)
}

fn with(made: &Made, prefix: &str, step: TableChange) -> Made {
    made.change(prefix, &[step]).expect("it fits").0
}

#[test]
fn others_change_their_own_rules_and_signposts_are_found_as_left() {
    for family in FAMILIES {
        let enter = [(BuiltIn::Input, &[jump("SIGNPOST-A")] as &[Rule])];
        let leaf = [Rule::always(Target::Drop)];
        let step = change(
            &[("SIGNPOST-A", &[jump("SIGNPOST-B")]), ("SIGNPOST-B", &leaf)],
            &enter,
            &[],
        );
        let left = with(&with_others(family), SIGNPOST, step);
        let seen = Some(Seen::As(left.info, table_summary(&left)));
        let found = |made: &Made| Finding::of(seen, made.info, table_summary(made));
        assert_eq!(found(&left), Finding::AsLeft);

        let foreign = [(BuiltIn::Input, &[jump("KUBE-C")] as &[Rule])];
        let step = change(&[("KUBE-C", &[Rule::always(Target::Drop)])], &foreign, &[]);
        assert_eq!(found(&with(&left, OTHERS, step)), Finding::Touched);

        for (damage, what) in [
            (change(&[], &[(BuiltIn::Input, &[])], &[]), "no way in"),
            (change(&[("SIGNPOST-A", &[])], &[], &[]), "no way on"),
            (change(&[("SIGNPOST-B", &[])], &[], &[]), "no rule"),
            (
                change(&[("SIGNPOST-A", &[jump("SIGNPOST-A")])], &[], &[]),
                "another way on, of the same length",
            ),
            (
                change(&[("SIGNPOST-C", &[])], &[], &[]),
                "a chain that Signpost did not make",
            ),
        ] {
            assert_eq!(
                found(&with(&left, SIGNPOST, damage)),
                Finding::Damaged,
                "{what}"
            );
        }
    }
}

#[test]
fn where_signpost_has_no_rules_nothing_can_be_damaged() {
    let others = with_others(Family::Ipv4);
    let empty = Made::empty(Family::Ipv4);
    assert_eq!(table_summary(&others), TableSummary::NOTHING);
    for seen in [
        None,
        Some(Seen::Absent),
        Some(Seen::As(empty.info, TableSummary::NOTHING)),
    ] {
        let found = Finding::of(seen, others.info, table_summary(&others));
        assert_eq!(found, Finding::AsLeft);
    }
    let found = Finding::of(Some(Seen::Unread), others.info, table_summary(&others));
    assert_eq!(found, Finding::Touched);
}
