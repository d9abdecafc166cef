//! Globs over dotted names, compiled by `globset` with `/` as the separator.

use std::sync::OnceLock;

use globset::{Glob, GlobBuilder, GlobMatcher};

use crate::MatcherError;

/// A glob as it was written, and as `globset` parses it.
pub(crate) struct GlobText {
    pub(crate) text: String,
    pub(crate) glob: Glob,
    alone: OnceLock<GlobMatcher>,
}

impl GlobText {
    pub(crate) fn parse(text: &str) -> Result<Self, MatcherError> {
        let fault = |fault: String| MatcherError::Glob { pattern: text.to_owned(), fault };
        if text.contains('/') {
            return Err(fault("segments are separated by `.`, not `/`".to_owned()));
        }
        GlobBuilder::new(&with_slashes(text))
            .literal_separator(true)
            .backslash_escape(true)
            .build()
            .map(|glob| Self { text: text.to_owned(), glob, alone: OnceLock::new() })
            .map_err(|error| fault(error.kind().to_string()))
    }

    /// Returns `true` if this glob matches a converted path. Many globs on one emitter are matched as sets instead.
    pub(crate) fn is_match(&self, slashed: &str) -> bool {
        self.alone.get_or_init(|| self.glob.compile_matcher()).is_match(slashed)
    }
}

/// Converts a path for `globset`: each `.` becomes a `/`.
pub(crate) fn slashed(path: &str) -> String {
    path.replace('.', "/")
}

/// Replaces the separator `.` of a glob with `/`, and keeps character classes from matching the separator.
///
/// - A `.` in a class stays a `.`. It matches nothing, because a converted path contains no `.`.
/// - A negated class also excludes the separator.
/// - In any other class, a range that contains the separator is cut in two.
fn with_slashes(glob: &str) -> String {
    let mut out = String::with_capacity(glob.len() + 8);
    let mut chars = glob.chars();
    while let Some(c) = chars.next() {
        match c {
            '.' => out.push('/'),
            '\\' => match chars.next() {
                Some('.') => out.push('/'),
                escaped => {
                    out.push(c);
                    out.extend(escaped);
                }
            },
            '[' => {
                let rest = chars.as_str();
                let class = class_len(rest);
                out.push('[');
                push_class(&mut out, &rest[..class]);
                chars = rest[class..].chars();
            }
            _ => out.push(c),
        }
    }
    out
}

/// Returns the length of a class up to its `]`. A `]` in the first position belongs to the class.
fn class_len(rest: &str) -> usize {
    let negation = usize::from(rest.starts_with(['!', '^']));
    let first = negation + usize::from(rest[negation..].starts_with(']'));
    rest[first..].find(']').map_or(rest.len(), |end| first + end)
}

fn push_class(out: &mut String, class: &str) {
    let body = class.strip_prefix(['!', '^']).unwrap_or(class);
    let negated = body.len() < class.len();
    out.push_str(&class[..class.len() - body.len()]);
    let mut chars = body.chars().peekable();
    while let Some(from) = chars.next() {
        let mut ahead = chars.clone();
        match (ahead.next(), ahead.next()) {
            // The range contains `/`: `.` is the character before `/`, and `0` is the character after `/`.
            (Some('-'), Some(to)) if from < '/' && '/' <= to && !negated => {
                out.extend([from, '-', '.']);
                if '/' < to {
                    out.extend(['0', '-', to]);
                }
                chars = ahead;
            }
            _ => out.push(from),
        }
    }
    if negated && !body.is_empty() {
        // A `-` at the end of a class stands for itself only as long as it comes last.
        let literal = body.ends_with('-').then(|| out.pop());
        out.push('/');
        out.extend(literal.flatten());
    }
}
