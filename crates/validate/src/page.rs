//! The result as one HTML page, which needs no other file and no network.

use crate::result::{Family, Pair, Row, Sign, Validation};
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Value, context};
use serde::Serialize;
use silicon::model::Score;

/// Rows of a list of the worst.
const WORST: usize = 15;
/// Characters of a name that are shown.
const NAME: usize = 90;

/// Reason why there is no page.
#[derive(Debug, thiserror::Error)]
#[error("the report cannot be made: {0}")]
pub struct PageError(#[from] minijinja::Error);

/// A mark on an axis: its place in per cent, and its text.
type Mark = (f64, String);

/// A drawing on two logarithmic axes.
#[derive(Serialize)]
struct Chart {
    title: String,
    x: Vec<Mark>,
    y: Vec<Mark>,
    x_name: String,
    y_name: String,
    lines: Vec<Line>,
}

/// A curve or a cloud of dots.
#[derive(Serialize)]
struct Line {
    class: String,
    path: String,
}

/// A row of dots on one logarithmic axis.
#[derive(Serialize)]
struct Dots {
    name: String,
    native_at: f64,
    native: String,
    models: Vec<(f64, String)>,
    error: String,
    wrong: bool,
}

/// Rows of dots on one axis.
#[derive(Serialize)]
struct Plot {
    marks: Vec<Mark>,
    unit: String,
    one: Option<f64>,
    rows: Vec<Dots>,
    rest: usize,
}

#[derive(Serialize)]
struct Section {
    id: String,
    name: String,
    about: String,
    unit: String,
    charts: Vec<Chart>,
    plot: Option<Plot>,
    groups: Vec<[String; 4]>,
}

/// Bars of a family's errors.
#[derive(Serialize)]
struct Overview {
    name: String,
    id: String,
    rows: String,
    scores: Vec<[String; 3]>,
}

/// A logarithmic axis.
#[derive(Clone, Copy)]
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values
            .filter(|value| *value > 0.0)
            .fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low > high { (1.0, 10.0) } else { (low, high) };
        Self { low: low / 1.15, high: high * 1.15 }
    }

    fn at(&self, value: f64) -> f64 {
        let part = (value.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        (1000.0 * part.clamp(0.0, 1.0)).round() / 10.0
    }

    /// Returns marks at powers of ten, or at powers of two and ten.
    fn marks(&self, show: fn(f64) -> String) -> Vec<Mark> {
        let decades = (self.high / self.low).log10();
        let steps: &[f64] = match decades {
            decades if decades > 2.5 => &[1.0],
            decades if decades > 0.9 => &[1.0, 2.0, 5.0],
            _ => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
        };
        let powers = (self.low.log10().floor() as i32)..=(self.high.log10().ceil() as i32);
        let values = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
        values.filter(|value| (self.low..=self.high).contains(value)).map(|v| (self.at(v), show(v))).collect()
    }

    /// Returns marks at every second or fourth power of two.
    fn binary_marks(&self, show: fn(f64) -> String) -> Vec<Mark> {
        let step = if (self.high / self.low).log2() > 9.0 { 4 } else { 2 };
        let powers = (0..60).filter(|power| power % step == 0).map(|power| 2f64.powi(power));
        powers.filter(|value| (self.low..=self.high).contains(value)).map(|v| (self.at(v), show(v))).collect()
    }
}

fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn mark(value: f64) -> String {
    format!("{value}")
}

fn bytes(value: f64) -> String {
    match value {
        size if size >= 1048576.0 => format!("{} MiB", size / 1048576.0),
        size => format!("{} KiB", size / 1024.0),
    }
}

fn percent(part: f64) -> String {
    format!("{:.1}%", 100.0 * part)
}

fn signed(part: f64) -> String {
    format!("{:+.1}%", 100.0 * part)
}

fn shortened(name: &str) -> String {
    match name.char_indices().nth(NAME) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name.to_owned(),
    }
}

fn optional(value: Option<String>) -> String {
    value.unwrap_or_else(|| "–".to_owned())
}

