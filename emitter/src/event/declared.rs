//! Declared events: an emitter may declare its own events, and then refuses own events that are not declared (E7).

use std::any::TypeId;

use crate::error::EmitErrorKind;
use crate::event::ExpectedType;
use crate::matching::matcher::MatcherKind;
use crate::name::check;
use crate::{BuildError, EmitError, Emitter, ListenError, Matcher};

/// Events that the runtime and its middleware emit on any run. They need no declaration, so that runs of an emitter
/// that declares its events can be retried, redacted and guarded.
const OF_EVERY_RUN: [&str; 2] = ["attempt_discarded", "would_deny"];

/// Event names with their payload types.
#[derive(Clone, Debug, Default)]
pub(crate) struct Declared(Vec<(String, ExpectedType)>);

impl Declared {
    pub(crate) fn add(&mut self, name: String, payload: ExpectedType) {
        self.0.push((name, payload));
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
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
        self.0.iter().find(|(declared, _)| declared == name).map(|(_, payload)| *payload)
    }

    fn list(&self) -> String {
        self.names().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    }

    /// Refuses an emit if the event is not declared, or is declared with another type.
    pub(crate) fn check_emit(&self, name: &str, payload: TypeId, carried: &'static str) -> Result<(), EmitError> {
        match self.get(name) {
            Some(declared) if declared.id == payload => Ok(()),
            Some(declared) => {
                Err(EmitErrorKind::DeclaredType { name: name.to_owned(), declared: declared.name, carried }.into())
            }
            None if OF_EVERY_RUN.contains(&name) => Ok(()),
            None => Err(EmitErrorKind::Undeclared { name: name.to_owned(), declared: self.list() }.into()),
        }
    }

    /// Refuses a listener for an exact name or path if the event is not declared, or is declared with another type.
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
            (None, _) if OF_EVERY_RUN.contains(&name) => Ok(()),
            (None, _) => Err(ListenError::Undeclared { name: name.to_owned(), declared: self.list() }),
        }
    }
}

/// Returns the name of the emitter's own event that the matcher names exactly, by name or by path.
fn own_name<'m>(emitter: &Emitter, matcher: &'m Matcher) -> Option<&'m str> {
    match &matcher.0 {
        MatcherKind::Name { text, .. } => Some(text),
        MatcherKind::Path(path) => {
            let rest = path.strip_prefix(emitter.namespace())?;
            rest.strip_prefix('.').filter(|name| !name.contains('.'))
        }
        _ => None,
    }
}
