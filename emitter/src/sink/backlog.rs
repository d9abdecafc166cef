//! The items that wait for a reader, and the losses among them (E13). A backlog is plain data; [`queue`](super::queue)
//! adds the lock.
//!
//! 1. Each offer is accounted for once: `offered` = items taken + items in the backlog + `lost`.
//! 2. The entries stand for the offers from `taken` to `offered`, in order and without gaps: an item stands for one
//!    offer, and a loss stands for the number of offers that it counts. The position of an offer is thus found by
//!    counting back from the end.
//! 3. Two losses are never adjacent: they are merged.
//! 4. With a policy that drops, the backlog has at most `capacity` items. With [`Overflow::Block`], each item above the
//!    capacity belongs to an offer that still waits, and is lost if the offer is withdrawn.

use std::collections::VecDeque;
use std::mem;

use super::Overflow;

/// An entry of a backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry<T> {
    /// An item.
    Item(T),
    /// This many items were lost here.
    Lost(u64),
}

impl<T> Entry<T> {
    pub(super) fn span(&self) -> u64 {
        match self {
            Self::Item(_) => 1,
            Self::Lost(lost) => *lost,
        }
    }
}

/// The outcome of an offer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Offered<T> {
    /// The item was added.
    Held,
    /// An item was lost: the oldest item, or the offered item.
    Lost(Option<T>),
    /// The item was added above the capacity. The offer with this ticket should wait until the item is taken.
    Waits(u64),
}

/// A bounded list of items in the order in which they were offered, with the losses among them.
#[derive(Debug)]
pub(super) struct Backlog<T> {
    entries: VecDeque<Entry<T>>,
    held: usize,
    capacity: usize,
    overflow: Overflow,
    offered: u64,
    taken: u64,
    lost: u64,
}

