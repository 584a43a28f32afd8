//! Durations in Go's format, such as `1h0m0s` and `1.5s`.

use serde_json::Value;

const UNITS: [(&str, f64); 7] = [
    ("ms", 1.0),
    ("us", 1e-3),
    ("µs", 1e-3),
    ("ns", 1e-6),
    ("h", 3_600_000.0),
    ("m", 60_000.0),
    ("s", 1_000.0),
];

/// [`crds::Span::MAX`] in milliseconds.
const LONGEST: f64 = 99_999.0 * 3_600_000.0;

/// Returns the whole milliseconds of a Go duration, rounded up. A number is in nanoseconds, as in
/// the log options. Returns `None` for other values, and for a duration that is negative or longer
/// than a profile accepts.
pub(super) fn milliseconds(value: &Value) -> Option<u64> {
    let total = match value {
        Value::Number(nanoseconds) => nanoseconds.as_f64()? / 1e6,
        Value::String(text) => sum(text.trim())?,
        _ => return None,
    };
    let usable = (0.0..=LONGEST).contains(&total);
    usable.then(|| whole(total))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the caller has checked the bounds"
)]
fn whole(milliseconds: f64) -> u64 {
    milliseconds.ceil() as u64
}

fn sum(text: &str) -> Option<f64> {
    if text == "0" {
        return Some(0.0);
    }
    let mut rest = text;
    let mut total = 0.0;
    let mut groups = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let number: f64 = number.parse().ok()?;
        let (name, size) = UNITS.iter().find(|(name, _)| after.starts_with(name))?;
        total += number * size;
        rest = &after[name.len()..];
        groups += 1;
    }
    (groups > 0).then_some(total)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, expected) in [
            ("0s", Some(0)),
            ("0", Some(0)),
            ("10ms", Some(10)),
            ("1.5s", Some(1500)),
            ("1h0m0s", Some(3_600_000)),
            ("24h0m0s", Some(86_400_000)),
            ("500us", Some(1)),
            ("-1s", None),
            ("", None),
            ("1", None),
            ("1d", None),
            ("999999h", None),
        ] {
            assert_eq!(milliseconds(&json!(text)), expected, "{text:?}");
        }
        assert_eq!(milliseconds(&json!(5_000_000_000_u64)), Some(5000));
        assert_eq!(milliseconds(&json!([])), None);
    }
}
