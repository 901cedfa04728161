//! The two ways in which the processor executes a block, and when it takes which. Both leave the same state, the same charges and
//! the same virtual time; they differ in how long that takes.

/// What executes blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tier {
    /// The interpreter alone: the reference.
    Interpreter,
    /// The translator, for every block that it can translate, from the first time on.
    Translator,
    /// The interpreter first, and the translator for what is executed often.
    #[default]
    Auto,
}