/// Draws a family's rows of one group as curves.
fn curves(family: &Family, group: &str, axis: &str) -> Chart {
    let rows: Vec<&Row> = family.rows.iter().filter(|row| row.group == group).collect();
    let x = Axis::of(rows.iter().map(|row| row.at));
    let y = Axis::of(rows.iter().flat_map(|row| row.models.iter().flatten().copied().chain([row.native])));
    let path = |value: &dyn Fn(&Row) -> Option<f64>| {
        let points = rows.iter().filter_map(|row| Some((x.at(row.at), 100.0 - y.at(value(row)?))));
        let text: Vec<String> = points.map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        if text.is_empty() { String::new() } else { format!("M{}", text.join(" L")) }
    };
    let mut lines: Vec<Line> = (0..family.scores.len())
        .rev()
        .map(|model| Line { class: format!("model{model}"), path: path(&|row: &Row| row.models[model]) })
        .collect();
    lines.push(Line { class: "native".into(), path: path(&|row: &Row| Some(row.native)) });
    Chart {
        title: group.to_owned(),
        x: if axis == "bytes" { x.binary_marks(bytes) } else { x.binary_marks(mark) },
        y: y.marks(mark),
        x_name: axis.to_owned(),
        y_name: family.unit.clone(),
        lines,
    }
}

/// Draws every row as a dot: this machine's figure to the right, the models' upwards.
fn cloud(family: &Family) -> Chart {
    let both = Axis::of(family.rows.iter().flat_map(|row| row.models[0].into_iter().chain([row.native])));
    let path = |model: usize| {
        let points =
            family.rows.iter().filter_map(|row| Some((both.at(row.native), 100.0 - both.at(row.models[model]?))));
        points.map(|(x, y)| format!("M{x:.1} {y:.1}h0")).collect::<String>()
    };
    let mut lines = vec![Line { class: "equal".into(), path: "M0 100 L100 0".into() }];
    lines.push(Line { class: "dot model0".into(), path: path(0) });
    Chart {
        title: String::new(),
        x: both.marks(mark),
        y: both.marks(mark),
        x_name: format!("this machine, {}", family.unit),
        y_name: format!("model, {}", family.unit),
        lines,
    }
}

/// The worst rows of a family as dots.
fn worst(family: &Family) -> Plot {
    let worst = family.worst(0);
    let rows: Vec<&Row> = worst.iter().take(WORST).copied().collect();
    let axis = Axis::of(rows.iter().flat_map(|row| row.models.iter().flatten().copied().chain([row.native])));
    let dots = |row: &&Row| Dots {
        name: shortened(&row.name),
        native_at: axis.at(row.native),
        native: figure(row.native),
        models: row.models.iter().flatten().map(|value| (axis.at(*value), figure(*value))).collect(),
        error: optional(row.error(0).map(signed)),
        wrong: false,
    };
    Plot {
        marks: axis.marks(mark),
        unit: family.unit.clone(),
        one: None,
        rest: worst.len() - rows.len(),
        rows: rows.iter().map(dots).collect(),
    }
}

/// All pairs as dots, those with the greatest error of the ratio first.
fn pairs(result: &Validation) -> Plot {
    let mut order: Vec<&Pair> = result.pairs.iter().collect();
    let distance = |pair: &Pair| pair.factor(0).map_or(0.0, |factor| factor.ln().abs());
    order.sort_by(|a, b| distance(b).total_cmp(&distance(a)));
    let ratios = |pair: &&Pair| -> Vec<f64> {
        pair.models.iter().flatten().copied().chain([pair.native]).map(Pair::ratio).collect()
    };
    let axis = Axis::of(order.iter().flat_map(ratios).chain([0.8, 1.25]));
    let dots = |pair: &Pair| {
        let wrong = pair.right_sign(0) == Some(false);
        let error = match pair.models[0] {
            None => "–",
            Some(_) if !wrong && pair.right_ratio(0) == Some(true) => "right",
            Some(_) if !wrong => "ratio",
            Some(model) if Pair::sign(model) == Sign::Equal => "no difference",
            Some(_) if Pair::sign(pair.native) == Sign::Equal => "difference",
            Some(_) => "wrong way",
        };
        Dots {
            name: pair.name.clone(),
            native_at: axis.at(Pair::ratio(pair.native)),
            native: figure(Pair::ratio(pair.native)),
            models: pair
                .models
                .iter()
                .flatten()
                .map(|ways| Pair::ratio(*ways))
                .map(|r| (axis.at(r), figure(r)))
                .collect(),
            error: error.to_owned(),
            wrong,
        }
    };
    Plot {
        marks: axis.marks(mark),
        unit: "time of the first way in terms of the second's".to_owned(),
        one: Some(axis.at(1.0)),
        rows: order.into_iter().map(dots).collect(),
        rest: 0,
    }
}

fn id(name: &str) -> String {
    name.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-")
}

