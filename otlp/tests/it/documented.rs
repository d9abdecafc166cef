//! The tables of docs/tracing.md show the rows of the dialects.

use emitree_otlp::{Dialect, Row};

/// Returns a row as the page shows it.
fn shown(row: &Row) -> String {
    let kind = if row.kind == "*" { "all".to_owned() } else { format!("`{}`", row.kind) };
    let form = format!("{:?}", row.form);
    let required = if row.is_required { ", required" } else { "" };
    format!("| {kind} | `{:?}` | `{}` | {form}{required} | {} |", row.fact, row.attribute, row.since)
}

#[test]
fn the_page_has_each_row_of_each_dialect_in_order() {
    let page = include_str!("../../../docs/tracing.md");
    for (dialect, heading) in [(Dialect::GenAi, "### GenAI"), (Dialect::OpenInference, "### OpenInference")] {
        let section = page.split_once(heading).expect("a section").1;
        let section = section.split("\n##").next().unwrap_or_default();
        let listed: Vec<&str> = section.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
        let common = |row: &&Row| row.attribute.starts_with("emitree.") || row.attribute == "error.type";
        let rows: Vec<String> = dialect.rows().filter(|row| !common(row)).map(shown).collect();
        assert_eq!(listed, rows, "{dialect:?}\n{}", rows.join("\n"));
        let all = page.split_once("### All dialects").expect("a section").1;
        for row in dialect.rows().filter(common) {
            assert!(all.contains(&shown(row)), "{}", shown(row));
        }
    }
}
