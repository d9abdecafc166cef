//! Mistakes that must not compile, with the compiler's messages, and the closure forms that users try first.

/// The methods accept the closures that a user writes first. Mistakes are reported in terms of this crate (E7, E11).
#[test]
fn misuse_does_not_compile_and_common_closure_forms_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/fail/*.rs");
}
