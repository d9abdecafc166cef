//! Programs that must compile, in the forms that users try first, and programs that must not compile, with the
//! compiler's messages.

/// R1, R3, R5, R10.
#[test]
fn the_forms_that_users_try_first_compile_and_misuse_does_not() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/fail/*.rs");
}
