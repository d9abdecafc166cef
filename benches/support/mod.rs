//! The harness for benches that each print one table. All cases are measured in one process, and take turns after each
//! batch. A disturbance of the machine therefore slows all cases alike, and hardly changes the ratios.

use std::fmt::Write as _;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The approximate time of one batch of a case.
const BATCH: Duration = Duration::from_micros(500);
/// The number of batches of each case. It is odd, so that one measurement is the median.
const ROUNDS: usize = 201;

/// A function that performs an operation `n` times, and returns the elapsed time.
pub(crate) trait Case: FnMut(u64) -> Duration {}

impl<F: FnMut(u64) -> Duration> Case for F {}

/// The index of a case in its suite.
#[derive(Clone, Copy)]
pub(crate) struct Id(usize);

/// Cases, and the rows of the table that compares them.
pub(crate) struct Suite {
    columns: &'static [&'static str],
    cases: Vec<Box<dyn Case>>,
    rows: Vec<Row>,
}

/// A row: a case, its peers, and its bound.
struct Row {
    name: &'static str,
    what: &'static str,
    cells: Vec<Option<Extra>>,
    bound: Option<Bound>,
}

struct Bound {
    times: f64,
    of: Extra,
    label: &'static str,
}

/// The time of a case, or the difference between the times of two cases, divided by a number.
#[derive(Clone, Copy)]
pub(crate) struct Extra {
    of: Id,
    beyond: Option<Id>,
    share: f64,
}

#[allow(dead_code, reason = "each bench uses its part")]
impl Extra {
    /// The time of `of` minus the time of `beyond`, divided by `among`.
    pub(crate) fn shared(of: Id, beyond: Id, among: u32) -> Self {
        Self { of, beyond: Some(beyond), share: 1.0 / f64::from(among) }
    }

    /// The time of a case, divided by `among`, the number of operations in the case.
    pub(crate) fn per(of: Id, among: u32) -> Self {
        Self { of, beyond: None, share: 1.0 / f64::from(among) }
    }

    fn value(self, medians: &[f64]) -> f64 {
        (medians[self.of.0] - self.beyond.map_or(0.0, |beyond| medians[beyond.0])) * self.share
    }
}

impl From<Id> for Extra {
    fn from(of: Id) -> Self {
        Self { of, beyond: None, share: 1.0 }
    }
}

/// A row that is being filled.
pub(crate) struct Filling<'a>(&'a mut Row, &'static [&'static str]);

impl Suite {
    /// Creates a suite whose table has these columns. Bounds apply to the first column; the other columns are peers.
    pub(crate) fn new(columns: &'static [&'static str]) -> Self {
        Self { columns, cases: Vec::new(), rows: Vec::new() }
    }

    /// Adds a case, and returns its id for rows and bounds.
    pub(crate) fn case(&mut self, case: impl Case + 'static) -> Id {
        self.cases.push(Box::new(case));
        Id(self.cases.len() - 1)
    }

    /// Adds a row with a name, a description, and the case in the first column.
    pub(crate) fn row(&mut self, name: &'static str, what: &'static str, subject: impl Into<Extra>) -> Filling<'_> {
        let mut cells = vec![None; self.columns.len()];
        cells[0] = Some(subject.into());
        self.rows.push(Row { name, what, cells, bound: None });
        let last = self.rows.len() - 1;
        Filling(&mut self.rows[last], self.columns)
    }

    /// Measures everything and prints the table in Markdown.
    pub(crate) fn run(mut self) {
        let sizes: Vec<u64> = self.cases.iter_mut().map(|case| calibrate(case)).collect();
        let mut samples = vec![Vec::with_capacity(ROUNDS); self.cases.len()];
        for _ in 0..ROUNDS {
            for ((case, n), samples) in self.cases.iter_mut().zip(&sizes).zip(&mut samples) {
                samples.push(case(*n).as_secs_f64() * 1e9 / *n as f64);
            }
        }
        let medians: Vec<f64> = samples.into_iter().map(median).collect();
        print!("{}", self.table(&medians));
    }

    fn table(&self, medians: &[f64]) -> String {
        let mut out = format!("| case | | {} | bound | ratio | |\n", self.columns.join(" | "));
        out += &format!("|---|---|{}---:|---:|---|\n", "---:|".repeat(self.columns.len()));
        for row in &self.rows {
            let _ = write!(out, "| {} | {} |", row.name, row.what);
            for cell in &row.cells {
                let _ = match cell {
                    Some(cell) => write!(out, " {} |", nanoseconds(cell.value(medians))),
                    None => write!(out, " – |"),
                };
            }
            let _ = writeln!(out, " {} |", row.verdict(medians));
        }
        out
    }
}

impl Row {
    fn verdict(&self, medians: &[f64]) -> String {
        let (Some(bound), Some(subject)) = (&self.bound, self.cells[0]) else { return "– | – | ".to_owned() };
        let ratio = subject.value(medians) / bound.of.value(medians);
        let verdict = if ratio <= bound.times { "ok" } else { "**MISS**" };
        format!("≤ {} × {} | {ratio:.2} | {verdict}", bound.times, bound.label)
    }
}

impl Filling<'_> {
    /// Adds a peer to the row.
    #[allow(dead_code, reason = "each bench uses its part")]
    pub(crate) fn beside(self, column: &str, peer: impl Into<Extra>) -> Self {
        let at = self.1.iter().position(|name| *name == column).expect("a column of the suite");
        self.0.cells[at] = Some(peer.into());
        self
    }

    /// Sets the bound: at most this many times the median of another case.
    pub(crate) fn at_most(self, times: f64, label: &'static str, of: impl Into<Extra>) {
        self.0.bound = Some(Bound { times, of: of.into(), label });
    }
}

fn nanoseconds(ns: f64) -> String {
    if ns < 100.0 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}

/// Returns the number of operations for a batch that takes about [`BATCH`], and at least 1.
fn calibrate(case: &mut dyn Case) -> u64 {
    // The first call includes one-time work, so it is not measured.
    case(64);
    let mut n = 64;
    loop {
        let took = (0..3).map(|_| case(n)).min().unwrap_or_default();
        if took >= BATCH / 2 {
            let size = (n as f64 * BATCH.as_secs_f64() / took.as_secs_f64()) as u64;
            return size.max(1);
        }
        n *= 2;
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

#[allow(dead_code, reason = "each bench uses its part")]
/// Polls a batch once, with a waker that does nothing, and returns the elapsed time. No executor is measured. Panics if
/// the batch has to wait.
pub(crate) fn timed<T>(batch: impl Future<Output = T>) -> Duration {
    let batch = pin!(batch);
    let mut context = Context::from_waker(Waker::noop());
    let start = Instant::now();
    let Poll::Ready(_) = batch.poll(&mut context) else { panic!("a batch had to wait") };
    start.elapsed()
}
