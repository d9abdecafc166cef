//! The newest entries of a map.

use std::collections::{HashMap, VecDeque};

use uuid::Uuid;

/// The newest entries of a map: an entry above the capacity removes the oldest.
#[derive(Debug)]
pub(crate) struct Recent<V> {
    values: HashMap<Uuid, V>,
    order: VecDeque<Uuid>,
    capacity: usize,
}

impl<V> Recent<V> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { values: HashMap::new(), order: VecDeque::new(), capacity }
    }

    pub(crate) fn get(&self, key: Uuid) -> Option<&V> {
        self.values.get(&key)
    }

    pub(crate) fn insert(&mut self, key: Uuid, value: V) {
        if self.values.insert(key, value).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > self.capacity
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entries_are_removed() {
        let mut recent = Recent::new(2);
        for key in [1, 2, 1, 3] {
            recent.insert(Uuid::from_u128(key), key);
        }
        let kept = [1, 2, 3].map(|key| recent.get(Uuid::from_u128(key)).copied());
        assert_eq!((kept, recent.values.len()), ([None, Some(2), Some(3)], 2));
    }
}
