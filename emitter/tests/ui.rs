//! What must not compile, with what the compiler says then, and the closure forms that users will try first.

/// The four verbs take what a user writes first, and what is wrong is told in words of this crate (STYLE, E7, E11).
#[test]
fn misuse_does_not_compile_and_the_first_forms_one_tries_do() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/fail/*.rs");
}
