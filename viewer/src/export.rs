//! One file that contains the page and the recording, and opens without a server.
//!
//! 1. Heads are read first, so the page draws a long recording before its records are parsed. Records are in blocks of
//!    500, and a block is parsed when somebody looks at one of its records.
//! 2. In the blocks, `<` is escaped, so no text of a recording can end an element.
//! 3. The policy of the page allows exactly its own style and scripts, by their hashes.

use std::fmt::Write as _;
use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use emitree_sinks::runs::{Batch, Runs, Source};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::error::ExportError;
use crate::page::{ASSETS, Asset, INDEX};
use crate::server::HeadsOf;

/// The number of heads that are read at a time, and of records in a block. `live.js` has the same number.
const BLOCK: usize = 500;

/// The counts of an exported recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exported {
    /// Records, with gaps and malformed lines.
    pub records: usize,
    /// Runs.
    pub runs: usize,
    /// Runs without a `finish`.
    pub unfinished: usize,
    /// Events that were lost before they were recorded.
    pub lost: u64,
    /// Lines that are not records, with a last line that is not complete.
    pub malformed: u64,
}

/// Writes the page with all records of a source as one HTML file.
///
/// # Errors
///
/// Returns an error if the source cannot be read, if it begins anew meanwhile, or if the page cannot be written.
pub fn export(source: &dyn Source, title: &str, mut out: impl Write) -> Result<Exported, ExportError> {
    let batch = read(source)?;
    let mut runs = Runs::default();
    for head in &batch.heads {
        runs.add(head);
    }
    let (before, after) = split();
    out.write_all(before.as_bytes())?;
    write_json(&mut out, "recording", &Titled { title, heads: HeadsOf::new(&batch) })?;
    for (index, heads) in batch.heads.chunks(BLOCK).enumerate() {
        write!(out, "<script type=\"application/json\" id=\"records-{index}\">[")?;
        for (at, head) in heads.iter().enumerate() {
            out.write_all(if at == 0 { b"" } else { b"," })?;
            out.write_all(escaped(source.record(head.cursor)?.trim_end()).as_bytes())?;
        }
        out.write_all(b"]</script>\n")?;
    }
    out.write_all(after.as_bytes())?;
    out.flush()?;
    Ok(Exported {
        records: batch.heads.len(),
        runs: runs.iter().count(),
        unfinished: runs.iter().filter(|run| run.is_unfinished()).count(),
        lost: runs.lost(),
        malformed: runs.malformed() + u64::from(batch.incomplete > 0),
    })
}

/// Reads all heads.
fn read(source: &dyn Source) -> Result<Batch, ExportError> {
    let mut all = Batch::default();
    while !all.is_end {
        let batch = source.heads(all.heads.last().map(|head| head.cursor), BLOCK)?;
        if batch.has_restarted {
            return Err(ExportError::Replaced);
        }
        all.heads.extend(batch.heads);
        (all.is_end, all.incomplete) = (batch.is_end, batch.incomplete);
    }
    Ok(all)
}

#[derive(Serialize)]
struct Titled<'a> {
    title: &'a str,
    #[serde(flatten)]
    heads: HeadsOf<'a>,
}

fn write_json(out: &mut impl Write, id: &str, value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string(value)?;
    writeln!(out, "<script type=\"application/json\" id=\"{id}\">{}</script>", escaped(&text))
}

/// Escapes `<`, which JSON allows only in strings (2).
fn escaped(json: &str) -> String {
    json.replace('<', "\\u003c")
}

/// Returns the page before and after the recording. The recording comes before the scripts, which read it at once.
fn split() -> (String, String) {
    let (style, scripts) = ASSETS.split_at(1);
    let mut page = INDEX.to_owned();
    for asset in style {
        page = page.replace(&asset.tag(), &format!("<style>{}</style>\n", asset.text));
    }
    for asset in scripts {
        page = page.replace(&asset.tag(), &format!("<script>{}</script>\n", asset.text));
    }
    let policy = format!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src {}; script-src {}; \
         img-src data:; base-uri 'none'; form-action 'none'\">\n",
        hashes(style),
        hashes(scripts)
    );
    let page = page.replacen("<meta name=\"viewport\"", &format!("{policy}<meta name=\"viewport\""), 1);
    let first = scripts.first().map_or("", |asset| asset.text);
    let at = page.find(&format!("<script>{first}")).unwrap_or(page.len());
    (page[..at].to_owned(), page[at..].to_owned())
}

fn hashes(assets: &[Asset]) -> String {
    let mut hashes = String::new();
    for asset in assets {
        // Writing to a string does not fail.
        let _ = write!(hashes, "'sha256-{}' ", STANDARD.encode(Sha256::digest(asset.text)));
    }
    hashes
}
