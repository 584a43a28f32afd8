//! One table of profiles, checked by both implementations: the rules in Rust and the CEL rules of
//! the schema.
//!
//! A bad profile begins with the expected errors:
//!
//! ```text
//! # the message of the API server, or a part of it
//! # field: the field it names
//! # node says: the message of the rules in Rust, if the API server's own message differs
//! ```

use std::{fs, path::Path};

use crds::{ProxyProfile, check_spec, manifest, parse_profile, reference, unsupported};
use kube_cel::Validator;
use serde_json::Value;

struct Profile {
    file: String,
    text: String,
    object: Value,
}

impl Profile {
    fn comment(&self, line: usize, prefix: &str) -> Option<&str> {
        self.text.lines().nth(line)?.strip_prefix(prefix)
    }

    fn message(&self) -> &str {
        self.comment(0, "# ")
            .expect("the first line says the message")
    }

    fn field(&self) -> &str {
        self.comment(1, "# field: ")
            .expect("the second line says the field")
    }
}

fn profiles(directory: &str) -> Vec<Profile> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(directory);
    let mut profiles: Vec<Profile> = fs::read_dir(&directory)
        .expect("the directory of profiles")
        .map(|entry| {
            let path = entry.expect("an entry of the directory").path();
            let text = fs::read_to_string(&path).expect("a profile");
            let object = serde_saphyr::from_str(&text).expect("a YAML document");
            Profile {
                file: path.display().to_string(),
                text,
                object,
            }
        })
        .collect();
    profiles.sort_by(|a, b| a.file.cmp(&b.file));
    profiles
}

fn schema() -> Value {
    let [profile, _] = manifest::manifests().expect("the definitions");
    let crd: Value = serde_saphyr::from_str(&profile.text).expect("a YAML document");
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema")
        .expect("a schema")
        .clone()
}

/// The errors of the schema's CEL rules for `object`, after the defaults that an API server fills
/// in.
fn broken_rules(schema: &Value, object: &Value) -> Vec<(String, String)> {
    let errors = Validator::new()
        .validate_with_defaults(schema, object, None)
        .err();
    let errors = errors
        .map(kube_cel::ValidationErrors::into_vec)
        .unwrap_or_default();
    errors
        .into_iter()
        .map(|error| (error.field_path, error.message))
        .collect()
}

/// Every message of the CEL rules in `schema`.
fn messages(schema: &Value) -> Vec<&str> {
    let own = schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten();
    let mut found: Vec<&str> = own.filter_map(|rule| rule["message"].as_str()).collect();
    let properties = schema["properties"]
        .as_object()
        .into_iter()
        .flat_map(|properties| properties.values());
    for inner in properties.chain(schema.get("items")) {
        found.extend(messages(inner));
    }
    found.sort_unstable();
    found.dedup();
    found
}

#[test]
fn every_bad_profile_is_refused_by_the_rules_in_rust() {
    let profiles = profiles("bad-profiles");
    assert!(
        profiles.len() >= 25,
        "{} bad profiles found",
        profiles.len()
    );
    for profile in profiles {
        let expected = profile
            .comment(2, "# node says: ")
            .unwrap_or(profile.message());
        let errors = parse_profile(&profile.object).expect_err(&profile.file);
        assert!(
            errors
                .iter()
                .any(|error| error.field == profile.field() && error.message.contains(expected)),
            "{}: expected {}: {expected}, got {errors:?}",
            profile.file,
            profile.field(),
        );
        assert_eq!(
            errors.len(),
            1,
            "{}: one mistake is named once: {errors:?}",
            profile.file
        );
    }
}

