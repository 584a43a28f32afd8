//! Converts OpenMetrics, which the registry writes, to the format of Kubernetes' own components:
//! Prometheus text format 0.0.4.
//!
//! A scraper of kube-proxy finds the same names in the same places: the type of a counter is listed
//! under the name of its samples, and the bound of a bucket is `le="1"` and not `le="1.0"`, which
//! would be a different series for recording rules that name it.

use std::fmt::Write;

/// The media type of what [`plain_text`] returns.
pub(super) const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Converts the text. Never fails: keeps lines that it does not recognise.
pub(super) fn plain_text(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    let mut help = None;
    for line in openmetrics.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            write_sample(&mut text, line);
            continue;
        };
        let mut words = comment.splitn(3, ' ');
        // Writing to a String cannot fail.
        let _ = match (words.next(), words.next(), words.next()) {
            // The name depends on the type, which is in the next line.
            (Some("HELP"), Some(_), sentence) => {
                help = sentence;
                Ok(())
            }
            (Some("TYPE"), Some(name), Some(kind)) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    other => ("", other),
                };
                let help = help.take().unwrap_or_default();
                writeln!(
                    text,
                    "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}"
                )
            }
            (Some("UNIT" | "EOF"), ..) => Ok(()),
            _ => writeln!(text, "{line}"),
        };
    }
    text
}

fn write_sample(text: &mut String, line: &str) {
    const BOUND: &str = "le=\"";
    let bound = line.find(BOUND).and_then(|at| {
        let (before, rest) = line.split_at(at + BOUND.len());
        let (bound, after) = rest.split_once('"')?;
        Some((before, bound.strip_suffix(".0")?, after))
    });
    let _ = match bound {
        Some((before, bound, after)) => writeln!(text, "{before}{bound}\"{after}"),
        None => writeln!(text, "{line}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_types_and_bounds_are_those_of_a_go_program() {
        let openmetrics = "\
# HELP kubeproxy_proxy_livez Answers.
# TYPE kubeproxy_proxy_livez counter
kubeproxy_proxy_livez_total{code=\"200\"} 2
# HELP process_cpu_seconds Time used.
# TYPE process_cpu_seconds counter
# UNIT process_cpu_seconds seconds
process_cpu_seconds_total 0.5
# HELP signpost_build What runs.
# TYPE signpost_build info
signpost_build_info{version=\"1.0\"} 1
# HELP took How long.
# TYPE took histogram
took_sum 0.0
took_count 0
took_bucket{le=\"0.25\",phase=\"a\"} 0
took_bucket{le=\"1.0\",phase=\"1.0\"} 0
took_bucket{le=\"+Inf\",phase=\"a\"} 0
# EOF
";
        let expected = "\
# HELP kubeproxy_proxy_livez_total Answers.
# TYPE kubeproxy_proxy_livez_total counter
kubeproxy_proxy_livez_total{code=\"200\"} 2
# HELP process_cpu_seconds_total Time used.
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 0.5
# HELP signpost_build_info What runs.
# TYPE signpost_build_info gauge
signpost_build_info{version=\"1.0\"} 1
# HELP took How long.
# TYPE took histogram
took_sum 0.0
took_count 0
took_bucket{le=\"0.25\",phase=\"a\"} 0
took_bucket{le=\"1\",phase=\"1.0\"} 0
took_bucket{le=\"+Inf\",phase=\"a\"} 0
";
        assert_eq!(plain_text(openmetrics), expected);
    }
}
