//! Whether memory stays flat.

use std::fmt;

/// The resident set may grow so much between the warm-up, a fifth of all runs, and the end: a run that left but 16 bytes
/// behind would be seen in the full run.
pub(crate) const MOST: i64 = 12 << 20;

/// The resident set after the warm-up, and at the end, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) warm: Option<i64>,
    pub(crate) end: Option<i64>,
}

impl Memory {
    /// Whether it is known that it is not flat.
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
        let (warm, end, most) = (warm as f64 / MB, end as f64 / MB, MOST as f64 / MB);
        write!(f, "memory: {warm:.1} MB after the warm-up, {end:.1} MB at the end; {most:.0} MB more would be too much")
    }
}

/// The resident set, where `/proc` tells.
pub(crate) fn resident() -> Option<i64> {
    const PAGE: i64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    statm.split_whitespace().nth(1)?.parse::<i64>().ok().map(|pages| pages * PAGE)
}