#[test]
fn every_bad_profile_is_refused_by_the_rules_in_cel() {
    let schema = schema();
    let of_cel = messages(&schema);
    for profile in profiles("bad-profiles") {
        let expected = profile.message();
        let broken = broken_rules(&schema, &profile.object);
        if of_cel.contains(&expected) {
            assert!(
                broken
                    .iter()
                    .any(|(field, message)| field == profile.field() && message == expected),
                "{}: expected {}: {expected}, got {broken:?}",
                profile.file,
                profile.field(),
            );
        } else {
            // The API server's own messages for the bounds of the schema.
            let words = [
                "Unsupported value",
                "should be ",
                "should match",
                "must have at most",
                "may not be more",
            ];
            assert!(
                words.iter().any(|words| expected.contains(words)),
                "{}: no rule and no bound says {expected}",
                profile.file
            );
        }
    }
}

#[test]
fn every_rule_in_cel_has_a_bad_profile() {
    let schema = schema();
    let profiles = profiles("bad-profiles");
    for message in messages(&schema) {
        assert!(
            profiles.iter().any(|profile| profile.message() == message),
            "no bad profile for: {message}"
        );
    }
}

#[test]
fn good_profiles_are_accepted_by_both() {
    let schema = schema();
    let profiles = profiles("good-profiles");
    assert!(!profiles.is_empty());
    for profile in profiles {
        let parsed = parse_profile(&profile.object)
            .unwrap_or_else(|errors| panic!("{}: {errors:?}", profile.file));
        assert_eq!(check_spec(&parsed.spec), [], "{}", profile.file);
        assert_eq!(
            broken_rules(&schema, &profile.object),
            [],
            "{}",
            profile.file
        );
    }
}

#[test]
fn one_good_profile_uses_every_field_and_keeps_it() {
    fn leaves(schema: &Value, path: &str, found: &mut Vec<String>) {
        match schema["properties"].as_object() {
            Some(properties) => {
                for (name, inner) in properties {
                    leaves(inner, &format!("{path}/{name}"), found);
                }
            }
            None => found.push(path.to_owned()),
        }
    }
    let mut fields = Vec::new();
    leaves(&schema()["properties"]["spec"], "/spec", &mut fields);
    let profile = profiles("good-profiles")
        .into_iter()
        .find(|profile| profile.file.ends_with("every-field.yaml"));
    let profile = profile.expect("the profile that uses every field");
    let parsed: ProxyProfile = parse_profile(&profile.object).expect("a good profile");
    let kept = serde_json::to_value(&parsed).expect("JSON");
    for field in fields {
        let written = profile.object.pointer(&field);
        assert!(written.is_some(), "{field} is not in every-field.yaml");
        assert_eq!(
            kept.pointer(&field),
            written,
            "{field} is not kept as it was written"
        );
    }
}

#[test]
fn an_unsupported_field_says_so_and_no_other_does() {
    fn walk(schema: &Value, path: &str) {
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}{name}");
            if inner["properties"].is_object() {
                walk(inner, &format!("{path}."));
                continue;
            }
            let documented = inner["description"].as_str().is_some_and(|text| {
                let words: Vec<&str> = text.split_whitespace().collect();
                words
                    .join(" ")
                    .contains("Not supported yet: reported by condition FeaturesHonoured.")
            });
            assert_eq!(
                documented,
                unsupported::is_unread(&path),
                "{path}: {}",
                inner["description"]
            );
        }
    }
    let schema = schema();
    walk(&schema["properties"]["spec"], "");
    for field in unsupported::UNREAD_FIELDS {
        let pointer = format!(
            "/properties/spec/properties/{}",
            field.replace('.', "/properties/")
        );
        assert!(
            schema.pointer(&pointer).is_some_and(Value::is_object),
            "there is no field {field}"
        );
    }
}

#[test]
fn the_generated_files_are_those_of_the_types() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let definitions = manifest::manifests().expect("the definitions");
    let definitions = definitions.into_iter().map(|file| ("generated", file));
    let pages = reference::pages().into_iter().map(|page| ("../docs", page));
    for (folder, generated) in definitions.chain(pages) {
        let file = package.join(folder).join(generated.file);
        let written = fs::read_to_string(&file).expect("the generated file");
        assert!(
            written == generated.text,
            "{} is out of date: run make generate",
            file.display()
        );
    }
}
