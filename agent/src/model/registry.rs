//! Models by name.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use emitree_runtime::{Error, Result};
use parking_lot::RwLock;

use crate::ChatModel;

type Make = Arc<dyn Fn(&str) -> Result<ChatModel> + Send + Sync>;

/// The functions that [`ChatModel::register`] received, by provider.
static REGISTERED: RwLock<BTreeMap<String, Make>> = RwLock::new(BTreeMap::new());

impl ChatModel {
    /// Makes a model from its name, `<provider>:<model>`, for example `ollama:granite4`. The model's own name may
    /// contain colons.
    ///
    /// ```
    /// use emitree_agent::{ChatModel, ScriptedModel};
    /// use emitree_runtime::Runnable;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// ChatModel::register("echo", |model| {
    ///     let answer = format!("I am {model}.");
    ///     Ok(ChatModel::new(ScriptedModel::new("echo").text(answer))?)
    /// })?;
    /// let model = ChatModel::from_name("echo:small")?;
    /// assert_eq!(model.run("Who are you?".into()).await?.text(), "I am small.");
    ///
    /// let error = ChatModel::from_name("small").unwrap_err();
    /// assert_eq!(error.to_string(), "`small` does not name a provider: write `<provider>:<model>`, such as `ollama:granite4`");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// With the feature `openai`, the provider may also be a server that `OpenAi::from_name` supports. Its key and, for
    /// some servers, its base URL are read from environment variables.
    ///
    /// # Errors
    ///
    /// Returns an error if the name has no provider or no model, if the provider is not known, or if the server needs a
    /// key that is not set. An error of the registered function is returned unchanged.
    pub fn from_name(name: &str) -> Result<Self> {
        let (provider, model) = split(name)?;
        // The function is called after the lock is released, because it is user code and may register another provider.
        let registered = REGISTERED.read().get(provider).cloned();
        if let Some(make) = registered {
            return make(model);
        }
        built_in(provider, name).unwrap_or_else(|| Err(unknown(provider, name)))
    }

    /// Registers a provider for the whole program, so that [`from_name`](Self::from_name) can make its models. The
    /// function receives the name of the model, without the provider.
    ///
    /// # Errors
    ///
    /// Returns an error if the provider is already known, or if its name is empty or contains characters other than
    /// ASCII letters, digits and `_`.
    pub fn register(
        provider: impl Into<String>,
        make: impl Fn(&str) -> Result<Self> + Send + Sync + 'static,
    ) -> Result<()> {
        let provider = provider.into();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if provider.is_empty() || !provider.chars().all(is_part) {
            return Err(Error::new(format!(
                "`{provider}` cannot be the name of a provider: use the characters A-Z, a-z, 0-9 and `_`"
            )));
        }
        let taken =
            |provider: &str| Error::new(format!("the provider `{provider}` is already known: choose another name"));
        if is_built_in(&provider) {
            return Err(taken(&provider));
        }
        match REGISTERED.write().entry(provider) {
            Entry::Occupied(entry) => Err(taken(entry.key())),
            Entry::Vacant(entry) => {
                entry.insert(Arc::new(make));
                Ok(())
            }
        }
    }
}

/// Splits a name into a provider and a model at its first colon, and trims both.
pub(crate) fn split(name: &str) -> Result<(&str, &str)> {
    let parts = name.split_once(':').map(|(provider, model)| (provider.trim(), model.trim()));
    match parts {
        Some((provider, "")) if !provider.is_empty() => Err(Error::new(format!(
            "`{name}` does not name a model: write its name after the colon, as in `ollama:granite4`"
        ))),
        Some((provider, model)) if !provider.is_empty() => Ok((provider, model)),
        _ => Err(Error::new(format!(
            "`{name}` does not name a provider: write `<provider>:<model>`, such as `ollama:granite4`"
        ))),
    }
}

/// Makes a model of a server that [`OpenAi::from_name`](crate::OpenAi::from_name) supports. Returns `None` for any
/// other provider.
#[cfg(feature = "openai")]
fn built_in(provider: &str, name: &str) -> Option<Result<ChatModel>> {
    let make = || Ok(ChatModel::new(crate::OpenAi::from_name(name)?.build()?)?);
    is_built_in(provider).then(make)
}

#[cfg(not(feature = "openai"))]
fn built_in(_: &str, _: &str) -> Option<Result<ChatModel>> {
    None
}

fn is_built_in(provider: &str) -> bool {
    built_in_names().any(|known| known == provider)
}

fn built_in_names() -> impl Iterator<Item = &'static str> {
    #[cfg(feature = "openai")]
    return crate::openai::servers::all().map(|known| known.name);
    #[cfg(not(feature = "openai"))]
    std::iter::empty()
}

fn unknown(provider: &str, name: &str) -> Error {
    let mut known: Vec<_> = REGISTERED.read().keys().cloned().chain(built_in_names().map(str::to_owned)).collect();
    known.sort_unstable();
    let known = if known.is_empty() {
        "no provider is registered, and the feature `openai` is off".to_owned()
    } else {
        format!("known providers are `{}`", known.join("`, `"))
    };
    Error::new(format!(
        "the provider `{provider}` of `{name}` is not known; {known}; add a provider with `ChatModel::register`"
    ))
}
