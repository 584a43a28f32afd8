use std::cell::Cell;

use super::*;

thread_local! {
    static COPIES: Cell<usize> = const { Cell::new(0) };
}

/// A claim that counts its copies.
#[derive(Debug, PartialEq)]
struct Counted(FrontendKind);

impl Clone for Counted {
    fn clone(&self) -> Counted {
        COPIES.set(COPIES.get() + 1);
        Counted(self.0)
    }
}

impl Claim for Counted {
    fn kind(&self) -> FrontendKind {
        self.0
    }
}

type Map = PersistentMap<u8, Claims<Counted>>;

fn service(number: usize) -> ServiceKey {
    ServiceKey::new("shop", format!("web-{number:05}"))
}

/// The copies that are made while so many Services begin to claim one key, change the kind of their
/// claim and give it up again. Some are kept after each step as what the kernel has.
fn count_copies(claimants: usize, is_kept: bool) -> usize {
    let mut map = Map::new();
    let mut kept = map.clone();
    COPIES.set(0);
    let claims = [
        Some(FrontendKind::ExternalIp),
        Some(FrontendKind::LoadBalancerIp),
        None,
    ];
    for claim in claims {
        // In no order, so that none is always the first or the last one.
        for number in (0..claimants).map(|n| n * 7 % claimants) {
            set(&mut map, &service(number), 0, claim.map(Counted));
            if is_kept {
                kept = map.clone();
            }
        }
    }
    assert!(map.is_empty() && kept.is_empty());
    COPIES.get()
}

/// T412: each change copied the claims of all others.
#[test]
fn t412_a_claim_copies_no_more_of_the_others_if_they_are_many() {
    for is_kept in [false, true] {
        let [few, many] = [1_000, 4_000].map(|claimants| count_copies(claimants, is_kept));
        assert!(
            many <= 5 * few,
            "{many} copies after {few}, kept: {is_kept}"
        );
        // Two lists change if a claim changes its kind, and each time a part may be divided.
        let most = if is_kept { 4 * 64 } else { 1 };
        assert!(many <= 4_000 * 3 * most, "{many} copies, kept: {is_kept}");
    }
}

/// The published memory for each Service counts on it.
#[test]
fn a_single_claim_takes_no_more_memory_than_its_parts() {
    let (claims, parts) = (
        size_of::<Claims<Arc<Frontend>>>(),
        size_of::<(ServiceKey, Arc<Frontend>)>(),
    );
    assert_eq!(claims, parts);
}

#[test]
fn claims_are_in_order_of_kind_and_name_however_they_came() {
    let kinds = [FrontendKind::LoadBalancerIp, FrontendKind::ExternalIp];
    let mut map = Map::new();
    for number in (0..300).map(|n| n * 7 % 300) {
        set(
            &mut map,
            &service(number),
            0,
            Some(Counted(kinds[number % 2])),
        );
    }
    let claims = map.get(&0).expect("it is claimed");
    let even = (0..300).step_by(2).map(|n| (service(n), kinds[0]));
    let odd = (1..300).step_by(2).map(|n| (service(n), kinds[1]));
    let names = claims
        .iter()
        .map(|(service, value)| (service.clone(), value.0));
    assert!(names.eq(even.chain(odd)));
    assert_eq!(claims.equals().count(), 150);
    assert!(claims.equal(&service(2)).is_some());
    assert!(claims.equal(&service(3)).is_none());
    assert_eq!(claims.kind_of(&service(3)), Some(kinds[1]));
    assert_eq!(claims.kind_of(&service(300)), None);
    assert!(claims.has_namespace("shop", kinds[1]));
    for (namespace, kind) in [
        ("shoo", kinds[0]),
        ("shop", FrontendKind::NodePort),
        ("shoq", kinds[0]),
    ] {
        assert!(!claims.has_namespace(namespace, kind), "{namespace} {kind}");
    }
}

#[test]
fn equal_claims_are_equal_whether_they_share_anything_or_not() {
    let build = |order: &dyn Fn(usize) -> usize| {
        let mut map = Map::new();
        for number in (0..200).map(order) {
            set(
                &mut map,
                &service(number),
                0,
                Some(Counted(FrontendKind::ExternalIp)),
            );
        }
        map
    };
    let (one, mut other) = (build(&|n| n), build(&|n| n * 7 % 200));
    assert_eq!(one, other);
    let same = |one: &Map, other: &Map| {
        one.get(&0)
            .zip(other.get(&0))
            .is_some_and(|(a, b)| a.are_of_same(b))
    };
    assert!(same(&one, &other));
    set(&mut other, &service(77), 0, None);
    assert_ne!(one, other);
    assert!(!same(&one, &other));
    set(
        &mut other,
        &service(77),
        0,
        Some(Counted(FrontendKind::LoadBalancerIp)),
    );
    assert_ne!(one, other);
    assert!(!same(&one, &other));
}