fn section(family: &Family) -> Section {
    let groups = family.groups();
    let charts = match &family.curve {
        Some(axis) => groups.iter().map(|group| curves(family, group, axis)).collect(),
        None => vec![cloud(family)],
    };
    let line = |(group, score): (&str, Score)| {
        [group.to_owned(), score.blocks.to_string(), percent(score.median), signed(score.bias)]
    };
    let scores = if groups.len() > 1 { family.scores_by_group(0) } else { Vec::new() };
    Section {
        id: id(&family.name),
        name: family.name.clone(),
        about: family.about.clone(),
        unit: family.unit.clone(),
        charts,
        plot: family.curve.is_none().then(|| worst(family)),
        groups: scores.into_iter().map(line).collect(),
    }
}

/// Returns the page, with the style sheet that the project's reports share.
pub fn html(result: &Validation, style: &str) -> Result<String, PageError> {
    let score = |score: &Option<Score>| match score {
        Some(score) => [percent(score.median), signed(score.bias), optional(score.tau.map(|tau| format!("{tau:.2}")))],
        None => ["–"; 3].map(str::to_owned),
    };
    let overview = result.families.iter().map(|family| Overview {
        name: family.name.clone(),
        id: id(&family.name),
        rows: match family.rows.iter().filter(|row| row.is_noisy()).count() {
            0 => family.rows.len().to_string(),
            noisy => format!("{} of {}", family.rows.len() - noisy, family.rows.len()),
        },
        scores: family.scores.iter().map(score).collect(),
    });
    let totals: Vec<String> =
        (0..result.models.len()).map(|model| optional(result.total(model).map(percent))).collect();
    let pair_scores: Vec<[String; 4]> = result
        .models
        .iter()
        .enumerate()
        .map(|(model, name)| {
            let score = result.pair_score(model);
            [name.clone(), score.pairs.to_string(), score.signs.to_string(), score.ratios.to_string()]
        })
        .collect();
    let processor = &result.processor;
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.add_template("page.html", include_str!("page.html"))?;
    let page = environment.get_template("page.html")?.render(context! {
        title => format!("{} beside this {}", result.profile, processor.name),
        profile => &result.profile,
        profile_title => &result.title,
        fit => &result.fit,
        processor => format!("{} (family {:x}h, model {:x}h)", processor.name, processor.family, processor.model),
        core_ghz => result.core_hz.map(|hz| format!("{:.2}", hz / 1e9)),
        profile_ghz => format!("{:.2}", result.profile_hz as f64 / 1e9),
        quick => result.quick,
        total => result.total(0).map(|total| format!("{:.0}%", 100.0 * total)),
        totals,
        models => &result.models,
        overview => Value::from(Serde(overview.collect::<Vec<_>>())),
        sections => Value::from(Serde(result.families.iter().map(section).collect::<Vec<_>>())),
        pairs => Value::from(Serde((!result.pairs.is_empty()).then(|| pairs(result)))),
        pair_scores => Value::from(Serde(pair_scores)),
        notes => &result.notes,
        version => &result.version,
        style,
        own_style => include_str!("page.css"),
    })?;
    Ok(page.lines().filter(|line| !line.trim().is_empty()).map(|line| format!("{line}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use silicon::host::Processor;

    #[test]
    fn the_page_has_every_family_and_escapes_names() {
        let mut result = Validation::new(Processor::default(), vec!["core".into(), "flat".into()], false);
        let row = |at: f64, name: &str| Row {
            name: name.into(),
            group: String::new(),
            at,
            native: 4.0 * at,
            interval: [4.0 * at; 2],
            shared: false,
            models: vec![Some(5.0 * at), None],
        };
        let rows = || vec![row(1.0, "mov $<1>,%rax"), row(2.0, "b")];
        result.families.push(Family::new("caches", "A load", "cycles", Some("bytes"), rows(), 2));
        result.families.push(Family::new("blocks", "A block", "cycles", None, rows(), 2));
        let models = vec![Some([1.0, 2.0]), None];
        result.pairs.push(Pair { name: "one, other".into(), native: [2.0, 1.0], models });
        let page = html(&result, "").unwrap();
        for part in ["id=\"caches\"", "id=\"blocks\"", "mov $&lt;1&gt;,%rax", "wrong way", "25%", "+25.0%"] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("http"), "the page needs no network");
        assert_eq!(page, html(&result, "").unwrap());
    }

    #[test]
    fn an_axis_has_its_values_in_order() {
        let axis = Axis::of([1.0, 1000.0].into_iter());
        assert!(axis.at(1.0) < axis.at(10.0) && axis.at(10.0) < axis.at(1000.0));
        assert_eq!(axis.marks(mark).iter().map(|mark| mark.1.as_str()).collect::<Vec<_>>(), ["1", "10", "100", "1000"]);
        assert!(Axis::of(std::iter::empty()).at(5.0).is_finite());
    }
}
