//! Damaged JSON objects, whose syntax is still valid.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

/// One step of damage to a value within an object.
#[derive(Debug, Clone)]
enum Step {
    /// Replaces it with an unexpected value.
    Replace(Index, Index),
    /// Removes it.
    Remove(Index),
    /// Repeats it, in a list or, in an object, under another name.
    Repeat(Index, usize),
    /// Replaces it with another value of the object.
    Move(Index, Index),
}

/// Generates one of `good` after a few steps of damage, where `odd` are values to insert in
/// addition to generally odd ones.
///
/// # Panics
///
/// If `good` is empty.
pub fn damaged_json(good: Vec<Value>, odd: Vec<Value>) -> impl Strategy<Value = Value> {
    assert!(!good.is_empty(), "nothing to start from");
    let odd: Vec<Value> = odd_anywhere().into_iter().chain(odd).collect();
    let place = any::<Index>;
    let step = prop_oneof![
        4 => (place(), place()).prop_map(|(at, value)| Step::Replace(at, value)),
        2 => place().prop_map(Step::Remove),
        2 => (place(), 1usize..4).prop_map(|(at, times)| Step::Repeat(at, times)),
        1 => (place(), place()).prop_map(|(at, from)| Step::Move(at, from)),
    ];
    (any::<Index>(), vec(step, 1..6)).prop_map(move |(which, steps)| {
        let mut value = which.get(&good).clone();
        for step in &steps {
            apply(&mut value, step, &odd);
        }
        value
    })
}

fn odd_anywhere() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(65_536),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e300),
        json!(""),
        json!(" "),
        json!("\u{0}"),
        json!("é\u{202e}"),
        json!("x".repeat(3000)),
        json!([]),
        json!([[]]),
        json!({}),
        json!({"": null}),
        json!("None"),
        json!("0.0.0.0"),
        json!("255.255.255.255"),
        json!("::"),
        json!("::ffff:10.0.0.1"),
        json!("fe80::1%eth0"),
        json!("010.0.0.1"),
        json!("10.0.0.0/33"),
        json!("0.0.0.0/0"),
        json!("2026-13-01T00:00:00Z"),
    ]
}

fn apply(root: &mut Value, step: &Step, odd: &[Value]) {
    let paths = paths(root);
    let at = |index: &Index| index.get(&paths).clone();
    match step {
        Step::Replace(index, value) => {
            if let Some(place) = root.pointer_mut(&at(index)) {
                *place = value.get(odd).clone();
            }
        }
        Step::Move(index, from) => {
            let other = root.pointer(&at(from)).cloned();
            if let (Some(place), Some(other)) = (root.pointer_mut(&at(index)), other) {
                *place = other;
            }
        }
        Step::Remove(index) => with_parent(root, &at(index), |parent, key| match parent {
            Value::Object(fields) => drop(fields.remove(key)),
            Value::Array(items) => drop(key.parse().map(|at: usize| items.remove(at))),
            _ => {}
        }),
        Step::Repeat(index, times) => with_parent(root, &at(index), |parent, key| match parent {
            Value::Object(fields) => {
                let value = fields.get(key).cloned().unwrap_or_default();
                fields.extend((0..*times).map(|n| (format!("{key}{n}"), value.clone())));
            }
            Value::Array(items) => {
                let item = key
                    .parse()
                    .ok()
                    .and_then(|at: usize| items.get(at).cloned());
                items.extend(std::iter::repeat_n(item.unwrap_or_default(), *times));
            }
            _ => {}
        }),
    }
}

/// The pointers (RFC 6901) to all values within `value`, itself first.
fn paths(value: &Value) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut add = |key: &str, value: &Value| {
        let key = key.replace('~', "~0").replace('/', "~1");
        found.extend(paths(value).iter().map(|path| format!("/{key}{path}")));
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| add(key, value)),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(at, value)| add(&at.to_string(), value)),
        _ => {}
    }
    found
}

fn with_parent(root: &mut Value, path: &str, change: impl FnOnce(&mut Value, &str)) {
    if let Some((parent, key)) = path.rsplit_once('/')
        && let Some(parent) = root.pointer_mut(parent)
    {
        change(parent, &key.replace("~1", "/").replace("~0", "~"));
    }
}

#[cfg(test)]
mod tests {
    use super::damaged_json;
    use proptest::strategy::{Strategy, ValueTree};
    use proptest::test_runner::TestRunner;
    use serde_json::{Value, json};

    #[test]
    fn everything_in_an_object_is_damaged_at_times() {
        let good = json!({"a/b": {"c": [1, 2]}, "d": "e"});
        let strategy = damaged_json(vec![good.clone()], vec![json!("found")]);
        let mut runner = TestRunner::deterministic();
        let values: Vec<Value> = (0..1000)
            .map(|_| strategy.new_tree(&mut runner).expect("a tree").current())
            .collect();
        let some = |desired: &dyn Fn(&Value) -> bool| values.iter().any(desired);
        assert!(some(&|value| value.get("a/b").is_none()));
        assert!(some(&|value| value["a/b"]["c"] == json!([2])));
        assert!(some(&|value| value["a/b"]["c"] == json!([1, 2, 1])));
        assert!(some(&|value| value["d"] == "found"));
        assert!(some(&|value| value["d0"] == "e"));
        assert!(some(&|value| value["d"] == good["a/b"]));
    }
}
