//! A table of a report as comma-separated values: the lines of the JSON document, with their numbers as cells.

use lab::csv::row;
use serde_json::Value;

/// A member of a line that has another number of entries in each line, and is no cell.
const CAUSES: &str = "causes";
/// Members that name a line: they come first.
const NAMES: [&str; 2] = ["name", "site"];

/// Appends the cells of a value: of an object each member.
fn add(cells: &mut Vec<(String, String)>, name: &str, value: &Value) {
    match value {
        Value::Object(members) => {
            for (member, value) in members.iter().filter(|(member, _)| *member != CAUSES) {
                add(cells, &if name.is_empty() { member.clone() } else { format!("{name}_{member}") }, value);
            }
        }
        Value::Array(_) => (),
        Value::String(text) => cells.push((name.to_owned(), text.clone())),
        Value::Null => cells.push((name.to_owned(), String::new())),
        other => cells.push((name.to_owned(), other.to_string())),
    }
}

/// Returns the rows of lines, which have the same members.
pub fn rows(lines: impl Iterator<Item = Value>) -> String {
    let mut out = String::new();
    for line in lines {
        let mut cells = Vec::new();
        add(&mut cells, "", &line);
        cells.sort_by_key(|(name, _)| !NAMES.contains(&name.as_str()));
        if out.is_empty() {
            row(&mut out, cells.iter().map(|(name, _)| name));
        }
        row(&mut out, cells.iter().map(|(_, cell)| cell));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_is_a_row_with_its_name_first() {
        let line = |name: &str, pid: Option<u32>| {
            json!({
                "count": 3, "name": name, "pid": pid, "nested": { "count": 1, "ticks": 2 },
                "causes": { "IRET": { "count": 1 } }, "targets": [1, 2],
            })
        };
        let text = rows([line("f, g", Some(7)), line("h", None)].into_iter());
        assert_eq!(text, "name,count,nested_count,nested_ticks,pid\n\"f, g\",3,1,2,7\nh,3,1,2,\n");
        assert_eq!(rows(std::iter::empty()), "");
    }
}