impl<T> Backlog<T> {
    /// Creates a backlog. A capacity of 0 counts as 1.
    pub(super) fn new(capacity: usize, overflow: Overflow) -> Self {
        let capacity = capacity.max(1);
        Self { entries: VecDeque::new(), held: 0, capacity, overflow, offered: 0, taken: 0, lost: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) const fn is_full(&self) -> bool {
        self.would_fill(self.held)
    }

    /// Returns `true` if this many items would fill the backlog.
    pub(super) const fn would_fill(&self, items: usize) -> bool {
        items >= self.capacity
    }

    /// Returns `true` if at least half of the capacity is used.
    pub(super) fn is_half_full(&self) -> bool {
        self.held >= self.capacity.div_ceil(2)
    }

    pub(super) const fn offered(&self) -> u64 {
        self.offered
    }

    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns `true` if the offer with this ticket was taken.
    pub(super) const fn has_taken(&self, ticket: u64) -> bool {
        ticket < self.taken
    }

    /// Adds an item. If the backlog is full, the overflow policy determines whether an item is lost (invariant 4).
    pub(super) fn offer(&mut self, item: T) -> Offered<T> {
        let ticket = self.offered;
        self.offered += 1;
        if !self.is_full() {
            self.hold(item);
            return Offered::Held;
        }
        match self.overflow {
            // The item is held above the capacity, because the emit that waits for room has already handed it over
            // (invariant 4).
            Overflow::Block => {
                self.hold(item);
                Offered::Waits(ticket)
            }
            Overflow::DropOldest => {
                let oldest = self.lose_oldest();
                self.hold(item);
                Offered::Lost(oldest)
            }
            Overflow::DropNewest => {
                self.lose_newest();
                Offered::Lost(Some(item))
            }
        }
    }

    /// Withdraws an offer that waits. Unless the item has been taken, it is replaced by a loss and returned.
    pub(super) fn withdraw(&mut self, ticket: u64) -> Option<T> {
        let stands = self.taken <= ticket && ticket < self.offered;
        if stands { self.place_of(ticket).and_then(|at| self.lose(at)) } else { None }
    }

    /// Moves all entries into the empty `into`. Returns `true` if offers were waiting.
    pub(super) fn take(&mut self, into: &mut VecDeque<Entry<T>>) -> bool {
        let waited = self.held > self.capacity;
        mem::swap(&mut self.entries, into);
        self.taken = self.offered;
        self.held = 0;
        waited
    }

    /// Takes the first entry.
    pub(super) fn pop(&mut self) -> Option<Entry<T>> {
        let entry = self.entries.pop_front()?;
        self.taken += entry.span();
        self.held -= usize::from(matches!(entry, Entry::Item(_)));
        Some(entry)
    }

    fn hold(&mut self, item: T) {
        self.entries.push_back(Entry::Item(item));
        self.held += 1;
    }

    fn lose_oldest(&mut self) -> Option<T> {
        // By invariant 3, the oldest item is the first or the second entry.
        let behind_loss = matches!(self.entries.front(), Some(Entry::Lost(_)));
        self.lose(usize::from(behind_loss))
    }

    fn lose_newest(&mut self) {
        self.lost += 1;
        match self.entries.back_mut() {
            Some(Entry::Lost(lost)) => *lost += 1,
            _ => self.entries.push_back(Entry::Lost(1)),
        }
    }

    fn lose(&mut self, at: usize) -> Option<T> {
        let entry = self.entries.get_mut(at).filter(|entry| matches!(entry, Entry::Item(_)))?;
        let entry = mem::replace(entry, Entry::Lost(1));
        self.held -= 1;
        self.lost += 1;
        // Join the later pair first: joining the earlier pair would move the later pair (invariant 3).
        self.join(at + 1);
        self.join(at);
        match entry {
            Entry::Item(item) => Some(item),
            Entry::Lost(_) => None,
        }
    }

    /// Merges the entry at `at` and the entry before it, if both are losses (invariant 3).
    fn join(&mut self, at: usize) {
        let Some(before) = at.checked_sub(1) else { return };
        let Some(&Entry::Lost(second)) = self.entries.get(at) else { return };
        if let Some(Entry::Lost(first)) = self.entries.get_mut(before) {
            *first += second;
            self.entries.remove(at);
        }
    }

    /// Returns the position of the offer with this ticket, counted back from the end (invariant 2).
    fn place_of(&self, ticket: u64) -> Option<usize> {
        // Search from the end, because the offers that wait are the newest.
        let mut begins = self.offered;
        for (at, entry) in self.entries.iter().enumerate().rev() {
            begins -= entry.span();
            if begins <= ticket {
                return Some(at);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, ProptestConfig, Strategy, prop_assert_eq, prop_oneof, proptest};

    use super::*;

    /// Formats entries as `1 2 -3 4`: items as they are, and losses as negative counts.
    fn show(entries: impl IntoIterator<Item = Entry<u32>>) -> String {
        let show = |entry: Entry<u32>| match entry {
            Entry::Item(item) => item.to_string(),
            Entry::Lost(lost) => format!("-{lost}"),
        };
        entries.into_iter().map(show).collect::<Vec<_>>().join(" ")
    }

    fn take(backlog: &mut Backlog<u32>) -> String {
        let mut entries = VecDeque::new();
        backlog.take(&mut entries);
        show(entries)
    }

    /// E13: a loss is counted where it happened, and losses in a row are one gap.
    #[test]
    fn a_loss_is_counted_at_the_place_where_it_happened() {
        for (overflow, capacity, offers, expected) in [
            (Overflow::DropOldest, 3, 3, "0 1 2"),
            (Overflow::DropOldest, 3, 4, "-1 1 2 3"),
            (Overflow::DropOldest, 3, 9, "-6 6 7 8"),
            (Overflow::DropOldest, 1, 5, "-4 4"),
            (Overflow::DropOldest, 0, 5, "-4 4"),
            (Overflow::DropNewest, 3, 3, "0 1 2"),
            (Overflow::DropNewest, 3, 4, "0 1 2 -1"),
            (Overflow::DropNewest, 3, 9, "0 1 2 -6"),
            (Overflow::DropNewest, 1, 5, "0 -4"),
            (Overflow::Block, 2, 5, "0 1 2 3 4"),
        ] {
            let mut backlog = Backlog::new(capacity, overflow);
            for item in 0..offers {
                backlog.offer(item);
            }
            assert_eq!(take(&mut backlog), expected, "{overflow:?} of {capacity} after {offers} offers");
        }
    }

    /// E13: an offer that is withdrawn while it waits leaves a loss in its place.
    #[test]
    fn a_withdrawn_offer_is_counted_as_lost_in_its_place() {
        for (withdrawn, expected) in [
            (vec![], "0 1 2 3 4"),
            (vec![1], "0 -1 2 3 4"),
            (vec![4], "0 1 2 3 -1"),
            (vec![1, 3], "0 -1 2 -1 4"),
            (vec![1, 3, 2], "0 -3 4"),
            (vec![4, 3, 2, 1], "0 -4"),
            (vec![2, 2], "0 1 -1 3 4"),
        ] {
            let mut backlog = Backlog::new(1, Overflow::Block);
            for item in 0..5 {
                backlog.offer(item);
            }
            for ticket in &withdrawn {
                backlog.withdraw(*ticket);
            }
            assert_eq!(take(&mut backlog), expected, "withdrawn {withdrawn:?}");
            assert_eq!(backlog.withdraw(0), None, "it has been taken");
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum BacklogOp {
        Offer,
        Take,
        Pop,
        Withdraw(u64),
    }

    fn operation() -> impl Strategy<Value = BacklogOp> {
        prop_oneof![6 => Just(BacklogOp::Offer), 1 => Just(BacklogOp::Take), 2 => Just(BacklogOp::Pop), 2 => (0..40_u64).prop_map(BacklogOp::Withdraw)]
    }

    /// The model: each offer from `taken` on, `None` if it is lost.
    #[derive(Default)]
    struct Model {
        offers: VecDeque<Option<u32>>,
        offered: u32,
        lost: u64,
    }

    impl Model {
        fn held(&self) -> usize {
            self.offers.iter().flatten().count()
        }

        fn lose(&mut self, at: usize) {
            self.lost += u64::from(self.offers[at].take().is_some());
        }

        fn offer(&mut self, capacity: usize, overflow: Overflow) {
            let full = self.held() >= capacity;
            self.offers.push_back(Some(self.offered));
            self.offered += 1;
            match overflow {
                Overflow::DropOldest if full => self.lose(self.offers.iter().position(Option::is_some).unwrap()),
                Overflow::DropNewest if full => self.lose(self.offers.len() - 1),
                _ => {}
            }
        }

        fn withdraw(&mut self, ticket: u64) {
            let begin = u64::from(self.offered) - self.offers.len() as u64;
            if let Some(at) = ticket.checked_sub(begin).filter(|at| (*at as usize) < self.offers.len()) {
                self.lose(at as usize);
            }
        }

        fn pop(&mut self) -> Option<Entry<u32>> {
            match self.offers.pop_front()? {
                Some(item) => Some(Entry::Item(item)),
                None => {
                    let more = self.offers.iter().take_while(|offer| offer.is_none()).count();
                    self.offers.drain(..more);
                    Some(Entry::Lost(1 + more as u64))
                }
            }
        }

        fn take(&mut self) -> String {
            show(std::iter::from_fn(|| self.pop()))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// E13: in any order of offers, takes and withdrawals, no loss is miscounted or misplaced.
        #[test]
        fn a_backlog_loses_the_same_items_as_its_model(
            overflow in prop_oneof![Just(Overflow::Block), Just(Overflow::DropOldest), Just(Overflow::DropNewest)],
            capacity in 1..5_usize,
            operations in proptest::collection::vec(operation(), 0..60),
        ) {
            let mut backlog = Backlog::new(capacity, overflow);
            let mut model = Model::default();
            for operation in operations {
                match operation {
                    BacklogOp::Offer => {
                        backlog.offer(model.offered);
                        model.offer(capacity, overflow);
                    }
                    BacklogOp::Take => prop_assert_eq!(take(&mut backlog), model.take()),
                    BacklogOp::Pop => prop_assert_eq!(backlog.pop(), model.pop()),
                    BacklogOp::Withdraw(ticket) => {
                        backlog.withdraw(ticket);
                        model.withdraw(ticket);
                    }
                }
                prop_assert_eq!(backlog.lost(), model.lost);
                prop_assert_eq!(backlog.held, model.held());
            }
            prop_assert_eq!(take(&mut backlog), model.take());
        }
    }
}
