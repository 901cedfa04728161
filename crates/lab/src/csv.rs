//! Comma-separated values, as RFC 4180 has them: a heading and rows, for tables of other programs.

/// Returns a cell: in quotation marks if it contains what separates cells.
fn cell(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// Appends a row.
pub fn row<T: AsRef<str>>(out: &mut String, cells: impl IntoIterator<Item = T>) {
    let cells: Vec<String> = cells.into_iter().map(|text| cell(text.as_ref())).collect();
    *out += &cells.join(",");
    out.push('\n');
}

/// Returns a number, or an empty cell.
pub fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_separates_cells_is_quoted() {
        let mut out = String::new();
        row(&mut out, ["a", "b,c", "d\"e", "", "f\ng"]);
        assert_eq!(out, "a,\"b,c\",\"d\"\"e\",,\"f\ng\"\n");
        assert_eq!(
            (number(Some(1.5e9)), number(Some(0.25)), number(None)),
            ("1500000000".into(), "0.25".into(), String::new())
        );
    }
}
