//! Checks that memory stays flat.

use std::fmt;

/// The maximum growth of the resident set between the warm-up (a fifth of all runs) and the end. A leak of 16 bytes per run
/// would be seen in a full soak.
pub(crate) const MOST: i64 = 12 << 20;

/// The resident set in bytes, after the warm-up and at the end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) warm: Option<i64>,
    pub(crate) end: Option<i64>,
}

impl Memory {
    /// Returns `true` if memory is known to have grown by more than `MOST` bytes.
    pub(crate) fn has_grown(self) -> bool {
        self.grown().is_some_and(|grown| grown > MOST)
    }

    fn grown(self) -> Option<i64> {
        Some(self.end? - self.warm?)
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MB: f64 = (1 << 20) as f64;
        let (Some(warm), Some(end)) = (self.warm, self.end) else { return f.write_str("memory: not known here") };
        let warm = warm as f64 / MB;
        let end = end as f64 / MB;
        let most = MOST as f64 / MB;
        write!(f, "memory: {warm:.1} MB after the warm-up, {end:.1} MB at the end; {most:.0} MB more would be too much")
    }
}

/// Returns the resident set in bytes, or `None` on systems without `/proc`.
pub(crate) fn resident() -> Option<i64> {
    const PAGE: i64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    statm.split_whitespace().nth(1)?.parse::<i64>().ok().map(|pages| pages * PAGE)
}
