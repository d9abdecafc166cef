//! Mistakes that must not compile, with the compiler's messages, and the closure forms that users try first.

// Compiled and called here: with a program that must compile, trybuild builds all dependencies again instead of checking
// them, which takes minutes.
#[path = "ui/pass/closures.rs"]
mod closures;

/// Mistakes are reported in terms of this crate (E7, E11).
#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/fail/*.rs");
}

/// The methods accept the closures that a user writes first (E7, E11).
#[test]
fn common_closure_forms_compile() -> Result<(), emitree_emitter::BoxError> {
    closures::main()
}
