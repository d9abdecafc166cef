//! The session at an earlier point: the fold of its records up to there.

use crate::session::fold::turn::OpenTurn;
use crate::session::fold::{Conversation, Fault};
use crate::session::past::{PastError, Point};
use crate::session::record::{Line, Record};

/// Folds the records of a session, and keeps the session at a point.
#[derive(Debug)]
pub(crate) struct Search {
    point: Point,
    fold: Conversation,
    found: Option<Conversation>,
    /// `true` while states of middleware still belong to the turn that was found.
    is_settling: bool,
    oldest: Option<Point>,
}

impl Search {
    /// Begins with a session that has no records yet.
    pub(crate) const fn new(point: Point, fold: Conversation) -> Self {
        Self { point, fold, found: None, is_settling: false, oldest: None }
    }

    pub(crate) fn fold_line(&mut self, line: Line) -> Result<(), Fault> {
        let is_own = line.session.is_none();
        if !is_own || matches!(line.record, Record::Session(_)) {
            return self.fold.apply(line);
        }
        let before = self.may_begin(&line.record).then(|| self.fold.clone());
        let (turns, begun, in_hand) = (self.fold.turns, self.fold.begun, self.turns_in_hand());
        let (is_state, forgets) = (
            matches!(line.record, Record::State { .. }),
            matches!(line.record, Record::Replaced { withheld: true, .. }),
        );
        self.is_settling &= !goes_on(&line.record);
        self.fold.apply(line)?;
        if self.fold.turns > turns {
            self.pass(Point::Before(self.fold.turns), || before.clone());
        }
        if self.fold.begun > begun && self.point == Point::BeforeRun(begun) {
            self.found = before;
        }
        let answered = Some(self.fold.turns).filter(|turn| *turn > turns && self.fold.has_entered(*turn));
        let now = self.turns_in_hand();
        for turn in in_hand.into_iter().filter(|turn| !now.contains(turn)).chain(answered) {
            let fold = self.fold.clone();
            self.is_settling |= self.pass(Point::After(turn), || Some(fold));
        }
        if let Some(found) = self.found.as_mut().filter(|_| is_state && self.is_settling) {
            found.state.clone_from(&self.fold.state);
        }
        if forgets {
            // The text that was withheld is in all earlier points.
            (self.found, self.oldest, self.is_settling) = (None, None, false);
        }
        Ok(())
    }

    /// A point that can be read. Returns `true` if it is the one that is searched.
    fn pass(&mut self, point: Point, fold: impl FnOnce() -> Option<Conversation>) -> bool {
        self.oldest.get_or_insert(point);
        let is_it = self.point == point;
        if is_it {
            self.found = fold();
        }
        is_it
    }

    /// Returns `true` if the session before the record may be the one that is searched.
    fn may_begin(&self, record: &Record) -> bool {
        match (self.point, record) {
            (Point::Before(number), Record::Asks { turn, .. }) => number == *turn,
            (Point::Before(number), Record::Said { turn: Some(turn), .. }) => number == turn.number,
            (Point::BeforeRun(number), Record::Began { run, .. }) => number == *run,
            _ => false,
        }
    }

    fn turns_in_hand(&self) -> Vec<u64> {
        let open = self.fold.runs.iter().filter_map(|run| run.open.as_ref());
        open.filter(|open| !open.is_ended).map(|OpenTurn { number, .. }| *number).collect()
    }

    /// Returns the session at the point.
    ///
    /// # Errors
    ///
    /// Returns an error if the session has no such point, or if its records do not reach back to it.
    pub(crate) fn end(self) -> Result<Conversation, PastError> {
        let Self { point, fold, found, oldest, .. } = self;
        let unknown = PastError::Unknown { point, turns: fold.turns, runs: fold.begun };
        match point {
            Point::Now => return Ok(fold),
            Point::After(turn) | Point::Before(turn) => {
                if turn == 0 || turn > fold.turns {
                    return Err(unknown);
                }
                let row = fold.table.iter().rfind(|row| row.number == turn);
                if row.is_some_and(|row| row.is_discarded) {
                    return Err(PastError::Discarded { point });
                }
                if found.is_none() && matches!(point, Point::After(_)) && row.is_some_and(|row| row.messages == 0) {
                    return Err(PastError::Unfinished { point });
                }
            }
            Point::BeforeRun(run) if run >= fold.begun => return Err(unknown),
            Point::BeforeRun(_) => {}
        }
        found.ok_or_else(|| PastError::Forgotten { point, oldest: oldest.unwrap_or(Point::Now) })
    }
}

/// Returns `true` for records with which a session goes on after a turn.
const fn goes_on(record: &Record) -> bool {
    use Record as R;
    matches!(record, R::Asks { .. } | R::Began { .. } | R::Again { .. } | R::Said { .. } | R::Taken { .. })
}

impl Conversation {
    /// Returns the number of turns after another one that can be read, and that no attempt can discard any more.
    pub(crate) fn turns_after(&self, turn: u64) -> u64 {
        let is_over = |number| self.runs.iter().all(|run| run.number != number || run.undo.is_none());
        let rows = self.table.iter().filter(|row| row.number > turn && row.messages > 0);
        rows.filter(|row| !row.is_discarded && is_over(row.run)).count() as u64
    }

    fn has_entered(&self, turn: u64) -> bool {
        self.table.iter().rfind(|row| row.number == turn).is_some_and(|row| row.messages > 0)
    }
}
