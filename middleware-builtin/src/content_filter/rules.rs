//! The rules of a filter: words and regexes, matched in one pass, and classifiers.

use std::fmt;
use std::sync::Arc;

use emitree_runtime::Result;
use futures_core::future::BoxFuture;
use regex::{RegexSet, RegexSetBuilder};
use thiserror::Error;

/// The maximum number of words and regexes.
const MAX_PATTERNS: usize = 10_000;
/// The maximum length of a pattern in bytes.
const MAX_PATTERN_LEN: usize = 1024;
/// The maximum size of the compiled patterns in bytes.
const MAX_PROGRAM_SIZE: usize = 64 << 20;

/// A word or regex that was rejected.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FilterError {
    /// The regex is invalid, or the compiled patterns are too large.
    #[error("`{pattern}` is not a valid regex, or all patterns together are too large")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The error of the crate `regex`.
        source: regex::Error,
    },
    /// The pattern is empty or too long.
    #[error("the pattern of a word or regex has {len} bytes: at least 1 and at most {MAX_PATTERN_LEN} are allowed")]
    Length {
        /// The length of the pattern in bytes.
        len: usize,
    },
    /// There are more words and regexes than the maximum.
    #[error("at most {MAX_PATTERNS} words and regexes are allowed")]
    Many,
}

type ClassifyFn = dyn Fn(String) -> BoxFuture<'static, Result<Option<String>>> + Send + Sync;

/// Patterns with their labels, and classifiers. `labels[i]` belongs to `patterns[i]`.
#[derive(Clone, Default)]
pub(super) struct ContentRules {
    patterns: Vec<String>,
    labels: Vec<Arc<str>>,
    set: Option<RegexSet>,
    classifiers: Vec<Arc<ClassifyFn>>,
}

impl ContentRules {
    /// Adds patterns under one label.
    pub(super) fn add(&mut self, label: &str, patterns: impl IntoIterator<Item = String>) -> Result<(), FilterError> {
        let label: Arc<str> = label.into();
        for pattern in patterns {
            if !(1..=MAX_PATTERN_LEN).contains(&pattern.len()) {
                return Err(FilterError::Length { len: pattern.len() });
            }
            // Compile each pattern by itself first, so that the error names the invalid pattern.
            if let Err(source) = regex::Regex::new(&pattern) {
                return Err(FilterError::Pattern { pattern, source });
            }
            self.patterns.push(pattern);
            self.labels.push(Arc::clone(&label));
        }
        if self.patterns.len() > MAX_PATTERNS {
            return Err(FilterError::Many);
        }
        // Compile all patterns into one set, so that a text is read once for all of them.
        let built = RegexSetBuilder::new(&self.patterns).size_limit(MAX_PROGRAM_SIZE).build();
        let last = || self.patterns.last().cloned().unwrap_or_default();
        self.set = Some(built.map_err(|source| FilterError::Pattern { pattern: last(), source })?);
        Ok(())
    }

    pub(super) fn classifier(&mut self, classify: Arc<ClassifyFn>) {
        self.classifiers.push(classify);
    }

    pub(super) fn has_classifiers(&self) -> bool {
        !self.classifiers.is_empty()
    }

    /// Returns the label of the first pattern that matches a text, or else the label from the first classifier that
    /// objects.
    pub(super) async fn first_label(&self, text: &str) -> Result<Option<Arc<str>>> {
        if let Some(found) = self.pattern_label(text) {
            return Ok(Some(found));
        }
        for classify in &self.classifiers {
            if let Some(label) = classify(text.to_owned()).await? {
                return Ok(Some(label.into()));
            }
        }
        Ok(None)
    }

    fn pattern_label(&self, text: &str) -> Option<Arc<str>> {
        let first = self.set.as_ref()?.matches(text).iter().next()?;
        Some(Arc::clone(&self.labels[first]))
    }
}

/// Returns a pattern that matches a word as a whole word, regardless of case. The half boundaries also match around
/// words that begin or end with punctuation.
pub(super) fn word_pattern(word: &str) -> String {
    if word.is_empty() {
        // `add` rejects the empty pattern.
        return String::new();
    }
    format!(r"(?i)\b{{start-half}}{}\b{{end-half}}", regex::escape(word))
}

impl fmt::Debug for ContentRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut labels: Vec<&str> = self.labels.iter().map(|label| &**label).collect();
        labels.dedup();
        f.debug_struct("Rules")
            .field("patterns", &self.patterns.len())
            .field("labels", &labels)
            .field("classifiers", &self.classifiers.len())
            .finish()
    }
}
