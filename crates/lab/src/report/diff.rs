//! The page of a diff.

use super::ReportError;
use crate::diff::Diff;
use crate::diff::sheets::{Sheet, sheets};
use crate::format::Align;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Value, context};

/// Rows of each table.
const TOP: usize = 50;

/// One HTML file that needs no network.
pub fn diff_page(diff: &Diff) -> Result<String, ReportError> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.add_template("diff.html", include_str!("diff.html"))?;
    let shown = |sheet: Sheet| {
        let cells = |row: Vec<String>| -> Vec<_> {
            let cells = row.into_iter().zip(&sheet.headings);
            cells.map(|(text, (_, side))| context! { text, name => *side == Align::Left }).collect()
        };
        let rows: Vec<_> = sheet.rows.into_iter().map(cells).collect();
        let heading = |(text, side): &(&str, Align)| context! { text => *text, name => *side == Align::Left };
        let headings: Vec<_> = sheet.headings.iter().map(heading).collect();
        context! { title => sheet.title, headings, rows }
    };
    Ok(environment.get_template("diff.html")?.render(context! {
        diff => Value::from(Serde(diff)),
        sheets => sheets(diff, TOP).into_iter().map(shown).collect::<Vec<_>>(),
        version => env!("CARGO_PKG_VERSION"),
    })?)
}
