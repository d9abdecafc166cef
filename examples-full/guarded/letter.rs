//! A letter: a head with fields, an empty line, and the text.

use emitree::{Error, Result};

pub(crate) struct Letter<'a> {
    pub(crate) from: &'a str,
    pub(crate) orders: Vec<&'a str>,
    pub(crate) reply_to: Option<&'a str>,
    pub(crate) text: &'a str,
}

impl<'a> Letter<'a> {
    pub(crate) fn parse(letter: &'a str) -> Result<Self> {
        let (head, text) = letter.split_once("\n\n").unwrap_or((letter, ""));
        let field = |name: &str| {
            let lines = head.lines().filter_map(|line| line.split_once(':'));
            lines.map(|(key, value)| (key, value.trim())).find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let from = field("From").ok_or_else(|| Error::new("a letter needs `From: …` in its head"))?;
        let orders = field("Orders").into_iter().flat_map(|orders| orders.split(", ")).collect();
        Ok(Self { from, orders, reply_to: field("Reply-To"), text: text.trim() })
    }
}
