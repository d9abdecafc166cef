//! Declared events: an emitter may declare its own events, which then always have the declared type (E7).

use std::any::TypeId;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::EmitErrorKind;
use crate::event::ExpectedType;
use crate::json::to_value;
use crate::matching::matcher::MatcherKind;
use crate::name::check;
use crate::panic::log_quietly;
use crate::{AnyEvent, BuildError, EmitError, Emitter, Event, ListenError, Matcher};

/// Changes a payload as JSON: reads it, calls the function, and writes the JSON back if the function returns `true`.
type ChangeData = fn(&mut dyn AnyEvent, &mut dyn FnMut(&mut Value) -> bool) -> serde_json::Result<bool>;

/// The declared events.
#[derive(Clone, Debug, Default)]
pub(crate) struct Declared(Vec<DeclaredEvent>);

#[derive(Clone, Debug)]
struct DeclaredEvent {
    name: String,
    payload: ExpectedType,
    /// `None` if the event is not declared as data.
    change: Option<ChangeData>,
    /// `true` if the emitting code filters the text that the events carry in pieces.
    filters_text: bool,
}

impl Declared {
    pub(crate) fn add(&mut self, name: String, payload: ExpectedType) {
        self.0.push(DeclaredEvent { name, payload, change: None, filters_text: false });
    }

    pub(crate) fn add_data<E: Event + DeserializeOwned>(&mut self, filters_text: bool) {
        let name = E::NAME.as_str().to_owned();
        let payload = ExpectedType::of::<E>();
        self.0.push(DeclaredEvent { name, payload, change: Some(change::<E>), filters_text });
    }

    /// Returns the function that changes the payloads of this event, if the event is declared as data.
    pub(crate) fn data(&self, name: &str) -> Option<ChangeData> {
        self.0.iter().find(|declared| declared.name == name)?.change
    }

    pub(crate) fn filters_text(&self, name: &str) -> bool {
        self.0.iter().any(|declared| declared.name == name && declared.filters_text)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|declared| declared.name.as_str())
    }

    /// Refuses names that are not valid, have a dot, or are declared twice.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        for (i, name) in self.names().enumerate() {
            check(name)?;
            let fault = |fault| BuildError::Declared { name: name.to_owned(), fault };
            if name.contains('.') {
                return Err(fault("it has a dot, so it names an event of a sub-namespace"));
            }
            if self.names().take(i).any(|earlier| earlier == name) {
                return Err(fault("it is declared twice"));
            }
        }
        Ok(())
    }

    fn get(&self, name: &str) -> Option<ExpectedType> {
        self.0.iter().find(|declared| declared.name == name).map(|declared| declared.payload)
    }

    /// Returns the declared name that the given undeclared name was probably meant to be.
    fn meant_by(&self, name: &str) -> Option<&str> {
        self.names().find(|declared| is_near(declared, name))
    }

    /// Refuses an emit if the event is declared with another type.
    pub(crate) fn check_emit(&self, name: &str, payload: TypeId, carried: &'static str) -> Result<(), EmitError> {
        match self.get(name) {
            Some(declared) if declared.id != payload => {
                Err(EmitErrorKind::DeclaredType { name: name.to_owned(), declared: declared.name, carried }.into())
            }
            _ => Ok(()),
        }
    }

    /// Refuses a listener for an exact name or path if the event is declared with another type. Warns if the event is
    /// not declared, but an event with almost the same name is.
    pub(crate) fn check_listener(
        &self,
        emitter: &Emitter,
        matcher: &Matcher,
        expected: Option<ExpectedType>,
    ) -> Result<(), ListenError> {
        let Some(name) = own_name(emitter, matcher) else { return Ok(()) };
        match (self.get(name), expected) {
            // A listener for any type fits every declared event.
            (Some(declared), Some(expected)) if declared.id != expected.id => Err(ListenError::DeclaredType {
                name: name.to_owned(),
                declared: declared.name,
                expected: expected.name,
            }),
            (Some(_), _) => Ok(()),
            (None, _) => {
                if let Some(meant) = self.meant_by(name) {
                    log_quietly(|| {
                        tracing::warn!("a listener was registered for `{name}`; the emitter declares `{meant}`");
                    });
                }
                Ok(())
            }
        }
    }
}

/// Returns `true` if two different names differ in one letter that was changed, added or left out, or in two
/// neighbouring letters that were swapped.
fn is_near(one: &str, other: &str) -> bool {
    let one = one.as_bytes();
    let other = other.as_bytes();
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    let start = short.iter().zip(long).take_while(|(a, b)| a == b).count();
    let end = short[start..].iter().rev().zip(long.iter().rev()).take_while(|(a, b)| a == b).count();
    // The names without their common beginning and end.
    match (&short[start..short.len() - end], &long[start..long.len() - end]) {
        ([], [_]) | ([_], [_]) => true,
        ([a, b], [c, d]) => a == d && b == c,
        _ => false,
    }
}

/// Changes a payload of type `E` as JSON. A payload of another type stays, because no such event is emitted.
fn change<E: Event + DeserializeOwned>(
    event: &mut dyn AnyEvent,
    change: &mut dyn FnMut(&mut Value) -> bool,
) -> serde_json::Result<bool> {
    let Some(event) = event.downcast_mut::<E>() else { return Ok(false) };
    let mut value = to_value(&*event)?;
    let is_changed = change(&mut value);
    // Read the payload back only if it was changed: most events pass without a copy.
    if is_changed {
        *event = E::deserialize(value)?;
    }
    Ok(is_changed)
}

/// Returns the name of the emitter's own event that the matcher names exactly, by name or by path.
fn own_name<'m>(emitter: &Emitter, matcher: &'m Matcher) -> Option<&'m str> {
    match &matcher.0 {
        MatcherKind::Name { text, .. } => Some(text),
        MatcherKind::Path(path) => {
            let (_, name) = path.rsplit_once('.')?;
            if emitter.joins_to(name, path) { Some(name) } else { None }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::is_near;

    #[test]
    fn names_are_near_if_one_letter_differs_or_two_are_swapped() {
        let near = [("start", "stat"), ("start", "starts"), ("start", "stort"), ("start", "satrt"), ("aa", "aaa")];
        for (one, other) in near {
            assert!(is_near(one, other) && is_near(other, one), "{one} {other}");
        }
        for (one, other) in [("start", "start"), ("start", "st"), ("start", "trast"), ("start", "fetched")] {
            assert!(!is_near(one, other) && !is_near(other, one), "{one} {other}");
        }
    }
}
