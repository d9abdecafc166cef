//! The cost of the search for secrets in texts without secrets, and in texts that are meant to make the search slow.
//!
//! ```text
//! cargo bench --manifest-path benches/Cargo.toml --bench redact
//! ```
use std::hint::black_box;
use std::time::Instant;

use emitree::middleware::{ExfilGuard, Redact};
use emitree::secrets::Scanner;
use regex::bytes::{RegexSet, RegexSetBuilder};

use crate::support::{Case, Suite};

mod support;

fn main() {
    let mut suite = Suite::new(&["emitree", "RegexSet", "a tenth of it"]);
    let rows = [("RP", "prose, 14 KB", prose()), ("RC", "code, 12 KB", code()), ("RL", "a log in JSON, 17 KB", log())];
    for (name, what, text) in rows {
        let ours = suite.case(redacting(text.clone()));
        let bare = suite.case(matching(text));
        suite.row(name, what, ours).beside("RegexSet", bare).at_most(1.5, "RegexSet of the same patterns", bare);
    }
    for (name, what, part) in HOSTILE {
        let guard = || ExfilGuard::new().allow_hosts(["example.org"]);
        let (short, long) =
            (suite.case(guarding(guard(), part, SHORT)), suite.case(guarding(guard(), part, 10 * SHORT)));
        suite.row(name, what, long).beside("a tenth of it", short).at_most(12.0, "a tenth of the text", short);
    }
    suite.run();
}

/// The length of the shorter text in bytes.
const SHORT: usize = 2_000;

/// Rows whose texts repeat one string that may be part of a host or of an encoded text: name, description, string.
const HOSTILE: [(&str, &str, &str); 6] = [
    ("XS", "`ExfilGuard`, 20 KB of slashes", "/"),
    ("XP", "… `%`", "%"),
    ("XE", "… `=`", "="),
    ("XU", "… `\\u`", "\\u"),
    ("XB", "… the alphabet of base64", "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"),
    ("XN", "… base64 in base64", "UVVGQlFVRkJRVUZC"),
];

fn guarding(guard: ExfilGuard, part: &str, len: usize) -> impl Case {
    let text = part.repeat(len / part.len());
    move |n| {
        let start = Instant::now();
        for _ in 0..n {
            black_box(guard.look(black_box(&text)));
        }
        start.elapsed()
    }
}

fn prose() -> String {
    include_str!("../README.md").to_owned()
}

fn code() -> String {
    include_str!("../runtime/src/run/mod.rs").to_owned()
}

fn log() -> String {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut line = |i: u32| {
        let (id, took, hash) = (rng.u128(..), rng.u32(..100_000), rng.u64(..));
        format!(
            "{{\"time\":\"2026-01-15T10:22:{:02}.{took:06}Z\",\"run_id\":\"{}\",\"path\":\"tool.read.run.start\",\"took_ns\":{took},\
             \"payload\":{{\"file\":\"src/lib.rs\",\"lines\":[{i},{}],\"etag\":\"{hash:016x}\"}}}}\n",
            i % 60,
            uuid(id),
            i + 40,
        )
    };
    (0..80).map(&mut line).collect()
}

fn uuid(id: u128) -> String {
    let hex = format!("{id:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

fn redacting(text: String) -> impl Case {
    let redact = Redact::new();
    assert_eq!(Scanner::new().find(&text), []);
    move |n| {
        let start = Instant::now();
        for _ in 0..n {
            black_box(redact.text(black_box(&text)));
        }
        start.elapsed()
    }
}

fn matching(text: String) -> impl Case {
    let set = set();
    move |n| {
        let start = Instant::now();
        for _ in 0..n {
            black_box(set.matches(black_box(text.as_bytes())));
        }
        start.elapsed()
    }
}

/// Returns the scanner's patterns as one set that matches bytes.
fn set() -> RegexSet {
    let scanner = Scanner::new();
    let patterns = scanner.patterns().map(|(_, pattern)| pattern);
    RegexSetBuilder::new(patterns).unicode(false).build().expect("patterns that were tried")
}
