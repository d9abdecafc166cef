//! Models by name. Each test registers its own providers, because all tests share one registry.

use emitree_agent::{ChatModel, ScriptedModel};
use emitree_runtime::{Error, Result, Runnable};

fn scripted(model: &str) -> Result<ChatModel> {
    Ok(ChatModel::new(ScriptedModel::new("named").text(format!("I am {model}.")))?)
}

#[tokio::test]
async fn a_registered_provider_creates_the_models_whose_names_begin_with_its_name() -> Result<()> {
    ChatModel::register("first", scripted)?;
    for (name, answer) in [("first:a", "I am a."), ("first:a:7b", "I am a:7b."), (" first : a/b ", "I am a/b.")] {
        assert_eq!(ChatModel::from_name(name)?.run("Who are you?".into()).await?.text(), answer, "{name}");
    }
    Ok(())
}

#[test]
fn a_name_without_a_provider_or_a_model_is_quoted_in_the_error() {
    let table = [
        ("granite4", "`granite4` does not name a provider: write `<provider>:<model>`, such as `ollama:granite4`"),
        ("", "`` does not name a provider: write `<provider>:<model>`, such as `ollama:granite4`"),
        (":granite4", "`:granite4` does not name a provider: write `<provider>:<model>`, such as `ollama:granite4`"),
        ("ollama:", "`ollama:` does not name a model: write its name after the colon, as in `ollama:granite4`"),
        ("ollama: ", "`ollama: ` does not name a model: write its name after the colon, as in `ollama:granite4`"),
    ];
    for (name, message) in table {
        assert_eq!(ChatModel::from_name(name).unwrap_err().to_string(), message);
    }
}

#[test]
fn the_error_for_an_unknown_provider_lists_the_known_providers() -> Result<()> {
    ChatModel::register("listed", scripted)?;
    let message = ChatModel::from_name("lsited:a").unwrap_err().to_string();
    assert!(message.starts_with("the provider `lsited` of `lsited:a` is not known; known providers are "), "{message}");
    assert!(message.contains("`listed`"), "{message}");
    assert!(message.ends_with("add a provider with `ChatModel::register`"), "{message}");
    Ok(())
}

#[test]
fn a_provider_name_is_registered_only_once_and_must_be_a_valid_segment() -> Result<()> {
    ChatModel::register("once", scripted)?;
    let error = ChatModel::register("once", |_| Err(Error::new("never called"))).unwrap_err();
    assert_eq!(error.to_string(), "the provider `once` is already known: choose another name");
    assert!(ChatModel::from_name("once:a").is_ok(), "the first registration stays");
    for provider in ["", "a-b", "a b", "a:b", "ä"] {
        let error = ChatModel::register(provider, scripted).unwrap_err().to_string();
        assert!(error.starts_with(&format!("`{provider}` cannot be the name of a provider")), "{error}");
    }
    Ok(())
}

#[test]
fn the_function_of_a_provider_may_use_the_registry_and_its_error_is_returned_unchanged() -> Result<()> {
    ChatModel::register("outer", |model| {
        ChatModel::register("inner", scripted)?;
        if model == "wrong" { Err(Error::new("no such model")) } else { ChatModel::from_name("inner:a") }
    })?;
    assert!(ChatModel::from_name("outer:right").is_ok());
    ChatModel::register("failing", |_| Err(Error::new("no such model")))?;
    assert_eq!(ChatModel::from_name("failing:a").unwrap_err().to_string(), "no such model");
    Ok(())
}
