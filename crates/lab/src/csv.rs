//! Comma-separated values, as RFC 4180 has them: a heading and rows, for tables of other programs.

/// Returns a cell: in quotation marks if it contains what separates cells. A text that a spreadsheet would take for a formula begins with an apostrophe; a
/// number is none.
fn cell(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']) && text.parse::<f64>().is_err();
    let text = &*if is_formula { format!("'{text}") } else { text.to_owned() };
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
    fn what_a_name_contains_is_no_formula() {
        let mut out = String::new();
        row(&mut out, ["=cmd()", "+a", "-Werror", "@x", "-0.25", "+3", "-1+cmd()", "\t=x", "a=b", "=\"a,b\""]);
        assert_eq!(out, "'=cmd(),'+a,'-Werror,'@x,-0.25,+3,'-1+cmd(),'\t=x,a=b,\"'=\"\"a,b\"\"\"\n");
    }

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
