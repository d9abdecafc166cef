//! Each of the five middlewares of the guarded desk affects the answers, and the trajectory shows its events.

use std::sync::OnceLock;

use crate::example::example;

#[path = "../../tests/support/example.rs"]
mod example;

/// Returns the output of the example: the trajectory, and a line for each letter.
fn printed() -> &'static (String, Vec<String>) {
    static PRINTED: OnceLock<(String, Vec<String>)> = OnceLock::new();
    PRINTED.get_or_init(|| {
        let output = example("guarded").output().expect("the example runs");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let (trajectory, answers) = text.split_once("\n\n").expect("an empty line between");
        (trajectory.to_owned(), answers.lines().map(ToOwned::to_owned).collect())
    })
}

fn line(of: &str, part: &str) -> String {
    let (trajectory, _) = printed();
    let found = trajectory.lines().find(|line| line.contains(of) && line.contains(part));
    found.unwrap_or_else(|| panic!("no line with {of} and {part}:\n{trajectory}")).trim_start().to_owned()
}

fn answer(n: usize) -> &'static str {
    &printed().1[n]
}

#[test]
fn retry_repeats_the_failed_lookup_and_the_letter_is_answered() {
    line("Middleware[retry][retry]", "the register is busy");
    assert!(answer(0).contains("order 1042 is shipped, order 1043 is packed"), "{}", answer(0));
}

#[test]
fn redact_removes_personal_data_from_the_answers() {
    line("Middleware[redact][redacted]", "email");
    assert!(answer(0).contains("[REDACTED:email]"), "{}", answer(0));
    let said = printed().1.join("\n");
    for secret in ["anna.lind@example.org", "+46 70 123 45 67", "DE89 3704 0044 0532 0130 00"] {
        assert!(!said.contains(secret), "{said}");
    }
}

#[test]
fn cache_reads_a_repeated_letter_only_once() {
    line("Middleware[cache][hit]", "age_ms");
    let (trajectory, _) = printed();
    let misses = trajectory.matches("Middleware[cache][miss]").count();
    assert_eq!(misses, 3, "three letters, one of them twice:\n{trajectory}");
    assert_eq!(answer(0), answer(1));
}

#[test]
fn exfil_guard_denies_a_letter_to_a_host_that_is_not_allowed() {
    line("Middleware[exfil_guard][blocked]", "host");
    assert!(answer(2).starts_with("mallory.txt: not answered: denied by exfil_guard: "), "{}", answer(2));
}

/// The letter names eight orders. The budget allows six tool runs: one reads the letter, and five look up orders.
#[test]
fn budget_denies_the_seventh_tool_of_a_letter_and_ends_the_letter() {
    line("Middleware[budget][closed]", "calls");
    let (_, letter) = printed().0.rsplit_once("--> Clerk[answer][start]").expect("the last letter");
    assert!(letter.lines().next().is_some_and(|start| start.contains("carol.txt")), "{letter}");
    let ends = letter.lines().filter_map(|line| line.trim_start().strip_prefix("<-- Tool")?.split([' ', ':']).next());
    let mut expected = vec!["[read][success]"];
    expected.extend(["[look_up][success]"; 5]);
    expected.push("[look_up][error]");
    assert_eq!(ends.collect::<Vec<_>>(), expected, "{letter}");
    assert!(answer(3).starts_with("carol.txt: not answered: "), "{}", answer(3));
    assert!(answer(3).contains("budget"), "{}", answer(3));
}
