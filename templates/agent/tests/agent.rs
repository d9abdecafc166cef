//! The agent with a scripted model: no network, no key, the same answers each time.

use emitree::agent::{ChatModel, ScriptedModel};
use my_agent::librarian;
use serde_json::json;

#[tokio::test]
async fn the_agent_reads_files_of_its_folder_and_no_others() {
    let script = ScriptedModel::new("test")
        .calls([("read_file", json!({"path": "Cargo.toml"})), ("read_file", json!({"path": "../secret"}))])
        .text("It is the manifest of my-agent.");
    let folder = env!("CARGO_MANIFEST_DIR").as_ref();
    let agent = librarian(ChatModel::new(script.clone()).unwrap(), folder).unwrap();

    let answer = agent.ask("What is Cargo.toml?").await.unwrap();
    assert_eq!(answer.text(), "It is the manifest of my-agent.");
    let results: Vec<_> = answer.messages.iter().flat_map(|message| message.tool_results()).collect();
    assert!(results[0].response.as_str().unwrap().contains("name = \"my-agent\""));
    assert_eq!(results[1].response, "denied by read_file: ../secret is outside of the folder");
    assert!(script.requests()[0].system.as_deref().unwrap().starts_with("Answer questions about the files"));
}
