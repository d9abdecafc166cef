//! The figures measured on the corpus, and a check that the README contains the same figures.

use std::collections::{BTreeMap, BTreeSet};

use super::{Half, Planted};

const DOCUMENT: &str = include_str!("README.md");

/// A share: `some` of `all`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Share {
    some: usize,
    all: usize,
}

/// The planted secrets that were found, and the look-alikes that were taken for secrets.
pub(crate) struct Figures {
    by_kind: BTreeMap<&'static str, Share>,
    alarms: Share,
}

impl Share {
    fn add(&mut self, is_one: bool) {
        self.some += usize::from(is_one);
        self.all += 1;
    }

    fn ratio(self) -> f64 {
        self.some as f64 / self.all as f64
    }
}

impl Figures {
    pub(crate) fn of(half: &Half, finds: impl Fn(&Planted) -> Option<bool>, takes: impl Fn(&str) -> bool) -> Self {
        let mut figures = Self { by_kind: BTreeMap::new(), alarms: Share::default() };
        for planted in &half.planted {
            if let Some(is_found) = finds(planted) {
                figures.by_kind.entry(planted.kind).or_default().add(is_found);
            }
        }
        half.look_alikes.iter().for_each(|text| figures.alarms.add(takes(text)));
        figures
    }

    fn planted(&self) -> Share {
        let sum = |sum: Share, kind: &Share| Share { some: sum.some + kind.some, all: sum.all + kind.all };
        self.by_kind.values().fold(Share::default(), sum)
    }

    /// Asserts that the recall is at least 99 %, and that at most 2 % of the look-alikes were taken for secrets.
    #[track_caller]
    pub(crate) fn expect_good(&self, name: &str) {
        let recall = self.planted().ratio();
        let alarms = if self.alarms.all == 0 { 0.0 } else { self.alarms.ratio() };
        assert!(recall >= 0.99 && alarms <= 0.02, "{name}: recall {recall:.4}, false alarms {alarms:.4}");
    }

    /// Asserts that the recall of each kind is at least 99 %.
    #[track_caller]
    pub(crate) fn expect_good_by_kind(&self, name: &str) {
        self.expect_by_kind(name, 0.99);
    }

    /// Asserts the least recall of each kind.
    #[track_caller]
    pub(crate) fn expect_by_kind(&self, name: &str, least: f64) {
        let bad = self.by_kind.iter().filter(|(_, share)| share.ratio() < least);
        let bad: Vec<_> = bad.map(|(kind, share)| format!("{kind}: {} of {}", share.some, share.all)).collect();
        assert!(bad.is_empty(), "{name}: {bad:?}");
    }
}

/// Asserts that the README contains the table of these figures. It has a row for each kind, rows for the totals, and a
/// column for each item of `columns`.
#[track_caller]
pub(crate) fn expect_documented(columns: &[(&str, Figures)]) {
    let row = |name: &str, cell: &dyn Fn(&Figures) -> String| {
        let cells: String = columns.iter().map(|(_, figures)| format!(" {} |", cell(figures))).collect();
        format!("| {name} |{cells}\n")
    };
    let none = |share: Share| share.all == 0;
    let share = |share: Share| if none(share) { String::new() } else { format!("{} of {}", share.some, share.all) };
    let percent = |share: Share| if none(share) { String::new() } else { format!("{:.1} %", share.ratio() * 100.0) };
    let head: String = columns.iter().map(|(name, _)| format!(" {name} |")).collect();
    let mut table = format!("| kind |{head}\n|---|{}\n", "---:|".repeat(columns.len()));
    let kinds: BTreeSet<_> = columns.iter().flat_map(|(_, figures)| figures.by_kind.keys()).collect();
    for kind in kinds {
        table +=
            &row(&format!("`{kind}`"), &|figures| figures.by_kind.get(kind).map_or_else(String::new, |n| share(*n)));
    }
    table += &row("all", &|figures| share(figures.planted()));
    table += &row("recall", &|figures| percent(figures.planted()));
    table += &row("look-alikes taken for secrets", &|figures| share(figures.alarms));
    table += &row("false alarms", &|figures| percent(figures.alarms));
    assert!(DOCUMENT.contains(&table), "tests/corpus/README.md says something else. Measured:\n\n{table}");
}
