//! Hostile profiles: each is either refused with the field, or valid enough to be applied.
//!
//! `PROPTEST_CASES=1000000` searches for more than `make test` does.

use std::collections::BTreeMap;
use std::path::Path;

use crds::{EffectiveConfig, NodeFacts, check_spec, parse_profile, resolve};
use proptest::prelude::*;
use serde_json::{Value, json};
use testkit::{corpus, damaged_json, try_many};

/// The number of inputs for each requested proptest case.
const CASES: u32 = 32;

fn profiles() -> Vec<Value> {
    let folders = ["tests/good-profiles", "tests/bad-profiles"];
    let files = folders.map(|folder| corpus(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)));
    let read = |(path, input): (_, testkit::Input)| {
        let text = String::from_utf8(input.0).expect("profiles are text");
        let Ok(value) = serde_saphyr::from_str::<Value>(&text) else {
            panic!("{path:?} is not YAML");
        };
        value
    };
    files.into_iter().flatten().map(read).collect()
}

#[test]
fn whatever_a_profile_holds_it_is_refused_by_field_or_can_be_carried_out() {
    let odd = [
        "nftables",
        "ipvs",
        "30s",
        "-1s",
        "1h1h",
        "9999999999999h",
        "50%",
        "101%",
        "-5%",
        "primary",
        "10.0.0.0/8",
        "rr",
        "wrr",
        "In",
        "Exists",
        "InterfaceNamePrefix",
        "a/b/c",
        "0x4000",
    ];
    let odd = odd.map(|word| json!(word)).to_vec();
    let node = NodeFacts {
        labels: BTreeMap::from([("kubernetes.io/os".to_owned(), "linux".to_owned())]).into(),
        ..NodeFacts::default()
    };
    try_many(CASES, &damaged_json(profiles(), odd), |object| {
        match parse_profile(&object) {
            Ok(profile) => {
                prop_assert_eq!(check_spec(&profile.spec), []);
                let _ = EffectiveConfig::of(&profile.spec);
                let _ = resolve([&profile], &node);
                let again = serde_json::to_value(&profile).expect("it came from JSON");
                let again = parse_profile(&again).map(|profile| profile.spec);
                prop_assert_eq!(again, Ok(profile.spec));
            }
            Err(errors) => {
                prop_assert!(!errors.is_empty());
                for error in errors {
                    prop_assert!(!error.message.is_empty(), "{:?}", error);
                }
            }
        }
        Ok(())
    });
}
