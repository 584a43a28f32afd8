//! Alert rules in which a minute lasts a second.

use anyhow::{Context, Result};
use serde_json::Value;

/// The number of seconds from which a threshold is a time to wait. Lower ones are latencies and
/// numbers of events, which stay.
const LONG: u32 = 60;

/// Divides each time of a rules file by sixty: `for`, the ranges in brackets, and thresholds of a
/// minute or more. Nothing else changes, so that the rest of each expression is the one in use.
pub(crate) fn shorten(mut rules: Value) -> Result<Value> {
    let groups = rules["groups"].as_array_mut().context("groups")?;
    for rule in groups
        .iter_mut()
        .filter_map(|group| group["rules"].as_array_mut())
    {
        for rule in rule {
            let lasts = rule["for"].as_str().context("a duration")?;
            let expression = rule["expr"].as_str().context("an expression")?;
            let (lasts, expression) = (shorten_span(lasts), shorten_expression(expression)?);
            rule["for"] = lasts.into();
            rule["expr"] = expression.into();
        }
    }
    Ok(rules)
}

/// Hours become minutes, and minutes seconds.
fn shorten_span(span: &str) -> String {
    span.replace('m', "s").replace('h', "m")
}

fn shorten_expression(expression: &str) -> Result<String> {
    let mut parts = expression.split('[');
    let mut shortened = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (range, rest) = part.split_once(']').context("a range ends")?;
        shortened.push_str(&format!("[{}]{rest}", shorten_span(range)));
    }
    let words = shortened.split(' ').scan("", |before, word| {
        let threshold = word.parse().ok().filter(|number: &u32| *number >= LONG);
        let word = match (*before, threshold) {
            (">", Some(seconds)) => (seconds / LONG).to_string(),
            _ => word.to_owned(),
        };
        *before = if word == ">" { ">" } else { "" };
        Some(word)
    });
    Ok(words.collect::<Vec<_>>().join(" "))
}

/// What an expression may contain, and what becomes of it.
pub(crate) fn only_times_change() -> Result<()> {
    for (expression, expected) in [
        (
            "increase(a_total{b=\"c m\"}[5m])",
            "increase(a_total{b=\"c m\"}[5s])",
        ),
        ("changes(a[30m]) > 0", "changes(a[30s]) > 0"),
        ("increase(a[1h]) > 3", "increase(a[1m]) > 3"),
        ("max(a_seconds) > 300", "max(a_seconds) > 5"),
        (
            "time() - a > 3600 and on (b) c",
            "time() - a > 60 and on (b) c",
        ),
        ("a / (b > 0) > 0.9", "a / (b > 0) > 0.9"),
        ("up == 0", "up == 0"),
    ] {
        anyhow::ensure!(shorten_expression(expression)? == expected, "{expression}");
    }
    Ok(())
}
