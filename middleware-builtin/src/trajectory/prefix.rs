//! What stands before a kind.

use std::fmt;

/// A prefix for a kind, for one thing of a kind, or for kinds that begin alike.
#[derive(Clone)]
pub(super) struct Prefix {
    kind: String,
    is_open: bool,
    name: Option<String>,
    text: String,
}

impl Prefix {
    /// Reads `Tool`, `Tool[read_file]`, `To*`, `*`.
    pub(super) fn parse(kind: &str, text: String) -> Self {
        let (kind, name) = match kind.strip_suffix(']').and_then(|rest| rest.split_once('[')) {
            Some((kind, name)) => (kind, Some(name.to_owned())),
            None => (kind, None),
        };
        let (kind, is_open) = kind.strip_suffix('*').map_or((kind, false), |begin| (begin, true));
        Self { kind: kind.to_owned(), is_open, name, text }
    }

    fn is_for(&self, kind: &str, name: &str) -> bool {
        let of_kind = if self.is_open { kind.starts_with(&self.kind) } else { kind == self.kind };
        of_kind && self.name.as_deref().is_none_or(|own| own == name)
    }

    /// A name counts most, then a whole kind, then how much of it is said.
    const fn rank(&self) -> (bool, bool, usize) {
        (self.name.is_some(), !self.is_open, self.kind.len())
    }
}

/// As it was said: `prefix "* " for To*`.
impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, is_open, name, text } = self;
        write!(f, "prefix {text:?} for {kind}{}", if *is_open { "*" } else { "" })?;
        name.as_ref().map_or(Ok(()), |name| write!(f, "[{name}]"))
    }
}

/// The most specific prefix; of two alike, the one said last.
pub(super) fn most_specific<'p>(prefixes: &'p [Prefix], kind: &str, name: &str) -> &'p str {
    let fitting = prefixes.iter().filter(|prefix| prefix.is_for(kind, name));
    fitting.max_by_key(|prefix| prefix.rank()).map_or("", |prefix| &prefix.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_prefix_wins() {
        let said = [("*", "any"), ("Tool", "tool"), ("To*", "to"), ("T*", "t"), ("Tool[think]", "think"), ("A", "old")];
        let mut prefixes: Vec<_> = said.map(|(kind, text)| Prefix::parse(kind, text.to_owned())).into();
        prefixes.push(Prefix::parse("A", "new".to_owned()));
        let table = [
            (("Agent", "x"), "any"),
            (("Tool", "read"), "tool"),
            (("Tool", "think"), "think"),
            (("Toolbox", "think"), "to"),
            (("Task", "x"), "t"),
            (("A", "x"), "new"),
        ];
        for ((kind, name), expected) in table {
            assert_eq!(most_specific(&prefixes, kind, name), expected, "{kind}[{name}]");
        }
        assert_eq!(most_specific(&prefixes[1..], "Agent", "x"), "");
    }
}
