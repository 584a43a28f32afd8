//! Figures as a chart: two bars for each measure, on a logarithmic scale per unit.

use std::fmt::Write as _;

use super::figures::Summary;
use super::{Contender, Figures, Measure};

/// Widths and heights, in pixels.
const TITLES: f64 = 400.0;
const BARS: f64 = 420.0;
const VALUES: f64 = 230.0;
const TOP: f64 = 70.0;
const LINE: f64 = 40.0;
const BAR: f64 = 13.0;
/// The ratio between the longest visible bar and an invisible one, as a power of ten.
const DECADES: f64 = 6.0;
/// The bar colour of each contender.
const COLOURS: [(&str, Contender); 2] = [
    ("#8a8f98", Contender::KubeProxy),
    ("#1f77b4", Contender::Signpost),
];

/// Draws a chart of all measures that both contenders have.
pub(super) fn draw(title: &str, figures: &Figures) -> String {
    let mut svg = String::new();
    // Writing to a String cannot fail.
    let _ = write_chart(&mut svg, title, figures);
    svg
}

fn write_chart(svg: &mut String, title: &str, figures: &Figures) -> std::fmt::Result {
    let of = |measure| {
        let [kube_proxy, signpost] = Contender::ALL.map(|c| figures.summary(measure, c));
        Some((measure, [kube_proxy?, signpost?]))
    };
    let all: Vec<(Measure, [Summary; 2])> = figures.measures().into_iter().filter_map(of).collect();
    let mut height = TOP;
    all.iter().for_each(|_| height += LINE);
    let width = TITLES + BARS + VALUES;
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"24\" font-size=\"16\">{title}</text>"
    )?;
    let mut x = 10.0;
    for (colour, contender) in COLOURS {
        writeln!(
            svg,
            "<rect x=\"{x}\" y=\"38\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"48\">{contender}</text>",
            x + 18.0
        )?;
        x += 130.0;
    }
    writeln!(
        svg,
        "<text x=\"{x}\" y=\"48\">each pair on a logarithmic scale of its own</text>"
    )?;
    let mut y = TOP;
    for (measure, pair) in all {
        writeln!(
            svg,
            "<text x=\"10\" y=\"{}\">{}</text>",
            y + BAR + 4.0,
            escape(measure.title())
        )?;
        let most = f64::max(pair[0].median, pair[1].median);
        for (summary, (colour, _)) in pair.into_iter().zip(COLOURS) {
            let length = BARS * share(summary.median, most);
            writeln!(
                svg,
                "<rect x=\"{TITLES}\" y=\"{y}\" width=\"{length:.1}\" height=\"{BAR}\" \
                 fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{}\">{} {}</text>",
                TITLES + length + 6.0,
                y + 11.0,
                escape(&summary.to_string()),
                measure.unit()
            )?;
            y += BAR + 1.0;
        }
        y += LINE - 2.0 * (BAR + 1.0);
    }
    writeln!(svg, "</svg>")
}

/// Returns the length of a bar relative to the longest one of its measure.
fn share(value: f64, most: f64) -> f64 {
    if value <= 0.0 || most <= 0.0 {
        return 0.0;
    }
    (1.0 + (value / most).log10() / DECADES).clamp(0.005, 1.0)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Reading;

    #[test]
    fn a_thousand_times_is_half_a_bar() {
        assert!((share(1.0, 1000.0) - 0.5).abs() < 1e-9);
        assert!((share(1000.0, 1000.0) - 1.0).abs() < 1e-9);
        assert!(share(0.0, 1000.0) < 1e-9);
    }

    #[test]
    fn only_what_both_have_is_drawn() {
        let mut figures = Figures::default();
        for contender in Contender::ALL {
            figures.push(contender, Measure::ColdStart, Reading::number(5.0));
        }
        let of_one = Measure::DecodeRate;
        figures.push(Contender::Signpost, of_one, Reading::number(5.0));
        let svg = draw("title", &figures);
        assert!(svg.contains(Measure::ColdStart.title()));
        assert!(!svg.contains(of_one.title()));
        assert!(svg.ends_with("</svg>\n"));
    }
}
