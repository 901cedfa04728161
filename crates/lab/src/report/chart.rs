//! Bars: ours beside the published figures, as SVG that a page's style sheet colours.

use crate::text::figure;

/// One bar, or two.
pub struct Bar {
    /// What it is.
    pub label: String,
    /// The published figure.
    pub published: Option<f64>,
    /// Ours.
    pub ours: Option<f64>,
}

/// Units of the drawing; a phone shows about one per pixel.
const WIDTH: f64 = 400.0;
const LINE: f64 = 48.0;
const FOOT: f64 = 18.0;
/// The shortest bar.
const SHORTEST: f64 = 4.0;
/// Beyond this span bars are as long as logarithms.
const LINEAR: f64 = 25.0;

/// Text as SVG has it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The bars of figures in `unit`.
pub fn svg(bars: &[Bar], unit: &str) -> String {
    let values: Vec<f64> =
        bars.iter().flat_map(|bar| [bar.published, bar.ours]).flatten().filter(|value| *value > 0.0).collect();
    let most = values.iter().copied().fold(0.0, f64::max);
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let logarithmic = most > least * LINEAR;
    // The decade below the least is where logarithmic bars begin.
    let start = 10f64.powf((least / 1.5).log10().floor());
    let length = |value: f64| {
        let part = match logarithmic {
            true => (value / start).log10() / (most / start).log10(),
            false => value / most,
        };
        (part * WIDTH).clamp(SHORTEST, WIDTH)
    };
    let height = bars.len() as f64 * LINE + FOOT;
    let mut svg = format!("<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">");
    for (at, bar) in bars.iter().enumerate() {
        let top = at as f64 * LINE;
        let number = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), figure);
        let numbers = match bar.published {
            Some(published) => format!("{published} / {}", number(bar.ours)),
            None => number(bar.ours),
        };
        svg += &format!("<text x=\"0\" y=\"{}\">{}</text>", top + 16.0, escaped(&bar.label));
        svg += &format!("<text class=\"number\" x=\"{WIDTH}\" y=\"{}\">{numbers}</text>", top + 16.0);
        for (class, value, y) in [("published", bar.published, 22.0), ("ours", bar.ours, 32.0)] {
            if let Some(value) = value {
                let (y, length) = (top + y, length(value));
                svg +=
                    &format!("<rect class=\"{class}\" x=\"0\" y=\"{y}\" width=\"{length:.1}\" height=\"8\" rx=\"2\"/>");
            }
        }
    }
    let scale = if logarithmic { format!("{unit}, logarithmic from {}", figure(start)) } else { unit.to_owned() };
    svg += &format!("<text class=\"foot\" x=\"0\" y=\"{}\">{}</text></svg>", height - 5.0, escaped(&scale));
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bar = |published, ours| Bar { label: "a<b".to_owned(), published, ours };
        let drawn = svg(&[bar(Some(10.0), Some(5.0)), bar(None, None)], "s");
        assert!(drawn.contains("width=\"400.0\"") && drawn.contains("width=\"200.0\"") && drawn.contains("a&lt;b"));
        let drawn = svg(&[bar(Some(1000.0), Some(10.0))], "s");
        assert!(drawn.contains("logarithmic from 1.00") && drawn.contains("width=\"133.3\""), "{drawn}");
        assert!(svg(&[bar(None, None)], "s").contains("–"));
    }
}
